//! Reads two vectors of one file into registered memory made with `cuMemCreate` and `cuMemMap`, adds them, and finds one
//! of the sums.
//!
//! usage: sample_024_mapped_memory_one_file FILE

mod common;

use std::process::ExitCode;

use common::{MIB, add, all_of, find, open_to_read, pass_if_same, pattern, to_host, write_file};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = 8 * MIB;

fn main() -> ExitCode {
    common::run("FILE", |arguments| {
        let path = arguments.path(0)?;
        let bytes = pattern(2 * LEN);
        write_file(path, &bytes)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(0)?;
        let file = FileHandle::register(&driver, open_to_read(path)?)?;
        let mut vectors = Vec::new();
        for offset in [0, LEN] {
            let memory = device.alloc_mapped(LEN)?;
            let mut memory = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
            all_of(file.read_at(&mut memory.slice_mut(..LEN), offset as u64)?, LEN, "cuFileRead")?;
            vectors.push(memory);
        }

        let mut sums = device.alloc_mapped(LEN)?;
        sums.copy_from_host(0, &add(&to_host(vectors[0].get(), LEN)?, &to_host(vectors[1].get(), LEN)?))?;
        let found = to_host(&sums, LEN)?;

        for memory in vectors {
            memory.deregister()?;
        }
        drop(file.deregister());
        driver.close()?;
        let expected = add(&bytes[..LEN], &bytes[LEN..]);
        let number = &expected[LEN / 2..][..8];
        if find(&found, number) != find(&expected, number) {
            return Err("the number is not found where it should be".into());
        }
        pass_if_same(&found, &expected)
    })
}
