//! Writes 1 MiB from a GPU buffer that is not registered.
//!
//! In C the first call that needs the driver opens it. Here a handle refers to an open driver.
//!
//! usage: sample_002_write_unregistered FILE GPU

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, create, require_contents};
use cufile::{Driver, FileHandle};

const LEN: usize = MIB;
const FILL: u8 = 0xcd;

fn main() -> ExitCode {
    common::run("FILE GPU", |arguments| {
        let driver = Driver::open()?;
        let path = arguments.path(0)?;
        let file = FileHandle::register(&driver, create(path)?)?;
        let mut buffer = driver.cuda().device(arguments.number(1)?)?.alloc(LEN)?;
        buffer.fill(FILL)?;

        let written = file.write_at(&buffer, 0)?;
        all_of(written, LEN, "cuFileWrite")?;
        let device = driver.cuda().device_of(&buffer)?;

        drop(buffer);
        drop(file.deregister());
        require_contents(path, 0, &[FILL; LEN])?;
        println!("wrote {written} bytes from GPU {}", device.ordinal());
        Ok(())
    })
}
