//! Writes with one batch of N unaligned entries of 6 KiB, each through its own handle. Every other buffer is registered.
//! With NONDIRECT every other handle has no `O_DIRECT`.
//!
//! Neighbouring entries share blocks of 4 KiB, as in the C program. The direct path of libcufile rewrites whole blocks, so give
//! entries of your own whole blocks.
//!
//! usage: sample_027_batch_unaligned FILE GPU N NONDIRECT

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{
    KIB, Result, all_of_batch, any, create, open_buffered_to_write, open_to_write, pattern, require_contents,
};
use cufile::{Batch, Driver, Entry, FileHandle};

const LEN: usize = 6 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU N NONDIRECT", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let nondirect = arguments.flag(3)?;
        create(path)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let files: Vec<_> = (0..count)
            .map(|id| {
                let file =
                    if nondirect && id % 2 == 1 { open_buffered_to_write(path) } else { open_to_write(path) };
                Ok(Arc::new(FileHandle::register(&driver, file?)?))
            })
            .collect::<Result<_>>()?;
        let bytes = pattern(count * LEN);
        let mut entries = Vec::new();
        for (id, bytes) in bytes.chunks(LEN).enumerate() {
            let mut buffer = device.alloc(LEN)?;
            buffer.copy_from_host(0, bytes)?;
            let buffer = any(&driver, buffer, id % 2 == 0)?;
            entries.push(Entry::write(&files[id], buffer, (id * LEN) as u64).id(id as u64));
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
        println!("wrote {count} unaligned entries of {LEN} bytes");
        Ok(())
    })
}
