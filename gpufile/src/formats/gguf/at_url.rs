use super::files::ModelFiles;
use super::model::Model;
use crate::File;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::Result;
use crate::remote::RemoteOptions;

impl Model {
    /// Opens a model on a server. If the file is one of a split model, opens the others beside it, which get the query of the
    /// address, too.
    ///
    /// ```no_run
    /// use gpufile::formats::gguf::Model;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let model = Model::open_url("https://example.org/llama-00001-of-00003.gguf")?;
    /// let loaded = model.load().to_host()?; // or to_device(&device)
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

impl ModelFiles {
    pub fn open_url(address: &str, options: &RemoteOptions) -> Result<Self> {
        let first = options.open(address)?;
        Self::open_by(first.path(), &|path| {
            if path == first.path() {
                return Ok(File::clone(&first));
            }
            // The path is the text of a location.
            let (name, location) = (path.file_name().unwrap_or_default().to_string_lossy(), first.location());
            Ok(options.open(&location.beside(&location.unescaped(&name)).text())?.into())
        })
    }
}
