//! The journal of a replacement: a temporary index of all shards that take part. By it, this save or a later one removes
//! the shards that the final index does not name.

use std::ffi::{OsStr, OsString};

use super::abandoned::{model_of, remove_unnamed};
use super::shards::Namer;
use crate::formats::save::{Folder, Temporary};

/// The journal of a replacement that goes on. Dropping it removes the shards that nobody needs.
pub(super) struct Journal<'f> {
    folder: &'f Folder,
    index: OsString,
    files: Vec<String>,
    file: Option<Temporary<'f>>,
}

impl<'f> Journal<'f> {
    pub fn new(folder: &'f Folder, index: OsString, files: Vec<String>, file: Temporary<'f>) -> Self {
        Self { folder, index, files, file: Some(file) }
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        let remove = |file: &OsStr| self.folder.remove(file).is_ok();
        let model = model_of(&self.index).unwrap_or_default();
        let files = self.files.iter().map(String::as_str);
        let removed =
            remove_unnamed(self.folder, &self.index, model, files, &[Namer::Us, Namer::Other], remove);
        // The storage must forget the shards before the journal.
        let are_gone = matches!(removed, Ok(true)) && self.folder.sync().is_ok();
        if !are_gone && let Some(file) = self.file.take() {
            // A later save reads it, when the index can be read again, or the shards removed.
            file.leave();
        }
    }
}
