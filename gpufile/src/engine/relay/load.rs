//! The bytes that pass through a slot at a time: ranges of the caller, packed one behind the other.

use std::mem;

use super::super::plan::transfer::IoRange;
use crate::open_file::outcome::EntryStop;

/// The ranges of a part, or pieces of long ones.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// The ranges of the file, and their places in the memory that the file's side uses.
    pub ranges: Vec<IoRange>,
    /// The number of the caller's range that the first one is a piece of. The others follow it.
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

impl Load {
    /// Returns the load of all ranges, in their places in the caller's buffer.
    pub fn whole(ranges: &[IoRange]) -> Self {
        Self { ranges: ranges.to_vec(), ..Self::default() }
    }

    /// Returns the loads of slots of `slot_bytes`, which is not 0. Ranges keep their order. If the rest of a slot is too
    /// short for a range, its other bytes pass through the next slots.
    pub fn cut(ranges: &[IoRange], slot_bytes: usize) -> Vec<Self> {
        let mut loads = Vec::new();
        let (mut load, mut used) = (Self::default(), 0);
        for (number, range) in ranges.iter().enumerate() {
            let mut done = 0;
            loop {
                if used == slot_bytes && range.len_bytes > 0 {
                    let next = Self { first: number, before_bytes: done, ..Self::default() };
                    loads.push(mem::replace(&mut load, next));
                    used = 0;
                }
                let len_bytes = (range.len_bytes - done).min(slot_bytes - used);
                let file_offset = range.file_offset + done as u64;
                load.ranges.push(IoRange { file_offset, buffer_offset: used, len_bytes });
                used += len_bytes;
                done += len_bytes;
                if done == range.len_bytes {
                    break;
                }
            }
        }
        loads.push(load);
        loads
    }

    pub fn len_bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.len_bytes).sum()
    }

    /// Returns the copies between the slot and the caller's buffer, in which these are the ranges. Neighbours in both are
    /// copied together.
    pub fn copies(&self, ranges: &[IoRange]) -> Vec<SlotCopy> {
        let mut copies: Vec<SlotCopy> = Vec::new();
        let mut before_bytes = self.before_bytes;
        for (piece, range) in self.ranges.iter().zip(&ranges[self.first..]) {
            let IoRange { buffer_offset: slot_offset, len_bytes, .. } = *piece;
            let buffer_offset = range.buffer_offset + mem::take(&mut before_bytes);
            match copies.last_mut() {
                _ if len_bytes == 0 => {}
                Some(last) if last.buffer_offset + last.len_bytes == buffer_offset => {
                    last.len_bytes += len_bytes;
                }
                _ => copies.push(SlotCopy { slot_offset, buffer_offset, len_bytes }),
            }
        }
        copies
    }

    /// Returns how many bytes from the start of the slot are valid after a stop. Of several ranges, any may have been read
    /// before the stop, so none counts.
    pub fn valid_bytes(&self, stop: Option<&EntryStop>) -> usize {
        match stop {
            None => self.len_bytes(),
            Some(EntryStop { stop, .. }) if self.ranges.len() == 1 => stop.done_bytes,
            Some(_) => 0,
        }
    }

    /// Converts the stop of a range of the load into that of the caller's range.
    pub fn stop_of_caller(&self, EntryStop { entry, stop }: EntryStop) -> EntryStop {
        let before_bytes = if entry == 0 { self.before_bytes } else { 0 };
        EntryStop { entry: self.first + entry, stop: stop.after(before_bytes) }
    }
}
