//! The JSON parts common to headers and indexes: strings that go into an arena, and errors with an offset.

use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

use crate::formats::FormatError;
use crate::formats::clip::clip;

/// Deserializes a string to the end of the arena, and returns where it lies there. No string has its own allocation.
pub(super) struct Text<'a>(pub(super) &'a mut String);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = Range<u32>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = Range<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let start = self.0.len() as u32;
        self.0.push_str(text);
        Ok(start..self.0.len() as u32)
    }
}

/// Deserializes a string by handing it to a function, without a copy.
pub(super) struct With<F>(pub(super) F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for With<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for With<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

/// The reason why a visitor stopped, where the JSON itself is correct. The position comes from the parser.
#[derive(Debug)]
pub(super) enum Fault {
    Duplicate(String),
    Missing(&'static str),
    Dtype(String),
}

impl Fault {
    /// Keeps the fault, and makes the parser stop.
    pub(super) fn stop<E: Error>(self, place: &mut Option<Fault>) -> E {
        *place = Some(self);
        E::custom("stopped")
    }
}

/// Returns the bytes as text. They start at byte `start` of the file.
///
/// # Errors
/// [`FormatError::Syntax`] at the first byte that is not UTF-8.
pub(super) fn utf8<'a>(format: &'static str, bytes: &'a [u8], start: u64) -> Result<&'a str, FormatError> {
    std::str::from_utf8(bytes).map_err(|error| FormatError::Syntax {
        format,
        tensor: None,
        offset: start + error.valid_up_to() as u64,
        message: "the JSON is not UTF-8".to_owned(),
    })
}

/// Returns the error that stopped the parser of `json` while it was in `tensor`. `json` starts at byte `start` of the
/// file.
pub(super) fn explain(
    format: &'static str,
    json: &str,
    start: u64,
    error: &serde_json::Error,
    tensor: Option<String>,
    fault: Option<Fault>,
) -> FormatError {
    let line_start = match error.line() {
        0 | 1 => 0,
        line => json
            .bytes()
            .enumerate()
            .filter(|(_, byte)| *byte == b'\n')
            .nth(line - 2)
            .map_or(0, |(at, _)| at + 1),
    };
    let offset = start + (line_start + error.column()).min(json.len()) as u64;
    match fault {
        Some(Fault::Duplicate(key)) => FormatError::Duplicate { key, tensor, offset: Some(offset) },
        Some(Fault::Missing(key)) => FormatError::Missing { key, tensor, offset: Some(offset) },
        Some(Fault::Dtype(dtype)) => {
            FormatError::UnsupportedDtype { tensor, dtype, problem: "is not known", offset: Some(offset) }
        }
        None => {
            let message = error.to_string();
            let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
            FormatError::Syntax { format, tensor, offset, message: clip(message) }
        }
    }
}
