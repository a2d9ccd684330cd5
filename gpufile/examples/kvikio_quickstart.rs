//! Writes an array, reads it whole, and reads it in two halves at once, as KvikIO's quickstart does.
//!
//! usage: kvikio_quickstart [--cufile|--posix] FILE [GPU]
//!
//! | KvikIO | here |
//! |---|---|
//! | `kvikio.CuFile(path, "w")` | [`gpufile::File::create`] |
//! | `f.write(a)` | [`gpufile::File::write_all_at`] |
//! | `f.close()`, or the end of a `with` block | dropping the file |
//! | `f.read(b)` | [`gpufile::File::read_exact_at`], or [`read_at`](gpufile::File::read_at) for the count |
//! | `future = f.pread(part, file_offset=…)` | [`gpufile::File::read_at_async`] with an [`OwnedPart`] of the buffer |
//! | `future.get()` | [`wait`](gpufile::IoFuture::wait), or `.await` |
//!
//! The example creates FILE, and compares it with the array. It needs a GPU.

mod common;

use std::process::ExitCode;

use common::{all_of, require_file, require_same};
use gpufile::OwnedPart;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] FILE [GPU]", |arguments| {
        let path = arguments.path(0)?;
        let device = arguments.device(1)?;
        let numbers: Vec<u8> = (0..100i64).flat_map(i64::to_le_bytes).collect();

        let mut a = device.alloc(numbers.len())?;
        a.copy_from_host(0, &numbers)?;
        let file = arguments.create(path)?;
        println!("route: {}", file.route());
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

        let d = device.alloc(numbers.len())?;
        let half = numbers.len() / 2;
        let file = arguments.open(path)?;
        let parts = OwnedPart::split(d, half).into_iter().zip((0..).step_by(half));
        let futures: Vec<_> = parts.map(|(part, offset)| file.read_at_async(part, offset)).collect();
        let mut parts = Vec::new();
        for future in futures {
            let (read, part) = future.wait();
            all_of(read?, half, "pread")?;
            parts.push(part);
        }
        // The last part returns the whole buffer.
        let last = parts.pop().ok_or("there were two")?;
        drop(parts);
        let d = last.into_whole().map_err(|_| "another part is left")?;
        require_same(&d.to_vec()?, &numbers, "pread")?;
        println!("read two halves at once");
        println!("contents match");
        Ok(())
    })
}
