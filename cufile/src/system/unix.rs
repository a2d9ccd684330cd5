//! Descriptors, forks and threads.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::{io, ptr};

use cufile_sys::{CUfileDescr_t, CUfileFileHandleType};

pub use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

pub fn raw(file: BorrowedFd<'_>) -> RawFd {
    file.as_raw_fd()
}

pub fn lend(file: &impl AsFd) -> BorrowedFd<'_> {
    file.as_fd()
}

/// # Safety
/// The descriptor must stay open as long as the result is used.
pub unsafe fn borrow<'fd>(file: RawFd) -> BorrowedFd<'fd> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(file) }
}

pub fn description(file: RawFd) -> CUfileDescr_t {
    let type_ = CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    let mut description = CUfileDescr_t { type_, ..Default::default() };
    description.handle.fd = file;
    description
}

pub fn sync(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::fsync(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the system call a function in each child that is forked from now on. Returns whether it will.
///
/// # Safety
/// The function must do only what is allowed between fork and exec.
pub unsafe fn call_in_children(function: extern "C" fn()) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::pthread_atfork(None, None, Some(function)) == 0 }
}

/// A thread that the C library started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawThread(libc::pthread_t);

impl RawThread {
    /// Starts a thread that calls `body`, which catches its panics.
    ///
    /// # Errors
    /// The error that the system returned.
    pub fn start(body: Box<dyn FnOnce() + Send>) -> io::Result<Self> {
        type Body = Box<dyn FnOnce() + Send>;
        extern "C" fn run(body: *mut c_void) -> *mut c_void {
            // SAFETY: made below, for this call alone.
            let body = unsafe { Box::from_raw(body.cast::<Body>()) };
            body();
            ptr::null_mut()
        }
        let body = Box::into_raw(Box::new(body));
        let mut thread = MaybeUninit::uninit();
        // SAFETY: `run` takes the box that it is given, and the call fills `thread` if it returns 0.
        match unsafe { libc::pthread_create(thread.as_mut_ptr(), ptr::null(), run, body.cast()) } {
            // SAFETY: as above.
            0 => Ok(Self(unsafe { thread.assume_init() })),
            errno => {
                // SAFETY: no thread has it.
                drop(unsafe { Box::from_raw(body) });
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    pub fn is_caller(self) -> bool {
        // SAFETY: takes nothing.
        self.0 == unsafe { libc::pthread_self() }
    }

    /// Waits until the thread has ended.
    ///
    /// # Safety
    /// Nobody else joins or detaches it.
    pub unsafe fn join(self) {
        // SAFETY: the caller's promise.
        let errno = unsafe { libc::pthread_join(self.0, ptr::null_mut()) };
        assert_eq!(errno, 0, "each thread is joined once");
    }

    /// Lets the thread end by itself.
    ///
    /// # Safety
    /// Nobody else joins or detaches it.
    pub unsafe fn detach(self) {
        // SAFETY: the caller's promise.
        unsafe { libc::pthread_detach(self.0) };
    }
}
