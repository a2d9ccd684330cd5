//! Tests of lists of ranges in flight while the caller does something else: waiting, cancelling, dropping,
//! forgetting, waking.

use std::fs;
use std::mem;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::polling::poll_once;
use cufile::cuda::{DeviceBuffer, DeviceMemory};
use gpufile::{
    Cause, Engine, EngineBuilder, Error, File, IoBuf, IoBufMut, IoRange, OpenOptions, OwnedPart, Request,
    RoutePolicy,
};
use testkit::bed::{Bed, folders, pattern};
use testkit::in_flight::{Call, Tracked, block_on, soon};
use testkit::random::Random;

const MIB: usize = 1 << 20;

fn engine(bed: &Bed) -> EngineBuilder {
    Engine::builder().driver(bed.driver.clone())
}

fn open(engine: &Engine, path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).engine(engine).open(path).unwrap()
}

fn range(file_offset: usize, buffer_offset: usize, len_bytes: usize) -> IoRange {
    IoRange { file_offset: file_offset as u64, buffer_offset, len_bytes }
}

fn request<B>(file: &File, offset: usize, buffer: B) -> Request<B> {
    Request { file: file.clone(), buffer, offset: offset as u64 }
}

/// Returns the number of the entry that failed, and its error.
fn entry(result: gpufile::Result<usize>) -> (usize, Error) {
    match result {
        Err(Error::Entry { entry, error, .. }) => (entry, *error),
        other => panic!("{other:?}"),
    }
}

/// Returns ranges of a buffer in random order, which leave gaps. The first bytes of the file come last.
fn scattered(random: &mut Random, len: usize, longest: usize) -> Vec<IoRange> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < len {
        let bytes = random.below(longest + 1).min(len - at);
        ranges.push(range(len - at - bytes, at, bytes));
        at += bytes + random.below(3);
    }
    random.shuffle(&mut ranges);
    ranges
}

#[test]
fn lists_of_ranges_can_be_awaited_and_come_back() {
    Bed::each(|bed| {
        let mut random = Random::new(3);
        for (len, longest) in [(3 * MIB + 17, 700_000), (300_001, 5000), (100_000, 40), (1, 1)] {
            let bytes = pattern(len);
            fs::write(bed.path("data"), &bytes).unwrap();
            let engine = engine(bed).threads(3).bounce_buffer_bytes(random.pick(&[4096, MIB])).build();
            let file = open(&engine, &bed.path("data"));
            let ranges = scattered(&mut random, len, longest);
            let total = ranges.iter().map(|range| range.len_bytes).sum();
            let mut device = bed.device.alloc(len).unwrap();
            device.fill(1).unwrap();
            let on_host = file.read_many_async(vec![1; len], ranges.clone());
            let on_device = file.read_many_async(device, ranges.clone());
            let (count, (device, same)) = block_on(on_device);
            assert_eq!((count.unwrap(), &same), (total, &ranges));
            let (count, (host, same)) = on_host.wait();
            assert_eq!((count.unwrap(), &same), (total, &ranges));
            let mut expected = vec![1; len];
            for range in &ranges {
                let part = &bytes[range.file_offset as usize..][..range.len_bytes];
                expected[range.buffer_offset..][..range.len_bytes].copy_from_slice(part);
            }
            assert!(host == expected && device.to_vec().unwrap() == expected);

            let copy = open(&engine, &bed.path("copy"));
            copy.set_len(0).unwrap();
            let (count, (device, same)) = block_on(copy.write_many_async(device, ranges));
            assert_eq!(count.unwrap(), total);
            let (mut written, mut end) = (vec![0; len], 0);
            for range in same.iter().filter(|range| range.len_bytes > 0) {
                let place = range.file_offset as usize..range.file_offset as usize + range.len_bytes;
                written[place.clone()].copy_from_slice(&bytes[place.clone()]);
                end = end.max(place.end);
            }
            written.truncate(end);
            assert!(fs::read(bed.path("copy")).unwrap() == written);
            drop(device);
        }
    });
}

type AnyBuffer = Box<dyn IoBufMut + Send>;

#[test]
fn requests_mix_files_engines_and_memory() {
    let bed = Bed::emulated();
    let bytes = pattern(7 * MIB);
    bed.file("data", &bytes);
    let second = bed.device.cuda().device(1).unwrap();
    let (one, other) = (engine(&bed).build(), engine(&bed).bounce_buffer_bytes(8192).build());
    for folder in folders() {
        let (of_one, of_other) = (open(&one, &bed.path("data")), open(&other, &bed.path("data")));
        let tensor = bed.device.alloc(77_777).unwrap();
        let ptr = tensor.as_ptr().cast_mut();
        // SAFETY: the buffer keeps the memory, and nothing else uses it.
        let foreign = unsafe { DeviceMemory::from_raw(&bed.device, ptr, 77_777, tensor) };
        let buffers: Vec<AnyBuffer> = vec![
            Box::new(vec![0; 3 * MIB]),
            Box::new(bed.device.alloc(2 * MIB + 5).unwrap()),
            Box::new(Vec::new()),
            Box::new(second.alloc(999_999).unwrap()),
            Box::new(foreign),
            Box::new(second.alloc(0).unwrap()),
            Box::new(bed.device.alloc_pinned(5000).unwrap()),
        ];
        let lens: Vec<_> = buffers.iter().map(|buffer| buffer.len_bytes()).collect();
        let files = [&of_one, &of_other].into_iter().cycle();
        let requests = buffers.into_iter().zip(files).enumerate();
        let requests = requests.map(|(at, (buffer, file))| request(file, 1000 * at + 3, buffer)).collect();
        drop((of_one, of_other));
        let (count, mut requests) = one.read_many_async(requests).wait();
        assert_eq!(count.unwrap(), lens.iter().sum::<usize>());

        // To a new file each, some of which have many bytes.
        let path = |at: usize| folder.path().join(format!("copy {at}"));
        for again in [false, true] {
            for (at, request) in requests.iter_mut().enumerate() {
                request.file = open(&other, &path(at));
                request.offset = if again { 11 } else { 0 };
            }
            let (count, list) = block_on(other.write_many_async(requests));
            assert_eq!(count.unwrap(), lens.iter().sum::<usize>());
            for (at, len) in lens.iter().enumerate() {
                let found = fs::read(path(at)).unwrap();
                let start = if again && *len > 0 { 11 } else { 0 };
                assert!(found[start..] == bytes[1000 * at + 3..][..*len], "{at} {again}");
            }
            requests = list;
        }
    }
}

#[test]
fn parts_of_one_buffer_are_a_list() {
    let bed = Bed::emulated();
    let bytes = pattern(100_000);
    bed.file("data", &bytes);
    let engine = engine(&bed).build();
    let file = open(&engine, &bed.path("data"));
    let parts = OwnedPart::split(bed.device.alloc(50_000).unwrap(), 999);
    let requests = parts.into_iter().enumerate().map(|(at, part)| request(&file, 1500 * at, part)).collect();
    let (count, requests) = engine.read_many_async(requests).wait();
    assert_eq!(count.unwrap(), 50_000);
    let whole = requests.into_iter().map(|request| request.buffer.into_whole()).find_map(Result::ok);
    for (at, part) in whole.expect("the last part").to_vec().unwrap().chunks(999).enumerate() {
        assert!(*part == bytes[1500 * at..][..part.len()], "{at}");
    }
}

#[test]
fn failed_lists_come_back_and_can_be_used_again() {
    Bed::each(|bed| {
        let bytes = pattern(200_000);
        bed.file("data", &bytes);
        let engine = engine(bed).build();
        let file = open(&engine, &bed.path("data"));
        let unwritable = File::options().read(true).engine(&engine).open(bed.path("data")).unwrap();
        let device = || bed.device.alloc(1000).unwrap();

        // Refused before anything begins.
        for (bad, text) in [
            (range(0, 991, 10), "exceeds the buffer of"),
            (range(usize::MAX / 2, 0, 3), "Value too large"),
            (range(0, 50, 1), "overlaps"),
        ] {
            let future = file.read_many_async(device(), vec![range(0, 0, 100), bad]);
            assert!(future.is_done());
            let (result, (buffer, ranges)) = block_on(future);
            let (number, error) = entry(result);
            assert_eq!((number, buffer.len_bytes(), ranges[1]), (1, 1000, bad));
            assert!(error.to_string().contains(text), "{error}");
        }
        let (result, _) = file.write_many_async(device(), vec![range(0, 991, 10)]).cancel();
        assert!(matches!(entry(result), (0, error) if matches!(error.cause(), Cause::Invalid(_))));
        let requests = vec![request(&file, 0, vec![0; 5]), request(&file, usize::MAX, vec![0; 5])];
        let (result, requests) = engine.write_many_async(requests).wait();
        assert_eq!(entry(result).1.raw_os_error(), Some(libc::EOVERFLOW));
        assert_eq!(requests.len(), 2);

        // Failed within a range.
        let (result, (mut buffer, ranges)) =
            file.read_many_async(device(), vec![range(0, 0, 500), range(199_900, 500, 101)]).wait();
        let (number, error) = entry(result);
        assert_eq!((number, error.bytes_done()), (1, 100));
        assert!(matches!(error.cause(), Cause::EndOfFile { at: 200_000 }), "{error}");
        let outcomes = file.read_many_each(&mut buffer, &ranges).unwrap();
        assert!(matches!(outcomes[..], [Ok(500), Ok(100)]), "{outcomes:?}");

        let requests = vec![
            request(&file, 0, vec![7; 2 * MIB]),
            request(&file, 9 * MIB, vec![7; 10]),
            request(&unwritable, 0, vec![7; 2 * MIB]),
        ];
        let (result, mut requests) = engine.write_many_async(requests).wait();
        assert_eq!(entry(result).0, 2);
        assert!(fs::read(bed.path("data")).unwrap()[..2 * MIB] == [7; 2 * MIB]);
        requests.pop();
        assert_eq!(engine.write_many_async(requests).wait().0.unwrap(), 2 * MIB + 10);
        assert_eq!(file.len_bytes().unwrap() as usize, 9 * MIB + 10);
    });
}

#[test]
fn empty_lists_end_at_once() {
    let bed = Bed::emulated();
    bed.file("data", b"data");
    let engine = engine(&bed).build();
    let file = open(&engine, &bed.path("data"));
    let none = || Vec::<Request<DeviceBuffer>>::new();
    for future in [engine.read_many_async(none()), engine.write_many_async(none())] {
        assert!(future.is_done());
        assert_eq!(block_on(future).0.unwrap(), 0);
    }
    assert_eq!(engine.write_many_async(none()).cancel().0.unwrap(), 0);
    drop(engine.read_many_async(none()));
    let device = || bed.device.alloc(9).unwrap();
    assert_eq!(file.read_many_async(device(), Vec::new()).wait().0.unwrap(), 0);
    assert_eq!(file.write_many_async(device(), vec![range(1 << 40, 9, 0); 3]).wait().0.unwrap(), 0);
    let requests = (0..3).map(|_| request(&file, 1 << 40, bed.device.alloc(0).unwrap())).collect();
    assert_eq!(engine.write_many_async(requests).wait().0.unwrap(), 0);
    assert_eq!(file.len_bytes().unwrap(), 4);
}

#[test]
fn cancelling_ends_what_has_not_begun() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(32 * MIB);
    bed.file("data", &bytes);
    // All copies would take seconds.
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).chunk_bytes(MIB / 16).build();
    let file = open(&engine, &bed.path("data"));
    let copies = || emulator.calls("cudaMemcpyAsync");
    const RANGE: usize = MIB / 32;
    let ranges: Vec<_> = (0..1024).map(|at| range(at * RANGE, at * RANGE, RANGE)).collect();
    let begun = copies();
    emulator.fault("cudaMemcpyAsync", "delay_us=50000 times=all");
    let future = file.read_many_async(bed.device.alloc(32 * MIB).unwrap(), ranges.clone());
    soon("the first copy begins", || copies() > begun);
    let (result, (device, same)) = future.cancel();
    let (number, error) = entry(result);
    assert_eq!((same, error.raw_os_error(), error.bytes_done()), (ranges, Some(libc::ECANCELED), 0));
    assert!(0 < number && number < 1024, "{number}");
    assert!(device.to_vec().unwrap()[..number * RANGE] == bytes[..number * RANGE]);

    // Each of the files is a job.
    let begun = copies();
    let source = || {
        let mut source = bed.device.alloc(4 * MIB).unwrap();
        source.copy_from_host(0, &bytes[..4 * MIB]).unwrap();
        source
    };
    let path = |at: usize| bed.path(&format!("copy {at}"));
    let requests = (0..8).map(|at| request(&open(&engine, &path(at)), 0, source())).collect();
    let future = engine.write_many_async(requests);
    soon("the first copy begins", || copies() > begun);
    let (result, requests) = future.cancel();
    emulator.control("clear");
    let (number, error) = entry(result);
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED), "{number}: {error}");
    let written: Vec<_> = (0..8).map(|at| fs::read(path(at)).unwrap()).collect();
    assert!(written.iter().any(|found| found != &bytes[..4 * MIB]), "all was written");
    assert!(written[number][..error.bytes_done()] == bytes[..error.bytes_done()]);

    // The second use.
    let future = engine.write_many_async(requests);
    soon("the writes end", || future.is_done());
    assert_eq!(future.cancel().0.unwrap(), 32 * MIB);
    assert!((0..8).all(|at| fs::read(path(at)).unwrap() == bytes[..4 * MIB]));
}

#[test]
fn dropped_reads_stop_and_dropped_writes_complete() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(2 * MIB);
    bed.file("long", &[]).set_len(64 * MIB as u64).unwrap();
    let kinds = ["allocations", "pinned-bytes", "streams", "events", "handles"];
    let before = kinds.map(|kind| emulator.live(kind));
    let copies = || emulator.calls("cudaMemcpyAsync");
    for is_write in [false, true] {
        let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).chunk_bytes(MIB).build();
        let path = |at: usize| bed.path(&format!("copy {at}"));
        let requests: Vec<_> = (0..32)
            .map(|at| {
                let mut buffer = bed.device.alloc(2 * MIB).unwrap();
                buffer.copy_from_host(0, &bytes).unwrap();
                let file = open(&engine, &if is_write { path(at) } else { bed.path("long") });
                request(&file, 0, buffer)
            })
            .collect();
        let begun = copies();
        let held = emulator.hold("cudaMemcpyAsync", "times=all");
        let future =
            if is_write { engine.write_many_async(requests) } else { engine.read_many_async(requests) };
        held.wait_for(1);
        drop((engine, future));
        assert!(emulator.live("streams") > before[2], "the engine is still there");
        held.release();
        soon("nothing is left", || kinds.map(|kind| emulator.live(kind)) == before);
        match is_write {
            true => assert!((0..32).all(|at| fs::read(path(at)).unwrap() == bytes)),
            false => assert!(copies() - begun <= 12, "{} of 64 chunks", copies() - begun),
        }
    }
}

#[test]
fn forgotten_lists_keep_their_memory() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(2 * MIB);
    bed.file("data", &bytes);
    let engine = engine(&bed).threads(2).build();
    let file = open(&engine, &bed.path("data"));
    let before = emulator.live("device-bytes");
    emulator.fault("cudaMemcpyAsync", "delay_us=50000 times=all");
    let ranges = || vec![range(0, MIB, MIB), range(MIB, 0, MIB)];
    let device = || bed.device.alloc(2 * MIB).unwrap();
    mem::forget(file.read_many_async(device(), ranges()));
    mem::forget(file.write_many_async(vec![9; 10], vec![range(4 * MIB, 0, 10)]));
    let requests =
        (1..4).map(|at| request(&open(&engine, &bed.path("new")), 2 * at * MIB, device())).collect();
    mem::forget(engine.write_many_async(requests));
    emulator.control("clear");
    for _ in 0..3 {
        let (count, (buffer, _)) = file.read_many_async(device(), ranges()).wait();
        assert_eq!(count.unwrap(), 2 * MIB);
        assert!(buffer.to_vec().unwrap() == [&bytes[MIB..], &bytes[..MIB]].concat());
    }
    assert_eq!(emulator.live("device-bytes"), before + 8 * MIB as i64);
}

/// Starts to write 2 MiB to each of three files, which are a job each.
fn three_writes(bed: &Bed, engine: &Engine) -> gpufile::IoFuture<Vec<Request<DeviceBuffer>>> {
    let requests = ["one", "two", "three"].map(|name| {
        let mut buffer = bed.device.alloc(2 * MIB).unwrap();
        buffer.fill(7).unwrap();
        request(&open(engine, &bed.path(name)), 0, buffer)
    });
    engine.write_many_async(requests.into())
}

#[test]
fn the_end_of_the_last_job_wakes_the_last_waker() {
    let bed = Bed::emulated();
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).build();
    for (copied, polls) in [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)] {
        let held =
            bed.emulator.as_ref().unwrap().hold("cudaMemcpyAsync", &format!("after={copied} times=all"));
        let mut future = three_writes(&bed, &engine);
        held.wait_for(1);
        let (sender, woken) = mpsc::channel();
        for _ in 0..polls {
            // An earlier waker of the same job is replaced.
            let sender = sender.clone();
            poll_once(&mut future, move || sender.send(()).unwrap());
        }
        held.release();
        // Each waker polls again with the next, until nothing is in flight.
        let mut wakes = 0;
        let (count, requests) = loop {
            woken.recv_timeout(Duration::from_secs(20)).expect("the waker is woken");
            wakes += 1;
            let sender = sender.clone();
            let waker = Call::waker(move || sender.send(()).unwrap());
            if let Poll::Ready(outcome) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                break outcome;
            }
        };
        assert_eq!((count.unwrap(), requests.len()), (6 * MIB, 3));
        assert!(wakes <= 3, "{wakes}");
    }
    assert!(fs::read(bed.path("three")).unwrap() == [7; 2 * MIB]);
}

#[test]
fn panicking_wakers_and_buffers_spare_other_transfers() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).build();
    let held = emulator.hold("cudaMemcpyAsync", "times=all");
    let mut future = three_writes(&bed, &engine);
    let (sender, called) = mpsc::channel();
    poll_once(&mut future, move || {
        sender.send(()).unwrap();
        panic!("a panic that the test wants");
    });
    held.release();
    called.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(future.wait().0.unwrap(), 6 * MIB);

    // A dropped list, of which a buffer panics when it is dropped.
    let held = emulator.hold("cudaMemcpyAsync", "times=all");
    let busy = three_writes(&bed, &engine);
    let buffers = (0..3).map(|_| {
        let mut buffer = bed.device.alloc(2 * MIB).unwrap();
        buffer.fill(9).unwrap();
        Tracked::of(buffer)
    });
    let (buffers, lives): (Vec<_>, Vec<_>) = buffers.unzip();
    lives[1].panics.store(true, Ordering::SeqCst);
    let copies = (0..3).map(|at| open(&engine, &bed.path(&format!("copy {at}"))));
    let requests = copies.zip(buffers).map(|(file, buffer)| request(&file, 0, buffer)).collect();
    let future = engine.write_many_async(requests);
    lives.iter().for_each(|life| life.over.store(true, Ordering::SeqCst));
    drop(future);
    held.release();
    soon("a worker drops the buffers", || lives.iter().all(|life| life.is_freed()));
    assert_eq!(busy.wait().0.unwrap(), 6 * MIB);
    assert_eq!(three_writes(&bed, &engine).wait().0.unwrap(), 6 * MIB);
    assert!((0..3).all(|at| fs::read(bed.path(&format!("copy {at}"))).unwrap() == vec![9; 2 * MIB]));
}

#[test]
fn dropped_lists_keep_buffers_until_the_last_job_ends() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(1).build();
    let begun = emulator.calls("cudaMemcpyAsync");
    three_writes(&bed, &engine).wait().0.unwrap();
    let copies = emulator.calls("cudaMemcpyAsync") - begun;
    for (polled, first_is_done) in [(false, false), (true, false), (false, true), (true, true)] {
        ["one", "two", "three"].iter().for_each(|name| fs::remove_file(bed.path(name)).unwrap());
        let before = emulator.live("device-bytes");
        // The chunks of the jobs take turns.
        let after = if first_is_done { copies - 1 } else { 0 };
        let held = emulator.hold("cudaMemcpyAsync", &format!("after={after} times=all"));
        let mut future = three_writes(&bed, &engine);
        let is_written = |name| fs::metadata(bed.path(name)).unwrap().len() == 2 * MIB as u64;
        if polled {
            let _ = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
        }
        held.wait_for(1);
        if first_is_done {
            soon("the first job ends", || is_written("one"));
        }
        drop(future);
        assert_eq!(emulator.live("device-bytes"), before + 6 * MIB as i64);
        held.release();
        loop {
            let live = emulator.live("device-bytes");
            if is_written("three") {
                break;
            }
            assert_eq!(live, before + 6 * MIB as i64);
        }
        soon("a worker drops the buffers", || emulator.live("device-bytes") == before);
    }
}

#[test]
fn long_lists_can_be_in_flight() {
    const COUNT: usize = 100_000;
    let bed = Bed::emulated();
    let bytes = pattern(8 * COUNT);
    bed.file("data", &bytes);
    let engine = engine(&bed).threads(2).build();
    let file = open(&engine, &bed.path("data"));
    let place = |at: usize| at * 77_773 % COUNT;
    let ranges: Vec<_> = (0..COUNT).map(|at| range(8 * place(at), 8 * at, 8)).collect();
    let futures = [0; 3].map(|_| file.read_many_async(bed.device.alloc(8 * COUNT).unwrap(), ranges.clone()));
    let requests = (0..COUNT).map(|at| request(&file, 8 * place(at), vec![0; 5])).collect();
    let of_requests = engine.read_many_async(requests);
    drop(file.read_many_async(vec![0; 8 * COUNT], ranges.clone()));
    for future in futures {
        let (count, (buffer, _)) = future.wait();
        assert_eq!(count.unwrap(), 8 * COUNT);
        let found = buffer.to_vec().unwrap();
        assert!((0..COUNT).all(|at| found[8 * at..][..8] == bytes[8 * place(at)..][..8]));
    }
    let (count, requests) = block_on(of_requests);
    assert_eq!(count.unwrap(), 5 * COUNT);
    assert!((0..COUNT).all(|at| requests[at].buffer == bytes[8 * place(at)..][..5]));
}
