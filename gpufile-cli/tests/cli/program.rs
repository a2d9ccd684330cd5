//! The program `gpufile` on the emulator, for tests of its commands.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Returns the program; on a host with only the test programs, it is above their folder.
pub fn built() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_gpufile"));
    let above = || env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("gpufile");
    if built.exists() { built } else { above() }
}

/// Runs on an emulated machine with two GPUs.
pub fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let emulator = cufile_emulator::library_path();
    let mut command = Command::new(built());
    for library in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        command.env(library, &emulator);
    }
    command.args(arguments);
    command
}

pub fn file(folder: &Path, name: &str, len_bytes: usize) -> PathBuf {
    let path = folder.join(name);
    let words = (0..len_bytes.div_ceil(4) as u32).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes());
    fs::write(&path, words.take(len_bytes).collect::<Vec<_>>()).unwrap();
    path
}

pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
