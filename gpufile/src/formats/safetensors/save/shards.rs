use std::ffi::OsStr;

use crate::Cause;
use crate::formats::Result;
use crate::formats::random::{is_random, random};

/// The names of the shards that one save writes: `model-RANDOM-00001-of-00003.safetensors`.
///
/// Each save gives other names, so an index never names shards of two saves.
pub(super) struct ShardNames<'a> {
    model: Split<'a>,
    random: u64,
}

/// The longest name of a model with shards. File systems allow 255 bytes, and the endings of names have up to 41.
const MOST_MODEL_BYTES: usize = 214;

impl<'a> ShardNames<'a> {
    /// Returns new names for the shards of a model that would have this file name if it were one file.
    ///
    /// # Errors
    /// [`Cause::Invalid`] if the name is not UTF-8 or too long.
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

/// Returns whether a file has the name of a shard of the model: one from [`ShardNames`], or one of another library, as in
/// `model-00001-of-00003.safetensors`.
pub(super) fn is_shard_of(model: &str, file: &str) -> bool {
    let Split { stem, extension } = Split::of(model);
    let rest = file.strip_suffix(extension).and_then(|rest| rest.strip_prefix(stem)?.strip_prefix('-'));
    let is_number = |part: &str| part.len() >= 5 && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_place = |rest: &str| {
        rest.split_once("-of-").is_some_and(|(number, count)| is_number(number) && is_number(count))
    };
    let is_ours = |rest: &str| {
        rest.split_once('-').is_some_and(|(random, rest)| is_random(random.as_bytes()) && is_place(rest))
    };
    rest.is_some_and(|rest| is_place(rest) || is_ours(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_recognised_by_their_names() {
        for model in ["model.safetensors", "a.b.c", "model", ".hidden", "é-1.x"] {
            let names = ShardNames::new(OsStr::new(model)).unwrap();
            for name in [names.name(1, 1), names.name(100_000, 100_001)] {
                assert!(is_shard_of(model, &name) && !is_shard_of("other.safetensors", &name), "{name}");
            }
        }
        let model = "model.safetensors";
        assert!(is_shard_of(model, "model-00001-of-00002.safetensors"));
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
            assert!(!is_shard_of(model, file), "{file}");
        }
    }
}
