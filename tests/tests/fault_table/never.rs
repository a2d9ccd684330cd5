//! Tests of calls on a transfer that never ends, and of the objects that it keeps alive.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use cufile::{Batch, Entry};
use gpufile::RoutePolicy;
use testkit::bed::pattern;

use super::Stage;
use super::engine;
use super::scenarios::{ENTRIES, LEN, buffers, register, stream_of};

fn held(stage: &Stage) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while stage.emulator().control("held") == 0 {
        assert!(Instant::now() < deadline, "nothing is held");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn settled(stage: &Stage, before: &std::collections::BTreeMap<&str, i64>) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while stage.live() != *before {
        assert!(Instant::now() < deadline, "{:?} rather than {before:?}", stage.live());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn polling_a_batch_returns_although_an_entry_never_ends() {
    let stage = Stage::new(true);
    let live = stage.live();
    let bytes = pattern(ENTRIES * LEN);
    let handle = register(&stage, &bytes).unwrap();
    let mut batch = Batch::new(&stage.bed().driver, ENTRIES).unwrap();
    let entry = |(index, buffer)| Entry::read(&handle, buffer, (index * LEN) as u64);
    let entries = buffers(&stage, &bytes).unwrap().into_iter().enumerate().map(entry);
    stage.emulator().fault("batch-entry", "after=1 hold=1");
    batch.submit(entries).unwrap();
    held(&stage);
    let mut ended = 0;
    for _ in 0..3 {
        ended += batch.poll(ENTRIES, ENTRIES, Some(Duration::from_millis(10))).unwrap().len();
    }
    assert_eq!((ended, batch.in_flight()), (1, ENTRIES - 1));
    assert_eq!(batch.wait_all_timeout(Duration::from_millis(10)).unwrap().len(), 0);
    stage.emulator().control("release");
    assert_eq!(batch.wait_all_timeout(Duration::from_secs(20)).unwrap().len(), ENTRIES - 1);
    assert_eq!(
        batch.wait_all_timeout(Duration::from_secs(20)).unwrap().len(),
        0,
        "nothing is left to wait for"
    );
    drop((batch, handle));
    settled(&stage, &live);
}

#[test]
fn asking_a_stream_returns_although_a_transfer_never_ends() {
    let stage = Stage::new(true);
    let live = stage.live();
    let handle = register(&stage, &pattern(LEN)).unwrap();
    let stream = stream_of(&stage).unwrap();
    stage.emulator().fault("cuFileReadAsync", "hold=1");
    let operation = stream.read_at(&handle, stage.bed().device.alloc(LEN).unwrap(), 0).unwrap();
    held(&stage);
    assert!(!operation.is_done().unwrap() && !stream.stream().is_idle().unwrap());
    let start = Instant::now();
    assert!(!operation.wait_timeout(Duration::from_millis(20)).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20));
    stage.emulator().control("release");
    assert!(operation.wait_timeout(Duration::from_secs(20)).unwrap());
    let (read, buffer) = operation.wait().unwrap();
    assert!(read == LEN && buffer.to_vec().unwrap() == pattern(LEN));
    drop((buffer, stream, handle));
    settled(&stage, &live);
}

#[test]
fn a_dropped_future_returns_although_its_transfer_never_ends() {
    let stage = Stage::new(true);
    let live = stage.live();
    for (function, policy) in
        [("cuFileRead", RoutePolicy::RequireCufile), ("cudaMemcpyAsync", RoutePolicy::PosixOnly)]
    {
        let file = engine::open(&stage, &pattern(engine::LEN), policy).unwrap();
        let buffer = stage.bed().device.alloc(engine::LEN).unwrap();
        let allocations = stage.emulator().live("allocations");
        stage.emulator().fault(function, "hold=1");
        let future = file.read_at_async(buffer, 0);
        held(&stage);
        assert!(!future.is_done());
        drop(future);
        assert!(stage.emulator().live("allocations") >= allocations, "the transfer may still write");
        stage.emulator().control("release");
        drop(file);
        settled(&stage, &live);
    }
}

/// Drops the owner of a transfer that never ends, within some 30 seconds.
fn drops_in_time(pending: impl Sized) {
    let start = Instant::now();
    drop(pending);
    let waited = start.elapsed();
    assert!((20..60).contains(&waited.as_secs()), "dropped after {waited:?}");
}

/// Expects that the buffer is never freed.
fn drops_in_time_and_leaks(stage: &Stage, transfer: impl Sized) {
    held(stage);
    let allocations = stage.emulator().live("allocations");
    drops_in_time(transfer);
    assert_eq!(stage.emulator().live("allocations"), allocations, "the transfer may still write");
    stage.emulator().control("release");
    while stage.emulator().control("held") > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(stage.emulator().live("allocations"), allocations, "nobody knows that the transfer is over");
}

#[test]
fn dropping_returns_although_a_transfer_never_ends() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stage = Stage::new(true);
            let handle = register(&stage, &pattern(LEN)).unwrap();
            let mut batch = Batch::new(&stage.bed().driver, 1).unwrap();
            let buffer = stage.bed().device.alloc(LEN).unwrap();
            stage.emulator().fault("batch-entry", "hold=1");
            batch.submit([Entry::read(&handle, buffer, 0)]).unwrap();
            drops_in_time_and_leaks(&stage, batch);
        });
        scope.spawn(|| {
            let stage = Stage::new(true);
            let handle = register(&stage, &pattern(LEN)).unwrap();
            let stream = stream_of(&stage).unwrap();
            let buffer = stage.bed().device.alloc(LEN).unwrap();
            stage.emulator().fault("cuFileReadAsync", "hold=1");
            let operation = stream.read_at(&handle, buffer, 0).unwrap();
            drops_in_time_and_leaks(&stage, operation);
        });
        scope.spawn(|| {
            let stage = Stage::new(true);
            let live = stage.live();
            let stream = stream_of(&stage).unwrap();
            let (end, ended) = mpsc::channel::<()>();
            stream.stream().call_on_host(move || ended.recv().unwrap_or_default()).unwrap();
            drops_in_time(stream);
            assert_eq!(stage.emulator().live("stream-registrations"), 1, "deregistering would wait");
            drop(end);
            // The next dropped one takes it along when it is idle.
            let deadline = Instant::now() + Duration::from_secs(20);
            while stage.live() != live {
                assert!(Instant::now() < deadline, "{:?} rather than {live:?}", stage.live());
                drop(stream_of(&stage).unwrap());
            }
        });
        scope.spawn(|| {
            let stage = Stage::new(true);
            let file = engine::open(&stage, &pattern(engine::LEN), RoutePolicy::PosixOnly).unwrap();
            let stream = stage.bed().device.stream().unwrap();
            let buffer = stage.bed().device.alloc(engine::LEN).unwrap();
            stage.emulator().fault("cudaMemcpyAsync", "hold=1");
            let reading = file.read_at_on_stream(&stream, buffer, 0);
            drops_in_time_and_leaks(&stage, reading);
        });
    });
}
