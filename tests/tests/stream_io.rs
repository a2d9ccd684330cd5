//! Transfers ordered with a stream's work, without cuFile.
//!
//! While a stream is held back, nothing here frees or allocates memory of the GPU, in no thread: that waits for all
//! streams and keeps the workers from CUDA meanwhile (see `gpufile::File::read_at_on_stream`).

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cufile_tests::bed::{Bed, pattern};
use gpufile::{Cause, Engine, File, HELD_STREAMS, PathPolicy};

/// More than one chunk.
const LONG: usize = (9 << 20) + 4321;

/// Runs the test on each bed, one test at a time.
fn each(test: impl Fn(&Bed)) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Bed::each(test);
}

fn open(bed: &Bed, name: &str) -> File {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
    let options = File::options().read(true).write(true).create(true).engine(&engine);
    options.policy(PathPolicy::PosixOnly).open(bed.path(name)).unwrap()
}

#[test]
fn a_read_happens_after_the_streams_work_so_far_and_before_what_comes_later() {
    each(|bed| {
        let bytes = pattern(LONG);
        bed.file("ordered", &bytes);
        let file = open(bed, "ordered");
        let stream = bed.device.stream().unwrap();
        let target = bed.device.alloc(LONG).unwrap();
        let mut after = bed.device.alloc_pinned(LONG).unwrap();
        let may_begin = Arc::new(AtomicBool::new(false));
        let gate = may_begin.clone();
        stream
            .call_on_host(move || {
                while !gate.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
            .unwrap();
        let io = file.read_at_on_stream(&stream, target, 0);
        let source = io.buffer().as_ptr();
        // SAFETY: both live until the stream has been waited for.
        unsafe { stream.copy_from_device(&mut after, source) }.unwrap();
        assert!(!io.is_done(), "the stream has not come to it");
        may_begin.store(true, Ordering::Release);
        stream.synchronize().unwrap();
        assert!(*after == *bytes, "later work of the stream sees what was read");
        let (count, buffer) = io.wait();
        assert_eq!(count.unwrap(), LONG);
        assert!(buffer.to_vec().unwrap() == bytes);
    });
}

#[test]
fn a_write_takes_what_the_streams_work_before_it_left() {
    each(|bed| {
        let bytes = pattern(LONG);
        let file = open(bed, "written");
        let stream = bed.device.stream().unwrap();
        let mut source = bed.device.alloc_pinned(LONG).unwrap();
        source.copy_from_slice(&bytes);
        let mut buffer = bed.device.alloc(LONG).unwrap();
        // SAFETY: both live until the stream has been waited for.
        unsafe { stream.copy_to_device(buffer.as_mut_ptr(), &source) }.unwrap();
        let (count, _) = file.write_all_at_on_stream(&stream, buffer, 77).wait();
        assert_eq!(count.unwrap(), LONG);
        assert!(fs::read(bed.path("written")).unwrap()[77..] == bytes);
    });
}

#[test]
fn operations_of_one_stream_follow_each_other() {
    each(|bed| {
        let file = open(bed, "follow");
        let stream = bed.device.stream().unwrap();
        let filled = |turn| {
            let mut buffer = bed.device.alloc(100_000).unwrap();
            buffer.fill(turn).unwrap();
            buffer
        };
        let buffers: Vec<_> = (0..20).map(filled).collect();
        let target = filled(0xee);
        let write = |buffer| file.write_all_at_on_stream(&stream, buffer, 0);
        let all: Vec<_> = buffers.into_iter().map(write).collect();
        let last = file.read_at_on_stream(&stream, target, 0);
        let (count, buffer) = last.wait();
        assert_eq!(count.unwrap(), 100_000);
        assert!(buffer.to_vec().unwrap() == [19; 100_000]);
        assert!(all.iter().all(|io| io.is_done()));
    });
}

#[test]
fn more_streams_than_can_be_held_back_are_served_too() {
    each(|bed| {
        let bytes = pattern(LONG);
        bed.file("many", &bytes);
        let file = open(bed, "many");
        let streams: Vec<_> = (0..3 * HELD_STREAMS + 8).map(|_| bed.device.stream().unwrap()).collect();
        for _ in 0..3 {
            let buffers: Vec<_> = streams.iter().map(|_| bed.device.alloc(LONG).unwrap()).collect();
            let read = |(stream, buffer)| file.read_at_on_stream(stream, buffer, 0);
            let all: Vec<_> = streams.iter().zip(buffers).map(read).collect();
            let all: Vec<_> = all.into_iter().map(|io| io.wait()).collect();
            for (count, buffer) in all {
                assert_eq!(count.unwrap(), LONG);
                assert!(buffer.to_vec().unwrap() == bytes);
            }
        }
    });
}

#[test]
fn a_failure_is_reported_where_the_count_goes_and_the_stream_goes_on() {
    each(|bed| {
        bed.file("short", &pattern(1000));
        let file = open(bed, "short");
        let stream = bed.device.stream().unwrap();
        let [one, two, three] = [LONG, 16, 16].map(|len| bed.device.alloc(len).unwrap());
        let short = file.read_at_on_stream(&stream, one, 0);
        let beyond = file.read_at_on_stream(&stream, two, u64::MAX - 3);
        let read_only = File::options().read(true).engine(file.engine()).policy(PathPolicy::PosixOnly);
        let read_only = read_only.open(bed.path("short")).unwrap();
        let refused = read_only.write_all_at_on_stream(&stream, three, 0);
        let (short, beyond, refused) = (short.wait(), beyond.wait(), refused.wait());
        assert_eq!(short.0.unwrap(), 1000, "short at the end of the file");
        assert_eq!(beyond.0.unwrap_err().raw_os_error(), Some(libc::EOVERFLOW));
        assert_eq!(refused.0.unwrap_err().raw_os_error(), Some(libc::EBADF));
        stream.synchronize().unwrap();
    });
}

#[test]
fn dropping_it_waits_and_forgetting_it_is_no_harm() {
    each(|bed| {
        let bytes = pattern(LONG);
        bed.file("dropped", &bytes);
        let file = open(bed, "dropped");
        let stream = bed.device.stream().unwrap();
        drop(file.write_all_at_on_stream(&stream, bytes.clone(), 5));
        assert!(fs::read(bed.path("dropped")).unwrap()[5..] == bytes);
        std::mem::forget(file.read_at_on_stream(&stream, bed.device.alloc(4096).unwrap(), 0));
        stream.synchronize().unwrap();
    });
}

#[test]
fn where_the_driver_cannot_hold_a_stream_back_the_call_waits() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(LONG);
    bed.file("held", &bytes);
    let file = open(&bed, "held");
    let stream = bed.device.stream().unwrap();
    for function in ["cuStreamWaitValue32_v2", "cudaLaunchHostFunc"] {
        emulator.control(&format!("fault {function} err=801"));
        let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        assert!(io.is_done(), "{function}");
        let (count, buffer) = io.wait();
        assert_eq!(count.unwrap(), LONG);
        assert!(buffer.to_vec().unwrap() == bytes);
    }
    emulator.control("fault cudaMemcpyAsync err=700");
    let (failed, _) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
    assert!(matches!(failed.unwrap_err().cause(), Cause::Cufile(_)));
}
