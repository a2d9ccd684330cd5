//! Copies a file through GPU memory in four streams, each reading and writing a quarter. It registers the streams
//! with all four promises (flags 15): size and offsets are fixed at submission, and aligned to 4 KiB.
//!
//! Differs from C: C deregisters each stream after its buffer. libcufile corrupts later operations then, so `cufile` deregisters
//! all streams at the end.
//!
//! usage: sample_034_four_streams_fixed_arguments READ_FILE WRITE_FILE GPU

mod common;

use std::process::ExitCode;
use std::sync::Arc;

use common::{MIB, all_of, compare_sha, create, make_file, open_to_read};
use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer, RegisteredStream, StreamFlags};

const STREAMS: usize = 4;
const PART: usize = MIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, STREAMS * PART)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(2)?)?;
        let (mut buffers, mut streams) = (Vec::new(), Vec::new());
        for _ in 0..STREAMS {
            let mut buffer = device.alloc(PART)?;
            buffer.fill(0)?;
            buffers.push(RegisteredBuffer::register(&driver, buffer, RegisterFlags::empty())?);
            streams.push(RegisteredStream::register(&driver, device.stream()?, StreamFlags::all())?);
        }
        let from = Arc::new(FileHandle::register(&driver, open_to_read(source)?)?);
        let to = Arc::new(FileHandle::register(&driver, create(target)?)?);
        let offsets = (0..STREAMS * PART).step_by(PART).map(|offset| offset as u64);

        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for ((stream, buffer), offset) in streams.iter().zip(buffers).zip(offsets.clone()) {
            reads.push(stream.read_at(&from, buffer, offset)?);
        }
        for ((stream, reading), offset) in streams.iter().zip(reads).zip(offsets) {
            let (read, buffer) = reading.wait()?;
            all_of(read, PART, "cuFileReadAsync")?;
            writes.push(stream.write_at(&to, buffer, offset)?);
        }
        let mut buffers = Vec::new();
        for writing in writes {
            let (written, buffer) = writing.wait()?;
            all_of(written, PART, "cuFileWriteAsync")?;
            buffers.push(buffer);
        }

        for (buffer, stream) in buffers.into_iter().zip(streams) {
            buffer.deregister()?;
            stream.deregister()?;
        }
        drop(from);
        drop(to);
        driver.close()?;
        compare_sha(source, target, STREAMS * PART)
    })
}
