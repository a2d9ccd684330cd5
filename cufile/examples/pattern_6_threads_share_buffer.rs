//! I/O pattern 6 of NVIDIA's best practices: threads that share one registered buffer and one file.
//!
//! usage: pattern_6_threads_share_buffer FILE [GPU [SIZE]]
//!
//! FILE must have SIZE bytes (1GiB by default). Ten threads read 100/1024 of it each into their parts of a buffer of
//! GPU memory, which is then compared with the file. The main thread registers the buffer once. No thread sets a
//! device or context, because each call makes its buffer's context current. In the second line each thread registers
//! its part, as in pattern 1. In the third line one thread makes all the reads, as in pattern 2.

mod common;

use std::process::ExitCode;

use common::measure::{Pattern, READS, Sizes, gpu, timed};
use common::{Result, all_of, in_threads, open_to_read};
use cufile::{BufSliceMut, Driver, FileHandle, RegisterFlags};

fn main() -> ExitCode {
    common::run("FILE [GPU [SIZE]]", |arguments| {
        let driver = Driver::open()?;
        let file = FileHandle::register(&driver, open_to_read(arguments.path(0)?)?)?;
        let sizes = Sizes::from(&arguments, 2)?;
        let read = sizes.read;
        let buffer = driver.cuda().device(gpu(&arguments, 1)?)?.alloc(sizes.buffer)?;
        let mut pattern = Pattern::new(6, &arguments, sizes, buffer)?;
        let fill = |(index, mut part): (usize, BufSliceMut<'_>)| -> Result {
            all_of(file.read_at(&mut part, (index * read) as u64)?, read, "cuFileRead")
            // Here the thread would launch a kernel that uses the part.
        };

        pattern.measure("threads-share-a-registration", 0, 0, |buffer| {
            timed(|| {
                driver.with_registered_mut(buffer, RegisterFlags::empty(), |buffer| {
                    in_threads(buffer.chunks(read).take(READS).enumerate(), fill)
                })?
            })
        })?;

        pattern.measure("each-thread-registers", 0, 0, |buffer| {
            timed(|| {
                in_threads(buffer.slice_mut(..).chunks(read).take(READS).enumerate(), |(index, mut part)| {
                    driver
                        .with_registered_mut(&mut part, RegisterFlags::empty(), |part| fill((index, part)))?
                })
            })
        })?;

        pattern.measure("one-thread", 0, 0, |buffer| {
            timed(|| {
                driver.with_registered_mut(buffer, RegisterFlags::empty(), |buffer| {
                    buffer.chunks(read).take(READS).enumerate().try_for_each(fill)
                })?
            })
        })?;
        println!("contents match");
        Ok(())
    })
}
