//! Arrays of strings, in one allocation: vocabularies have hundreds of thousands of short ones.

use std::fmt;

/// An array of strings in the metadata of a GGUF file.
///
/// ```
/// use gpufile::formats::gguf::Strings;
///
/// let tokens: Strings = ["<s>", "</s>", ""].into_iter().collect();
/// assert_eq!((tokens.len(), tokens.get(1), tokens.get(3)), (3, Some("</s>"), None));
/// assert!(tokens.iter().eq(["<s>", "</s>", ""]));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// The end of each string in the text, in bytes.
    ends: Vec<usize>,
}

impl Strings {
    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the string with this number, counted from 0.
    pub fn get(&self, number: usize) -> Option<&str> {
        let end = *self.ends.get(number)?;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    /// Returns the strings, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|number| self.get(number).unwrap_or_default())
    }

    /// Appends a string.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Self::default();
        strings.into_iter().for_each(|string| all.push(string.as_ref()));
        all
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
