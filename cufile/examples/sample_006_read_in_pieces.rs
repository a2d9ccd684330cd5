//! Reads a file in pieces into consecutive places of a buffer that is not registered, writes it out at once, and
//! compares SHA-256 sums.
//!
//! usage: sample_006_read_in_pieces READ_FILE WRITE_FILE GPU

mod common;

use std::process::ExitCode;

use common::{KIB, MIB, all_of, compare_sha, create, make_file, open_to_read};
use cufile::{Driver, FileHandle};

const LEN: usize = 16 * MIB;
const PIECE: usize = 64 * KIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, LEN)?;

        let driver = Driver::open()?;
        let from = FileHandle::register(&driver, open_to_read(source)?)?;
        let mut buffer = driver.cuda().device(arguments.number(2)?)?.alloc(LEN)?;
        buffer.fill(0)?;

        for (number, mut piece) in buffer.slice_mut(..).chunks(PIECE).enumerate() {
            all_of(from.read_at(&mut piece, (number * PIECE) as u64)?, PIECE, "cuFileRead")?;
        }
        let to = FileHandle::register(&driver, create(target)?)?;
        all_of(to.write_at(&buffer, 0)?, LEN, "cuFileWrite")?;

        drop(to.deregister());
        drop(from.deregister());
        drop(buffer);
        driver.close()?;
        compare_sha(source, target, LEN)
    })
}
