//! Models that were split into several files: which files they are, and what each says about the others.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::header::Header;
use super::metadata::Metadata;
use crate::formats::FormatError;
use crate::formats::visible::Quoted;

const SUFFIX: &str = ".gguf";

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The place of a file in a split model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// The number of the file, counted from 0.
    pub number: u64,
    pub count: u64,
    /// The number of tensors of all files, if it is known.
    pub tensors: Option<u64>,
}

impl Split {
    pub const KEYS: [&str; 3] = [NUMBER, COUNT, TENSORS];

    /// Adds the entries of a file to its metadata, with the types that llama.cpp gives them.
    ///
    /// # Errors
    /// [`FormatError::Split`] if there are more files or tensors than these types count.
    pub fn describe(self, metadata: &mut Metadata) -> Result<(), FormatError> {
        let many = || wrong(format!("{} files with {:?} tensors are too many", self.count, self.tensors));
        let number = |number: u64| u16::try_from(number).map_err(|_| many());
        let tensors = self.tensors.map(|tensors| i32::try_from(tensors).map_err(|_| many())).transpose()?;
        metadata.insert(NUMBER, number(self.number)?);
        metadata.insert(COUNT, number(self.count)?);
        metadata.insert(TENSORS, tensors.unwrap_or(0));
        Ok(())
    }

    /// Returns the name of this file of a model whose name, as one file, would be `name`.
    pub fn name(self, name: &OsStr) -> OsString {
        let bytes = name.as_bytes();
        let stem = bytes.len().checked_sub(SUFFIX.len()).map(|len| bytes.split_at(len));
        let stem = stem
            .filter(|(_, end)| end.eq_ignore_ascii_case(SUFFIX.as_bytes()))
            .map_or(bytes, |(stem, _)| stem);
        let mut name = OsStr::from_bytes(stem).to_owned();
        name.push(ending(self.number, self.count));
        name
    }

    /// Returns the place of a file. `None` for a model of one file.
    ///
    /// # Errors
    /// [`FormatError::Split`] if the metadata contradicts itself.
    pub fn of(header: &Header) -> Result<Option<Self>, FormatError> {
        let number = |key| match header.metadata().get(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(wrong(format!("{key} is no number"))),
            },
        };
        let Some(count) = number(COUNT)?.filter(|count| *count > 1) else { return Ok(None) };
        let split = Self { number: number(NUMBER)?.unwrap_or(0), count, tensors: number(TENSORS)? };
        match split.number < count && count <= u64::from(u16::MAX) {
            true => Ok(Some(split)),
            false => Err(wrong(format!("{NUMBER} is {} and {COUNT} is {count}", split.number))),
        }
    }

    /// Returns the paths of all files of the model, of which `path` is one.
    ///
    /// # Errors
    /// [`FormatError::Split`] if the name of the file does not end as it should.
    pub fn paths(self, path: &Path) -> Result<impl Iterator<Item = PathBuf>, FormatError> {
        let name = path.file_name().unwrap_or_default();
        let ending = ending(self.number, self.count);
        let Some(start) = name.as_bytes().strip_suffix(ending.as_bytes()) else {
            return Err(wrong(format!("its name must end in {}", Quoted(&ending))));
        };
        let start = OsStr::from_bytes(start);
        let with = move |number| {
            let mut name = start.to_owned();
            name.push(self::ending(number, self.count));
            path.with_file_name(name)
        };
        Ok((0..self.count).map(with))
    }

    /// Checks that another file of the model says that it has this number.
    pub fn check(&self, number: u64, header: &Header) -> Result<(), FormatError> {
        let found = Self::of(header)?.map_or((0, 1), |split| (split.number, split.count));
        match found == (number, self.count) {
            true => Ok(()),
            false => {
                Err(wrong(format!("it is file {} of {}, by {NUMBER} and {COUNT}", found.0 + 1, found.1)))
            }
        }
    }

    pub fn check_tensors(&self, found: usize) -> Result<(), FormatError> {
        match self.tensors {
            Some(tensors) if tensors != found as u64 => {
                Err(wrong(format!("its files have {found} tensors, but {TENSORS} is {tensors}")))
            }
            _ => Ok(()),
        }
    }
}

/// Checks the name of a file whose metadata says that it is a whole model.
///
/// # Errors
/// [`FormatError::Split`] if the name says that there are others.
pub(super) fn check_alone(path: &Path) -> Result<(), FormatError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(SUFFIX).unwrap_or_default();
    let number = |text: &str| text.parse::<u64>().ok();
    let place = stem
        .rsplit_once("-of-")
        .and_then(|(before, count)| Some((number(before.rsplit_once('-')?.1)?, number(count)?)));
    match place {
        Some((place, count)) if count > 1 && (1..=count).contains(&place) => Err(wrong(format!(
            "its name says that it is file {place} of {count}, and its metadata, without {COUNT}, that it is the whole \
             model; rename it if it is"
        ))),
        _ => Ok(()),
    }
}

fn ending(number: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}{SUFFIX}", number + 1)
}

fn wrong(problem: String) -> FormatError {
    FormatError::Split { problem }
}
