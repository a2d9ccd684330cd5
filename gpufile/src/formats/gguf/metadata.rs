use std::fmt;

use super::value::Value;
use crate::formats::FormatError;
use crate::formats::clip::clip;

/// The metadata of a GGUF file: what kind of model it is, its sizes, its vocabulary.
///
/// The keys keep their order. Looking up a key takes logarithmic time.
///
/// ```
/// use gpufile::formats::gguf::{Metadata, Value};
///
/// let mut metadata = Metadata::new();
/// metadata.insert("general.architecture", "llama");
/// metadata.insert("llama.block_count", 32_u32);
/// assert_eq!(metadata.get("llama.block_count").and_then(Value::as_u64), Some(32));
/// assert!(metadata.iter().map(|(key, _)| key).eq(["general.architecture", "llama.block_count"]));
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indices of `entries`, by key.
    by_key: Vec<u32>,
}

impl Metadata {
    /// Returns metadata without keys.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn of(entries: Vec<(String, Value)>) -> Result<Self, FormatError> {
        let key = |&index: &u32| &*entries[index as usize].0;
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        by_key.sort_by(|a, b| key(a).cmp(key(b)));
        match by_key.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
            Some(pair) => {
                Err(FormatError::Duplicate { key: clip(key(&pair[0])), tensor: None, offset: None })
            }
            None => Ok(Self { entries, by_key }),
        }
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.by_key.binary_search_by(|&index| (*self.entries[index as usize].0).cmp(key))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self.find(key).ok()?;
        Some(&self.entries[self.by_key[found] as usize].1)
    }

    /// Sets the value of a key, which stands behind all others if it is new. Returns the value that it had.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        match self.find(&key) {
            Ok(found) => {
                let entry = &mut self.entries[self.by_key[found] as usize];
                Some(std::mem::replace(&mut entry.1, value))
            }
            Err(place) => {
                self.by_key.insert(place, self.entries.len() as u32);
                self.entries.push((key, value));
                None
            }
        }
    }

    /// Returns the keys and their values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    /// The last value of a key counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut metadata = Self::new();
        for (key, value) in entries {
            metadata.insert(key, value);
        }
        metadata
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_last_value() {
        let mut metadata = Metadata::from_iter([("b", 1_u8), ("a", 2), ("c", 3)]);
        assert_eq!(metadata.insert("a", "two"), Some(Value::U8(2)));
        assert_eq!(metadata.insert("0", true), None);
        let entries: Vec<_> = metadata.iter().collect();
        let (one, two) = (Value::U8(1), Value::from("two"));
        assert_eq!(entries, [("b", &one), ("a", &two), ("c", &Value::U8(3)), ("0", &Value::Bool(true))]);
        assert_eq!((metadata.get("a"), metadata.get("d"), metadata.len()), (Some(&two), None, 4));
    }

    #[test]
    fn duplicate_keys_are_refused() {
        let entry = |key: &str| (key.to_owned(), Value::Bool(true));
        let error = Metadata::of(vec![entry("b"), entry("a"), entry("b")]).unwrap_err();
        assert_eq!(error.to_string(), r#""b" occurs twice"#);
    }
}
