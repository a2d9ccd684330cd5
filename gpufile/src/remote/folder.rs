//! Folders of objects.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::RemoteFile;
use super::location::{Location, without_secrets};
use super::options::RemoteOptions;
use super::source::Source;
use crate::engine::Engine;
use crate::error::{Cause, Error, Result};

/// Objects whose names begin alike, with the options for opening them. They share the client that signs their addresses.
///
/// ```no_run
/// use gpufile::Engine;
/// use gpufile::remote::{RemoteFolder, RemoteOptions};
///
/// # fn main() -> gpufile::Result<()> {
/// let folder = RemoteFolder::new("https://example.org/model?token", &RemoteOptions::new())?;
/// if let Some(file) = folder.open("config.json", &Engine::builder().build())? {
///     println!("{} bytes", file.len_bytes()?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RemoteFolder {
    pub(super) one: Arc<Source>,
    pub(super) options: RemoteOptions,
    /// The address, without what may be secret in it.
    path: PathBuf,
}

impl RemoteFolder {
    /// Takes an address such as `https://example.org/folder?token`. The query is that of all objects.
    ///
    /// # Errors
    /// [`Error::Open`] with [`RemoteError::Invalid`](super::RemoteError::Invalid).
    pub fn new(address: &str, options: &RemoteOptions) -> Result<Self> {
        let path = PathBuf::from(without_secrets(address));
        let one = Location::parse(address).and_then(|folder| folder.inside("object"));
        let one = one.and_then(|one| options.source(one));
        match one {
            Ok(one) => Ok(Self { one: Arc::new(one), options: options.clone(), path }),
            Err(error) => Err(Error::Open { path, cause: error.into() }),
        }
    }

    /// Returns the address, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens an object with this engine; `None` if there is no such object.
    ///
    /// # Errors
    /// Those of [`RemoteOptions::open`].
    pub fn open(&self, name: &str, engine: &Engine) -> Result<Option<RemoteFile>> {
        existing(self.options.clone().engine(engine).open_beside(&self.one, name))
    }

    /// As [`open`](Self::open), with the engine of the options.
    ///
    /// # Errors
    /// Those of [`RemoteOptions::open`].
    pub fn find(&self, name: &str) -> Result<Option<RemoteFile>> {
        existing(self.options.open_beside(&self.one, name))
    }

    /// Returns whether there is an object of this name with each `%XX` decoded.
    pub fn has_decoded(&self, name: &str) -> bool {
        let object = self.one.with(self.one.location().beside(name));
        self.options.has(object.ok().and_then(|object| object.decoded()))
    }
}

/// Returns an opened object; `None` if the server says that there is none.
fn existing(opened: Result<RemoteFile>) -> Result<Option<RemoteFile>> {
    match opened {
        Err(error) if is_missing(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error.cause(), Cause::Remote(cause) if matches!(cause.status(), Some(404 | 410)))
}
