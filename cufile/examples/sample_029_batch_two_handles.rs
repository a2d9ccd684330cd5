//! Writes with one batch of N entries of 128 KiB through two handles of a file, one with `O_DIRECT` and one without.
//! Half of the buffers are registered. With NONDIRECT neither handle has `O_DIRECT`.
//!
//! usage: sample_029_batch_two_handles FILE GPU N NONDIRECT

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{KIB, all_of_batch, any, create, create_buffered, pattern, require_contents};
use cufile::{Batch, Driver, Entry, FileHandle};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU N NONDIRECT", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let create = if arguments.flag(3)? { create_buffered } else { create };
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let files = [
            Arc::new(FileHandle::register(&driver, create(path)?)?),
            Arc::new(FileHandle::register(&driver, create_buffered(path)?)?),
        ];
        let bytes = pattern(count * LEN);
        let mut entries = Vec::new();
        for (id, bytes) in bytes.chunks(LEN).enumerate() {
            let mut buffer = device.alloc(LEN)?;
            buffer.copy_from_host(0, bytes)?;
            // Four entries in a row are the four combinations.
            let buffer = any(&driver, buffer, id / 2 % 2 == 0)?;
            entries.push(Entry::write(&files[id % 2], buffer, (id * LEN) as u64).id(id as u64));
        }

        let mut batch = Batch::new(&driver, count)?;
        batch.submit(entries)?;
        let completions = batch.wait_all()?;
        let buffers = all_of_batch(completions, count, LEN)?;

        drop(batch);
        drop(buffers);
        drop(files);
        driver.close()?;
        require_contents(path, 0, &bytes)?;
        println!("wrote {count} entries of {LEN} bytes through two handles");
        Ok(())
    })
}
