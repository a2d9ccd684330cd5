//! Tests of lists of ranges over memory with holes, compared byte for byte with a model. Each entry that meets a hole
//! fails, and no other.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use cufile::cuda::DeviceBuffer;
use cufile::{BufSlice, BufSliceMut};
use gpufile::{Engine, Error, File, IoRange, Request, Result};
use testkit::bed::{Bed, pattern};
use testkit::random::Random;

const PAGE: usize = 4096;

/// Memory of this process, some pages of which cannot be accessed. The file `/proc/self/mem` has these pages
/// at their addresses, and fails with `EIO` where they cannot be accessed.
struct Holes {
    ptr: *mut u8,
    /// For each page, whether it can be accessed.
    is_whole: Vec<bool>,
}

impl Holes {
    fn new(is_whole: Vec<bool>) -> Self {
        // A shared mapping of an empty file has no bytes.
        // SAFETY: the name is a C string, and the descriptor is new.
        let empty = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"empty".as_ptr(), 0)) };
        let (len, rw) = (PAGE * is_whole.len(), libc::PROT_READ | libc::PROT_WRITE);
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let ptr: *mut u8 = unsafe { libc::mmap(ptr::null_mut(), len, rw, private, -1, 0) }.cast();
        assert!(!ptr.is_null());
        for page in (0..is_whole.len()).filter(|page| !is_whole[*page]) {
            let (start, flags) = (ptr.wrapping_add(PAGE * page), libc::MAP_SHARED | libc::MAP_FIXED);
            // SAFETY: it replaces a page of the new mapping.
            let hole = unsafe { libc::mmap(start.cast(), PAGE, rw, flags, empty.as_raw_fd(), 0) };
            assert_eq!(hole.cast(), start);
        }
        Self { ptr, is_whole }
    }

    fn offset(&self, at: usize) -> u64 {
        (self.ptr.addr() + at) as u64
    }

    /// Returns the number of bytes from `at` on that can be accessed, up to `len`.
    fn whole_bytes(&self, at: usize, len: usize) -> usize {
        (at..at + len).position(|byte| !self.is_whole[byte / PAGE]).unwrap_or(len)
    }

    fn get(&self, at: usize) -> u8 {
        // SAFETY: the page can be accessed, and only `pwrite` calls that have returned changed it.
        if self.is_whole[at / PAGE] { unsafe { self.ptr.add(at).read_volatile() } } else { 0 }
    }

    fn set(&self, at: usize, byte: u8) {
        if self.is_whole[at / PAGE] {
            // SAFETY: the page can be accessed.
            unsafe { self.ptr.add(at).write_volatile(byte) };
        }
    }
}

impl Drop for Holes {
    fn drop(&mut self) {
        // SAFETY: its own mapping, which nothing uses any more.
        unsafe { libc::munmap(self.ptr.cast(), PAGE * self.is_whole.len()) };
    }
}

enum Memory {
    Host(Vec<u8>),
    Device(DeviceBuffer),
}

impl Memory {
    fn fill(&mut self, bytes: &[u8]) {
        match self {
            Memory::Host(memory) => memory.copy_from_slice(bytes),
            Memory::Device(memory) => memory.copy_from_host(0, bytes).unwrap(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Memory::Host(memory) => memory.clone(),
            Memory::Device(memory) => memory.to_vec().unwrap(),
        }
    }

    fn all(&self) -> BufSlice<'_> {
        match self {
            Memory::Host(memory) => memory.into(),
            Memory::Device(memory) => memory.into(),
        }
    }

    fn all_mut(&mut self) -> BufSliceMut<'_> {
        match self {
            Memory::Host(memory) => memory.into(),
            Memory::Device(memory) => memory.into(),
        }
    }
}

fn check_hole(outcome: std::result::Result<usize, &Error>, whole_bytes: usize, len: usize) {
    match outcome {
        Ok(bytes) => assert_eq!((bytes, whole_bytes), (len, len)),
        Err(error) => {
            assert_eq!((error.bytes_done(), error.raw_os_error()), (whole_bytes, Some(libc::EIO)), "{error}");
            assert!(whole_bytes < len, "{error}");
        }
    }
}

fn read_requests(file: &File, buffer: BufSliceMut<'_>, ranges: &[IoRange]) -> Vec<Result<usize>> {
    let mut order: Vec<_> = (0..ranges.len()).collect();
    order.sort_by_key(|entry| ranges[*entry].buffer_offset);
    let mut requests = Vec::new();
    let mut rest = (0, buffer);
    for entry in order {
        let IoRange { file_offset, buffer_offset, len_bytes } = ranges[entry];
        let (start, part) = rest;
        let (part, behind) = part.split_at(buffer_offset - start).1.split_at(len_bytes);
        rest = (buffer_offset + len_bytes, behind);
        requests.push((entry, Request { file, buffer: part, offset: file_offset }));
    }
    requests.sort_by_key(|(entry, _)| *entry);
    let mut requests: Vec<_> = requests.into_iter().map(|(_, request)| request).collect();
    file.engine().read_many_each(&mut requests)
}

fn write_requests(file: &File, buffer: BufSlice<'_>, ranges: &[IoRange]) -> Vec<Result<()>> {
    let request = |range: &IoRange| {
        let part = buffer.slice(range.buffer_offset..range.buffer_offset + range.len_bytes);
        Request { file, buffer: part, offset: range.file_offset }
    };
    file.engine().write_many_each(&ranges.iter().map(request).collect::<Vec<_>>())
}

#[test]
fn random_holes_fail_only_their_entries() {
    let bed = Bed::emulated();
    let mut random = Random::new(7);
    for case in 0..80 {
        let (pages, holes) = (1 + random.below(12), 1 + random.below(20));
        let memory = Holes::new((0..pages).map(|_| !random.one_in(holes)).collect());
        let len = PAGE * pages;
        let seed = pattern(2 * len);
        (0..len).for_each(|at| memory.set(at, seed[at]));
        let engine = Engine::builder()
            .driver(bed.driver.clone())
            .threads(1 + random.below(4))
            .bounce_buffer_bytes(random.pick(&[PAGE, 4 * PAGE, 1 << 20]))
            .chunk_bytes(random.pick(&[1000, PAGE, 3 * PAGE, 1 << 20]));
        let options = File::options().read(true).write(true).engine(&engine.build());
        let file = options.open("/proc/self/mem").unwrap();
        // The ranges follow each other in the buffer, with gaps, and are shuffled then.
        let longest = random.pick(&[3, 100, 2 * PAGE]);
        let (mut ranges, mut end) = (Vec::new(), 0);
        while end < len {
            let bytes = random.below(longest + 1).min(len - end);
            let file_offset = memory.offset(random.below(len - bytes + 1));
            ranges.push(IoRange { file_offset, buffer_offset: end, len_bytes: bytes });
            end += bytes + 1 + if random.one_in(3) { random.below(100) } else { 0 };
        }
        if random.one_in(2) {
            random.shuffle(&mut ranges);
        }
        let mut buffer = match random.one_in(3) {
            true => Memory::Host(vec![0; len]),
            false => Memory::Device(bed.device.alloc(len).unwrap()),
        };
        buffer.fill(&seed[len..]);
        let outcomes = match case % 2 {
            0 => file.read_many_each(&mut buffer.all_mut(), &ranges).unwrap(),
            _ => read_requests(&file, buffer.all_mut(), &ranges),
        };
        let found = buffer.bytes();
        check_reads(&memory, &ranges, &outcomes, &found, &seed[len..]);

        // Back, to other places that do not overlap.
        let shift = random.below(len);
        for range in &mut ranges {
            let at = (range.buffer_offset + shift) % len;
            range.len_bytes = range.len_bytes.min(len - at);
            range.file_offset = memory.offset(at);
        }
        let before: Vec<u8> = (0..len).map(|at| memory.get(at)).collect();
        let outcomes = match case % 2 {
            0 => file.write_many_each(&buffer.all(), &ranges).unwrap(),
            _ => write_requests(&file, buffer.all(), &ranges),
        };
        check_writes(&memory, &ranges, &outcomes, &found, before);
    }
}

/// Checks the outcomes of reads into a buffer with the bytes `found`, which had the bytes `before`.
fn check_reads(memory: &Holes, ranges: &[IoRange], outcomes: &[Result<usize>], found: &[u8], before: &[u8]) {
    assert_eq!(outcomes.len(), ranges.len());
    let mut is_target = vec![false; found.len()];
    for (range, outcome) in ranges.iter().zip(outcomes) {
        let at = (range.file_offset - memory.offset(0)) as usize;
        let whole = memory.whole_bytes(at, range.len_bytes);
        check_hole(outcome.as_ref().copied(), whole, range.len_bytes);
        assert!(
            (0..whole).all(|byte| found[range.buffer_offset + byte] == memory.get(at + byte)),
            "{range:?}"
        );
        is_target[range.buffer_offset..][..range.len_bytes].fill(true);
    }
    assert!((0..found.len()).all(|at| is_target[at] || found[at] == before[at]), "other bytes changed");
}

/// Checks the outcomes of writes from a buffer with the bytes `source`, and the memory, which had the bytes
/// `expected` before.
fn check_writes(
    memory: &Holes,
    ranges: &[IoRange],
    outcomes: &[Result<()>],
    source: &[u8],
    mut expected: Vec<u8>,
) {
    assert_eq!(outcomes.len(), ranges.len());
    for (range, outcome) in ranges.iter().zip(outcomes) {
        let at = (range.file_offset - memory.offset(0)) as usize;
        let whole = memory.whole_bytes(at, range.len_bytes);
        check_hole(outcome.as_ref().map(|()| range.len_bytes), whole, range.len_bytes);
        for byte in 0..range.len_bytes {
            // Bytes behind a failure may have been written too.
            let written = source[range.buffer_offset + byte];
            if byte < whole || memory.get(at + byte) == written {
                expected[at + byte] = written;
            }
        }
    }
    let differs =
        (0..expected.len()).find(|at| memory.is_whole[at / PAGE] && memory.get(*at) != expected[*at]);
    assert_eq!(differs, None);
}
