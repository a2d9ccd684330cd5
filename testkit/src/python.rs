//! The Python that tests compare with. `GPUFILE_TEST_PYTHON` names it; without one, tests report that they did
//! nothing, or fail if `GPUFILE_REQUIRE_PYTHON=1`.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// A Python with numpy, safetensors, gguf, zarr and moto.
pub struct Python(OsString);

impl Python {
    /// Returns the Python, if there is one.
    pub fn find() -> Option<Self> {
        let found = env::var_os("GPUFILE_TEST_PYTHON").map(Python);
        if found.is_none() {
            let required = env::var_os("GPUFILE_REQUIRE_PYTHON").is_some_and(|value| value == "1");
            assert!(!required, "GPUFILE_REQUIRE_PYTHON=1, but GPUFILE_TEST_PYTHON names no Python");
            eprintln!(
                "skipped: GPUFILE_TEST_PYTHON names no Python with numpy, safetensors, gguf, zarr and moto"
            );
        }
        found
    }

    /// Returns the command that starts it.
    pub fn command(&self) -> Command {
        Command::new(&self.0)
    }

    /// Runs a program in `folder`, and asserts that it does not raise.
    pub fn run(&self, folder: &Path, program: &str) {
        let output = self
            .command()
            .args(["-W", "error", "-c", program])
            .current_dir(folder)
            .output()
            .unwrap_or_else(|error| panic!("GPUFILE_TEST_PYTHON={:?}: {error}", self.0));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
