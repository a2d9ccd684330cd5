//! Copies a file through GPU memory: NVIDIA's Python samples 003 and 004 (`read`, then `write`).
//!
//! usage: kvikio_copy [--cufile|--posix] INPUT OUTPUT [GPU]
//!
//! The example first fills INPUT with 128 KiB of random bytes. OUTPUT must then have the same bytes. One
//! sample closes the files with a call, and the other at the end of a `with` block. Here, dropping the file
//! does both. The example needs a GPU.

mod common;

use std::process::ExitCode;

use common::{KIB, all_of, make_file, require_file};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] INPUT OUTPUT [GPU]", |arguments| {
        let (input, output) = (arguments.path(0)?, arguments.path(1)?);
        let mut buffer = arguments.device(2)?.alloc(LEN)?;
        let expected = make_file(input, LEN)?;

        let file = arguments.open(input)?;
        println!("route: {}", file.route());
        let read = file.read_at(&mut buffer, 0)?;
        all_of(read, LEN, "read")?;
        drop(file);
        println!("read {read} bytes");

        let file = arguments.create(output)?;
        file.write_all_at(&buffer, 0)?;
        drop(file);
        println!("wrote {LEN} bytes");

        require_file(output, &expected)?;
        println!("contents match");
        Ok(())
    })
}
