//! Reads in ten threads into one allocation. Each thread registers its part, and reads into it through a separate handle.
//!
//! usage: sample_016_register_parts_by_thread FILE

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, in_threads, open_to_write, require_contents, require_len};
use cufile::{Driver, FileHandle, RegisterFlags};

const THREADS: usize = 10;
const PART: usize = 10 * MIB;

fn main() -> ExitCode {
    common::run("FILE", |arguments| {
        let path = arguments.path(0)?;
        require_len(path, THREADS * PART)?;
        let driver = Driver::open()?;
        let mut memory = driver.cuda().device(0)?.alloc(THREADS * PART)?;
        in_threads(memory.slice_mut(..).chunks(PART).enumerate(), |(number, mut part)| {
            let file = FileHandle::register(&driver, open_to_write(path)?)?;
            let read = driver.with_registered_mut(&mut part, RegisterFlags::empty(), |mut part| {
                file.read_at(&mut part, (number * PART) as u64)
            })??;
            all_of(read, PART, "cuFileRead")?;
            drop(file.deregister());
            Ok(())
        })?;
        require_contents(path, 0, &memory.to_vec()?)?;
        drop(memory);
        driver.close()?;
        println!("{THREADS} threads read what the file holds, {PART} bytes each");
        Ok(())
    })
}
