//! Tests of transfers ordered with a stream's work, without cuFile.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::polling::poll_once;
use cufile::cuda::WordOperation;
use cufile::{FileProperties, IoBufMut};
use gpufile::{Cause, DirectIo, Engine, Error, File, RoutePolicy};
use testkit::bed::{Bed, folders, pattern};
use testkit::in_flight::{Gate, block_on};

const MIB: usize = 1 << 20;
/// A length of more than one turn of all slots.
const LONG: usize = (35 << 20) + 4321;

fn open(bed: &Bed, name: &str) -> File {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
    let options = File::options().read(true).write(true).create(true).engine(&engine);
    options.policy(RoutePolicy::PosixOnly).open(bed.path(name)).unwrap()
}

#[test]
fn reads_keep_their_place_in_stream_order() {
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
fn reads_see_file_changes_by_earlier_stream_work() {
    Bed::each(|bed| {
        bed.file("changed", &[1; 10_000]);
        let file = open(bed, "changed");
        let stream = bed.device.stream().unwrap();
        let path = bed.path("changed");
        let change = move || {
            std::thread::sleep(Duration::from_millis(20));
            fs::write(path, [2; 10_000]).unwrap();
        };
        stream.call_on_host(change).unwrap();
        let (count, buffer) = file.read_at_on_stream(&stream, vec![0; 10_000], 0).wait();
        assert_eq!(count.unwrap(), 10_000);
        assert!(buffer == [2; 10_000]);
    });
}

#[test]
fn writes_see_memory_changes_by_earlier_stream_work() {
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
fn operations_of_one_stream_run_in_order() {
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
fn more_streams_than_hardware_queues_do_not_deadlock() {
    Bed::each(|bed| {
        let bytes = pattern(LONG);
        bed.file("many", &bytes);
        let file = open(bed, "many");
        let streams: Vec<_> = (0..17).map(|_| bed.device.stream().unwrap()).collect();
        for _ in 0..2 {
            let buffers: Vec<_> = streams.iter().map(|_| bed.device.alloc(LONG).unwrap()).collect();
            let read = |(stream, buffer)| file.read_at_on_stream(stream, buffer, 0);
            let all: Vec<_> = streams.iter().zip(buffers).map(read).collect();
            // Allocating and freeing wait for all streams, and keep other threads from CUDA until then.
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
fn reads_and_writes_of_one_stream_interleave() {
    Bed::each(|bed| {
        let file = open(bed, "copies");
        let stream = bed.device.stream().unwrap();
        let bytes = pattern(LONG);
        let mut buffer = bed.device.alloc(LONG).unwrap();
        buffer.copy_from_host(0, &bytes).unwrap();
        // Each reads the bytes that the one before wrote, a little further on.
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
fn reads_fill_zeros_behind_the_end_of_file() {
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
fn release_buffers_frees_bounce_buffers_of_streams() {
    let bed = Bed::emulated();
    for folder in folders() {
        let path = folder.path().join("bounced");
        fs::write(&path, pattern(3 * MIB)).unwrap();
        if FileProperties::of(fs::File::open(&path).unwrap()).unwrap().direct_io.is_none() {
            eprintln!("skipped: no O_DIRECT in {}", folder.path().display());
            continue;
        }
        let released = [DirectIo::Never, DirectIo::Always].map(|direct_read| {
            let engine = Engine::builder().driver(bed.driver.clone()).threads(2).build();
            let options = File::options().read(true).engine(&engine).direct_read(direct_read);
            let file = options.policy(RoutePolicy::PosixOnly).open(&path).unwrap();
            let stream = bed.device.stream().unwrap();
            // An unaligned range goes through a bounce buffer on its way to the ring.
            let (count, _) = file.read_at_on_stream(&stream, bed.device.alloc(MIB).unwrap(), 77).wait();
            assert_eq!(count.unwrap(), MIB);
            engine.release_buffers()
        });
        assert!(released[1] > released[0] + MIB, "{released:?} in {}", folder.path().display());
    }
}

#[test]
fn release_buffers_frees_the_memory_of_streams() {
    Bed::each(|bed| {
        bed.file("freed", &pattern(LONG));
        let file = open(bed, "freed");
        let stream = bed.device.stream().unwrap();
        let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        assert_eq!(io.wait().0.unwrap(), LONG);
        assert!(file.engine().release_buffers() >= 2 * (8 << 20));

        // The file's side is done before the stream reads the word.
        let io = file.write_all_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        while !io.is_done() {
            std::thread::yield_now();
        }
        // The call frees only the plans of its parts.
        assert!(file.engine().release_buffers() < 64 * 1024, "the stream may still use it");
        assert_eq!(io.wait().0.unwrap(), LONG);
        assert!(file.engine().release_buffers() >= 2 * (8 << 20));
        let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        assert_eq!(io.wait().0.unwrap(), LONG);
    });
}

#[test]
fn stream_memory_is_limited_and_reused() {
    const STREAMS: usize = 26;
    const LIMIT: i64 = 400 << 20;
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(4 * MIB);
    bed.file("data", &bytes);
    let file = open(&bed, "data");
    let streams: Vec<_> = (0..STREAMS).map(|_| bed.device.stream().unwrap()).collect();
    let mut counts = Vec::new();
    for _ in 0..2 {
        let before = emulator.calls("cuStreamBatchMemOp_v2");
        // Each stream has two slots of 8 MiB, up to the limit of streams. The calls of other streams wait.
        let all: Vec<_> = streams
            .iter()
            .map(|stream| file.read_at_on_stream(stream, bed.device.alloc(4 * MIB).unwrap(), 0))
            .collect();
        counts.push(emulator.calls("cuStreamBatchMemOp_v2") - before);
        for io in all {
            let (count, buffer) = io.wait();
            assert_eq!(count.unwrap(), 4 * MIB);
            assert!(buffer.to_vec().unwrap() == bytes);
        }
        // The memory of the rings stays. Only workers of transfers that did not fit have bounce buffers.
        let bounce_bytes = 3 * 2 * (5 << 20);
        let pinned = emulator.live("pinned-bytes");
        assert!(pinned > LIMIT / 2 && pinned <= LIMIT + bounce_bytes, "{pinned} bytes");
        assert!(file.engine().release_buffers() as i64 >= LIMIT - (17 << 20));
    }
    assert_eq!(counts[0], counts[1], "what was freed is there again");
    assert!(counts[0] > 0);

    // An idle ring of another length makes room.
    for len in [4 * MIB, MIB] {
        for stream in &streams {
            let io = file.read_at_on_stream(stream, bed.device.alloc(len).unwrap(), 0);
            assert_eq!(io.wait().0.unwrap(), len);
        }
    }
    assert!(emulator.live("pinned-bytes") <= LIMIT + 3 * 2 * (5 << 20));
}

#[test]
fn the_stream_continues_after_a_failed_transfer() {
    Bed::each(|bed| {
        bed.file("short", &pattern(1000));
        let file = open(bed, "short");
        let stream = bed.device.stream().unwrap();
        let [one, two, three] = [LONG, 16, 16].map(|len| bed.device.alloc(len).unwrap());
        let short = file.read_at_on_stream(&stream, one, 0);
        let beyond = file.read_at_on_stream(&stream, two, u64::MAX - 3);
        let read_only = File::options().read(true).engine(file.engine()).policy(RoutePolicy::PosixOnly);
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
fn a_held_stream_wakes_the_task_that_awaits() {
    Bed::each(|bed| {
        let bytes = pattern(LONG);
        bed.file("awaited", &bytes);
        let file = open(bed, "awaited");
        let stream = bed.device.stream().unwrap();
        let gate = Gate::close(&stream);
        let mut read = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        // The last waker is woken, not the others.
        for _ in 0..3 {
            poll_once(&mut read, || panic!("a later waker replaced this one"));
        }
        let (woken, is_woken) = std::sync::mpsc::channel();
        poll_once(&mut read, move || woken.send(()).unwrap());
        assert!(is_woken.try_recv().is_err(), "the stream has not come to it");
        gate.open();
        is_woken.recv().unwrap();
        let (count, buffer) = block_on(read);
        assert_eq!(count.unwrap(), LONG);
        assert!(buffer.to_vec().unwrap() == bytes);
        // One that no stream waits for is ready at once.
        let (count, _) = block_on(file.read_at_on_stream(&stream, vec![0; 0], 0));
        assert_eq!(count.unwrap(), 0);
    });
}

#[test]
fn exact_transfers_fail_at_the_end_of_the_file() {
    Bed::each(|bed| {
        bed.file("exact", &pattern(1000));
        let file = open(bed, "exact");
        let stream = bed.device.stream().unwrap();
        let memory = |len| bed.device.alloc(len).unwrap();
        let is_end = |error: Error, done| {
            assert!(matches!(error.cause(), Cause::EndOfFile { at: 1000 }), "{error}");
            assert_eq!(error.bytes_done(), done, "{error}");
        };
        is_end(file.read_at_async(memory(2000), 0).exact().wait().0.unwrap_err(), 1000);
        is_end(block_on(file.read_at_async(vec![0; 20], 990).exact()).0.unwrap_err(), 10);
        is_end(file.read_at_on_stream(&stream, memory(LONG), 0).exact().wait().0.unwrap_err(), 1000);
        is_end(block_on(file.read_at_on_stream(&stream, memory(20), 990).exact()).0.unwrap_err(), 10);
        is_end(file.read_at_on_stream(&stream, vec![0; 20], 1000).exact().wait().0.unwrap_err(), 0);
        // Whole ranges succeed, and a read that was cancelled may be short.
        assert_eq!(file.read_at_async(memory(1000), 0).exact().wait().0.unwrap(), 1000);
        assert_eq!(file.read_at_on_stream(&stream, memory(1000), 0).exact().wait().0.unwrap(), 1000);
        assert_eq!(file.write_all_at_async(vec![1; 1000], 0).exact().wait().0.unwrap(), 1000);
        assert!(file.read_at_async(vec![0; 10], 995).exact().cancel().0.unwrap() <= 5);
    });
}

#[test]
fn a_failed_stream_wakes_the_task_that_awaits() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("failed", &pattern(LONG));
    let file = open(&bed, "failed");
    let stream = bed.device.stream().unwrap();
    emulator.control("fault cudaEventSynchronize err=700 times=all");
    emulator.control("fault cudaEventQuery err=700 times=all");
    let (failed, _) = block_on(file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0));
    assert!(matches!(failed.unwrap_err().cause(), Cause::Cufile(_)));
}

#[test]
fn drop_waits_and_forget_is_safe() {
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
fn calls_block_if_the_stream_cannot_wait() {
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
        // Pinned memory is refused only if both ways to it are.
        if function.starts_with("cudaHostAlloc") {
            emulator.fault("cudaHostRegister", "err=2");
        }
        emulator.control(&format!("fault {function}"));
        let mut buffer = bed.device.alloc(LONG).unwrap();
        buffer.fill(0xee).unwrap();
        let io = file.read_at_on_stream(&stream, buffer, 1000);
        assert!(io.is_done(), "{function}");
        let (count, buffer) = io.wait();
        assert_eq!(count.unwrap(), LONG - 1000);
        assert!(buffer.to_vec().unwrap() == [&bytes[1000..], &[0; 1000]].concat());
    }
    emulator.control("fault cudaMemcpyAsync err=700 times=all");
    let (failed, _) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
    assert!(matches!(failed.unwrap_err().cause(), Cause::Cufile(_)));
}

#[test]
fn a_failed_stream_ends_its_transfers() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("failed", &pattern(LONG));
    let file = open(&bed, "failed");
    let stream = bed.device.stream().unwrap();
    for _ in 0..2 {
        emulator.control("fault cudaEventSynchronize err=700");
        emulator.control("fault cudaEventQuery err=700");
        let (failed, _) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
        assert!(matches!(failed.unwrap_err().cause(), Cause::Cufile(_)));
        let (count, _) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
        assert_eq!(count.unwrap(), LONG);
    }
}

/// Checks the end of a transfer whose stream has earlier work, when the submission of a later transfer fails.
fn beside_one_that_cannot_be_submitted(direction: Direction, fault: &str) {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(LONG);
    bed.file("data", &bytes);
    let (file, written, other) = (open(&bed, "data"), open(&bed, "written"), open(&bed, "other"));
    let stream = bed.device.stream().unwrap();
    // This makes the ring, which both share.
    let [mut buffer, first, second] = [0; 3].map(|_| bed.device.alloc(LONG).unwrap());
    file.read_at_on_stream(&stream, first, 0).wait().0.unwrap();
    let gate = Gate::close(&stream);
    let first = match direction {
        Direction::Read => {
            buffer.fill(0xee).unwrap();
            file.read_at_on_stream(&stream, buffer, 0)
        }
        Direction::Write => {
            buffer.copy_from_host(0, &bytes).unwrap();
            written.write_all_at_on_stream(&stream, buffer, 0)
        }
    };
    emulator.control(&format!("fault {fault}"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            gate.open();
        });
        let second = other.write_all_at_on_stream(&stream, second, 0);
        assert_eq!(second.wait().0.unwrap(), LONG, "{fault}");
    });
    let (count, buffer) = first.wait();
    assert_eq!(count.unwrap(), LONG, "{fault}");
    let right = match direction {
        Direction::Read => buffer.to_vec().unwrap() == bytes,
        Direction::Write => fs::read(bed.path("written")).unwrap() == bytes,
    };
    assert!(right, "{fault}");
    // The stream goes on.
    assert_eq!(file.read_at_on_stream(&stream, buffer, 0).wait().0.unwrap(), LONG, "{fault}");
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

#[test]
fn failed_submissions_do_not_affect_earlier_transfers() {
    for direction in [Direction::Read, Direction::Write] {
        for fault in [
            "cudaLaunchHostFunc err=2",
            "cudaMemcpyAsync after=2 err=2",
            "cuStreamBatchMemOp_v2 after=3 err=2",
        ] {
            beside_one_that_cannot_be_submitted(direction, fault);
        }
    }
}

#[test]
fn transfers_finish_although_waiting_for_the_event_fails() {
    let bed = Bed::emulated();
    let bytes = pattern(3 << 20);
    bed.file("data", &bytes);
    let file = open(&bed, "data");
    let stream = bed.device.stream().unwrap();
    let gate = Gate::close(&stream);
    let [first, second, third] = [0, 1, 2].map(|turn| {
        let mut buffer = bed.device.alloc(100_000).unwrap();
        buffer.fill(0xee).unwrap();
        file.read_at_on_stream(&stream, buffer, turn * 1_000_000)
    });
    bed.emulator.as_ref().unwrap().control("fault cudaEventSynchronize err=900");
    let third = std::thread::spawn(move || third.wait());
    std::thread::sleep(Duration::from_millis(50));
    gate.open();
    for (io, start) in [(first.wait(), 0), (second.wait(), 1_000_000), (third.join().unwrap(), 2_000_000)] {
        assert_eq!(io.0.unwrap(), 100_000);
        assert!(io.1.to_vec().unwrap() == bytes[start..start + 100_000]);
    }
}

#[test]
fn transfers_of_a_failed_stream_are_done() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(4096));
    let file = open(&bed, "data");
    let stream = bed.device.stream().unwrap();
    let gate = Gate::close(&stream);
    let io = file.read_at_on_stream(&stream, bed.device.alloc(4096).unwrap(), 0);
    assert!(!io.is_done());
    for function in ["cudaEventQuery", "cudaEventSynchronize"] {
        emulator.control(&format!("fault {function} err=700 times=all"));
    }
    assert!(io.is_done());
    gate.open();
    assert!(io.wait().0.is_err());
}

#[test]
fn captured_streams_are_refused() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(4096));
    let file = open(&bed, "data");
    let stream = bed.device.stream().unwrap();
    for fault in ["status=1", "err=906"] {
        emulator.control(&format!("fault cudaStreamIsCapturing {fault} times=all"));
        assert!(
            stream.call_on_host(|| unreachable!("it would be called more than once")).is_err(),
            "{fault}"
        );
        let before = emulator.calls("cudaStreamSynchronize");
        let (count, _) = file.read_at_on_stream(&stream, bed.device.alloc(4096).unwrap(), 0).wait();
        assert!(count.is_err(), "{fault}");
        assert_eq!(emulator.calls("cudaStreamSynchronize"), before, "that would end the capture");
        emulator.control("clear");
    }
    assert_eq!(file.read_at_on_stream(&stream, bed.device.alloc(4096).unwrap(), 0).wait().0.unwrap(), 4096);
}

#[test]
fn word_operations_are_limited_to_the_cuda_maximum() {
    Bed::each(|bed| {
        let stream = bed.device.stream().unwrap();
        let mut words = bed.device.alloc_pinned(4096).unwrap();
        let word = words.as_mut_ptr().cast::<u32>();
        for (count, fits) in [(255, true), (256, false)] {
            let operations = vec![WordOperation::Write(word, count); count as usize];
            // SAFETY: the word stays until the stream has been waited for.
            let submitted = unsafe { stream.on_words(&operations) };
            stream.synchronize().unwrap();
            assert_eq!(submitted.is_ok(), fits, "{count}");
        }
    });
}
