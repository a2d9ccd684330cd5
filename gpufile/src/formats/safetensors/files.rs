//! The open files of a model, with their catalog. [`Checkpoint`](super::Checkpoint) and [`Load`](super::Load) read
//! them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalog::{Catalog, Id};
use super::header::{Header, LENGTH_BYTES};
use super::parse::head_len;
use crate::formats::clip::clip;
use crate::formats::head::{self, malformed};
use crate::formats::{Error, Result, regular};
use crate::{File, OpenOptions};

/// The open files of a model, and the tensors in them.
pub(super) struct ModelFiles {
    /// The path that the caller opened: a file, an index, or the first of several files.
    pub path: PathBuf,
    pub files: Vec<File>,
    pub catalog: Arc<Catalog>,
}

impl ModelFiles {
    /// Opens files and reads their headers.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Format`]; [`Error::DuplicateTensor`] if two files have tensors of the same name.
    pub fn open(paths: impl IntoIterator<Item = impl AsRef<Path>>, options: &OpenOptions) -> Result<Self> {
        let (mut files, mut headers) = (Vec::<File>::new(), Vec::new());
        for path in paths {
            let file = regular::open(path.as_ref(), options)?;
            let (head, file_len) = head::read(&file, LENGTH_BYTES as usize, head_len)?;
            headers.push(Header::parse(&head, file_len).map_err(|error| malformed(&file, error))?);
            files.push(file);
        }
        let catalog = Catalog::new(headers).map_err(|(tensor, [one, other])| Error::DuplicateTensor {
            tensor,
            files: [files[one].path().to_owned(), files[other].path().to_owned()],
        })?;
        let path = files.first().map(|file| file.path().to_owned()).unwrap_or_default();
        Ok(Self { path, files, catalog: Arc::new(catalog) })
    }

    /// Returns the file that a tensor is in.
    pub fn file(&self, id: Id) -> &File {
        &self.files[id.file as usize]
    }

    /// Returns the tensor of that name.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`].
    pub fn find(&self, name: &str) -> Result<Id> {
        self.catalog.find(name).ok_or_else(|| {
            let is_first = self.files.first().is_some_and(|file| file.path() == self.path);
            let others = if is_first { self.files.len() - 1 } else { 0 };
            Error::NoSuchTensor { tensor: clip(name), path: self.path.clone(), others }
        })
    }
}
