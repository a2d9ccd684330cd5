//! Writes a file with one batch of N entries of 3000 bytes, each through its own handle and from its own registered GPU buffer.
//!
//! Neighbouring entries share blocks of 4 KiB, as in the C program. The direct path of libcufile rewrites whole blocks, so give
//! entries of your own whole blocks.
//!
//! usage: sample_019_batch_write FILE GPU N [NONDIRECT]

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{
    Result, all_of_batch, create, open_buffered_to_write, open_to_write, pattern, require_contents,
};
use cufile::{Batch, Driver, Entry, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = 3000;

fn main() -> ExitCode {
    common::run("FILE GPU N [NONDIRECT]", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let buffered = arguments.optional_flag(3)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        create(path)?;
        let open = || if buffered { open_buffered_to_write(path) } else { open_to_write(path) };
        let files: Vec<_> = (0..count)
            .map(|_| Ok(Arc::new(FileHandle::register(&driver, open()?)?)))
            .collect::<Result<_>>()?;
        let bytes = pattern(count * LEN);
        let mut entries = Vec::new();
        for (id, bytes) in bytes.chunks(LEN).enumerate() {
            let mut buffer = device.alloc(LEN)?;
            buffer.copy_from_host(0, bytes)?;
            let buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;
            entries.push(Entry::write(&files[id], buffer, (id * LEN) as u64).id(id as u64));
        }

        let mut batch = Batch::new(&driver, count)?;
        batch.submit(entries)?;
        let completions = batch.wait_all()?;
        let buffers = all_of_batch(completions, count, LEN)?;

        drop(batch);
        for buffer in buffers {
            buffer.deregister()?;
        }
        drop(files);
        driver.close()?;
        require_contents(path, 0, &bytes)?;
        println!("wrote {count} entries of {LEN} bytes");
        Ok(())
    })
}
