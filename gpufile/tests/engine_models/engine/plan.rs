//! Stand-ins for the plans of transfers: each transfer has one range.

pub mod schedule {
    use crate::open_file::Method;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Order {
        Any { at_once: Option<usize> },
        Serial,
        LastAlone { at_once: Option<usize> },
    }

    impl Default for Order {
        fn default() -> Self {
            Order::Any { at_once: None }
        }
    }

    #[derive(Debug, Clone, Copy, Default)]
    pub struct Schedule {
        pub chunk_bytes: usize,
        pub order: Order,
        pub last_bytes: usize,
    }

    pub struct Plan {
        pub method: Method,
        pub schedule: Schedule,
        pub order: Order,
    }
}

pub mod transfer {
    use crate::direction::Direction;
    use crate::error::{Error, Result};
    use crate::memory::{Memory, Place};
    use crate::open_file::OpenFile;
    use crate::open_file::outcome::EntryStop;
    use crate::storage::Span;
    use crate::world;

    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct IoRange {
        pub file_offset: u64,
        pub buffer_offset: usize,
        pub len_bytes: usize,
    }

    #[derive(Clone, Copy)]
    pub struct Segment<'a> {
        pub file: &'a OpenFile,
        pub offset: u64,
        pub ptr: *mut u8,
        pub len_bytes: usize,
        pub entry: usize,
    }

    impl Segment<'_> {
        pub fn span(&self) -> Span {
            Span { offset: self.offset, len_bytes: self.len_bytes, ptr: self.ptr }
        }
    }

    /// The entries of a transfer: one range. The model counts the entries that jobs refer to.
    pub struct Entries<'a> {
        pub file: &'a OpenFile,
        pub memory: Memory,
        pub range: &'a IoRange,
    }

    impl<'a> Entries<'a> {
        pub fn new(file: &'a OpenFile, memory: Memory, range: &'a IoRange) -> Self {
            world::count_transfers(true);
            Self { file, memory, range }
        }

        pub fn get(&self, entry: usize) -> Segment<'a> {
            let (offset, len_bytes) = (self.range.file_offset, self.range.len_bytes);
            Segment { file: self.file, offset, ptr: self.memory.ptr, len_bytes, entry }
        }

        pub fn memory(&self, _: usize) -> &Memory {
            &self.memory
        }

        pub fn place(&self) -> Place {
            self.memory.place
        }

        pub fn error(&self, direction: Direction, EntryStop { stop, .. }: EntryStop) -> Error {
            self.file.error(direction, self.range.file_offset, self.range.len_bytes, stop)
        }

        /// Returns an error that counts the bytes of the entries before, each as long as this one.
        pub fn error_of_list(&self, direction: Direction, stop: EntryStop) -> Error {
            let before_bytes = stop.entry * self.range.len_bytes;
            let error = self.error(direction, stop);
            Error { bytes_done: before_bytes + error.bytes_done, ..error }
        }
    }

    impl Clone for Entries<'_> {
        fn clone(&self) -> Self {
            Self::new(self.file, self.memory, self.range)
        }
    }

    impl Drop for Entries<'_> {
        fn drop(&mut self) {
            world::count_transfers(false);
        }
    }

    #[derive(Clone)]
    pub struct Transfer<'a> {
        pub direction: Direction,
        pub entries: Entries<'a>,
        pub choices: Choices,
    }

    #[derive(Clone, Copy)]
    pub struct Choices {
        pub chunk_bytes: Option<usize>,
        pub growth: Growth,
        pub is_inline: bool,
        pub each: bool,
    }

    #[derive(Clone, Copy)]
    pub enum Growth {
        MayAllocate,
        AsWritten,
    }

    impl<'a> Transfer<'a> {
        pub fn of_file(
            direction: Direction,
            file: &'a OpenFile,
            memory: Memory,
            ranges: &'a [IoRange],
            choices: Choices,
        ) -> Self {
            Self { direction, entries: Entries::new(file, memory, &ranges[0]), choices }
        }
    }

    impl Transfer<'_> {
        pub fn gpu_read(&self) -> Option<(Place, usize)> {
            let place = self.entries.memory.place;
            let is_read = self.direction == Direction::Read && place != Place::Host;
            is_read.then_some((place, self.entries.range.len_bytes))
        }

        pub fn outcomes(&self, _: Vec<EntryStop>) -> Vec<Result<usize>> {
            unreachable!("transfers of one range")
        }
    }

    impl Transfer<'_> {
        pub fn request(&self) -> crate::route::trace::Request {
            crate::route::trace::Request::begin(|| unreachable!("no subscriber wants the facts"))
        }
    }

    impl std::fmt::Display for Transfer<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a transfer")
        }
    }
}

pub mod chunks {
    use std::iter;
    use std::ops::Range;

    use super::schedule::Plan;
    use super::transfer::{Entries, Segment, Transfer};
    use crate::memory::Place;
    use crate::open_file::Method;
    use crate::open_file::outcome::EntryStop;

    #[derive(Default)]
    pub struct Chunks {
        /// The starts of the chunks, and the end of the last.
        cuts: Vec<usize>,
    }

    impl Chunks {
        pub fn plan(
            &mut self,
            transfer: &Transfer<'_>,
            _: usize,
            _: impl FnOnce(u64) -> Option<(usize, usize)>,
        ) -> Result<Plan, EntryStop> {
            let schedule = transfer.entries.file.schedule;
            let len_bytes = transfer.entries.range.len_bytes;
            let behind = len_bytes.saturating_sub(schedule.last_bytes);
            self.cuts = (0..behind).step_by(schedule.chunk_bytes).chain([behind, len_bytes]).collect();
            self.cuts.dedup();
            Ok(Plan { method: Method::Calls, schedule, order: schedule.order })
        }

        pub fn count(&self) -> usize {
            self.cuts.len() - 1
        }

        pub fn overlap(&mut self, _: &Entries<'_>) -> Option<EntryStop> {
            None
        }

        pub fn kept_bytes(&self) -> usize {
            0
        }

        pub fn place(&self, transfer: &Transfer<'_>, _: usize) -> Place {
            transfer.entries.place()
        }

        pub fn for_shares(&self, transfer: &Transfer<'_>, mut share: impl FnMut(Place, Range<usize>)) {
            share(transfer.entries.place(), 0..self.count());
        }

        pub fn positions(&self, _: usize) -> Range<usize> {
            0..1
        }

        pub fn entry(&self, at: usize) -> usize {
            at
        }

        pub fn locate(
            &self,
            _: &Transfer<'_>,
            chunk: usize,
            _: Range<usize>,
            bytes: usize,
        ) -> (usize, usize) {
            (0, self.cuts[chunk] + bytes)
        }

        pub fn segments<'a>(
            &self,
            transfer: &Transfer<'a>,
            chunk: usize,
            _: Range<usize>,
        ) -> impl Iterator<Item = Segment<'a>> + Clone + use<'a> {
            let (start, end) = (self.cuts[chunk], self.cuts[chunk + 1]);
            let entries = &transfer.entries;
            let (offset, ptr) =
                (entries.range.file_offset + start as u64, entries.memory.ptr.wrapping_add(start));
            iter::once(Segment { file: entries.file, offset, ptr, len_bytes: end - start, entry: 0 })
        }
    }
}

pub mod refusals {
    use crate::error::Result;

    #[derive(Default)]
    pub struct Refusals(());

    impl Refusals {
        pub fn with_others(self, others: Vec<Result<usize>>) -> Vec<Result<usize>> {
            others
        }
    }
}
