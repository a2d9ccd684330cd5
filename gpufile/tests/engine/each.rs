//! Tests of many ranges in one call with an outcome for each: failures, ends of files, refusals, faults.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, iter};

use cufile::cuda::{Cuda, DeviceBuffer, DeviceMemory};
use cufile::{BufSlice, BufSliceMut, IoBufMut};
use gpufile::{
    Cause, Engine, EngineBuilder, Error, File, IoRange, OpenOptions, Request, Result, RoutePolicy,
};
use testkit::bed::{Bed, folders, pattern};
use testkit::random::Random;

const PAGE: usize = 4096;

fn engine(bed: &Bed) -> EngineBuilder {
    Engine::builder().driver(bed.driver.clone())
}

fn open(engine: &Engine, path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).engine(engine).open(path).unwrap()
}

fn range(file_offset: u64, buffer_offset: usize, len_bytes: usize) -> IoRange {
    IoRange { file_offset, buffer_offset, len_bytes }
}

#[test]
fn ends_of_files_make_entries_short() {
    Bed::each(|bed| {
        let bytes = pattern(100_003);
        bed.file("data", &bytes);
        let mut random = Random::new(8);
        for chunk_bytes in [1000, PAGE, 1 << 20] {
            let file = open(&engine(bed).chunk_bytes(chunk_bytes).build(), &bed.path("data"));
            let ranges: Vec<_> = (0..2000)
                .map(|at| range(random.below(110_000) as u64, 300 * at, random.below(301)))
                .collect();
            let mut device = bed.device.alloc(600_000).unwrap();
            let mut host = vec![0; 600_000];
            let outcomes = file.read_many_each(&mut device, &ranges).unwrap();
            let of_host = file.read_many_each(&mut host, &ranges).unwrap();
            let device = device.to_vec().unwrap();
            for (IoRange { file_offset, buffer_offset, len_bytes }, (one, other)) in
                ranges.into_iter().zip(outcomes.into_iter().zip(of_host))
            {
                let left = &bytes[bytes.len().min(file_offset as usize)..];
                let expected = &left[..left.len().min(len_bytes)];
                assert_eq!((one.unwrap(), other.unwrap()), (expected.len(), expected.len()));
                assert!(device[buffer_offset..].starts_with(expected));
                assert!(host[buffer_offset..].starts_with(expected));
            }
        }
    });
}

#[test]
fn invalid_ranges_do_not_stop_the_others() {
    Bed::each(|bed| {
        let bytes = pattern(100_000);
        bed.file("data", &bytes);
        let file = open(&engine(bed).build(), &bed.path("data"));
        let ranges = [
            range(500, 0, 100),
            range(0, 950, 51),          // behind the buffer
            range(7, 300, 100),         // overlaps the last
            range(u64::MAX - 5, 20, 3), // beyond all files
            range(0, 450, 0),
            range(99_950, 500, 100), // the file ends within it
            range(0, usize::MAX, 2),
            range(900, 100, 200),
            range(8, 399, 100),
        ];
        let mut host = vec![1; 1000];
        let mut device = bed.device.alloc(1000).unwrap();
        device.fill(1).unwrap();
        let outcomes = file.read_many_each(&mut host, &ranges).unwrap();
        let of_device = file.read_many_each(&mut device, &ranges).unwrap();
        assert!(device.to_vec().unwrap() == host);
        for outcomes in [outcomes, of_device] {
            let summary = outcomes.iter().map(|outcome| outcome.as_ref().ok().copied());
            let expected = [Some(100), None, None, None, Some(0), Some(50), None, Some(200), None];
            assert!(summary.eq(expected), "{outcomes:?}");
            let text = |entry: usize| outcomes[entry].as_ref().unwrap_err().to_string();
            assert!(text(1).contains("starts at byte 950"), "{}", text(1));
            assert!(text(2).contains("overlaps the memory of entry 8"), "{}", text(2));
            assert!(text(8).contains("overlaps the memory of entry 2"), "{}", text(8));
            assert_eq!(outcomes[3].as_ref().unwrap_err().raw_os_error(), Some(libc::EOVERFLOW));
        }
        assert!(host[..100] == bytes[500..600] && host[100..300] == bytes[900..1100]);
        assert!(host[500..550] == bytes[99_950..] && host[300..500].iter().all(|byte| *byte == 1));

        // Writes may overlap in memory.
        let outcomes = file.write_many_each(&host, &ranges).unwrap();
        let summary = outcomes.iter().map(|outcome| outcome.is_ok());
        assert!(summary.eq([true, false, true, false, true, true, false, true, true]), "{outcomes:?}");
        let found = fs::read(bed.path("data")).unwrap();
        assert!(
            found.len() == 100_050 && found[500..600] == host[..100] && found[900..1100] == host[100..300]
        );
    });
}

#[test]
fn requests_beyond_the_limit_of_files_fail_alone() {
    let bed = Bed::emulated();
    let bytes = pattern(10_000);
    bed.file("data", &bytes);
    let engine = engine(&bed).build();
    let file = File::options().read(true).write(true).engine(&engine).open(bed.path("data")).unwrap();
    const LAST: u64 = i64::MAX as u64;
    let offsets = [u64::MAX, 0, LAST - 99, 200, LAST];
    let errno = |error: &Error| error.raw_os_error();
    let mut memory = vec![0; 500];
    let mut requests: Vec<_> = iter::zip(memory.chunks_mut(100), offsets)
        .map(|(buffer, offset)| Request { file: &file, buffer, offset })
        .collect();
    let outcomes = engine.read_many_each(&mut requests);
    let [Err(first), Ok(100), Err(third), Ok(100), Err(last)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!([first, third, last].map(errno), [Some(libc::EOVERFLOW); 3]);
    let error = engine.read_many(&mut requests[1..]).unwrap_err();
    assert!(
        matches!(error, Error::Entry { entry: 1, .. }) && errno(&error) == Some(libc::EOVERFLOW),
        "{error}"
    );

    assert!(memory[100..200] == bytes[..100] && memory[300..400] == bytes[200..300]);
    let requests = offsets.map(|offset| Request { file: &file, buffer: &memory[100..200], offset });
    assert!(engine.write_many(&requests).is_err());
    assert!(
        fs::read(bed.path("data")).unwrap() == bytes,
        "nothing is written before all entries are checked"
    );
    let outcomes = engine.write_many_each(&requests);
    assert!(matches!(outcomes[..], [Err(_), Ok(()), Err(_), Ok(()), Err(_)]), "{outcomes:?}");
    let written = fs::read(bed.path("data")).unwrap();
    assert!(written[200..300] == bytes[..100] && written[300..] == bytes[300..]);
}

#[test]
fn requests_that_overlap_in_memory_fail_alone() {
    let bed = Bed::emulated();
    let bytes = pattern(10_000);
    bed.file("data", &bytes);
    let engine = engine(&bed).build();
    let file = open(&engine, &bed.path("data"));
    let mut memory = bed.device.alloc(1000).unwrap();
    let start = memory.as_mut_ptr();
    let part = |at: usize, len: usize| {
        // SAFETY: bytes of the buffer. The engine refuses those that overlap.
        let part = unsafe { BufSliceMut::from_device(&bed.device, start.wrapping_add(at), len) };
        Request { file: &file, buffer: part, offset: 3 * at as u64 }
    };
    let mut requests =
        [part(700, 100), part(0, 200), part(100, 1), part(300, 50), part(750, 0), part(150, 100)];
    let outcomes = engine.read_many_each(&mut requests);
    let summary = outcomes.iter().map(|outcome| outcome.as_ref().ok().copied());
    assert!(summary.eq([Some(100), None, None, Some(50), Some(0), None]), "{outcomes:?}");
    assert!(outcomes[2].as_ref().unwrap_err().to_string().contains("overlaps the memory of entry 1"));
    let found = memory.to_vec().unwrap();
    assert!(found[700..800] == bytes[2100..2200] && found[300..350] == bytes[900..950]);
}

#[test]
fn unusable_files_fail_only_their_requests() {
    Bed::each(|bed| {
        let bytes = pattern(6 << 20);
        let mut source = bed.device.alloc(bytes.len()).unwrap();
        source.copy_from_host(0, &bytes).unwrap();
        let engine = engine(bed).threads(3).build();
        for folder in folders() {
            let path = |name: &str| folder.path().join(format!("{name} {}", bed.is_real()));
            let names = ["a", "b", "c", "d"];
            names.iter().for_each(|name| fs::write(path(name), b"before").unwrap());
            // Some may only be read, or only be written.
            let for_write = names.map(|name| match name {
                "b" => File::options().read(true).engine(&engine).open(path(name)).unwrap(),
                _ => File::options().write(true).engine(&engine).open(path(name)).unwrap(),
            });
            let full = File::options().write(true).engine(&engine).open("/dev/full").unwrap();
            let [a, b, c, d] = &for_write;
            let part = |from_device: bool, at: usize, len: usize| match from_device {
                true => BufSlice::new(&source, at..at + len),
                false => BufSlice::new(&bytes, at..at + len),
            };
            for from_device in [false, true] {
                let part = |at, len| part(from_device, at, len);
                let requests = [
                    (a, 0, part(0, 3 << 20)),
                    (a, 3 << 20, part(3 << 20, 1000)),
                    (b, 0, part(0, 2 << 20)),
                    (b, 7, part(1, 7)),
                    (c, 0, part(5, 99)),
                    (&full, 0, part(0, 500)),
                    (c, 99, part(104, 2 << 20)),
                    (d, 1, part(0, 5)),
                    (&full, 0, part(0, 2 << 20)),
                ];
                let requests = requests.map(|(file, offset, part)| Request { file, buffer: part, offset });
                let outcomes = engine.write_many_each(&requests);
                let errno = |outcome: &Result<()>| {
                    outcome.as_ref().map_or_else(|error| error.raw_os_error(), |()| None)
                };
                let (denied, no_space) = (Some(libc::EBADF), Some(libc::ENOSPC));
                let expected = [None, None, denied, denied, None, no_space, None, None, no_space];
                assert!(outcomes.iter().map(errno).eq(expected), "{outcomes:?}");
                assert!(outcomes.iter().map(Result::is_ok).eq(expected.map(|errno| errno.is_none())));
                assert!(fs::read(path("a")).unwrap() == bytes[..(3 << 20) + 1000]);
                assert!(fs::read(path("b")).unwrap() == b"before");
                assert!(fs::read(path("c")).unwrap() == bytes[5..][..99 + (2 << 20)]);
                assert!(fs::read(path("d")).unwrap()[..6] == [b"b", &bytes[..5]].concat());
            }

            let unreadable = open_write_only(&engine, &path("a"));
            let (readable, mut target) = (open(&engine, &path("c")), bed.device.alloc(2 << 20).unwrap());
            let (mut small, mut other, mut last) = (vec![0; 10], vec![0; 3 << 20], vec![0; 10]);
            let mut requests = [
                Request { file: &readable, buffer: BufSliceMut::from(&mut small), offset: 0 },
                Request { file: &unreadable, buffer: (&mut other).into(), offset: 0 },
                Request { file: &readable, buffer: (&mut target).into(), offset: 10 },
                Request { file: &readable, buffer: (&mut last).into(), offset: 1 << 40 },
            ];
            let outcomes = engine.read_many_each(&mut requests);
            assert!(
                matches!(outcomes[..], [Ok(10), Err(_), Ok(len), Ok(0)] if len == 2 << 20),
                "{outcomes:?}"
            );
            assert!(small == bytes[5..15] && target.to_vec().unwrap() == bytes[15..][..2 << 20]);
        }
    });
}

fn open_write_only(engine: &Engine, path: &Path) -> File {
    File::options().write(true).engine(engine).open(path).unwrap()
}

#[test]
fn cuda_failures_spare_other_memory_and_later_calls() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(1 << 20);
    bed.file("data", &bytes);
    let second = bed.device.cuda().device(1).unwrap();
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).chunk_bytes(10_000).build();
    let file = open(&engine, &bed.path("data"));
    let mut one: Vec<_> = (0..40).map(|_| bed.device.alloc(3001).unwrap()).collect();
    let mut two: Vec<_> = (0..40).map(|_| second.alloc(3001).unwrap()).collect();
    let mut host: Vec<_> = (0..40).map(|_| vec![0; 3001]).collect();
    // One failure is over when the entry is tried again. Lasting failures concern device memory only.
    for (fault, device_works) in [("after=3 err=700", true), ("err=700 times=all", false), ("", true)] {
        let mut requests = Vec::new();
        for (at, ((one, two), host)) in one.iter_mut().zip(&mut two).zip(&mut host).enumerate() {
            let offset = |place: usize| (9100 * at + 3011 * place) as u64;
            let buffers: [BufSliceMut<'_>; 3] = [one.into(), host.into(), two.into()];
            let request = |(place, buffer)| Request { file: &file, buffer, offset: offset(place) };
            requests.extend(buffers.into_iter().enumerate().map(request));
        }
        for function in ["cudaMemcpyAsync", "cudaMemcpyBatchAsync"] {
            if !fault.is_empty() {
                emulator.fault(function, fault);
            }
        }
        let outcomes = engine.read_many_each(&mut requests);
        emulator.control("clear");
        for (entry, outcome) in outcomes.iter().enumerate() {
            match outcome {
                Ok(len) => assert!(*len == 3001 && (device_works || entry % 3 == 1), "{entry}"),
                Err(error) => {
                    assert!(!device_works && entry % 3 != 1, "{entry}: {error}");
                    assert!(matches!(error.cause(), Cause::Cufile(_)) && error.bytes_done() == 0, "{error}");
                }
            }
        }
        for at in 0..40 {
            let expected = |place: usize| &bytes[9100 * at + 3011 * place..][..3001];
            assert!(host[at] == expected(1));
            if device_works {
                assert!(one[at].to_vec().unwrap() == expected(0) && two[at].to_vec().unwrap() == expected(2));
            }
        }
    }
}

#[test]
fn long_lists_with_failures_take_little_time() {
    const COUNT: usize = 100_000;
    let bed = Bed::emulated();
    let bytes = pattern(8 * COUNT);
    bed.file("data", &bytes);
    let engine = engine(&bed).threads(2).build();
    let file = open(&engine, &bed.path("data"));
    let mut device = bed.device.alloc(8 * COUNT).unwrap();
    let start = Instant::now();
    // The file's order is another than that of memory.
    let mut ranges: Vec<_> =
        (0..COUNT).map(|at| range(8 * (at * 77_773 % COUNT) as u64, 8 * at, 8)).collect();
    assert!(
        file.read_many_each(&mut device, &ranges).unwrap().iter().all(|outcome| matches!(outcome, Ok(8)))
    );
    let failing = [0, 1, 50_000, 99_999];
    failing.into_iter().for_each(|entry| ranges[entry].file_offset = 8 * COUNT as u64 - 3);
    let outcomes = file.read_many_each(&mut device, &ranges).unwrap();
    let found = device.to_vec().unwrap();
    for (entry, outcome) in outcomes.iter().enumerate() {
        let offset = ranges[entry].file_offset as usize;
        let len = if failing.contains(&entry) { 3 } else { 8 };
        assert!(matches!(outcome, Ok(bytes) if *bytes == len), "{entry}: {outcome:?}");
        assert!(found[8 * entry..][..len] == bytes[offset..][..len], "{entry}");
    }
    // Each of these fails.
    let unreadable = open_write_only(&engine, &bed.path("data"));
    let outcomes = unreadable.read_many_each(&mut device, &ranges[..20_000]).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.bytes_done() == 0)));
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn empty_lists_and_entries_succeed() {
    Bed::each(|bed| {
        bed.file("data", &pattern(100));
        let engine = engine(bed).build();
        let file = open(&engine, &bed.path("data"));
        let mut device = bed.device.alloc(10).unwrap();
        assert!(file.read_many_each(&mut device, &[]).unwrap().is_empty());
        assert!(file.write_many_each(&device, &[]).unwrap().is_empty());
        assert!(engine.read_many_each::<Vec<u8>, File>(&mut []).is_empty());
        assert!(engine.write_many_each::<Vec<u8>, File>(&[]).is_empty());
        let empty = [range(0, 0, 0), range(1 << 40, 10, 0), range(5, 5, 0)];
        assert!(matches!(file.read_many_each(&mut device, &empty).unwrap()[..], [Ok(0), Ok(0), Ok(0)]));
        assert!(matches!(file.write_many_each(&device, &empty).unwrap()[..], [Ok(()), Ok(()), Ok(())]));
        assert_eq!(file.len_bytes().unwrap(), 100);
    });
}

/// The owner of memory of another library, as a framework's tensor.
struct Tensor(DeviceBuffer);

fn foreign(cuda: &Cuda, ordinal: u32, len: usize) -> DeviceMemory<Tensor> {
    let device = cuda.device(ordinal).unwrap();
    let mut tensor = Tensor(device.alloc(len).unwrap());
    let ptr = tensor.0.as_mut_ptr();
    // SAFETY: the tensor keeps the memory, and nothing else uses it before `into_owner`.
    unsafe { DeviceMemory::from_raw(&device, ptr, len, tensor) }
}

#[test]
fn memory_of_others_takes_part_in_every_list() {
    let bed = Bed::emulated();
    let bytes = pattern(200_000);
    bed.file("data", &bytes);
    let engine = engine(&bed).build();
    let (file, copy) = (open(&engine, &bed.path("data")), open(&engine, &bed.path("copy")));
    let cuda = bed.device.cuda();
    let mut memory = foreign(cuda, 0, 100_000);
    let ranges = [range(100_001, 0, 60_001), range(3, 60_001, 39_999), range(0, 0, 0)];
    file.read_many(&mut memory, &ranges).unwrap();
    copy.write_many(&memory, &ranges).unwrap();
    assert!(fs::read(bed.path("copy")).unwrap()[100_001..] == bytes[100_001..][..60_001]);
    let outcomes = file.read_many_each(&mut memory, &ranges).unwrap();
    assert!(matches!(outcomes[..], [Ok(60_001), Ok(39_999), Ok(0)]));
    assert!(copy.write_many_each(&memory, &ranges).unwrap().iter().all(Result::is_ok));

    let mut other = foreign(cuda, 1, 5000);
    let mut requests = [
        Request { file: &file, buffer: &mut other, offset: 199_000 },
        Request { file: &file, buffer: &mut memory, offset: 5 },
    ];
    assert!(matches!(engine.read_many_each(&mut requests)[..], [Ok(1000), Ok(100_000)]));
    let requests = [
        Request { file: &copy, buffer: &memory, offset: 0 },
        Request { file: &copy, buffer: &other, offset: 300_000 },
    ];
    assert!(engine.write_many_each(&requests).iter().all(Result::is_ok));
    let found = fs::read(bed.path("copy")).unwrap();
    assert!(found[..100_000] == bytes[5..][..100_000] && found[300_000..][..1000] == bytes[199_000..]);
    assert!(memory.into_owner().0.to_vec().unwrap() == bytes[5..][..100_000]);
}

#[test]
fn futures_have_the_outcomes_of_lists_that_wait() {
    Bed::each(|bed| {
        let bytes = pattern(100_003);
        bed.file("data", &bytes);
        let mut random = Random::new(80);
        for chunk_bytes in [1000, PAGE, 1 << 20] {
            let file = open(&engine(bed).chunk_bytes(chunk_bytes).build(), &bed.path("data"));
            // Some end behind the file, some behind the buffer, and a few overlap.
            let mut ranges: Vec<_> = (0..2000)
                .map(|at| range(random.below(110_000) as u64, 300 * at, random.below(301)))
                .collect();
            (0..5).for_each(|_| ranges[random.below(2000)].buffer_offset = 599_990 + random.below(20));
            let mut host = vec![0; 600_000];
            let expected = file.read_many_each(&mut host, &ranges).unwrap();
            let lens = |outcomes: &[Result<usize>]| -> Vec<_> {
                outcomes.iter().map(|outcome| outcome.as_ref().ok().copied()).collect()
            };
            let device = bed.device.alloc(600_000).unwrap();
            let (outcomes, (device, owned)) = file.read_many_each_async(device, ranges.clone()).wait();
            assert!(lens(&outcomes.unwrap()) == lens(&expected) && owned == ranges);
            let future = file.read_many_each_async(vec![0; 600_000], ranges.clone());
            let (outcomes, (read, _)) = future.wait();
            assert!(lens(&outcomes.unwrap()) == lens(&expected));
            let found = device.to_vec().unwrap();
            for (IoRange { buffer_offset, .. }, len) in ranges.iter().zip(lens(&expected)) {
                let Some(len) = len else { continue };
                let part = *buffer_offset..buffer_offset + len;
                assert!(found[part.clone()] == host[part.clone()] && read[part.clone()] == host[part]);
            }

            let copy = open(file.engine(), &bed.path("copy"));
            let (outcomes, (device, _)) = copy.write_many_each_async(device, ranges.clone()).wait();
            let refused = |range: &IoRange| range.buffer_offset + range.len_bytes > 600_000;
            for (range, outcome) in ranges.iter().zip(outcomes.unwrap()) {
                assert_eq!(outcome.ok(), (!refused(range)).then_some(range.len_bytes));
            }
            let again = copy.write_many_each(&device, &ranges).unwrap();
            assert!(again.iter().map(Result::is_ok).eq(ranges.iter().map(|range| !refused(range))));
        }
    });
}

#[test]
fn futures_of_requests_report_unusable_files() {
    Bed::each(|bed| {
        let bytes = pattern(3 << 20);
        bed.file("data", &bytes);
        let engine = engine(bed).threads(3).build();
        let (file, unreadable) =
            (open(&engine, &bed.path("data")), open_write_only(&engine, &bed.path("data")));
        let memory = |len| bed.device.alloc(len).unwrap();
        let request = |file: &File, buffer, offset| Request { file: file.clone(), buffer, offset };
        let requests = vec![
            request(&file, memory(1 << 20), 0),
            request(&unreadable, memory(2 << 20), 0),
            request(&file, memory(2 << 20), 2 << 20), // the file ends within it
            request(&file, memory(10), u64::MAX),
            request(&file, memory(0), 5),
        ];
        let (outcomes, mut requests) = engine.read_many_each_async(requests).wait();
        let outcomes = outcomes.unwrap();
        assert!(matches!(outcomes[..], [Ok(_), Err(_), Ok(_), Err(_), Ok(0)]), "{outcomes:?}");
        assert_eq!(outcomes[2].as_ref().ok(), Some(&(1 << 20)));
        assert!(requests[0].buffer.to_vec().unwrap() == bytes[..1 << 20]);
        assert!(requests[2].buffer.to_vec().unwrap()[..1 << 20] == bytes[2 << 20..]);

        let full = File::options().write(true).engine(&engine).open("/dev/full").unwrap();
        let copy = open(&engine, &bed.path("copy"));
        [requests[0].file, requests[1].file, requests[2].file] = [copy.clone(), full, copy];
        let (outcomes, requests) = engine.write_many_each_async(requests).wait();
        let outcomes = outcomes.unwrap();
        assert!(matches!(outcomes[..], [Ok(_), Err(_), Ok(_), Err(_), Ok(0)]), "{outcomes:?}");
        assert_eq!(outcomes[1].as_ref().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert!(fs::read(bed.path("copy")).unwrap()[..1 << 20] == bytes[..1 << 20]);

        drop(requests);
        let (outcomes, _) = engine.read_many_each_async::<Vec<u8>>(Vec::new()).wait();
        assert!(outcomes.unwrap().is_empty());
    });
}

#[test]
fn cancelled_futures_have_an_outcome_for_each_range() {
    const COUNT: usize = 3000;
    let bed = Bed::emulated();
    let bytes = pattern(4096 * COUNT);
    bed.file("data", &bytes);
    let engine = engine(&bed).threads(1).chunk_bytes(PAGE).build();
    let file = open(&engine, &bed.path("data"));
    let ranges: Vec<_> = (0..COUNT).map(|at| range(4096 * at as u64, 4096 * at, 4096)).collect();
    let future = file.read_many_each_async(vec![0; 4096 * COUNT], ranges);
    let (outcomes, (buffer, _)) = future.cancel();
    let outcomes = outcomes.unwrap();
    for (at, outcome) in outcomes.iter().enumerate() {
        let part = 4096 * at..4096 * (at + 1);
        match outcome {
            Ok(len) => assert!(*len == 4096 && buffer[part.clone()] == bytes[part]),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED), "{error}"),
        }
    }
    assert_eq!(outcomes.len(), COUNT);
}
