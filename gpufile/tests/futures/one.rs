//! Tests of transfers in flight while the caller does something else: waiting, awaiting, dropping, forgetting,
//! waking.

use std::fs;
use std::future::Future;
use std::mem;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use crate::polling::poll_once;
use cufile::IoBuf;
use cufile::cuda::DeviceBuffer;
use gpufile::{Cause, Engine, EngineBuilder, File, IoFuture, IoRange, OpenOptions, RoutePolicy, page_cache};
use testkit::bed::{Bed, folders, pattern};
use testkit::in_flight::{Call, Tracked, block_on, soon};

const MIB: usize = 1 << 20;
const LONG: usize = 5 * MIB + 4321;

fn engine(bed: &Bed) -> EngineBuilder {
    Engine::builder().driver(bed.driver.clone())
}

fn open(engine: &Engine, path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).engine(engine).open(path).unwrap()
}

#[test]
fn futures_can_be_awaited_in_any_order() {
    Bed::each(|bed| {
        let bytes = pattern(LONG);
        let file = open(&engine(bed).threads(3).build(), &bed.path("data"));
        block_on(async {
            let (count, _) = file.write_all_at_async(bytes.clone(), 0).await;
            assert_eq!(count.unwrap(), LONG);
            let device = file.read_at_async(bed.device.alloc(LONG).unwrap(), 0);
            let host = file.read_at_async(vec![0; LONG], 1000);
            let beyond = file.read_at_async(vec![0; 10], 1 << 40);
            let (count, host) = host.await;
            assert_eq!(count.unwrap(), LONG - 1000);
            assert!(host[..LONG - 1000] == bytes[1000..]);
            let (count, device) = device.await;
            assert_eq!(count.unwrap(), LONG);
            assert!(device.to_vec().unwrap() == bytes);
            assert_eq!(beyond.await.0.unwrap(), 0);
        });
    });
}

#[test]
fn failed_futures_return_the_buffer_with_the_error() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(LONG));
    let file = open(&engine(&bed).chunk_bytes(MIB).bounce_buffer_bytes(MIB).build(), &bed.path("data"));
    bed.emulator.as_ref().unwrap().fault("cudaMemcpyAsync", "err=700 times=all");
    let (result, buffer) = block_on(file.read_at_async(bed.device.alloc(LONG).unwrap(), 0));
    let error = result.unwrap_err();
    assert!(matches!(error.cause(), Cause::Cufile(_)) && error.bytes_done() == 0, "{error}");
    assert_eq!(buffer.len_bytes(), LONG);
    bed.emulator.as_ref().unwrap().control("clear");

    let refused = file.write_all_at_async(vec![1; 10], u64::MAX);
    assert!(refused.is_done());
    let (result, buffer) = refused.wait();
    assert_eq!((result.unwrap_err().raw_os_error(), buffer), (Some(libc::EOVERFLOW), vec![1; 10]));
    let read_only = OpenOptions::new().read(true).open("/dev/null").unwrap();
    let (result, _) = read_only.write_all_at_async(vec![1; 2 * MIB], 0).wait();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn dropped_reads_return_at_once_and_stop() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("long", &[]).set_len(64 * MIB as u64).unwrap();
    let file = open(&engine(&bed).threads(2).chunk_bytes(MIB).build(), &bed.path("long"));
    file.read_exact_at(&mut bed.device.alloc(4 * MIB).unwrap(), 0).unwrap();
    let before = emulator.calls("cudaMemcpyAsync");
    let copies = || emulator.calls("cudaMemcpyAsync") - before;
    let device_bytes = || emulator.live("device-bytes");
    let allocated = device_bytes();
    let held = emulator.hold("cudaMemcpyAsync", "times=all");
    let future = file.read_at_async(bed.device.alloc(64 * MIB).unwrap(), 0);
    held.wait_for(1);
    drop(future);
    assert!(device_bytes() > allocated, "a copy is under way, and needs the buffer");
    held.release();
    soon("a worker drops the buffer", || device_bytes() == allocated);
    let begun = copies();
    assert!(begun <= 8, "{begun} of 64 pieces, two of each worker and as many that were just taken");
    file.read_exact_at(&mut bed.device.alloc(64 * MIB).unwrap(), 0).unwrap();
    assert_eq!(copies(), begun + 64, "no more of it was read");
}

#[test]
fn dropped_transfers_keep_the_engine_until_they_end() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(2 * MIB));
    let kinds = ["allocations", "pinned-bytes", "streams", "events", "handles"];
    let before = kinds.map(|kind| emulator.live(kind));
    for is_write in [false, true] {
        let file = open(&engine(&bed).threads(2).build(), &bed.path("data"));
        let buffer = bed.device.alloc(2 * MIB).unwrap();
        file.read_at(&mut bed.device.alloc(2 * MIB).unwrap(), 0).unwrap();
        let held = emulator.hold("cudaMemcpyAsync", "times=all");
        let future =
            if is_write { file.write_all_at_async(buffer, 0) } else { file.read_at_async(buffer, 0) };
        held.wait_for(1);
        // They take the engine along, on a worker.
        drop((file, future));
        assert!(emulator.live("streams") > before[2], "the engine is still there");
        held.release();
        soon("nothing is left", || kinds.map(|kind| emulator.live(kind)) == before);
    }
}

#[test]
fn workers_survive_a_buffer_that_panics_when_dropped() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(2 * MIB));
    let file = open(&engine(&bed).threads(1).build(), &bed.path("data"));
    let held = emulator.hold("cudaMemcpyAsync", "times=all");
    let busy = file.read_at_async(bed.device.alloc(2 * MIB).unwrap(), 0);
    let (buffer, life) = Tracked::of(bed.device.alloc(2 * MIB).unwrap());
    life.panics.store(true, Ordering::SeqCst);
    let copy = open(file.engine(), &bed.path("copy"));
    let future = copy.write_all_at_async(buffer, 0);
    life.over.store(true, Ordering::SeqCst);
    drop((future, copy));
    held.release();
    soon("a worker drops the buffer", || life.is_freed());
    assert_eq!(busy.wait().0.unwrap(), 2 * MIB);
    assert_eq!(file.read_at_async(vec![0; 2 * MIB], 0).wait().0.unwrap(), 2 * MIB);
    assert_eq!(fs::metadata(bed.path("copy")).unwrap().len(), 2 * MIB as u64);
}

#[test]
fn cancelling_waits_for_chunks_in_flight_and_returns_the_buffer() {
    // All chunks would take seconds.
    const CHUNK: usize = MIB / 16;
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(32 * MIB);
    bed.file("data", &bytes);
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).chunk_bytes(CHUNK).build();
    let file = open(&engine, &bed.path("data"));
    file.read_exact_at(&mut bed.device.alloc(4 * MIB).unwrap(), 0).unwrap();
    let mut source = bed.device.alloc(32 * MIB).unwrap();
    source.copy_from_host(0, &bytes).unwrap();

    let begun = emulator.calls("cudaMemcpyAsync");
    emulator.fault("cudaMemcpyAsync", "delay_us=50000 times=all");
    let future = file.read_at_async(bed.device.alloc(32 * MIB).unwrap(), 0);
    soon("the first copy begins", || emulator.calls("cudaMemcpyAsync") > begun);
    let (read, buffer) = future.cancel();
    let copies = emulator.calls("cudaMemcpyAsync") - begun;
    let read = read.unwrap();
    assert_eq!(read, copies as usize * CHUNK, "what was begun was read, and nothing else");
    assert!(read > 0 && read < 32 * MIB && buffer.to_vec().unwrap()[..read] == bytes[..read]);

    let copy = open(&engine, &bed.path("copy"));
    let (written, source) = copy.write_all_at_async(source, MIB as u64).cancel();
    emulator.control("clear");
    let written = written.unwrap();
    assert!(written < 32 * MIB, "{written}");
    let found = fs::read(bed.path("copy")).unwrap();
    // The file may be as long as the whole write would have made it.
    assert!(found.len() <= 33 * MIB && (written == 0 || found[MIB..][..written] == bytes[..written]));
    assert!(found.iter().skip(MIB + written).all(|byte| *byte == 0), "{written} bytes were written");
    copy.set_len(0).unwrap();

    // A transfer that is over, or never began, has nothing to cancel.
    let future = copy.write_all_at_async(source, 0);
    soon("the write ends", || future.is_done());
    let (written, source) = future.cancel();
    assert_eq!(written.unwrap(), 32 * MIB);
    assert!(copy.write_all_at_async(source, u64::MAX).cancel().0.is_err());
    assert!(fs::read(bed.path("copy")).unwrap() == bytes);
}

#[test]
fn dropped_writes_complete_and_forgotten_transfers_keep_their_buffer() {
    let bed = Bed::emulated();
    let bytes = pattern(2 * MIB);
    bed.file("data", &bytes);
    let file = open(&engine(&bed).threads(2).build(), &bed.path("data"));
    let emulator = bed.emulator.as_ref().unwrap();
    let device_bytes = || emulator.live("device-bytes");
    let before = device_bytes();

    emulator.fault("cudaMemcpyAsync", "delay_us=100000 times=all");
    let mut source = bed.device.alloc(2 * MIB).unwrap();
    source.copy_from_host(0, &bytes).unwrap();
    drop(file.write_all_at_async(source, 2 * MIB as u64));
    soon("a worker drops the buffer", || device_bytes() == before);
    let found = fs::read(bed.path("data")).unwrap();
    assert!(found[..2 * MIB] == bytes && found[2 * MIB..] == bytes);

    for _ in 0..5 {
        mem::forget(file.read_at_async(bed.device.alloc(2 * MIB).unwrap(), 0));
    }
    emulator.control("clear");
    // Other transfers run beside and after them.
    let mut buffer = bed.device.alloc(2 * MIB).unwrap();
    for _ in 0..3 {
        file.read_exact_at(&mut buffer, 0).unwrap();
        assert!(buffer.to_vec().unwrap() == bytes);
    }
    drop(buffer);
    assert!(device_bytes() >= before + 10 * MIB as i64, "the buffers of what was forgotten stay");
}

#[test]
fn futures_accept_another_thread_and_another_waker() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(2 * MIB));
    let file = open(&engine(&bed).build(), &bed.path("data"));
    let held = bed.emulator.as_ref().unwrap().hold("cudaMemcpyAsync", "times=all");
    let calls = Arc::new(AtomicUsize::new(0));
    let (sender, woken) = mpsc::channel();
    let mut future = file.read_at_async(bed.device.alloc(2 * MIB).unwrap(), 0);
    let first = calls.clone();
    poll_once(&mut future, move || {
        first.fetch_add(1, Ordering::Relaxed);
    });
    poll_once(&mut future, move || sender.send(()).unwrap());
    held.release();
    let future = thread::spawn(move || {
        woken.recv_timeout(Duration::from_secs(20)).expect("the last waker is woken");
        assert!(future.is_done());
        future
    });
    let (count, _) = future.join().unwrap().wait();
    assert_eq!((count.unwrap(), calls.load(Ordering::Relaxed)), (2 * MIB, 0));
}

#[test]
fn wakers_can_use_the_engine_that_calls_them() {
    Bed::each(|bed| {
        let bytes = pattern(4 * MIB);
        bed.file("data", &bytes);
        // There is one worker and one lane. If the waker kept either, nothing would go on.
        for (threads, memory) in [(1, 1), (2, 1), (4, usize::MAX)] {
            let engine =
                engine(bed).threads(threads).bounce_memory_bytes(memory).bounce_buffer_bytes(MIB).build();
            let file = open(&engine, &bed.path("data"));
            let (sender, done) = mpsc::channel();
            let mut futures = Vec::new();
            for number in 0..8 {
                let mut other = bed.device.alloc(4 * MIB).unwrap();
                let nested = bed.device.alloc(4 * MIB).unwrap();
                let (of_waker, sender) = (file.clone(), sender.clone());
                let mut expected = bytes.clone();
                let use_engine = move || {
                    of_waker.read_exact_at(&mut other, 0).unwrap();
                    let begun = of_waker.read_at_async(nested, 0);
                    let write = of_waker.write_all_at_async(vec![7; 2 * MIB], (8 + 2 * number) << 20);
                    let (count, nested) = begun.wait();
                    assert_eq!(count.unwrap(), 4 * MIB);
                    drop(write);
                    assert!(nested.to_vec().unwrap() == expected);
                    other.copy_to_host(0, &mut expected).unwrap();
                    assert!(nested.to_vec().unwrap() == expected);
                    sender.send(()).unwrap();
                };
                let mut future = file.read_at_async(bed.device.alloc(4 * MIB).unwrap(), 0);
                let waker = Call::waker(use_engine);
                match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready((count, _)) => {
                        assert_eq!(count.unwrap(), 4 * MIB);
                        waker.wake();
                    }
                    Poll::Pending => futures.push(future),
                }
            }
            for _ in 0..8 {
                done.recv_timeout(Duration::from_secs(60)).expect("the wakers come to an end");
            }
            for future in futures {
                assert_eq!(future.wait().0.unwrap(), 4 * MIB);
            }
        }
    });
}

/// The payload that a waker panics with. It panics itself when it is dropped.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("a payload that panics, as the test wants");
    }
}

#[test]
fn panicking_wakers_do_not_affect_other_transfers() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(2 * MIB));
    let file = open(&engine(&bed).threads(1).build(), &bed.path("data"));
    let held = bed.emulator.as_ref().unwrap().hold("cudaMemcpyAsync", "times=1");
    let mut future = file.read_at_async(bed.device.alloc(2 * MIB).unwrap(), 0);
    let (sender, called) = mpsc::channel();
    poll_once(&mut future, move || {
        sender.send(()).unwrap();
        std::panic::panic_any(Payload);
    });
    held.release();
    called.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(future.wait().0.unwrap(), 2 * MIB);
    assert_eq!(file.read_at_async(vec![0; 2 * MIB], 0).wait().0.unwrap(), 2 * MIB);
}

#[test]
fn thousands_of_small_transfers_can_be_in_flight() {
    const COUNT: usize = 4000;
    Bed::each(|bed| {
        let bytes = pattern(COUNT * 4096);
        bed.file("data", &bytes);
        let engine = engine(bed).threads(4).build();
        let file = open(&engine, &bed.path("data"));
        let device: Vec<IoFuture<DeviceBuffer>> = (0..COUNT / 8)
            .map(|at| file.read_at_async(bed.device.alloc(4096).unwrap(), 4096 * at as u64))
            .collect();
        let reads: Vec<_> =
            (0..COUNT).map(|at| file.read_at_async(vec![0; 4096], 4096 * at as u64)).collect();
        let copy = open(&engine, &bed.path("copy"));
        // The test submits from the last to the first, and awaits from the first to the last.
        let writes: Vec<_> = (0..COUNT)
            .rev()
            .map(|at| copy.write_all_at_async(bytes[4096 * at..][..4096].to_vec(), 4096 * at as u64))
            .collect();
        block_on(async {
            for (at, read) in reads.into_iter().enumerate() {
                let (count, page) = read.await;
                assert_eq!(count.unwrap(), 4096);
                assert!(page == bytes[4096 * at..][..4096], "page {at}");
            }
            for write in writes {
                assert_eq!(write.await.0.unwrap(), 4096);
            }
        });
        for (at, read) in device.into_iter().enumerate() {
            let (count, page) = read.wait();
            assert_eq!(count.unwrap(), 4096);
            assert!(page.to_vec().unwrap() == bytes[4096 * at..][..4096], "page {at}");
        }
        assert!(fs::read(bed.path("copy")).unwrap() == bytes);
    });
}

#[test]
fn wakers_do_not_wait_for_another_transfer() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(MIB));
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(1).build();
    let (read, written) = (open(&engine, &bed.path("data")), open(&engine, &bed.path("written")));
    read.read_at(&mut bed.device.alloc(MIB).unwrap(), 0).unwrap();
    let (target, mut source) = (bed.device.alloc(MIB / 2).unwrap(), bed.device.alloc(100 * MIB).unwrap());
    source.copy_from_host(0, &pattern(100 * MIB)).unwrap();
    // The worker is busy until both are submitted. Each copy of the write takes a while.
    let held = emulator.hold("cudaMemcpyAsync", "");
    emulator.fault("cudaMemcpyAsync", "delay_us=10000 after=1 times=all");
    let busy = read.read_at_async(bed.device.alloc(MIB / 2).unwrap(), 0);
    held.wait_for(1);
    let mut future = read.read_at_async(target, 0);
    let (sender, woken) = mpsc::channel();
    poll_once(&mut future, move || sender.send(Instant::now()).unwrap());
    // With a hole between them.
    let half = |number: usize| IoRange {
        file_offset: (number * 51 * MIB) as u64,
        buffer_offset: number * 50 * MIB,
        len_bytes: 50 * MIB,
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            held.release();
        });
        written.write_many(&source, &[half(0), half(1)]).unwrap();
    });
    let late = woken.recv().unwrap().elapsed();
    assert!(late > Duration::from_millis(300), "the write went on for {late:?}");
    for (count, _) in [busy.wait(), future.wait()] {
        assert_eq!(count.unwrap(), MIB / 2);
    }
    emulator.control("clear");
    let (found, bytes) = (fs::read(bed.path("written")).unwrap(), source.to_vec().unwrap());
    assert!(found[..50 * MIB] == bytes[..50 * MIB] && found[51 * MIB..] == bytes[50 * MIB..]);
}

#[test]
fn long_writes_do_not_block_other_transfers() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(2 * MIB));
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).build();
    let read = open(&engine, &bed.path("data"));
    let mut target = bed.device.alloc(2 * MIB).unwrap();
    read.read_exact_at(&mut target, 0).unwrap();
    let bytes = pattern(48 * MIB);
    // A hole lies before them, so that the chunks of each are written one after the other.
    let sources = [0; 2].map(|_| {
        let mut source = bed.device.alloc(48 * MIB).unwrap();
        source.copy_from_host(0, &bytes).unwrap();
        source
    });
    emulator.fault("cudaMemcpyAsync", "delay_us=50000 times=all");
    let written = ["one", "two"].map(|name| open(&engine, &bed.path(name)));
    let halves = [0, 24 * MIB].map(|at| IoRange {
        file_offset: (2 * at) as u64,
        buffer_offset: at,
        len_bytes: 24 * MIB,
    });
    let ended = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (file, source) in written.iter().zip(&sources) {
            let ended = &ended;
            scope.spawn(move || {
                file.write_many(source, &halves).unwrap();
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        thread::sleep(Duration::from_millis(100));
        read.read_exact_at(&mut target, 0).unwrap();
        assert_eq!(ended.load(Ordering::SeqCst), 0, "the read waited for writes of 48 pieces, 50 ms each");
    });
    emulator.control("clear");
    assert!(target.to_vec().unwrap() == pattern(2 * MIB));
    for name in ["one", "two"] {
        let found = fs::read(bed.path(name)).unwrap();
        assert!(found[..24 * MIB] == bytes[..24 * MIB] && found[48 * MIB..] == bytes[24 * MIB..], "{name}");
    }
}

#[test]
fn workers_can_drop_the_last_reference_to_another_engine() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(MIB));
    let [one, two] = [0; 2].map(|_| open(&engine(&bed).threads(1).build(), &bed.path("data")));
    let buffers = [0; 2].map(|_| bed.device.alloc(MIB).unwrap());
    let held = bed.emulator.as_ref().unwrap().hold("cudaMemcpyAsync", "times=all");
    let both = Arc::new(Barrier::new(2));
    let (sender, ended) = mpsc::channel();
    let [to_one, to_two] = buffers;
    let mut reading = [one.read_at_async(to_one, 0), two.read_at_async(to_two, 0)];
    for (future, last) in reading.iter_mut().zip([two, one]) {
        let (both, sender) = (both.clone(), sender.clone());
        poll_once(future, move || {
            both.wait();
            // The futures, which refer to the engines too, are dropped before.
            thread::sleep(Duration::from_millis(100));
            drop(last);
            sender.send(()).unwrap();
        });
    }
    held.release();
    for future in reading {
        future.wait().0.unwrap();
    }
    for _ in 0..2 {
        ended.recv_timeout(Duration::from_secs(20)).expect("neither waits for the other");
    }
}

#[test]
fn no_transfer_starves_with_fewer_buffers_than_workers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, pattern(MIB)).unwrap();
    let engine = Engine::builder().threads(2).bounce_memory_bytes(1).build();
    let file = open(&engine, &path);
    let begin = || (Instant::now(), file.read_at_async(vec![0; 300_000], 0));
    let mut under_way: Vec<_> = (0..512).map(|_| begin()).collect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        for one in &mut under_way {
            if one.1.is_done() {
                let (_, future) = mem::replace(one, begin());
                future.wait().0.unwrap();
            }
        }
    }
    let longest = under_way.iter().map(|(begun, _)| begun.elapsed()).max().unwrap();
    // A transfer that is never taken waits from the start.
    assert!(longest < start.elapsed() * 4 / 5, "{longest:?}");
}

#[test]
fn reads_behind_another_are_cut_into_longer_chunks() {
    const LONG: usize = 12 << 20;
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).build();
    let bytes = pattern(LONG);
    fs::write(bed.path("long"), &bytes).unwrap();
    let file = OpenOptions::new().read(true).engine(&engine).open(bed.path("long")).unwrap();
    let read = || file.read_at_async(bed.device.alloc(LONG).unwrap(), 0);
    let copies = |of: &dyn Fn()| {
        let begun = emulator.calls("cudaMemcpyAsync");
        of();
        emulator.calls("cudaMemcpyAsync") - begun
    };
    let alone = copies(&|| drop(read().wait()));
    let two = copies(&|| {
        let held = emulator.hold("cudaMemcpyAsync", "times=all");
        let first = read();
        held.wait_for(1);
        let second = read();
        held.release();
        for (read, buffer) in [first.wait(), second.wait()] {
            assert_eq!(read.unwrap(), LONG);
            assert_eq!(buffer.to_vec().unwrap(), bytes);
        }
    });
    assert!(two < 2 * alone, "{two} copies of two reads, {alone} of one");
    // Reads that were cancelled do not count.
    drop(read());
    let _ = read().cancel();
    soon("a read is alone again", || copies(&|| drop(read().wait())) == alone);
}

#[test]
fn short_cached_reads_end_at_once() {
    const SHORT: usize = 16 << 10;
    let bytes = pattern(4 * SHORT);
    for folder in folders() {
        let path = folder.path().join("data");
        fs::write(&path, &bytes).unwrap();
        let engine = Engine::builder().threads(1).build();
        let file = open(&engine, &path);
        // Other file systems may refuse reads that do not wait.
        let is_in_memory = folder.path().starts_with("/dev/shm");
        for at in 0..50 {
            let read = file.read_at_async(vec![0; 4096], at * 1000);
            assert!(!is_in_memory || read.is_done());
            assert!(!read.buffer_ptr().is_null());
            let (outcome, found) = if at % 2 == 0 { read.wait() } else { read.cancel() };
            let done = outcome.unwrap();
            assert!(done == 4096 || at % 2 == 1 && !is_in_memory);
            assert!(found[..done] == bytes[at as usize * 1000..][..done]);
        }
        if is_in_memory {
            let stats = engine.stats().host;
            assert_eq!((stats.reads, stats.read_bytes), (50, 50 * 4096));
        }
        // Reads that reach the end, and those of bytes that are not in memory, take the usual way.
        let (outcome, found) = file.read_at_async(vec![0; SHORT], 3 * SHORT as u64 + 100).wait();
        assert!(outcome.unwrap() == SHORT - 100 && found[..SHORT - 100] == bytes[3 * SHORT + 100..]);
        let (outcome, _) = file.read_at_async(vec![0; 10], 4 * SHORT as u64 - 9).exact().wait();
        assert_eq!(outcome.unwrap_err().bytes_done(), 9);
        file.sync_all().unwrap();
        page_cache::evict(&file, 0..4 * SHORT as u64).unwrap();
        for at in [0, SHORT, 2 * SHORT] {
            let (outcome, found) = block_on(file.read_at_async(vec![0; SHORT], at as u64));
            assert!(outcome.unwrap() == SHORT && found == bytes[at..][..SHORT]);
        }
    }
}
