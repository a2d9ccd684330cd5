//! Reads the beginning of a file into a registered buffer of GPU memory.
//!
//! usage: basic_io [--cufile|--posix] FILE [GPU [SIZE]]
//!
//! FILE must have SIZE bytes (64MiB by default). The example compares the buffer with the file. If the cuFile driver does
//! not open, the buffer is not registered, and gpufile takes another route. Without a GPU, and if GPU is not given, it
//! uses host memory. `--cufile` requires cuFile, and `--posix` never uses it.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use common::{MIB, Result, require_same};
use cufile::{Driver, RegisterFlags, RegisteredBuffer};
use gpufile::{Engine, File, IoBufMut};

fn main() -> ExitCode {
    common::run("[--cufile|--posix] FILE [GPU [SIZE]]", |arguments| {
        let path = arguments.path(0)?;
        let len = arguments.size(2, 64 * MIB)?;
        let expected = beginning(path, len)?;

        let Some(device) = arguments.device_if_any(1)? else {
            let mut buffer = vec![0; len];
            read(&arguments.open(path)?, &mut buffer)?;
            return finish(&buffer, &expected);
        };
        let memory = device.alloc(len)?;
        let memory = match Driver::open() {
            Ok(driver) => {
                // An engine of the same driver, so that its files know the registration.
                let engine = Engine::builder().driver(driver.clone()).build();
                let file = arguments.options().read(true).engine(&engine).open(path)?;
                let mut buffer = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
                read(&file, &mut buffer)?;
                buffer.deregister()?
            }
            Err(reason) => {
                println!("not registered: {reason}");
                let mut memory = memory;
                read(&arguments.open(path)?, &mut memory)?;
                memory
            }
        };
        finish(&memory.to_vec()?, &expected)
    })
}

fn read(file: &File, buffer: &mut impl IoBufMut) -> Result {
    if !buffer.location().is_host_accessible {
        println!("route: {}", file.route());
    }
    let start = Instant::now();
    file.read_exact_at(buffer, 0)?;
    let seconds = start.elapsed().as_secs_f64();
    let len = buffer.len_bytes();
    println!("read {len} bytes in {seconds:.6} seconds, {:.2} GB/s", len as f64 / seconds / 1e9);
    Ok(())
}

fn finish(found: &[u8], expected: &[u8]) -> Result {
    require_same(found, expected, "the buffer")?;
    println!("contents match");
    Ok(())
}

fn beginning(path: &Path, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    fs::File::open(path)
        .and_then(|file| file.read_exact_at(&mut bytes, 0))
        .map_err(|error| format!("{}, of which {len} bytes are needed: {error}", path.display()))?;
    Ok(bytes)
}
