//! Reads a file with one batch of N entries of 4 KiB, each through its own handle and into its own registered GPU buffer.
//!
//! usage: sample_020_batch_read FILE GPU N [NONDIRECT]

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{KIB, Result, all_of_batch, contents, open_buffered_to_write, open_to_write, require_same};
use cufile::{Batch, Driver, Entry, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = 4 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU N [NONDIRECT]", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let open = if arguments.optional_flag(3)? { open_buffered_to_write } else { open_to_write };
        let expected = contents(path, count * LEN)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let files: Vec<_> = (0..count)
            .map(|_| Ok(Arc::new(FileHandle::register(&driver, open(path)?)?)))
            .collect::<Result<_>>()?;
        let mut entries = Vec::new();
        for (id, file) in files.iter().enumerate() {
            let buffer = RegisteredBuffer::register(&driver, device.alloc(LEN)?, RegisterFlags::empty())?;
            entries.push(Entry::read(file, buffer, (id * LEN) as u64).id(id as u64));
        }

        let mut batch = Batch::new(&driver, count)?;
        batch.submit(entries)?;
        let completions = batch.wait_all()?;
        let buffers = all_of_batch(completions, count, LEN)?;
        for (buffer, expected) in buffers.iter().zip(expected.chunks(LEN)) {
            require_same(&buffer.get().to_vec()?, expected, "a buffer")?;
        }

        drop(batch);
        for buffer in buffers {
            buffer.deregister()?;
        }
        drop(files);
        driver.close()?;
        println!("read {count} entries of {LEN} bytes");
        Ok(())
    })
}
