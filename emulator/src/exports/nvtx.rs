//! libnvtx3interop: ranges, whose texts go to the file that `CUFILE_EMULATOR_NVTX` names.

use std::cell::Cell;
use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::io::Write;
use std::sync::LazyLock;

static LOG: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = env::var_os("CUFILE_EMULATOR_NVTX")?;
    File::options().create(true).append(true).open(path).ok()
});

thread_local! {
    static DEPTH: Cell<c_int> = const { Cell::new(0) };
}

fn log(line: &str) {
    if let Some(mut log) = LOG.as_ref() {
        let _ = log.write_all(line.as_bytes());
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvtxRangePushA(message: *const c_char) -> c_int {
    // SAFETY: a C string, as the caller promises.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    log(&format!("{depth} {message}\n"));
    depth
}

#[unsafe(no_mangle)]
pub extern "C" fn nvtxRangePop() -> c_int {
    let depth = DEPTH.get() - 1;
    DEPTH.set(depth.max(0));
    log(&format!("{depth} end\n"));
    depth
}
