//! Stand-ins for files. Their bytes are a pattern, and they record the ranges that were read and written.

#[path = "../../src/open_file/outcome.rs"]
pub mod outcome;
#[path = "../../src/route/stats.rs"]
mod stats;
#[path = "../../src/route/trace.rs"]
pub(crate) mod trace;

use route::RouteKind;

pub mod route {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RoutePolicy {
        RequireCufile,
        PosixOnly,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[expect(dead_code, reason = "the models have one route")]
    pub enum RouteKind {
        Gds,
        P2pDma,
        CufileCompat,
        Posix,
        Unavailable,
    }

    pub(crate) use super::stats::{Counters, Way};
    pub(crate) use super::trace;
}

pub mod file {
    use std::sync::Arc;

    use crate::cuda::{IoBuf, IoBufMut};
    use crate::direction::Direction;
    use crate::engine::{Choices, Engine, Growth, IoRange, Transfer};
    use crate::error::{Cause, Error, Result};
    use crate::memory::Memory;
    use crate::open_file::OpenFile;

    #[derive(Clone)]
    pub struct File(Arc<OpenFile>);

    impl File {
        pub fn new(open: OpenFile) -> Self {
            Self(Arc::new(open))
        }

        pub fn engine(&self) -> &Engine {
            &self.0.engine
        }

        pub fn open_file(&self) -> &Arc<OpenFile> {
            &self.0
        }

        pub fn memory<B: IoBuf + ?Sized>(&self, buffer: &B, _: u64) -> Result<Memory> {
            Ok(self.engine().gpus().memory_of(buffer).expect("a known place"))
        }

        pub fn memory_mut<B: IoBufMut + ?Sized>(&self, buffer: &mut B, _: u64) -> Result<Memory> {
            Ok(self.engine().gpus().memory_of_mut(buffer).expect("a known place"))
        }

        /// Returns false, because the models are of reads by workers.
        ///
        /// # Safety
        /// None: it reads nothing.
        pub unsafe fn read_at_once(&self, _: &Memory, _: u64) -> bool {
            false
        }

        pub fn check_offset(&self, _: Direction, _: u64, _: usize) -> Result<()> {
            Ok(())
        }

        pub fn range(&self, _: Direction, file_offset: u64, len_bytes: usize) -> Result<IoRange> {
            Ok(IoRange { file_offset, buffer_offset: 0, len_bytes })
        }

        pub fn transfer<'a>(
            &'a self,
            direction: Direction,
            memory: Memory,
            ranges: &'a [IoRange],
            growth: Growth,
        ) -> Transfer<'a> {
            let choices = Choices { chunk_bytes: None, growth, is_inline: false, each: false };
            Transfer::of_file(direction, &self.0, memory, ranges, choices)
        }

        pub fn chunk_bytes(&self) -> Option<usize> {
            None
        }

        pub fn refused(&self, _: Direction, _: u64, _: usize, cause: impl Into<Cause>) -> Error {
            Error { bytes_done: 0, cause: cause.into() }
        }
    }
}

pub mod storage {
    #[derive(Clone, Copy)]
    pub struct Span {
        pub offset: u64,
        pub len_bytes: usize,
        pub ptr: *mut u8,
    }
}

pub mod open_file {
    pub use super::outcome;

    use std::convert::Infallible;
    use std::slice;
    use std::sync::{Arc, Mutex};

    use crate::direction::Direction;
    use crate::engine::{Engine, Order, Schedule};
    use crate::error::{Cause, Error};
    use crate::gpu::bounce::Bounce;
    use crate::gpu::unpack::PackedGroup;
    use crate::memory::{Memory, Place};
    use crate::open_file::outcome::{Outcome, Stop, done_bytes};
    use crate::route::trace::{Facts, Request};
    use crate::route::{RoutePolicy, Way};
    use crate::storage::Span;
    use crate::world::{self, Access};

    pub struct Settings {
        pub policy: RoutePolicy,
        /// One: a scheduler runs one thread at a time.
        pub threads: usize,
    }

    #[derive(Clone)]
    pub enum Method {
        Calls,
        Mapping(Arc<Mapping>),
        Fill(Arc<Fill>),
    }

    pub struct OpenFile {
        pub engine: Engine,
        pub settings: Settings,
        pub schedule: Schedule,
        /// The offset of the byte that cannot be read or written.
        pub bad: Option<usize>,
        pub len_bytes: usize,
        /// Permits the transfer of a byte more than once.
        pub may_repeat: bool,
        pub seen: Mutex<Seen>,
    }

    #[derive(Default)]
    pub struct Seen {
        /// The offset and the length in bytes of each transfer.
        pub transferred: Vec<(usize, usize)>,
        is_writing: bool,
    }

    pub struct BounceRead {
        pub start: usize,
        pub outcome: Outcome,
    }

    /// Contents that come from no descriptor, which the models do not have.
    pub enum Stored {}

    impl Stored {
        pub unsafe fn read(&self, _: Vec<Span>, _: bool, _: &dyn Fn() -> bool) -> Outcome {
            match *self {}
        }

        pub fn packed(&self) -> Option<&dyn PackedContents> {
            None
        }
    }

    /// Contents in a form that a GPU decodes, which the models do not have.
    pub trait PackedContents {
        fn read(
            &self,
            _: &[Span],
            _: &mut Bounce,
            _: &dyn Fn() -> bool,
        ) -> Option<std::result::Result<PackedRead, Stop>>;
    }

    pub struct PackedRead {
        pub groups: Vec<PackedGroup>,
        pub plain: Vec<Plain>,
        pub end: usize,
    }

    pub struct Plain {
        pub span: usize,
        pub device: *mut u8,
        pub at: usize,
        pub len_bytes: usize,
    }

    impl OpenFile {
        pub fn route_word(&self, _: Place) -> &'static str {
            Request::HOST
        }

        pub fn request_to_read(&self, _: &Memory) -> Request {
            let (direction, route) = (Direction::Read, Request::HOST);
            Request::begin(|| Facts { direction, bytes: 0, ranges: 1, route })
        }

        pub fn stored(&self) -> Option<&Stored> {
            None
        }

        pub fn error(&self, _: Direction, _: u64, _: usize, Stop { done_bytes, cause }: Stop) -> Error {
            Error { bytes_done: done_bytes, cause: cause.unwrap_or(Cause::Failed) }
        }

        pub fn read_method(&self) -> Method {
            Method::Calls
        }

        pub fn new(engine: &Engine, schedule: Schedule) -> Self {
            Self {
                engine: engine.clone(),
                settings: Settings { policy: RoutePolicy::PosixOnly, threads: 1 },
                schedule,
                bad: None,
                len_bytes: usize::MAX,
                may_repeat: false,
                seen: Mutex::default(),
            }
        }

        /// Returns the outcome of a transfer of this range: the number of bytes that can be transferred, and
        /// the failure after them.
        fn possible(&self, offset: usize, len_bytes: usize) -> Outcome {
            let left = self.len_bytes.saturating_sub(offset);
            match self.bad {
                Some(bad) if (offset..offset + len_bytes).contains(&bad) => {
                    Err(Stop::failed(bad - offset, Cause::Failed))
                }
                _ if left < len_bytes => Err(Stop::end_of_file(left)),
                _ => Ok(()),
            }
        }

        fn note(&self, offset: usize, len_bytes: usize) {
            if len_bytes > 0 {
                self.seen.lock().unwrap().transferred.push((offset, len_bytes));
            }
        }

        pub unsafe fn read_rest(&self, target: *mut u8, len_bytes: usize, offset: u64, _: usize) -> Outcome {
            let offset = offset as usize;
            let outcome = self.possible(offset, len_bytes);
            let done = done_bytes(&outcome, len_bytes);
            // A failed call may have written any bytes of the target.
            world::using(&[(target, len_bytes, Access::Write)], "a read", || {
                // SAFETY: `using` has checked that the target is allocated.
                unsafe { slice::from_raw_parts_mut(target, done) }
                    .copy_from_slice(world::pattern(offset, done));
            });
            self.note(offset, done);
            outcome
        }

        pub unsafe fn read_mapped(&self, mapping: &Mapping, _: impl Iterator<Item = Span>) -> Outcome {
            match *mapping {}
        }

        pub unsafe fn read_to_host(
            &self,
            target: *mut u8,
            len_bytes: usize,
            offset: u64,
            _: &mut Bounce,
        ) -> Outcome {
            // SAFETY: the caller's promise.
            unsafe { self.read_rest(target, len_bytes, offset, 0) }
        }

        pub unsafe fn read_adjacent_to_host(
            &self,
            _: impl Iterator<Item = Span>,
            _: usize,
            _: u64,
            _: &mut Bounce,
        ) -> Outcome {
            unreachable!("the chunks of these models have one segment each")
        }

        pub unsafe fn write_adjacent_from_host(
            &self,
            _: impl Iterator<Item = Span>,
            _: usize,
            _: u64,
            _: &mut Bounce,
        ) -> Outcome {
            unreachable!("the chunks of these models have one segment each")
        }

        pub fn read_to_bounce(
            &self,
            bounce: &mut Bounce,
            start: usize,
            offset: u64,
            len: usize,
            _: usize,
        ) -> BounceRead {
            // SAFETY: the read checks that the buffer has room.
            let outcome = unsafe { self.read_rest(bounce.ptr().wrapping_add(start), len, offset, 0) };
            BounceRead { start, outcome }
        }

        pub fn place_for_write(&self, end: usize, _: u64, _: usize, _: usize) -> usize {
            end
        }

        pub fn write_bytes(&self, source: &[u8], offset: u64) -> Outcome {
            let offset = offset as usize;
            if self.schedule.order == Order::Serial {
                let mut seen = self.seen.lock().unwrap();
                assert!(!seen.is_writing, "two write at once");
                assert_eq!(
                    seen.transferred.iter().map(|(_, len)| len).sum::<usize>(),
                    offset,
                    "out of order"
                );
                seen.is_writing = true;
            }
            let outcome = self.possible(offset, source.len());
            let done = done_bytes(&outcome, source.len());
            world::using(&[(source.as_ptr(), source.len(), Access::Read)], "a write", || {
                assert!(source[..done] == *world::pattern(offset, done), "other bytes are written");
            });
            self.note(offset, done);
            self.seen.lock().unwrap().is_writing = false;
            outcome
        }

        pub unsafe fn write_from_host(
            &self,
            source: *const u8,
            len_bytes: usize,
            offset: u64,
            _: &mut Bounce,
        ) -> Outcome {
            world::check(source, len_bytes, "a write");
            // SAFETY: the check above found the source allocated.
            self.write_bytes(unsafe { slice::from_raw_parts(source, len_bytes) }, offset)
        }

        pub fn cufile_way(&self) -> Way {
            Way::Host
        }

        pub fn count_read(&self, _: Way, _: usize, _: &Outcome) {}

        pub fn count_write(&self, _: Way, _: usize, _: &Outcome) {}

        pub fn cufile(&self, _: usize) -> Option<&Infallible> {
            None
        }

        pub fn read_cufile(&self, handle: &Infallible, _: &mut Memory, _: u64) -> Outcome {
            match *handle {}
        }

        pub fn write_cufile(&self, handle: &Infallible, _: &Memory, _: u64) -> Outcome {
            match *handle {}
        }
    }

    pub enum Mapping {}

    impl Mapping {
        pub unsafe fn write(&self, _: impl Iterator<Item = Span>) -> usize {
            match *self {}
        }
    }

    pub enum Fill {}

    impl Fill {
        pub unsafe fn write(&self, _: &OpenFile, _: impl Iterator<Item = Span>) -> Result<usize, Stop> {
            match *self {}
        }
    }
}
