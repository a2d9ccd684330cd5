//! Copies between buffers of any memory, and filling them.

use std::ptr;

use cuda_rt_sys::runtime::cudaMemcpyKind;

use super::{Cuda, DeviceBuffer, ManagedBuffer, MappedBuffer};
use crate::error::{Error, Result, check_runtime};
use crate::memory::{IoBuf, IoBufMut};
use crate::slice::Part;

macro_rules! copies {
    ($buffer:ident) => {
        impl $buffer {
            /// Copies host bytes to `offset_bytes` and waits until they are there.
            ///
            /// # Errors
            /// [`Error::InvalidInput`](crate::Error::InvalidInput) if they do not fit; CUDA's error.
            #[doc(alias = "cudaMemcpy")]
            pub fn copy_from_host(&mut self, offset_bytes: usize, source: &[u8]) -> Result<()> {
                let part = within("copy_from_host", Part::whole_mut(self), offset_bytes, source.len())?;
                // SAFETY: an allocation to which `&mut self` is the only access.
                unsafe { copy(self.device().cuda(), part, Part::whole(source)) }
            }

            /// Copies bytes from `offset_bytes` to the host.
            ///
            /// # Errors
            /// [`Error::InvalidInput`](crate::Error::InvalidInput) if the range goes beyond the buffer; CUDA's error.
            #[doc(alias = "cudaMemcpy")]
            pub fn copy_to_host(&self, offset_bytes: usize, target: &mut [u8]) -> Result<()> {
                let part = within("copy_to_host", Part::whole(self), offset_bytes, target.len())?;
                // SAFETY: an allocation that nothing writes while it is borrowed.
                unsafe { copy(self.device().cuda(), Part::whole_mut(target), part) }
            }

            /// Returns a copy of all bytes on the host.
            ///
            /// # Errors
            /// CUDA's error.
            pub fn to_vec(&self) -> Result<Vec<u8>> {
                let mut bytes = vec![0; self.len_bytes()];
                self.copy_to_host(0, &mut bytes)?;
                Ok(bytes)
            }

            /// Sets every byte and waits for CUDA to finish.
            ///
            /// # Errors
            /// CUDA's error.
            #[doc(alias = "cudaMemset")]
            pub fn fill(&mut self, byte: u8) -> Result<()> {
                let part = Part::whole_mut(self);
                // SAFETY: an allocation to which `&mut self` is the only access.
                unsafe { fill(self.device().cuda(), part, byte) }
            }
        }
    };
}

copies!(DeviceBuffer);
copies!(ManagedBuffer);
copies!(MappedBuffer);

impl Cuda {
    /// Copies all bytes of any buffer to another buffer of the same length, and waits until they are there. Both may
    /// be on the host or on GPUs, on the same or on two. For a part of a buffer, pass a slice.
    ///
    /// ```no_run
    /// use cufile::cuda::Cuda;
    /// use cufile::{IoBufMut, OwnedPart};
    ///
    /// let cuda = Cuda::load()?;
    /// let device = cuda.device(0)?;
    /// let (source, mut target) = (device.alloc(4096)?, device.alloc(8192)?);
    /// cuda.copy(&source, &mut target.slice_mut(4096..))?;
    /// cuda.copy(b"hello".as_slice(), &mut target.slice_mut(100..105))?;
    /// // Parts and boxed buffers have no methods to copy.
    /// let parts = OwnedPart::split(target, 4096);
    /// let mut bytes = vec![0; 4096];
    /// cuda.copy(&parts[1], &mut bytes)?;
    /// let mut any: Vec<Box<dyn IoBufMut + Send>> = vec![Box::new(device.alloc(5)?), Box::new(vec![0u8; 5])];
    /// for buffer in &mut any {
    ///     cuda.copy(b"world".as_slice(), buffer)?;
    /// }
    /// # Ok::<(), cufile::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the lengths differ; CUDA's error; [`Error::Forked`] for device memory.
    #[doc(alias = "cudaMemcpy")]
    #[doc(alias = "cudaMemcpyPeer")]
    pub fn copy(&self, source: &(impl IoBuf + ?Sized), target: &mut (impl IoBufMut + ?Sized)) -> Result<()> {
        let (source, target) = (Part::whole(source), Part::whole_mut(target));
        if source.len_bytes != target.len_bytes {
            let lengths =
                format!("the source has {} bytes, but the target has {}", source.len_bytes, target.len_bytes);
            return Err(Error::invalid("copy", lengths));
        }
        // SAFETY: buffers are accessible as they say. `&mut` is the only access to the target, so that it is apart from the
        // source, which nothing writes while it is borrowed.
        unsafe { copy(self, target, source) }
    }

    /// Sets every byte of any buffer and waits for CUDA to finish. For a part of a buffer, pass a slice.
    ///
    /// # Errors
    /// CUDA's error; [`Error::Forked`] for device memory.
    #[doc(alias = "cudaMemset")]
    pub fn fill(&self, target: &mut (impl IoBufMut + ?Sized), byte: u8) -> Result<()> {
        let part = Part::whole_mut(target);
        // SAFETY: an `IoBufMut` is accessible as it says, and `&mut` is the only access.
        unsafe { fill(self, part, byte) }
    }
}

/// # Safety
/// Both must be accessible as their locations say, and must not overlap. During the call, nothing may write the
/// source, and nothing else may use the target.
unsafe fn copy(cuda: &Cuda, target: Part, source: Part) -> Result<()> {
    let len_bytes = target.len_bytes.min(source.len_bytes);
    if len_bytes == 0 {
        return Ok(());
    }
    let kind = match (target.location.is_host_accessible, source.location.is_host_accessible) {
        (true, true) => {
            // SAFETY: the caller's promise.
            unsafe { ptr::copy_nonoverlapping(source.ptr, target.ptr, len_bytes) };
            return Ok(());
        }
        (false, true) => cudaMemcpyKind::cudaMemcpyHostToDevice,
        (true, false) => cudaMemcpyKind::cudaMemcpyDeviceToHost,
        // The addresses tell which GPUs.
        (false, false) => cudaMemcpyKind::cudaMemcpyDefault,
    };
    // Pinned memory may name another GPU than the one that copies.
    let enter = |part: Part| match part.location.is_host_accessible {
        true => Ok(None),
        false => part.location.context.map(|context| context.enter(cuda)).transpose(),
    };
    let (_source, _target) = (enter(source)?, enter(target)?);
    // SAFETY: the caller's promise.
    check_runtime("cudaMemcpy", unsafe {
        (cuda.runtime().cudaMemcpy)(target.ptr.cast(), source.ptr.cast(), len_bytes, kind)
    })?;
    match target.location.is_host_accessible {
        true => Ok(()),
        // cudaMemcpy from pageable memory returns when the source may be reused, not when the bytes have arrived. Between
        // GPUs it returns at once.
        false => wait(cuda),
    }
}

/// # Safety
/// The part must be memory that is accessible as its location says, and nothing else may use it during the call.
unsafe fn fill(cuda: &Cuda, part: Part, byte: u8) -> Result<()> {
    if part.len_bytes == 0 {
        return Ok(());
    }
    if part.location.is_host_accessible {
        // SAFETY: the whole part.
        unsafe { ptr::write_bytes(part.ptr, byte, part.len_bytes) };
        return Ok(());
    }
    let _entered = part.location.context.map(|context| context.enter(cuda)).transpose()?;
    // SAFETY: the whole part.
    check_runtime("cudaMemset", unsafe {
        (cuda.runtime().cudaMemset)(part.ptr.cast(), byte.into(), part.len_bytes)
    })?;
    wait(cuda)
}

fn wait(cuda: &Cuda) -> Result<()> {
    let _beside = cuda.beside_captures();
    // SAFETY: null is the default stream of the current context, which the caller has entered.
    check_runtime("cudaStreamSynchronize", unsafe { (cuda.runtime().cudaStreamSynchronize)(ptr::null_mut()) })
}

fn within(operation: &'static str, part: Part, offset_bytes: usize, len_bytes: usize) -> Result<Part> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= part.len_bytes => Ok(part.part(offset_bytes..end)),
        _ => Err(Error::invalid(
            operation,
            format!("{len_bytes} bytes at {offset_bytes} of a buffer of {} bytes", part.len_bytes),
        )),
    }
}
