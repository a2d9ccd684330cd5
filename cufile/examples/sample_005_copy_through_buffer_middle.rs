//! Copies a file through the middle of a registered buffer, and compares SHA-256 sums.
//!
//! usage: sample_005_copy_through_buffer_middle READ_FILE WRITE_FILE GPU

mod common;

use std::process::ExitCode;

use common::{KIB, MIB, all_of, compare_sha, create, make_file, open_to_read};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = 31 * MIB;
const BUFFER_OFFSET: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, LEN)?;

        let driver = Driver::open()?;
        let from = FileHandle::register(&driver, open_to_read(source)?)?;
        let to = FileHandle::register(&driver, create(target)?)?;
        let mut buffer = driver.cuda().device(arguments.number(2)?)?.alloc(BUFFER_OFFSET + LEN)?;
        buffer.fill(0)?;
        let mut buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;

        all_of(
            from.read_at(&mut buffer.slice_mut(BUFFER_OFFSET..BUFFER_OFFSET + LEN), 0)?,
            LEN,
            "cuFileRead",
        )?;
        all_of(to.write_at(&buffer.slice(BUFFER_OFFSET..BUFFER_OFFSET + LEN), 0)?, LEN, "cuFileWrite")?;

        drop(buffer.deregister()?);
        drop(from.deregister());
        drop(to.deregister());
        driver.close()?;
        compare_sha(source, target, LEN)
    })
}
