//! Transfers during other work: NVIDIA's Python samples 009 and 010 (`pread` and `pwrite`, which return futures).
//!
//! usage: kvikio_futures [--cufile|--posix] INPUT OUTPUT [GPU]
//!
//! The example first fills INPUT with 128 KiB of random bytes. OUTPUT must then have the same bytes. A future
//! owns its buffer until the transfer has ended, so neither the buffer nor the file can be freed before that.
//! In KvikIO, the user must keep them. `get` is [`wait`](gpufile::IoFuture::wait), which returns the buffer;
//! `.await` does the same in an asynchronous program. The example needs a GPU.

mod common;

use std::process::ExitCode;

use common::{KIB, all_of, make_file, require_file};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] INPUT OUTPUT [GPU]", |arguments| {
        let (input, output) = (arguments.path(0)?, arguments.path(1)?);
        let buffer = arguments.device(2)?.alloc(LEN)?;
        let expected = make_file(input, LEN)?;

        let file = arguments.open(input)?;
        println!("route: {}", file.route());
        let future = file.read_at_async(buffer, 0);
        println!("the read is in flight");
        let (read, buffer) = future.wait();
        all_of(read?, LEN, "read")?;
        println!("read {LEN} bytes");

        let file = arguments.create(output)?;
        let future = file.write_all_at_async(buffer, 0);
        println!("the write is in flight");
        let (written, _) = future.wait();
        all_of(written?, LEN, "write")?;
        println!("wrote {LEN} bytes");

        require_file(output, &expected)?;
        println!("contents match");
        Ok(())
    })
}
