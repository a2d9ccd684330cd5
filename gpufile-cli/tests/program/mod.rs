//! The program `gpufile` on the emulator, for tests of its commands.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Returns a file that cargo built. On a host with only the test programs, it is beside or above them.
fn built(path: Option<&str>, name: &str) -> PathBuf {
    let program = env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let above = folder.parent().unwrap();
    let near = [folder.to_owned(), folder.join("deps"), above.to_owned(), above.join("deps")];
    let candidates = path.map(PathBuf::from).into_iter().chain(near.map(|folder| folder.join(name)));
    let found = candidates.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not near {program:?}: run `cargo build -p cufile-emulator`"))
}

/// Returns the program with these arguments, on an emulated machine with two GPUs.
pub fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let emulator = env::var_os("CUFILE_EMULATOR_LIBRARY").map(PathBuf::from);
    let emulator = emulator.unwrap_or_else(|| built(None, "libcufile_emulator.so"));
    let mut command = Command::new(built(Some(env!("CARGO_BIN_EXE_gpufile")), "gpufile"));
    for library in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        command.env(library, &emulator);
    }
    command.args(arguments);
    command
}

/// Makes a file whose bytes differ from place to place.
pub fn file(folder: &Path, name: &str, len_bytes: usize) -> PathBuf {
    let path = folder.join(name);
    let words = (0..len_bytes.div_ceil(4) as u32).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes());
    fs::write(&path, words.take(len_bytes).collect::<Vec<_>>()).unwrap();
    path
}

/// Returns the names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
