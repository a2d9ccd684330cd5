//! Copies between buffers of any memory, and filling them.

use std::ptr;

use cuda_rt_sys::runtime::cudaMemcpyKind;

use super::Cuda;
use crate::error::{Error, Result, check_runtime};
use crate::slice::Part;

/// Copies host bytes to `offset_bytes` of a part and waits until they are there.
///
/// # Safety
/// The part must be memory that is accessible as its location says, and nothing else may use it during the
/// call.
pub(crate) unsafe fn copy_from_host(
    cuda: &Cuda,
    part: Part,
    offset_bytes: usize,
    source: &[u8],
) -> Result<()> {
    let target = within("copy_from_host", part, offset_bytes, source.len())?;
    // SAFETY: the caller's promise; `source` is borrowed.
    unsafe { copy(cuda, target, Part::whole(source)) }
}

/// Copies bytes from `offset_bytes` of a part to the host.
///
/// # Safety
/// The part must be memory that is accessible as its location says, and nothing may write it during the
/// call.
pub(crate) unsafe fn copy_to_host(
    cuda: &Cuda,
    part: Part,
    offset_bytes: usize,
    target: &mut [u8],
) -> Result<()> {
    let source = within("copy_to_host", part, offset_bytes, target.len())?;
    // SAFETY: the caller's promise; `target` is borrowed.
    unsafe { copy(cuda, Part::whole_mut(target), source) }
}

/// Copies all bytes of a part to another one of as many bytes, and waits until they are there.
///
/// # Safety
/// Both must be memory that is accessible as its location says, and apart from each other. During the call,
/// nothing may write the source, and nothing else may use the target.
pub(super) unsafe fn copy(cuda: &Cuda, target: Part, source: Part) -> Result<()> {
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

/// Sets every byte of a part and waits for CUDA to finish.
///
/// # Safety
/// As for [`copy_from_host`].
pub(crate) unsafe fn fill(cuda: &Cuda, part: Part, byte: u8) -> Result<()> {
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

/// Waits for the default stream.
fn wait(cuda: &Cuda) -> Result<()> {
    let _beside = cuda.beside_captures();
    // SAFETY: null is the default stream of the current context, which the caller has entered.
    check_runtime("cudaStreamSynchronize", unsafe { (cuda.runtime().cudaStreamSynchronize)(ptr::null_mut()) })
}

/// Returns `len_bytes` bytes at `offset_bytes` of a part; fails if the part is too short.
fn within(operation: &'static str, part: Part, offset_bytes: usize, len_bytes: usize) -> Result<Part> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= part.len_bytes => Ok(part.part(offset_bytes..end)),
        _ => Err(Error::invalid(
            operation,
            format!("{len_bytes} bytes at {offset_bytes} of a buffer of {} bytes", part.len_bytes),
        )),
    }
}
