//! Reads in two threads that share a handle, each into a registered buffer on another GPU.
//!
//! usage: sample_010_two_gpus_share_handle FILE GPU1 GPU2

mod common;

use std::process::ExitCode;

use common::{KIB, all_of, in_threads, open_to_read, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const READS: usize = 1024;
const PIECE: usize = 64 * KIB;
const LEN: usize = READS * PIECE;

fn main() -> ExitCode {
    common::run("FILE GPU1 GPU2", |arguments| {
        let path = arguments.path(0)?;
        require_len(path, LEN)?;
        let driver = Driver::open()?;
        let file = FileHandle::register(&driver, open_to_read(path)?)?;
        let gpus = [arguments.number(1)?, arguments.number(2)?];
        let devices = [driver.cuda().device(gpus[0])?, driver.cuda().device(gpus[1])?];
        in_threads(devices, |device| {
            let buffer = device.alloc(LEN)?;
            let mut buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;
            for offset in (0..LEN).step_by(PIECE) {
                let read = file.read_at(&mut buffer.slice_mut(offset..offset + PIECE), offset as u64)?;
                all_of(read, PIECE, "cuFileRead")?;
            }
            let buffer = buffer.deregister()?;
            require_contents(path, 0, &buffer.to_vec()?)
        })?;
        drop(file.deregister());
        driver.close()?;
        println!("GPUs {gpus:?} read what the file holds, {READS} times {PIECE} bytes each");
        Ok(())
    })
}
