//! Private mappings of whole files, as memory for arrays of Python.
//!
//! Tensors over a mapping are there at once. Their bytes come from the page cache when they are first used, and a program
//! may change its own copy of them. Other programs may shorten the file: `lost_pages` then puts zeros in the place of the
//! bytes that are gone.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use gpufile::File;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::os_error;
use crate::lost_pages::{Watched, page_bytes};
use crate::release::Detached;

/// A private mapping of a file, with the buffer protocol.
#[pyclass(frozen, module = "gpufile._gpufile")]
pub struct Mapping(Detached<Pages>);

struct Pages {
    address: usize,
    /// A multiple of the page size. The bytes behind the end of the file are zeros.
    len_bytes: usize,
    watched: Option<Watched>,
}

impl Pages {
    fn of(file: &File, least_bytes: u64) -> io::Result<Self> {
        let descriptor = file.as_fd().as_raw_fd();
        // SAFETY: zeros are valid for a structure of integers.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `status` outlives the call.
        if unsafe { libc::fstat(descriptor, &mut status) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The header was read from a longer file.
        if (status.st_size as u64) < least_bytes {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let len_bytes =
            usize::try_from(least_bytes).ok().and_then(|len| len.checked_next_multiple_of(page_bytes()));
        let len_bytes = len_bytes.ok_or_else(|| io::Error::from_raw_os_error(libc::EFBIG))?;
        // SAFETY: the call makes a new mapping at an address that the kernel chooses.
        let mapped = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // Memory for the pages that a program changes is reserved when it changes them.
            let kind = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), len_bytes, access, kind, descriptor, 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // The kernel then reads twice as far ahead of the pages that are used first. Advice cannot fail the load.
        // SAFETY: the call takes no memory.
        unsafe { libc::posix_fadvise(descriptor, 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
        let address = mapped.expose_provenance();
        let mut pages = Self { address, len_bytes, watched: None };
        // A relative path is that of another file after `chdir`.
        let path = std::path::absolute(file.path())?;
        // SAFETY: the mapping is private, and is unmapped only after the watch has ended.
        pages.watched = Some(unsafe { Watched::new(address, len_bytes, &path, &status)? });
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.watched = None;
        // SAFETY: `of` mapped these pages, and the arrays over them keep this value.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.address), self.len_bytes) };
    }
}

impl Mapping {
    /// Maps a file that has at least `least_bytes` bytes.
    ///
    /// # Errors
    /// The `OSError` of the file: `EIO` if it has become shorter, or the errno of `mmap`.
    pub fn of(py: Python<'_>, file: &File, least_bytes: u64) -> PyResult<Self> {
        let path = file.path().to_owned();
        let pages = py.detach(|| Pages::of(file, least_bytes));
        let failed = |error: io::Error| os_error(py, error.raw_os_error().unwrap_or(libc::EIO), &path);
        Ok(Self(Detached::new(pages.map_err(failed)?)))
    }
}

#[pymethods]
impl Mapping {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is NULL"));
        }
        let pages = &slf.get().0;
        let Ok(len_bytes) = isize::try_from(pages.len_bytes) else {
            return Err(PyValueError::new_err("the file has more bytes than an address space has"));
        };
        let start = ptr::with_exposed_provenance_mut(pages.address);
        // SAFETY: the caller passes a view to fill. The pages live as long as the object, which the view refers to.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len_bytes, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
