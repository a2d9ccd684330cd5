//! Stand-ins for the parts that only Linux has: an error, or nothing.

use std::ffi::{CStr, c_int, c_void};
use std::io;

use super::{Advice, Description, RawFd};

/// Linux's number on x86-64. No file has properties here.
pub const O_DIRECT: c_int = 0o40_000;
pub const REFUSED_FLAGS: [(c_int, &str); 0] = [];

/// Returns 0: no library that loads here sets it.
pub fn errno() -> i32 {
    0
}

pub fn set_errno(_errno: i32) {}

pub fn name_this_thread(_name: &CStr) {}

/// # Errors
/// Always [`Unsupported`](io::ErrorKind::Unsupported).
pub fn describe(_file: RawFd) -> Result<Description, (&'static str, io::Error)> {
    Err(("statx", io::ErrorKind::Unsupported.into()))
}

/// A mapping, of which there is none.
pub enum Mapping {}

impl Mapping {
    pub fn new(_len_bytes: usize) -> Option<Self> {
        None
    }

    pub fn start(&self) -> *mut c_void {
        match *self {}
    }

    /// # Safety
    /// None is needed.
    pub unsafe fn advise(&self, _start: *mut u8, _len_bytes: usize, _advice: Advice) -> bool {
        match *self {}
    }

    /// # Safety
    /// None is needed.
    pub unsafe fn unmap(&self) {
        match *self {}
    }
}
