//! Sets of files that are one model together: shards of one count, and files that differ in a number. Two files that claim one
//! place of a set are an error, unless they are the same file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::names::{Name, Role};
use crate::formats::regular::identity;
use crate::formats::{Error, Result};

#[derive(Default)]
pub(in crate::formats::safetensors) struct Missing {
    pub files: Vec<PathBuf>,
    pub count: u64,
}

impl Missing {
    /// The most files that are kept by name. A file name can claim any number of shards.
    pub const NAMED: usize = 8;

    pub fn push(&mut self, path: PathBuf) {
        self.count += 1;
        if self.files.len() < Self::NAMED {
            self.files.push(path);
        }
    }
}

/// The sets of shards, by model, series and count.
#[derive(Default)]
pub(super) struct Sets(BTreeMap<(String, String, u64), Set>);

/// The names of the files of each number.
#[derive(Default)]
pub(super) struct Set(BTreeMap<u64, Vec<String>>);

impl Sets {
    pub fn of<'n>(names: impl IntoIterator<Item = &'n (String, Name)>) -> Self {
        let mut sets = Self::default();
        for (file, name) in names {
            if let Role::Shard { series, count, number } = &name.role {
                let key = (name.model.clone(), series.clone(), *count);
                sets.0.entry(key).or_default().add(*number, file);
            }
        }
        sets
    }

    /// Returns the sets with the number of files that each should have.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Set)> {
        self.0.iter().map(|((_, _, count), set)| (*count, set))
    }

    /// Returns the complete sets. Those of saves in progress and of killed ones come only if `of_saves` is set.
    pub fn complete(&self, of_saves: bool) -> impl Iterator<Item = (u64, &Set)> {
        let usable = self.0.iter().filter(move |((_, series, _), _)| of_saves || series.is_empty());
        usable.map(|((_, _, count), set)| (*count, set)).filter(|(count, set)| set.lacks(*count) == 0)
    }
}

impl Set {
    pub fn add(&mut self, number: u64, file: &str) {
        self.0.entry(number).or_default().push(file.to_owned());
    }

    pub fn has(&self, file: &str) -> bool {
        self.0.values().flatten().any(|other| other == file)
    }

    /// Returns a file of the set. Every set has one.
    pub fn first(&self) -> &str {
        self.0.values().flatten().next().map_or("", String::as_str)
    }

    /// Returns the paths of the files in the order of their numbers.
    ///
    /// # Errors
    /// [`Error::SeveralModels`] if two files claim one place among `count`, or have one number.
    pub fn paths(&self, folder: &Path, count: Option<u64>) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::with_capacity(self.0.len());
        for files in self.0.values() {
            let mut files = files.iter().map(|file| folder.join(file));
            let first = files.next().expect("a number has a file");
            let claimed = identity(&first);
            if let Some(other) = files.find(|other| claimed.is_none() || identity(other) != claimed) {
                return Err(several(folder, vec![first, other]));
            }
            paths.push(first);
        }
        // The numbers count from 0 or from 1.
        if let (Some(first), Some(last)) = (self.0.get(&0), count.and_then(|count| self.0.get(&count))) {
            return Err(several(folder, vec![folder.join(&first[0]), folder.join(&last[0])]));
        }
        Ok(paths)
    }

    pub fn ends(&self) -> Option<(u64, u64)> {
        Some((*self.0.first_key_value()?.0, *self.0.last_key_value()?.0))
    }

    /// Returns the first number of a set of `count`: 1, or 0 if there is one of that number.
    fn start(&self) -> u64 {
        u64::from(!self.0.contains_key(&0))
    }

    fn lacks(&self, count: u64) -> u64 {
        let start = self.start();
        count - self.0.range(start..start + count).count() as u64
    }

    pub fn add_missing(&self, count: u64, folder: &Path, missing: &mut Missing) {
        let start = self.start();
        let absent = (start..start + count).filter(|number| !self.0.contains_key(number));
        let room = Missing::NAMED.saturating_sub(missing.files.len());
        missing.files.extend(absent.take(room).map(|number| folder.join(file_like(self.first(), number))));
        missing.count += self.lacks(count);
    }
}

pub(super) fn several(folder: &Path, models: Vec<PathBuf>) -> Error {
    Error::SeveralModels { folder: folder.to_owned(), models }
}

fn file_like(like: &str, number: u64) -> String {
    let of = like.rfind("-of-").or_else(|| like.rfind("_of_")).unwrap_or(0);
    let start = like[..of].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    format!("{}{number:0width$}{}", &like[..start], &like[of..], width = of - start)
}
