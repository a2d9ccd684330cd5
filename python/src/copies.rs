//! Copies of GPU memory for saves, which the program's thread waits for.

use cufile::cuda::Stream;
use gpufile::Engine;
use pyo3::prelude::*;

use crate::error::exception;

/// Starts to copy ranges of a GPU's memory, one behind the other from `target` on, in a stream of that GPU. Each range
/// is its address and its length in bytes. The target is memory of the same GPU.
///
/// Torch takes several calls for each copy, and the program waits for all of them.
///
/// The caller promises that all memory is alive until the stream has copied it.
///
/// # Errors
/// `RuntimeError` with CUDA's error.
#[pyfunction]
pub fn copy_ranges(
    py: Python<'_>,
    device: u32,
    stream: usize,
    target: usize,
    ranges: Vec<(usize, usize)>,
) -> PyResult<()> {
    let copy = || -> gpufile::Result<()> {
        let device = Engine::global().cuda()?.device(device)?;
        // SAFETY: the caller has the stream, which is of this GPU.
        let stream = unsafe { Stream::from_raw(&device, std::ptr::without_provenance_mut(stream)) };
        let mut target = std::ptr::with_exposed_provenance_mut::<u8>(target);
        for (source, len_bytes) in ranges {
            let source = std::ptr::with_exposed_provenance(source);
            // SAFETY: the caller's promise.
            unsafe {
                stream.copy_on_device(target, source, len_bytes)?;
                target = target.add(len_bytes);
            }
        }
        Ok(())
    };
    py.detach(copy).map_err(|error| exception(py, &error))
}
