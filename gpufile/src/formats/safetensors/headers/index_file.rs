//! The file of an index: its name, and reading it as a [`ShardIndex`].

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::header::MAX_HEADER_LEN;
use super::index::ShardIndex;
use crate::formats::{Error, Result, regular};

/// The end of an index's name, after the name of the file that would have the whole model.
pub(in crate::formats) const INDEX_SUFFIX: &str = ".index.json";

/// Returns the path of the index in the folder of a file: `model.safetensors.index.json` for `model.safetensors`.
pub(in crate::formats::safetensors) fn index_path(path: &Path) -> PathBuf {
    let mut index_path = path.as_os_str().to_owned();
    index_path.push(INDEX_SUFFIX);
    index_path.into()
}

/// Reads the bytes of an index; `None` if there is no file. Stops one byte beyond the longest index.
pub(in crate::formats::safetensors) fn read_index(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match regular::open_plain(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        file => file?,
    };
    Ok(Some(read_in(file, path)?))
}

pub(in crate::formats::safetensors) fn read_in(file: fs::File, path: &Path) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    // The parser refuses an index that is one byte too long.
    file.take(MAX_HEADER_LEN + 1).read_to_end(&mut json).map_err(|error| crate::Error::File {
        operation: "read",
        path: path.to_owned(),
        cause: error.into(),
    })?;
    Ok(json)
}

pub(in crate::formats::safetensors) fn parse_index(path: &Path, json: &[u8]) -> Result<ShardIndex> {
    ShardIndex::parse(json).map_err(|error| Error::Format { path: path.to_owned(), error })
}
