//! The answers of cuFile's functions: a status, or a byte count with `errno`.

use std::ffi::c_int;
use std::process::abort;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda_rt_sys::driver::CUresult;
use cufile_sys::{CUfileError_t, CUfileOpError};

use crate::c;
use crate::control::{self, Hit};

/// Success.
pub(crate) const OK: CUfileError_t = failed(0);

/// Returns a status with one of cuFile's codes.
pub(crate) const fn failed(code: u32) -> CUfileError_t {
    CUfileError_t { err: CUfileOpError::from_raw(code), cu_err: CUresult::CUDA_SUCCESS }
}

/// Returns a status that passes on an error of the CUDA driver.
pub(crate) const fn cuda_failed(error: CUresult) -> CUfileError_t {
    CUfileError_t { err: CUfileOpError::CU_FILE_CUDA_DRIVER_ERROR, cu_err: error }
}

/// An argument is invalid.
pub(crate) const INVALID: CUfileError_t = failed(5022);

/// A cuFile function that returns a status.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result<(), CUfileError_t>) -> CUfileError_t {
    queued(name, |hit| {
        hit.sleep();
        body()
    })
}

/// As [`call`], for one that only one thread may be in at a time: libcufile 1.11 to 1.15 corrupt their heap then.
pub(crate) fn one_at_a_time(
    name: &'static str,
    body: impl FnOnce() -> Result<(), CUfileError_t>,
) -> CUfileError_t {
    static INSIDE: AtomicBool = AtomicBool::new(false);
    if control::forked() {
        return cuda_failed(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    if INSIDE.swap(true, Ordering::SeqCst) && control::version() < 1160 {
        eprintln!("{name} while another thread sets, reads, opens or closes");
        abort();
    }
    let status = call(name, body);
    INSIDE.store(false, Ordering::SeqCst);
    status
}

static TRANSFERS: AtomicUsize = AtomicUsize::new(0);

/// A transfer, from its call or its turn on until it is dropped.
pub(crate) struct Transfer(());

impl Transfer {
    pub(crate) fn begin() -> Self {
        TRANSFERS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        TRANSFERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// As [`one_at_a_time`], for one that makes libcufile 1.11 to 1.15 forget its settings for a moment, so that they divide
/// by zero in whatever another thread transfers.
pub(crate) fn without_transfers(
    name: &'static str,
    body: impl FnOnce() -> Result<(), CUfileError_t>,
) -> CUfileError_t {
    if TRANSFERS.load(Ordering::SeqCst) > 0 && control::version() < 1160 {
        eprintln!("{name} while another thread transfers");
        abort();
    }
    one_at_a_time(name, body)
}

/// As [`call`], for one that puts work in a queue: a delay is for the work.
pub(crate) fn queued(
    name: &'static str,
    body: impl FnOnce(Hit) -> Result<(), CUfileError_t>,
) -> CUfileError_t {
    if control::forked() {
        return cuda_failed(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    let hit = control::enter(name);
    if hit.err.is_some() || hit.cu.is_some() {
        hit.sleep();
        return CUfileError_t {
            err: CUfileOpError::from_raw(hit.err.unwrap_or(5011) as u32),
            cu_err: CUresult::from_raw(hit.cu.unwrap_or(0) as u32),
        };
    }
    body(hit).err().unwrap_or(OK)
}

/// A cuFile function that returns a byte count, or −1 with `errno`.
pub(crate) fn transfer(name: &'static str, body: impl FnOnce(&Hit) -> Result<usize, c_int>) -> isize {
    let _transfer = Transfer::begin();
    if control::forked() {
        c::set_errno(5011);
        return -1;
    }
    let hit = control::enter(name);
    hit.sleep();
    if let Some(code) = hit.errno.or(hit.err) {
        c::set_errno(code as c_int);
        return hit.ret.unwrap_or(-1) as isize;
    }
    if let Some(value) = hit.ret {
        return value as isize;
    }
    match body(&hit) {
        Ok(bytes) => {
            // libcufile leaves what a probe of its own set, so that a caller who looks at errno first goes wrong.
            c::set_errno(libc::ENOTTY);
            bytes as isize
        }
        Err(code) => {
            c::set_errno(code);
            -1
        }
    }
}
