use std::os::fd::BorrowedFd;

use gpufile::page_cache;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Returns the number of pages that the page cache holds of a range of an open file, and the number of all its pages.
#[pyfunction]
pub fn page_cache_residency(py: Python<'_>, fd: i32, start: u64, end: u64) -> PyResult<(u64, u64)> {
    if fd < 0 {
        return Err(PyValueError::new_err(format!("{fd} is not a descriptor")));
    }
    // SAFETY: not negative. The caller keeps it open; the call fails for one that is not.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let residency = py.detach(|| page_cache::residency(fd, start..end))?;
    Ok((residency.cached, residency.pages))
}
