//! The contexts of CUDA that memory names.

use cuda_rt_sys::driver::CUcontext;

/// The CUDA context of memory, which must be current on a thread that transfers this memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    raw: CUcontext,
    /// The libcuda that it belongs to, if known.
    libcuda: Option<Libcuda>,
}

/// A loaded libcuda, identified by the address of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Libcuda(pub usize);

// SAFETY: a token, which CUDA lets any thread make current.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Wraps a CUDA context that other code created.
    ///
    /// # Safety
    /// `context` must stay valid as long as memory that names it. It must belong to the libcuda of each
    /// [`Cuda`](crate::cuda::Cuda) and [`Driver`](crate::Driver) that the memory is used with.
    pub unsafe fn from_raw(context: CUcontext) -> Self {
        Self { raw: context, libcuda: None }
    }

    /// Returns C's handle.
    pub fn as_raw(self) -> CUcontext {
        self.raw
    }

    #[inline]
    pub(crate) fn of(raw: CUcontext, libcuda: Libcuda) -> Self {
        Self { raw, libcuda: Some(libcuda) }
    }

    #[inline]
    pub(crate) fn may_be_of(self, libcuda: Libcuda) -> bool {
        self.libcuda.is_none_or(|of| of == libcuda)
    }
}
