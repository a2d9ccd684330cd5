//! Tests of cufile's mapped buffers: growth at one place, I/O and registration, and no leftovers.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cuda_rt_sys::driver::{CUmemAllocationProp, CUresult};
use cufile::{Error, FileHandle, IoBuf, RegisterFlags, RegisteredBuffer};
use testkit::Emulator;
use testkit::bed::{Bed, pattern};
use testkit::in_flight::Gate;

const MIB: usize = 1 << 20;

fn live(emulator: &Emulator) -> (i64, i64) {
    (emulator.live("reservations"), emulator.live("physical"))
}

fn file(bed: &Bed, name: &str, bytes: &[u8]) -> FileHandle {
    FileHandle::register(&bed.driver, bed.file(name, bytes)).unwrap()
}

#[test]
fn growing_keeps_address_and_bytes() {
    Bed::each(|bed| {
        let mut buffer = bed.device.reserve(64 * MIB).unwrap();
        let unit = buffer.granularity_bytes();
        assert_eq!((buffer.len_bytes(), buffer.reserved_bytes()), (0, 64 * MIB));
        buffer.grow(1).unwrap();
        assert_eq!(buffer.len_bytes(), unit);
        let bytes = pattern(unit);
        buffer.copy_from_host(0, &bytes).unwrap();
        let address = buffer.as_ptr();
        buffer.grow(unit + 1).unwrap();
        assert_eq!((buffer.len_bytes(), buffer.as_ptr()), (3 * unit, address));
        // One copy goes across the steps of growth.
        buffer.copy_from_host(unit - 10, &[7; 20]).unwrap();
        let read = buffer.to_vec().unwrap();
        assert!(read[..unit - 10] == bytes[..unit - 10] && read[unit - 10..unit + 10] == [7; 20]);
        buffer.fill(9).unwrap();
        assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 9));
        buffer.grow(0).unwrap();
        assert_eq!(buffer.len_bytes(), 3 * unit);
    });
}

#[test]
fn growing_beyond_the_reserved_range_is_refused() {
    Bed::each(|bed| {
        let mut buffer = bed.device.alloc_mapped(5 * MIB).unwrap();
        let len = buffer.len_bytes();
        assert!(len >= 5 * MIB && len == buffer.reserved_bytes());
        for additional in [1, MIB, usize::MAX, usize::MAX / 2] {
            let error = buffer.grow(additional).unwrap_err();
            assert!(matches!(error, Error::InvalidInput { .. }), "{additional}: {error}");
        }
        assert!(matches!(bed.device.reserve(usize::MAX), Err(Error::InvalidInput { .. })));
        assert!(bed.device.reserve(0).is_err());
        buffer.fill(1).unwrap();
        for (offset, bytes) in [(len, 1), (usize::MAX, 1), (1, len)] {
            let error = buffer.copy_to_host(offset, &mut vec![0; bytes]).unwrap_err();
            assert!(matches!(error, Error::InvalidInput { .. }), "{offset} {bytes}: {error}");
        }
    });
}

#[test]
fn transfers_cross_all_mapped_allocations() {
    Bed::each(|bed| {
        let mut buffer = bed.device.reserve(32 * MIB).unwrap();
        for _ in 0..3 {
            buffer.grow(2 * MIB).unwrap();
        }
        let len = buffer.len_bytes();
        let bytes = pattern(len);
        let source = file(bed, "source", &bytes);
        assert_eq!(source.read_at(&mut buffer, 0).unwrap(), len);
        assert!(buffer.to_vec().unwrap() == bytes);
        let target = file(bed, "target", b"");
        let part = buffer.slice(2 * MIB - 5..2 * MIB + 5);
        assert_eq!(target.write_at(&part, 0).unwrap(), 10);
        assert_eq!(target.write_at(&buffer.slice(4 * MIB..), 10).unwrap(), len - 4 * MIB);
        let written = fs::read(bed.path("target")).unwrap();
        assert!(written == [&bytes[2 * MIB - 5..2 * MIB + 5], &bytes[4 * MIB..]].concat());
        source.read_at(&mut buffer.slice_mut(4 * MIB - 1..4 * MIB + 1), 77).unwrap();
        let mut read = [0; 2];
        buffer.copy_to_host(4 * MIB - 1, &mut read).unwrap();
        assert_eq!(read, bytes[77..79]);
    });
}

#[test]
fn registered_reservations_grow_and_transfer_all_bytes() {
    Bed::each(|bed| {
        let bytes = pattern(96 * MIB);
        let source = file(bed, "source", &bytes);
        let mut memory = bed.device.reserve(96 * MIB).unwrap();
        memory.grow(32 * MIB).unwrap();
        memory.copy_from_host(0, &bytes[..32 * MIB]).unwrap();
        let none = RegisterFlags::empty();
        let mut buffer = RegisteredBuffer::register_reserved(&bed.driver, memory, none).unwrap();
        // The buffer grows in steps of 32 MiB, and each is filled at once.
        while buffer.get().len_bytes() < 96 * MIB {
            let len = buffer.get().len_bytes();
            buffer.grow(32 * MIB).unwrap();
            let read = source.read_at(&mut buffer.slice_mut(len..len + 32 * MIB), len as u64).unwrap();
            assert_eq!(read, 32 * MIB);
        }
        assert!(buffer.get().to_vec().unwrap() == bytes);
        assert!(matches!(buffer.grow(1), Err(Error::InvalidInput { .. })));
        bed.driver.cuda().fill(&mut buffer, 0).unwrap();
        assert_eq!(source.read_at(&mut buffer, 0).unwrap(), 96 * MIB);
        assert!(buffer.get().to_vec().unwrap() == bytes);
        let target = file(bed, "target", b"");
        for start in (0..96 * MIB).step_by(2 * MIB) {
            let part = buffer.slice(start..start + 2 * MIB);
            assert_eq!(target.write_at(&part, start as u64).unwrap(), 2 * MIB);
        }
        assert!(fs::read(bed.path("target")).unwrap() == bytes);
        buffer.deregister().unwrap();
    });
}

#[test]
fn buffers_cannot_grow_beyond_their_registration() {
    Bed::each(|bed| {
        let bytes = pattern(6 * MIB);
        let source = file(bed, "source", &bytes);
        let mut memory = bed.device.reserve(64 * MIB).unwrap();
        for _ in 0..3 {
            memory.grow(2 * MIB).unwrap();
        }
        // Several steps are one registration.
        let none = RegisterFlags::empty();
        let mut buffer = RegisteredBuffer::register(&bed.driver, memory, none).unwrap();
        assert_eq!(source.read_at(&mut buffer, 0).unwrap(), 6 * MIB);
        assert!(buffer.get().to_vec().unwrap() == bytes);
        buffer.grow(0).unwrap();
        for additional in [1, 2 * MIB, usize::MAX] {
            let error = buffer.grow(additional).unwrap_err();
            assert!(matches!(error, Error::InvalidInput { .. }), "{additional}: {error}");
        }
        // After a new registration, it does.
        let mut memory = buffer.deregister().unwrap();
        memory.grow(2 * MIB).unwrap();
        let buffer = RegisteredBuffer::register(&bed.driver, memory, none).unwrap();
        assert_eq!(source.write_at(&buffer.slice(6 * MIB..), 0).unwrap(), 2 * MIB);
    });
}

#[test]
fn dropped_buffers_free_addresses_and_memory() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let mut buffer = bed.device.reserve(32 * MIB).unwrap();
    assert_eq!(live(emulator), (1, 0));
    buffer.grow(MIB).unwrap();
    buffer.grow(MIB).unwrap();
    assert_eq!(live(emulator), (1, 2));
    drop(buffer);
    assert_eq!(live(emulator), (0, 0));
    drop(bed.device.reserve(MIB).unwrap());
    assert_eq!(live(emulator), (0, 0));
}

#[test]
fn drop_waits_for_work_that_uses_the_memory() {
    Bed::each(|bed| {
        let stream = bed.device.stream().unwrap();
        let buffer = bed.device.alloc_mapped(2 * MIB).unwrap();
        let mut target = bed.device.alloc_pinned(2 * MIB).unwrap();
        target.fill(1);
        let gate = Gate::close(&stream);
        // SAFETY: the copy ends before the target is used again, and before the buffer is unmapped, which the test
        // checks.
        unsafe { stream.copy_from_device(&mut target, buffer.as_ptr()) }.unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                over.store(true, Ordering::SeqCst);
                gate.open();
            });
            drop(buffer);
            assert!(over.load(Ordering::SeqCst));
        });
        stream.synchronize().unwrap();
    });
}

#[test]
fn mapped_memory_supports_rdma_if_the_gpu_does() {
    let bed = Bed::emulated();
    let buffer = bed.device.alloc_mapped(MIB).unwrap();
    let (driver, mut handle) = (bed.driver.cuda().driver(), 0);
    // SAFETY: zeros are valid.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    // SAFETY: the address is mapped, and both places outlive the calls.
    let results = unsafe {
        [
            (driver.cuMemRetainAllocationHandle)(&mut handle, buffer.as_ptr().cast_mut().cast()),
            (driver.cuMemGetAllocationPropertiesFromHandle)(&mut properties, handle),
            (driver.cuMemRelease)(handle),
        ]
    };
    assert_eq!(results, [CUresult::CUDA_SUCCESS; 3]);
    assert_eq!(properties.allocFlags.gpuDirectRDMACapable, 1);
}

#[test]
fn drop_does_not_end_a_capture() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let buffer = bed.device.alloc_mapped(MIB).unwrap();
    let before = emulator.calls("cudaDeviceSynchronize");
    emulator.control("capturing 1");
    drop(buffer);
    // CUDA would refuse that, and end the capture.
    assert_eq!(emulator.calls("cudaDeviceSynchronize"), before);
    assert_eq!(live(emulator), (0, 0));
}

#[test]
fn failed_unmap_keeps_memory_mapped() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    for function in ["cudaFree", "cuMemUnmap"] {
        let mut buffer = bed.device.alloc_mapped(MIB).unwrap();
        buffer.fill(5).unwrap();
        emulator.fault(function, "err=700");
        let (error, buffer) = buffer.unmap().unwrap_err().into_parts();
        assert!(error.to_string().starts_with(function) && error.raw_code() == Some(700), "{error}");
        assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 5));
        assert_eq!(live(emulator), (1, 1));
        buffer.unmap().unwrap();
        assert_eq!(live(emulator), (0, 0));
    }
    // Without memory to free, the buffer waits for the device, which a capture elsewhere forbids.
    let buffer = bed.device.alloc_mapped(MIB).unwrap();
    emulator.fault("cudaMalloc", "err=2 times=all");
    emulator.control("capturing 1");
    let (error, buffer) = buffer.unmap().unwrap_err().into_parts();
    assert!(error.to_string().starts_with("cudaDeviceSynchronize"), "{error}");
    drop(buffer);
    assert_eq!(live(emulator), (1, 1));
    emulator.control("capturing 0");
    emulator.control("clear");
    let buffer = bed.device.alloc_mapped(MIB).unwrap();
    emulator.fault("cudaMalloc", "err=2");
    drop(buffer);
    assert_eq!(live(emulator), (1, 1), "of the one before");
}

#[test]
fn failed_address_free_returns_an_empty_buffer() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let buffer = bed.device.alloc_mapped(MIB).unwrap();
    emulator.fault("cuMemAddressFree", "err=999");
    let (error, buffer) = buffer.unmap().unwrap_err().into_parts();
    assert!(error.to_string().starts_with("cuMemAddressFree"), "{error}");
    assert_eq!((buffer.len_bytes(), live(emulator)), (0, (1, 0)));
    drop(buffer);
    assert_eq!((live(emulator), emulator.calls("cuMemUnmap")), ((0, 0), 1));
}

#[test]
fn failed_growth_changes_and_leaks_nothing() {
    // CUDA returns an invalid value, or out of memory.
    for settings in ["err=1", "err=2"] {
        for function in ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
            let bed = Bed::emulated();
            let emulator = bed.emulator.as_ref().unwrap();
            let mut buffer = bed.device.reserve(32 * MIB).unwrap();
            buffer.grow(2 * MIB).unwrap();
            buffer.fill(5).unwrap();
            emulator.fault(function, settings);
            let error = buffer.grow(2 * MIB).unwrap_err();
            assert!(error.to_string().starts_with(function), "{error}");
            assert_eq!((buffer.len_bytes(), live(emulator)), (2 * MIB, (1, 1)), "{function}");
            // There is room for another try, and the first step keeps its bytes.
            buffer.grow(2 * MIB).unwrap();
            let mut read = vec![0; 4 * MIB];
            buffer.copy_to_host(0, &mut read).unwrap();
            assert!(read[..2 * MIB].iter().all(|byte| *byte == 5), "{function}");
            emulator.fault(function, settings);
            buffer.grow(2 * MIB).unwrap_err();
            drop(buffer);
            assert_eq!(live(emulator), (0, 0), "{function}");
        }
    }
    for function in ["cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate"] {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        emulator.fault(function, "err=2");
        bed.device.alloc_mapped(MIB).unwrap_err();
        assert_eq!(live(emulator), (0, 0), "{function}");
    }
}

#[test]
fn mapped_buffers_are_deregistered_before_unmapping() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let buffer = bed.device.alloc_mapped(MIB).unwrap();
    let buffer = RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty()).unwrap();
    emulator.fault("cuFileBufDeregister", "err=5030");
    drop(buffer);
    // The buffer is still registered, and therefore still mapped.
    assert_eq!((emulator.live("buffers"), emulator.calls("cuMemUnmap")), (1, 0));
    let buffer = bed.device.alloc_mapped(MIB).unwrap();
    drop(RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty()).unwrap());
    assert_eq!((emulator.live("buffers"), emulator.calls("cuMemUnmap")), (1, 1));
}
