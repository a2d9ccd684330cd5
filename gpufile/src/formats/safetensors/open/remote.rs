//! The files of a model on a server.

use std::path::Path;

use super::super::headers::header::MAX_HEADER_LEN;
use super::files::ModelFiles;
use super::rule::{self, Choice};
use crate::File;
use crate::formats::Result;
use crate::formats::memory::{addressable, zeroed};
use crate::remote::{RemoteFile, RemoteOptions};

impl ModelFiles {
    /// Opens a model at an address: a file, or an index with the files that it names beside it.
    ///
    /// # Errors
    /// The first problem of the model.
    pub fn open_url(address: &str, options: &RemoteOptions) -> Result<Self> {
        let first = options.open(address)?;
        let (choice, location) = (choose(&first)?, first.location());
        let folder = choice.path.parent().unwrap_or(Path::new(""));
        Self::of_choice(&choice, &|path| match path == first.path() {
            true => Ok(File::clone(&first)),
            false => Ok(options.open(&location.beside(name_in(folder, path)).text())?.into()),
        })
    }
}

/// Returns the name of a file of an index, which is text.
fn name_in<'a>(folder: &Path, path: &'a Path) -> &'a str {
    path.strip_prefix(folder).ok().and_then(Path::to_str).unwrap_or_default()
}

fn choose(first: &RemoteFile) -> Result<Choice> {
    let path: &Path = first.path();
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok(rule::of_files([path]));
    }
    // The parser refuses an index that is one byte too long.
    let len_bytes = first.len_bytes()?.min(MAX_HEADER_LEN + 1);
    let mut json = zeroed(path, addressable(path, len_bytes)?)?;
    first.read_exact_at(&mut json, 0)?;
    rule::of_index(path, json)
}
