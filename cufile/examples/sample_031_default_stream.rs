//! Copies a file through GPU memory with a read and a write in the default stream.
//!
//! usage: sample_031_default_stream READ_FILE WRITE_FILE GPU

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{MIB, all_of, compare_sha, create, make_file, open_to_read};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer, RegisteredStream, StreamFlags};

const LEN: usize = MIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, LEN)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(2)?)?;
        let mut buffer = device.alloc(LEN)?;
        buffer.fill(0)?;
        let buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;
        let from = Arc::new(FileHandle::register(&driver, open_to_read(source)?)?);
        let to = Arc::new(FileHandle::register(&driver, create(target)?)?);
        let stream = RegisteredStream::register(&driver, device.default_stream(), StreamFlags::empty())?;

        let (read, buffer) = stream.read_at(&from, buffer, 0)?.wait()?;
        all_of(read, LEN, "cuFileReadAsync")?;
        let (written, buffer) = stream.write_at(&to, buffer, 0)?.wait()?;
        all_of(written, LEN, "cuFileWriteAsync")?;

        buffer.deregister()?;
        drop(from);
        drop(to);
        stream.deregister()?;
        driver.close()?;
        compare_sha(source, target, LEN)
    })
}
