//! Reading ranges of several files in one call of the engine, or in steps that a callback watches.

use std::mem;
use std::ops::Range;

use cufile::BufSliceMut;

use super::clip::clip;
use super::progress::Progress;
use super::{Error, Result};
use crate::{File, IoBuf, Request};

/// A callback that gets the progress of a load, and cannot end it.
pub(super) type Watcher<'a> = Box<dyn FnMut(Progress) + 'a>;

pub(super) struct Read<'a> {
    pub file: &'a File,
    pub offset: u64,
    pub memory: BufSliceMut<'a>,
    /// The tensor, if the range is of one only.
    pub tensor: Option<&'a str>,
}

/// Returns the fills, each with its part of the buffer. They must be in the order of the memory.
pub(super) fn cut<'a, 'f, F>(
    fills: &'f [F],
    in_buffer: impl Fn(&F) -> Range<usize>,
    buffer: BufSliceMut<'a>,
) -> impl Iterator<Item = (&'f F, BufSliceMut<'a>)> {
    let (mut at, mut rest) = (0, Some(buffer));
    fills.iter().map(move |fill| {
        let rest_now = rest.take().expect("each range leaves a rest");
        let Range { start, end } = in_buffer(fill);
        let (_, from) = rest_now.split_at(start - at);
        let (memory, behind) = from.split_at(end - start);
        (at, rest) = (end, Some(behind));
        (fill, memory)
    })
}

/// Reads everything in one call, or in steps if there is a watcher.
pub(super) fn read_all<'a>(
    reads: impl Iterator<Item = Read<'a>>,
    total_bytes: u64,
    progress: Option<Watcher<'_>>,
) -> Result<()> {
    const STEPS: u64 = 16;
    const SHORTEST_STEP: u64 = 256 << 20;
    let Some(mut watch) = progress else { return read_step(reads.collect()) };
    let step_bytes = usize::try_from((total_bytes / STEPS).max(SHORTEST_STEP)).unwrap_or(usize::MAX);
    let (mut step, mut room, mut done_bytes) = (Vec::new(), step_bytes, 0);
    for Read { file, mut offset, memory, tensor } in reads {
        let mut rest = memory;
        loop {
            let (part, behind) = {
                let len_bytes = rest.len_bytes().min(room);
                rest.split_at(len_bytes)
            };
            room -= part.len_bytes();
            let next = offset + part.len_bytes() as u64;
            step.push(Read { file, offset, memory: part, tensor });
            if room == 0 {
                read_step(mem::take(&mut step))?;
                done_bytes += step_bytes as u64;
                watch(Progress { done_bytes, total_bytes });
                room = step_bytes;
            }
            if behind.len_bytes() == 0 {
                break;
            }
            (offset, rest) = (next, behind);
        }
    }
    if done_bytes < total_bytes || total_bytes == 0 {
        read_step(step)?;
        watch(Progress { done_bytes: total_bytes, total_bytes });
    }
    Ok(())
}

fn read_step(mut reads: Vec<Read<'_>>) -> Result<()> {
    if let [Read { file, offset, memory, tensor }] = &mut reads[..] {
        return file.read_exact_at(memory, *offset).map_err(|error| failed(error, *tensor));
    }
    let Some(first) = reads.first() else { return Ok(()) };
    let engine = first.file.engine();
    let names: Vec<_> = reads.iter().map(|read| read.tensor).collect();
    let request = |Read { file, offset, memory, .. }| Request { file, buffer: memory, offset };
    let mut requests: Vec<_> = reads.into_iter().map(request).collect();
    engine.read_many(&mut requests).map_err(|error| match error {
        crate::Error::Entry { entry, error } => failed(*error, names[entry]),
        error => error.into(),
    })
}

fn failed(error: crate::Error, tensor: Option<&str>) -> Error {
    match tensor {
        Some(name) => Error::Tensor { tensor: clip(name), error: Box::new(error) },
        None => error.into(),
    }
}
