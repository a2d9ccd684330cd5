//! Writes a vector in memory made with `cuMemCreate` and `cuMemMap` to a file, reads it back, and finds a number in it. Each
//! transfer has its own handle and registration.
//!
//! usage: sample_024_mapped_memory_one_file FILE

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, create, find, open_to_write, pattern};
use cufile::{BufSlice, BufSliceMut, Driver, FileHandle, RegisterFlags};

const LEN: usize = 192 * MIB;

fn main() -> ExitCode {
    common::run("FILE", |arguments| {
        let path = arguments.path(0)?;
        let bytes = pattern(LEN);
        let driver = Driver::open()?;
        let device = driver.cuda().device(0)?;
        let mut memory = device.alloc_mapped(LEN)?;
        memory.copy_from_host(0, &bytes)?;

        let to = FileHandle::register(&driver, create(path)?)?;
        let write = |part: BufSlice<'_>| to.write_at(&part, 0);
        let written = driver.with_registered(&memory, RegisterFlags::empty(), write)??;
        all_of(written, LEN, "cuFileWrite")?;
        memory.fill(0)?;
        let from = FileHandle::register(&driver, open_to_write(path)?)?;
        let read = |mut part: BufSliceMut<'_>| from.read_at(&mut part, 0);
        let read = driver.with_registered_mut(&mut memory, RegisterFlags::empty(), read)??;
        all_of(read, LEN, "cuFileRead")?;

        // In place of a kernel.
        let (found, number) = (memory.to_vec()?, &bytes[LEN / 2..][..8]);
        let place = find(&found, number).ok_or("the number is not in the vector")?;
        if Some(place) != find(&bytes, number) {
            return Err(format!("the number is found at {place}, not where it should be").into());
        }
        drop((to, from, memory));
        driver.close()?;
        println!("found at {place}");
        Ok(())
    })
}
