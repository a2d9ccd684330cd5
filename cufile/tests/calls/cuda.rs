//! Tests of cufile's CUDA layer: state that its calls leave alone, and memory that the host may not touch.

use std::ptr;
use std::thread;
use std::time::Duration;

use cuda_rt_sys::runtime::cudaError_t;
use cufile::cuda::{Cuda, Device, DeviceMemory};
use cufile::{FileHandle, IoBuf, IoBufMut, Location, RegisterFlags, RegisteredBuffer};
use testkit::alone;
use testkit::bed::{Bed, pattern};

fn current_context(cuda: &Cuda) -> usize {
    let mut context = ptr::null_mut();
    // SAFETY: `context` outlives the call.
    unsafe { (cuda.driver().cuCtxGetCurrent)(&mut context) };
    context.addr()
}

/// Returns the last GPU, which CUDA uses only on request.
fn last_device(bed: &Bed) -> Device {
    let cuda = bed.driver.cuda();
    cuda.device(cuda.device_count().unwrap() - 1).unwrap()
}

#[test]
fn devices_have_a_name_and_a_pci_address() {
    Bed::each(|bed| {
        let (first, last) = (&bed.device, last_device(bed));
        assert!(!first.name().unwrap().is_empty());
        let address = first.pci_bus_id().unwrap();
        let parts: Vec<_> = address.split([':', '.']).map(|part| u32::from_str_radix(part, 16)).collect();
        assert!(parts.len() == 4 && parts.iter().all(Result::is_ok), "{address}");
        let is_one_device = first.ordinal() == last.ordinal();
        assert_eq!(address == last.pci_bus_id().unwrap(), is_one_device);
    });
}

#[test]
fn events_and_streams_leave_no_context_current() {
    Bed::each(|bed| {
        let stream = last_device(bed).stream().unwrap();
        let event = stream.record().unwrap();
        let cuda = bed.driver.cuda();
        // SAFETY: the event is alive.
        let waited = unsafe { (cuda.runtime().cudaEventSynchronize)(event.as_raw()) };
        assert_eq!(waited, cudaError_t::cudaSuccess);
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

#[test]
fn managed_memory_copies_without_host_access() {
    for is_concurrent in [true, false] {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        emulator.control(if is_concurrent { "concurrent-managed 1" } else { "concurrent-managed 0" });
        let mut buffer = bed.device.alloc_managed(4096).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [0; 4096]);
        assert_eq!(buffer.location().is_host_accessible, is_concurrent);
        assert_eq!((buffer.len_bytes(), IoBuf::len_bytes(&buffer)), (4096, 4096));
        match buffer.as_mut_slice() {
            Ok(bytes) => assert!(is_concurrent && *bytes == [0; 4096]),
            Err(error) => assert!(!is_concurrent && error.to_string().contains("GPU 0"), "{error}"),
        }
        let bytes = pattern(4096);
        // These go by cuFile, and by plain copies.
        let file = FileHandle::register(&bed.driver, bed.file("cufile", &bytes)).unwrap();
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 4096);
        assert_eq!(buffer.to_vec().unwrap(), bytes);
        buffer.fill(3).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3; 4096]);
        buffer.copy_from_host(4, b"hello").unwrap();
        let mut read = [0; 5];
        buffer.copy_to_host(4, &mut read).unwrap();
        assert_eq!(&read, b"hello");
        match buffer.as_slice() {
            Ok(found) => assert!(is_concurrent && found[4..9] == *b"hello"),
            Err(error) => assert!(!is_concurrent && error.to_string().contains("GPU 0"), "{error}"),
        }
    }
    let none = Bed::emulated().device.alloc_managed(0).unwrap();
    assert_eq!((none.as_slice().unwrap(), none.to_vec().unwrap()), (&[][..], Vec::new()));
}

#[test]
fn copy_and_fill_wait_for_their_bytes() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let (mut buffer, other) = (bed.device.alloc(8).unwrap(), bed.device.alloc(8).unwrap());
    // cudaMemcpy from pageable memory returns before the bytes have arrived, and between GPUs.
    emulator.fault("cudaStreamSynchronize", "times=4 err=719");
    let cuda = bed.driver.cuda();
    let results = [cuda.copy(&other, &mut buffer), cuda.fill(&mut buffer, 1)];
    for result in results.into_iter().chain([buffer.copy_from_host(0, b"hello"), buffer.fill(1)]) {
        assert_eq!(result.unwrap_err().raw_code(), Some(719));
    }
    buffer.copy_from_host(0, b"hello").unwrap();
}

#[test]
fn buffers_of_all_kinds_copy_to_each_other() {
    const LEN: usize = 70_001;
    Bed::each(|bed| {
        let (cuda, other) = (bed.driver.cuda(), last_device(bed));
        let kinds = || -> Vec<Box<dyn IoBufMut>> {
            vec![
                Box::new(vec![0; LEN]),
                Box::new(bed.device.alloc_pinned(LEN).unwrap()),
                Box::new(other.alloc_pinned(LEN).unwrap()),
                Box::new(bed.device.alloc(LEN).unwrap()),
                Box::new(other.alloc(LEN).unwrap()),
            ]
        };
        for mut source in kinds() {
            cuda.copy(&pattern(LEN), &mut source).unwrap();
            for mut target in kinds() {
                cuda.copy(&source, &mut target).unwrap();
                let mut found = vec![0; LEN];
                cuda.copy(&target, &mut found).unwrap();
                assert!(found == pattern(LEN));
            }
        }
        let (source, mut target) = (bed.device.alloc(9).unwrap(), bed.device.alloc(10).unwrap());
        let error = cuda.copy(&source, &mut target).unwrap_err();
        assert!(error.to_string().contains("the source has 9 bytes, but the target has 10"), "{error}");
        cuda.copy(&source, &mut target.slice_mut(1..)).unwrap();
    });
}

#[test]
fn timing_events_measure_elapsed_time() {
    Bed::each(|bed| {
        let stream = bed.device.stream().unwrap();
        let (start, end) = (bed.device.timing_event().unwrap(), bed.device.timing_event().unwrap());
        stream.record_into(&start).unwrap();
        stream.call_on_host(|| thread::sleep(Duration::from_millis(5))).unwrap();
        stream.record_into(&end).unwrap();
        end.wait().unwrap();
        let elapsed = end.elapsed_since(&start).unwrap();
        assert!(elapsed >= Duration::from_millis(4) && elapsed < Duration::from_secs(4), "{elapsed:?}");
        let untimed = stream.record().unwrap();
        assert!(untimed.elapsed_since(&start).is_err());
    });
}

#[test]
fn foreign_memory_is_transferred_and_returned_to_its_owner() {
    Bed::each(|bed| {
        let bytes = pattern(10_000);
        let file = FileHandle::register(&bed.driver, bed.file("data", &bytes)).unwrap();
        let mut owner = bed.device.alloc(10_000).unwrap();
        let (ptr, len_bytes) = (owner.as_mut_ptr(), owner.len_bytes());
        // SAFETY: the buffer's own memory, which nothing uses while it is lent.
        let memory = unsafe { DeviceMemory::from_raw(&bed.device, ptr, len_bytes, owner) };
        assert!(memory.location() == Location::device(bed.device.context()));
        let mut memory = RegisteredBuffer::register(&bed.driver, memory, RegisterFlags::empty()).unwrap();
        file.read_exact_at(&mut memory, 0).unwrap();
        let owner = memory.deregister().unwrap().into_owner();
        assert!(owner.to_vec().unwrap() == bytes);
    });
}

#[test]
fn peer_copies_move_bytes_between_gpus() {
    Bed::each(|bed| {
        let (one, other) = (&bed.device, last_device(bed));
        if one.ordinal() == other.ordinal() || !one.can_access_peer(&other).unwrap() {
            return;
        }
        assert!(!one.can_access_peer(one).unwrap());
        one.enable_peer_access(&other).unwrap();
        one.enable_peer_access(&other).unwrap();
        // SAFETY: takes nothing.
        let left = unsafe { (bed.driver.cuda().runtime().cudaGetLastError)() };
        assert_eq!(left, cudaError_t::cudaSuccess);
        const LEN: usize = 70_001;
        let (mut source, mut target) = (one.alloc(LEN).unwrap(), other.alloc(LEN + 2).unwrap());
        source.copy_from_host(0, &pattern(LEN)).unwrap();
        target.fill(9).unwrap();
        let stream = one.stream().unwrap();
        // SAFETY: the stream is waited for before the buffers are used or dropped.
        unsafe { stream.copy_to_peer(&other, target.as_mut_ptr().add(1), source.as_ptr(), LEN) }.unwrap();
        stream.synchronize().unwrap();
        assert!(target.to_vec().unwrap() == [&[9], &pattern(LEN)[..], &[9]].concat());
    });
}

#[test]
fn streams_copy_within_a_gpu() {
    Bed::each(|bed| {
        const LEN: usize = 70_001;
        let (mut source, mut target) = (bed.device.alloc(LEN).unwrap(), bed.device.alloc(LEN + 2).unwrap());
        source.copy_from_host(0, &pattern(LEN)).unwrap();
        target.fill(9).unwrap();
        let stream = bed.device.stream().unwrap();
        // SAFETY: the stream is waited for before the buffers are used or dropped.
        unsafe { stream.copy_on_device(target.as_mut_ptr().add(1), source.as_ptr(), LEN) }.unwrap();
        stream.synchronize().unwrap();
        assert!(target.to_vec().unwrap() == [&[9], &pattern(LEN)[..], &[9]].concat());
    });
}

#[test]
fn gpus_of_different_groups_are_no_peers() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.control("gpus 4");
    emulator.control("peer-group 2");
    let devices: Vec<_> = (0..4).map(|ordinal| bed.driver.cuda().device(ordinal).unwrap()).collect();
    let peers = |one: usize| [0, 1, 2, 3].map(|other| devices[one].can_access_peer(&devices[other]).unwrap());
    assert_eq!(peers(0), [false, true, false, false]);
    assert_eq!(peers(3), [false, false, true, false]);
    let error = devices[1].enable_peer_access(&devices[2]).unwrap_err();
    assert!(error.to_string().contains("cudaErrorPeerAccessUnsupported"), "{error}");
}

#[test]
fn large_pinned_buffers_are_registered_huge_pages() {
    const HUGE: usize = 2 << 20;
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    for len_bytes in [HUGE, HUGE + 1, 3 * HUGE - 4096] {
        let mut pinned = bed.device.alloc_pinned(len_bytes).unwrap();
        assert!(pinned.as_ptr().addr().is_multiple_of(HUGE) && pinned.iter().all(|byte| *byte == 0));
        assert_eq!(emulator.live("host-registrations"), 1);
        pinned.fill(7);
        // SAFETY: the child reads memory, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(!pinned.iter().all(|byte| *byte == 0));
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child finds zeros");
        assert!(pinned.iter().all(|byte| *byte == 7));
        drop(pinned);
        assert_eq!((emulator.live("host-registrations"), emulator.live("pinned-bytes")), (0, 0));
    }
    drop(bed.device.alloc_pinned(HUGE - HUGE / 8 - 1).unwrap());
    emulator.fault("cudaHostRegister", "err=2 times=all");
    drop(bed.device.alloc_pinned(HUGE).unwrap());
    assert_eq!(emulator.calls("cudaHostAlloc"), 2);
}

fn is_mapped(address: *const u8) -> bool {
    let mut state = 0;
    // SAFETY: the call writes a byte of `state`, and only looks for the page.
    unsafe { libc::mincore(address.cast_mut().cast(), 4096, &raw mut state) == 0 }
}

#[test]
fn threads_register_their_buffers_one_after_another() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let region = bed.device.reserve_pinned(2 << 20, 3);
    let held = emulator.hold("cudaHostRegister", "times=all");
    thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| drop(region.alloc().unwrap()))));
        held.wait_for(1);
        while region.allocating() < 3 {
            thread::yield_now();
        }
        // The others have time to come.
        thread::sleep(Duration::from_millis(20));
        assert_eq!((held.count(), region.allocating()), (1, 3));
        held.release();
    });
    assert_eq!((emulator.calls("cudaHostRegister"), region.allocating()), (3, 0));
}

#[test]
fn a_region_gives_each_thread_a_pinned_buffer() {
    const LEN: usize = (2 << 20) - 4096;
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let region = bed.device.reserve_pinned(LEN, 3);
    assert_eq!(emulator.live("host-registrations"), 0, "addresses take no memory");
    let mut buffers: Vec<_> = thread::scope(|scope| {
        let threads = [1, 2, 3].map(|number| {
            let region = &region;
            scope.spawn(move || {
                let mut buffer = region.alloc().unwrap();
                assert!(buffer.iter().all(|byte| *byte == 0));
                buffer.fill(number);
                buffer
            })
        });
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(emulator.live("host-registrations"), 3);
    assert_eq!(emulator.calls("cudaHostAlloc"), 0);
    assert_eq!(region.alloc().unwrap().len(), LEN);
    assert_eq!(emulator.calls("cudaHostAlloc"), 1, "no address was left");
    drop(buffers.remove(1));
    buffers.push(region.alloc().unwrap());
    assert_eq!(emulator.calls("cudaHostAlloc"), 1, "the address came back");
    drop(region);
    for (buffer, number) in buffers.iter().zip([1, 3, 0]) {
        assert!(buffer.len() == LEN && buffer.iter().all(|byte| *byte == number));
    }
    let first = buffers[0].as_ptr();
    drop(buffers);
    assert_eq!((emulator.live("host-registrations"), emulator.live("pinned-bytes")), (0, 0));
    assert!(!is_mapped(first));
}

#[test]
fn memory_that_cuda_does_not_release_stays_mapped() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let region = bed.device.reserve_pinned(2 << 20, 2);
    let (one, other) = (region.alloc().unwrap(), region.alloc().unwrap());
    let kept = one.as_ptr();
    emulator.fault("cudaHostUnregister", "err=4 times=1");
    drop((one, other, region));
    assert!(is_mapped(kept));
    assert_eq!(emulator.live("host-registrations"), 1);
}

#[test]
fn streams_without_a_thread_are_errors() {
    // The emulator gives each stream a thread, which needs memory for its stack.
    alone(|| {
        let bed = Bed::emulated();
        let set_limit = |bytes: libc::rlim_t| {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: `limit` outlives the call.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        };
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        set_limit(pages * 4096 + (256 << 10));
        let stream = bed.device.stream();
        set_limit(libc::RLIM_INFINITY);
        let error = stream.map(drop).unwrap_err();
        assert!(error.to_string().contains("cudaErrorOperatingSystem"), "{error}");
        bed.device.stream().unwrap().synchronize().unwrap();
    });
}
