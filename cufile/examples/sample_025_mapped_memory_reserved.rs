//! Registers a reserved range with a mapped first part and reads there. Then it maps the second part and reads there
//! without another registration. Adds two such vectors.
//!
//! usage: sample_025_mapped_memory_reserved FILE_A FILE_B

mod common;

use std::path::Path;
use std::process::ExitCode;

use common::{MIB, Result, add, all_of, open_to_read, pass_if_same, pattern, to_host, write_file};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const PART: usize = 8 * MIB;
const LEN: usize = 2 * PART;

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
            let mut memory = device.reserve(LEN)?;
            memory.grow(PART)?;
            let mut memory = RegisteredBuffer::register_reserved(&driver, memory, RegisterFlags::empty())?;
            all_of(file.read_at(&mut memory.slice_mut(..PART), 0)?, PART, "cuFileRead")?;
            memory.grow(PART)?;
            let read = file.read_at(&mut memory.slice_mut(PART..2 * PART), PART as u64)?;
            all_of(read, PART, "cuFileRead into what was mapped later")?;
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
