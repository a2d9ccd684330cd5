//! Writes 128 KiB from a registered GPU buffer to a file.
//!
//! usage: sample_001_write_registered FILE GPU

mod common;

use std::process::ExitCode;

use common::{KIB, all_of, create, require_contents};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = 128 * KIB;
const FILL: u8 = 0xab;

fn main() -> ExitCode {
    common::run("FILE GPU", |arguments| {
        let driver = Driver::open()?;
        let path = arguments.path(0)?;
        let file = FileHandle::register(&driver, create(path)?)?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let mut buffer = device.alloc(LEN)?;
        buffer.fill(FILL)?;
        let buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;

        let written = file.write_at(&buffer, 0)?;
        all_of(written, LEN, "cuFileWrite")?;

        // In the order of the C calls; dropping would do the same, without an error.
        let buffer = buffer.deregister()?;
        drop(buffer);
        drop(file.deregister());
        driver.close()?;
        require_contents(path, 0, &[FILL; LEN])?;
        println!("wrote {written} bytes");
        Ok(())
    })
}
