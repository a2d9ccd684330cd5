//! Stand-ins for files: their bytes are a pattern, and they note what was read and written.

pub mod route {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RoutePolicy {
        RequireCufile,
        PosixOnly,
    }
}

pub mod write_plan {
    use crate::engine::{Cutting, Side};
    use crate::file::File;
    use crate::memory::Memory;

    pub struct WritePlan {
        pub side: Side,
        pub cutting: Cutting,
    }

    pub enum Growth {
        MayAllocate,
        AsWritten,
    }

    impl WritePlan {
        pub fn of_range(file: &File, _: &Memory, _: u64, _: Growth) -> Self {
            Self { side: Side::Write, cutting: file.open_file().cutting }
        }
    }
}

pub mod file {
    use std::sync::Arc;

    use crate::cuda::{IoBuf, IoBufMut};
    use crate::engine::{Cutting, Engine, Entries, IoRange, Side, Transfer};
    use crate::error::{Cause, Error, Result};
    use crate::memory::{Memory, Place};
    use crate::open_file::OpenFile;

    pub const READ: &str = "read";
    pub const WRITE: &str = "write";

    #[derive(Clone)]
    pub struct File(Arc<OpenFile>);

    impl File {
        pub fn new(open: OpenFile) -> Self {
            Self(Arc::new(open))
        }

        pub fn engine(&self) -> &Engine {
            &self.0.engine
        }

        pub fn open_file(&self) -> &OpenFile {
            &self.0
        }

        pub fn memory<B: IoBuf + ?Sized>(&self, buffer: &B, _: u64) -> Result<Memory> {
            Ok(Memory::of(buffer, &self.0.engine).expect("a known place"))
        }

        pub fn memory_mut<B: IoBufMut + ?Sized>(&self, buffer: &mut B, _: u64) -> Result<Memory> {
            Ok(Memory::of_mut(buffer, &self.0.engine).expect("a known place"))
        }

        pub fn check_offset(&self, _: &'static str, _: u64, _: usize) -> Result<()> {
            Ok(())
        }

        pub fn range(&self, _: &'static str, file_offset: u64, len_bytes: usize) -> Result<IoRange> {
            Ok(IoRange { file_offset, buffer_offset: 0, len_bytes })
        }

        pub fn entries<'a>(&'a self, memory: Memory, ranges: &'a [IoRange]) -> Entries<'a> {
            Entries::new(&self.0, memory, &ranges[0])
        }

        pub fn read_cutting(&self, _: usize, _: Place, _: &IoRange) -> Cutting {
            self.0.cutting
        }

        pub fn transfer_error(
            &self,
            _: &'static str,
            _: u64,
            _: usize,
            bytes_done: usize,
            cause: Cause,
        ) -> Error {
            Error { bytes_done, cause }
        }

        pub unsafe fn read_memory(&self, memory: Memory, offset: u64, _: bool) -> Result<usize> {
            // SAFETY: the caller's promise.
            let (done, cause) = unsafe { self.run(Side::Read, memory, offset) };
            cause.map_or(Ok(done), |cause| Err(Error { bytes_done: done, cause }))
        }

        pub unsafe fn write_memory(&self, memory: Memory, offset: u64, _: bool) -> Result<()> {
            // SAFETY: the caller's promise.
            let (done, cause) = unsafe { self.run(Side::Write, memory, offset) };
            cause.map_or(Ok(()), |cause| Err(Error { bytes_done: done, cause }))
        }

        unsafe fn run(&self, side: Side, memory: Memory, offset: u64) -> (usize, Option<Cause>) {
            let range = [IoRange { file_offset: offset, buffer_offset: 0, len_bytes: memory.len_bytes }];
            let transfer = Transfer { side, entries: self.entries(memory, &range) };
            // SAFETY: the caller's promise.
            let stop = unsafe { self.0.engine.run(&transfer, self.0.cutting) }.unwrap();
            stop.map_or((memory.len_bytes, None), |stop| (stop.done_bytes, stop.cause))
        }
    }
}

pub mod open_file {
    use std::convert::Infallible;
    use std::slice;
    use std::sync::Mutex;

    use crate::engine::{Bounce, Cutting, Engine, Segment, Side};
    use crate::error::Cause;
    use crate::memory::Memory;
    use crate::route::RoutePolicy;
    use crate::world::{self, Access};

    pub type Outcome = (usize, Option<Cause>);

    pub struct OpenFile {
        pub engine: Engine,
        pub policy: RoutePolicy,
        pub device: u64,
        pub cutting: Cutting,
        /// The byte that cannot be read or written.
        pub bad: Option<usize>,
        /// The length of the file in bytes.
        pub len_bytes: usize,
        /// Bytes may be transferred more than once.
        pub may_repeat: bool,
        pub seen: Mutex<Seen>,
    }

    #[derive(Default)]
    pub struct Seen {
        /// The offset and the number of bytes of each transfer.
        pub transferred: Vec<(usize, usize)>,
        is_writing: bool,
    }

    /// Bytes of a file that lie in a bounce buffer.
    pub struct Staged {
        pub start: usize,
        pub done: usize,
        pub cause: Option<Cause>,
    }

    impl OpenFile {
        pub fn new(engine: &Engine, cutting: Cutting) -> Self {
            Self {
                engine: engine.clone(),
                policy: RoutePolicy::PosixOnly,
                device: 0,
                cutting,
                bad: None,
                len_bytes: usize::MAX,
                may_repeat: false,
                seen: Mutex::default(),
            }
        }

        /// Returns how many bytes of a range can be transferred, and what fails then.
        fn possible(&self, offset: usize, len_bytes: usize) -> Outcome {
            match self.bad {
                Some(bad) if (offset..offset + len_bytes).contains(&bad) => {
                    (bad - offset, Some(Cause::Failed))
                }
                _ => (len_bytes.min(self.len_bytes.saturating_sub(offset)), None),
            }
        }

        fn note(&self, offset: usize, len_bytes: usize) {
            if len_bytes > 0 {
                self.seen.lock().unwrap().transferred.push((offset, len_bytes));
            }
        }

        pub unsafe fn read_rest(&self, target: *mut u8, len_bytes: usize, offset: u64, _: usize) -> Outcome {
            let offset = offset as usize;
            let (done, cause) = self.possible(offset, len_bytes);
            // A failed call may have written anything.
            world::using(&[(target, len_bytes, Access::Write)], "a read", || {
                // SAFETY: it is there, as `using` has checked.
                unsafe { slice::from_raw_parts_mut(target, done) }
                    .copy_from_slice(world::pattern(offset, done));
            });
            self.note(offset, done);
            (done, cause)
        }

        pub unsafe fn read_host(
            &self,
            target: *mut u8,
            len_bytes: usize,
            offset: u64,
            _: &mut Bounce,
        ) -> Outcome {
            // SAFETY: the caller's promise.
            unsafe { self.read_rest(target, len_bytes, offset, 0) }
        }

        pub fn read_staged(
            &self,
            bounce: &mut Bounce,
            start: usize,
            offset: u64,
            len: usize,
            _: usize,
        ) -> Staged {
            // SAFETY: that it has room is checked.
            let (done, cause) = unsafe { self.read_rest(bounce.ptr().wrapping_add(start), len, offset, 0) };
            Staged { start, done, cause }
        }

        pub fn place_for_write(&self, end: usize, _: u64, _: usize, _: usize) -> usize {
            end
        }

        pub fn write_staged(&self, _: &Side, _: bool, source: &[u8], offset: u64) -> Outcome {
            let offset = offset as usize;
            if self.cutting.serial {
                let mut seen = self.seen.lock().unwrap();
                assert!(!seen.is_writing, "two write at once");
                assert_eq!(
                    seen.transferred.iter().map(|(_, len)| len).sum::<usize>(),
                    offset,
                    "out of order"
                );
                seen.is_writing = true;
            }
            let (done, cause) = self.possible(offset, source.len());
            world::using(&[(source.as_ptr(), source.len(), Access::Read)], "a write", || {
                assert!(source[..done] == *world::pattern(offset, done), "other bytes are written");
            });
            self.note(offset, done);
            self.seen.lock().unwrap().is_writing = false;
            (done, cause)
        }

        pub unsafe fn write_host(
            &self,
            side: &Side,
            last: bool,
            source: *const u8,
            len_bytes: usize,
            offset: u64,
            _: &mut Bounce,
        ) -> Outcome {
            world::check(source, len_bytes, "a write");
            // SAFETY: it is there.
            self.write_staged(side, last, unsafe { slice::from_raw_parts(source, len_bytes) }, offset)
        }

        pub fn cufile(&self, _: usize) -> Option<&Infallible> {
            None
        }

        pub fn write_cufile(&self, handle: &Infallible, _: &Memory, _: u64) -> Outcome {
            match *handle {}
        }
    }

    pub fn read_cufile(handle: &Infallible, _: &mut Memory, _: u64) -> Outcome {
        match *handle {}
    }

    pub enum Mapping {}

    impl Mapping {
        pub unsafe fn read<'a, I: Iterator<Item = Segment<'a>>>(
            &self,
            _: impl Fn() -> I,
            _: impl FnMut(&Segment<'a>) -> *mut u8,
        ) {
            match *self {}
        }
    }
}
