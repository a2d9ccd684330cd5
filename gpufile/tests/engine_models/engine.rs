//! The engine with its own jobs, lanes, rings and streams, on the stand-ins for CUDA and files.

#[path = "../../src/engine/buffers.rs"]
mod buffers;
#[path = "../../src/engine/copies.rs"]
mod copies;
#[path = "../../src/engine/file_side.rs"]
mod file_side;
#[path = "../../src/engine/job.rs"]
mod job;
#[path = "../../src/engine/lane.rs"]
mod lane;
#[path = "../../src/engine/lanes.rs"]
mod lanes;
#[path = "../../src/engine/queue.rs"]
mod queue;
#[path = "../../src/engine/relay/mod.rs"]
mod relay;
#[path = "../../src/engine/runs.rs"]
mod runs;
#[path = "../../src/engine/streams.rs"]
mod streams;
#[path = "../../src/engine/submitter.rs"]
mod submitter;
#[path = "../../src/engine/workers.rs"]
mod workers;

use std::sync::Arc;

pub(crate) use copies::wait_by_looking;
pub(crate) use job::{EntryStop, Job};
pub(crate) use relay::{Direction, OwnedRelay};
pub use schedule::Schedule;
pub use transfer::{Entries, IoRange, Transfer};
pub(crate) use workers::Workers;
pub use write_plan::{Growth, WritePlan};

use crate::bounce::Bounce;
use crate::gpus::Gpus;
use crate::memory::Place;
use crate::stand_ins::sync;
use crate::world::{self, Kind};
use lanes::Lanes;
use relay::thread::RelayThread;

mod schedule {
    use super::IoRange;
    use crate::memory::Place;
    use crate::open_file::OpenFile;

    #[derive(Debug, Clone, Copy, Default)]
    pub struct Schedule {
        pub chunk_bytes: usize,
        pub is_serial: bool,
        pub at_once: Option<usize>,
        pub last_bytes: usize,
        pub is_inline: bool,
    }

    impl Schedule {
        pub fn of_read(file: &OpenFile, _: Option<usize>, _: Place, _: usize, _: &IoRange) -> Self {
            file.schedule
        }

        /// Returns no GPU, because each model has one.
        pub fn gpus_to_share(&self, _: &super::Transfer<'_>) -> u64 {
            0
        }

        pub fn beside(self, _: usize, _: u64, _: usize) -> Self {
            unreachable!("no GPU shares")
        }
    }
}

/// A stand-in for the kernels, which no model needs: each transfer has one range.
mod staging {
    use std::sync::Arc;

    use super::staging_memory::StagingMemory;
    use super::streams::Streams;
    use crate::bounce::Bounce;
    use crate::cuda::{Device, Stream};
    use crate::gpus::Gpus;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OneCopy {
        pub device: *mut u8,
        pub host: *mut u8,
        pub len_bytes: usize,
    }

    #[derive(Clone, Copy)]
    pub struct Packed;

    pub struct Staging;

    impl Packed {
        pub fn write(_: &[OneCopy], _: &mut Bounce) -> Option<Self> {
            unreachable!("a transfer of one range has one copy")
        }
    }

    impl Staging {
        pub fn new(_: Arc<Gpus>, _: Arc<StagingMemory>) -> Self {
            Self
        }

        pub fn prepare(&mut self, _: &Device, _: &Bounce) {
            unreachable!("a transfer of one range has one copy")
        }

        pub unsafe fn scatter<'a>(
            &mut self,
            _: &'a Streams,
            _: &mut Bounce,
            _: Packed,
        ) -> cufile::Result<Option<&'a Stream>> {
            Ok(None)
        }

        pub unsafe fn gather(&mut self, _: &Stream, _: &mut Bounce, _: Packed) -> cufile::Result<bool> {
            Ok(false)
        }
    }
}

mod staging_memory {
    #[derive(Default)]
    pub struct StagingMemory;

    impl StagingMemory {
        pub fn live_bytes(&self) -> usize {
            0
        }

        pub fn free_unused(&self) {}
    }
}

mod write_plan {
    use super::Schedule;
    use crate::memory::Memory;
    use crate::open_file::{Method, OpenFile};

    pub struct WritePlan {
        pub method: Method,
        pub schedule: Schedule,
    }

    pub enum Growth {
        MayAllocate,
        AsWritten,
    }

    impl WritePlan {
        pub fn of_range(file: &OpenFile, _: Option<usize>, _: &Memory, _: u64, _: Growth) -> Self {
            Self { method: Method::Write, schedule: file.schedule }
        }
    }
}

/// Waits until something has ended, or gives up where the model plans that. Returns whether it has ended.
pub fn ends_soon(has_ended: impl Fn() -> bool) -> bool {
    if world::happens(world::Fault::GivesUp) { has_ended() } else { copies::ends_soon(has_ended) }
}

#[derive(Clone)]
pub struct Engine(Arc<Inner>);

/// The stand-in for the engine's type of this name.
struct Inner {
    relays: Option<Arc<RelayThread>>,
    workers: Workers,
    lanes: Arc<Lanes>,
    gpus: Arc<Gpus>,
}

impl Engine {
    /// Returns an engine with this many threads and lanes.
    pub fn new(threads: usize, lanes: usize, bounce_bytes: usize) -> Self {
        let memory_bytes = 2 * lanes * Bounce::bytes_for(bounce_bytes);
        let gpus = Arc::<Gpus>::default();
        let lanes = Arc::new(Lanes::new(gpus.clone(), bounce_bytes, memory_bytes));
        let workers = Workers::new(threads, false, lanes.clone());
        Self(Arc::new(Inner { relays: None, workers, lanes, gpus }))
    }

    /// Returns an engine with relays, for which streams can wait.
    pub fn with_relays(threads: usize, lanes: usize, bounce_bytes: usize) -> Self {
        let mut engine = Self::new(threads, lanes, bounce_bytes);
        let inner = Arc::get_mut(&mut engine.0).expect("just made");
        inner.relays = Some(RelayThread::new(threads, inner.workers.lanes_apart()).unwrap());
        engine
    }

    pub fn relays(&self) -> Option<&Arc<RelayThread>> {
        self.0.relays.as_ref()
    }

    pub fn workers(&self) -> &Workers {
        &self.0.workers
    }

    pub fn gpus(&self) -> &Gpus {
        &self.0.gpus
    }

    /// Frees the idle pinned memory, as the engine's method does.
    pub fn release_buffers(&self) {
        self.0.workers.release_buffers();
        if let Some(relays) = self.relays() {
            relays.release_buffers();
        }
    }

    /// Waits until all lanes are returned. Then all pinned memory is idle, and none is left after it is
    /// freed.
    pub fn assert_idle(&self) {
        let lanes = &self.0.lanes;
        for place in [Place::Host, crate::GPU] {
            let taken: Vec<_> = (0..lanes.limit()).map(|_| lanes.take(place).unwrap()).collect();
            taken.into_iter().for_each(|lane| lanes.put(lane));
        }
        self.release_buffers();
        assert_eq!(world::live(Kind::Pinned), 0, "pinned memory is in use");
    }
}

mod transfer {
    use crate::memory::{Memory, Place};
    use crate::open_file::{Method, OpenFile, Span};
    use crate::world;

    #[derive(Debug, Clone, Copy)]
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

        pub fn of_file(file: &'a OpenFile, memory: Memory, ranges: &'a [IoRange]) -> Self {
            Self::new(file, memory, &ranges[0])
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
        pub method: Method,
        pub entries: Entries<'a>,
    }

    impl Transfer<'_> {
        pub fn block_device(&self) -> u64 {
            self.entries.file.block_device
        }
    }
}

mod chunks {
    use std::iter;
    use std::ops::Range;

    use super::Schedule;
    use super::transfer::{Entries, Segment, Transfer};
    use crate::memory::Place;

    #[derive(Default)]
    pub struct Chunks {
        /// The starts of the chunks, and the end of the last.
        cuts: Vec<usize>,
    }

    #[derive(Debug)]
    pub enum Refused {}

    impl Chunks {
        pub fn cut_anew(&mut self, transfer: &Transfer<'_>, schedule: &Schedule) -> Result<(), Refused> {
            let len_bytes = transfer.entries.range.len_bytes;
            let behind = len_bytes.saturating_sub(schedule.last_bytes);
            self.cuts = (0..behind).step_by(schedule.chunk_bytes).chain([behind, len_bytes]).collect();
            self.cuts.dedup();
            Ok(())
        }

        pub fn count(&self) -> usize {
            self.cuts.len() - 1
        }

        pub fn overlap(&mut self, _: &Entries<'_>) -> Option<Refused> {
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

        pub fn locate(&self, _: &Transfer<'_>, chunk: usize, bytes: usize) -> (usize, usize) {
            (0, self.cuts[chunk] + bytes)
        }

        pub fn segments<'a>(
            &self,
            transfer: &Transfer<'a>,
            chunk: usize,
        ) -> impl Iterator<Item = Segment<'a>> + Clone + use<'a> {
            let (start, end) = (self.cuts[chunk], self.cuts[chunk + 1]);
            let entries = &transfer.entries;
            let (offset, ptr) =
                (entries.range.file_offset + start as u64, entries.memory.ptr.wrapping_add(start));
            iter::once(Segment { file: entries.file, offset, ptr, len_bytes: end - start, entry: 0 })
        }
    }
}
