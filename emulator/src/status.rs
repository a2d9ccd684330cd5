//! The answers of cuFile's functions: a status, or a byte count with `errno`.

use std::ffi::c_int;
use std::process::abort;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda_rt_sys::driver::CUresult;
use cufile_sys::{CUfileError_t, CUfileOpError};

use crate::c;
use crate::control::{self, Hit};

pub(crate) const OK: CUfileError_t = failed(0);

pub(crate) const fn failed(code: u32) -> CUfileError_t {
    CUfileError_t { err: CUfileOpError::from_raw(code), cu_err: CUresult::CUDA_SUCCESS }
}

pub(crate) const fn cuda_failed(error: CUresult) -> CUfileError_t {
    CUfileError_t { err: CUfileOpError::CU_FILE_CUDA_DRIVER_ERROR, cu_err: error }
}

pub(crate) const INVALID: CUfileError_t = failed(5022);

pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result<(), CUfileError_t>) -> CUfileError_t {
    queued(name, |hit| {
        hit.sleep();
        body()
    })
}

/// Aborts if another thread is in such a call, which makes libcufile 1.11 to 1.15 corrupt their heap.
pub(crate) fn one_at_a_time(
    name: &'static str,
    body: impl FnOnce() -> Result<(), CUfileError_t>,
) -> CUfileError_t {
    static INSIDE: AtomicBool = AtomicBool::new(false);
    if control::forked() {
        return cuda_failed(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    if INSIDE.swap(true, Ordering::SeqCst) && control::version() < 1160 {
        eprintln!(
            "cufile-emulator: aborting in {name}: another thread is in a call that sets, reads, opens or closes, and libcufile before 1.16 corrupts its heap; make one such call at a time"
        );
        abort();
    }
    let status = call(name, body);
    INSIDE.store(false, Ordering::SeqCst);
    status
}

static TRANSFERS: AtomicUsize = AtomicUsize::new(0);

/// A transfer, from its call or its turn in a queue until it is dropped.
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

/// Aborts if a transfer is in flight: these calls make libcufile 1.11 to 1.15 forget settings for a moment, and a
/// transfer of another thread then divides by zero.
pub(crate) fn without_transfers(
    name: &'static str,
    body: impl FnOnce() -> Result<(), CUfileError_t>,
) -> CUfileError_t {
    if TRANSFERS.load(Ordering::SeqCst) > 0 && control::version() < 1160 {
        eprintln!(
            "cufile-emulator: aborting in {name}: a transfer is in flight, and libcufile before 1.16 divides by zero in it; wait for all transfers first"
        );
        abort();
    }
    one_at_a_time(name, body)
}

/// Delays the queued work rather than the call.
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
            // libcufile leaves the errno of its own probe, which misleads a caller that reads errno first.
            c::set_errno(libc::ENOTTY);
            bytes as isize
        }
        Err(code) => {
            c::set_errno(code);
            -1
        }
    }
}
