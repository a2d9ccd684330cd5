//! Sets the limits of pinned memory and of bounce buffers. Then 64 threads read from two files; only the first thread
//! reads into registered memory, the others read through bounce buffers.
//!
//! usage: sample_013_many_threads FILE1 FILE2

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, in_threads, open_to_read, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags};

const THREADS: usize = 64;
const LEN: usize = MIB;
const MAX_PINNED: u64 = 128 * MIB as u64;
const MAX_CACHE: u64 = 64 * MIB as u64;

fn main() -> ExitCode {
    common::run("FILE1 FILE2", |arguments| {
        let paths = [arguments.path(0)?, arguments.path(1)?];
        let driver = Driver::builder().max_pinned_memory(MAX_PINNED).max_cache_size(MAX_CACHE).open()?;
        let device = driver.cuda().device(0)?;
        let mut files = Vec::new();
        for path in paths {
            require_len(path, THREADS / 2 * LEN)?;
            files.push(FileHandle::register(&driver, open_to_read(path)?)?);
        }
        in_threads(0..THREADS, |number| {
            let (path, file, offset) = (paths[number % 2], &files[number % 2], (number / 2 * LEN) as u64);
            let mut buffer = device.alloc(LEN)?;
            let read = if number == 0 {
                driver.with_registered_mut(&mut buffer, RegisterFlags::empty(), |mut registered| {
                    file.read_at(&mut registered, offset)
                })??
            } else {
                file.read_at(&mut buffer, offset)?
            };
            all_of(read, LEN, "cuFileRead")?;
            require_contents(path, offset, &buffer.to_vec()?)
        })?;
        for file in files {
            drop(file.deregister());
        }
        driver.close()?;
        println!("{THREADS} threads read what the files hold, {LEN} bytes each");
        Ok(())
    })
}
