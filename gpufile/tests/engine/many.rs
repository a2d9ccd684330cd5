//! Tests of many ranges in one call: refusals, the texts of failures, and the number of copies.

use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use gpufile::{
    BufSlice, BufSliceMut, Cause, DirectIo, Engine, EngineBuilder, Error, File, IoRange, OpenOptions,
    Request, RoutePolicy,
};
use testkit::Emulator;
use testkit::bed::{Bed, folders, pattern};
use testkit::in_flight::soon;

fn engine(bed: &Bed) -> EngineBuilder {
    Engine::builder().driver(bed.driver.clone())
}

fn open(engine: &Engine, path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).engine(engine).open(path).unwrap()
}

fn range(file_offset: u64, buffer_offset: usize, len_bytes: usize) -> IoRange {
    IoRange { file_offset, buffer_offset, len_bytes }
}

fn entry(result: gpufile::Result<()>) -> (usize, Error) {
    match result {
        Err(Error::Entry { entry, error, .. }) => (entry, *error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_into_overlapping_memory_are_refused() {
    Bed::each(|bed| {
        let bytes = pattern(100_000);
        bed.file("data", &bytes);
        let file = open(&engine(bed).build(), &bed.path("data"));
        let empty = range(0, 0, 0);
        let lists = [
            vec![range(0, 0, 100), range(500, 99, 100)],
            vec![range(500, 99, 100), range(0, 0, 100)],
            vec![range(0, 50, 10), range(500, 0, 100)],
            vec![range(0, 0, 100), range(700, 100, 100), range(500, 0, 1)],
            // An empty range overlaps nothing, and hides nothing.
            vec![range(0, 0, 100), empty, range(500, 99, 100)],
            vec![range(0, 0, 100), range(0, 150, 0), range(500, 99, 100)],
            vec![range(0, 0, 100), range(0, 50, 0), range(500, 60, 100)],
        ];
        for ranges in lists {
            let mut host = vec![1; 1000];
            let (number, error) = entry(file.read_many(&mut host, &ranges));
            assert!(number > 0 && matches!(error.cause(), Cause::Invalid(_)), "{ranges:?}: {error}");
            assert!(error.to_string().contains("overlaps"), "{error}");
            assert!(host.iter().all(|byte| *byte == 1), "{ranges:?}");
            let mut device = bed.device.alloc(1000).unwrap();
            device.fill(1).unwrap();
            entry(file.read_many(&mut device, &ranges));
            assert!(device.to_vec().unwrap().iter().all(|byte| *byte == 1), "{ranges:?}");
        }
        let mut host = vec![1; 1000];
        file.read_many(&mut host, &[range(0, 0, 100), range(5, 50, 0), range(200, 100, 100), empty]).unwrap();
        assert!(host[..100] == bytes[..100] && host[100..200] == bytes[200..300]);
    });
}

#[test]
fn overlaps_among_very_many_ranges_are_refused() {
    let bed = Bed::emulated();
    let count = 40_000;
    bed.file("data", &pattern(count));
    let file = open(&engine(&bed).build(), &bed.path("data"));
    let mut buffer = vec![0; count];
    let mut ranges: Vec<_> = (0..count).map(|at| range(at as u64, at, 1)).collect();
    file.read_many(&mut buffer, &ranges).unwrap();
    assert!(buffer == pattern(count));
    // The ranges lie at the beginnings and ends of planning windows, and among empty ranges. A window has 1024
    // ranges, then twice as many each time.
    let begins = [1, 3, 7, 15, 31].map(|windows| windows << 10);
    for at in begins.into_iter().flat_map(|begin| [begin - 1, begin, begin + 1]).chain([1, count - 1]) {
        let good = ranges[at];
        ranges[at] = range(0, at - 1, 1);
        let (_, error) = entry(file.read_many(&mut buffer, &ranges));
        assert!(error.to_string().contains("overlaps"), "{at}: {error}");
        ranges[at] = good;
    }
    let last = begins[3] - 1;
    ranges[last] = range(0, 0, 0);
    ranges[last + 1] = range(0, last - 1, 1);
    let (_, error) = entry(file.read_many(&mut buffer, &ranges));
    assert!(error.to_string().contains("overlaps"), "{error}");
    ranges[last + 1] = range(0, last, 0);
    ranges[last + 2] = range(0, last - 1, 1);
    let (_, error) = entry(file.read_many(&mut buffer, &ranges));
    assert!(error.to_string().contains("overlaps"), "{error}");
}

#[test]
fn ranges_out_of_bounds_are_refused_before_any_transfer() {
    Bed::each(|bed| {
        let contents = pattern(1000);
        bed.file("data", &contents);
        let file = open(&engine(bed).build(), &bed.path("data"));
        let good = range(0, 0, 10);
        let beyond = [
            range(0, 91, 10),
            range(0, 101, 0),
            range(0, usize::MAX, 2),
            range(0, 0, usize::MAX),
            range(u64::MAX, 0, 1),
            range(i64::MAX as u64, 0, 1),
            range(u64::MAX - 5, 0, 3 << 20),
        ];
        for bad in beyond {
            let mut host = vec![7; 100];
            let (number, error) = entry(file.read_many(&mut host, &[good, bad]));
            assert_eq!((number, error.bytes_done()), (1, 0), "{bad:?}: {error}");
            let (number, _) = entry(file.read_many(&mut host, &[bad, good]));
            assert_eq!(number, 0, "{bad:?}");
            let (number, error) = entry(file.write_many(&host, &[bad, good]));
            assert_eq!((number, error.bytes_done()), (0, 0), "{bad:?}: {error}");
            assert!(host.iter().all(|byte| *byte == 7), "{bad:?}");
            let mut device = bed.device.alloc(100).unwrap();
            entry(file.read_many(&mut device, &[good, bad]));
            entry(file.write_many(&device, &[bad]));
            assert!(fs::read(bed.path("data")).unwrap() == contents, "{bad:?}");
        }
    });
}

#[test]
fn end_of_file_error_names_the_entry_and_its_bytes() {
    Bed::each(|bed| {
        let (long, short) = (pattern(100_000), pattern(5000));
        bed.file("long", &long);
        bed.file("short", &short);
        let engine = engine(bed).build();
        let (a, b) = (open(&engine, &bed.path("long")), open(&engine, &bed.path("short")));
        let mut host = vec![0; 300];
        let mut device = bed.device.alloc(300).unwrap();
        let mut requests = [
            Request { file: &a, buffer: BufSliceMut::from(&mut host), offset: 99_700 },
            Request { file: &b, buffer: (&mut device).into(), offset: 4800 },
        ];
        let (number, error) = entry(engine.read_many(&mut requests));
        assert_eq!((number, error.bytes_done()), (1, 200));
        assert!(matches!(error.cause(), Cause::EndOfFile { at: 5000 }), "{error}");
        assert!(error.to_string().contains("short"), "{error}");
        assert!(device.to_vec().unwrap()[..200] == short[4800..]);

        let (number, error) = entry(a.read_many(&mut host, &[range(0, 0, 10), range(99_990, 10, 11)]));
        assert_eq!((number, error.bytes_done()), (1, 10));
        // An empty range has no end.
        a.read_many(&mut host, &[range(1 << 40, 0, 0), range(0, 0, 10)]).unwrap();
    });
}

#[test]
fn errors_count_only_bytes_that_were_read() {
    let bed = Bed::emulated();
    bed.file("empty", b"");
    // The order is that of memory, not of the list. Parts of the first range are therefore read last.
    let ranges = [range(0, 10_000, 8000), range(0, 0, 5000)];
    let file = open(&engine(&bed).threads(4).chunk_bytes(4096).build(), &bed.path("empty"));
    let mut buffer = vec![0; 20_000];
    for _ in 0..300 {
        let (number, error) = entry(file.read_many(&mut buffer, &ranges));
        assert_eq!(error.bytes_done(), 0, "entry {number}: {error}");
    }
}

#[test]
fn long_lists_are_read_from_their_beginning() {
    const RANGES: usize = 1 << 13;
    const LEN: usize = 1 << 10;
    /// The first ranges, which are planned together and have several chunks.
    const FIRST: usize = 1 << 10;
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(RANGES * LEN));
    let file = open(&engine(&bed).threads(1).build(), &bed.path("data"));
    let mut target = bed.device.alloc(2 * RANGES * LEN).unwrap();
    let ranges: Vec<_> = (0..RANGES).map(|at| range((at * LEN) as u64, 2 * at * LEN, LEN)).collect();
    let held = emulator.hold("cudaHostRegister", "");
    emulator.fault("cudaMemcpyAsync", "err=2 after=1");
    let failed = thread::scope(|scope| {
        let reading = scope.spawn(|| entry(file.read_many(&mut target, &ranges)));
        // The worker has the first chunk. Meanwhile the caller plans the other ranges.
        held.wait_for(1);
        thread::sleep(Duration::from_millis(30));
        held.release();
        reading.join().unwrap()
    });
    assert!((1..FIRST).contains(&failed.0), "{failed:?}");
    emulator.control("clear");
    file.read_many(&mut target, &ranges).unwrap();
    let (found, bytes) = (target.to_vec().unwrap(), pattern(RANGES * LEN));
    assert!(found.chunks(2 * LEN).zip(bytes.chunks(LEN)).all(|(found, bytes)| found[..LEN] == *bytes));
}

#[test]
fn requests_can_mix_files_engines_and_memory() {
    Bed::each(|bed| {
        let bytes = pattern(3 << 20);
        bed.file("data", &bytes);
        let (one, other) = (engine(bed).build(), engine(bed).bounce_buffer_bytes(8192).build());
        let (of_one, of_other) = (open(&one, &bed.path("data")), open(&other, &bed.path("data")));
        let mut device = [bed.device.alloc(1 << 20).unwrap(), bed.device.alloc(0).unwrap()];
        let mut host = [vec![0; 0], vec![0; 1 << 20], vec![0; 0]];
        let [full, empty] = &mut device;
        let [first, second, third] = &mut host;
        let mut requests = [
            Request { file: &of_one, buffer: BufSliceMut::from(first), offset: 5 },
            Request { file: &of_other, buffer: full.into(), offset: 100 },
            Request { file: &of_one, buffer: third.into(), offset: 5 },
            Request { file: &of_one, buffer: second.into(), offset: 1 << 20 },
            Request { file: &of_one, buffer: empty.into(), offset: 0 },
        ];
        one.read_many(&mut requests).unwrap();
        requests.reverse();
        other.read_many(&mut requests).unwrap();
        assert!(device[0].to_vec().unwrap() == bytes[100..][..1 << 20]);
        assert!(host[1] == bytes[1 << 20..][..1 << 20]);
        let requests = [
            Request { file: &of_one, buffer: BufSlice::from(&device[1]), offset: 0 },
            Request { file: &of_other, buffer: (&host[1]).into(), offset: 7 },
            Request { file: &of_one, buffer: (&device[0]).into(), offset: (1 << 20) + 7 },
        ];
        other.write_many(&requests).unwrap();
        one.write_many(&requests[..0]).unwrap();
        one.read_many::<Vec<u8>, File>(&mut []).unwrap();
        let written = fs::read(bed.path("data")).unwrap();
        assert!(written[7..][..1 << 20] == host[1]);
        assert!(written[(1 << 20) + 7..][..1 << 20] == bytes[100..][..1 << 20]);
    });
}

#[test]
fn empty_ranges_do_not_panic_when_cuda_fails() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(1000));
    for function in ["cudaStreamCreateWithFlags", "cudaHostRegister", "cudaHostAlloc"] {
        let engine = engine(&bed).build();
        let file = open(&engine, &bed.path("data"));
        let (mut empty, mut device) = (bed.device.alloc(0).unwrap(), bed.device.alloc(100).unwrap());
        bed.emulator.as_ref().unwrap().fault(function, "err=2 times=all");
        // Success is not promised here.
        let _ = file.read_at(&mut empty, 0);
        let _ = file.write_all_at(&empty, 0);
        let _ = file.read_many(&mut device, &[range(0, 0, 0), range(10, 5, 0)]);
        let _ = file.write_many(&device, &[range(0, 0, 0)]);
        let _ = file.read_at_async(empty, 0).wait();
        let mut host = vec![0; 100];
        let mut none = bed.device.alloc(0).unwrap();
        let mut requests = [
            Request { file: &file, buffer: BufSliceMut::from(&mut host), offset: 0 },
            Request { file: &file, buffer: (&mut none).into(), offset: 0 },
        ];
        let _ = engine.read_many(&mut requests);
        bed.emulator.as_ref().unwrap().control("clear");
        file.read_exact_at(&mut device, 0).unwrap();
    }
}

fn copies_and_launches(bed: &Bed, work: impl FnOnce()) -> (i64, i64) {
    let emulator = bed.emulator.as_ref().unwrap();
    let count = || (emulator.calls("cudaMemcpyAsync"), emulator.calls("cuLaunchKernel"));
    let before = count();
    work();
    let after = count();
    (after.0 - before.0, after.1 - before.1)
}

fn scattered() -> Vec<IoRange> {
    (0..50).map(|at| range(9000 * at as u64, 2000 * at, 1000)).collect()
}

#[test]
fn scattered_memory_takes_one_copy_and_one_launch() {
    let bytes = pattern(1 << 20);
    let bed = Bed::on(Emulator::start());
    bed.file("data", &bytes);
    let file = open(&engine(&bed).build(), &bed.path("data"));
    let mut buffer = bed.device.alloc(100_000).unwrap();
    // Each comes from another place of the file. In memory they follow each other.
    let ranges: Vec<_> = (0..100).map(|at| range(9000 * at as u64, 1000 * at, 1000)).collect();
    assert_eq!(copies_and_launches(&bed, || file.read_many(&mut buffer, &ranges).unwrap()), (1, 0));
    let read = buffer.to_vec().unwrap();
    for IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        assert!(read[buffer_offset..][..len_bytes] == bytes[file_offset as usize..][..len_bytes]);
    }
    assert_eq!(copies_and_launches(&bed, || file.read_many(&mut buffer, &scattered()).unwrap()), (1, 1));
    assert_eq!(copies_and_launches(&bed, || file.write_many(&buffer, &scattered()).unwrap()), (1, 1));
    assert!(fs::read(bed.path("data")).unwrap() == bytes);
    // Neighbours in the file and in memory become one range.
    let neighbours: Vec<_> = (0..50).map(|at| range(1000 * at as u64, 1000 * at, 1000)).collect();
    assert_eq!(copies_and_launches(&bed, || file.read_many(&mut buffer, &neighbours).unwrap()), (1, 0));
}

#[test]
fn ranges_are_copied_one_by_one_without_kernels() {
    for (function, launches) in [("cuModuleLoadData", 0), ("cuModuleGetFunction", 0), ("cuLaunchKernel", 1)] {
        let bytes = pattern(1 << 20);
        let bed = Bed::on(Emulator::start());
        bed.file("data", &bytes);
        let engine = engine(&bed).threads(1).build();
        let file = open(&engine, &bed.path("data"));
        let mut buffer = bed.device.alloc(100_000).unwrap();
        bed.emulator.as_ref().unwrap().fault(function, "err=1 times=all");
        match engine.load_kernels(&bed.device) {
            Ok(()) => assert_eq!(launches, 1, "{function}"),
            Err(error) => {
                assert!(matches!(error.cause(), Cause::NoKernels(_)) && launches == 0, "{error:?}");
                assert!(error.to_string().contains(function), "{error}");
            }
        }
        for _ in 0..2 {
            // A launch that failed is not tried again. A copy to the staging buffer preceded it.
            let (copies, tried) =
                copies_and_launches(&bed, || file.read_many(&mut buffer, &scattered()).unwrap());
            assert!([(50, 0), (50 + launches, launches)].contains(&(copies, tried)), "{function}: {copies}");
        }
        // The engine tries the cubin and the PTX, each once.
        let loads = bed.emulator.as_ref().unwrap().calls("cuModuleLoadData");
        assert_eq!(loads, 2 - launches, "{function}");
        let read = buffer.to_vec().unwrap();
        for IoRange { file_offset, buffer_offset, len_bytes } in scattered() {
            assert!(read[buffer_offset..][..len_bytes] == bytes[file_offset as usize..][..len_bytes]);
        }
        file.write_many(&buffer, &scattered()).unwrap();
        assert!(fs::read(bed.path("data")).unwrap() == bytes);
    }
}

#[test]
fn kernels_come_from_cubin_or_ptx_by_architecture() {
    // A display driver of CUDA 11.7 takes no PTX of 11.8.
    let no_ptx = "driver-version 11070";
    let cases: [(&[&str], i64, i64); 11] = [
        (&[no_ptx], 1, 1),
        (&["compute-capability 8 9", no_ptx], 1, 1),
        (&["compute-capability 7 5", no_ptx], 1, 1),
        (&["compute-capability 7 0", no_ptx], 1, 0),
        (&["compute-capability 12 0", no_ptx], 1, 0),
        (&["compute-capability 7 0"], 1, 1),
        (&["compute-capability 12 0"], 1, 1),
        (&["fault cuModuleLoadData err=209"], 2, 1),
        (&["fault cuModuleLoadData err=209", no_ptx], 2, 0),
        (&["fault cuModuleGetFunction err=500"], 2, 1),
        (&["fault cuDeviceGetAttribute err=1 times=all"], 1, 1),
    ];
    let bytes = pattern(1 << 20);
    for (commands, loads, launches) in cases {
        let bed = Bed::on(Emulator::start());
        let emulator = bed.emulator.as_ref().unwrap();
        bed.file("data", &bytes);
        let file = open(&engine(&bed).threads(1).build(), &bed.path("data"));
        let mut buffer = bed.device.alloc(100_000).unwrap();
        for command in commands {
            emulator.control(command);
        }
        let (_, launched) = copies_and_launches(&bed, || file.read_many(&mut buffer, &scattered()).unwrap());
        assert_eq!((emulator.calls("cuModuleLoadData"), launched), (loads, launches), "{commands:?}");
        let read = buffer.to_vec().unwrap();
        for IoRange { file_offset, buffer_offset, len_bytes } in scattered() {
            assert!(read[buffer_offset..][..len_bytes] == bytes[file_offset as usize..][..len_bytes]);
        }
    }
}

#[test]
fn bytes_of_overlapping_device_ranges_come_from_one_of_them() {
    let bytes = pattern(1 << 20);
    let bed = Bed::on(Emulator::start());
    bed.file("data", &bytes);
    let file = open(&engine(&bed).build(), &bed.path("data"));
    let count = 5000;
    let mut buffer = bed.device.alloc(100 * count).unwrap();
    // Each range lies over the ends of its two neighbours.
    let ranges: Vec<_> =
        (0..count - 1).map(|at| range((at * 7919 % 900_000) as u64, 100 * at, 130)).collect();
    file.read_many(&mut buffer, &ranges).unwrap();
    let found = buffer.to_vec().unwrap();
    for (at, byte) in found[..100 * (count - 1)].iter().enumerate() {
        let from = |number: usize| bytes[ranges[number].file_offset as usize + at - 100 * number];
        let before = at % 100 < 30 && at >= 100 && *byte == from(at / 100 - 1);
        assert!(before || *byte == from(at / 100), "{at}");
    }
}

#[test]
fn kernels_use_the_bounce_buffer_without_a_staging_buffer() {
    let bytes = pattern(1 << 20);
    let bed = Bed::on(Emulator::start());
    bed.file("data", &bytes);
    let file = open(&engine(&bed).threads(1).build(), &bed.path("data"));
    let mut buffer = bed.device.alloc(100_000).unwrap();
    bed.emulator.as_ref().unwrap().fault("cudaMalloc", "err=2 times=all");
    assert_eq!(copies_and_launches(&bed, || file.read_many(&mut buffer, &scattered()).unwrap()), (0, 1));
    let read = buffer.to_vec().unwrap();
    for IoRange { file_offset, buffer_offset, len_bytes } in scattered() {
        assert!(read[buffer_offset..][..len_bytes] == bytes[file_offset as usize..][..len_bytes]);
    }
    assert_eq!(copies_and_launches(&bed, || file.write_many(&buffer, &scattered()).unwrap()), (0, 1));
    assert!(fs::read(bed.path("data")).unwrap() == bytes);
}

#[test]
fn staging_buffers_are_allocated_and_freed_together() {
    let bytes = pattern(1 << 20);
    let bed = Bed::on(Emulator::start());
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &bytes);
    // Chunks of 16 KiB take turns at the two buffers of the lane.
    let engine = engine(&bed).threads(1).bounce_buffer_bytes(16 << 10).build();
    let file = open(&engine, &bed.path("data"));
    let mut buffer = bed.device.alloc(100_000).unwrap();
    let mut read = |allocated, freed| {
        let (mallocs, frees) = (emulator.calls("cudaMalloc"), emulator.calls("cudaFree"));
        let (copies, launches) =
            copies_and_launches(&bed, || file.read_many(&mut buffer, &scattered()).unwrap());
        assert!(copies >= launches && launches >= 3, "{copies} copies, {launches} launches");
        let read = buffer.to_vec().unwrap();
        for IoRange { file_offset, buffer_offset, len_bytes } in scattered() {
            assert!(read[buffer_offset..][..len_bytes] == bytes[file_offset as usize..][..len_bytes]);
        }
        assert_eq!(emulator.calls("cudaMalloc"), mallocs + allocated);
        // A worker may hold its lane a little longer than the transfer takes.
        soon("the staging buffers are freed", || {
            engine.release_buffers();
            emulator.calls("cudaFree") == frees + freed
        });
    };
    read(1, 1);
    read(1, 1);
    // The first call is for several buffers and fails, the second is for one, and the third for several.
    emulator.fault("cudaMalloc", "err=2");
    read(3, 2);
}

#[test]
fn release_buffers_keeps_memory_that_lanes_share() {
    let bytes = pattern(1 << 20);
    let bed = Bed::on(Emulator::start());
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &bytes);
    let engine = engine(&bed).threads(4).bounce_buffer_bytes(16 << 10).build();
    let file = open(&engine, &bed.path("data"));
    let mut buffer = bed.device.alloc(100_000).unwrap();
    let live = || [emulator.live("device-bytes"), emulator.live("pinned-bytes")];
    let none = [emulator.live("device-bytes"), 0];
    // Returns what was freed without a small plan. The call returns as much, and what workers allocated meanwhile.
    let release = |meanwhile_bytes| {
        let (before, released, after) = (live(), engine.release_buffers() as i64, live());
        let freed = before[0] - after[0] + before[1] - after[1];
        assert!((freed..freed + meanwhile_bytes + 64 * 1024).contains(&released), "{released} for {freed}");
        freed
    };
    file.read_many(&mut buffer, &scattered()).unwrap();
    thread::scope(|scope| {
        // Keeps at least one lane lent, whose copies are done.
        let held = emulator.hold("cudaEventQuery", "times=all");
        let reading = scope.spawn(|| file.read_many(&mut buffer, &scattered()).unwrap());
        held.wait_for(1);
        // The other workers may be allocating theirs, and more than is freed: two buffers and a staging buffer for each.
        release(1 << 20);
        assert!(live()[0] > none[0], "the staging buffers of a lane that is lent");
        held.release();
        reading.join().unwrap();
    });
    let read = buffer.to_vec().unwrap();
    for IoRange { file_offset, buffer_offset, len_bytes } in scattered() {
        assert!(read[buffer_offset..][..len_bytes] == bytes[file_offset as usize..][..len_bytes]);
    }
    // A worker may hold its lane a little longer than the transfer takes.
    let mut freed = 0;
    while live() != none {
        freed += release(0);
    }
    assert!(freed > 0);
}

#[test]
fn four_workers_allocate_staging_buffers_in_three_calls() {
    let bed = Bed::on(Emulator::start());
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(1 << 20));
    let engine = engine(&bed).threads(4).bounce_buffer_bytes(16 << 10).build();
    let file = open(&engine, &bed.path("data"));
    let mut buffer = bed.device.alloc(100_000).unwrap();
    let (mallocs, live) = (emulator.calls("cudaMalloc"), emulator.live("device-bytes"));
    for _ in 0..20 {
        file.read_many(&mut buffer, &scattered()).unwrap();
        let more = emulator.live("device-bytes") - live;
        // A buffer for chunks of four pages has room for five, and four pages more.
        assert!([2, 4, 8].map(|count| count * 9 * 4096).contains(&more), "{more} bytes");
    }
    let calls = emulator.calls("cudaMalloc") - mallocs;
    assert!((1..=3).contains(&calls), "{calls} calls");
    drop(file);
    drop(engine);
    assert_eq!(emulator.live("device-bytes"), live);
}

#[test]
fn many_small_direct_ranges_fit_into_bounce_buffers() {
    for folder in folders() {
        Bed::each(|bed| {
            let path = folder.path().join(if bed.is_real() { "real" } else { "emulated" });
            let bytes = pattern(8 << 20);
            fs::write(&path, &bytes).unwrap();
            for bounce_bytes in [4096, 64 << 10, 1 << 20] {
                let engine = engine(bed).bounce_buffer_bytes(bounce_bytes).threads(2).build();
                let options = OpenOptions::new().read(true).write(true).engine(&engine);
                let options = options.direct_read(DirectIo::Always).direct_write(DirectIo::Always);
                let file = options.open(&path).unwrap();
                let mut buffer = bed.device.alloc(2 << 20).unwrap();
                // The first list takes 50 bytes of every 1000, the second takes 4097 of every 16,001.
                for (len, step, count) in [(50, 1000, 8000), (4097, 16_001, 500)] {
                    let ranges: Vec<_> =
                        (0..count).map(|at| range((at * step + 3) as u64, at * len, len)).collect();
                    file.read_many(&mut buffer, &ranges).unwrap();
                    let read = buffer.to_vec().unwrap();
                    for at in 0..count {
                        assert!(read[at * len..][..len] == bytes[at * step + 3..][..len], "{at}");
                    }
                    file.write_many(&buffer, &ranges).unwrap();
                    assert!(fs::read(&path).unwrap() == bytes, "{bounce_bytes}, {len}");
                }
            }
        });
    }
}

#[test]
fn empty_ranges_do_not_change_the_file_length() {
    Bed::each(|bed| {
        let engine = engine(bed).build();
        let bytes = pattern(3 << 20);
        for folder in folders() {
            let path = folder.path().join(format!("grown {}", bed.is_real()));
            let far = 100 << 20;
            for ranges in
                [[range(far, 0, 0), range(0, 0, bytes.len())], [range(0, 0, bytes.len()), range(far, 0, 0)]]
            {
                let file = open(&engine, &path);
                file.set_len(0).unwrap();
                file.write_many(&bytes, &ranges).unwrap();
                assert!(fs::read(&path).unwrap() == bytes, "{ranges:?}");

                file.set_len(0).unwrap();
                let request = |range: &IoRange| {
                    let part = &bytes[range.buffer_offset..][..range.len_bytes];
                    Request { file: &file, buffer: part, offset: range.file_offset }
                };
                engine.write_many(&ranges.each_ref().map(request)).unwrap();
                assert!(fs::read(&path).unwrap() == bytes, "{ranges:?} as requests");
            }
        }
    });
}

#[test]
fn several_new_files_are_written_in_one_call() {
    Bed::each(|bed| {
        let engine = engine(bed).threads(4).build();
        let bytes = pattern(20 << 20);
        let mut device = bed.device.alloc(bytes.len()).unwrap();
        device.copy_from_host(0, &bytes).unwrap();
        // One file gets much, then several files get little, then one gets much again, in two parts.
        let parts = [
            ("one", 0..9 << 20),
            ("two", 1..5000),
            ("three", 7 << 20..(7 << 20) + 100),
            ("four", 100..6 << 20),
            ("four", 6 << 20..20 << 20),
            ("five", 0..0),
        ];
        for (folder, from_device) in folders().iter().flat_map(|folder| [(folder, false), (folder, true)]) {
            let path = |name: &str| folder.path().join(format!("{name} {from_device} {}", bed.is_real()));
            let files = parts.clone().map(|(name, _)| (name, open(&engine, &path(name))));
            let request = |number: usize, file| {
                let range = parts[number].1.clone();
                // Parts of a file follow each other from its beginning.
                let earlier = parts[..number].iter().filter(|(name, _)| *name == parts[number].0);
                let offset = earlier.map(|(_, range)| range.len() as u64).sum();
                match from_device {
                    true => Request { file, buffer: BufSlice::new(&device, range), offset },
                    false => Request { file, buffer: BufSlice::new(&bytes, range), offset },
                }
            };
            let requests: Vec<_> = (0..parts.len())
                .map(|number| {
                    let (_, file) = files.iter().find(|(name, _)| *name == parts[number].0).unwrap();
                    request(number, file)
                })
                .collect();
            engine.write_many(&requests).unwrap();
            for (name, _) in &parts {
                let of_file = parts.iter().filter(|(other, _)| other == name);
                let expected: Vec<u8> =
                    of_file.flat_map(|(_, range)| bytes[range.clone()].iter().copied()).collect();
                assert!(fs::read(path(name)).unwrap() == expected, "{name} in {}", folder.path().display());
            }

            // Nobody may write to the last file. The entries before it are written all the same.
            let unwritable = File::options().read(true).engine(&engine).open(path("five")).unwrap();
            let again = open(&engine, &path("one"));
            again.set_len(0).unwrap();
            let requests =
                [request(0, &again), Request { file: &unwritable, buffer: (&bytes).into(), offset: 3 }];
            let (number, error) = entry(engine.write_many(&requests));
            assert_eq!((number, error.bytes_done()), (1, 0), "{error}");
            assert!(fs::read(path("one")).unwrap() == bytes[..9 << 20]);
        }
    });
}

#[test]
fn buffers_wait_for_a_kernel_whose_synchronisation_failed() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let engine =
        Engine::builder().driver(bed.driver.clone()).threads(1).policy(RoutePolicy::PosixOnly).build();
    let path = bed.path("data");
    fs::write(&path, pattern(4 << 20)).unwrap();
    let file = File::options().read(true).write(true).engine(&engine).open(&path).unwrap();
    let mut memory = bed.device.alloc(4 << 20).unwrap();
    file.read_exact_at(&mut memory, 0).unwrap();
    let range = |n: usize| IoRange { file_offset: 4096 * n as u64, buffer_offset: 8192 * n, len_bytes: 4096 };
    let ranges: Vec<_> = (0..400).map(range).collect();
    // The kernels are loaded.
    file.write_many(&memory, &ranges).unwrap();
    emulator.fault("cuLaunchKernel", "delay_us=300000");
    emulator.fault("cudaMemcpyAsync", "err=700");
    emulator.fault("cudaStreamSynchronize", "err=700 times=all");
    file.write_many(&memory, &ranges).unwrap_err();
    // The kernel still reads its table from the bounce buffer, so no other bytes may get there.
    file.read_exact_at(&mut memory, 0).unwrap_err();
    emulator.control("clear");
    file.read_exact_at(&mut memory, 0).unwrap();
    assert!(memory.to_vec().unwrap() == fs::read(&path).unwrap());
}
