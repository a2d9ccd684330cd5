//! Writes a file with one batch of N entries of 128 KiB, each from its own registered GPU buffer.
//!
//! usage: sample_019_batch_write FILE GPU N [NONDIRECT]

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{KIB, all_of_batch, create, create_buffered, pattern, require_contents};
use cufile::{Batch, Driver, Entry, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU N [NONDIRECT]", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let create = if arguments.optional_flag(3)? { create_buffered } else { create };
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let file = Arc::new(FileHandle::register(&driver, create(path)?)?);
        let bytes = pattern(count * LEN);
        let mut entries = Vec::new();
        for (id, bytes) in bytes.chunks(LEN).enumerate() {
            let mut buffer = device.alloc(LEN)?;
            buffer.copy_from_host(0, bytes)?;
            let buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;
            entries.push(Entry::write(&file, buffer, (id * LEN) as u64).id(id as u64));
        }

        let mut batch = Batch::new(&driver, count)?;
        batch.submit(entries)?;
        let completions = batch.wait_all()?;
        let buffers = all_of_batch(completions, count, LEN)?;

        drop(batch);
        for buffer in buffers {
            buffer.deregister()?;
        }
        drop(file);
        driver.close()?;
        require_contents(path, 0, &bytes)?;
        println!("wrote {count} entries of {LEN} bytes");
        Ok(())
    })
}
