//! Reads 1024 times 1 MiB in each of two threads, all of them into the same memory. Each thread has a file, a handle and a
//! registered buffer.
//!
//! usage: sample_009_two_threads_two_files FILE1 FILE2

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, in_threads, open_to_write, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const READS: usize = 1024;
const PIECE: usize = MIB;
/// The least length of the files.
const LEN: usize = 128 * MIB;

fn main() -> ExitCode {
    common::run("FILE1 FILE2", |arguments| {
        let driver = Driver::open()?;
        let device = driver.cuda().device(0)?;
        in_threads([arguments.path(0)?, arguments.path(1)?], |path| {
            require_len(path, LEN)?;
            let file = FileHandle::register(&driver, open_to_write(path)?)?;
            let buffer = device.alloc(PIECE)?;
            let mut buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;
            let (len_bytes, mut last) = (std::fs::metadata(path)?.len() as usize, 0..0);
            for offset in (0..READS * PIECE).step_by(PIECE) {
                let read = file.read_at(&mut buffer, offset as u64)?;
                // Reads behind the end of the file return no bytes.
                all_of(read, len_bytes.saturating_sub(offset).min(PIECE), "cuFileRead")?;
                if read > 0 {
                    last = offset..offset + read;
                }
            }
            let buffer = buffer.deregister()?;
            drop(file.deregister());
            require_contents(path, last.start as u64, &buffer.to_vec()?[..last.len()])
        })?;
        driver.close()?;
        println!("2 threads read what their files hold, {READS} times up to {PIECE} bytes each");
        Ok(())
    })
}
