//! Doubles two registered vectors in memory made with `cuMemCreate` and `cuMemMap`, registers them again, writes them to files,
//! reads them back and adds them.
//!
//! usage: sample_023_mapped_memory FILE_A FILE_B

mod common;

use std::process::ExitCode;

use common::{Result, VECTOR, add, all_of, create, pass_if_same, pattern};
use cufile::{Driver, FileHandle, IoBuf, RegisterFlags, RegisteredBuffer};

fn main() -> ExitCode {
    common::run("FILE_A FILE_B", |arguments| {
        let paths = [arguments.path(0)?, arguments.path(1)?];
        let bytes = pattern(2 * VECTOR);
        let vectors: Vec<_> = bytes.chunks(VECTOR).collect();
        let driver = Driver::open()?;
        let device = driver.cuda().device(0)?;
        let files = paths.map(|path| Ok(FileHandle::register(&driver, create(path)?)?));
        let files = files.into_iter().collect::<Result<Vec<_>>>()?;

        let mut halves = Vec::new();
        for _ in &vectors {
            let mut memory = device.reserve(VECTOR)?;
            memory.grow(VECTOR / 2)?;
            halves.push(RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?);
        }
        let mut grown = Vec::new();
        for (half, vector) in halves.into_iter().zip(&vectors) {
            let mut memory = half.deregister()?;
            memory.grow(VECTOR - memory.len_bytes())?;
            memory.copy_from_host(0, vector)?;
            grown.push(memory);
        }
        let mut memories = Vec::new();
        for memory in grown {
            memories.push(RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?);
        }

        for (file, memory) in files.iter().zip(&memories) {
            all_of(file.write_at(memory, 0)?, VECTOR, "cuFileWrite")?;
        }
        for memory in &mut memories {
            driver.cuda().fill(memory, 0)?;
        }
        for (file, memory) in files.iter().zip(&mut memories) {
            all_of(file.read_at(memory, 0)?, VECTOR, "cuFileRead")?;
        }
        // In place of a kernel.
        let sums = add(&memories[0].get().to_vec()?, &memories[1].get().to_vec()?);

        for memory in memories {
            memory.deregister()?;
        }
        drop(files);
        driver.close()?;
        pass_if_same(&sums, &add(vectors[0], vectors[1]))
    })
}
