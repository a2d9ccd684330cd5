//! Submits 128 reads of 4 KiB in one batch, each through its own handle, and reaps their completions 16 at a time.
//!
//! usage: sample_022_batch_reap_in_rounds FILE GPU [NONDIRECT]

mod common;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use common::{KIB, Result, all_of_batch, contents, open_buffered_to_write, open_to_write, require_same};
use cufile::{Batch, Driver, Entry, FileHandle, RegisterFlags, RegisteredBuffer};

const COUNT: usize = 128;
const AT_A_TIME: usize = 16;
const LEN: usize = 4 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU [NONDIRECT]", |arguments| {
        let path = arguments.path(0)?;
        let open = if arguments.optional_flag(2)? { open_buffered_to_write } else { open_to_write };
        let expected = contents(path, COUNT * LEN)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let files: Vec<_> = (0..COUNT)
            .map(|_| Ok(Arc::new(FileHandle::register(&driver, open(path)?)?)))
            .collect::<Result<_>>()?;
        let mut entries = Vec::new();
        for (id, file) in files.iter().enumerate() {
            let buffer = RegisteredBuffer::register(&driver, device.alloc(LEN)?, RegisterFlags::empty())?;
            entries.push(Entry::read(file, buffer, (id * LEN) as u64).id(id as u64));
        }

        let mut batch = Batch::new(&driver, COUNT)?;
        batch.submit(entries)?;
        let (mut completions, mut rounds) = (Vec::new(), 0);
        while batch.in_flight() > 0 {
            // As in C, without a wait for any of them.
            batch.poll_into(0, AT_A_TIME, None, &mut completions)?;
            rounds += 1;
            thread::yield_now();
        }
        let buffers = all_of_batch(completions, COUNT, LEN)?;
        for (buffer, expected) in buffers.iter().zip(expected.chunks(LEN)) {
            require_same(&buffer.get().to_vec()?, expected, "a buffer")?;
        }

        drop(batch);
        for buffer in buffers {
            buffer.deregister()?;
        }
        drop(files);
        driver.close()?;
        println!("read {COUNT} entries of {LEN} bytes, reaped in {rounds} rounds");
        Ok(())
    })
}
