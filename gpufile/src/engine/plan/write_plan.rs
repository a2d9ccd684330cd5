//! Chooses the fastest way to write a range.

use std::sync::Arc;
use std::{iter, ptr};

use super::schedule::{Order, Plan, Schedule};
use super::transfer::{Entries, Entry, Growth, Transfer};
use crate::memory::Place;
use crate::open_file::{Fill, Method, OpenFile, Storage};

/// The number of bytes below which no method is faster than one write call.
const SMALL_BYTES: usize = 1 << 20;
/// The most bytes in a chunk of a serial write. Larger chunks leave the processor's cache between the copy
/// from the GPU and the copy to the page cache.
const SERIAL_CHUNK_BYTES: usize = 1 << 20;
/// The most bytes in a chunk that a worker writes through a mapping. With larger chunks, the bytes that all workers have
/// on their way leave the cache that processors share.
const MAPPED_CHUNK_BYTES: usize = 2 << 20;
/// The growth in bytes from which on the engine allocates a file's new blocks at once.
const PREALLOCATE_BYTES: usize = 16 << 20;
/// The number of bytes that a write call writes last. The kernel then notifies programs that watch the file.
const LAST_BYTES: usize = 4096;

/// The order of filling pages. More workers wait for each other where the kernel keeps the pages of a file.
const FILLING: Order = Order::LastAlone { at_once: Some(4) };

/// The part of a file that a write covers.
#[derive(Clone, Copy)]
struct Extent {
    start: u64,
    end: u64,
    total_bytes: usize,
    /// True if each range begins where the one before ends.
    is_gapless: bool,
}

impl Extent {
    fn of(ranges: impl Iterator<Item = (u64, usize)>) -> Self {
        let empty = Self { start: u64::MAX, end: 0, total_bytes: 0, is_gapless: true };
        // Empty ranges may lie anywhere, and do not lengthen the file.
        let ranges = ranges.filter(|(_, len_bytes)| *len_bytes > 0);
        let all = ranges.fold(empty, |all, (offset, len_bytes)| Self {
            start: all.start.min(offset),
            end: all.end.max(offset.saturating_add(len_bytes as u64)),
            total_bytes: all.total_bytes.saturating_add(len_bytes),
            is_gapless: all.is_gapless && (all.end == offset || all.total_bytes == 0),
        });
        Self { start: all.start.min(all.end), ..all }
    }
}

/// The facts about a file that decide how it is written.
struct Facts {
    storage: Storage,
    /// The most requests at a time, if the write uses `O_DIRECT`. The inner `None` stands for no limit.
    direct: Option<Option<usize>>,
    is_by_cufile: bool,
    /// The length of the file in bytes. `None` if the write is short or the kernel does not report it.
    len_bytes: Option<u64>,
}

/// The steps before a write, and the method that they make possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preparation {
    /// No step. The method is a system call, or cuFile.
    None,
    /// Blocks behind the end of the file: from this offset on, for this many bytes. Without them, the write
    /// only takes longer.
    Preallocate(u64, u64),
    /// A mapping of the existing file.
    Map,
    /// Storage from this offset on, for this many bytes, and a mapping. The storage makes the file longer.
    AllocateAndMap(u64, u64),
    /// A longer file, whose new pages are filled.
    Fill,
}

impl Preparation {
    /// Carries out the steps. Returns the method that they make possible, or `None` if a step failed.
    ///
    /// Nothing shortens the file again if the write fails: other callers may have written behind the old end, and their
    /// calls succeeded.
    fn carry_out(self, open: &OpenFile, extent: Extent) -> Option<Method> {
        match self {
            Preparation::None => return Some(Method::Calls),
            Preparation::Preallocate(from, by) => {
                open.preallocate(from, by);
                return Some(Method::Calls);
            }
            Preparation::Map => open.mapping_for_overwriting(extent.start..extent.end),
            Preparation::AllocateAndMap(from, by) if open.allocate(from, by) => {
                open.mapping_for_writing_once(extent.start..extent.end)
            }
            Preparation::AllocateAndMap(..) => None,
            Preparation::Fill => {
                return Fill::new(open, extent.start..extent.end).ok().map(Arc::new).map(Method::Fill);
            }
        }
        .map(Method::Mapping)
    }
}

impl Plan {
    /// Plans a write of entries that were checked, and prepares it, which may make the file longer.
    pub fn of_write(transfer: &Transfer<'_>) -> Self {
        let Transfer { entries, settings, choices, .. } = transfer;
        let extent = match entries {
            Entries::Ranges { ranges, .. } => {
                Extent::of(ranges.iter().map(|range| (range.file_offset, range.len_bytes)))
            }
            Entries::Requests(each) => {
                Extent::of(each.iter().map(|entry| (entry.offset, entry.memory.len_bytes)))
            }
        };
        let place = entries.place();
        let parallel = Schedule::new(settings, extent.total_bytes, place, choices.chunk_bytes);
        let Some(open) = entries.only_file() else {
            return Self { method: Method::Calls, schedule: parallel, order: Order::ANY };
        };
        let is_cut_freely = !transfer.has_asked_lengths();
        let (schedule, order, preparation) =
            choose(&Facts::of(open, extent, place), parallel, is_cut_freely, extent, choices.growth);
        match preparation.carry_out(open, extent) {
            Some(method) => Self { method, schedule, order },
            None => Self {
                method: Method::Calls,
                schedule: serial(parallel, is_cut_freely),
                order: Order::Serial,
            },
        }
    }
}

impl Facts {
    fn of(open: &OpenFile, Extent { total_bytes, .. }: Extent, place: Place) -> Self {
        Self {
            storage: open.storage,
            direct: open.direct_for_write(total_bytes).map(|direct| direct.at_once),
            is_by_cufile: place != Place::Host && open.cufile(total_bytes).is_some(),
            // Short writes do without this system call.
            len_bytes: if total_bytes < SMALL_BYTES { None } else { open.len_bytes().ok() },
        }
    }
}

/// Returns the schedule of a write by one worker at a time.
fn serial(parallel: Schedule, is_cut_freely: bool) -> Schedule {
    let most = if is_cut_freely { SERIAL_CHUNK_BYTES } else { usize::MAX };
    let chunk_bytes = parallel.chunk_bytes.min(most);
    Schedule { chunk_bytes, is_graded: false, ..parallel }
}

/// Chooses the schedule, the order and the preparation of a write. `parallel` is the schedule for all workers.
fn choose(
    facts: &Facts,
    parallel: Schedule,
    is_cut_freely: bool,
    extent: Extent,
    growth: Growth,
) -> (Schedule, Order, Preparation) {
    let parallel = Schedule { is_graded: false, ..parallel };
    if let Some(at_once) = facts.direct {
        return match is_cut_freely {
            true => (parallel.for_disk(), Order::Any { at_once }, Preparation::None),
            false => (parallel, Order::ANY, Preparation::None),
        };
    }
    if extent.total_bytes < SMALL_BYTES || facts.is_by_cufile || facts.storage == Storage::Other {
        return (parallel, Order::ANY, Preparation::None);
    }
    let serial = serial(parallel, is_cut_freely);
    let Some(len_bytes) = facts.len_bytes else { return (serial, Order::Serial, Preparation::None) };
    let grows_from = len_bytes.max(extent.start);
    let grows_by = extent.end.saturating_sub(grows_from);
    // The gaps between ranges stay holes, so no blocks are allocated for them.
    let is_left_to_grow = grows_by > 0 && (!extent.is_gapless || growth == Growth::AsWritten);
    match facts.storage {
        _ if is_left_to_grow => (serial, Order::Serial, Preparation::None),
        Storage::LocalDisk if grows_by >= PREALLOCATE_BYTES as u64 => {
            (serial, Order::Serial, Preparation::Preallocate(grows_from, grows_by))
        }
        Storage::LocalDisk | Storage::Other => (serial, Order::Serial, Preparation::None),
        Storage::Tmpfs => {
            let most = if is_cut_freely { MAPPED_CHUNK_BYTES } else { usize::MAX };
            let chunk_bytes = parallel.chunk_bytes.min(most);
            let schedule = Schedule { chunk_bytes, last_bytes: LAST_BYTES, ..parallel };
            let order = Order::LastAlone { at_once: None };
            match growth {
                _ if grows_by == 0 => (schedule, order, Preparation::Map),
                // Allocating pages for one file after the other takes longer than writing several files at once.
                Growth::BesideOthers if grows_from > extent.start => {
                    (serial, Order::Serial, Preparation::None)
                }
                Growth::BesideOthers => (schedule, FILLING, Preparation::Fill),
                _ => (schedule, order, Preparation::AllocateAndMap(grows_from, grows_by)),
            }
        }
    }
}

/// Returns groups of neighbouring entries, each written together. A group has many bytes of one file, or few
/// bytes of each of several files. So the engine writes each file by the plan that is fastest for it.
pub(crate) fn groups<'e, 'a>(entries: &'e [Entry<'a>]) -> impl Iterator<Item = &'e [Entry<'a>]> {
    let mut rest = entries;
    iter::from_fn(move || {
        let mut len = 0;
        for one_file in rest.chunk_by(|one, next| ptr::eq(one.file, next.file)) {
            let bytes =
                one_file.iter().fold(0, |sum: usize, entry| sum.saturating_add(entry.memory.len_bytes));
            if bytes < SMALL_BYTES {
                len += one_file.len();
                continue;
            }
            if len == 0 {
                len = one_file.len();
            }
            break;
        }
        let group = rest.split_off(..len)?;
        (!group.is_empty()).then_some(group)
    })
}

#[cfg(test)]
mod tests;
