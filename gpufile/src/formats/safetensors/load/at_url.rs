use super::super::open::files::ModelFiles;
use super::checkpoint::Checkpoint;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::Result;
use crate::remote::RemoteOptions;

impl Checkpoint {
    /// Opens a model on a server: a safetensors file, or an index (a name that ends in `.json`) with the files beside it that
    /// it names. They get the query of the address, too. An address of a store that ends with a slash, such as
    /// `s3://bucket/model/`, is a folder: its model has one of the usual names, because folders of buckets are not listed.
    ///
    /// ```no_run
    /// use gpufile::formats::safetensors::Checkpoint;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let checkpoint = Checkpoint::open_url("https://example.org/model.safetensors.index.json")?;
    /// let loaded = checkpoint.load().to_host()?; // or to_device(&device)
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open), with [`Cause::Remote`](crate::Cause::Remote) as the cause of [`Error::File`].
    pub fn open_url(address: &str) -> Result<Self> {
        Self::open_url_with(address, &RemoteOptions::new())
    }

    /// Does what [`open_url`](Self::open_url) does, with the engine, headers, timeouts and cache of
    /// `options`.
    ///
    /// # Errors
    /// As [`open_url`](Self::open_url).
    pub fn open_url_with(address: &str, options: &RemoteOptions) -> Result<Self> {
        Ok(Self { model: ModelFiles::open_url(address, options)? })
    }
}
