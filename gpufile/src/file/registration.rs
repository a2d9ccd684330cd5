//! Memory registered with cuFile, for transfers that repeat.

use cufile::{Failed, IoBuf, RegisterFlags, RegisteredBuffer};

use crate::engine::Engine;
use crate::error::{Cause, Error};

impl Engine {
    /// Registers memory with the engine's cuFile driver, and opens the driver if it is not open yet. The direct routes
    /// then need not pin the memory for each transfer. Other routes work as before. Files of this engine accept the
    /// registered buffer, and its [parts](RegisteredBuffer::slice_mut), like any memory. [`RegisteredBuffer`] says when
    /// registration is worth its time.
    ///
    /// Names elsewhere: `cuFileBufRegister` (C); `buffer_register` (KvikIO, kvik-rs); `memory_register` (KvikIO).
    ///
    /// # Errors
    /// [`Cause::NoCufile`] if the driver does not open, otherwise the error of cuFile. [`Failed`] returns the
    /// buffer; `?` drops it.
    ///
    /// ```no_run
    /// use gpufile::{Engine, File};
    ///
    /// let engine = Engine::global();
    /// let memory = engine.cuda()?.device(0)?.alloc(16 << 20)?;
    /// let mut buffer = engine.register(memory)?;
    /// let file = File::open("data.bin")?;
    /// for step in 0..100 {
    ///     file.read_exact_at(&mut buffer, step * (16 << 20))?;
    /// }
    /// # Ok::<(), gpufile::Error>(())
    /// ```
    #[doc(alias = "cuFileBufRegister")]
    #[doc(alias = "buffer_register")]
    #[doc(alias = "memory_register")]
    pub fn register<B: IoBuf + 'static>(&self, buffer: B) -> Result<RegisteredBuffer<B>, Failed<B, Error>> {
        let failed = |cause, buffer| Failed::new(Error::Cufile { cause }, buffer);
        let driver = match self.gpus().driver() {
            Ok(driver) => driver,
            Err(reason) => return Err(failed(Cause::NoCufile(reason.to_owned()), buffer)),
        };
        RegisteredBuffer::register(driver, buffer, RegisterFlags::empty()).map_err(|refused| {
            let (error, buffer) = refused.into_parts();
            failed(error.into(), buffer)
        })
    }
}

/// Converts a failed registration into its error. Drops the buffer.
impl<B> From<Failed<B, Error>> for Error {
    fn from(failed: Failed<B, Error>) -> Self {
        failed.error
    }
}
