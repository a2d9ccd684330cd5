//! Copies a file through GPU memory with stream-ordered transfers: it writes one buffer while it reads the next.
//!
//! usage: double_buffering INPUT OUTPUT [GPU [CHUNK]]
//!
//! INPUT must be longer than CHUNK (32MiB by default). Two buffers of CHUNK bytes change places after each chunk, and
//! reads and writes have a stream each. An operation owns its buffer until the program has waited for it, so the
//! program cannot read into a buffer that is still being written. For comparison, the example times the same copy
//! with one buffer, where each transfer waits for the one before. After each copy it compares OUTPUT with INPUT.

mod common;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use common::measure::{gpu, report, require_different, size, timed};
use common::{MIB, Result, all_of, contents, create, open_to_read, require_contents, require_len};
use cufile::cuda::DeviceBuffer;
use cufile::{Driver, FileHandle, Operation, RegisterFlags, RegisteredBuffer, RegisteredStream, StreamFlags};

type Buffer = RegisteredBuffer<DeviceBuffer>;

fn main() -> ExitCode {
    common::run("INPUT OUTPUT [GPU [CHUNK]]", |arguments| {
        let (input, output) = (arguments.path(0)?, arguments.path(1)?);
        let chunk = size(&arguments, 3, 32 * MIB)?;
        require_different(input, output)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(gpu(&arguments, 2)?)?;
        let source = Arc::new(FileHandle::register(&driver, open_to_read(input)?)?);
        // With one chunk there would be nothing to overlap.
        require_len(input, chunk + 1)?;
        let len = std::fs::metadata(input)?.len() as usize;
        let expected = contents(input, len)?;

        let buffer = || {
            let memory = device.alloc(chunk)?;
            RegisteredBuffer::register(&driver, memory, RegisterFlags::empty()).map_err(cufile::Error::from)
        };
        let mut buffers = (buffer()?, buffer()?);
        // Size and offsets are known at submission, so libcufile need not read them again when a transfer runs.
        let fixed =
            StreamFlags::FIXED_BUF_OFFSET | StreamFlags::FIXED_FILE_OFFSET | StreamFlags::FIXED_FILE_SIZE;
        let reader = RegisteredStream::register(&driver, device.stream()?, fixed)?;
        let writer = RegisteredStream::register(&driver, device.stream()?, fixed)?;

        let (mut alone, mut overlapped) = (Duration::MAX, Duration::MAX);
        for _ in 0..2 {
            for (copy, best) in [(one_by_one as Copy, &mut alone), (double_buffered, &mut overlapped)] {
                let target = Arc::new(FileHandle::register(&driver, create(output)?)?);
                let job =
                    Job { source: &source, target: &target, reader: &reader, writer: &writer, len, chunk };
                let mut back = None;
                let elapsed = timed(|| {
                    back = Some(copy(&job, buffers)?);
                    Ok(())
                })?;
                buffers = back.expect("a copy that succeeds gives the buffers back");
                *best = elapsed.min(*best);
                drop(target);
                require_contents(output, 0, &expected)?;
                all_of(std::fs::metadata(output)?.len() as usize, len, "OUTPUT")?;
            }
        }
        report("double_buffering", "one-by-one", len, alone);
        report("double_buffering", "double-buffered", len, overlapped);
        println!("contents match");
        Ok(())
    })
}

struct Job<'a> {
    source: &'a Arc<FileHandle>,
    target: &'a Arc<FileHandle>,
    reader: &'a RegisteredStream,
    writer: &'a RegisteredStream,
    len: usize,
    chunk: usize,
}

type Copy = fn(&Job<'_>, (Buffer, Buffer)) -> Result<(Buffer, Buffer)>;

fn double_buffered(job: &Job<'_>, (first, second): (Buffer, Buffer)) -> Result<(Buffer, Buffer)> {
    let len_at = |offset: usize| job.chunk.min(job.len - offset);
    let (bytes, mut full) = read(job, first, len_at(0), 0)?.wait()?;
    all_of(bytes, len_at(0), "cuFileReadAsync")?;
    let mut empty = second;
    let mut offset = 0;
    loop {
        let next = offset + job.chunk;
        if next >= job.len {
            let writing = write(job, full, len_at(offset), offset)?;
            let (bytes, full) = writing.wait()?;
            all_of(bytes, len_at(offset), "cuFileWriteAsync")?;
            return Ok((full, empty));
        }
        let reading = read(job, empty, len_at(next), next)?;
        // A kernel that changes `full` would be launched here on the writer's stream, ahead of the write.
        let writing = write(job, full, len_at(offset), offset)?;

        let (bytes, written) = writing.wait()?;
        all_of(bytes, len_at(offset), "cuFileWriteAsync")?;
        let (bytes, read) = reading.wait()?;
        all_of(bytes, len_at(next), "cuFileReadAsync")?;
        (full, empty, offset) = (read, written, next);
    }
}

fn one_by_one(job: &Job<'_>, (mut buffer, unused): (Buffer, Buffer)) -> Result<(Buffer, Buffer)> {
    for offset in (0..job.len).step_by(job.chunk) {
        let len = job.chunk.min(job.len - offset);
        let reading = read(job, buffer, len, offset)?;
        let (bytes, full) = reading.wait()?;
        all_of(bytes, len, "cuFileReadAsync")?;
        let writing = write(job, full, len, offset)?;
        let (bytes, written) = writing.wait()?;
        all_of(bytes, len, "cuFileWriteAsync")?;
        buffer = written;
    }
    Ok((buffer, unused))
}

fn read(job: &Job<'_>, buffer: Buffer, len: usize, offset: usize) -> Result<Operation<Buffer>> {
    let range = job.reader.late_bound(&buffer, 0, len, offset as u64)?;
    Ok(job.reader.read_late(job.source, buffer, &range)?)
}

fn write(job: &Job<'_>, buffer: Buffer, len: usize, offset: usize) -> Result<Operation<Buffer>> {
    let range = job.writer.late_bound(&buffer, 0, len, offset as u64)?;
    Ok(job.writer.write_late(job.target, buffer, &range)?)
}
