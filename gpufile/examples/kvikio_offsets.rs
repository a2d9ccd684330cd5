//! Transfers parts of files and buffers: NVIDIA's Python samples 005, 007 and 008 (`dev_offset`, `file_offset`).
//!
//! usage: kvikio_offsets [--cufile|--posix] INPUT OUTPUT [GPU]
//!
//! The example first fills INPUT with 128 KiB of random bytes. The example creates OUTPUT three times, each
//! time with another part of INPUT, and compares. KvikIO takes an offset into the buffer as a separate
//! argument. Here a part of a buffer is itself a buffer. The example needs a GPU.

mod common;

use std::process::ExitCode;

use common::{KIB, all_of, make_file, require_file};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] INPUT OUTPUT [GPU]", |arguments| {
        let (input, output) = (arguments.path(0)?, arguments.path(1)?);
        let device = arguments.device(2)?;
        let contents = make_file(input, LEN)?;
        let file = arguments.open(input)?;
        println!("route: {}", file.route());

        // 005: the whole file into the buffer, the buffer's second half to the other file.
        let mut buffer = device.alloc(LEN)?;
        all_of(file.read_at(&mut buffer, 0)?, LEN, "read")?;
        arguments.create(output)?.write_all_at(&buffer.slice(64 * KIB..), 0)?;
        require_file(output, &contents[64 * KIB..])?;
        println!("wrote from a device offset");

        // 007: the file's second half into a buffer of that size.
        let mut buffer = device.alloc(64 * KIB)?;
        all_of(file.read_at(&mut buffer, 64 * KIB as u64)?, 64 * KIB, "read")?;
        arguments.create(output)?.write_all_at(&buffer, 0)?;
        require_file(output, &contents[64 * KIB..])?;
        println!("read from a file offset");

        // 008: the whole file to 16 KiB in a longer buffer, which is written from 32 KiB on.
        let mut buffer = device.alloc(LEN + 16 * KIB)?;
        all_of(file.read_at(&mut buffer.slice_mut(16 * KIB..), 0)?, LEN, "read")?;
        arguments.create(output)?.write_all_at(&buffer.slice(32 * KIB..), 0)?;
        require_file(output, &contents[16 * KIB..])?;
        println!("read to one device offset, wrote from another");

        println!("contents match");
        Ok(())
    })
}
