//! Registers two reserved ranges with a mapped first part, and then maps the rest. Writes both vectors to files, reads them back
//! without another registration, and adds them.
//!
//! usage: sample_025_mapped_memory_reserved FILE_A FILE_B

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

        let mut memories = Vec::new();
        for _ in &vectors {
            let mut memory = device.reserve(VECTOR)?;
            memory.grow(VECTOR / 2)?;
            memories.push(RegisteredBuffer::register_reserved(&driver, memory, RegisterFlags::empty())?);
        }
        for (memory, vector) in memories.iter_mut().zip(&vectors) {
            memory.grow(VECTOR - memory.len_bytes())?;
            driver.cuda().copy(*vector, memory)?;
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
