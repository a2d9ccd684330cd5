//! Chooses the fastest way to write a range.

use std::sync::Arc;
use std::{iter, ptr};

use super::schedule::{Order, Plan, Schedule};
use super::transfer::{Entries, Entry, Growth, Transfer};
use crate::memory::Place;
use crate::open_file::{FileSystem, Fill, Method, OpenFile};

/// The number of bytes below which no method is faster than one write call.
const SMALL_BYTES: usize = 1 << 20;
/// The most bytes in a chunk of a serial write. Larger ones leave the processor's cache between the two copies.
const SERIAL_CHUNK_BYTES: usize = 1 << 20;
/// The most bytes in a chunk of a write through a mapping. With larger ones, the bytes of all workers leave the shared
/// cache.
const MAPPED_CHUNK_BYTES: usize = 2 << 20;
/// The growth in bytes from which on the engine allocates a file's new blocks at once.
const PREALLOCATE_BYTES: usize = 16 << 20;
/// The number of bytes that a write call writes last. The kernel then notifies programs that watch the file.
const LAST_BYTES: usize = 4096;

/// The order of filling pages. More workers wait for each other where the kernel keeps the pages of a file.
const FILLING: Order = Order::LastAlone { at_once: Some(4) };

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

struct Facts {
    file_system: FileSystem,
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
    /// Blocks behind the end of the file: an offset, and a number of bytes. Without them, the write only takes longer.
    Preallocate(u64, u64),
    /// A mapping of the existing file.
    Map,
    /// Such blocks, which make the file longer, and a mapping.
    AllocateAndMap(u64, u64),
    /// New pages of a longer file.
    Fill,
}

impl Preparation {
    /// Carries out the steps. Returns the method, or `None` if a step failed.
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
    /// Plans and prepares a write of checked entries, which may make the file longer.
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
            file_system: open.file_system,
            direct: open.direct_for_write(total_bytes).map(|direct| direct.at_once),
            is_by_cufile: place != Place::Host && open.cufile(total_bytes).is_some(),
            // Short writes do without this system call.
            len_bytes: if total_bytes < SMALL_BYTES { None } else { open.len_bytes().ok() },
        }
    }
}

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
    if extent.total_bytes < SMALL_BYTES || facts.is_by_cufile || facts.file_system == FileSystem::Other {
        return (parallel, Order::ANY, Preparation::None);
    }
    let serial = serial(parallel, is_cut_freely);
    let Some(len_bytes) = facts.len_bytes else { return (serial, Order::Serial, Preparation::None) };
    let grows_from = len_bytes.max(extent.start);
    let grows_by = extent.end.saturating_sub(grows_from);
    // The gaps between ranges stay holes, so no blocks are allocated for them.
    let is_left_to_grow = grows_by > 0 && (!extent.is_gapless || growth == Growth::AsWritten);
    match facts.file_system {
        _ if is_left_to_grow => (serial, Order::Serial, Preparation::None),
        FileSystem::LocalDisk if grows_by >= PREALLOCATE_BYTES as u64 => {
            (serial, Order::Serial, Preparation::Preallocate(grows_from, grows_by))
        }
        FileSystem::LocalDisk | FileSystem::Other => (serial, Order::Serial, Preparation::None),
        FileSystem::Tmpfs => {
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

/// Returns groups of neighbouring entries that are written together: many bytes of one file, or few of each of several
/// files. So each file has the plan that is fastest for it.
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
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::super::chunks::Chunks;
    use super::super::transfer::{Choices, IoRange};
    use super::*;
    use crate::direction::Direction;
    use crate::memory::Memory;
    use crate::settings::{DirectIo, Settings};

    const MIB: usize = 1 << 20;

    fn settings() -> Settings {
        Settings { threads: 4, ..Settings::default() }
    }

    fn open_with(file_system: FileSystem, direct_write: DirectIo) -> OpenFile {
        let settings = Settings { direct_write, ..settings() };
        let mut open = OpenFile::for_test(tempfile::tempfile().unwrap(), settings);
        open.file_system = file_system;
        open
    }

    fn open(file_system: FileSystem, len_bytes: usize) -> OpenFile {
        let open = open_with(file_system, DirectIo::Never);
        open.file.set_len(len_bytes as u64).unwrap();
        open
    }

    fn plan(open: &OpenFile, ranges: &[(usize, usize)], growth: Growth) -> Plan {
        plan_as(open, ranges, Choices { chunk_bytes: None, growth, is_inline: false, each: false })
    }

    fn plan_as(open: &OpenFile, ranges: &[(usize, usize)], choices: Choices) -> Plan {
        let range = |&(offset, len_bytes): &(usize, usize)| IoRange {
            file_offset: offset as u64,
            buffer_offset: 0,
            len_bytes,
        };
        let ranges: Vec<_> = ranges.iter().map(range).collect();
        let memory = Memory::on_host(ptr::without_provenance_mut(1 << 32), usize::MAX >> 1);
        Plan::of_write(&Transfer::of_file(Direction::Write, open, memory, &ranges, choices))
    }

    fn plan_group(entries: &[Entry<'_>], growth: Growth) -> Plan {
        let transfer = Transfer::for_test(Direction::Write, Entries::Requests(entries));
        let choices = Choices { growth, ..transfer.choices };
        Plan::of_write(&Transfer { settings: &settings(), choices, ..transfer })
    }

    fn asked(chunk_bytes: usize) -> Choices {
        Choices { chunk_bytes: Some(chunk_bytes), growth: Growth::MayAllocate, is_inline: false, each: false }
    }

    fn metadata(open: &OpenFile) -> fs::Metadata {
        open.file.metadata().unwrap()
    }

    fn is_mapped(plan: &Plan) -> bool {
        // A write call writes the last bytes, for programs that watch the file.
        assert_eq!(!matches!(plan.method, Method::Calls), plan.schedule.last_bytes == 4096);
        assert_eq!(matches!(plan.order, Order::LastAlone { .. }), plan.schedule.last_bytes > 0);

        assert!(!plan.schedule.is_graded);
        plan.schedule.last_bytes > 0
    }

    #[test]
    fn extents_cover_all_their_ranges() {
        for (ranges, start, end, total, is_gapless) in [
            (vec![], 0, 0, 0, true),
            (vec![(7, 0)], 0, 0, 0, true),
            (vec![(7, 3)], 7, 10, 3, true),
            (vec![(7, 3), (10, 2)], 7, 12, 5, true),
            (vec![(7, 3), (u64::MAX, 0), (10, 2)], 7, 12, 5, true),
            (vec![(7, 3), (11, 2)], 7, 13, 5, false),
            (vec![(10, 2), (7, 3)], 7, 12, 5, false),
            (vec![(7, 3), (9, 2)], 7, 11, 5, false),
            (vec![(7, 3), (10, 2), (20, 1), (21, 1)], 7, 22, 7, false),
            (vec![(0, 3), (u64::MAX - 1, 7)], 0, u64::MAX, 10, false),
        ] {
            let extent = Extent::of(ranges.iter().copied());
            assert_eq!((extent.start, extent.end, extent.total_bytes), (start, end, total), "{ranges:?}");
            assert_eq!(extent.is_gapless, is_gapless, "{ranges:?}");
        }
    }

    #[test]
    fn tmpfs_files_are_written_through_a_mapping() {
        for (ranges, expected) in [
            (vec![(0, MIB)], true),
            (vec![(0, MIB - 1)], false),
            (vec![(3 * MIB, MIB)], true),
            // Gaps within the file do not matter.
            (vec![(0, MIB), (2 * MIB, 100)], true),
            (vec![(0, MIB / 2), (MIB, MIB / 2 - 1)], false),
        ] {
            for growth in [Growth::MayAllocate, Growth::AsWritten] {
                let open = open(FileSystem::Tmpfs, 4 * MIB);
                let plan = plan(&open, &ranges, growth);
                assert_eq!(is_mapped(&plan), expected, "{ranges:?}");
                assert!(plan.order != Order::Serial);
                assert_eq!(metadata(&open).len(), 4 * MIB as u64);
            }
        }
    }

    #[test]
    fn growing_tmpfs_files_are_allocated_at_once() {
        for (ranges, growth, becomes) in [
            (vec![(4 * MIB, MIB)], Growth::MayAllocate, Some(5 * MIB)),
            (vec![(3 * MIB, MIB), (4 * MIB, 77)], Growth::MayAllocate, Some(4 * MIB + 77)),
            // The gap before the write stays a hole.
            (vec![(64 * MIB, MIB)], Growth::MayAllocate, Some(65 * MIB)),
            (vec![(4 * MIB, MIB)], Growth::AsWritten, None),
            (vec![(3 * MIB, MIB), (4 * MIB + 1, 77)], Growth::MayAllocate, None),
        ] {
            let open = open(FileSystem::Tmpfs, 4 * MIB);
            let plan = plan(&open, &ranges, growth);
            let found = metadata(&open);
            assert_eq!(found.len(), becomes.unwrap_or(4 * MIB) as u64, "{ranges:?}");
            assert!(found.blocks() * 512 <= 2 * MIB as u64, "{ranges:?}: {} blocks", found.blocks());
            assert_eq!(is_mapped(&plan), becomes.is_some(), "{ranges:?}");
            assert_eq!(plan.order == Order::Serial, becomes.is_none(), "{ranges:?}");
        }
    }

    #[test]
    fn refused_writes_leave_the_file_as_it_is() {
        let open = open(FileSystem::Tmpfs, 0);
        let memory = Memory::on_host(ptr::without_provenance_mut(1 << 32), 2 * MIB);
        let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: MIB };
        let choices =
            Choices { chunk_bytes: None, growth: Growth::MayAllocate, is_inline: false, each: false };
        for (ranges, refused) in [
            ([range(0, 0), range(MIB as u64, MIB + 1)], Some(1)),
            ([range(0, 0), range(MIB as u64, MIB)], None),
        ] {
            let transfer = Transfer::of_file(Direction::Write, &open, memory, &ranges, choices);
            let planned = Chunks::default().plan(&transfer, 0, |_| None);
            assert_eq!(planned.map_err(|stop| stop.entry).err(), refused);
            let len_bytes = if refused.is_some() { 0 } else { 2 * MIB as u64 };
            assert_eq!(metadata(&open).len(), len_bytes);
        }
    }

    #[test]
    fn one_worker_writes_a_file_on_disk() {
        for (ranges, allocated) in [
            (vec![(0, 8 * MIB)], 0),
            (vec![(4 * MIB, 20 * MIB - 1)], 0),
            (vec![(4 * MIB, 20 * MIB)], 16 * MIB),
            (vec![(12 * MIB, 24 * MIB)], 24 * MIB),
            (vec![(12 * MIB, 8 * MIB), (24 * MIB, 8 * MIB)], 0),
        ] {
            let open = open(FileSystem::LocalDisk, 8 * MIB);
            let plan = plan(&open, &ranges, Growth::MayAllocate);
            assert!(plan.order == Order::Serial && !is_mapped(&plan), "{ranges:?}");
            let total = ranges.iter().map(|(_, len_bytes)| len_bytes).sum();
            let parallel = Schedule::new(&open.settings, total, Place::Host, None);
            assert_eq!(plan.schedule.chunk_bytes, parallel.chunk_bytes.min(MIB), "{ranges:?}");
            let found = metadata(&open);
            assert_eq!(found.len(), 8 * MIB as u64, "{ranges:?}");
            let stored = found.blocks() as usize * 512;
            assert!((allocated..allocated + MIB / 2).contains(&stored), "{ranges:?}: {stored} bytes");
        }
    }

    #[test]
    fn all_workers_write_files_on_other_storage() {
        let open = open(FileSystem::Other, 0);
        let plan = plan(&open, &[(0, 64 * MIB)], Growth::MayAllocate);
        assert!(plan.order != Order::Serial && !is_mapped(&plan));
        assert!(plan.schedule.chunk_bytes > MIB);
        assert_eq!((metadata(&open).len(), metadata(&open).blocks()), (0, 0));
    }

    #[test]
    fn requested_chunk_lengths_are_kept() {
        for file_system in [FileSystem::LocalDisk, FileSystem::Other, FileSystem::Tmpfs] {
            let open = open(file_system, 64 * MIB);
            for chunk_bytes in [1000, 3 * MIB] {
                let plan = plan_as(&open, &[(0, 64 * MIB)], asked(chunk_bytes));
                assert_eq!(plan.schedule.chunk_bytes, chunk_bytes, "{file_system:?}");
            }
        }
    }

    #[test]
    fn chunks_of_direct_writes_match_the_device() {
        let open = open_with(FileSystem::LocalDisk, DirectIo::Always);
        if open.direct_for_write(MIB).is_none() {
            return eprintln!("skipped: no O_DIRECT here");
        }
        let plan = plan(&open, &[(0, 64 * MIB)], Growth::MayAllocate);
        assert_eq!((plan.schedule.chunk_bytes, plan.order == Order::Serial), (MIB, false));
        assert!(!is_mapped(&plan));
        let plan = plan_as(&open, &[(0, 64 * MIB)], asked(3 * MIB));
        assert_eq!(plan.schedule.chunk_bytes, 3 * MIB);
    }

    #[test]
    fn long_files_are_groups_and_short_ones_share_them() {
        let files: Vec<_> = (0..4).map(|_| open(FileSystem::Other, 0)).collect();
        let entry = |file: usize, len_bytes: usize| Entry {
            file: &files[file],
            offset: 0,
            memory: Memory::on_host(ptr::without_provenance_mut(1 << 32), len_bytes),
        };
        for (entries, expected) in [
            (vec![], vec![]),
            (vec![(0, 0)], vec![1]),
            (vec![(0, MIB)], vec![1]),
            (vec![(0, MIB / 2), (0, MIB / 2), (1, 5), (2, MIB - 1), (3, MIB)], vec![2, 2, 1]),
            (vec![(0, 5), (1, 5), (2, MIB), (2, 5), (3, 5), (0, 5), (1, MIB)], vec![2, 2, 2, 1]),
            (vec![(0, MIB), (1, MIB), (0, MIB), (0, MIB)], vec![1, 1, 2]),
        ] {
            let list: Vec<_> = entries.iter().map(|(file, len_bytes)| entry(*file, *len_bytes)).collect();
            let found: Vec<_> = groups(&list).map(<[Entry<'_>]>::len).collect();
            assert_eq!(found, expected, "{entries:?}");
        }
    }

    #[test]
    fn groups_of_several_files_are_written_by_all_workers() {
        let files = [open(FileSystem::LocalDisk, 8 * MIB), open(FileSystem::LocalDisk, 8 * MIB)];
        let entry = |file: usize, offset: u64| Entry {
            file: &files[file],
            offset,
            memory: Memory::on_host(ptr::without_provenance_mut(1 << 32), MIB),
        };
        let mixed = plan_group(&[entry(0, 0), entry(1, 0)], Growth::MayAllocate);
        assert!(mixed.order == Order::ANY && !is_mapped(&mixed));
        let one_file = plan_group(&[entry(0, 0), entry(0, MIB as u64)], Growth::MayAllocate);
        assert_eq!(one_file.order, Order::Serial);
    }

    #[test]
    fn files_that_cannot_be_filled_grow_while_written() {
        for (growth, is_alone) in [(Growth::MayAllocate, true), (Growth::BesideOthers, false)] {
            let file = open(FileSystem::Tmpfs, 0);
            let memory = Memory::on_host(ptr::without_provenance_mut(1 << 32), 2 * MIB);
            let plan = plan_group(&[Entry { file: &file, offset: 0, memory }], growth);
            assert_eq!((is_mapped(&plan), plan.order == Order::Serial), (is_alone, !is_alone));
        }
    }

    #[test]
    fn facts_decide_how_a_file_is_written() {
        let parallel = Schedule { chunk_bytes: 4 * MIB, is_graded: true, ..Schedule::default() };
        let even = Schedule { is_graded: false, ..parallel };
        let serial = Schedule { chunk_bytes: MIB, ..even };
        let mapped = Schedule { chunk_bytes: 2 * MIB, last_bytes: 4096, ..even };
        let long = Facts {
            file_system: FileSystem::Tmpfs,
            direct: None,
            is_by_cufile: false,
            len_bytes: Some(64 * MIB as u64),
        };
        let by = 32 * MIB as u64;
        for (facts, offset, expected) in [
            (Facts { ..long }, 0, (mapped, Order::LastAlone { at_once: None }, Preparation::Map)),
            (
                Facts { ..long },
                64 * MIB,
                (
                    mapped,
                    Order::LastAlone { at_once: None },
                    Preparation::AllocateAndMap(64 * MIB as u64, by),
                ),
            ),
            (
                Facts { ..long },
                48 * MIB,
                (
                    mapped,
                    Order::LastAlone { at_once: None },
                    Preparation::AllocateAndMap(64 * MIB as u64, by / 2),
                ),
            ),
            (
                Facts { file_system: FileSystem::LocalDisk, ..long },
                0,
                (serial, Order::Serial, Preparation::None),
            ),
            (
                Facts { file_system: FileSystem::LocalDisk, ..long },
                64 * MIB,
                (serial, Order::Serial, Preparation::Preallocate(64 * MIB as u64, by)),
            ),
            (Facts { file_system: FileSystem::Other, ..long }, 0, (even, Order::ANY, Preparation::None)),
            (Facts { is_by_cufile: true, ..long }, 0, (even, Order::ANY, Preparation::None)),
            (Facts { len_bytes: None, ..long }, 0, (serial, Order::Serial, Preparation::None)),
            (
                Facts { direct: Some(Some(8)), ..long },
                0,
                (even.for_disk(), Order::Any { at_once: Some(8) }, Preparation::None),
            ),
        ] {
            let extent = Extent::of([(offset as u64, 32 * MIB)].into_iter());
            let found = choose(&facts, parallel, true, extent, Growth::MayAllocate);
            assert_eq!(found, expected, "{:?} at {offset}", facts.file_system);
        }
        let filled = (mapped, Order::LastAlone { at_once: Some(4) }, Preparation::Fill);
        let grown = (serial, Order::Serial, Preparation::None);
        let over = (mapped, Order::LastAlone { at_once: None }, Preparation::Map);
        for (offset, expected) in [(64 * MIB, filled), (65 * MIB, filled), (48 * MIB, grown), (0, over)] {
            let extent = Extent::of([(offset as u64, 32 * MIB)].into_iter());
            assert_eq!(choose(&long, parallel, true, extent, Growth::BesideOthers), expected, "{offset}");
        }
        // The caller's length of chunks stays.
        let extent = Extent::of([(0, 32 * MIB)].into_iter());
        let (schedule, ..) = choose(&long, parallel, false, extent, Growth::MayAllocate);
        assert_eq!(schedule, Schedule { chunk_bytes: 4 * MIB, ..mapped });
    }
}
