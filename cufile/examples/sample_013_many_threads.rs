//! Sets the limits of pinned memory and of bounce buffers. Then 64 threads, each with its own handle of one of two files, read
//! READS times 1 MiB into each of their 64 buffers, from the start of the file to behind its end. Only the first thread
//! registers its buffers, the others read through bounce buffers.
//!
//! Differs from C: READS is an argument, 1024 without it. C always reads 1024 times: four million reads in all.
//!
//! usage: sample_013_many_threads FILE1 FILE2 [READS]

mod common;

use std::process::ExitCode;

use common::{KIB, MIB, all_of, in_threads, open_to_write, require_len};
use cufile::{Driver, FileHandle, IoBufMut, RegisterFlags, RegisteredBuffer};

const THREADS: usize = 64;
const BUFFERS: usize = 64;
const LEN: usize = MIB;
const MAX_PINNED: u64 = 128 * MIB as u64;
const MAX_CACHE: u64 = 64 * MIB as u64;

fn main() -> ExitCode {
    common::run("FILE1 FILE2 [READS]", |arguments| {
        let paths = [arguments.path(1)?, arguments.path(0)?];
        let reads = arguments.optional(2).map_or(Ok(1024), |_| arguments.number(2))?;
        let driver = Driver::builder().max_pinned_memory(MAX_PINNED).max_cache_size(MAX_CACHE).open()?;
        let device = driver.cuda().device(0)?;
        in_threads(0..THREADS, |number| {
            let path = paths[number % 2];
            let len_bytes = require_len(path, 4 * KIB)?;
            let file = FileHandle::register(&driver, open_to_write(path)?)?;
            let read_all = |buffer: &mut dyn IoBufMut| {
                (0..reads).map(|read| read * LEN).try_for_each(|offset| {
                    let read = file.read_at(buffer, offset as u64)?;
                    all_of(read, LEN.min(len_bytes.saturating_sub(offset)), "cuFileRead")
                })
            };
            let mut buffers = Vec::new();
            for _ in 0..BUFFERS {
                buffers.push(device.alloc(LEN)?);
            }
            if number == 0 {
                let register = |buffer| RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty());
                let mut buffers = buffers.into_iter().map(register).collect::<Result<Vec<_>, _>>()?;
                buffers.iter_mut().try_for_each(|buffer| read_all(buffer))?;
                for buffer in buffers {
                    buffer.deregister()?;
                }
            } else {
                buffers.iter_mut().try_for_each(|buffer| read_all(buffer))?;
            }
            drop(file.deregister());
            Ok(())
        })?;
        driver.close()?;
        println!("{THREADS} threads read {reads} times into each of {BUFFERS} buffers of {LEN} bytes");
        Ok(())
    })
}
