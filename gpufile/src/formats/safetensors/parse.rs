//! Parsing the bytes of a header.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::header::{Entry, FORMAT, Header, LENGTH_BYTES, MAX_HEADER_LEN, METADATA, Table};
use super::json::{Fault, Text, With, explain, utf8};
use crate::formats::clip::clip;
use crate::formats::{Dtype, FormatError};

/// Returns the length of the header, in bytes from the start of the file. Takes at least the first eight bytes of the
/// file, and the file's length in bytes.
///
/// # Errors
/// [`FormatError::Truncated`] for fewer than eight bytes or a header longer than the file,
/// [`FormatError::HeaderTooLarge`] beyond [`MAX_HEADER_LEN`], or [`FormatError::KnownFormat`] if another format starts
/// with these bytes.
pub fn head_len(start: &[u8], file_len: u64) -> Result<u64, FormatError> {
    const WHAT: &str = "a safetensors header";
    let Some(length) = start.first_chunk() else {
        let available_bytes = file_len.min(start.len() as u64);
        return Err(FormatError::Truncated { what: WHAT, needed_bytes: LENGTH_BYTES, available_bytes });
    };
    let len_bytes = u64::from_le_bytes(*length);
    if len_bytes > MAX_HEADER_LEN {
        if let Some(found) = known_by(length) {
            return Err(FormatError::KnownFormat { format: FORMAT, found });
        }
        return Err(FormatError::HeaderTooLarge { format: FORMAT, len_bytes, limit_bytes: MAX_HEADER_LEN });
    }
    let needed_bytes = LENGTH_BYTES + len_bytes;
    if needed_bytes > file_len {
        return Err(FormatError::Truncated { what: WHAT, needed_bytes, available_bytes: file_len });
    }
    Ok(needed_bytes)
}

/// Returns a description of the format that starts with these bytes, if its files are often mistaken for safetensors.
fn known_by(start: &[u8; 8]) -> Option<&'static str> {
    const STARTS: [(&[u8], &str); 6] = [
        (b"version ", "a Git LFS pointer; `git lfs pull` fetches the file"),
        (b"PK\x03\x04", "a zip archive, such as a PyTorch or npz file"),
        (b"GGUF", "a GGUF file"),
        (b"\x93NUMPY", "an npy file"),
        (b"\x89HDF", "an HDF5 file"),
        (b"<!DOCTYP", "an HTML page"),
    ];
    STARTS.iter().find(|(known, _)| start.starts_with(known)).map(|(_, what)| *what)
}

impl Header {
    /// Parses and checks a header. `head` is at least the first [`head_len`] bytes of the file, `file_len` the length
    /// of the whole file in bytes.
    ///
    /// Ignores unknown keys in the description of a tensor.
    ///
    /// # Errors
    /// [`FormatError`], with the name of the tensor if the error is in one.
    pub fn parse(head: &[u8], file_len: u64) -> Result<Self, FormatError> {
        let data_start = head_len(head, file_len)?;
        let Some(json) = head.get(LENGTH_BYTES as usize..data_start as usize) else {
            let available_bytes = head.len() as u64;
            let what = "a safetensors header";
            return Err(FormatError::Truncated { what, needed_bytes: data_start, available_bytes });
        };
        if json.first() != Some(&b'{') {
            return Err(FormatError::OtherFormat {
                format: FORMAT,
                expected: "eight bytes of length and a {",
            });
        }
        let json = utf8(FORMAT, json, LENGTH_BYTES)?;
        let mut draft = Draft::default();
        let mut parser = serde_json::Deserializer::from_str(json);
        if let Err(error) = draft.deserialize(&mut parser).and_then(|()| parser.end()) {
            let tensor =
                draft.open.map(|name| clip(&draft.table.names[name.start as usize..name.end as usize]));
            return Err(explain(FORMAT, json, LENGTH_BYTES, &error, tensor, draft.fault));
        }
        Header::new(draft.table, draft.metadata.unwrap_or_default(), data_start, file_len - data_start)
    }
}

/// The parts of a header that the parser has read so far. The `safetensors` crate is no substitute: it keeps the last
/// of two tensors of the same name, and its errors do not name the tensor.
#[derive(Default)]
struct Draft {
    table: Table,
    metadata: Option<BTreeMap<String, String>>,
    /// The name of the tensor that is being read, in `table.names`.
    open: Option<Range<u32>>,
    fault: Option<Fault>,
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
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(Text(&mut self.table.names))? {
            if &self.table.names[name.start as usize..] == METADATA {
                self.table.names.truncate(name.start as usize);
                if self.metadata.is_some() {
                    return Err(Fault::Duplicate(METADATA.to_owned()).stop(&mut self.fault));
                }
                self.metadata = Some(map.next_value_seed(Metadata(&mut self.fault))?);
            } else {
                self.open = Some(name.clone());
                map.next_value_seed(Tensor { draft: self, name })?;
                self.open = None;
            }
        }
        Ok(())
    }
}

struct Metadata<'a>(&'a mut Option<Fault>);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            match entries.entry(key) {
                btree_map::Entry::Vacant(entry) => entry.insert(value),
                btree_map::Entry::Occupied(entry) => {
                    return Err(Fault::Duplicate(clip(entry.key())).stop(self.0));
                }
            };
        }
        Ok(entries)
    }
}

struct Tensor<'a> {
    draft: &'a mut Draft,
    name: Range<u32>,
}

enum Key {
    Dtype,
    Shape,
    Offsets,
    Other,
}

impl<'de> DeserializeSeed<'de> for Tensor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Tensor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Draft { table, fault, .. } = self.draft;
        let (mut dtype, mut axes, mut offsets) = (None, None, None);
        let key = |key: &str| match key {
            "dtype" => Key::Dtype,
            "shape" => Key::Shape,
            "data_offsets" => Key::Offsets,
            _ => Key::Other,
        };
        while let Some(key) = map.next_key_seed(With(key))? {
            let twice = match key {
                Key::Dtype => {
                    let known = |name: &str| Dtype::from_safetensors(name).ok_or_else(|| clip(name));
                    let value = map.next_value_seed(With(known))?;
                    let value = value.map_err(|name| Fault::Dtype(name).stop(fault))?;
                    dtype.replace(value).map(|_| "dtype")
                }
                Key::Shape => axes.replace(map.next_value_seed(Axes(&mut table.axes))?).map(|_| "shape"),
                Key::Offsets => offsets.replace(map.next_value::<(u64, u64)>()?).map(|_| "data_offsets"),
                Key::Other => map.next_value::<IgnoredAny>().map(|_| None)?,
            };
            if let Some(key) = twice {
                return Err(Fault::Duplicate(key.to_owned()).stop(fault));
            }
        }
        let mut missing = |key| Fault::Missing(key).stop::<A::Error>(fault);
        let dtype = dtype.ok_or_else(|| missing("dtype"))?;
        let axes = axes.ok_or_else(|| missing("shape"))?;
        let (start, end) = offsets.ok_or_else(|| missing("data_offsets"))?;
        table.entries.push(Entry { name: self.name, axes, dtype, start, end });
        Ok(())
    }
}

/// Appends the numbers of an array, and returns where they lie.
struct Axes<'a>(&'a mut Vec<u64>);

impl<'de> DeserializeSeed<'de> for Axes<'_> {
    type Value = Range<u32>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Axes<'_> {
    type Value = Range<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of lengths")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let start = self.0.len() as u32;
        while let Some(axis) = seq.next_element()? {
            self.0.push(axis);
        }
        Ok(start..self.0.len() as u32)
    }
}
