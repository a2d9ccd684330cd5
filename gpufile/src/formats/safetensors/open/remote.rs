use std::path::Path;

use super::super::headers::header::MAX_HEADER_LEN;
use super::files::ModelFiles;
use super::names::USUAL;
use super::rule::{self, Choice};
use super::sets::several;
use crate::File;
use crate::formats::memory::{addressable, zeroed};
use crate::formats::{Error, Result};
use crate::remote::folder::RemoteFolder;
use crate::remote::location::is_folder;
use crate::remote::{RemoteFile, RemoteOptions};

impl ModelFiles {
    /// Opens a model at an address: a file, an index with the files that it names beside it, or a folder of a bucket.
    pub fn open_url(address: &str, options: &RemoteOptions) -> Result<Self> {
        let (first, choice) = match is_folder(address) {
            true => choose_in(&RemoteFolder::new(address, options)?)?,
            false => {
                let first = options.open(address)?;
                let choice = choose(&first)?;
                (first, choice)
            }
        };
        let location = first.location();
        let folder = choice.path.parent().unwrap_or(Path::new(""));
        Self::of_choice(&choice, &|path| match path == first.path() {
            true => Ok(File::clone(&first)),
            false => Ok(options.open(&location.beside(name_in(folder, path)).text())?.into()),
        })
    }
}

fn name_in<'a>(folder: &Path, path: &'a Path) -> &'a str {
    path.strip_prefix(folder).ok().and_then(Path::to_str).unwrap_or_default()
}

/// Chooses the model in a folder of a bucket. A folder is not listed, so only the usual names are tried.
fn choose_in(folder: &RemoteFolder) -> Result<(RemoteFile, Choice)> {
    const UNLISTED: &str =
        "; buckets are not listed: open a file or an index of another name by its own address";
    for model in USUAL {
        let whole = folder.find(&format!("{model}.safetensors"))?;
        let index = folder.find(&format!("{model}.safetensors.index.json"))?;
        let (index, whole) = match (index, whole) {
            (Some(index), whole) => (index, whole),
            (None, Some(whole)) => {
                let choice = choose(&whole)?;
                return Ok((whole, choice));
            }
            (None, None) => continue,
        };
        let choice = choose(&index)?;
        let is_named = |whole: &RemoteFile| choice.sources.iter().any(|source| source.path == whole.path());
        if let Some(whole) = whole.filter(|whole| !is_named(whole)) {
            return Err(several(folder.path(), vec![index.path().to_owned(), whole.path().to_owned()]));
        }
        return Ok((index, choice));
    }
    Err(Error::NoModel { path: folder.path().to_owned(), found: UNLISTED.to_owned() })
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
