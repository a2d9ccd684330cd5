//! The file names of models: which model a file belongs to, and as what. No file is looked at here.
//!
//! ```text
//! model.safetensors                          the whole of "model"
//! model.fp16.safetensors                     the whole of "model.fp16", a variant
//! model-00002-of-00003.safetensors           the second shard of three of "model"
//! model.fp16-00002-of-00003.safetensors      the same of "model.fp16", as is
//! model-00002-of-00003.fp16.safetensors
//! model-0123456789abcdef-00002-of-00003.…    the same of "model", from a save of this crate
//! model.safetensors.index.json               the index of "model"
//! model.fp16.safetensors.index.json          the index of "model.fp16", as are
//! model.safetensors.index.fp16.json and model.safetensors.fp16.index.json
//! ```

use std::ffi::OsStr;

use crate::formats::random::is_random;

/// The file names that libraries give to a model, without variant and extension, the most usual first.
pub(super) const USUAL: [&str; 4] = ["model", "diffusion_pytorch_model", "adapter_model", "consolidated"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// The name of the whole model, with its variant.
    pub model: String,
    pub role: Role,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Index,
    Whole,
    /// One of `count` shards. `series` tells the shards of different saves apart.
    Shard {
        series: String,
        count: u64,
        number: u64,
    },
}

impl Name {
    /// Splits a file name into its parts. Returns `None` for hidden files, and for names that no file of a model has.
    pub fn of(file: &OsStr) -> Option<Self> {
        let file = file.to_str().filter(|file| !file.starts_with('.'))?;
        if let Some(rest) = file.strip_suffix(".json") {
            return Self::of_index(rest);
        }
        let rest = file.strip_suffix(".safetensors").filter(|rest| !rest.is_empty())?;
        Some(Self::of_shard(rest).unwrap_or_else(|| Self { model: rest.to_owned(), role: Role::Whole }))
    }

    fn of_index(rest: &str) -> Option<Self> {
        let (model, rest) = rest.split_once(".safetensors.")?;
        let mut words: Vec<_> = rest.split('.').collect();
        let index = words.iter().position(|word| *word == "index")?;
        words.remove(index);
        let variant = words.iter().map(|word| format!(".{word}"));
        let model = [model.to_owned()].into_iter().chain(variant).collect();
        Some(Self { model, role: Role::Index })
    }

    fn of_shard(rest: &str) -> Option<Self> {
        let (before, behind) = rest.rsplit_once("-of-").or_else(|| rest.rsplit_once("_of_"))?;
        let is_digit = |c: char| c.is_ascii_digit();
        let stem = before.trim_end_matches(is_digit);
        let variant = behind.trim_start_matches(is_digit);
        if !variant.is_empty() && !variant.starts_with('.') {
            return None;
        }
        let number: u64 = before[stem.len()..].parse().ok()?;
        let count: u64 = behind[..behind.len() - variant.len()].parse().ok()?;
        let stem = stem.strip_suffix(['-', '_', '.']).filter(|stem| !stem.is_empty())?;
        let (stem, series) = match stem.rsplit_once('-') {
            Some((stem, series)) if is_random(series.as_bytes()) => (stem, series),
            _ => (stem, ""),
        };
        let role = Role::Shard { series: series.to_owned(), count, number };
        (number <= count && count > 0).then(|| Self { model: format!("{stem}{variant}"), role })
    }

    /// Returns the model's name without its variant.
    pub fn base(&self) -> &str {
        self.model.split_once('.').map_or(&self.model, |(base, _)| base)
    }

    /// Returns the name with its last number left out, and the number, if the name has one that stands alone. Files that
    /// differ only in that number are shards of one model.
    pub fn without_number(&self) -> Option<(String, u64)> {
        let mut words = self.model.rsplit(['-', '_', '.']);
        let word = words.find(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()))?;
        let start = word.as_ptr().addr() - self.model.as_ptr().addr();
        let name = format!("{}#{}", &self.model[..start], &self.model[start + word.len()..]);
        Some((name, word.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_tell_their_model_and_part() {
        let shard = |series: &str, number, count| Role::Shard { series: series.to_owned(), count, number };
        for (file, model, role) in [
            ("model.safetensors", "model", Role::Whole),
            ("model.fp16.safetensors", "model.fp16", Role::Whole),
            ("gptq-4bit-128g.safetensors", "gptq-4bit-128g", Role::Whole),
            ("model-00002-of-00003.safetensors", "model", shard("", 2, 3)),
            ("model_00002-of-00003.safetensors", "model", shard("", 2, 3)),
            ("model-2_of_3.safetensors", "model", shard("", 2, 3)),
            ("model.fp16-00002-of-00003.safetensors", "model.fp16", shard("", 2, 3)),
            ("model-00002-of-00003.fp16.safetensors", "model.fp16", shard("", 2, 3)),
            ("m-0123456789abcdef-00001-of-00001.safetensors", "m", shard("0123456789abcdef", 1, 1)),
            ("model-00004-of-00003.safetensors", "model-00004-of-00003", Role::Whole),
            ("model-1-of-0.safetensors", "model-1-of-0", Role::Whole),
            ("model-1-of-99999999999999999999.safetensors", "model-1-of-99999999999999999999", Role::Whole),
            ("1-of-2.safetensors", "1-of-2", Role::Whole),
            ("model.safetensors.index.json", "model", Role::Index),
            ("model.fp16.safetensors.index.json", "model.fp16", Role::Index),
            ("model.safetensors.index.fp16.json", "model.fp16", Role::Index),
            ("model.safetensors.fp16.index.json", "model.fp16", Role::Index),
        ] {
            let found = Name::of(OsStr::new(file));
            assert_eq!(found, Some(Name { model: model.to_owned(), role }), "{file}");
        }
        let others = ["config.json", "model.bin", ".safetensors", "._model.safetensors", "model.index.json"];
        for file in others.into_iter().chain(["pytorch_model.bin.index.json", "model.safetensors.part", ""]) {
            assert_eq!(Name::of(OsStr::new(file)), None, "{file}");
        }
    }

    #[test]
    fn names_without_their_number_are_equal() {
        let key = |file: &str| Name::of(OsStr::new(file)).unwrap().without_number().map(|(key, _)| key);
        assert_eq!(key("consolidated.00.safetensors"), key("consolidated.01.safetensors"));
        assert_eq!(key("1.safetensors").as_deref(), Some("#"));
        assert_ne!(key("a-1.safetensors"), key("b-1.safetensors"));
        assert_eq!(key("layer_3_of.x.safetensors").as_deref(), Some("layer_#_of.x"));
        for version in ["fp16.safetensors", "lora_v1.safetensors", "4bit.safetensors"] {
            assert_eq!(key(version), None, "{version}");
        }
        assert_eq!(key("model.safetensors"), None);
    }
}
