//! Fills a buffer with many small reads: NVIDIA's Python sample 006 (`raw_read` in a loop).
//!
//! usage: kvikio_chunks [--cufile|--posix] INPUT OUTPUT [GPU]
//!
//! The example first fills INPUT with 16 MiB of random bytes. The calling thread reads 64 KiB at a time, each
//! to its place in the buffer, as `raw_read` does. The example writes the whole buffer to OUTPUT, which must
//! then have the same bytes. The example needs a GPU.

mod common;

use std::process::ExitCode;

use common::{KIB, MIB, all_of, make_file, require_file};

const LEN: usize = 16 * MIB;
const CHUNK: usize = 64 * KIB;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] INPUT OUTPUT [GPU]", |arguments| {
        let (input, output) = (arguments.path(0)?, arguments.path(1)?);
        let mut buffer = arguments.device(2)?.alloc(LEN)?;
        let expected = make_file(input, LEN)?;

        let file = arguments.open(input)?.inline();
        println!("route: {}", file.route());
        let (mut bytes, mut reads) = (0, 0);
        for mut chunk in buffer.slice_mut(..).chunks(CHUNK) {
            // Fewer bytes only at the end of the file, so that no chunk needs a second read.
            bytes += file.read_at(&mut chunk, bytes as u64)?;
            reads += 1;
        }
        all_of(bytes, LEN, "read")?;
        println!("read {bytes} bytes in {reads} reads");

        arguments.create(output)?.write_all_at(&buffer, 0)?;
        println!("wrote {LEN} bytes");
        require_file(output, &expected)?;
        println!("contents match");
        Ok(())
    })
}
