//! The path through cuFile alone. The same code compiles on every system, without a `cfg`.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

/// Copies a file with the process's driver.
///
/// # Errors
/// There is no GPU, or reading or writing fails. [`Unsupported`](io::ErrorKind::Unsupported) where libcufile does not exist.
pub fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    copy_with(&Driver::open()?, from, to)
}

/// Copies a file with this driver.
///
/// # Errors
/// Reading or writing fails.
pub fn copy_with(driver: &Driver, from: &Path, to: &Path) -> io::Result<u64> {
    let source = File::open(from)?;
    let len_bytes = source.metadata()?.len();
    let target = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(to)?;
    let source = FileHandle::register(driver, source)?;
    let target = FileHandle::register(driver, target)?;
    let memory = driver.cuda().device(0)?.alloc(len_bytes as usize)?;
    let mut memory = RegisteredBuffer::register(driver, memory, RegisterFlags::empty())?;
    source.read_exact_at(&mut memory, 0)?;
    target.write_all_at(&memory, 0)?;
    target.sync_all()?;
    Ok(len_bytes)
}
