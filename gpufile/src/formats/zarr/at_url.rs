use std::path::Path;
use std::sync::Arc;

use super::store::{FileStore, Values};
use crate::remote::{RemoteOptions, folder::RemoteFolder, location::ESCAPED};
use crate::{File, OpenOptions};

impl FileStore {
    /// Returns the store of the objects of a server whose addresses begin with this one, for reading. For example,
    /// `https://example.org/era5.zarr` has the object `https://example.org/era5.zarr/zarr.json`. All objects get the query of
    /// the address.
    ///
    /// Sends no request. An object that the server does not have (statuses 404 and 410) has no value. The store lists no keys,
    /// and refuses writes.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use gpufile::Engine;
    /// use gpufile::formats::zarr::{Array, FileStore};
    /// use gpufile::remote::RemoteOptions;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::builder().threads(32).build(); // 32 chunks on their way
    /// let store = FileStore::at_url("https://example.org/era5.zarr", &RemoteOptions::new().engine(&engine))?;
    /// let array = Array::open(&Arc::new(store), "temperature")?;
    /// let everything = array.read_to_device(&engine.cuda()?.device(0)?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Open`] if the address is not one of objects that can be read.
    pub fn at_url(address: &str, options: &RemoteOptions) -> crate::Result<Self> {
        let store = Self::at(Arc::new(RemoteFolder::new(address, options)?));
        Ok(store.files(&options.engine_options()))
    }
}

impl Values for RemoteFolder {
    fn path(&self) -> &Path {
        self.path()
    }

    fn open(&self, name: &str, reading: &OpenOptions) -> crate::Result<Option<File>> {
        let engine = reading.engine_or_global();
        let engine = engine.map_err(|cause| crate::Error::Open { path: self.path().to_owned(), cause })?;
        Ok(self.open(name, &engine)?.map(File::from))
    }

    fn other_spelling(&self, name: &str) -> Option<&'static str> {
        self.has_decoded(name).then_some(ESCAPED)
    }
}
