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
/// File names are relative to the folder of the index, with `/` between folders. They do not lead out of it, except
/// through symbolic links. Parsing does not look at the files.
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

    /// Returns whether the tensor is in the file with this number in [`files`](Self::files).
    pub(super) fn is_in(&self, tensor: &str, file: u32) -> bool {
        let found = self.entries.binary_search_by(|(name, _)| text(&self.names, name).cmp(tensor));
        found.is_ok_and(|found| self.entries[found].1 == file)
    }

    /// Returns the names of the tensors in the file with this number.
    pub(super) fn of_file(&self, file: u32) -> impl Iterator<Item = &str> {
        let entries = self.entries.iter().filter(move |(_, of)| *of == file);
        entries.map(|(name, _)| text(&self.names, name))
    }

    /// Returns the number of tensors of each file.
    pub(super) fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.files.len()];
        self.entries.iter().for_each(|(_, file)| counts[*file as usize] += 1);
        counts
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
pub(super) fn is_plain(file: &str) -> bool {
    !file.contains(['\\', '\0']) && file.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[derive(Default)]
struct Draft {
    names: String,
    entries: Option<Vec<(Range<u32>, u32)>>,
    files: BTreeMap<String, u32>,
    fault: Option<Fault>,
    bad_file: Option<(String, String)>,
}

impl Draft {
    fn finish(self) -> Result<ShardIndex, FormatError> {
        let Draft { names, entries, files: by_file, .. } = self;
        let Some(mut entries) = entries else {
            return Err(FormatError::Missing { key: "weight_map", tensor: None, offset: None });
        };
        let name = |entry: &(Range<u32>, u32)| text(&names, &entry.0);
        entries.sort_by(|a, b| name(a).cmp(name(b)));
        if let Some(pair) = entries.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(FormatError::DuplicateTensor { tensor: clip(name(&pair[0])) });
        }
        let mut files = vec![String::new(); by_file.len()];
        for (file, index) in by_file {
            files[index as usize] = file;
        }
        Ok(ShardIndex { names, entries, files })
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
            let file = map.next_value_seed(With(|file: &str| {
                if let Some(&index) = files.get(file) {
                    return Ok(index);
                }
                if !is_plain(file) {
                    return Err(clip(file));
                }
                let index = files.len() as u32;
                files.insert(file.to_owned(), index);
                Ok(index)
            }))?;
            match file {
                Ok(index) => entries.push((name, index)),
                Err(file) => {
                    *bad_file = Some((clip(text(names, &name)), file));
                    return Err(A::Error::custom("stopped"));
                }
            }
        }
        Ok(entries)
    }
}
