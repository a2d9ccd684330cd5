//! Transfers beside other work: NVIDIA's Python samples 009 and 010 (`pread` and `pwrite`, which return futures).
//!
//! usage: kvikio_futures [--cufile|--posix] INPUT OUTPUT [GPU]
//!
//! INPUT is made of 128 KiB of random bytes by a plain write; OUTPUT must then have the same. gpufile has no futures, so
//! each transfer runs in a thread of its own that borrows the shared file: [`std::thread::scope`] sees to it that the
//! transfer is over before file or buffer can go, what KvikIO's users must see to themselves. Needs a GPU.

mod common;

use std::process::ExitCode;
use std::thread;

use common::{KIB, Result, all_of, make_file, require_file};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] INPUT OUTPUT [GPU]", |arguments| {
        let (input, output) = (arguments.path(0)?, arguments.path(1)?);
        let mut buffer = arguments.device(2)?.alloc(LEN)?;
        let expected = make_file(input, LEN)?;

        let file = arguments.open(input)?;
        println!("path: {}", file.route());
        thread::scope(|threads| -> Result {
            let future = threads.spawn(|| file.read_at(&mut buffer, 0));
            println!("the read is under way");
            let read = future.join().map_err(|_| "a thread panicked")??;
            all_of(read, LEN, "read")?;
            println!("read {read} bytes");
            Ok(())
        })?;

        let file = arguments.create(output)?;
        thread::scope(|threads| -> Result {
            let future = threads.spawn(|| file.write_all_at(&buffer, 0));
            println!("the write is under way");
            future.join().map_err(|_| "a thread panicked")??;
            println!("wrote {LEN} bytes");
            Ok(())
        })?;

        require_file(output, &expected)?;
        println!("contents match");
        Ok(())
    })
}
