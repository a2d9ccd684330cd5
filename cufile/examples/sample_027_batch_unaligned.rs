//! Writes with one batch of N entries that are unaligned in the file, in the buffer and in length. Every other buffer
//! is registered.
//!
//! usage: sample_027_batch_unaligned FILE GPU N NONDIRECT

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{KIB, all_of_batch, any, create, create_buffered, pattern, require_contents};
use cufile::{Batch, Driver, Entry, FileHandle};

const LEN: usize = 100_001;
const SHIFT: usize = 1003;
// More than LEN + SHIFT, so that no two entries share a page. An unaligned write reads the page, changes it and
// writes it back. Entries of a batch run in any order or at once.
const STRIDE: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU N NONDIRECT", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let create = if arguments.flag(3)? { create_buffered } else { create };
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let file = Arc::new(FileHandle::register(&driver, create(path)?)?);
        let bytes = pattern(count * STRIDE);
        let mut expected = vec![0; bytes.len()];
        let mut entries = Vec::new();
        for id in 0..count {
            let mut buffer = device.alloc(STRIDE)?;
            buffer.copy_from_host(0, &bytes[id * STRIDE..][..STRIDE])?;
            let buffer = any(&driver, buffer, id % 2 == 0)?;
            let offset = id * STRIDE + SHIFT;
            entries.push(Entry::write(&file, buffer, offset as u64).range(SHIFT, LEN).id(id as u64));
            expected[offset..][..LEN].copy_from_slice(&bytes[offset..][..LEN]);
        }

        let mut batch = Batch::new(&driver, count)?;
        batch.submit(entries)?;
        let completions = batch.wait_all()?;
        let buffers = all_of_batch(completions, count, LEN)?;

        drop(batch);
        drop(buffers);
        drop(file);
        driver.close()?;
        expected.truncate((count - 1) * STRIDE + SHIFT + LEN);
        require_contents(path, 0, &expected)?;
        println!("wrote {count} unaligned entries of {LEN} bytes");
        Ok(())
    })
}
