//! Transfers of one buffer.
//!
//! | transfer | on the main thread, it is done by |
//! |---|---|
//! | a copy of cached bytes | the main thread |
//! | short | the helper of the main thread, in one call |
//! | long | the workers of the engine, which end it early after Ctrl-C |
//!
//! Other threads do it themselves.

use gpufile::{Error, File, IoBuf, Request};
use pyo3::prelude::*;

use crate::cached::Cached;
use crate::error::exception;
use crate::interrupts;
use crate::memory::{Access, Memory, wait_for_streams};
use crate::transfer::{self, Transfer};

/// The longest transfer, in bytes, that is worth no end before its time.
const SHORT_BYTES: usize = 1 << 20;

/// Reads, and returns the number of bytes. Ctrl-C ends the call.
pub fn read(py: Python<'_>, file: File, cached: Cached, mut memory: Memory, offset: u64) -> PyResult<usize> {
    wait_for_streams(py, [&memory])?;
    let read = if !interrupts::is_main_thread(py) || cached.is_memory(&memory) {
        py.detach(|| file.read_at(&mut memory, offset))
    } else if let Some(read) = cached.read(py, &file, &mut memory, offset) {
        Ok(read)
    } else if memory.len_bytes() > SHORT_BYTES {
        transfer::outcome(py, start_read(py, file, cached, memory, offset)?)?.map(|outcome| outcome.bytes())
    } else {
        // The memory comes back, so that the calling thread releases it.
        interrupts::run(py, move || (file.read_at(&mut memory, offset), memory))?.0
    };
    read.map_err(|error| exception(py, &error))
}

/// Reads all bytes of the memory. Ctrl-C ends the call.
pub fn read_exact(
    py: Python<'_>,
    file: File,
    cached: Cached,
    mut memory: Memory,
    offset: u64,
) -> PyResult<()> {
    wait_for_streams(py, [&memory])?;
    let read = if !interrupts::is_main_thread(py) || cached.is_memory(&memory) {
        py.detach(|| file.read_exact_at(&mut memory, offset))
    } else if memory.len_bytes() > SHORT_BYTES {
        let is_at_once = cached.starts_at_once(Access::Write, memory.len_bytes());
        let engine = file.engine().clone();
        let request = Request { file, buffer: memory, offset };
        let start = move || Transfer::new(engine.read_many_async(vec![request]));
        transfer::outcome(py, transfer::start(py, is_at_once, start)?)?.map(drop)
    } else {
        interrupts::run(py, move || (file.read_exact_at(&mut memory, offset), memory))?.0
    };
    read.map_err(|error| match error {
        Error::Entry { error, .. } => exception(py, &error),
        error => exception(py, &error),
    })
}

/// Writes, and returns the number of bytes. Ctrl-C ends the call.
pub fn write(py: Python<'_>, file: File, cached: Cached, memory: Memory, offset: u64) -> PyResult<usize> {
    wait_for_streams(py, [&memory])?;
    let len_bytes = memory.len_bytes();
    let written = if !interrupts::is_main_thread(py) || cached.is_memory(&memory) {
        py.detach(|| file.write_all_at(&memory, offset))
    } else if len_bytes > SHORT_BYTES {
        transfer::outcome(py, start_write(py, file, cached, memory, offset)?)?.map(drop)
    } else {
        interrupts::run(py, move || (file.write_all_at(&memory, offset), memory))?.0
    };
    written.map(|()| len_bytes).map_err(|error| exception(py, &error))
}

/// Starts a read.
pub fn start_read(
    py: Python<'_>,
    file: File,
    cached: Cached,
    memory: Memory,
    offset: u64,
) -> PyResult<Transfer> {
    wait_for_streams(py, [&memory])?;
    let is_at_once = cached.starts_at_once(Access::Write, memory.len_bytes());
    transfer::start(py, is_at_once, move || Transfer::new(file.read_at_async(memory, offset)))
}

/// Starts a write.
pub fn start_write(
    py: Python<'_>,
    file: File,
    cached: Cached,
    memory: Memory,
    offset: u64,
) -> PyResult<Transfer> {
    wait_for_streams(py, [&memory])?;
    let is_at_once = cached.starts_at_once(Access::Read, memory.len_bytes());
    transfer::start(py, is_at_once, move || Transfer::new(file.write_all_at_async(memory, offset)))
}
