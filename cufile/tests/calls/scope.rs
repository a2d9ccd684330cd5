//! Tests of cufile's scopes: batches and streams that take borrowed buffers.

use std::ffi::c_void;
use std::fs;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use cufile::{
    Entry, ErrorKind, FileHandle, IoBuf, RegisterFlags, RegisteredBuffer, RegisteredStream, StreamFlags,
};
use cufile_sys::{CUfileError_t, CUfileHandle_t, CUfileOpError, CUresult, CUstream, off_t};
use testkit::aborts;
use testkit::bed::{Bed, open_with, pattern};
use testkit::in_flight::Tracked;

const LEN: usize = 100_003;

fn register(bed: &Bed, name: &str, bytes: &[u8]) -> Arc<FileHandle> {
    Arc::new(FileHandle::register(&bed.driver, bed.file(name, bytes)).unwrap())
}

fn stream(bed: &Bed) -> RegisteredStream {
    RegisteredStream::register(&bed.driver, bed.device.stream().unwrap(), StreamFlags::empty()).unwrap()
}

#[test]
fn batches_read_into_parts_of_borrowed_memory() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let file = register(bed, "data", &bytes);
        let mut memory = bed.device.alloc(LEN).unwrap();
        let registered = bed.driver.with_registered_mut(&mut memory, RegisterFlags::empty(), |memory| {
            cufile::scope(|scope| {
                let batch = scope.batch(&bed.driver, 32).unwrap();
                let parts = memory.chunks(7001).zip(0..);
                batch.submit(parts.map(|(part, n)| Entry::read(&file, part, n * 7001))).unwrap();
                batch.wait_all().unwrap().into_iter().map(|done| done.result.unwrap()).sum::<usize>()
            })
        });
        assert_eq!(registered.unwrap(), LEN);
        assert!(memory.to_vec().unwrap() == bytes);
    });
}

#[test]
fn one_borrowed_source_serves_many_writes() {
    Bed::each(|bed| {
        let source = pattern(5000);
        let file = register(bed, "data", b"");
        let (batch_len, stream) = (3, stream(bed));
        bed.driver
            .with_registered(&source, RegisterFlags::empty(), |source| {
                cufile::scope(|scope| {
                    let batch = scope.batch(&bed.driver, batch_len).unwrap();
                    batch.submit((0..3).map(|n| Entry::write(&file, &source, n * 8192))).unwrap();
                    let writing = scope.write_at(&stream, &file, &source, 3 * 8192).unwrap();
                    assert_eq!(writing.wait().unwrap().0, 5000);
                    let late = stream.late_bound(&source, 0, 5000, 4 * 8192).unwrap();
                    mem::forget(scope.write_late(&stream, &file, &source, &late).unwrap());
                });
            })
            .unwrap();
        let written = fs::read(bed.path("data")).unwrap();
        assert_eq!(written.len(), 4 * 8192 + 5000);
        assert!((0..5).all(|n| written[n * 8192..][..5000] == source));
    });
}

#[test]
fn scopes_wait_for_forgotten_transfers() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(4 * LEN);
    let file = register(&bed, "data", &bytes);
    let stream = stream(&bed);
    for round in 0..3 {
        let mut memory = bed.device.alloc(4 * LEN).unwrap();
        emulator.fault("batch-entry", "times=2 delay_us=30000");
        emulator.fault("cuFileReadAsync", "times=2 delay_us=30000");
        cufile::scope(|scope| {
            let mut parts = memory.slice_mut(..).chunks(LEN).zip((0..).step_by(LEN));
            let mut next = || parts.next().unwrap();
            let batch = scope.batch(&bed.driver, 2).unwrap();
            batch.submit([next(), next()].map(|(part, at)| Entry::read(&file, part, at))).unwrap();
            for (part, at) in [next(), next()] {
                mem::forget(scope.read_at(&stream, &file, part.split_at(3).1, at + 3).unwrap());
            }
            assert_eq!(batch.in_flight(), 2);
        });
        let read = memory.to_vec().unwrap();
        assert!(read[..2 * LEN] == bytes[..2 * LEN], "round {round}");
        assert!(read[2 * LEN + 3..3 * LEN] == bytes[2 * LEN + 3..3 * LEN], "round {round}");
        assert!(read[3 * LEN + 3..] == bytes[3 * LEN + 3..], "round {round}");
        assert_eq!(emulator.live("batches"), 0);
    }
}

#[test]
fn scopes_wait_for_transfers_after_a_panic() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(LEN);
    let file = register(&bed, "data", &bytes);
    let mut memory = bed.device.alloc(LEN).unwrap();
    emulator.fault("batch-entry", "delay_us=50000");
    let panic = catch_unwind(AssertUnwindSafe(|| {
        cufile::scope(|scope| {
            let batch = scope.batch(&bed.driver, 1).unwrap();
            batch.submit([Entry::read(&file, &mut memory, 0)]).unwrap();
            panic!("on purpose");
        })
    }));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "on purpose");
    assert!(memory.to_vec().unwrap() == bytes);
}

#[test]
fn cancelling_a_scoped_batch_returns_its_borrows() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(LEN));
    let mut memory = bed.device.alloc(LEN).unwrap();
    let address = memory.as_ptr();
    emulator.fault("batch-entry", "delay_us=50000");
    cufile::scope(|scope| {
        let batch = scope.batch(&bed.driver, 1).unwrap();
        batch.submit([Entry::read(&file, &mut memory, 0)]).unwrap();
        let [cancelled] = <[_; 1]>::try_from(scope.cancel(batch).unwrap()).unwrap();
        assert_eq!(IoBuf::as_ptr(cancelled.buffer.unwrap()), address);
    });
    assert_eq!(emulator.live("batches"), 0);
}

#[test]
fn threads_share_a_scope() {
    Bed::each(|bed| {
        let bytes = pattern(8 * LEN);
        let file = register(bed, "data", &bytes);
        let mut memory = vec![0; 8 * LEN];
        let stream = stream(bed);
        cufile::scope(|scope| {
            thread::scope(|threads| {
                for (part, at) in memory.chunks_mut(LEN).zip((0..).step_by(LEN)) {
                    let (file, stream) = (&file, &stream);
                    threads.spawn(move || {
                        let reading = scope.read_at(stream, file, part, at).unwrap();
                        assert!(reading.wait_timeout(Duration::from_secs(20)).unwrap());
                        assert_eq!(reading.wait().unwrap().0, LEN);
                    });
                }
            });
        });
        assert!(memory == bytes);
    });
}

#[test]
fn refused_transfers_return_the_borrow() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(LEN));
        let stream = stream(bed);
        let mut memory = vec![0; 100];
        cufile::scope(|scope| {
            let batch = scope.batch(&bed.driver, 1).unwrap();
            let (error, entries) = batch
                .submit([Entry::read(&file, &mut memory[..], 0).range(1, 100)])
                .unwrap_err()
                .into_parts();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let [entry] = <[_; 1]>::try_from(entries).unwrap();
            let failed = scope.read_at(&stream, &file, entry.into_buffer(), u64::MAX).unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::InvalidInput);
            failed.into_buffer().unwrap().fill(1);
        });
        assert_eq!(memory, [1; 100]);
    });
}

#[test]
fn scopes_abort_if_a_batch_may_never_end() {
    aborts("neither report nor cancel", || {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        let file = register(&bed, "data", &pattern(LEN));
        let mut memory = vec![0; LEN];
        let held = emulator.hold("batch-entry", "");
        emulator.fault("cuFileBatchIOGetStatus", "times=all err=5030");
        emulator.fault("cuFileBatchIOCancel", "times=all err=5030");
        cufile::scope(|scope| {
            let batch = scope.batch(&bed.driver, 1).unwrap();
            batch.submit([Entry::read(&file, &mut memory[..], 0)]).unwrap();
            // Destroying a batch would wait for transfers in flight.
            held.wait_for(1);
        });
    });
}

#[test]
fn scopes_abort_if_waiting_for_a_stream_fails() {
    aborts("cudaErrorIllegalAddress", || {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        let file = register(&bed, "data", &pattern(LEN));
        let (stream, mut memory) = (stream(&bed), vec![0; LEN]);
        cufile::scope(|scope| {
            mem::forget(scope.read_at(&stream, &file, &mut memory[..], 0).unwrap());
            emulator.fault("cudaStreamSynchronize", "times=all err=700");
        });
    });
}

#[test]
fn scopes_wait_until_a_capture_ends() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let (file, stream) = (register(&bed, "data", &pattern(LEN)), stream(&bed));
    let mut memory = vec![0; LEN];
    cufile::scope(|scope| {
        mem::forget(scope.read_at(&stream, &file, &mut memory[..], 0).unwrap());
        emulator.fault("cudaStreamSynchronize", "times=3 err=900");
        emulator.fault("cudaStreamIsCapturing", "times=3 status=1");
    });
    assert!(memory == pattern(LEN));
}

#[test]
fn scopes_abort_after_a_captured_transfer() {
    aborts("stream was captured while", || {
        let bed = Bed::emulated();
        let (file, stream) = (register(&bed, "data", &pattern(LEN)), stream(&bed));
        let mut memory = vec![0; LEN];
        cufile::scope(|scope| {
            // The first question is asked before the call.
            bed.emulator.as_ref().unwrap().fault("cudaStreamIsCapturing", "after=1 status=1");
            drop(scope.read_at(&stream, &file, &mut memory[..], 0));
        });
    });
}

/// Accepts a read, and reports its end unless it is from the start of the file.
unsafe extern "C" fn silent(
    _: CUfileHandle_t,
    _: *mut c_void,
    len_bytes: *mut usize,
    file_offset: *mut off_t,
    _: *mut off_t,
    bytes_read: *mut isize,
    _: CUstream,
) -> CUfileError_t {
    // SAFETY: the caller's memory lives until the stream has passed the transfer.
    unsafe {
        if *file_offset > 0 {
            *bytes_read = *len_bytes as isize;
        }
    }
    CUfileError_t { err: CUfileOpError::CU_FILE_SUCCESS, cu_err: CUresult::CUDA_SUCCESS }
}

#[test]
fn scopes_abort_if_a_transfer_never_ends() {
    aborts("did not report the end of a transfer", || {
        let bed = Bed::emulated();
        // SAFETY: the function keeps the contract of libcufile's.
        let driver =
            unsafe { open_with(bed.emulator.as_ref().unwrap(), |table| table.cuFileReadAsync = silent) };
        let file = Arc::new(FileHandle::register(&driver, bed.file("data", &pattern(LEN))).unwrap());
        let stream = bed.device.stream().unwrap();
        let stream = RegisteredStream::register(&driver, stream, StreamFlags::empty()).unwrap();
        let (mut memory, mut others) = (vec![0; LEN], vec![0; LEN]);
        cufile::scope(|scope| {
            let reading = scope.read_at(&stream, &file, &mut memory[..], 0).unwrap();
            assert!(reading.wait().is_err());
            // Many ended transfers hide none in flight.
            for part in others.chunks_mut(LEN / 100) {
                scope.read_at(&stream, &file, part, 1).unwrap().wait().unwrap();
            }
        });
    });
}

#[test]
fn scopes_abort_if_dropping_a_buffer_panics() {
    aborts("dropping a buffer panicked", || {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        let file = register(&bed, "data", &pattern(LEN));
        let (failing, life) = Tracked::new(LEN);
        life.panics.store(true, Ordering::SeqCst);
        let failing = RegisteredBuffer::register(&bed.driver, failing, RegisterFlags::empty()).unwrap();
        let mut memory = bed.device.alloc(LEN).unwrap();
        cufile::scope(|scope| {
            let batch = scope.batch(&bed.driver, 1).unwrap();
            emulator.fault("batch-entry", "bytes=-5016");
            batch.submit([Entry::read(&file, failing, 0)]).unwrap();
            // The batch keeps the buffer.
            assert!(batch.wait_all().unwrap()[0].buffer.is_none());
            // The scope must wait for this one nevertheless.
            emulator.fault("batch-entry", "delay_us=300000");
            scope.batch(&bed.driver, 1).unwrap().submit([Entry::read(&file, &mut memory, 0)]).unwrap();
        });
    });
}
