//! Memory registered with cuFile, for transfers that repeat.

use cufile::{Failed, IoBuf, RegisterFlags, RegisteredBuffer};

use crate::engine::Engine;
use crate::error::Cause;

impl Engine {
    /// Registers memory with the engine's cuFile driver, and opens the driver if it is not open yet. The
    /// direct routes then need not pin the memory for each transfer. Other routes work as before. Files of
    /// this engine accept the registered buffer, and its [parts](RegisteredBuffer::slice_mut), like any
    /// memory. [`RegisteredBuffer::deregister`] returns the memory.
    ///
    /// # Errors
    /// [`Cause::NoCufile`] if the driver does not open, otherwise the error of cuFile. [`Failed`] returns the
    /// buffer.
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
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "cuFileBufRegister")]
    pub fn register<B: IoBuf + 'static>(&self, buffer: B) -> Result<RegisteredBuffer<B>, Failed<B, Cause>> {
        let driver = match self.gpus().driver() {
            Ok(driver) => driver,
            Err(reason) => return Err(Failed::new(Cause::NoCufile(reason.to_owned()), buffer)),
        };
        RegisteredBuffer::register(driver, buffer, RegisterFlags::empty()).map_err(|failed| {
            let (error, buffer) = failed.into_parts();
            Failed::new(error.into(), buffer)
        })
    }
}

/// Converts a failed registration into its cause. Drops the buffer.
impl<B> From<Failed<B, Cause>> for Cause {
    fn from(failed: Failed<B, Cause>) -> Self {
        failed.error
    }
}
