//! Tests of lists of ranges that are ordered with a stream's work.

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};

use cufile::IoBufMut;
use cufile::cuda::{DeviceBuffer, Stream};
use gpufile::{Cause, Engine, Error, File, IoRange, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::in_flight::{Gate, block_on, soon};

const MIB: usize = 1 << 20;
/// The length of ranges of which 25 fill the slots of a ring more than once, and end within a slot.
const ODD: usize = MIB + 4321;
/// The value of bytes that no transfer writes.
const UNTOUCHED: u8 = 0xee;

fn open(bed: &Bed, name: &str) -> File {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
    let options = File::options().read(true).write(true).create(true).engine(&engine);
    options.policy(RoutePolicy::PosixOnly).open(bed.path(name)).unwrap()
}

fn device(bed: &Bed, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = bed.device.alloc(bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

fn range(file_offset: usize, buffer_offset: usize, len_bytes: usize) -> IoRange {
    IoRange { file_offset: file_offset as u64, buffer_offset, len_bytes }
}

/// Returns what a buffer holds after a read of these ranges.
fn after_read(mut buffer: Vec<u8>, file: &[u8], ranges: &[IoRange]) -> Vec<u8> {
    for &IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        let source = &file[file_offset as usize..][..len_bytes];
        buffer[buffer_offset..][..len_bytes].copy_from_slice(source);
    }
    buffer
}

/// Returns what a file holds after a write of these ranges.
fn after_write(mut file: Vec<u8>, buffer: &[u8], ranges: &[IoRange]) -> Vec<u8> {
    for &IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        file[file_offset as usize..][..len_bytes].copy_from_slice(&buffer[buffer_offset..][..len_bytes]);
    }
    file
}

/// Returns 25 long ranges from the end of the file to its start, with gaps in the buffer.
fn backwards() -> Vec<IoRange> {
    (0..25).map(|at| range((24 - at) * ODD, at * (ODD + 7), ODD)).collect()
}

const BACKWARDS: usize = 25 * (ODD + 7);

#[test]
fn lists_keep_their_place_in_stream_order() {
    Bed::each(|bed| {
        let (old, new) = (vec![1; BACKWARDS], pattern(BACKWARDS));
        bed.file("ordered", &old);
        let file = open(bed, "ordered");
        let stream = bed.device.stream().unwrap();
        let mut after = bed.device.alloc_pinned(BACKWARDS).unwrap();
        let gate = Gate::close(&stream);
        let target = device(bed, &[UNTOUCHED; BACKWARDS]);
        let read = file.read_many_on_stream(&stream, target, &backwards());
        // SAFETY: both live until the stream has been waited for.
        unsafe { stream.copy_from_device(&mut after, read.buffer_ptr()) }.unwrap();
        assert!(!read.is_done(), "the stream has not come to it");
        fs::write(bed.path("ordered"), &new).unwrap();
        gate.open();
        stream.synchronize().unwrap();
        let expected = after_read(vec![UNTOUCHED; BACKWARDS], &new, &backwards());
        assert!(*after == *expected, "later work of the stream sees what was read");
        let (count, buffer) = block_on(read);
        assert_eq!(count.unwrap(), 25 * ODD);
        // The write finds the bytes of the read before it.
        let forwards: Vec<_> = (0..25).map(|at| range(at * ODD, at * (ODD + 7), ODD)).collect();
        let (count, _) = file.write_many_on_stream(&stream, buffer, &forwards).wait();
        assert_eq!(count.unwrap(), 25 * ODD);
        assert!(fs::read(bed.path("ordered")).unwrap() == after_write(new, &expected, &forwards));
    });
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    /// Returns the length of a range: none, short, or longer than a short slot.
    fn len(&mut self) -> usize {
        match self.below(20) {
            0 => 0,
            1 => self.below(3 * MIB),
            _ => 1 + self.below(5000),
        }
    }

    /// Returns the places of these lengths, in any order and with gaps, and their end.
    fn places(&mut self, lens: &[usize]) -> (Vec<usize>, usize) {
        let mut order: Vec<_> = (0..lens.len()).collect();
        if self.below(2) == 0 {
            (1..order.len()).for_each(|last| order.swap(last, self.below(last + 1)));
        }
        let (mut places, mut end) = (vec![0; lens.len()], 0);
        for at in order {
            end += if self.below(2) == 0 { 0 } else { self.below(9000) };
            places[at] = end;
            end += lens[at];
        }
        (places, end)
    }
}

/// Writes and reads random lists, and compares the file and the buffer with the model.
fn check_random<B: IoBufMut + Send + 'static>(
    (file, stream): (&File, &Stream),
    seed: u64,
    make: impl Fn(&[u8]) -> B,
    bytes: impl Fn(&B) -> Vec<u8>,
) {
    let mut random = Random(seed);
    let lens: Vec<_> = (0..1 + random.below(80)).map(|_| random.len()).collect();
    let total: usize = lens.iter().sum();
    let ((in_file, file_len), (in_buffer, buffer_len)) = (random.places(&lens), random.places(&lens));
    let ranges: Vec<_> = (0..lens.len()).map(|at| range(in_file[at], in_buffer[at], lens[at])).collect();
    let (source, before) = (pattern(buffer_len), vec![UNTOUCHED; file_len]);
    fs::write(file.path(), &before).unwrap();
    let (count, source_after) = file.write_many_on_stream(stream, make(&source), &ranges).wait();
    assert_eq!(count.unwrap(), total, "{seed}");
    assert!(bytes(&source_after) == source, "{seed}: a write changed its buffer");
    let written = after_write(before, &source, &ranges);
    assert!(fs::read(file.path()).unwrap() == written, "{seed}: {ranges:?}");
    let target = vec![UNTOUCHED; buffer_len];
    let (count, buffer) = file.read_many_on_stream(stream, make(&target), &ranges).wait();
    assert_eq!(count.unwrap(), total, "{seed}");
    assert!(bytes(&buffer) == after_read(target, &written, &ranges), "{seed}: {ranges:?}");
}

#[test]
fn random_lists_match_the_model() {
    Bed::each(|bed| {
        let (file, stream) = (open(bed, "random"), bed.device.stream().unwrap());
        let both = (&file, &stream);
        let pinned = |bytes: &[u8]| {
            let mut buffer = bed.device.alloc_pinned(bytes.len()).unwrap();
            buffer.copy_from_slice(bytes);
            buffer
        };
        for seed in 0..20 {
            check_random(both, seed, |bytes| device(bed, bytes), |buffer| buffer.to_vec().unwrap());
            check_random(both, seed, |bytes| bytes.to_vec(), Vec::clone);
        }
        for seed in 20..25 {
            check_random(both, seed, pinned, |buffer| buffer.to_vec());
        }
    });
}

#[test]
fn reads_fail_with_the_range_that_the_file_ends_in() {
    Bed::each(|bed| {
        let bytes = pattern(25 * ODD);
        bed.file("short", &bytes);
        bed.file("other", &[UNTOUCHED; BACKWARDS]);
        let file = open(bed, "short");
        let other = File::options().read(true).engine(file.engine()).policy(RoutePolicy::PosixOnly);
        let other = other.open(bed.path("other")).unwrap();
        let stream = bed.device.stream().unwrap();
        for bad in [0, 7, 8, 24] {
            for missing in [1, ODD] {
                let mut ranges = backwards();
                ranges[bad].file_offset = (bytes.len() - ODD + missing) as u64;
                // This leaves bytes of another file in the slots.
                let target = device(bed, &[UNTOUCHED; BACKWARDS]);
                let (_, target) = other.read_at_on_stream(&stream, target, 0).wait();
                let (failed, buffer) = file.read_many_on_stream(&stream, target, &ranges).wait();
                let Err(Error::Entry { entry, error, .. }) = failed else { panic!("{failed:?}") };
                assert_eq!((entry, error.bytes_done()), (bad, ODD - missing), "{error}");
                assert!(matches!(error.cause(), Cause::EndOfFile { .. }), "{error}");
                // The other ranges have the bytes of this file, or zeros.
                let mut found = buffer.to_vec().unwrap();
                for (at, range) in ranges.iter().enumerate().filter(|(at, _)| *at != bad) {
                    let place = &mut found[range.buffer_offset..][..ODD];
                    let from_file = &bytes[range.file_offset as usize..][..ODD];
                    let is_right = |(one, other): (&u8, &u8)| *one == *other || *one == 0;
                    assert!(
                        *place == *from_file || place.iter().zip(from_file).all(is_right),
                        "{at} beside {bad}"
                    );
                    place.fill(UNTOUCHED);
                }
                found[ranges[bad].buffer_offset..][..ODD].fill(UNTOUCHED);
                assert!(found == [UNTOUCHED; BACKWARDS], "bytes between the ranges of {bad}");
            }
        }
        assert_eq!(file.read_many_on_stream(&stream, vec![0; 9], &[range(0, 0, 9)]).wait().0.unwrap(), 9);
        stream.synchronize().unwrap();
    });
}

/// Returns a file in memory of this length, which cannot grow.
fn sealed(engine: &Engine, len_bytes: usize) -> File {
    // SAFETY: the name is a string, and the descriptor is a new one.
    let fd = unsafe {
        let fd = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0 && libc::ftruncate(fd, len_bytes as i64) == 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW), 0);
        OwnedFd::from_raw_fd(fd)
    };
    File::options().read(true).write(true).engine(engine).open_fd(fd).unwrap()
}

#[test]
fn failed_writes_leave_out_the_parts_behind_them() {
    Bed::each(|bed| {
        let stream = bed.device.stream().unwrap();
        let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
        let source = pattern(BACKWARDS);
        let ranges: Vec<_> = (0..25).map(|at| range(at * ODD, at * (ODD + 7), ODD)).collect();
        for bad in [3, 12, 24] {
            let file = sealed(&engine, 25 * ODD);
            let mut ranges = ranges.clone();
            ranges[bad].file_offset = (25 * ODD) as u64;
            let (failed, _) = file.write_many_on_stream(&stream, device(bed, &source), &ranges).wait();
            let error = failed.unwrap_err();
            assert!(matches!(error, Error::Entry { entry, .. } if entry == bad), "{bad}: {error}");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{bad}");
            let mut found = vec![UNTOUCHED; 25 * ODD];
            file.read_exact_at(&mut found, 0).unwrap();
            // A slot holds at most 8 ranges.
            let is_written = |at: usize| found[at * ODD..][..ODD] == source[at * (ODD + 7)..][..ODD];
            assert!((0..bad.saturating_sub(8)).all(is_written), "{bad}: the parts before");
            let mut behind = found[(bad + 9).min(25) * ODD..].iter();
            assert!(behind.all(|byte| *byte == 0), "{bad}: the parts behind");
        }
    });
}

#[test]
fn lists_are_checked_before_they_begin() {
    Bed::each(|bed| {
        bed.file("checked", &pattern(5000));
        let file = open(bed, "checked");
        let stream = bed.device.stream().unwrap();
        let memory = || device(bed, &[UNTOUCHED; 5000]);
        let gate = Gate::close(&stream);
        let beyond = [range(0, 0, 10), range(0, 4991, 10)];
        let overlapping = [range(0, 100, 10), range(0, 0, 10), range(9, 109, 10)];
        let far = [IoRange { file_offset: u64::MAX - 3, buffer_offset: 0, len_bytes: 10 }];
        let refusals = [
            (file.read_many_on_stream(&stream, memory(), &beyond), 1, None),
            (file.write_many_on_stream(&stream, memory(), &beyond), 1, None),
            (file.read_many_on_stream(&stream, memory(), &overlapping), 2, None),
            (file.read_many_on_stream(&stream, memory(), &far), 0, Some(libc::EOVERFLOW)),
        ];
        for (refused, entry_of, errno) in refusals {
            assert!(refused.is_done());
            let (failed, buffer) = refused.wait();
            let Err(Error::Entry { entry, error, .. }) = failed else { panic!("{failed:?}") };
            assert_eq!((entry, error.raw_os_error()), (entry_of, errno), "{error}");
            assert_eq!(errno.is_none(), matches!(error.cause(), Cause::Invalid(_)), "{error}");
            assert!(buffer.to_vec().unwrap() == [UNTOUCHED; 5000]);
        }
        gate.open();
        // Ranges of a write may overlap in memory.
        let (count, _) = file.write_many_on_stream(&stream, memory(), &overlapping).wait();
        assert_eq!(count.unwrap(), 30);
        let read_only = File::options().read(true).engine(file.engine()).open(bed.path("checked")).unwrap();
        let (refused, _) = read_only.write_many_on_stream(&stream, memory(), &overlapping).wait();
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBADF));
    });
}

#[test]
fn empty_lists_and_ranges_transfer_nothing() {
    Bed::each(|bed| {
        bed.file("empty", &pattern(100));
        let file = open(bed, "empty");
        let stream = bed.device.stream().unwrap();
        for ranges in [&[][..], &[range(0, 0, 0)], &[range(200, 50, 0), range(0, 0, 0)]] {
            let (count, buffer) =
                file.read_many_on_stream(&stream, device(bed, &[UNTOUCHED; 50]), ranges).wait();
            assert_eq!((count.unwrap(), buffer.to_vec().unwrap()), (0, vec![UNTOUCHED; 50]));
            let (count, _) = file.write_many_on_stream(&stream, device(bed, &[1; 50]), ranges).wait();
            assert_eq!(count.unwrap(), 0);
        }
        assert_eq!(fs::read(bed.path("empty")).unwrap(), pattern(100));
        // Empty ranges count as entries.
        let ranges = [range(0, 0, 0), range(0, 0, 10), range(0, 3, 0), range(95, 10, 10)];
        let (failed, _) = file.read_many_on_stream(&stream, device(bed, &[0; 50]), &ranges).wait();
        assert!(matches!(failed, Err(Error::Entry { entry: 3, .. })), "{failed:?}");
    });
}

#[test]
fn streams_carry_out_lists_of_a_file_opened_twice() {
    Bed::each(|bed| {
        let bytes = pattern(BACKWARDS);
        bed.file("twice", &bytes);
        let files = [open(bed, "twice"), open(bed, "twice")];
        let expected = after_read(vec![UNTOUCHED; BACKWARDS], &bytes, &backwards());
        std::thread::scope(|scope| {
            for at in 0..6 {
                let (file, expected) = (&files[at % 2], &expected);
                scope.spawn(move || {
                    let stream = bed.device.stream().unwrap();
                    let targets = [0; 2].map(|_| device(bed, &[UNTOUCHED; BACKWARDS]));
                    let reads = targets.map(|target| file.read_many_on_stream(&stream, target, &backwards()));
                    for (count, buffer) in reads.map(|read| read.wait()) {
                        assert_eq!(count.unwrap(), 25 * ODD);
                        assert!(buffer.to_vec().unwrap() == *expected);
                    }
                });
            }
        });
    });
}

#[test]
fn drop_waits_for_lists_and_forget_is_safe() {
    Bed::each(|bed| {
        let bytes = pattern(BACKWARDS);
        bed.file("dropped", &[0; 25 * ODD]);
        let file = open(bed, "dropped");
        let stream = bed.device.stream().unwrap();
        drop(file.write_many_on_stream(&stream, device(bed, &bytes), &backwards()));
        let expected = after_write(vec![0; 25 * ODD], &bytes, &backwards());
        assert!(fs::read(bed.path("dropped")).unwrap() == expected);
        std::mem::forget(file.read_many_on_stream(&stream, device(bed, &[0; 100]), &[range(0, 50, 50)]));
        stream.synchronize().unwrap();
    });
}

#[test]
fn calls_carry_out_lists_that_streams_cannot_wait_for() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(BACKWARDS);
    bed.file("held", &bytes);
    let file = open(&bed, "held");
    let stream = bed.device.stream().unwrap();
    let expected = after_read(vec![UNTOUCHED; BACKWARDS], &bytes, &backwards());
    for fault in [
        "cudaLaunchHostFunc err=801",
        "cuStreamBatchMemOp_v2 after=2 err=801",
        "cudaMemcpyAsync after=9 err=1",
    ] {
        let target = device(&bed, &[UNTOUCHED; BACKWARDS]);
        emulator.control(&format!("fault {fault}"));
        let read = file.read_many_on_stream(&stream, target, &backwards());
        assert!(read.is_done(), "{fault}");
        let (count, buffer) = read.wait();
        assert_eq!(count.unwrap(), 25 * ODD, "{fault}");
        assert!(buffer.to_vec().unwrap() == expected, "{fault}");
    }
    // After a failure, each range has bytes of the file or zeros.
    let mut ranges = backwards();
    ranges[7].file_offset = bytes.len() as u64 - 1;
    emulator.control("fault cudaLaunchHostFunc err=801");
    let (failed, buffer) =
        file.read_many_on_stream(&stream, device(&bed, &[UNTOUCHED; BACKWARDS]), &ranges).wait();
    assert!(matches!(failed, Err(Error::Entry { entry: 7, .. })), "{failed:?}");
    let found = buffer.to_vec().unwrap();
    for range in &ranges {
        let of_file = bytes[range.file_offset as usize..].iter().chain(&[0; ODD]);
        let mut pairs = found[range.buffer_offset..][..ODD].iter().zip(of_file);
        assert!(pairs.all(|(found, of_file)| *found == *of_file || *found == 0), "{range:?}");
    }
    let target = device(&bed, &[UNTOUCHED; BACKWARDS]);
    emulator.control("fault cudaStreamIsCapturing status=1 times=all");
    let (refused, _) = file.read_many_on_stream(&stream, target, &backwards()).wait();
    assert!(matches!(refused.unwrap_err(), Error::Entry { .. }));
    let (refused, _) = file.read_many_on_stream(&stream, vec![0; 9], &[]).wait();
    assert!(matches!(refused.unwrap_err().cause(), Cause::Invalid(_)));
}

#[test]
fn neighbours_in_list_and_buffer_share_a_copy() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(200_000);
    bed.file("neighbours", &bytes);
    let file = open(&bed, "neighbours");
    let stream = bed.device.stream().unwrap();
    // The file's order does not matter, and gaps in the buffer do.
    let tight: Vec<_> = (0..100).map(|at| range((99 - at) * 2000, at * 1000, 1000)).collect();
    let loose: Vec<_> = (0..100).map(|at| range(at * 2000, at * 1001, 1000)).collect();
    for (ranges, copies) in [(tight, 1), (loose, 100)] {
        let target = device(&bed, &[UNTOUCHED; 110_000]);
        let before = emulator.calls("cudaMemcpyAsync");
        let (count, buffer) = file.read_many_on_stream(&stream, target, &ranges).wait();
        assert_eq!(emulator.calls("cudaMemcpyAsync") - before, copies);
        assert_eq!(count.unwrap(), 100_000);
        let expected = after_read(vec![UNTOUCHED; 110_000], &bytes, &ranges);
        assert!(buffer.to_vec().unwrap() == expected);
    }
}

#[test]
fn lists_may_have_more_copies_than_a_stream_has_room() {
    const COUNT: usize = 6000;
    Bed::each(|bed| {
        let bytes = pattern(COUNT * 700);
        bed.file("long", &bytes);
        let file = open(bed, "long");
        let stream = bed.device.stream().unwrap();
        let target = device(bed, &[UNTOUCHED; COUNT * 701]);
        let mut ranges: Vec<_> = (0..COUNT).map(|at| range((COUNT - 1 - at) * 700, at * 701, 700)).collect();
        // Long lists may overlap on a GPU.
        ranges[COUNT - 1].buffer_offset = ranges[5].buffer_offset;
        let gate = Gate::close(&stream);
        let read = std::thread::scope(|scope| {
            let read = scope.spawn(|| file.read_many_on_stream(&stream, target, &ranges));
            std::thread::sleep(std::time::Duration::from_millis(30));
            gate.open();
            read.join().unwrap()
        });
        soon("the end of the list", || read.is_done());
        let (count, buffer) = read.wait();
        assert_eq!(count.unwrap(), COUNT * 700);
        let mut found = buffer.to_vec().unwrap();
        let either = [5, COUNT - 1].map(|at| bytes[ranges[at].file_offset as usize..][..700].to_vec());
        assert!(either.iter().any(|bytes| found[5 * 701..][..700] == *bytes));
        found[5 * 701..][..700].copy_from_slice(&either[1]);
        assert!(found == after_read(vec![UNTOUCHED; COUNT * 701], &bytes, &ranges));
    });
}
