//! CUDA streams of Python objects.

use cufile::cuda::Stream;
use gpufile::Engine;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::exception;
use crate::memory::Memory;

/// The handles that CUDA reserves: the null stream by its other name, and the null stream of each thread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// Returns the handle of a stream: an integer, or an object with `__cuda_stream__`, `cuda_stream` or `ptr`.
fn handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = stream.py();
    let handle = if stream.is_none() {
        0
    } else if let Ok(handle) = stream.extract::<usize>() {
        handle
    } else if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let (_version, handle) = protocol.call0()?.extract::<(usize, usize)>()?;
        handle
    } else if let Some(handle) = stream.getattr_opt(intern!(py, "cuda_stream"))? {
        handle.extract()?
    } else if let Some(handle) = stream.getattr_opt(intern!(py, "ptr"))? {
        handle.extract()?
    } else {
        return Err(PyTypeError::new_err(format!(
            "{} is not a CUDA stream: expected an integer, or an object with __cuda_stream__, cuda_stream or ptr",
            stream.get_type().qualname()?
        )));
    };
    match handle {
        LEGACY => Ok(0),
        PER_THREAD => Err(PyValueError::new_err(
            "cudaStreamPerThread is a different stream on each thread: pass a stream that you created",
        )),
        handle => Ok(handle),
    }
}

/// Returns the stream of an object, on the GPU of the memory, or on the current GPU for memory of the host. The memory
/// then keeps the object alive.
pub fn of(object: &Bound<'_, PyAny>, memory: &mut Memory) -> PyResult<Stream> {
    let handle = handle(object)?;
    let device = match memory.device() {
        Some(device) => device.clone(),
        None => current_device().map_err(|error| exception(object.py(), &error))?,
    };
    memory.keep(object.clone().unbind());
    // SAFETY: the handle is null or the caller's stream. The memory keeps its object alive until the transfer has
    // ended. For an integer, the docs of the package ask the caller to do that.
    Ok(unsafe { Stream::from_raw(&device, std::ptr::without_provenance_mut(handle)) })
}

fn current_device() -> gpufile::Result<cufile::cuda::Device> {
    let cuda = Engine::global().cuda()?;
    let mut ordinal = 0;
    // SAFETY: `ordinal` outlives the call, and keeps its 0 if the call fails.
    unsafe { (cuda.runtime().cudaGetDevice)(&mut ordinal) };
    Ok(cuda.device(ordinal.unsigned_abs())?)
}
