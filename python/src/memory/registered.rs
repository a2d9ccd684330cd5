//! Registrations of GPU memory with cuFile, which Python names by objects in the memory.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use cufile::cuda::Device;
use cufile::fork::Mutex;
use cufile::{IoBuf, RegisteredBuffer};
use gpufile::Engine;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{Access, Memory};
use crate::error::exception;

/// The registration of one allocation. It ends with the last transfer that uses it.
pub(super) struct Registration {
    /// The addresses of the allocation.
    range: Range<usize>,
    _buffer: RegisteredBuffer<Memory>,
}

impl Registration {
    pub fn offset_of(&self, address: usize) -> usize {
        address - self.range.start
    }
}

static REGISTRATIONS: Mutex<Vec<Arc<Registration>>> = Mutex::of_static(Vec::new());

/// The number of registrations, so that programs without any look no further.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn lock() -> MutexGuard<'static, Vec<Arc<Registration>>> {
    REGISTRATIONS.lock()
}

pub(super) fn covering(address: usize, len_bytes: usize) -> Option<Arc<Registration>> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let end = address.checked_add(len_bytes)?;
    let covers = |registration: &&Arc<Registration>| {
        registration.range.start <= address && end <= registration.range.end
    };
    lock().iter().find(covers).cloned()
}

/// Registers the whole GPU allocation that contains a buffer with cuFile.
///
/// GPUDirect Storage then need not pin the memory for each transfer. Other transfers work as before. The
/// registration keeps the buffer alive until ``deregister``.
#[pyfunction]
pub fn register(buffer: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = buffer.py();
    let mut memory = Memory::of(buffer, Access::Read)?;
    let range = range_of(&memory)?;
    if covering(range.start, range.len()).is_some() {
        return Err(PyValueError::new_err("the memory is already registered"));
    }
    (memory.address, memory.len_bytes) = (range.start, range.len());
    let engine = Engine::try_global().map_err(|error| PyValueError::new_err(error.to_string()))?;
    let registered = py.detach(|| engine.register(memory).map_err(|failed| failed.error));
    let registered = registered.map_err(|error| exception(py, &error))?;
    let mut registrations = lock();
    registrations.push(Arc::new(Registration { range, _buffer: registered }));
    COUNT.store(registrations.len(), Ordering::Release);
    Ok(())
}

/// Ends the registration of the GPU allocation that contains a buffer. Transfers in flight keep it until they end.
#[pyfunction]
pub fn deregister(buffer: &Bound<'_, PyAny>) -> PyResult<()> {
    let memory = Memory::of(buffer, Access::Read)?;
    let range = range_of(&memory)?;
    let mut registrations = lock();
    let Some(index) = registrations.iter().position(|registration| registration.range == range) else {
        return Err(PyValueError::new_err("the memory is not registered"));
    };
    let registration = registrations.swap_remove(index);
    COUNT.store(registrations.len(), Ordering::Release);
    // Both may release objects, whose code may register others.
    drop(registrations);
    buffer.py().detach(|| drop((registration, memory)));
    Ok(())
}

/// Returns the addresses of the allocation that memory of a GPU lies in. Memory without one is registered by itself.
fn range_of(memory: &Memory) -> PyResult<Range<usize>> {
    let Some(device) = memory.device().filter(|_| memory.len_bytes() > 0) else {
        return Err(PyValueError::new_err("only GPU memory can be registered"));
    };
    let range = allocation(device, memory.address);
    Ok(range.unwrap_or_else(|| memory.address..memory.address + memory.len_bytes()))
}

/// Returns the addresses of the allocation that an address of a GPU lies in. `None` if CUDA knows none.
pub(super) fn allocation(device: &Device, address: usize) -> Option<Range<usize>> {
    let _entered = device.enter().ok()?;
    let (mut start, mut len_bytes) = (0, 0);
    let get = device.cuda().driver().cuMemGetAddressRange_v2;
    // SAFETY: both outlive the call, and CUDA accepts any address.
    let result = unsafe { get(&mut start, &mut len_bytes, address as u64) };
    let start = start as usize;
    (result.0 == 0).then(|| start..start + len_bytes)
}
