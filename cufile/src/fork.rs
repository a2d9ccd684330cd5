//! Detection of a fork after CUDA was initialised.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks between the first process that called this and the present one.
pub(crate) fn generation() -> u32 {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the handler only touches an atomic, which is allowed between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    current()
}

/// Returns the generation without making sure that forks are counted: the process must have called [`generation`]
/// before.
pub(crate) fn current() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
