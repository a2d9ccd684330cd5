//! The engine with its own jobs, lanes, rings and streams, on what stands for CUDA and files.

#[path = "../../src/engine/bounce.rs"]
mod bounce;
#[path = "../../src/engine/copies.rs"]
mod copies;
#[path = "../../src/engine/job.rs"]
mod job;
#[path = "../../src/engine/jobs.rs"]
mod jobs;
#[path = "../../src/engine/lane.rs"]
mod lane;
#[path = "../../src/engine/lanes.rs"]
mod lanes;
#[path = "../../src/engine/pool.rs"]
mod pool;
#[path = "../../src/engine/ring.rs"]
mod ring;
#[path = "../../src/engine/staged.rs"]
mod staged;
#[path = "../../src/engine/stager.rs"]
mod stager;

use std::sync::Arc;

pub(crate) use bounce::Bounce;
pub(crate) use copies::{ends_soon, wait_by_looking};
pub(crate) use job::Job;
pub use plan::Segment;
pub(crate) use ring::Ring;
pub(crate) use staged::{Direction, Staged};
pub use transfer::{Entries, IoRange, Side, Transfer};

use crate::cuda;
use crate::memory::Place;
use crate::stand_ins::sync;
use crate::world::{self, Kind};
use devices::Devices;
use job::IdleJobs;
use lanes::Lanes;
use pool::Pool;
use stager::Stager;

#[derive(Debug, Clone, Copy, Default)]
pub struct Cutting {
    pub chunk_bytes: usize,
    pub serial: bool,
    pub at_once: Option<usize>,
    pub last_bytes: usize,
    pub inline: bool,
}

#[derive(Clone)]
pub struct Engine(Arc<Inner>);

/// As the engine's.
struct Inner {
    pools: sync::Mutex<Vec<(u64, Arc<Pool>)>>,
    lanes: Arc<Lanes>,
    stager: Option<Stager>,
    idle_jobs: IdleJobs,
    settings: Settings,
}

struct Settings {
    threads: usize,
    pool_per_block_device: bool,
    bounce_bytes: usize,
}

impl Inner {
    fn is_forked(&self) -> bool {
        false
    }

    fn lanes_apart(&self) -> Lanes {
        new_lanes(self.settings.bounce_bytes, usize::MAX)
    }
}

fn new_lanes(bounce_bytes: usize, memory_bytes: usize) -> Lanes {
    Lanes::new(Arc::new(Devices), bounce_bytes, memory_bytes)
}

impl Engine {
    /// An engine of so many threads and lanes.
    pub fn new(threads: usize, lanes: usize, bounce_bytes: usize) -> Self {
        let memory_bytes = 2 * lanes * Bounce::bytes_for(bounce_bytes);
        Self(Arc::new(Inner {
            pools: sync::Mutex::default(),
            lanes: Arc::new(new_lanes(bounce_bytes, memory_bytes)),
            stager: None,
            idle_jobs: IdleJobs::default(),
            settings: Settings { threads, pool_per_block_device: false, bounce_bytes },
        }))
    }

    /// An engine that streams can wait for.
    pub fn with_stager(threads: usize, lanes: usize, bounce_bytes: usize) -> Self {
        let mut engine = Self::new(threads, lanes, bounce_bytes);
        let inner = Arc::get_mut(&mut engine.0).expect("just made");
        inner.stager = Some(Stager::new(threads, inner.lanes_apart()).unwrap());
        engine
    }

    pub fn stager(&self) -> Option<&Stager> {
        self.0.stager.as_ref()
    }

    pub fn device_of<B: cuda::IoBuf + ?Sized>(&self, _: &B) -> cuda::Result<u32> {
        Ok(0)
    }

    /// As the engine's.
    pub fn release_buffers(&self) {
        self.0.idle_jobs.clear();
        if let Some(stager) = self.stager() {
            stager.rings.free_idle();
        }
        self.0.lanes.release();
    }

    /// Waits until all lanes are back. Then all pinned memory is idle, and none is left when that is freed.
    pub fn assert_idle(&self) {
        let taken: Vec<_> =
            (0..self.0.lanes.limit()).map(|_| self.0.lanes.take(Place::Host).unwrap()).collect();
        taken.into_iter().for_each(|lane| self.0.lanes.put(lane));
        self.release_buffers();
        assert_eq!(world::live(Kind::Pinned), 0, "pinned memory is in use");
    }
}

mod devices {
    use crate::cuda::{Device, Result};

    pub struct Devices;

    impl Devices {
        pub fn get(&self, ordinal: u32) -> Result<Device> {
            Ok(Device(ordinal))
        }
    }
}

mod transfer {
    use std::sync::Arc;

    use crate::memory::{Memory, Place};
    use crate::open_file::{Mapping, OpenFile};
    use crate::world;

    #[derive(Debug, Clone, Copy)]
    pub struct IoRange {
        pub file_offset: u64,
        pub buffer_offset: usize,
        pub len_bytes: usize,
    }

    #[derive(Clone)]
    pub enum Side {
        Read,
        ReadMapping(Arc<Mapping>),
        Write,
    }

    /// One range. Those that a job refers to are counted.
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
        pub side: Side,
        pub entries: Entries<'a>,
    }

    impl Transfer<'_> {
        pub fn device(&self) -> u64 {
            self.entries.file.device
        }

        pub fn is_read(&self) -> bool {
            !matches!(self.side, Side::Write)
        }
    }
}

mod plan {
    use std::iter;

    use super::{Cutting, Transfer};
    use crate::memory::Place;
    use crate::open_file::OpenFile;

    #[derive(Default)]
    pub struct Plan {
        /// The beginnings of the chunks, and the end.
        cuts: Vec<usize>,
    }

    #[derive(Debug)]
    pub enum Refused {}

    #[derive(Clone, Copy)]
    pub struct Segment<'a> {
        pub file: &'a OpenFile,
        pub offset: u64,
        pub ptr: *mut u8,
        pub len_bytes: usize,
        pub entry: usize,
    }

    impl Plan {
        pub fn make(&mut self, transfer: &Transfer<'_>, cutting: &Cutting) -> Result<(), Refused> {
            let len_bytes = transfer.entries.range.len_bytes;
            let behind = len_bytes.saturating_sub(cutting.last_bytes);
            self.cuts = (0..behind).step_by(cutting.chunk_bytes).chain([behind, len_bytes]).collect();
            self.cuts.dedup();
            Ok(())
        }

        pub fn chunks(&self) -> usize {
            self.cuts.len() - 1
        }

        pub fn keeps_order(&self) -> bool {
            true
        }

        pub fn kept_bytes(&self) -> usize {
            0
        }

        pub fn place(&self, transfer: &Transfer<'_>, _: usize) -> Place {
            transfer.entries.place()
        }

        pub fn locate(&self, _: &Transfer<'_>, chunk: usize, bytes: usize) -> (usize, usize) {
            (0, self.cuts[chunk] + bytes)
        }

        pub fn segments<'a>(
            &self,
            transfer: &Transfer<'a>,
            chunk: usize,
        ) -> impl Iterator<Item = Segment<'a>> {
            let (start, end) = (self.cuts[chunk], self.cuts[chunk + 1]);
            let entries = &transfer.entries;
            let (offset, ptr) =
                (entries.range.file_offset + start as u64, entries.memory.ptr.wrapping_add(start));
            iter::once(Segment { file: entries.file, offset, ptr, len_bytes: end - start, entry: 0 })
        }
    }
}
