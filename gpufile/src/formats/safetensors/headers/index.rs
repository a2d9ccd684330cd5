//! The index of a model in several files: `model.safetensors.index.json`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::header::MAX_HEADER_LEN;
use super::json::{Fault, Text, With, explain, utf8};
use crate::formats::FormatError;
use crate::formats::clip::clip;

const FORMAT: &str = "safetensors index";

/// The file that each tensor of a model is in.
///
/// File names are relative to the folder of the index, with `/` between folders, and without the `./` that some begin
/// with. They do not lead out of it, except through symbolic links. Parsing does not look at the files.
///
/// ```
/// use gpufile::formats::safetensors::ShardIndex;
///
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// let json = br#"{"metadata": {"total_size": 8}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
/// let index = ShardIndex::parse(json)?;
/// assert_eq!(index.file_of("b"), Some("2.safetensors"));
///
/// let json = br#"{"weight_map": {"a": "../secret"}}"#;
/// assert_eq!(ShardIndex::parse(json).unwrap_err().tensor(), Some("a"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ShardIndex {
    names: String,
    /// The range of each name in `names`, and the number of its file in `files`. Sorted by name.
    entries: Vec<(Range<u32>, u32)>,
    files: Vec<String>,
    /// The numbers of the entries, file by file, and by name in each file.
    by_file: Vec<u32>,
    /// The end of each file in `by_file`.
    ends: Vec<u32>,
}

impl ShardIndex {
    /// Parses and checks an index. Ignores keys other than `weight_map`, because the headers of the files have the
    /// sizes.
    ///
    /// # Errors
    /// [`FormatError::HeaderTooLarge`] beyond [`MAX_HEADER_LEN`], [`FormatError::Syntax`], [`FormatError::Duplicate`],
    /// [`FormatError::DuplicateTensor`], [`FormatError::Missing`], [`FormatError::FileName`].
    pub fn parse(json: &[u8]) -> Result<Self, FormatError> {
        let len_bytes = json.len() as u64;
        if len_bytes > MAX_HEADER_LEN {
            return Err(FormatError::HeaderTooLarge {
                format: FORMAT,
                len_bytes,
                limit_bytes: MAX_HEADER_LEN,
            });
        }
        // Some editors write a byte order mark.
        let json = json.strip_prefix("\u{feff}".as_bytes()).unwrap_or(json);
        let json = utf8(FORMAT, json, 0)?;
        let mut draft = Draft::default();
        let mut parser = serde_json::Deserializer::from_str(json);
        if let Err(error) = draft.deserialize(&mut parser).and_then(|()| parser.end()) {
            return Err(match draft.bad_file {
                Some((tensor, file)) => FormatError::FileName { tensor, file },
                None => explain(FORMAT, json, 0, &error, None, draft.fault),
            });
        }
        draft.finish()
    }

    /// Returns the file that the tensor is in.
    pub fn file_of(&self, tensor: &str) -> Option<&str> {
        let found = self.entries.binary_search_by(|(name, _)| text(&self.names, name).cmp(tensor)).ok()?;
        Some(&self.files[self.entries[found].1 as usize])
    }

    pub(in crate::formats::safetensors) fn is_in(&self, tensor: &str, file: u32) -> bool {
        let found = self.entries.binary_search_by(|(name, _)| text(&self.names, name).cmp(tensor));
        found.is_ok_and(|found| self.entries[found].1 == file)
    }

    /// Returns the names of the tensors in the file with this number, sorted.
    pub(in crate::formats::safetensors) fn of_file(&self, file: u32) -> impl ExactSizeIterator<Item = &str> {
        let file = file as usize;
        let start = if file == 0 { 0 } else { self.ends[file - 1] };
        let entries = &self.by_file[start as usize..self.ends[file] as usize];
        entries.iter().map(|entry| text(&self.names, &self.entries[*entry as usize].0))
    }

    /// Returns the number of the file of each tensor, by the names of the tensors.
    pub(in crate::formats::safetensors) fn file_numbers(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|(_, file)| *file)
    }

    /// Returns the files, each once, in the order of their first appearance in the index.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Returns the tensors and their files, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &str)> + DoubleEndedIterator + Clone {
        self.entries.iter().map(|(name, file)| (text(&self.names, name), self.files[*file as usize].as_str()))
    }
}

fn text<'a>(names: &'a str, range: &Range<u32>) -> &'a str {
    &names[range.start as usize..range.end as usize]
}

/// Returns whether a file name stays in the folder of the index. A backslash could lead out of it on other systems.
pub(in crate::formats::safetensors) fn is_plain(file: &str) -> bool {
    !file.contains(['\\', '\0']) && file.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[derive(Default)]
struct Draft {
    names: String,
    entries: Option<Vec<(Range<u32>, u32)>>,
    files: Files,
    fault: Option<Fault>,
    bad_file: Option<(String, String)>,
}

#[derive(Default)]
struct Files {
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
    last: usize,
}

impl Files {
    /// Returns the number of a file; `None` for a name that could lead out of the folder.
    fn number(&mut self, name: &str) -> Option<u32> {
        let name = name.trim_start_matches("./");
        // Most tensors are in the file of the tensor before.
        if self.names.get(self.last).is_none_or(|last| last != name) {
            self.last = match self.numbers.get(name) {
                Some(number) => *number as usize,
                None if !is_plain(name) => return None,
                None => {
                    self.numbers.insert(name.to_owned(), self.names.len() as u32);
                    self.names.push(name.to_owned());
                    self.names.len() - 1
                }
            };
        }
        Some(self.last as u32)
    }
}

impl Draft {
    fn finish(self) -> Result<ShardIndex, FormatError> {
        let Draft { names, entries, files, .. } = self;
        let Some(mut entries) = entries else {
            return Err(FormatError::Missing { key: "weight_map", tensor: None, offset: None });
        };
        let name = |entry: &(Range<u32>, u32)| text(&names, &entry.0);
        entries.sort_by(|a, b| name(a).cmp(name(b)));
        if let Some(pair) = entries.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(FormatError::DuplicateTensor { tensor: clip(name(&pair[0])) });
        }
        let mut by_file: Vec<_> = (0..entries.len() as u32).collect();
        by_file.sort_by_key(|entry| entries[*entry as usize].1);
        let mut ends = vec![0; files.names.len()];
        entries.iter().for_each(|(_, file)| ends[*file as usize] += 1);
        ends.iter_mut().fold(0, |start, end| {
            *end += start;
            *end
        });
        Ok(ShardIndex { names, entries, files: files.names, by_file, ends })
    }
}

impl<'de> DeserializeSeed<'de> for &mut Draft {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Draft {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(is_weight_map) = map.next_key_seed(With(|key: &str| key == "weight_map"))? {
            if !is_weight_map {
                map.next_value::<IgnoredAny>()?;
            } else if self.entries.is_some() {
                return Err(Fault::Duplicate("weight_map".to_owned()).stop(&mut self.fault));
            } else {
                self.entries = Some(map.next_value_seed(WeightMap(self))?);
            }
        }
        Ok(())
    }
}

struct WeightMap<'a>(&'a mut Draft);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = Vec<(Range<u32>, u32)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = Vec<(Range<u32>, u32)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Draft { names, files, bad_file, .. } = self.0;
        let mut entries = Vec::new();
        while let Some(name) = map.next_key_seed(Text(names))? {
            match map.next_value_seed(With(|file: &str| files.number(file).ok_or_else(|| clip(file))))? {
                Ok(file) => entries.push((name, file)),
                Err(file) => {
                    *bad_file = Some((clip(text(names, &name)), file));
                    return Err(A::Error::custom("stopped"));
                }
            }
        }
        Ok(entries)
    }
}
