//! Registered buffers.

use std::ffi::c_void;
use std::{fmt, mem, ptr};

use cufile_sys::{CU_FILE_RDMA_REGISTER, CU_FILE_RDMA_RELAXED_ORDERING};

use crate::cuda::Context;
use crate::driver::Driver;
use crate::error::{Result, check};
use crate::memory::{IoBuf, IoBufMut};

bitflags::bitflags! {
    /// How a buffer is registered.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct RegisterFlags: i32 {
        /// For user-space RDMA transfers (`CU_FILE_RDMA_REGISTER`).
        const RDMA_REGISTER = CU_FILE_RDMA_REGISTER as i32;
        /// RDMA writes may arrive in any order (`CU_FILE_RDMA_RELAXED_ORDERING`).
        const RDMA_RELAXED_ORDERING = CU_FILE_RDMA_RELAXED_ORDERING as i32;
    }
}

/// Memory registered with cuFile, which saves the direct paths from pinning it for each transfer.
///
/// Owns the buffer, or holds the borrow that it was given, and deregisters before either can end: freeing registered
/// memory can deadlock with nvidia-fs. It is itself an [`IoBuf`].
pub struct RegisteredBuffer<B: IoBuf> {
    buffer: B,
    driver: Driver,
}

impl<B: IoBuf> RegisteredBuffer<B> {
    /// Registers all of `buffer` (`cuFileBufRegister`).
    ///
    /// # Errors
    /// cuFile's code: `MEMORY_ALREADY_REGISTERED`, `CUDA_MEMORY_TYPE_INVALID` for managed memory, `INVALID_VALUE` for
    /// no bytes.
    #[doc(alias = "cuFileBufRegister")]
    pub fn register(driver: &Driver, buffer: B, flags: RegisterFlags) -> Result<Self> {
        driver.check_alive()?;
        let entered = buffer.context().map(|context| context.enter(driver.cuda())).transpose()?;
        // SAFETY: the memory stays allocated until it is deregistered, because `RegisteredBuffer` holds it.
        check("cuFileBufRegister", unsafe {
            (driver.library().functions().cuFileBufRegister)(base(&buffer), buffer.len_bytes(), flags.bits())
        })?;
        drop(entered);
        Ok(Self { buffer, driver: driver.clone() })
    }

    /// The buffer.
    pub fn get(&self) -> &B {
        &self.buffer
    }

    /// Deregisters the memory and gives the buffer back (`cuFileBufDeregister`).
    ///
    /// # Errors
    /// The registration comes back with what cuFile said.
    #[doc(alias = "cuFileBufDeregister")]
    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    pub fn deregister(self) -> Result<B, (Self, crate::Error)> {
        match self.deregister_raw() {
            Ok(()) => {
                let this = mem::ManuallyDrop::new(self);
                // SAFETY: `this` is never dropped, so each field is read out once.
                unsafe {
                    drop(ptr::read(&this.driver));
                    Ok(ptr::read(&this.buffer))
                }
            }
            Err(error) => Err((self, error)),
        }
    }

    fn deregister_raw(&self) -> Result<()> {
        self.driver.check_alive()?;
        let _entered = self.buffer.context().map(|context| context.enter(self.driver.cuda())).transpose()?;
        // SAFETY: registered in `register`; ownership or `&mut` says that no transfer is under way.
        check("cuFileBufDeregister", unsafe {
            (self.driver.library().functions().cuFileBufDeregister)(base(&self.buffer))
        })
    }
}

fn base(buffer: &impl IoBuf) -> *const c_void {
    buffer.as_ptr().cast()
}

impl<B: IoBuf> Drop for RegisteredBuffer<B> {
    fn drop(&mut self) {
        // `deregister` is for those who want the error.
        let _ = self.deregister_raw();
    }
}

// SAFETY: the buffer inside keeps the promise.
unsafe impl<B: IoBuf> IoBuf for RegisteredBuffer<B> {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        self.buffer.as_ptr()
    }

    #[inline]
    fn len_bytes(&self) -> usize {
        self.buffer.len_bytes()
    }

    #[inline]
    fn context(&self) -> Option<Context> {
        self.buffer.context()
    }

    #[inline]
    fn is_host_accessible(&self) -> bool {
        self.buffer.is_host_accessible()
    }
}

// SAFETY: the buffer inside keeps the promise.
unsafe impl<B: IoBufMut> IoBufMut for RegisteredBuffer<B> {}

impl<B: IoBuf> fmt::Debug for RegisteredBuffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredBuffer({} bytes at {:p})", self.len_bytes(), self.as_ptr())
    }
}
