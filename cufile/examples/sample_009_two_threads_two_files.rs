//! Reads 1024 times in each of two threads. Each thread has a file, a handle and a registered buffer.
//!
//! usage: sample_009_two_threads_two_files FILE1 FILE2

mod common;

use std::process::ExitCode;

use common::{KIB, all_of, in_threads, open_to_read, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const READS: usize = 1024;
const PIECE: usize = 64 * KIB;
const LEN: usize = READS * PIECE;

fn main() -> ExitCode {
    common::run("FILE1 FILE2", |arguments| {
        let driver = Driver::open()?;
        let device = driver.cuda().device(0)?;
        in_threads([arguments.path(0)?, arguments.path(1)?], |path| {
            require_len(path, LEN)?;
            let file = FileHandle::register(&driver, open_to_read(path)?)?;
            let buffer = device.alloc(LEN)?;
            let mut buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;
            for offset in (0..LEN).step_by(PIECE) {
                let read = file.read_at(&mut buffer.slice_mut(offset..offset + PIECE), offset as u64)?;
                all_of(read, PIECE, "cuFileRead")?;
            }
            let buffer = buffer.deregister()?;
            drop(file.deregister());
            require_contents(path, 0, &buffer.to_vec()?)
        })?;
        driver.close()?;
        println!("2 threads read what their files hold, {READS} times {PIECE} bytes each");
        Ok(())
    })
}
