use super::file::NpyFile;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::Result;
use crate::remote::RemoteOptions;

impl NpyFile {
    /// Opens an array on a server and reads its header.
    ///
    /// ```no_run
    /// use gpufile::formats::npy::NpyFile;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = NpyFile::open_url("https://example.org/array.npy")?;
    /// let bytes = file.read_to_host()?; // or read_to_device(&device)
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
        Self::of_file(options.open(address)?.into())
    }
}
