//! Reads two vectors into registered memory made with `cuMemCreate` and `cuMemMap`, and adds them.
//!
//! usage: sample_023_mapped_memory FILE_A FILE_B

mod common;

use std::path::Path;
use std::process::ExitCode;

use common::{MIB, Result, add, all_of, open_to_read, pass_if_same, pattern, to_host, write_file};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = 8 * MIB;

fn main() -> ExitCode {
    common::run("FILE_A FILE_B", |arguments| {
        let (path_a, path_b) = (arguments.path(0)?, arguments.path(1)?);
        let bytes = pattern(2 * LEN);
        let (a, b) = bytes.split_at(LEN);
        let driver = Driver::open()?;
        let device = driver.cuda().device(0)?;
        let load = |path: &Path, bytes| -> Result<_> {
            write_file(path, bytes)?;
            let file = FileHandle::register(&driver, open_to_read(path)?)?;
            let memory = device.alloc_mapped(LEN)?;
            let mut memory = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
            all_of(file.read_at(&mut memory.slice_mut(..LEN), 0)?, LEN, "cuFileRead")?;
            Ok((file, memory))
        };

        let (file_a, memory_a) = load(path_a, a)?;
        let (file_b, memory_b) = load(path_b, b)?;
        let mut sums = device.alloc_mapped(LEN)?;
        sums.copy_from_host(0, &add(&to_host(memory_a.get(), LEN)?, &to_host(memory_b.get(), LEN)?))?;
        let found = to_host(&sums, LEN)?;

        for (file, memory) in [(file_a, memory_a), (file_b, memory_b)] {
            memory.deregister()?;
            drop(file.deregister());
        }
        driver.close()?;
        pass_if_same(&found, &add(a, b))
    })
}
