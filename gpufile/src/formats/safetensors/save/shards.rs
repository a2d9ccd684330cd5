//! The names of shards.

use std::ffi::OsStr;

use super::super::headers::index_file::INDEX_SUFFIX;
use crate::Cause;
use crate::formats::Result;
use crate::formats::random::{is_random, random};
use crate::formats::save::names::MOST_BYTES;

/// The names of the shards that one save writes: `model-RANDOM-00001-of-00003.safetensors`.
///
/// Each save gives other names, so an index never names shards of two saves.
pub(super) struct ShardNames<'a> {
    model: Split<'a>,
    random: u64,
}

/// The longest name of a model with shards. By the name of its temporary index, which must not be cut, a later process
/// finds the model of shards that a killed one left.
const MOST_MODEL_BYTES: usize = MOST_BYTES - INDEX_SUFFIX.len();

impl<'a> ShardNames<'a> {
    /// Returns new names for the shards of a model that would have this file name if it were one file.
    ///
    /// # Errors
    /// [`Cause::Invalid`] if the name is not UTF-8 or too long. The operating system's error if it has no random bytes.
    pub fn new(model: &'a OsStr) -> Result<Self, Cause> {
        let model = model.to_str().ok_or_else(|| Cause::Invalid("its name is not UTF-8".to_owned()))?;
        if model.len() > MOST_MODEL_BYTES {
            return Err(Cause::Invalid(format!("its name has more than {MOST_MODEL_BYTES} bytes")));
        }
        Ok(Self { model: Split::of(model), random: random()? })
    }

    /// Returns the name of one shard; `number` counts from 1.
    pub fn name(&self, number: usize, count: usize) -> String {
        let Split { stem, extension } = self.model;
        format!("{stem}-{:016x}-{number:05}-of-{count:05}{extension}", self.random)
    }
}

/// A file name, and its extension with the dot.
#[derive(Clone, Copy)]
struct Split<'a> {
    stem: &'a str,
    extension: &'a str,
}

impl<'a> Split<'a> {
    fn of(name: &'a str) -> Self {
        let dot = name.rfind('.').filter(|dot| *dot > 0).unwrap_or(name.len());
        let (stem, extension) = name.split_at(dot);
        Self { stem, extension }
    }
}

/// The library that named a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namer {
    /// [`ShardNames`].
    Us,
    /// Another library, as in `model-00001-of-00003.safetensors`.
    Other,
}

/// Returns the library that named a file as a shard of the model; `None` if its name is not that of a shard.
pub(super) fn namer(model: &str, file: &str) -> Option<Namer> {
    let Split { stem, extension } = Split::of(model);
    let rest = file.strip_suffix(extension)?.strip_prefix(stem)?.strip_prefix('-')?;
    let is_number = |part: &str| part.len() >= 5 && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_place = |rest: &str| {
        rest.split_once("-of-").is_some_and(|(number, count)| is_number(number) && is_number(count))
    };
    match rest.split_once('-') {
        _ if is_place(rest) => Some(Namer::Other),
        Some((random, rest)) if is_random(random.as_bytes()) && is_place(rest) => Some(Namer::Us),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_recognised_by_their_names() {
        for model in ["model.safetensors", "a.b.c", "model", ".hidden", "é-1.x"] {
            let names = ShardNames::new(OsStr::new(model)).unwrap();
            for name in [names.name(1, 1), names.name(100_000, 100_001)] {
                assert_eq!(namer(model, &name), Some(Namer::Us), "{name}");
                assert_eq!(namer("other.safetensors", &name), None, "{name}");
            }
        }
        let model = "model.safetensors";
        assert_eq!(namer(model, "model-00001-of-00002.safetensors"), Some(Namer::Other));
        for file in [
            "model.safetensors",
            "model-00001-of-00002.bin",
            "model-0001-of-00002.safetensors",
            "model-00001-of-0000x.safetensors",
            "model-00001-00002.safetensors",
            "model-tuned-00001-of-00002.safetensors",
            "model-0123456789abcdeg-00001-of-00002.safetensors",
            "model-0123456789abcdef-00001.safetensors",
            "model_00001-of-00002.safetensors",
            "config.json",
            "",
        ] {
            assert_eq!(namer(model, file), None, "{file}");
        }
    }
}
