//! Grows two buffers in place, in steps of 32 MiB. For each step, it registers the mapped memory again and reads into
//! the new part. Adds the two vectors.
//!
//! usage: sample_026_mapped_memory_grown FILE_A FILE_B

mod common;

use std::path::Path;
use std::process::ExitCode;

use common::{MIB, Result, add, all_of, open_to_read, pass_if_same, pattern, to_host, write_file};
use cufile::{Driver, FileHandle, RegisterFlags};

const STEP: usize = 32 * MIB;
const LEN: usize = 2 * STEP;

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
            for start in (0..LEN).step_by(STEP) {
                memory.grow(STEP)?;
                let read =
                    driver.with_registered_mut(&mut memory, RegisterFlags::empty(), |mut mapped| {
                        file.read_at(&mut mapped.slice_mut(start..start + STEP), start as u64)
                    })??;
                all_of(read, STEP, "cuFileRead")?;
            }
            drop(file.deregister());
            Ok(memory)
        };

        let (memory_a, memory_b) = (load(path_a, a)?, load(path_b, b)?);
        let mut sums = device.alloc_mapped(LEN)?;
        sums.copy_from_host(0, &add(&to_host(&memory_a, LEN)?, &to_host(&memory_b, LEN)?))?;
        let found = to_host(&sums, LEN)?;

        drop((memory_a, memory_b));
        driver.close()?;
        pass_if_same(&found, &add(a, b))
    })
}
