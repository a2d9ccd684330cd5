//! Cancels a batch of N reads of 128 KiB, takes every buffer back, and reads into the same buffers with a new batch.
//!
//! usage: sample_021_batch_cancel FILE GPU N

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{KIB, all_of, all_of_batch, contents, open_to_read, require_same};
use cufile::{Batch, Completion, Driver, Entry, FileHandle, RegisterFlags, RegisteredBuffer, Status};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU N", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let expected = contents(path, count * LEN)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let file = Arc::new(FileHandle::register(&driver, open_to_read(path)?)?);
        let read = |id: u64, buffer| Entry::read(&file, buffer, id * LEN as u64).id(id);
        let mut entries = Vec::new();
        for id in 0..count {
            let mut buffer = device.alloc(LEN)?;
            buffer.fill(0)?;
            let buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;
            entries.push(read(id as u64, buffer));
        }

        let mut batch = Batch::new(&driver, count)?;
        batch.submit(entries)?;
        let mut entries = Vec::new();
        // Destroys the batch, too: libcufile makes no reports for a cancelled batch, so it cannot be used
        // again.
        let mut cancelled = 0;
        for Completion { id, status, result, buffer } in batch.cancel()? {
            match status {
                Status::CANCELED => cancelled += 1,
                _ => all_of(result?, LEN, &format!("entry {id}, over before the cancelling"))?,
            }
            entries.push(read(id, buffer.ok_or("cancelling gives every buffer back")?));
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
        drop(file);
        driver.close()?;
        println!("cancelled {cancelled} of {count} entries, then read all of them");
        Ok(())
    })
}
