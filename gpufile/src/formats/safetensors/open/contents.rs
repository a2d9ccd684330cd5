use std::path::Path;

use super::verify::Verify;
#[cfg(doc)]
use super::warning::Warning;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::Result;

impl Verify {
    /// Sets whether files in a cache of the Hugging Face Hub are compared with their SHA-256, which is their name in
    /// the cache. A file without a known hash causes a [`Warning::NoHash`].
    pub fn contents(mut self, compare: bool) -> Self {
        self.contents.is_compared = compare;
        self
    }

    /// Compares the contents with the hashes of a file that `sha256sum` wrote. Its paths are those of the model's files,
    /// or the ends of these.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Format`].
    pub fn hash_list(mut self, path: impl AsRef<Path>) -> Result<Self> {
        self.contents.read_list(path.as_ref())?;
        Ok(self.contents(true))
    }
}
