//! What KvikIO's quickstart does: an array written, read whole, and read in two halves at once.
//!
//! usage: kvikio_quickstart [--cufile|--posix] FILE [GPU]
//!
//! | KvikIO | here |
//! |---|---|
//! | `kvikio.CuFile(path, "w")` | [`gpufile::File::create`] |
//! | `f.write(a)` | [`gpufile::File::write_all_at`] |
//! | `f.close()`, or the end of a `with` block | dropping the file |
//! | `f.read(b)` | [`gpufile::File::read_exact_at`], or [`read_at`](gpufile::File::read_at) for the count |
//! | `future = f.pread(part, file_offset=…)` | a scoped thread that reads into its part of the buffer |
//! | `future.get()` | `join` |
//!
//! FILE is made anew, and compared with the array. Needs a GPU.

mod common;

use std::process::ExitCode;
use std::thread;

use common::{Result, all_of, require_file, require_same};

fn main() -> ExitCode {
    common::run("[--cufile|--posix] FILE [GPU]", |arguments| {
        let path = arguments.path(0)?;
        let device = arguments.device(1)?;
        let numbers: Vec<u8> = (0..100i64).flat_map(i64::to_le_bytes).collect();

        let mut a = device.alloc(numbers.len())?;
        a.copy_from_host(0, &numbers)?;
        let file = arguments.create(path)?;
        println!("path: {}", file.route());
        file.write_all_at(&a, 0)?;
        drop(file);
        require_file(path, &numbers)?;
        println!("wrote {} bytes", numbers.len());

        let mut b = device.alloc(numbers.len())?;
        let file = arguments.open(path)?;
        all_of(file.read_at(&mut b, 0)?, numbers.len(), "read")?;
        drop(file);
        require_same(&b.to_vec()?, &numbers, "read")?;

        let mut c = device.alloc(numbers.len())?;
        {
            let file = arguments.open(path)?;
            file.read_exact_at(&mut c, 0)?;
        }
        require_same(&c.to_vec()?, &numbers, "read in a scope")?;
        println!("read {} bytes, twice", numbers.len());

        let mut d = device.alloc(numbers.len())?;
        let half = numbers.len() / 2;
        let file = arguments.open(path)?;
        thread::scope(|threads| -> Result {
            let (mut first, mut second) = d.slice_mut(..).split_at(half);
            let file = &file;
            let future1 = threads.spawn(move || file.read_at(&mut first, 0));
            let future2 = threads.spawn(move || file.read_at(&mut second, half as u64));
            for future in [future1, future2] {
                all_of(future.join().map_err(|_| "a thread panicked")??, half, "pread")?;
            }
            Ok(())
        })?;
        require_same(&d.to_vec()?, &numbers, "pread")?;
        println!("read two halves at once");
        println!("contents match");
        Ok(())
    })
}
