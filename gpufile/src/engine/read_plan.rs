//! Chooses the schedule of a read.

use super::schedule::{DISK_CHUNK_BYTES, Schedule};
use super::transfer::Entries;
use crate::memory::Place;
use crate::open_file::OpenFile;
use crate::settings::Settings;

/// The facts about a file that decide how it is read.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    /// True if the kernel generates the contents as they are read.
    is_generated: bool,
    /// The most requests at a time, if the read uses `O_DIRECT`. The inner `None` stands for no limit.
    direct: Option<Option<usize>>,
}

/// Returns the schedule of a read of `total_bytes`, whose first range has `first_bytes` at `offset`.
pub(crate) fn of_file(
    open: &OpenFile,
    chunk_bytes: Option<usize>,
    place: Place,
    total_bytes: usize,
    (offset, first_bytes): (u64, usize),
) -> Schedule {
    let schedule = Schedule::new(&open.settings, total_bytes, place, chunk_bytes);
    for_file(open, schedule, chunk_bytes.or(open.settings.chunk_bytes).is_none(), offset, first_bytes)
}

/// Returns the schedule with which an engine of these settings reads entries, of which there is at least one.
/// The file of the first entry decides for all.
pub(crate) fn of_entries(settings: &Settings, entries: &Entries<'_>) -> Schedule {
    let schedule = Schedule::new(settings, entries.total_bytes(), entries.place(), None);
    let first = entries.get(0);
    for_file(first.file, schedule, settings.chunk_bytes.is_none(), first.offset, first.len_bytes)
}

fn for_file(
    open: &OpenFile,
    schedule: Schedule,
    is_cut_freely: bool,
    offset: u64,
    first_bytes: usize,
) -> Schedule {
    let is_long = first_bytes > DISK_CHUNK_BYTES;
    let facts = Facts {
        is_generated: first_bytes > schedule.chunk_bytes && open.is_generated(),
        direct: match is_cut_freely && is_long {
            true => open.direct_for_long_read(offset, first_bytes).map(|direct| direct.at_once),
            false => None,
        },
    };
    choose(facts, schedule)
}

/// Adapts the schedule for all workers to the file. Chunks of generated contents are read in order, because
/// the kernel also generates the bytes before each chunk. A long read with `O_DIRECT` gets the chunk lengths
/// that disks are fastest with.
fn choose(facts: Facts, schedule: Schedule) -> Schedule {
    match facts {
        Facts { is_generated: true, .. } => Schedule { is_serial: true, ..schedule },
        Facts { direct: Some(at_once), .. } => schedule.for_disk(at_once),
        _ => schedule,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_the_schedule_of_all_workers() {
        let schedule = Schedule { chunk_bytes: 4 << 20, is_graded: true, ..Schedule::default() };
        assert_eq!(choose(Facts::default(), schedule), schedule);
        let generated = Facts { is_generated: true, ..Facts::default() };
        assert_eq!(choose(generated, schedule), Schedule { is_serial: true, ..schedule });
        let direct = Facts { direct: Some(Some(4)), ..Facts::default() };
        let expected = Schedule { chunk_bytes: 1 << 20, is_graded: false, at_once: Some(4), ..schedule };
        assert_eq!(choose(direct, schedule), expected);
    }
}
