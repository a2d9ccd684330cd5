//! Transfers ordered with a stream's work, without cuFile.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cufile_tests::bed::{Bed, pattern};
use gpufile::{Cause, Engine, File, PathPolicy};

/// More than one turn of all slots.
const LONG: usize = (35 << 20) + 4321;

fn open(bed: &Bed, name: &str) -> File {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
    let options = File::options().read(true).write(true).create(true).engine(&engine);
    options.policy(PathPolicy::PosixOnly).open(bed.path(name)).unwrap()
}

#[test]
fn a_read_happens_after_the_streams_work_so_far_and_before_what_comes_later() {
    Bed::each(|bed| {
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
        let source = io.buffer_ptr();
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
    Bed::each(|bed| {
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
    Bed::each(|bed| {
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
fn more_streams_than_the_gpu_has_queues_go_on_beside_other_work() {
    Bed::each(|bed| {
        let bytes = pattern(LONG);
        bed.file("many", &bytes);
        let file = open(bed, "many");
        let streams: Vec<_> = (0..17).map(|_| bed.device.stream().unwrap()).collect();
        for _ in 0..2 {
            let buffers: Vec<_> = streams.iter().map(|_| bed.device.alloc(LONG).unwrap()).collect();
            let read = |(stream, buffer)| file.read_at_on_stream(stream, buffer, 0);
            let all: Vec<_> = streams.iter().zip(buffers).map(read).collect();
            // Allocating and freeing wait for all streams, and keep others from CUDA meanwhile.
            let mut beside = bed.device.alloc(LONG).unwrap();
            file.read_exact_at(&mut beside, 0).unwrap();
            assert!(beside.to_vec().unwrap() == bytes);
            drop(beside);
            let all: Vec<_> = all.into_iter().map(|io| io.wait()).collect();
            for (count, buffer) in all {
                assert_eq!(count.unwrap(), LONG);
                assert!(buffer.to_vec().unwrap() == bytes);
            }
        }
    });
}

#[test]
fn reads_and_writes_of_one_stream_share_its_memory() {
    Bed::each(|bed| {
        let file = open(bed, "copies");
        let stream = bed.device.stream().unwrap();
        let bytes = pattern(LONG);
        let mut buffer = bed.device.alloc(LONG).unwrap();
        buffer.copy_from_host(0, &bytes).unwrap();
        // Each reads what the one before wrote, a little further on.
        let mut all = vec![file.write_all_at_on_stream(&stream, buffer, 0)];
        for turn in 1..6 {
            let read = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), (turn - 1) * 1000);
            let (count, buffer) = read.wait();
            assert_eq!(count.unwrap(), LONG);
            all.push(file.write_all_at_on_stream(&stream, buffer, turn * 1000));
        }
        let mut target = vec![0; LONG];
        let last = file.read_at_on_stream(&stream, vec![0; 100], 5000);
        assert_eq!(last.wait().1, bytes[..100]);
        for io in all {
            assert_eq!(io.wait().0.unwrap(), LONG);
        }
        file.read_exact_at(&mut target, 5000).unwrap();
        assert!(target == bytes);
    });
}

#[test]
fn zeros_lie_behind_the_end_of_the_file() {
    Bed::each(|bed| {
        let bytes = pattern(20_000_000);
        bed.file("zeros", &bytes);
        let file = open(bed, "zeros");
        let stream = bed.device.stream().unwrap();
        for _ in 0..2 {
            let mut buffer = bed.device.alloc(LONG).unwrap();
            buffer.fill(0xee).unwrap();
            let (count, buffer) = file.read_at_on_stream(&stream, buffer, 0).wait();
            assert_eq!(count.unwrap(), bytes.len());
            let found = buffer.to_vec().unwrap();
            assert!(found[..bytes.len()] == bytes && found[bytes.len()..].iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn its_memory_is_freed_on_request() {
    Bed::each(|bed| {
        bed.file("freed", &pattern(LONG));
        let file = open(bed, "freed");
        let stream = bed.device.stream().unwrap();
        let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        assert_eq!(io.wait().0.unwrap(), LONG);
        assert!(file.engine().release_buffers() >= 2 * (8 << 20));

        // The file's side is done before the stream has looked.
        let io = file.write_all_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        while !io.is_done() {
            std::thread::yield_now();
        }
        assert_eq!(file.engine().release_buffers(), 0, "the stream may still use it");
        assert_eq!(io.wait().0.unwrap(), LONG);
        assert!(file.engine().release_buffers() >= 2 * (8 << 20));
        let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        assert_eq!(io.wait().0.unwrap(), LONG);
    });
}

#[test]
fn a_failure_is_reported_where_the_count_goes_and_the_stream_goes_on() {
    Bed::each(|bed| {
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
    Bed::each(|bed| {
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
    let faults = [
        "cudaLaunchHostFunc err=801",
        "cuStreamBatchMemOp_v2 err=801",
        "cuStreamBatchMemOp_v2 after=2 err=801",
        "cudaMemcpyAsync after=2 err=1",
        "cudaHostAlloc err=2",
    ];
    for function in faults {
        file.engine().release_buffers();
        emulator.control(&format!("fault {function}"));
        let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        assert!(io.is_done(), "{function}");
        let (count, buffer) = io.wait();
        assert_eq!(count.unwrap(), LONG);
        assert!(buffer.to_vec().unwrap() == bytes);
    }
    emulator.control("fault cudaMemcpyAsync err=700 times=all");
    let (failed, _) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
    assert!(matches!(failed.unwrap_err().cause(), Cause::Cufile(_)));
}

#[test]
fn a_stream_that_fails_ends_its_transfers() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("failed", &pattern(LONG));
    let file = open(&bed, "failed");
    let stream = bed.device.stream().unwrap();
    for _ in 0..2 {
        emulator.control("fault cudaEventSynchronize err=700");
        let (failed, _) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
        assert!(matches!(failed.unwrap_err().cause(), Cause::Cufile(_)));
        let (count, _) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
        assert_eq!(count.unwrap(), LONG);
    }
}
