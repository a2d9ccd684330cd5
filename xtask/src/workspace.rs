//! The folders of the workspace.

use std::env;
use std::path::{Path, PathBuf};

pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Returns the name of the package in a folder. The registry has other `cufile` and `cufile-sys`.
pub fn package(folder: &str) -> &str {
    match folder {
        "cufile" => "libcufile",
        "cufile-sys" => "libcufile-sys",
        _ => folder,
    }
}

pub fn target_folder() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}
