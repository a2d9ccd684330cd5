//! Reads 1 MiB of a file into a registered buffer, writes what follows the first 128 KiB of the buffer to another file, and
//! compares the bytes.
//!
//! usage: sample_005_copy_through_buffer_middle READ_FILE WRITE_FILE GPU

mod common;

use std::process::ExitCode;

use common::{KIB, MIB, all_of, contents, create, make_file, open_to_read, require_contents};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = MIB;
const BUFFER_OFFSET: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, LEN)?;

        let driver = Driver::open()?;
        let from = FileHandle::register(&driver, open_to_read(source)?)?;
        let mut buffer = driver.cuda().device(arguments.number(2)?)?.alloc(LEN)?;
        buffer.fill(0)?;
        let mut buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;

        all_of(from.read_at(&mut buffer, 0)?, LEN, "cuFileRead")?;
        drop(from.deregister());

        let to = FileHandle::register(&driver, create(target)?)?;
        let written = to.write_at(&buffer.slice(BUFFER_OFFSET..LEN), 0)?;
        all_of(written, LEN - BUFFER_OFFSET, "cuFileWrite")?;

        drop(buffer.deregister()?);
        drop(to.deregister());
        driver.close()?;
        require_contents(target, 0, &contents(source, LEN)?[BUFFER_OFFSET..])?;
        println!("the target has what follows the first {BUFFER_OFFSET} bytes");
        Ok(())
    })
}
