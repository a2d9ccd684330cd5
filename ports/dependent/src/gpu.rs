//! The path through a GPU.

use std::io;
use std::path::Path;

use gpufile::{Engine, File};

/// Copies a file with the engine of the process.
///
/// # Errors
/// There is no GPU, or reading or writing fails.
pub fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    copy_with(Engine::global(), from, to)
}

/// Copies a file with this engine.
///
/// # Errors
/// As [`copy`].
pub fn copy_with(engine: &Engine, from: &Path, to: &Path) -> io::Result<u64> {
    let source = File::options().read(true).engine(engine).open(from)?;
    let target = File::options().write(true).create(true).truncate(true).engine(engine).open(to)?;
    let cuda = engine.cuda().map_err(io::Error::from)?;
    let len_bytes = source.len_bytes()?;
    let mut memory =
        cuda.device(0).and_then(|device| device.alloc(len_bytes as usize)).map_err(io::Error::other)?;
    source.read_exact_at(&mut memory, 0)?;
    target.write_all_at(&memory, 0)?;
    Ok(len_bytes)
}
