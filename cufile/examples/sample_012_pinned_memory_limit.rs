//! Sets the limit of pinned memory. Then two threads, each with a file, register 64 buffers each and read 1024 times 1 MiB
//! into each of them, from the start of the file to behind its end.
//!
//! usage: sample_012_pinned_memory_limit FILE1 FILE2

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, in_threads, open_to_write, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const BUFFERS: usize = 64;
const READS: usize = 1024;
const LEN: usize = MIB;
/// Room for all buffers.
const MAX_PINNED: u64 = 128 * MIB as u64;

fn main() -> ExitCode {
    common::run("FILE1 FILE2", |arguments| {
        let paths = [arguments.path(0)?, arguments.path(1)?];
        let driver = Driver::builder().max_pinned_memory(MAX_PINNED).open()?;
        let device = driver.cuda().device(0)?;
        in_threads(paths, |path| {
            let len_bytes = require_len(path, LEN)?;
            let file = FileHandle::register(&driver, open_to_write(path)?)?;
            let mut buffers = Vec::new();
            for _ in 0..BUFFERS {
                let buffer = device.alloc(LEN)?;
                buffers.push(RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?);
            }
            for buffer in &mut buffers {
                for offset in (0..READS * LEN).step_by(LEN) {
                    let read = file.read_at(buffer, offset as u64)?;
                    all_of(read, LEN.min(len_bytes.saturating_sub(offset)), "cuFileRead")?;
                    if offset == 0 {
                        require_contents(path, 0, &buffer.get().to_vec()?)?;
                    }
                }
            }
            for buffer in buffers {
                buffer.deregister()?;
            }
            drop(file.deregister());
            Ok(())
        })?;
        driver.close()?;
        println!("2 threads read {READS} times into each of {BUFFERS} buffers of {LEN} bytes");
        Ok(())
    })
}
