use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::header::{Entry, FORMAT, Header, LENGTH_BYTES, MAX_HEADER_LEN, METADATA, Table};
use super::json::{Fault, Text, With, explain, utf8};
use super::known::known_by;
use crate::formats::clip::clip;
use crate::formats::{Dtype, FormatError};

/// Returns the length of the header, in bytes from the start of the file. Takes at least the first eight bytes of the
/// file, and the file's length in bytes. With more bytes, the error can say better what a file of another format is.
///
/// # Errors
/// [`FormatError::Truncated`] for fewer than eight bytes or a header longer than the file,
/// [`FormatError::HeaderTooLarge`] beyond [`MAX_HEADER_LEN`], or [`FormatError::KnownFormat`] if the bytes show what
/// the file is instead.
pub fn head_len(start: &[u8], file_len: u64) -> Result<u64, FormatError> {
    const WHAT: &str = "a safetensors header";
    let other = |error: FormatError| match known_by(start) {
        Some(found) => FormatError::KnownFormat { format: FORMAT, found },
        None => error,
    };
    let Some(length) = start.first_chunk() else {
        let available_bytes = file_len.min(start.len() as u64);
        return Err(other(FormatError::Truncated {
            what: WHAT,
            needed_bytes: LENGTH_BYTES,
            available_bytes,
        }));
    };
    let len_bytes = u64::from_le_bytes(*length);
    if len_bytes > MAX_HEADER_LEN {
        return Err(other(FormatError::HeaderTooLarge {
            format: FORMAT,
            len_bytes,
            limit_bytes: MAX_HEADER_LEN,
        }));
    }
    let needed_bytes = LENGTH_BYTES + len_bytes;
    if needed_bytes > file_len {
        let error = FormatError::Truncated { what: WHAT, needed_bytes, available_bytes: file_len };
        // A header of just that length may begin as another format does.
        let is_header = start.get(8).is_none_or(|byte| *byte == b'{');
        return Err(if is_header { error } else { other(error) });
    }
    Ok(needed_bytes)
}

/// Returns a description of a header that consists of zeros or ends with them.
fn padding_of(head: &[u8], json: &[u8]) -> Option<String> {
    match json.last() {
        None => known_by(head).map(|found| format!("a header of {found}")),
        Some(0) if json.iter().all(|byte| *byte == 0) => {
            known_by(json).map(|found| format!("a header of {found}"))
        }
        Some(0) => Some(
            "a header with NUL bytes after its JSON, where only spaces are allowed; save it again".to_owned(),
        ),
        Some(_) => None,
    }
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
        Self::parse_all(head, file_len).map_err(|mut errors| errors.swap_remove(0))
    }

    /// Parses and checks a header as [`parse`](Self::parse) does.
    ///
    /// # Errors
    /// Everything that is wrong with the tensors, at least one error. Where the JSON is wrong, only the first one.
    pub(in crate::formats::safetensors) fn parse_all(
        head: &[u8],
        file_len: u64,
    ) -> Result<Self, Vec<FormatError>> {
        let (draft, data_start) = Self::draft(head, file_len).map_err(|error| vec![error])?;
        Header::new(draft.table, draft.metadata, data_start, file_len - data_start)
    }

    /// Parses a header without checking the tensors. Returns the start of the data, too.
    fn draft(head: &[u8], file_len: u64) -> Result<(Draft, u64), FormatError> {
        let data_start = head_len(head, file_len)?;
        let Some(json) = head.get(LENGTH_BYTES as usize..data_start as usize) else {
            let available_bytes = head.len() as u64;
            let what = "a safetensors header";
            return Err(FormatError::Truncated { what, needed_bytes: data_start, available_bytes });
        };
        if let Some(found) = padding_of(head, json) {
            return Err(FormatError::KnownFormat { format: FORMAT, found });
        }
        // The library safetensors takes white space before the object, too.
        if json.trim_ascii_start().first() != Some(&b'{') {
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
        Ok((draft, data_start))
    }
}

/// The parts of a header that the parser has read so far. The `safetensors` crate is no substitute: it keeps the last
/// of two tensors of the same name, and its errors do not name the tensor.
#[derive(Default)]
struct Draft {
    table: Table,
    metadata: Option<BTreeMap<String, String>>,
    has_metadata: bool,
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
                if mem::replace(&mut self.has_metadata, true) {
                    return Err(Fault::Duplicate(METADATA.to_owned()).stop(&mut self.fault));
                }
                // The library safetensors takes null, and the last of two entries with the same key.
                self.metadata = map.next_value()?;
            } else {
                self.open = Some(name.clone());
                map.next_value_seed(Tensor { draft: self, name })?;
                self.open = None;
            }
        }
        Ok(())
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
