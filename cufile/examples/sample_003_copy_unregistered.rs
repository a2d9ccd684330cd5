//! Copies a file through GPU memory that is not registered, and compares SHA-256 sums.
//!
//! usage: sample_003_copy_unregistered READ_FILE WRITE_FILE GPU

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, compare_sha, create, make_file, open_to_read};
use cufile::{Driver, FileHandle};

const LEN: usize = 31 * MIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, LEN)?;

        let driver = Driver::open()?;
        let from = FileHandle::register(&driver, open_to_read(source)?)?;
        let mut buffer = driver.cuda().device(arguments.number(2)?)?.alloc(LEN)?;
        buffer.fill(0)?;

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
