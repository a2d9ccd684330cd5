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

/// The longest transfer, in bytes, that Ctrl-C need not end early.
const SHORT_BYTES: usize = 1 << 20;

pub fn read(py: Python<'_>, file: File, cached: Cached, mut memory: Memory, offset: u64) -> PyResult<usize> {
    wait_for_streams(py, [&memory])?;
    if interrupts::is_main_thread(py) && !cached.is_memory(&memory) {
        if let Some(read) = cached.read(py, &file, &mut memory, offset) {
            return Ok(read);
        }
        if memory.len_bytes() > SHORT_BYTES {
            let read = transfer::outcome(py, start_read(py, file, cached, memory, offset)?)?;
            return read.map(|outcome| outcome.bytes()).map_err(|error| exception(py, &error));
        }
    }
    after_streams(py, file, cached, memory, move |file, memory| file.read_at(memory, offset))
}

pub fn read_exact(py: Python<'_>, file: File, cached: Cached, memory: Memory, offset: u64) -> PyResult<()> {
    if !is_long(py, cached, &memory) {
        return now(py, file, cached, memory, move |file, memory| file.read_exact_at(memory, offset));
    }
    wait_for_streams(py, [&memory])?;
    let is_at_once = cached.starts_at_once(Access::Write, memory.len_bytes());
    let engine = file.engine().clone();
    let request = Request { file, buffer: memory, offset };
    let start = move || Transfer::new(engine.read_many_async(vec![request]));
    let read = transfer::outcome(py, transfer::start(py, is_at_once, start)?)?;
    read.map(drop).map_err(|error| match error {
        Error::Entry { error, .. } => exception(py, &error),
        error => exception(py, &error),
    })
}

pub fn write(py: Python<'_>, file: File, cached: Cached, memory: Memory, offset: u64) -> PyResult<usize> {
    let len_bytes = memory.len_bytes();
    if is_long(py, cached, &memory) {
        let written = transfer::outcome(py, start_write(py, file, cached, memory, offset)?)?;
        written.map(drop).map_err(|error| exception(py, &error))?;
    } else {
        now(py, file, cached, memory, move |file, memory| file.write_all_at(memory, offset))?;
    }
    Ok(len_bytes)
}

/// Returns whether the workers are to transfer the memory, so that Ctrl-C ends the transfer early.
fn is_long(py: Python<'_>, cached: Cached, memory: &Memory) -> bool {
    memory.len_bytes() > SHORT_BYTES && interrupts::is_main_thread(py) && !cached.is_memory(memory)
}

/// Makes one call of a file with the memory. Ctrl-C ends the call, and the helper of the main thread keeps the memory until the
/// transfer has ended.
pub fn now<T: Send + 'static>(
    py: Python<'_>,
    file: File,
    cached: Cached,
    memory: Memory,
    call: impl FnOnce(&File, &mut Memory) -> gpufile::Result<T> + Send + 'static,
) -> PyResult<T> {
    wait_for_streams(py, [&memory])?;
    after_streams(py, file, cached, memory, call)
}

fn after_streams<T: Send + 'static>(
    py: Python<'_>,
    file: File,
    cached: Cached,
    mut memory: Memory,
    call: impl FnOnce(&File, &mut Memory) -> gpufile::Result<T> + Send + 'static,
) -> PyResult<T> {
    let outcome = if !interrupts::is_main_thread(py) || cached.is_memory(&memory) {
        py.detach(|| call(&file, &mut memory))
    } else {
        // The memory comes back, so that the calling thread releases it.
        interrupts::run(py, move || (call(&file, &mut memory), memory))?.0
    };
    outcome.map_err(|error| exception(py, &error))
}

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
