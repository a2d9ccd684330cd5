//! The lengths of a transfer's chunks, and the order in which workers get them. The plan of a write adapts that of a read.

use std::num::NonZero;

use super::transfer::{Segment, Transfer};
use crate::direction::Direction;
use crate::memory::Place;
use crate::open_file::{Method, OpenFile};
use crate::settings::Settings;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub chunk_bytes: usize,
    /// The most entries in one chunk; `None` for no limit.
    pub most_entries: Option<NonZero<usize>>,
    /// True if the first chunks are shorter, each longer than the one before.
    pub is_graded: bool,
    /// The length in bytes up to which shorter chunks grow in a transfer of many, so that the list stays short; 0 for no
    /// growth.
    pub grows_to: usize,
    /// The number of chunks of the same call in earlier jobs.
    pub chunks_before: usize,
    /// The length in bytes of the last chunk, carried out when the others are done; 0 for no such chunk.
    pub last_bytes: usize,
    /// True if a chunk within one packed tensor has as many bytes in the file as others have altogether.
    pub counts_packed: bool,
}

/// The order of handing out chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As workers ask. At most `at_once` chunks of one place are out at a time; `None` for no limit.
    Any { at_once: Option<usize> },
    /// One at a time.
    Serial,
    /// As [`Any`](Self::Any), but the last chunk when the others are completed.
    LastAlone { at_once: Option<usize> },
}

impl Order {
    pub const ANY: Self = Order::Any { at_once: None };

    /// Returns whether a chunk may depend on the chunks before it.
    pub fn is_fixed(self) -> bool {
        !matches!(self, Order::Any { .. })
    }
}

/// The method, the lengths of the chunks, and their order.
#[derive(Clone)]
pub(crate) struct Plan {
    pub method: Method,
    pub schedule: Schedule,
    pub order: Order,
}

impl Plan {
    /// Plans a read that the workers begin after `bytes_before` bytes of other reads. For long transfers, `busy` returns the
    /// number of GPUs with transfers, and that of the workers of each.
    pub fn of_read(
        transfer: &Transfer<'_>,
        bytes_before: usize,
        busy: impl FnOnce(u64) -> Option<(usize, usize)>,
    ) -> Self {
        let method = transfer.entries.only_file().map_or(Method::Calls, OpenFile::read_method);
        let (schedule, order) = Schedule::of_read(transfer, bytes_before);
        let gpus = schedule.gpus_to_share(transfer);
        let busy = if gpus == 0 { None } else { busy(gpus) };
        let shared = |(busy, threads)| schedule.beside(transfer, gpus, busy, threads);
        Self { method, schedule: busy.map_or(schedule, shared), order }
    }
}

/// The fewest bytes that are worth a worker, unless the transfer has fewer.
const SMALLEST: usize = 512 << 10;

/// The same for a GPU, whose copies run while workers read and write.
const SMALLEST_COPY: usize = 256 << 10;

/// The number of chunks for each worker, unless they would be too short or too long.
const TURNS: usize = 5;

/// The bytes of a chunk for each entry that it may have. In long lists, each chunk may have as many entries as one that
/// fills a bounce buffer.
const BYTES_FOR_ENTRY: usize = 256;

/// The source of the bytes of a long read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    PageCache,
    /// A disk, by `O_DIRECT`. It takes `at_once` requests at a time; `None` for no limit.
    Disk {
        at_once: Option<usize>,
    },
    /// The kernel, which generates the contents as they are read.
    Generated,
    /// A server, asked for at most `most_bytes` at a time; `None` for no limit.
    Server {
        most_bytes: Option<usize>,
    },
}

impl Schedule {
    /// Returns the schedule of a read of entries, of which there is at least one. The file of the first entry decides for
    /// all.
    fn of_read(transfer: &Transfer<'_>, bytes_before: usize) -> (Self, Order) {
        let Transfer { entries, settings, choices, .. } = transfer;
        let total_bytes = entries.total_bytes().saturating_add(bytes_before);
        let schedule = Self::new(settings, total_bytes, entries.place(), choices.chunk_bytes);
        // The GPU has something to copy until the first chunk is there.
        let schedule = Self { is_graded: schedule.is_graded && bytes_before == 0, ..schedule };
        let (first, is_asked) = (entries.get(0), transfer.has_asked_lengths());
        match first.file.stored().and_then(|stored| stored.packed()) {
            Some(packed) if !is_asked => {
                let (file, offset) = packed.source(first.offset);
                Self { counts_packed: true, ..schedule }
                    .for_file(&Segment { file, offset, ..first }, is_asked)
            }
            _ => schedule.for_file(&first, is_asked),
        }
    }

    /// Asks the file for the source, if the first range is so long that it matters.
    fn for_file(self, first: &Segment<'_>, is_asked: bool) -> (Self, Order) {
        let Segment { file, offset, len_bytes, .. } = *first;
        let direct = || match !is_asked && len_bytes > DISK_CHUNK_BYTES {
            true => file.direct_for_long_read(offset, len_bytes),
            false => None,
        };
        self.for_source(if let Some(stored) = file.stored().filter(|_| !is_asked) {
            Source::Server { most_bytes: stored.most_part_bytes() }
        } else if len_bytes > self.chunk_bytes && file.is_generated() {
            Source::Generated
        } else if let Some(direct) = direct() {
            Source::Disk { at_once: direct.at_once }
        } else {
            Source::PageCache
        })
    }

    /// Adapts the schedule of a read to the source. Chunks of generated contents are read in order, because
    /// the kernel also generates the bytes before each chunk.
    fn for_source(self, source: Source) -> (Self, Order) {
        match source {
            Source::PageCache => (self, Order::ANY),
            Source::Disk { at_once } => (self.for_disk(), Order::Any { at_once }),
            Source::Generated => (self, Order::Serial),
            Source::Server { most_bytes } => (self.for_server(most_bytes), Order::ANY),
        }
    }

    /// Chooses the chunk lengths for transfers of `total_bytes` together. Without `chunk_bytes`, the settings decide,
    /// or else the size of the transfer.
    ///
    /// Chunks are long enough to be worth a copy, and each worker gets several, so that all end together. For a GPU, the
    /// first chunks are shorter, each of another length, so that it soon gets copies, and not all at once.
    pub fn new(settings: &Settings, total_bytes: usize, place: Place, chunk_bytes: Option<usize>) -> Self {
        let buffer = settings.bounce_buffer_bytes;
        let asked = chunk_bytes.or(settings.chunk_bytes);
        let smallest = if place == Place::Host { SMALLEST } else { SMALLEST_COPY };
        let chunk_bytes = match (asked, place) {
            (Some(bytes), Place::Host) => bytes,
            (Some(bytes), Place::Device(_)) => bytes.min(buffer),
            (None, _) => Self::share(total_bytes, settings.threads).max(smallest).min(buffer),
        };
        let grows_to = if place == Place::Host { DISK_CHUNK_BYTES } else { DISK_CHUNK_BYTES.min(buffer) };
        let is_graded = asked.is_none() && chunk_bytes > smallest && place != Place::Host;
        // The bounce buffer has room for a table of the places of so many ranges.
        let most_entries = match place {
            Place::Host => None,
            Place::Device(_) => NonZero::new((chunk_bytes / BYTES_FOR_ENTRY).max(1)),
        };
        Self { chunk_bytes, most_entries, is_graded, grows_to, ..Self::default() }
    }

    /// Returns the length of the chunks of which each worker gets [`TURNS`].
    fn share(total_bytes: usize, threads: usize) -> usize {
        (total_bytes / threads.saturating_mul(TURNS)).next_multiple_of(64 << 10)
    }

    /// Returns this schedule for a list. If each worker would get many chunks of few bytes, they may have more entries.
    pub fn for_list(self, count: usize, threads: usize, buffer_bytes: usize) -> Self {
        let share = (count / threads.saturating_mul(TURNS)).min(buffer_bytes / BYTES_FOR_ENTRY);
        let most = |most: NonZero<usize>| NonZero::new(share).map_or(most, |share| most.max(share));
        Self { most_entries: self.most_entries.map(most), ..self }
    }

    pub fn gpus_to_share(&self, transfer: &Transfer<'_>) -> u64 {
        let is_read = transfer.direction == Direction::Read;
        let is_long = is_read && self.chunk_bytes > SMALLEST && !transfer.has_asked_lengths();
        if is_long { transfer.entries.gpus() } else { 0 }
    }

    /// Returns this schedule while `busy` GPUs have transfers, each with `threads` workers. All of them together then fill
    /// no more of their bounce buffers than the processor's cache has room for.
    pub fn beside(self, transfer: &Transfer<'_>, gpus: u64, busy: usize, threads: usize) -> Self {
        // Each GPU has a part of the bytes.
        let bytes_for_each = transfer.entries.total_bytes() / gpus.count_ones().max(1) as usize;
        self.shared(bytes_for_each, busy, threads)
    }

    fn shared(self, bytes_for_each: usize, busy: usize, threads: usize) -> Self {
        /// The most bytes of a chunk for all GPUs together.
        const FOR_ALL: usize = 3584 << 10;
        let most =
            (FOR_ALL / busy.max(1)).min(Self::share(bytes_for_each, threads)).next_multiple_of(64 << 10);
        Self { chunk_bytes: most.max(SMALLEST).min(self.chunk_bytes), ..self }
    }

    /// Returns the most bytes that the chunk with this number may have.
    pub fn chunk_len(&self, chunk: usize) -> usize {
        const FIRST: usize = 256 << 10;
        const LONGER: usize = 64 << 10;
        /// The number of chunks after which chunks have twice the length.
        const OF_ONE_LENGTH: usize = 4096;
        let number = self.chunks_before + chunk;
        if self.chunk_bytes < self.grows_to && number >= OF_ONE_LENGTH {
            let doublings = u32::try_from(number / OF_ONE_LENGTH).unwrap_or(u32::MAX);
            let times = 1usize.checked_shl(doublings).unwrap_or(usize::MAX);
            return self.chunk_bytes.saturating_mul(times).min(self.grows_to);
        }
        if !self.is_graded {
            return self.chunk_bytes;
        }
        (FIRST + LONGER * number).min(self.chunk_bytes)
    }

    /// Returns the schedule for a long transfer with `O_DIRECT`. Its chunks have the length that disks are
    /// fastest with.
    pub fn for_disk(self) -> Self {
        Self { chunk_bytes: self.chunk_bytes.min(DISK_CHUNK_BYTES), is_graded: false, ..self }
    }

    /// Returns the schedule for objects of a server. Each chunk is a request with a cost of its own, so none is shorter than
    /// the others.
    fn for_server(self, most_bytes: Option<usize>) -> Self {
        let chunk_bytes = most_bytes.map_or(self.chunk_bytes, |most| most.min(self.chunk_bytes));
        Self { chunk_bytes, is_graded: false, ..self }
    }
}

/// The length in bytes of the requests that disks are fastest with.
const DISK_CHUNK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::super::transfer::{Choices, Entries, IoRange};
    use super::*;
    use crate::memory::Memory;

    const KIB: usize = 1 << 10;

    fn settings(threads: usize, bounce_buffer_bytes: usize, chunk_bytes: Option<usize>) -> Settings {
        Settings { threads, bounce_buffer_bytes, chunk_bytes, ..Settings::default() }
    }

    #[test]
    fn graded_chunks_grow_to_their_full_length() {
        let graded = Schedule { chunk_bytes: 500 * KIB, is_graded: true, ..Schedule::default() };
        let lengths: Vec<_> = (0..6).map(|chunk| graded.chunk_len(chunk) / KIB).collect();
        assert_eq!(lengths, [256, 320, 384, 448, 500, 500]);
        let later = Schedule { chunks_before: 2, ..graded };
        assert_eq!([0, 1, 2].map(|chunk| later.chunk_len(chunk) / KIB), [384, 448, 500]);
        let even = Schedule { is_graded: false, ..graded };
        assert_eq!([0, 1, 9].map(|chunk| even.chunk_len(chunk) / KIB), [500; 3]);
    }

    #[test]
    fn short_chunks_of_long_transfers_grow() {
        for (place, chunk_bytes, grows_to) in [
            (Place::Host, 1, 1 << 20),
            (Place::Host, 5000, 1 << 20),
            (Place::Device(0), 1, 256 * KIB),
            (Place::Device(0), 4096, 256 * KIB),
        ] {
            let schedule = Schedule::new(&settings(4, 256 * KIB, Some(chunk_bytes)), 1 << 40, place, None);
            assert_eq!(schedule.chunk_len(4095), chunk_bytes);
            assert_eq!(schedule.chunk_len(4096), 2 * chunk_bytes);
            assert_eq!(Schedule { chunks_before: 4000, ..schedule }.chunk_len(96), 2 * chunk_bytes);
            assert_eq!(schedule.chunk_len(usize::MAX / 2), grows_to);
            let (mut count, mut bytes) = (0, 0);
            while bytes < 1 << 30 {
                bytes += schedule.chunk_len(count);
                count += 1;
            }
            assert!(count < 100_000, "{count} chunks of 1 GiB, from {chunk_bytes} bytes on");
        }
        let long = Schedule { chunk_bytes: 4 << 20, grows_to: 1 << 20, ..Schedule::default() };
        assert_eq!(long.chunk_len(1 << 30), 4 << 20);
    }

    #[test]
    fn each_worker_has_several_chunks_worth_a_copy() {
        let settings = settings(4, 4096 * KIB, None);
        let device = Place::Device(0);
        for (total, on_host, on_device, is_graded) in [
            (0, 512, 256, false),
            (1024, 512, 256, false),
            // From here on, a chunk has a twentieth of the total, rounded up to 64 KiB.
            (20 * 256, 512, 256, false),
            (20 * 256 + 20, 512, 320, true),
            (20 * 512, 512, 512, true),
            (20 * 512 + 20, 576, 576, true),
            (20 * 576, 576, 576, true),
            (20 * 4096, 4096, 4096, true),
            (20 * 4097, 4096, 4096, true),
            (1 << 30, 4096, 4096, true),
        ] {
            for (place, chunk) in [(Place::Host, on_host), (device, on_device)] {
                let schedule = Schedule::new(&settings, total * KIB, place, None);
                let is_graded = is_graded && place == device;
                let most_entries = NonZero::new(if place == device { 4 * chunk } else { 0 });
                let expected = Schedule {
                    chunk_bytes: chunk * KIB,
                    most_entries,
                    is_graded,
                    grows_to: 1 << 20,
                    ..Schedule::default()
                };
                assert_eq!(schedule, expected, "{total} KiB");
            }
        }
    }

    #[test]
    fn reads_behind_others_have_longer_even_chunks() {
        let open = tempfile::tempfile().unwrap();
        let file = OpenFile::for_test(open, settings(4, 4096 * KIB, None));
        let mut memory = Memory::on_host(std::ptr::dangling_mut(), 10240 * KIB);
        memory.place = Place::Device(0);
        let ranges = [IoRange { file_offset: 0, buffer_offset: 0, len_bytes: 10240 * KIB }];
        let entries = Entries::Ranges { file: &file, memory, ranges: &ranges };
        let transfer = Transfer { settings: &file.settings, ..Transfer::for_test(Direction::Read, entries) };
        for (before, chunk, is_graded) in
            [(0, 512, true), (30_720 * KIB, 2048, false), (usize::MAX, 4096, false)]
        {
            let (found, _) = Schedule::of_read(&transfer, before);
            assert_eq!((found.chunk_bytes, found.is_graded), (chunk * KIB, is_graded), "behind {before}");
        }
    }

    #[test]
    fn long_lists_have_more_entries_in_a_chunk() {
        const BUFFER: usize = 4 << 20;
        let most = |entries: usize, count, threads| {
            let schedule = Schedule { most_entries: NonZero::new(entries), ..Schedule::default() };
            let found = schedule.for_list(count, threads, BUFFER);
            assert_eq!(Schedule { most_entries: schedule.most_entries, ..found }, schedule);
            found.most_entries.map_or(0, NonZero::get)
        };
        for (entries, count, threads, expected) in [
            (1024, 0, 16, 1024),
            (1024, 4096, 16, 1024),
            (3328, 1 << 20, 16, (1 << 20) / 80),
            (3328, 1 << 20, 4, 16 << 10),
            (16 << 10, usize::MAX, 1, 16 << 10),
            (1024, 1 << 20, usize::MAX, 1024),
            // Host memory has no limit.
            (0, 1 << 20, 16, 0),
        ] {
            assert_eq!(most(entries, count, threads), expected, "{count} entries, {threads} threads");
        }
    }

    #[test]
    fn gpus_that_are_busy_together_share_the_bounce_buffers() {
        const MIB: usize = 1 << 20;
        let schedule = |chunk_bytes| Schedule { chunk_bytes, ..Schedule::default() };
        // The busy GPUs and the MiB for each of the transfer, and its chunks before and after, for 4 workers.
        for (busy, each, before, after) in [
            (1, 1024, 3584 * KIB, 3584 * KIB),
            (0, 1024, 3584 * KIB, 3584 * KIB),
            (2, 1024, 4 * MIB, 1792 * KIB),
            (2, 1024, 1792 * KIB, 1792 * KIB),
            (3, 1024, 4 * MIB, 1216 * KIB),
            (4, 1024, 4 * MIB, 896 * KIB),
            (4, 1024, 640 * KIB, 640 * KIB),
            (16, 1024, 4 * MIB, 512 * KIB),
            (16, 1024, 100 * KIB, 100 * KIB),
            // Each worker of a GPU gets several chunks of its part.
            (2, 20, 4 * MIB, MIB),
            (2, 15, 1792 * KIB, 768 * KIB),
            (4, 15, 3 * MIB, 768 * KIB),
            (2, 1, 4 * MIB, 512 * KIB),
        ] {
            let found = schedule(before).shared(each * MIB, busy, 4);
            assert_eq!(found, schedule(after), "{busy} busy, {each} MiB each, {before} bytes");
        }
    }

    #[test]
    fn only_long_reads_of_gpus_share() {
        let file = OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default());
        let gpus = |place, direction, chunk_bytes, schedule: &Schedule| {
            let mut memory = Memory::on_host(std::ptr::dangling_mut(), 1 << 30);
            memory.place = place;
            let ranges = [IoRange { file_offset: 0, buffer_offset: 0, len_bytes: 1 << 30 }];
            let transfer =
                Transfer::for_test(direction, Entries::Ranges { file: &file, memory, ranges: &ranges });
            let choices = Choices { chunk_bytes, ..transfer.choices };
            schedule.gpus_to_share(&Transfer { choices, ..transfer })
        };
        let long = Schedule { chunk_bytes: 4 << 20, ..Schedule::default() };
        assert_eq!(gpus(Place::Device(3), Direction::Read, None, &long), 0b1000);
        assert_eq!(gpus(Place::Device(70), Direction::Read, None, &long), 1 << 63);
        assert_eq!(gpus(Place::Host, Direction::Read, None, &long), 0);
        assert_eq!(gpus(Place::Device(3), Direction::Write, None, &long), 0);
        assert_eq!(gpus(Place::Device(3), Direction::Read, Some(4 << 20), &long), 0);
        let short = Schedule { chunk_bytes: SMALLEST, ..long };
        assert_eq!(gpus(Place::Device(3), Direction::Read, None, &short), 0);
    }

    #[test]
    fn requested_chunk_lengths_are_kept_where_buffers_allow() {
        let of_engine = settings(4, 64 * KIB, Some(5000 * KIB));
        let of_call = settings(4, 64 * KIB, None);
        for (settings, asked) in [(&of_engine, None), (&of_call, Some(5000 * KIB))] {
            let lengths = [Place::Host, Place::Device(0)].map(|place| {
                let schedule = Schedule::new(settings, 1 << 30, place, asked);
                assert!(!schedule.is_graded);
                schedule.chunk_bytes
            });
            assert_eq!(lengths, [5000 * KIB, 64 * KIB]);
        }
        assert_eq!(Schedule::new(&of_engine, 1 << 30, Place::Host, Some(7)).chunk_bytes, 7);
    }

    #[test]
    fn sources_change_the_schedule_of_all_workers() {
        let schedule = Schedule { chunk_bytes: 4 << 20, is_graded: true, ..Schedule::default() };
        assert_eq!(schedule.for_source(Source::PageCache), (schedule, Order::ANY));
        assert_eq!(schedule.for_source(Source::Generated), (schedule, Order::Serial));
        let (expected, order) = schedule.for_source(Source::Disk { at_once: Some(4) });
        assert_eq!(expected, Schedule { chunk_bytes: 1 << 20, is_graded: false, ..schedule });
        assert_eq!(order, Order::Any { at_once: Some(4) });
        for (most_bytes, chunk_bytes) in [(None, 4 << 20), (Some(2 << 20), 2 << 20), (Some(5 << 20), 4 << 20)]
        {
            let expected = Schedule { chunk_bytes, is_graded: false, ..schedule };
            assert_eq!(schedule.for_source(Source::Server { most_bytes }), (expected, Order::ANY));
        }
    }

    #[test]
    fn disks_get_even_chunks_of_a_mebibyte() {
        for (chunk_bytes, expected) in [(4 << 20, 1 << 20), (1000, 1000)] {
            let schedule = Schedule { chunk_bytes, is_graded: true, ..Schedule::default() }.for_disk();
            assert_eq!((schedule.chunk_bytes, schedule.is_graded), (expected, false));
        }
    }
}
