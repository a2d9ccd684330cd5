//! Registers two reserved ranges with a mapped first part. Maps the rest of one in steps of 32 MiB, and of the other at once.
//! Writes the first in pieces of 2 MiB and the second at once, reads both back and adds them.
//!
//! usage: sample_026_mapped_memory_grown FILE_A FILE_B

mod common;

use std::process::ExitCode;

use common::{MIB, Result, VECTOR, add, all_of, create, pass_if_same, pattern};
use cufile::{Driver, FileHandle, IoBuf, RegisterFlags, RegisteredBuffer};

const STEP: usize = 32 * MIB;
const PIECE: usize = 2 * MIB;

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
        for (number, (memory, vector)) in memories.iter_mut().zip(&vectors).enumerate() {
            let step = if number == 0 { STEP } else { VECTOR };
            while memory.len_bytes() < VECTOR {
                memory.grow(step.min(VECTOR - memory.len_bytes()))?;
            }
            driver.cuda().copy(*vector, memory)?;
        }

        for start in (0..VECTOR).step_by(PIECE) {
            let piece = memories[0].slice(start..start + PIECE);
            all_of(files[0].write_at(&piece, start as u64)?, PIECE, "cuFileWrite")?;
        }
        all_of(files[1].write_at(&memories[1], 0)?, VECTOR, "cuFileWrite")?;
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
