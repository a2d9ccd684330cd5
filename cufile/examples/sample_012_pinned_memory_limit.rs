//! Sets the limit of pinned memory. Then two threads, each with a file, register 64 buffers each and read into all of
//! them.
//!
//! usage: sample_012_pinned_memory_limit FILE1 FILE2

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, in_threads, open_to_read, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const BUFFERS: usize = 64;
const LEN: usize = MIB;
/// Room for all buffers.
const MAX_PINNED: u64 = 256 * MIB as u64;

fn main() -> ExitCode {
    common::run("FILE1 FILE2", |arguments| {
        let driver = Driver::builder().max_pinned_memory(MAX_PINNED).open()?;
        let device = driver.cuda().device(0)?;
        in_threads([arguments.path(0)?, arguments.path(1)?], |path| {
            require_len(path, BUFFERS * LEN)?;
            let file = FileHandle::register(&driver, open_to_read(path)?)?;
            let mut buffers = Vec::new();
            for _ in 0..BUFFERS {
                let buffer = device.alloc(LEN)?;
                buffers.push(RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?);
            }
            for (buffer, offset) in buffers.iter_mut().zip((0..).step_by(LEN)) {
                all_of(file.read_at(buffer, offset)?, LEN, "cuFileRead")?;
            }
            for (buffer, offset) in buffers.into_iter().zip((0..).step_by(LEN)) {
                let buffer = buffer.deregister()?;
                require_contents(path, offset, &buffer.to_vec()?)?;
            }
            drop(file.deregister());
            Ok(())
        })?;
        driver.close()?;
        println!("2 threads read what their files hold into {BUFFERS} buffers of {LEN} bytes each");
        Ok(())
    })
}
