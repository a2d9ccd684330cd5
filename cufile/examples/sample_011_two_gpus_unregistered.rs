//! Reads in two threads that share a handle, each into 1 GiB of unregistered memory on another GPU.
//!
//! usage: sample_011_two_gpus_unregistered FILE GPU1 GPU2

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, in_threads, open_to_write, require_contents, require_len};
use cufile::{Driver, FileHandle};

const READS: usize = 10;
const PIECE: usize = 100 * MIB;

fn main() -> ExitCode {
    common::run("FILE GPU1 GPU2", |arguments| {
        let path = arguments.path(0)?;
        require_len(path, READS * PIECE)?;
        let driver = Driver::open()?;
        let file = FileHandle::register(&driver, open_to_write(path)?)?;
        let gpus = [arguments.number(1)?, arguments.number(2)?];
        let devices = [driver.cuda().device(gpus[0])?, driver.cuda().device(gpus[1])?];
        in_threads(devices, |device| {
            let mut buffer = device.alloc(1024 * MIB)?;
            let mut bytes = vec![0; PIECE];
            for offset in (0..READS * PIECE).step_by(PIECE) {
                let read = file.read_at(&mut buffer.slice_mut(offset..offset + PIECE), offset as u64)?;
                all_of(read, PIECE, "cuFileRead")?;
                buffer.copy_to_host(offset, &mut bytes)?;
                require_contents(path, offset as u64, &bytes)?;
            }
            Ok(())
        })?;
        drop(file.deregister());
        driver.close()?;
        println!("GPUs {gpus:?} read what the file holds, {READS} times {PIECE} bytes each");
        Ok(())
    })
}
