//! Memory registered with cuFile, for transfers that repeat.

use cufile::{Failed, IoBuf, RegisterFlags, RegisteredBuffer};

use crate::engine::Engine;
use crate::error::Cause;

impl Engine {
    /// Registers memory with the engine's cuFile driver, which is opened if it is not yet. The direct paths then need not
    /// pin the memory for each transfer; elsewhere it makes no difference. Files of this engine take the registration like
    /// any memory, and so do its [parts](RegisteredBuffer::slice_mut). [`RegisteredBuffer::deregister`] gives the memory
    /// back.
    ///
    /// # Errors
    /// [`Cause::NoCufile`] if the driver does not open, else what cuFile said of the memory. [`Failed`] returns the buffer.
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

/// Drops the buffer.
impl<B> From<Failed<B, Cause>> for Cause {
    fn from(failed: Failed<B, Cause>) -> Self {
        failed.error
    }
}
