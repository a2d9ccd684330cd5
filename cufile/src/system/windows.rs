//! Handles, which are to Windows as descriptors are to Unix.

use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle;

use cufile_sys::{CUfileDescr_t, CUfileFileHandleType};

pub use std::os::windows::io::{
    AsHandle as AsFd, BorrowedHandle as BorrowedFd, OwnedHandle as OwnedFd, RawHandle as RawFd,
};

pub fn raw(file: BorrowedFd<'_>) -> RawFd {
    file.as_raw_handle()
}

pub fn lend(file: &impl AsFd) -> BorrowedFd<'_> {
    file.as_handle()
}

/// # Safety
/// The handle must stay open as long as the result is used.
pub unsafe fn borrow<'fd>(file: RawFd) -> BorrowedFd<'fd> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(file) }
}

pub fn description(file: RawFd) -> CUfileDescr_t {
    let type_ = CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_WIN32;
    let mut description = CUfileDescr_t { type_, ..Default::default() };
    description.handle.handle = file;
    description
}

pub fn sync(file: BorrowedFd<'_>) -> io::Result<()> {
    File::from(file.try_clone_to_owned()?).sync_all()
}

/// Lets the system call a function in each child that is forked from now on. Returns true: Windows forks none.
///
/// # Safety
/// None is needed.
pub unsafe fn call_in_children(_function: extern "C" fn()) -> bool {
    true
}

/// A thread of a forked child, of which there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawThread {}

impl RawThread {
    /// # Errors
    /// Always [`Unsupported`](io::ErrorKind::Unsupported).
    pub fn start(_body: Box<dyn FnOnce() + Send>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn is_caller(self) -> bool {
        match self {}
    }

    /// # Safety
    /// None is needed.
    pub unsafe fn join(self) {
        match self {}
    }

    /// # Safety
    /// None is needed.
    pub unsafe fn detach(self) {
        match self {}
    }
}
