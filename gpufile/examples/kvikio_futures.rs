//! Transfers beside other work: NVIDIA's Python samples 009 and 010 (`pread` and `pwrite`, which return futures).
//!
//! usage: kvikio_futures [--cufile|--posix] INPUT OUTPUT [GPU]
//!
//! INPUT is made of 128 KiB of random bytes by a plain write; OUTPUT must then have the same. A future owns its buffer
//! until the transfer has ended, so neither the buffer nor the file can go before that; KvikIO's users must see to it
//! themselves. `get` is [`wait`](gpufile::IoFuture::wait), which gives the buffer back; `.await` does the same in an
//! asynchronous program. Needs a GPU.

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
        println!("path: {}", file.route());
        let future = file.read_at_async(buffer, 0);
        println!("the read is under way");
        let (read, buffer) = future.wait();
        all_of(read?, LEN, "read")?;
        println!("read {LEN} bytes");

        let file = arguments.create(output)?;
        let future = file.write_all_at_async(buffer, 0);
        println!("the write is under way");
        let (written, _) = future.wait();
        all_of(written?, LEN, "write")?;
        println!("wrote {LEN} bytes");

        require_file(output, &expected)?;
        println!("contents match");
        Ok(())
    })
}
