//! Chooses the fastest way to write a range.

use std::sync::Arc;
use std::{iter, ptr};

use crate::engine::{Cutting, Engine, Entries, Entry, IoRange, Side};
use crate::file::File;
use crate::memory::{Memory, Place};
use crate::open_file::{Mapping, OpenFile, Storage};

/// Carries out a write to one file.
///
/// A plan may make the file longer before the write begins. Nothing cuts it off again if the write fails: others may have
/// written there, and were told that their bytes are in the file.
pub(crate) struct WritePlan {
    pub side: Side,
    pub cutting: Cutting,
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

impl WritePlan {
    /// For one range.
    pub fn of_range(file: &File, memory: &Memory, offset: u64, growth: Growth) -> Self {
        let extent = Extent::of([(offset, memory.len_bytes)].into_iter());
        Self::new((file.open_file(), file.engine()), file.chunk_bytes(), memory.place, extent, growth)
    }

    /// For ranges of one buffer.
    pub fn of_ranges(file: &File, memory: &Memory, ranges: &[IoRange]) -> Self {
        let extent = Extent::of(ranges.iter().map(|range| (range.file_offset, range.len_bytes)));
        Self::new(
            (file.open_file(), file.engine()),
            file.chunk_bytes(),
            memory.place,
            extent,
            Growth::MayAllocate,
        )
    }

    /// For one of the [`pieces`] that this engine writes, alone or beside others.
    pub fn of_piece(engine: &Engine, piece: &[Entry<'_>], is_alone: bool) -> Self {
        let place = Entries::Each(piece).place();
        let extent = Extent::of(piece.iter().map(|entry| (entry.offset, entry.memory.len_bytes)));
        match piece {
            [first, others @ ..] if others.iter().all(|entry| ptr::eq(entry.file, first.file)) => {
                // To allocate tmpfs's pages one after the other takes longer than to write several files at once.
                let growth = match first.file.storage {
                    Storage::Tmpfs if !is_alone => Growth::AsWritten,
                    _ => Growth::MayAllocate,
                };
                Self::new((first.file, engine), None, place, extent, growth)
            }
            _ => Self::plain(engine.cutting(extent.total_bytes, place, None)),
        }
    }

    fn plain(cutting: Cutting) -> Self {
        Self { side: Side::Write, cutting }
    }

    fn new(
        (open, engine): (&OpenFile, &Engine),
        chunk_bytes: Option<usize>,
        place: Place,
        extent: Extent,
        growth: Growth,
    ) -> Self {
        let Extent { start, end, total_bytes, is_gapless } = extent;
        let parallel = Cutting { is_graded: false, ..engine.cutting(total_bytes, place, chunk_bytes) };
        let is_cut_freely = chunk_bytes.or(engine.settings().chunk_bytes()).is_none();
        if let Some(direct) = open.direct_for_write(total_bytes) {
            return Self::plain(if is_cut_freely { direct.cutting(parallel) } else { parallel });
        }
        let by_cufile = matches!(place, Place::Device(_)) && open.cufile(total_bytes).is_some();
        if total_bytes < SMALL_BYTES || by_cufile || open.storage == Storage::Other {
            return Self::plain(parallel);
        }
        let chunk_bytes =
            parallel.chunk_bytes.min(if is_cut_freely { SERIAL_CHUNK_BYTES } else { usize::MAX });
        let serial = Cutting { chunk_bytes, serial: true, ..parallel };
        let Ok(len_bytes) = open.len_bytes() else { return Self::plain(serial) };
        let grows_from = len_bytes.max(start);
        let grows_by = end.saturating_sub(grows_from);
        if grows_by > 0 && (!is_gapless || growth == Growth::AsWritten) {
            // What lies between ranges stays a hole.
            return Self::plain(serial);
        }
        if open.storage == Storage::LocalDisk {
            if grows_by >= PREALLOCATE_BYTES as u64 {
                // Without, it only takes longer.
                open.allocate(grows_from, grows_by, Keep::Size);
            }
            return Self::plain(serial);
        }
        let mapping = if grows_by == 0 {
            open.mapping_for_overwriting(start..end)
        } else if open.allocate(grows_from, grows_by, Keep::Nothing) {
            Mapping::for_writing_once(&open.file, start..end).ok().map(Arc::new)
        } else {
            None
        };
        match mapping {
            Some(mapping) => Self {
                side: Side::WriteMapping(mapping),
                cutting: Cutting { last_bytes: LAST_BYTES, ..parallel },
            },
            None => Self::plain(serial),
        }
    }
}

/// Entries that are written together, so that each file is written as is fastest for it: next to each other, and much of one
/// file or little of each of several.
pub(crate) fn pieces<'e, 'a>(entries: &'e [Entry<'a>]) -> impl Iterator<Item = &'e [Entry<'a>]> {
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
        let piece = rest.split_off(..len)?;
        (!piece.is_empty()).then_some(piece)
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

/// The property of a file that allocating blocks leaves as it was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The file's length.
    Size,
    /// The file becomes as long as what is allocated.
    Nothing,
}

#[cfg(test)]
mod tests;
