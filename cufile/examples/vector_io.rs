//! Reads blocks from scattered places of a file, and writes and reads several buffers with one call.
//!
//! usage: vector_io INPUT OUTPUT [GPU [BLOCK]]
//!
//! INPUT must have 101 blocks of BLOCK bytes (1MiB by default). The example reads the blocks 0, 10, 50 and 100 into a
//! buffer each. Then `cuFileWritev` writes the four, in this order, to OUTPUT, and `cuFileReadv` reads them back into
//! other buffers. The example compares both files with the buffers.
//!
//! cuFile's vectors name buffers, not places in the file: the bytes in the file are consecutive. For entries with
//! different file offsets, use a batch.

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::measure::{gpu, require_different, size};
use common::{
    MIB, Result, all_of, all_of_batch, contents, create, open_to_read, require_contents, require_same,
};
use cufile::cuda::{Device, DeviceBuffer};
use cufile::{Batch, Driver, Entry, Feature, FileHandle, RegisterFlags, RegisteredBuffer};

const BLOCKS: [usize; 4] = [0, 10, 50, 100];

fn main() -> ExitCode {
    common::run("INPUT OUTPUT [GPU [BLOCK]]", |arguments| {
        let (input, output) = (arguments.path(0)?, arguments.path(1)?);
        let block = size(&arguments, 3, MIB)?;
        require_different(input, output)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(gpu(&arguments, 2)?)?;
        let source = Arc::new(FileHandle::register(&driver, open_to_read(input)?)?);
        let contents = contents(input, (BLOCKS[3] + 1) * block)?;
        let expected: Vec<u8> =
            BLOCKS.iter().flat_map(|at| &contents[at * block..][..block]).copied().collect();

        let mut batch = Batch::new(&driver, BLOCKS.len())?;
        let mut entries = Vec::new();
        for ((id, at), buffer) in (0..).zip(BLOCKS).zip(buffers(&driver, &device, block)?) {
            entries.push(Entry::read(&source, buffer, (at * block) as u64).id(id));
        }
        batch.submit(entries)?;
        let completions = batch.wait_all()?;
        let blocks = all_of_batch(completions, BLOCKS.len(), block)?;
        println!("read {} bytes from {} places", expected.len(), blocks.len());

        let target = FileHandle::register(&driver, create(output)?)?;
        let written = target.writev_at(&blocks, 0)?;
        all_of(written, expected.len(), "cuFileWritev")?;
        require_contents(output, 0, &expected)?;
        println!("wrote {written} bytes from {} buffers", blocks.len());

        let mut others = buffers(&driver, &device, block)?;
        let read = target.readv_at(&mut others, 0)?;
        all_of(read, expected.len(), "cuFileReadv")?;
        for (buffer, expected) in others.into_iter().zip(expected.chunks(block)) {
            let buffer = buffer.deregister()?;
            require_same(&buffer.to_vec()?, expected, "the buffers")?;
        }
        println!("read {read} bytes into {} buffers", BLOCKS.len());
        if !driver.library().supports(Feature::VectoredIo) {
            println!("one call for each buffer, because libcufile is {}", driver.library().version());
        }
        println!("contents match");
        Ok(())
    })
}

/// Returns a new registered buffer for each block, without bytes of earlier reads.
fn buffers(driver: &Driver, device: &Device, block: usize) -> Result<Vec<RegisteredBuffer<DeviceBuffer>>> {
    let buffer = |_| {
        let mut memory = device.alloc(block)?;
        memory.fill(0x5a)?;
        Ok(RegisteredBuffer::register(driver, memory, RegisterFlags::empty())?)
    };
    BLOCKS.iter().map(buffer).collect()
}
