//! Stand-ins for plans, of transfers that record the events of their chunks.

pub mod schedule {
    pub use crate::engine::Order;
    use crate::open_file::Method;

    #[derive(Debug, Clone, Copy, Default)]
    pub struct Schedule {
        pub order: Order,
    }

    pub struct Plan {
        pub method: Method,
        pub schedule: Schedule,
        pub order: Order,
    }
}

pub mod transfer {
    use std::ops::Range;

    use crate::direction::Direction;
    use crate::memory::{Memory, Place};
    use crate::stand_ins::Watched;

    #[derive(Clone)]
    pub struct Transfer<'a> {
        pub direction: Direction,
        pub entries: Entries<'a>,
        pub choices: Choices,
    }

    #[derive(Clone, Copy)]
    pub struct Choices {
        pub is_inline: bool,
        pub each: bool,
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

    #[derive(Clone, Copy)]
    pub struct Entries<'a>(pub &'a Watched);

    /// The part of a chunk that a claim has. It counts as one segment.
    #[derive(Clone)]
    pub struct Segment<'a> {
        pub watched: &'a Watched,
        pub chunk: usize,
        pub positions: Range<usize>,
    }

    impl Transfer<'_> {
        pub fn gpu_read(&self) -> Option<(Place, usize)> {
            let is_read = self.direction == Direction::Read && self.entries.0.place != Place::Host;
            is_read.then_some((self.entries.0.place, self.entries.0.chunks))
        }
    }

    impl<'a> Entries<'a> {
        pub fn place(&self) -> Place {
            self.0.place
        }

        pub fn memory(&self, _: usize) -> &Memory {
            unreachable!("the lanes of these models have no use for it")
        }

        pub fn get(&self, _: usize) -> Segment<'a> {
            unreachable!("the lanes of these models have no use for it")
        }
    }
}

pub mod chunks {
    use std::iter;
    use std::ops::Range;

    use super::schedule::{Order, Plan};
    use super::transfer::{Entries, Segment, Transfer};
    use crate::memory::Place;
    use crate::open_file::Method;
    use crate::open_file::outcome::EntryStop;

    #[derive(Default)]
    pub struct Chunks {
        count: usize,
        entries: usize,
    }

    impl Chunks {
        pub fn plan(
            &mut self,
            transfer: &Transfer<'_>,
            _: usize,
            _: impl FnOnce(u64) -> Option<(usize, usize)>,
        ) -> Result<Plan, EntryStop> {
            self.count = transfer.entries.0.chunks;
            self.entries = transfer.entries.0.entries;
            let schedule = transfer.entries.0.schedule;
            Ok(Plan { method: Method::Calls, schedule, order: schedule.order })
        }

        pub fn count(&self) -> usize {
            self.count
        }

        pub fn overlap(&mut self, _: &Entries<'_>) -> Option<EntryStop> {
            None
        }

        pub fn kept_bytes(&self) -> usize {
            0
        }

        pub fn place(&self, transfer: &Transfer<'_>, chunk: usize) -> Place {
            let watched = transfer.entries.0;
            watched.then.filter(|(first, _)| chunk >= *first).map_or(watched.place, |(_, place)| place)
        }

        pub fn for_shares(&self, transfer: &Transfer<'_>, mut share: impl FnMut(Place, Range<usize>)) {
            let watched = transfer.entries.0;
            let is_in_order = !matches!(watched.schedule.order, Order::Any { .. });
            let then = watched.then.filter(|_| !is_in_order);
            share(watched.place, 0..then.map_or(self.count, |(first, _)| first));
            if let Some((first, place)) = then {
                share(place, first..self.count);
            }
        }

        pub fn positions(&self, chunk: usize) -> Range<usize> {
            chunk * self.entries..(chunk + 1) * self.entries
        }

        pub fn entry(&self, at: usize) -> usize {
            at
        }

        /// Returns the position, and the chunk in place of the entry's bytes.
        pub fn locate(
            &self,
            _: &Transfer<'_>,
            chunk: usize,
            positions: Range<usize>,
            bytes: usize,
        ) -> (usize, usize) {
            (positions.start + bytes, chunk)
        }

        pub fn segments<'a>(
            &self,
            transfer: &Transfer<'a>,
            chunk: usize,
            positions: Range<usize>,
        ) -> impl Iterator<Item = Segment<'a>> + Clone + use<'a> {
            iter::once(Segment { watched: transfer.entries.0, chunk, positions })
        }
    }
}
