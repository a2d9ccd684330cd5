//! Writes 128 KiB from a registered GPU buffer to a file that is opened without `O_DIRECT`.
//!
//! usage: sample_028_write_without_o_direct FILE GPU

mod common;

use std::process::ExitCode;

use common::{KIB, all_of, create_buffered, require_contents};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU", |arguments| {
        let path = arguments.path(0)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let file = FileHandle::register(&driver, create_buffered(path)?)?;
        let mut buffer = device.alloc(LEN)?;
        buffer.fill(0xab)?;
        let buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;

        let written = file.write_at(&buffer, 0)?;
        all_of(written, LEN, "cuFileWrite")?;

        buffer.deregister()?;
        drop(file.deregister());
        driver.close()?;
        require_contents(path, 0, &[0xab; LEN])?;
        println!("wrote {written} bytes without O_DIRECT");
        Ok(())
    })
}
