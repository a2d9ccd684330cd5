//! The bytes that pass through a slot at a time: ranges of the caller, packed one behind the other.

use std::ops::Range;
use std::{iter, mem};

use super::super::plan::transfer::IoRange;
use crate::open_file::outcome::EntryStop;

#[derive(Debug)]
pub(crate) struct Loads {
    /// The ranges of the file, and their places in the file side's memory, load by load.
    pub pieces: Vec<IoRange>,
    pub loads: Vec<Load>,
}

#[derive(Debug, Default)]
pub(crate) struct Load {
    /// The positions of its pieces among all.
    pub pieces: Range<usize>,
    pub len_bytes: usize,
    /// The number of the first piece's range. Later pieces belong to the next ranges.
    first: usize,
    /// The number of bytes of that range before this load.
    before_bytes: usize,
}

/// A copy between a slot and the caller's buffer. All fields are in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SlotCopy {
    pub slot_offset: usize,
    pub buffer_offset: usize,
    pub len_bytes: usize,
}

impl Loads {
    /// Returns one load of all ranges, in their places in the caller's buffer.
    pub fn whole(ranges: &[IoRange]) -> Self {
        let len_bytes = ranges.iter().map(|range| range.len_bytes).sum();
        let load = Load { pieces: 0..ranges.len(), len_bytes, ..Load::default() };
        Self { pieces: ranges.to_vec(), loads: vec![load] }
    }

    /// Returns the loads of slots of `slot_bytes`, which is not 0. Ranges keep their order, and go on in the next slot if
    /// one is full.
    pub fn cut(ranges: &[IoRange], slot_bytes: usize) -> Self {
        let (mut pieces, mut loads) = (Vec::new(), Vec::new());
        let mut load = Load::default();
        for (number, range) in ranges.iter().enumerate() {
            let mut done = 0;
            loop {
                if load.len_bytes == slot_bytes && range.len_bytes > 0 {
                    let end = pieces.len();
                    let next = Load { pieces: end..end, len_bytes: 0, first: number, before_bytes: done };
                    loads.push(mem::replace(&mut load, next));
                }
                let len_bytes = (range.len_bytes - done).min(slot_bytes - load.len_bytes);
                let file_offset = range.file_offset + done as u64;
                pieces.push(IoRange { file_offset, buffer_offset: load.len_bytes, len_bytes });
                load.pieces.end = pieces.len();
                load.len_bytes += len_bytes;
                done += len_bytes;
                if done == range.len_bytes {
                    break;
                }
            }
        }
        loads.push(load);
        Self { pieces, loads }
    }
}

impl Load {
    /// Returns the copies between the slot and these ranges of the caller's buffer. Neighbours in both are one copy.
    /// `pieces` are those of all loads.
    pub fn copies<'l>(
        &'l self,
        pieces: &'l [IoRange],
        ranges: &'l [IoRange],
    ) -> impl Iterator<Item = SlotCopy> + 'l {
        let mut before_bytes = self.before_bytes;
        let all = pieces[self.pieces.clone()].iter().zip(&ranges[self.first..]).map(move |(piece, range)| {
            SlotCopy {
                slot_offset: piece.buffer_offset,
                buffer_offset: range.buffer_offset + mem::take(&mut before_bytes),
                len_bytes: piece.len_bytes,
            }
        });
        let mut all = all.filter(|copy| copy.len_bytes > 0).peekable();
        iter::from_fn(move || {
            let mut copy = all.next()?;
            while let Some(next) =
                all.next_if(|next| copy.buffer_offset + copy.len_bytes == next.buffer_offset)
            {
                copy.len_bytes += next.len_bytes;
            }
            Some(copy)
        })
    }

    /// Returns the number of valid bytes at the start of the slot after a stop. Of several ranges, any may have been read,
    /// so none counts.
    pub fn valid_bytes(&self, stop: Option<&EntryStop>) -> usize {
        match stop {
            None => self.len_bytes,
            Some(EntryStop { stop, .. }) if self.pieces.len() == 1 => stop.done_bytes,
            Some(_) => 0,
        }
    }

    /// Converts the stop of a range of the load into that of the caller's range.
    pub fn stop_of_caller(&self, EntryStop { entry, stop }: EntryStop) -> EntryStop {
        let before_bytes = if entry == 0 { self.before_bytes } else { 0 };
        EntryStop { entry: self.first + entry, stop: stop.after(before_bytes) }
    }
}
