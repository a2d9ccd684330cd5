//! Copies a file through device, managed or pinned host memory that is not registered, and compares SHA-256 sums.
//!
//! MODE is 1 for device, 2 for managed and 3 for host memory.
//!
//! usage: sample_015_copy_kinds_of_memory READ_FILE WRITE_FILE GPU MODE

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, compare_sha, create, make_file, open_to_read};
use cufile::{Driver, FileHandle, IoBufMut};

const LEN: usize = MIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU MODE", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, LEN)?;

        let driver = Driver::open()?;
        let from = FileHandle::register(&driver, open_to_read(source)?)?;
        let device = driver.cuda().device(arguments.number(2)?)?;
        let mut buffer: Box<dyn IoBufMut> = match arguments.number(3)? {
            1 => Box::new(device.alloc(LEN)?),
            2 => Box::new(device.alloc_managed(LEN)?),
            3 => Box::new(device.alloc_pinned(LEN)?),
            other => return Err(format!("mode {other}: there are 1, 2 and 3").into()),
        };

        all_of(from.read_at(&mut buffer, 0)?, LEN, "cuFileRead")?;
        drop(from.deregister());

        let to = FileHandle::register(&driver, create(target)?)?;
        all_of(to.write_at(&buffer, 0)?, LEN, "cuFileWrite")?;

        drop(to.deregister());
        drop(buffer);
        driver.close()?;
        compare_sha(source, target, LEN)
    })
}
