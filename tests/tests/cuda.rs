//! cufile's CUDA layer: what its calls leave as it was, and memory that the host may not touch.

use std::ptr;
use std::thread;

use cufile::cuda::{Cuda, Device};
use cufile_tests::bed::Bed;

/// The calling thread's context, as a number.
fn current_context(cuda: &Cuda) -> usize {
    let mut context = ptr::null_mut();
    // SAFETY: `context` outlives the call.
    unsafe { (cuda.driver().cuCtxGetCurrent)(&mut context) };
    context.addr()
}

/// The last GPU, which CUDA takes for none unless it is told.
fn last_device(bed: &Bed) -> Device {
    let cuda = bed.driver.cuda();
    cuda.device(cuda.device_count().unwrap() - 1).unwrap()
}

#[test]
fn events_and_streams_leave_a_thread_without_context_as_it_was() {
    Bed::each(|bed| {
        let stream = last_device(bed).stream().unwrap();
        let event = stream.record().unwrap();
        let cuda = bed.driver.cuda();
        let check = || {
            assert_eq!(current_context(cuda), 0);
            event.wait().unwrap();
            assert!(event.is_done().unwrap());
            assert_eq!(current_context(cuda), 0);
            drop((event, stream));
            assert_eq!(current_context(cuda), 0);
        };
        thread::scope(|scope| scope.spawn(check).join().unwrap());
    });
}

#[test]
fn a_captured_stream_is_neither_waited_for_nor_destroyed() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let stream = bed.device.stream().unwrap();
    emulator.fault("cudaStreamIsCapturing", "status=1");
    let waits = emulator.calls("cudaStreamSynchronize");
    drop(stream);
    assert_eq!((emulator.calls("cudaStreamSynchronize"), emulator.live("streams")), (waits, 1));
    drop(bed.device.stream().unwrap());
    assert_eq!((emulator.calls("cudaStreamSynchronize"), emulator.live("streams")), (waits + 1, 1));
}
