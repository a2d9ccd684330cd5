//! Reads a file in pieces into a registered buffer at offsets into it, writes it out at once, and compares SHA-256
//! sums.
//!
//! usage: sample_014_read_at_buffer_offsets READ_FILE WRITE_FILE GPU

mod common;

use std::process::ExitCode;

use common::{KIB, MIB, all_of, compare_sha, create, make_file, open_to_read};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};

const LEN: usize = MIB;
const PIECE: usize = 64 * KIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, LEN)?;

        let driver = Driver::open()?;
        let from = FileHandle::register(&driver, open_to_read(source)?)?;
        let mut buffer = driver.cuda().device(arguments.number(2)?)?.alloc(LEN)?;
        buffer.fill(0)?;
        let mut buffer = RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?;

        for offset in (0..LEN).step_by(PIECE) {
            let read = from.read_at(&mut buffer.slice_mut(offset..offset + PIECE), offset as u64)?;
            all_of(read, PIECE, "cuFileRead")?;
        }
        drop(from.deregister());

        let to = FileHandle::register(&driver, create(target)?)?;
        all_of(to.write_at(&buffer, 0)?, LEN, "cuFileWrite")?;

        drop(to.deregister());
        drop(buffer.deregister()?);
        driver.close()?;
        compare_sha(source, target, LEN)
    })
}
