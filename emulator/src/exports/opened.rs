//! The state of cuFile's driver: open or not.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cufile_sys::CUfileError_t;

use crate::control::lock;
use crate::status::failed;

/// Openings that were not closed.
pub(super) static COUNT: Mutex<usize> = Mutex::new(0);

/// True after the properties were read without an open driver, up to 1.16. No parameters can be set then.
pub(super) static IS_BEGUN: AtomicBool = AtomicBool::new(false);

pub(crate) fn use_count() -> usize {
    *lock(&COUNT)
}

pub(super) fn need_open() -> Result<(), CUfileError_t> {
    if use_count() > 0 { Ok(()) } else { Err(failed(5001)) }
}

/// Fails once the driver is open, or its properties were read.
pub(super) fn before_open() -> Result<(), CUfileError_t> {
    let is_begun = IS_BEGUN.load(Ordering::SeqCst);
    if use_count() == 0 && !is_begun { Ok(()) } else { Err(failed(5026)) }
}
