//! Reads 1024 times 1 MiB in each of two threads that share a handle, each into one registered buffer on another GPU.
//!
//! usage: sample_010_two_gpus_share_handle FILE GPU1 GPU2

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, in_threads, open_to_write, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const READS: usize = 1024;
const PIECE: usize = MIB;
/// The least length of the files.
const LEN: usize = 128 * MIB;

fn main() -> ExitCode {
    common::run("FILE GPU1 GPU2", |arguments| {
        let path = arguments.path(0)?;
        require_len(path, LEN)?;
        let driver = Driver::open()?;
        let file = FileHandle::register(&driver, open_to_write(path)?)?;
        let gpus = [arguments.number(1)?, arguments.number(2)?];
        let devices = [driver.cuda().device(gpus[0])?, driver.cuda().device(gpus[1])?];
        in_threads(devices, |device| {
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
            require_contents(path, last.start as u64, &buffer.to_vec()?[..last.len()])
        })?;
        drop(file.deregister());
        driver.close()?;
        println!("GPUs {gpus:?} read what the file holds, {READS} times up to {PIECE} bytes each");
        Ok(())
    })
}
