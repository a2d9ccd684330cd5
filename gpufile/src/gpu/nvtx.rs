//! Ranges of NVTX, which profilers such as Nsight Systems show on the timeline of a thread.
//!
//! A profiler sets `NVTX_INJECTION64_PATH` for the programs that it starts. In other processes no library is loaded, and
//! a range costs the check of a flag.

use std::env;
use std::ffi::{CString, c_char, c_int};

use cuda_rt_sys::loader::{Search, SharedLibrary};
use cufile::fork::OnceCell;

const SEARCH: Search = Search {
    library: "libnvtx3interop",
    variable: "NVTX_LIBRARY",
    // The second is that of CUDA 12 and older.
    names: &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"],
    toolkit: true,
};

struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// A range of the calling thread, which ends when this is dropped.
#[must_use]
pub(crate) struct Range(Option<&'static Nvtx>);

/// Begins a range, whose text is made only if a profiler watches.
pub(crate) fn range(text: impl FnOnce() -> String) -> Range {
    let nvtx = loaded();
    if let Some(nvtx) = nvtx {
        let text = CString::new(text()).unwrap_or_default();
        // SAFETY: the text ends with NUL and outlives the call, which copies it.
        unsafe { (nvtx.push)(text.as_ptr()) };
    }
    Range(nvtx)
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(nvtx) = self.0 {
            // SAFETY: ends the range that this thread began last, which is this one: ranges are values of one function.
            unsafe { (nvtx.pop)() };
        }
    }
}

/// Returns the functions if a profiler watches this process and the library is there.
fn loaded() -> Option<&'static Nvtx> {
    static LOADED: OnceCell<Option<Nvtx>> = OnceCell::new();
    let load = || {
        let is_watched =
            ["NVTX_INJECTION64_PATH", SEARCH.variable].map(env::var_os).iter().any(Option::is_some);
        if !is_watched {
            return None;
        }
        let resolve = |library: SharedLibrary| {
            // SAFETY: the types are those of NVTX's documentation.
            unsafe {
                Ok(Nvtx {
                    push: library.required(c"nvtxRangePushA")?,
                    pop: library.required(c"nvtxRangePop")?,
                })
            }
        };
        // SAFETY: trusts the environment, as the search for CUDA does.
        unsafe { SharedLibrary::load(&SEARCH, resolve) }.ok()
    };
    LOADED.get_or_init(load).as_ref()
}
