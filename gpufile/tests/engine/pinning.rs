//! Tests of transfers whose host memory cannot be pinned, and of a GPU that others reset.

use std::thread;
use std::time::{Duration, Instant};

use cufile::cuda::DeviceBuffer;
use gpufile::{Cause, Engine, File, IoRange, Route, RoutePolicy};
use testkit::Emulator;
use testkit::bed::{Bed, pattern};

const LEN: usize = (3 << 20) + 777;

fn open(bed: &Bed, name: &str) -> File {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(2).bounce_buffer_bytes(1 << 20).build();
    let options = File::options().read(true).write(true).create(true).policy(RoutePolicy::PosixOnly);
    options.engine(&engine).open(bed.path(name)).unwrap()
}

fn refuse_pinning(emulator: &Emulator, settings: &str) {
    for function in ["cudaHostAlloc", "cudaHostRegister"] {
        emulator.fault(function, &format!("err=2 {settings}"));
    }
}

fn transfers_work(bed: &Bed, file: &File, bytes: &[u8]) {
    let written = open(bed, "written");
    let holds = |device: &DeviceBuffer| device.to_vec().unwrap() == bytes;
    let fresh = || bed.device.alloc(LEN).unwrap();
    let mut device = fresh();
    file.read_exact_at(&mut device, 0).unwrap();
    assert!(holds(&device));
    written.write_all_at(&device, 0).unwrap();
    assert!(std::fs::read(written.path()).unwrap() == bytes);
    let mut small = bed.device.alloc(1000).unwrap();
    file.read_exact_at(&mut small, 7).unwrap();
    assert!(small.to_vec().unwrap() == bytes[7..1007]);
    // Kernels put scattered ranges in place, and collect them.
    let ranges: Vec<_> = (0..LEN / 512)
        .map(|at| IoRange {
            file_offset: at as u64 * 512,
            buffer_offset: (LEN / 512 - 1 - at) * 512,
            len_bytes: 511,
        })
        .collect();
    let mut scattered = fresh();
    file.read_many(&mut scattered, &ranges).unwrap();
    let found = scattered.to_vec().unwrap();
    written.set_len(0).unwrap();
    written.write_many(&scattered, &ranges).unwrap();
    let written = std::fs::read(written.path()).unwrap();
    for IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        let expected = &bytes[file_offset as usize..][..len_bytes];
        assert!(
            found[buffer_offset..].starts_with(expected)
                && written[file_offset as usize..].starts_with(expected)
        );
    }
    let stream = bed.device.stream().unwrap();
    let (count, device) = file.read_at_on_stream(&stream, fresh(), 0).wait();
    assert!(count.unwrap() == LEN && holds(&device));
}

#[test]
fn transfers_work_without_pinned_memory() {
    let bytes = pattern(LEN);
    // Always, at first, and after some buffers were pinned.
    for (fault, is_always) in [("times=all", true), ("times=1", false), ("after=2 times=all", false)] {
        let bed = Bed::emulated();
        let emulator: &Emulator = bed.emulator.as_ref().unwrap();
        bed.file("data", &bytes);
        let file = open(&bed, "data");
        assert_eq!(file.route().why_not_pinned(), None);
        refuse_pinning(emulator, fault);
        transfers_work(&bed, &file, &bytes);
        assert_eq!(emulator.live("pinned-bytes") == 0, is_always, "{fault}");
        for route in [file.route(), &Route::best(file.engine())] {
            let text = route.to_string();
            assert!(route.why_not_pinned().unwrap().contains("cudaHostAlloc"), "{text}");
            assert!(text.contains("not all pinned") && text.contains("cudaHostAlloc"), "{text}");
        }
        // Buffers are pinned again when the engine allocates new ones.
        emulator.control("clear");
        file.engine().release_buffers();
        transfers_work(&bed, &file, &bytes);
        assert!(emulator.live("pinned-bytes") > 0);
    }
}

#[test]
fn stream_transfers_without_a_ring_note_the_reason() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(LEN));
    let file = open(&bed, "data");
    let emulator = bed.emulator.as_ref().unwrap();
    refuse_pinning(emulator, "");
    let stream = bed.device.stream().unwrap();
    let (count, device) = file.read_at_on_stream(&stream, bed.device.alloc(LEN).unwrap(), 0).wait();
    assert!(count.unwrap() == LEN && device.to_vec().unwrap() == pattern(LEN));
    assert!(file.route().why_not_pinned().unwrap().contains("cudaHostAlloc"));
}

#[test]
fn transfers_work_again_after_others_reset_the_gpu() {
    let bed = Bed::emulated();
    let bytes = pattern(LEN);
    bed.file("data", &bytes);
    let file = open(&bed, "data");
    let mut before = bed.device.alloc(LEN).unwrap();
    let mut small = bed.device.alloc(1000).unwrap();
    for _ in 0..2 {
        transfers_work(&bed, &file, &bytes);
        // SAFETY: nothing is in flight.
        unsafe { bed.reset() };
        // The reset freed these buffers, so CUDA refuses the copies. The engine's buffers are not at fault.
        for buffer in [&mut small, &mut before] {
            let error = file.read_at(buffer, 0).unwrap_err();
            assert!(matches!(error.cause(), Cause::Cufile(_)), "{error}");
            assert!(!error.to_string().contains("address"), "{error}");
        }
    }
    transfers_work(&bed, &file, &bytes);
    std::mem::forget((before, small));
}

/// Returns whether one worker copies the other chunks while two workers pin their buffers.
fn goes_on_beside_pinning() -> bool {
    const CHUNK: usize = 2 << 20;
    const CHUNKS: usize = 16;
    let bed = Bed::emulated();
    let emulator: &Emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(CHUNK * CHUNKS));
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).bounce_buffer_bytes(CHUNK);
    let engine = engine.chunk_bytes(CHUNK).build();
    let file = File::options()
        .read(true)
        .policy(RoutePolicy::PosixOnly)
        .engine(&engine)
        .open(bed.path("data"))
        .unwrap();
    let mut device = bed.device.alloc(CHUNK * CHUNKS).unwrap();
    let held = emulator.hold("cudaHostRegister", "after=1 times=all");
    let has_gone_on = thread::scope(|scope| {
        let reading = scope.spawn(|| file.read_exact_at(&mut device, 0).unwrap());
        held.wait_for(1);
        let has_gone_on = || emulator.calls("cudaMemcpyAsync") == CHUNKS as i64 - 2;
        let start = Instant::now();
        while !has_gone_on() && start.elapsed() < Duration::from_secs(1) {
            thread::sleep(Duration::from_millis(1));
        }
        let has_gone_on = has_gone_on();
        held.release();
        reading.join().unwrap();
        has_gone_on
    });
    assert!(device.to_vec().unwrap() == pattern(CHUNK * CHUNKS));
    has_gone_on
}

#[test]
fn workers_with_pinned_memory_go_on_while_others_pin() {
    // In some attempts, the worker needs its second buffer before the others begin.
    assert!((0..20).any(|_| goes_on_beside_pinning()));
}
