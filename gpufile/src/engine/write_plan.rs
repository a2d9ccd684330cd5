//! Chooses the fastest way to write a range.

use std::{iter, ptr};

use super::schedule::Schedule;
use super::transfer::{Entries, Entry, IoRange};
use crate::memory::{Memory, Place};
use crate::open_file::{Method, OpenFile, Storage};
use crate::settings::Settings;

/// Carries out a write to one file.
///
/// A plan may make the file longer before the write begins. Nothing cuts it off again if the write fails: others may have
/// written there, and were told that their bytes are in the file.
pub(crate) struct WritePlan {
    pub method: Method,
    pub schedule: Schedule,
}

/// Below this, one write call is as fast as anything.
const SMALL_BYTES: usize = 1 << 20;
/// Larger pieces leave the processor's cache between the copy from the GPU and the copy to the page cache.
const SERIAL_CHUNK_BYTES: usize = 1 << 20;
/// From here on, a file that grows gets its blocks at once.
const PREALLOCATE_BYTES: usize = 16 << 20;
/// The number of bytes that a write call writes last, so that the kernel notifies programs that watch the
/// file.
const LAST_BYTES: usize = 4096;

/// The part of a file that a write covers.
#[derive(Clone, Copy)]
struct Extent {
    start: u64,
    end: u64,
    total_bytes: usize,
    /// Each range begins where the one before ends.
    is_gapless: bool,
}

impl Extent {
    fn of(ranges: impl Iterator<Item = (u64, usize)>) -> Self {
        let empty = Self { start: u64::MAX, end: 0, total_bytes: 0, is_gapless: true };
        // Empty ranges may lie anywhere, and leave the file as long as it is.
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
    /// The number of requests at once, if the write goes by `O_DIRECT`.
    direct: Option<Option<usize>>,
    is_by_cufile: bool,
    /// The length of the file in bytes; `None` if the kernel does not tell.
    len_bytes: Option<u64>,
}

/// The steps before a write, and the method that they make possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preparation {
    /// None: the method is a system call, or cuFile.
    None,
    /// Blocks for so many bytes from an offset on, behind the end of the file. Without, it only takes longer.
    Preallocate(u64, u64),
    /// A mapping of the existing file.
    Map,
    /// Storage for so many bytes from an offset on, which makes the file longer, and a mapping.
    AllocateAndMap(u64, u64),
}

impl WritePlan {
    /// For one range.
    pub fn of_range(
        open: &OpenFile,
        chunk_bytes: Option<usize>,
        memory: &Memory,
        offset: u64,
        growth: Growth,
    ) -> Self {
        let extent = Extent::of([(offset, memory.len_bytes)].into_iter());
        Self::new(open, &open.settings, chunk_bytes, memory.place, extent, growth)
    }

    /// For ranges of one buffer.
    pub fn of_ranges(
        open: &OpenFile,
        chunk_bytes: Option<usize>,
        memory: &Memory,
        ranges: &[IoRange],
    ) -> Self {
        let extent = Extent::of(ranges.iter().map(|range| (range.file_offset, range.len_bytes)));
        Self::new(open, &open.settings, chunk_bytes, memory.place, extent, Growth::MayAllocate)
    }

    /// For one of the [`groups`] that an engine of these settings writes, alone or beside others.
    pub fn of_group(settings: &Settings, group: &[Entry<'_>], is_alone: bool) -> Self {
        let place = Entries::Each(group).place();
        let extent = Extent::of(group.iter().map(|entry| (entry.offset, entry.memory.len_bytes)));
        match group {
            [first, others @ ..] if others.iter().all(|entry| ptr::eq(entry.file, first.file)) => {
                // To allocate tmpfs's pages one after the other takes longer than to write several files at once.
                let growth = match first.file.storage {
                    Storage::Tmpfs if !is_alone => Growth::AsWritten,
                    _ => Growth::MayAllocate,
                };
                Self::new(first.file, settings, None, place, extent, growth)
            }
            _ => Self::plain(Schedule::new(settings, extent.total_bytes, place, None)),
        }
    }

    fn plain(schedule: Schedule) -> Self {
        Self { method: Method::Write, schedule }
    }

    fn new(
        open: &OpenFile,
        settings: &Settings,
        chunk_bytes: Option<usize>,
        place: Place,
        extent: Extent,
        growth: Growth,
    ) -> Self {
        let total_bytes = extent.total_bytes;
        let is_cut_freely = chunk_bytes.or(settings.chunk_bytes).is_none();
        let parallel = Schedule::new(settings, total_bytes, place, chunk_bytes);
        let facts = Facts {
            storage: open.storage,
            direct: open.direct_for_write(total_bytes).map(|direct| direct.at_once),
            is_by_cufile: place != Place::Host && open.cufile(total_bytes).is_some(),
            // A system call that short writes do without.
            len_bytes: if total_bytes < SMALL_BYTES { None } else { open.len_bytes().ok() },
        };
        let (schedule, preparation) = choose(&facts, parallel, is_cut_freely, extent, growth);
        let mapping = match preparation {
            Preparation::None => return Self::plain(schedule),
            Preparation::Preallocate(from, by) => {
                open.preallocate(from, by);
                return Self::plain(schedule);
            }
            Preparation::Map => open.mapping_for_overwriting(extent.start..extent.end),
            Preparation::AllocateAndMap(from, by) if open.allocate(from, by) => {
                open.mapping_for_writing_once(extent.start..extent.end)
            }
            Preparation::AllocateAndMap(..) => None,
        };
        match mapping {
            Some(mapping) => Self { method: Method::WriteMapping(mapping), schedule },
            None => Self::plain(serial(parallel, is_cut_freely)),
        }
    }
}

/// Returns the schedule of a write by one worker at a time.
fn serial(parallel: Schedule, is_cut_freely: bool) -> Schedule {
    let most = if is_cut_freely { SERIAL_CHUNK_BYTES } else { usize::MAX };
    let chunk_bytes = parallel.chunk_bytes.min(most);
    Schedule { chunk_bytes, is_serial: true, is_graded: false, ..parallel }
}

/// Chooses the schedule and the preparation of a write, from `parallel`, the schedule for all workers.
fn choose(
    facts: &Facts,
    parallel: Schedule,
    is_cut_freely: bool,
    extent: Extent,
    growth: Growth,
) -> (Schedule, Preparation) {
    let parallel = Schedule { is_graded: false, ..parallel };
    if let Some(at_once) = facts.direct {
        let schedule = if is_cut_freely { parallel.for_disk(at_once) } else { parallel };
        return (schedule, Preparation::None);
    }
    if extent.total_bytes < SMALL_BYTES || facts.is_by_cufile || facts.storage == Storage::Other {
        return (parallel, Preparation::None);
    }
    let serial = serial(parallel, is_cut_freely);
    let Some(len_bytes) = facts.len_bytes else { return (serial, Preparation::None) };
    let grows_from = len_bytes.max(extent.start);
    let grows_by = extent.end.saturating_sub(grows_from);
    // The gaps between ranges stay holes.
    let is_left_to_grow = grows_by > 0 && (!extent.is_gapless || growth == Growth::AsWritten);
    match facts.storage {
        _ if is_left_to_grow => (serial, Preparation::None),
        Storage::LocalDisk if grows_by >= PREALLOCATE_BYTES as u64 => {
            (serial, Preparation::Preallocate(grows_from, grows_by))
        }
        Storage::LocalDisk | Storage::Other => (serial, Preparation::None),
        Storage::Tmpfs => {
            let schedule = Schedule { last_bytes: LAST_BYTES, ..parallel };
            match grows_by {
                0 => (schedule, Preparation::Map),
                _ => (schedule, Preparation::AllocateAndMap(grows_from, grows_by)),
            }
        }
    }
}

/// Entries that are written together, so that each file is written as is fastest for it: next to each other, and much of one
/// file or little of each of several.
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

/// The way in which a file becomes longer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Blocks may be allocated before the write begins, which takes time.
    MayAllocate,
    /// By the write alone.
    AsWritten,
}

#[cfg(test)]
mod tests;
