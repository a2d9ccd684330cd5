//! Reads 100 times in each of ten threads that share a registration and a handle, each at other offsets of buffer and file.
//!
//! usage: sample_017_share_registration FILE

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, in_threads, open_to_write, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const THREADS: usize = 10;
const PART: usize = 10 * MIB;
const READS: usize = 100;

fn main() -> ExitCode {
    common::run("FILE", |arguments| {
        let path = arguments.path(0)?;
        require_len(path, THREADS * PART)?;
        let driver = Driver::open()?;
        let file = FileHandle::register(&driver, open_to_write(path)?)?;
        let memory = driver.cuda().device(0)?.alloc(THREADS * PART)?;
        let mut buffer = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
        in_threads(buffer.slice_mut(..).chunks(PART).enumerate(), |(number, mut part)| {
            for _ in 0..READS {
                all_of(file.read_at(&mut part, (number * PART) as u64)?, PART, "cuFileRead")?;
            }
            Ok(())
        })?;
        let memory = buffer.deregister()?;
        drop(file.deregister());
        require_contents(path, 0, &memory.to_vec()?)?;
        drop(memory);
        driver.close()?;
        println!("{THREADS} threads read what the file holds, {READS} times {PART} bytes each");
        Ok(())
    })
}
