//! Cancels a batch of N reads of 4 KiB, each through its own handle, and takes every buffer back.
//!
//! Differs from C: C asks for the status of the cancelled entries. libcufile reports nothing about a cancelled batch, so `cancel`
//! asks before.
//!
//! usage: sample_021_batch_cancel FILE GPU N

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{KIB, Result, all_of, contents, open_to_write, require_same};
use cufile::{Batch, Completion, Driver, Entry, FileHandle, RegisterFlags, RegisteredBuffer, Status};

const LEN: usize = 4 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU N", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let expected = contents(path, count * LEN)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let files: Vec<_> = (0..count)
            .map(|_| Ok(Arc::new(FileHandle::register(&driver, open_to_write(path)?)?)))
            .collect::<Result<_>>()?;
        let mut entries = Vec::new();
        for (id, file) in files.iter().enumerate() {
            let buffer = RegisteredBuffer::register(&driver, device.alloc(LEN)?, RegisterFlags::empty())?;
            entries.push(Entry::read(file, buffer, (id * LEN) as u64).id(id as u64));
        }

        let mut batch = Batch::new(&driver, count)?;
        batch.submit(entries)?;
        // Destroys the batch, too, and returns the status of each entry with its buffer.
        let mut cancelled = 0;
        let mut completions = batch.cancel()?;
        completions.sort_by_key(|completion| completion.id);
        for Completion { id, status, result, buffer } in completions {
            let buffer = buffer.ok_or("cancelling gives every buffer back")?;
            if status == Status::CANCELED {
                cancelled += 1;
            } else {
                let id = id as usize;
                all_of(result?, LEN, &format!("entry {id}, over before the cancelling"))?;
                require_same(&buffer.get().to_vec()?, &expected[id * LEN..][..LEN], "a buffer")?;
            }
            buffer.deregister()?;
        }
        drop(files);
        driver.close()?;
        println!("cancelled {cancelled} of {count} entries");
        Ok(())
    })
}
