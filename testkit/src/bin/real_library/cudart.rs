//! Checks of a real libcudart: its version, its functions, the names of its errors, and its answers without a driver.

use std::ffi::CStr;
use std::path::Path;

use cuda_rt_sys::runtime::{Functions, Library, cudaError};

use crate::checks::{Checks, expect, libcuda_is_present};
use crate::symbols::exports;

pub fn run(checks: &mut Checks, path: &Path, version: i32) {
    // SAFETY: the file is one of NVIDIA's packages.
    let library = match unsafe { Library::load_from(path) } {
        Ok(library) => library,
        Err(error) => return checks.check("the library loads", || Err(error.to_string())),
    };
    checks.check("the library loads", || expect(library.path(), Some(path)));
    checks.check("the version is the package's, or unknown in 11.8 without a driver", || {
        let unknown = version < 12000 && !libcuda_is_present();
        expect(library.version(), if unknown { 0 } else { version })
    });
    for symbol in Functions::SYMBOLS.iter().filter(|symbol| symbol.since <= version) {
        checks.check(format!("{} is exported", symbol.name), || expect(exports(path, symbol.name)?, true));
    }
    checks.check("cudaMemcpyBatchAsync has the signature of 13.0 from then on", || {
        expect(library.cudaMemcpyBatchAsync.is_some(), version >= 13000)
    });
    checks.check("cudaMemcpyBatchAsync has that of 12.8 in 12.8 and 12.9", || {
        expect(library.memcpy_batch_async_v12().is_some(), (12080..13000).contains(&version))
    });
    checks.check("every error has the name and a text that the library gives it", || {
        let unknown = name(&library, cudaError(123_456));
        for raw in (0..=1100).chain([10_000]) {
            let error = cudaError(raw);
            let theirs = name(&library, error);
            if theirs != unknown {
                expect(error.name().map(str::to_owned), theirs)?;
                expect(text(&library, error).is_some_and(|text| !text.is_empty()), true)?;
            }
        }
        expect(name(&library, cudaError::cudaErrorInvalidValue).as_deref(), Some("cudaErrorInvalidValue"))
    });
    if libcuda_is_present() {
        return;
    }
    checks.check("without a driver its version is 0", || {
        let mut driver = -1;
        // SAFETY: `driver` outlives the call.
        let error = unsafe { (library.cudaDriverGetVersion)(&mut driver) };
        expect((error, driver), (cudaError::cudaSuccess, 0))
    });
    checks.check("without a driver counting devices is cudaErrorInsufficientDriver", || {
        let mut count = -1;
        // SAFETY: `count` outlives the call.
        let error = unsafe { (library.cudaGetDeviceCount)(&mut count) };
        expect(error, cudaError::cudaErrorInsufficientDriver)
    });
    checks.check("without a driver the last error stays", || {
        // SAFETY: no arguments.
        let errors = unsafe {
            [(library.cudaPeekAtLastError)(), (library.cudaGetLastError)(), (library.cudaGetLastError)()]
        };
        let failed = cudaError::cudaErrorInsufficientDriver;
        expect(errors, [failed; 3])
    });
}

fn name(library: &Library, error: cudaError) -> Option<String> {
    // SAFETY: any number is valid; the answer is a constant of the library's or null.
    unsafe { owned((library.cudaGetErrorName)(error)) }
}

fn text(library: &Library, error: cudaError) -> Option<String> {
    // SAFETY: as above.
    unsafe { owned((library.cudaGetErrorString)(error)) }
}

/// # Safety
/// `text` must be null or end with a nul.
unsafe fn owned(text: *const core::ffi::c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
