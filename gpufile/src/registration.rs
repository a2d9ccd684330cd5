//! Memory registered with cuFile, for transfers that repeat.

use cufile::{IoBuf, RegisterFlags, RegisteredBuffer};

use crate::engine::Engine;
use crate::error::{Cause, Result};

impl Engine {
    /// Registers memory with the engine's cuFile driver, which is opened if it is not yet. The direct paths then need not
    /// pin the memory for each transfer; elsewhere it makes no difference. Files of this engine take the registration like
    /// any memory, and so do its [parts](RegisteredBuffer::slice_mut). [`RegisteredBuffer::deregister`] gives the memory
    /// back.
    ///
    /// # Errors
    /// [`Cause::NoCufile`] if the driver does not open, else what cuFile said of the memory. The buffer is dropped;
    /// `cufile::Driver::with_registered_mut` registers a borrow.
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
    pub fn register<B: IoBuf + 'static>(&self, buffer: B) -> Result<RegisteredBuffer<B>, Cause> {
        let driver = self.driver().map_err(|reason| Cause::NoCufile(reason.to_owned()))?;
        let registered = RegisteredBuffer::register(driver, buffer, RegisterFlags::empty());
        Ok(registered.map_err(|failed| failed.error)?)
    }
}
