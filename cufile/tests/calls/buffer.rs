//! Tests of cufile's registered buffers: every kind of memory, parts of buffers, and soundness.

use std::ffi::c_void;
use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

use cufile::cuda::DeviceBuffer;
use cufile::{
    Batch, BufSlice, BufSliceMut, Driver, Entry, Error, ErrorKind, FileHandle, IoBuf, IoBufMut, Location,
    OpError, OwnedPart, RegisterFlags, RegisteredBuffer,
};
use cufile_sys::{CUfileHandle_t, off_t};
use testkit::bed::{Bed, libraries, open_with, pattern};
use testkit::{Emulator, aborts, in_threads};

const LEN: usize = 1 << 20;

fn register<B: IoBuf + 'static>(bed: &Bed, buffer: B) -> cufile::Result<RegisteredBuffer<B>> {
    Ok(RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty())?)
}

fn registered<B: IoBuf + 'static>(bed: &Bed, buffer: B) -> RegisteredBuffer<B> {
    register(bed, buffer).unwrap_or_else(|error| panic!("{error}"))
}

fn borrowed_mut(bed: &Bed, buffer: &mut impl IoBufMut, work: impl FnOnce(BufSliceMut<'_>)) {
    bed.driver
        .with_registered_mut(buffer, RegisterFlags::empty(), work)
        .unwrap_or_else(|error| panic!("{error}"));
}

fn file(bed: &Bed, name: &str, bytes: &[u8]) -> FileHandle {
    FileHandle::register(&bed.driver, bed.file(name, bytes)).unwrap()
}

#[test]
fn every_memory_kind_except_managed_registers() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let file = file(bed, "data", &bytes);
        fn check<B: IoBufMut + 'static>(bed: &Bed, file: &FileHandle, bytes: &[u8], mut buffer: B) {
            let mut read = vec![0; LEN];
            borrowed_mut(bed, &mut buffer, |mut part| {
                assert_eq!(file.read_at(&mut part, 0).unwrap(), LEN);
                bed.driver.cuda().copy(&part, &mut read).unwrap();
            });
            assert!(read == bytes);
            bed.driver.cuda().copy([7; LEN].as_slice(), &mut buffer).unwrap();
            let context = buffer.location().context;
            let mut buffer = registered(bed, buffer);
            assert_eq!(buffer.location().context, context);
            assert_eq!(file.read_at(&mut buffer, 0).unwrap(), LEN);
            let mut read = vec![0; LEN];
            let cuda = bed.driver.cuda();
            cuda.copy(&buffer, &mut read).unwrap();
            assert!(read == bytes);
            cuda.fill(&mut buffer, 7).unwrap();
            cuda.copy(&bytes[..50], &mut buffer.slice_mut(100..150)).unwrap();
            cuda.copy(&buffer.slice(99..151), &mut read[..52]).unwrap();
            assert!(read[0] == 7 && read[1..51] == bytes[..50] && read[51] == 7);
            // The buffer registers again, and comes back unchanged each time.
            drop(registered(bed, buffer.deregister().unwrap()));
        }
        check(bed, &file, &bytes, bed.device.alloc(LEN).unwrap());
        check(bed, &file, &bytes, OwnedPart::split(bed.device.alloc(2 * LEN).unwrap(), LEN).pop().unwrap());
        check(bed, &file, &bytes, bed.device.alloc_pinned(LEN).unwrap());
        check(bed, &file, &bytes, OwnedPart::split(bed.device.alloc_mapped(2 << 20).unwrap(), LEN).remove(0));
        check(bed, &file, &bytes, vec![0u8; LEN]);
        check(bed, &file, &bytes, vec![0u8; LEN].into_boxed_slice());
        check(bed, &file, &bytes, vec![0u8; LEN].leak());
        // A shared borrow is enough for writing files.
        let write = |part: BufSlice<'_>| assert_eq!(file.write_at(&part, 0).unwrap(), LEN);
        bed.driver.with_registered(&bed.device.alloc(LEN).unwrap(), RegisterFlags::empty(), write).unwrap();
        bed.driver.with_registered(&bytes[..], RegisterFlags::empty(), write).unwrap();
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.live("buffers"), 0);
        }
    });
}

#[test]
fn managed_memory_works_only_unregistered() {
    Bed::each(|bed| {
        let mut managed = bed.device.alloc_managed(LEN).unwrap();
        let refused = bed.driver.with_registered(&managed, RegisterFlags::empty(), |_| ());
        let error = refused.unwrap_err();
        assert_eq!(error.op_error(), Some(OpError::CUDA_MEMORY_TYPE_INVALID), "{error}");
        let text = error.to_string();
        let expected = format!("cuFileBufRegister({LEN} bytes of managed memory at {:p})", managed.as_ptr());
        assert!(text.contains(&expected) && text.contains("transfer it unregistered"), "{text}");
        let bytes = pattern(LEN);
        assert_eq!(file(bed, "data", &bytes).read_at(&mut managed, 0).unwrap(), LEN);
        assert!(managed.as_slice().unwrap() == bytes);
    });
}

#[test]
fn registrations_may_overlap_but_not_start_at_the_same_address() {
    Bed::each(|bed| {
        let whole = registered(bed, bed.device.alloc(LEN).unwrap());
        let none = RegisterFlags::empty();
        let error = bed.driver.with_registered(whole.get(), none, |_| ()).unwrap_err();
        assert_eq!(error.op_error(), Some(OpError::MEMORY_ALREADY_REGISTERED), "{error}");
        assert_eq!(error.kind(), ErrorKind::Busy);
        let text = error.to_string();
        assert!(text.contains(&format!("{LEN} bytes of device memory at")), "{text}");
        assert!(text.contains("starts at the same address"), "{text}");
        let part = 64 << 10..128 << 10;
        bed.driver.with_registered(&whole.get().slice(part.clone()), none, |_| ()).unwrap();
        // The other registration is still there.
        let device = whole.deregister().unwrap();
        let inner = || bed.driver.with_registered(&device, none, |_| ());
        bed.driver.with_registered(&device.slice(part), none, |_| inner()).unwrap().unwrap();
    });
}

struct Longer<B>(B, usize);

// SAFETY: the test only registers it, which the library must refuse.
unsafe impl<B: IoBuf> IoBuf for Longer<B> {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.1
    }

    fn location(&self) -> Location {
        let Location { is_host_accessible, context, .. } = self.0.location();
        Location { is_host_accessible, context, ..Location::HOST }
    }
}

#[test]
fn refused_registrations_describe_the_memory() {
    Bed::each(|bed| {
        let error = register(bed, Longer(bed.device.alloc(LEN).unwrap(), 1 << 40)).unwrap_err();
        assert_eq!(error.op_error(), Some(OpError::CUDA_POINTER_RANGE_ERROR), "{error}");
        let text = error.to_string();
        let end = text.split("the allocation ends after ").nth(1).and_then(|end| end.strip_suffix(" bytes"));
        let left: usize = end.unwrap_or_default().parse().unwrap_or_else(|_| panic!("{text}"));
        // A GPU may have allocated more than was asked for.
        assert!(left == LEN || bed.is_real() && left > LEN, "{text}");
        let memory = bed.device.alloc(LEN).unwrap();
        let nothing = bed.driver.with_registered(&memory.slice(..0), RegisterFlags::empty(), |_| ());
        let error = nothing.unwrap_err();
        assert_eq!(error.op_error(), Some(OpError::INVALID_VALUE), "{error}");
        let text = error.to_string();
        assert!(text.contains("0 bytes of device memory") && text.contains("the buffer is empty"), "{text}");
        let error = register(bed, Vec::new()).unwrap_err();
        assert!(error.to_string().contains("(0 bytes of host memory at 0x"), "{error}");
    });
    let bed = Bed::emulated();
    bed.emulator.as_ref().unwrap().fault("cuFileBufRegister", "err=5036");
    let error = register(&bed, bed.device.alloc_pinned(LEN).unwrap()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("pinned host memory") && text.contains("max_device_pinned_mem_size_kb"), "{text}");
}

#[test]
fn threads_read_into_parts_of_one_registration() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let file = file(bed, "data", &bytes);
        let mut buffer = registered(bed, bed.device.alloc(LEN).unwrap());
        in_threads(buffer.slice_mut(..).chunks(100_000).enumerate().map(|(index, mut part)| {
            let file = &file;
            move || {
                let (len, at) = (part.len_bytes(), index * 100_000);
                assert_eq!(
                    (file.read_at(&mut part, at as u64).unwrap(), part.location().base_offset),
                    (len, at)
                );
            }
        }));
        assert!(buffer.get().to_vec().unwrap() == bytes);

        bed.driver.cuda().fill(&mut buffer, 0).unwrap();
        let (mut left, mut right) = buffer.slice_mut(..).split_at(300_000);
        in_threads([(left.slice_mut(..), 0), (right.slice_mut(1..), 300_001)].map(|(mut part, at)| {
            let file = &file;
            move || _ = file.read_at(&mut part, at).unwrap()
        }));
        let read = buffer.get().to_vec().unwrap();
        assert!(read[..300_000] == bytes[..300_000] && read[300_001..] == bytes[300_001..]);
        assert_eq!(read[300_000], 0);
    });
}

#[test]
fn threads_write_from_one_shared_registration() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let target = file(bed, "target", b"");
        let mut device = bed.device.alloc(LEN).unwrap();
        device.copy_from_host(0, &bytes).unwrap();
        let buffer = registered(bed, device);
        in_threads((0..LEN).step_by(LEN / 8).map(|start| {
            let (buffer, target) = (&buffer, &target);
            move || {
                let part = buffer.slice(start..start + LEN / 8);
                assert_eq!(target.write_at(&part, start as u64).unwrap(), LEN / 8);
                assert_eq!(target.write_at(&buffer.slice(start..start + 10), start as u64).unwrap(), 10);
            }
        }));
        assert!(fs::read(bed.path("target")).unwrap() == bytes);
    });
}

#[test]
fn bytes_are_copied_between_the_host_and_any_buffer() {
    Bed::each(|bed| {
        let cuda = bed.driver.cuda();
        let bytes = pattern(LEN);
        let check = |mut buffer: Box<dyn IoBufMut + Send>| {
            let copy = |buffer: &mut dyn IoBufMut, at: usize, bytes: &[u8]| {
                let mut part = BufSliceMut::new(buffer, at..at + bytes.len());
                cuda.fill(&mut part, 0xee).unwrap();
                let mut found = vec![0; bytes.len()];
                cuda.copy(&part, &mut found).unwrap();
                assert!(found.iter().all(|byte| *byte == 0xee));
                cuda.copy(bytes, &mut part).unwrap();
                cuda.copy(&part, &mut found).unwrap();
                assert!(found == bytes);
            };
            copy(&mut buffer, 0, &bytes);
            copy(&mut BufSliceMut::new(&mut buffer, 1000..), 24, &bytes[..5000]);
            let mut parts = OwnedPart::split(buffer, LEN / 2);
            copy(&mut parts[1], 1, b"x");
            for part in &mut parts {
                for len in [0, 1, LEN / 2 - 1, LEN / 2 + 1, LEN] {
                    let other_length = |result: cufile::Result<()>| {
                        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput, "{len}");
                    };
                    other_length(cuda.copy(&vec![0; len], part));
                    other_length(cuda.copy(part, &mut vec![0; len]));
                }
                cuda.copy(&Vec::new(), &mut BufSliceMut::new(part, LEN / 2..)).unwrap();
            }
            parts.truncate(1);
            let whole = parts.pop().unwrap().into_whole().unwrap();
            let mut found = vec![0; LEN];
            cuda.copy(&whole, &mut found).unwrap();
            let mut expected = bytes.clone();
            expected[1024..6024].copy_from_slice(&bytes[..5000]);
            expected[LEN / 2 + 1] = b'x';
            assert!(found == expected);
        };
        check(Box::new(bed.device.alloc(LEN).unwrap()));
        check(Box::new(registered(bed, bed.device.alloc(LEN).unwrap())));
        check(Box::new(bed.device.alloc_pinned(LEN).unwrap()));
        check(Box::new(vec![0u8; LEN]));
    });
}

#[test]
fn foreign_device_memory_is_transferred_by_address() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let file = FileHandle::register(&bed.driver, bed.file("data", &bytes)).unwrap();
        let mut memory = bed.device.alloc(LEN).unwrap();
        let ptr = memory.as_mut_ptr();
        // SAFETY: memory of this device, which nobody uses at the same time.
        let mut foreign = unsafe { BufSliceMut::from_device(&bed.device, ptr, LEN) };
        assert_eq!(file.read_at(&mut foreign.slice_mut(4096..), 4096).unwrap(), LEN - 4096);
        // SAFETY: as above.
        let foreign = unsafe { BufSlice::from_device(&bed.device, ptr, LEN) };
        assert!(foreign.location() == Location::device(bed.device.context()));
        assert_eq!(file.write_at(&foreign.slice(4096..8192), 0).unwrap(), 4096);
        assert!(std::fs::read(bed.path("data")).unwrap()[..4096] == bytes[4096..8192]);
        assert!(memory.to_vec().unwrap()[4096..] == bytes[4096..]);
    });
}

#[test]
fn registered_host_memory_is_still_a_slice() {
    let bed = Bed::emulated();
    let file = file(&bed, "data", b"0123456789");
    let mut buffer = registered(&bed, vec![0u8; 10]);
    file.read_at(&mut buffer, 0).unwrap();
    buffer.as_mut_slice()[0] = b'x';
    assert_eq!(buffer.get(), b"x123456789");
    assert_eq!(registered(&bed, bed.device.alloc_pinned(10).unwrap()).as_mut_slice(), [0; 10]);
}

#[test]
fn a_range_beyond_a_part_panics_or_is_refused() {
    let bed = Bed::emulated();
    let mut buffer = registered(&bed, bed.device.alloc(LEN).unwrap());
    let mut part = buffer.slice_mut(4096..8192);
    for (offset, len) in [(0, 4097), (4096, 1), (usize::MAX, 1), (1, usize::MAX), (usize::MAX - 4095, 4096)] {
        let end = offset.saturating_add(len);
        let beyond = catch_unwind(AssertUnwindSafe(|| part.slice_mut(offset..end).len_bytes()));
        assert!(beyond.is_err(), "{offset} {len}");
        assert!(refuses(&mut bed.device.alloc(10).unwrap(), offset), "{offset}");
        part = buffer.slice_mut(4096..8192);
    }

    fn refuses(buffer: &mut DeviceBuffer, offset: usize) -> bool {
        let beyond = |result: cufile::Result<()>| matches!(result, Err(Error::InvalidInput { .. }));
        let offset = offset.max(10);
        beyond(buffer.copy_from_host(offset, b"x")) && beyond(buffer.copy_to_host(offset, &mut [0]))
    }
}

/// The calls that libcufile got. A read has base address, offset and length. A deregistration has only the address.
static SEEN: Mutex<Vec<(usize, off_t, usize)>> = Mutex::new(Vec::new());

unsafe extern "C" fn read(_: CUfileHandle_t, base: *mut c_void, len: usize, _: off_t, at: off_t) -> isize {
    SEEN.lock().unwrap().push((base.addr(), at, len));
    len as isize
}

#[test]
fn parts_pass_the_registered_address_and_their_offset() {
    let emulator = Emulator::start();
    // SAFETY: the function keeps the contract of the one that it replaces.
    let driver = unsafe { open_with(&emulator, |functions| functions.cuFileRead = read) };
    let file = FileHandle::register(&driver, tempfile::tempfile().unwrap()).unwrap();
    let memory = driver.cuda().device(0).unwrap().alloc(LEN).unwrap();
    let base = memory.as_ptr().addr();
    let seen = |part: &mut dyn IoBufMut, range: Range<usize>| {
        file.read_at(&mut BufSliceMut::new(part, range.clone()), 0).unwrap();
        SEEN.lock().unwrap().pop().unwrap()
    };
    let mut buffer = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty()).unwrap();
    assert_eq!(seen(&mut buffer, 10..20), (base, 10, 10));
    assert_eq!(seen(&mut buffer.slice_mut(100..200), 10..20), (base, 110, 10));
    assert_eq!(seen(&mut buffer.slice_mut(100..).slice_mut(50..60), 1..9), (base, 151, 8));
    let last = buffer.slice_mut(..).chunks(1000).last();
    assert_eq!(seen(&mut last.unwrap(), 0..48), (base, 1_048_000, 48));
    let mut owned = OwnedPart::split(buffer, 1000);
    assert_eq!(seen(&mut owned[1], 10..20), (base, 1010, 10));
    assert_eq!(seen(&mut BufSliceMut::new(&mut owned[3], 7..), 0..5), (base, 3007, 5));
    owned.truncate(1);
    let buffer = owned.remove(0).into_whole().unwrap();
    // The part's own address identifies its registration.
    let mut memory = buffer.deregister().unwrap();
    let registered =
        driver.with_registered_mut(&mut memory.slice_mut(4096..), RegisterFlags::empty(), |mut part| {
            assert!(part.location().is_registered);
            assert_eq!(seen(&mut part.slice_mut(5..), 1..3), (base + 4096, 6, 2));
        });
    registered.unwrap();
}

#[test]
fn memory_is_freed_after_deregistration() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let live = || (emulator.live("buffers"), emulator.live("allocations"));
    let buffer = registered(&bed, bed.device.alloc(LEN).unwrap());
    assert_eq!(live(), (1, 1));
    drop(buffer);
    assert_eq!((live(), emulator.calls("cuFileBufDeregister")), ((0, 0), 1));
    let buffer = registered(&bed, bed.device.alloc(LEN).unwrap()).deregister().unwrap();
    assert_eq!((live(), emulator.calls("cuFileBufDeregister")), ((0, 1), 2));
    drop(buffer);
    assert_eq!((live(), emulator.calls("cuFileBufDeregister")), ((0, 0), 2));
}

#[test]
fn the_last_owned_part_deregisters_the_memory_once() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let live = || (emulator.live("buffers"), emulator.live("allocations"));
    let mut parts = OwnedPart::split(registered(&bed, bed.device.alloc(LEN).unwrap()), LEN / 8);
    parts.swap(0, 3);
    while let Some(part) = parts.pop() {
        assert_eq!((live(), emulator.calls("cuFileBufDeregister")), ((1, 1), 0));
        thread::spawn(|| drop(part)).join().unwrap();
    }
    assert_eq!((live(), emulator.calls("cuFileBufDeregister")), ((0, 0), 1));
    assert!(OwnedPart::split(bed.device.alloc(0).unwrap(), LEN).is_empty());
}

#[test]
fn memory_that_cannot_be_deregistered_is_never_freed() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.fault("cuFileBufDeregister", "err=5030 times=2");
    let buffer = registered(&bed, bed.device.alloc(LEN).unwrap());
    let (error, buffer) = buffer.deregister().unwrap_err().into_parts();
    assert_eq!(error.op_error(), Some(OpError::INTERNAL_ERROR), "{error}");
    drop(buffer);
    assert_eq!((emulator.live("buffers"), emulator.live("allocations")), (1, 1));

    // Memory that the library does not know as registered is no risk.
    emulator.fault("cuFileBufDeregister", "err=5024");
    drop(registered(&bed, bed.device.alloc(LEN).unwrap()));
    assert_eq!(emulator.live("allocations"), 1);
}

#[test]
fn borrowed_memory_is_deregistered_after_return_or_panic() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let mut memory = bed.device.alloc(LEN).unwrap();
    let none = RegisterFlags::empty();
    let counts = || (emulator.live("buffers"), emulator.calls("cuFileBufDeregister"));
    borrowed_mut(&bed, &mut memory, |_| assert_eq!(counts(), (1, 0)));
    assert_eq!(counts(), (0, 1));
    assert_eq!(bed.driver.with_registered(&memory, none, |part| part.len_bytes()).unwrap(), LEN);
    assert_eq!(counts(), (0, 2));
    let panics = || borrowed_mut(&bed, &mut memory, |_| panic!("work"));
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    assert_eq!(counts(), (0, 3));
    // A failed deregistration is tried once more, and libcufile may have forgotten the memory.
    for (fault, buffers, calls) in [("err=5030", 0, 5), ("err=5024 times=2", 1, 7)] {
        emulator.fault("cuFileBufDeregister", fault);
        assert_eq!(bed.driver.with_registered_mut(&mut memory, none, |part| part.len_bytes()).unwrap(), LEN);
        assert_eq!(counts(), (buffers, calls));
    }
}

#[test]
fn borrowed_memory_that_stays_registered_aborts() {
    let _name = "borrowed_memory_that_stays_registered_aborts";
    let refusing = |fault: &str| {
        let bed = Bed::emulated();
        bed.emulator.as_ref().unwrap().fault("cuFileBufDeregister", fault);
        (bed.device.alloc(LEN).unwrap(), bed)
    };
    let none = RegisterFlags::empty();
    aborts("borrowed memory is still registered: cuFileBufDeregister: ", || {
        let (memory, bed) = refusing("err=5030 times=2");
        let _ = bed.driver.with_registered(&memory, none, |_| ());
    });
    aborts("borrowed memory is still registered", || {
        let (mut memory, bed) = refusing("err=5030 times=1");
        let work = || borrowed_mut(&bed, &mut memory, |_| panic!("work"));
        let _ = catch_unwind(AssertUnwindSafe(work));
    });
}

#[test]
fn memory_of_another_libcuda_is_refused() {
    let (bed, other) = (Bed::emulated(), Bed::emulated());
    let file = file(&bed, "data", &pattern(LEN));
    let cuda = bed.driver.cuda();
    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: cufile::Result<T>) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidInput { .. }), "{error}");
        assert!(error.to_string().contains("another libcuda"), "{error}");
    }
    let mut own = bed.device.alloc(LEN).unwrap();
    let foreign: [Box<dyn IoBufMut>; 3] = [
        Box::new(other.device.alloc(LEN).unwrap()),
        Box::new(other.device.alloc_pinned(LEN).unwrap()),
        Box::new(other.device.alloc_mapped(2 << 20).unwrap()),
    ];
    for mut memory in foreign {
        refused(file.read_at(&mut memory, 0));
        refused(file.write_at(&memory, 0));
        refused(file.readv_at::<&mut dyn IoBufMut>(&mut [&mut memory, &mut own], 0));
        refused(cuda.device_of(&memory));
        refused(bed.driver.with_registered(&memory, RegisterFlags::empty(), |_| ()));
        if !memory.location().is_host_accessible {
            let mut bytes = vec![0; memory.len_bytes()];
            refused(cuda.copy(&memory, &mut bytes));
            refused(cuda.copy(&bytes, &mut memory));
            refused(cuda.fill(&mut memory, 0));
        }
    }
    refused(register(&bed, other.device.alloc(LEN).unwrap()));
    // The bytes in the first buffer stay.
    let mut memory = other.device.alloc(LEN).unwrap();
    let read = file.readv_at::<&mut dyn IoBufMut>(&mut [&mut own, &mut memory], 0).unwrap();
    assert_eq!(read, LEN);
}

#[test]
fn a_registration_keeps_the_driver_open() {
    let emulator = Emulator::start();
    let (library, cuda) = libraries(&emulator);
    let driver = Driver::builder().library(library).cuda(cuda).open().unwrap();
    let buffer = RegisteredBuffer::register(&driver, vec![0u8; 10], RegisterFlags::empty()).unwrap();
    let (error, driver) = driver.close().unwrap_err().into_parts();
    assert!(matches!(error, Error::InUse { users: 1, .. }), "{error}");
    drop(driver);
    assert_eq!(emulator.live("use-count"), 1);
    drop(buffer);
    assert_eq!((emulator.live("use-count"), emulator.live("buffers")), (0, 0));
}

#[test]
fn a_thread_without_a_context_registers_and_deregisters() {
    Bed::each(|bed| {
        let memory = bed.device.alloc(LEN).unwrap();
        thread::scope(|threads| {
            let buffer = threads.spawn(|| registered(bed, memory)).join().unwrap();
            threads.spawn(|| buffer.deregister().unwrap()).join().unwrap();
        });
    });
}

#[test]
fn refused_buffers_are_returned() {
    Bed::each(|bed| {
        let managed = bed.device.alloc_managed(4096).unwrap();
        let address = managed.as_ptr();
        let failed = RegisteredBuffer::register(&bed.driver, managed, RegisterFlags::empty()).unwrap_err();
        assert!(failed.to_string().contains("managed memory"), "{failed}");
        let (error, managed) = failed.into_parts();
        assert_eq!((error.op_error(), managed.as_ptr()), (Some(OpError::CUDA_MEMORY_TYPE_INVALID), address));
    });
}

#[test]
fn one_shared_buffer_serves_many_writes() {
    Bed::each(|bed| {
        let bytes: Arc<[u8]> = pattern(5000).into();
        let file = Arc::new(FileHandle::register(&bed.driver, bed.file("data", b"")).unwrap());
        let source =
            RegisteredBuffer::register(&bed.driver, Arc::clone(&bytes), RegisterFlags::empty()).unwrap();
        let source = Arc::new(source);
        let mut batch = Batch::new(&bed.driver, 2).unwrap();
        let entry = |offset| Entry::write(&file, Arc::clone(&source), offset);
        batch.submit([entry(0), entry(8192)]).unwrap();
        for completion in batch.wait_all().unwrap() {
            assert_eq!(completion.result.unwrap(), 5000);
        }
        let written = fs::read(bed.path("data")).unwrap();
        assert!(written[..5000] == bytes[..] && written[8192..] == bytes[..]);
    });
}
