//! Tests of cufile's file handles: registration, reads and writes, and soundness.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicI32, Ordering};

use cufile::params::Param;
use cufile::{
    BufSlice, BufSliceMut, Error, ErrorKind, Failed, FileHandle, FileType, IoBuf, IoBufMut, Library, OpError,
    Result, Version,
};
use cufile_sys::CUfileHandle_t;
use testkit::bed::{Bed, libraries, open_with, pattern};
use testkit::{Emulator, in_threads};

const LEN: usize = 100_000;

fn registered(bed: &Bed, name: &str) -> (FileHandle, Vec<u8>) {
    let bytes = pattern(LEN);
    let handle = FileHandle::register(&bed.driver, bed.file(name, &bytes)).expect("the file registers");
    (handle, bytes)
}

fn device_copy(bed: &Bed, bytes: &[u8]) -> cufile::cuda::DeviceBuffer {
    let mut buffer = bed.device.alloc(bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

fn read_only(bed: &Bed, name: &str) -> FileHandle {
    bed.file(name, &pattern(LEN));
    FileHandle::register(&bed.driver, File::open(bed.path(name)).unwrap()).unwrap()
}

fn errno(result: Result<usize>) -> Option<i32> {
    match result.unwrap_err() {
        Error::Io { source, .. } => source.raw_os_error(),
        other => panic!("{other}"),
    }
}

#[test]
fn every_memory_kind_reads_and_writes() {
    Bed::each(|bed| {
        let (file, bytes) = registered(bed, "data");
        let copy = FileHandle::register(&bed.driver, bed.file("copy", b"")).unwrap();
        let check = |kind: &str, mut buffer: Box<dyn IoBufMut>, look: fn(&Bed, &dyn IoBuf) -> Vec<u8>| {
            assert_eq!(file.read_at(&mut buffer, 0).unwrap(), LEN, "{kind}");
            assert!(look(bed, &buffer) == bytes, "{kind}");
            assert_eq!(copy.write_at(&buffer, 17).unwrap(), LEN, "{kind}");
            assert!(fs::read(bed.path("copy")).unwrap()[17..] == bytes, "{kind}");
            // The next kind must find none of these bytes.
            copy.write_at(&vec![0u8; LEN], 17).unwrap();
        };
        fn through_a_file(bed: &Bed, buffer: &dyn IoBuf) -> Vec<u8> {
            let file = FileHandle::register(&bed.driver, bed.file("look", b"")).unwrap();
            file.write_at(buffer, 0).unwrap();
            drop(file);
            let bytes = fs::read(bed.path("look")).unwrap();
            fs::remove_file(bed.path("look")).unwrap();
            bytes
        }
        check("device", Box::new(bed.device.alloc(LEN).unwrap()), through_a_file);
        check("pinned", Box::new(bed.device.alloc_pinned(LEN).unwrap()), through_a_file);
        check("managed", Box::new(bed.device.alloc_managed(LEN).unwrap()), through_a_file);
        check("vector", Box::new(vec![0u8; LEN]), through_a_file);
        let mut slice = [0u8; 1000];
        assert_eq!(file.read_at(&mut slice[..], 500).unwrap(), 1000);
        assert_eq!(slice[..], bytes[500..1500]);
    });
}

#[test]
fn reads_fill_uninitialised_memory() {
    Bed::each(|bed| {
        let (file, bytes) = registered(bed, "data");
        let mut memory = Vec::with_capacity(1001);
        assert_eq!(file.read_uninit_at(memory.spare_capacity_mut(), 77).unwrap().len(), memory.capacity());
        let end = LEN as u64 - 300;
        assert_eq!(file.read_uninit_at(memory.spare_capacity_mut(), end).unwrap(), &bytes[LEN - 300..]);
        assert_eq!(file.read_uninit_at(&mut memory.spare_capacity_mut()[..7], 5).unwrap(), &bytes[5..12]);
        assert!(file.read_uninit_at(memory.spare_capacity_mut(), LEN as u64).unwrap().is_empty());
        assert!(file.read_uninit_at(&mut [], 0).unwrap().is_empty());
        assert_eq!(
            file.read_uninit_at(memory.spare_capacity_mut(), u64::MAX).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    });
}

#[test]
fn counts_greater_than_asked_for_are_errors() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let (file, bytes) = registered(&bed, "data");
    let mut two = [vec![0; 500], vec![0; 500]];
    let mut memory = Vec::with_capacity(1000);
    let mut buffer = vec![0u8; 1000];
    let checked = |function: &str, result: Result<usize, Error>| {
        let error = result.unwrap_err();
        assert_eq!((error.raw_code(), error.kind()), (Some(libc::EIO), ErrorKind::Io));
        let named = format!("1001 bytes of at most 1000 from {function}(1000 bytes at 0 of ");
        assert!(error.to_string().starts_with(&named), "{error}");
    };
    for function in ["cuFileRead", "cuFileWrite", "cuFileReadv", "cuFileWritev"] {
        emulator.fault(function, "times=all ret=1001");
    }
    checked("cuFileRead", file.read_at(&mut buffer, 0));
    checked("cuFileRead", file.read_at(&mut BufSliceMut::new(&mut bytes.clone(), 7..1007), 0));
    checked("cuFileRead", file.read_exact_at(&mut buffer, 0).map(|()| 0));
    checked("cuFileRead", file.read_uninit_at(&mut memory.spare_capacity_mut()[..1000], 0).map(|_| 0));
    checked("cuFileWrite", file.write_at(&buffer, 0));
    checked("cuFileWrite", file.write_at(&BufSlice::new(&bytes, 7..1007), 0));
    checked("cuFileWrite", file.write_all_at(&buffer, 0).map(|()| 0));
    checked("cuFileReadv", file.readv_at(&mut two, 0));
    checked("cuFileWritev", file.writev_at(&two, 0));
    emulator.control("clear");
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 1000);
}

#[test]
fn reads_are_short_only_at_the_end() {
    Bed::each(|bed| {
        let (file, bytes) = registered(bed, "data");
        let mut device = bed.device.alloc(1000).unwrap();
        let mut host = vec![0u8; 1000];
        assert_eq!(file.read_at(&mut device, LEN as u64 - 300).unwrap(), 300);
        assert_eq!(file.read_at(&mut host, LEN as u64 - 300).unwrap(), 300);
        // The bytes behind those read are undefined: libcufile copies whole bounce buffers to the device.
        assert!(device.to_vec().unwrap()[..300] == bytes[LEN - 300..] && host[..300] == bytes[LEN - 300..]);
        // But it copies no further than the range that was asked for.
        let mut wide = device_copy(bed, &[0xee; 3 << 20]);
        let (start, len) = (1 << 20, (1 << 20) + 77);
        assert_eq!(file.read_at(&mut wide.slice_mut(start..start + len), LEN as u64 - 300).unwrap(), 300);
        let read = wide.to_vec().unwrap();
        assert!(read[..start].iter().chain(&read[start + len..]).all(|byte| *byte == 0xee));
        for offset in [LEN as u64, 1 << 40] {
            assert_eq!(file.read_at(&mut device, offset).unwrap(), 0);
            assert_eq!(file.read_at(&mut host, offset).unwrap(), 0);
        }
    });
}

#[test]
fn empty_buffers_transfer_no_bytes() {
    Bed::each(|bed| {
        let (file, _) = registered(bed, "data");
        assert_eq!(file.read_at(&mut bed.device.alloc(0).unwrap(), 0).unwrap(), 0);
        assert_eq!(file.read_at(&mut bed.device.alloc_pinned(0).unwrap(), 0).unwrap(), 0);
        assert_eq!(file.read_at(&mut Vec::new(), 0).unwrap(), 0);
        assert_eq!(file.write_at(&bed.device.alloc(0).unwrap(), 0).unwrap(), 0);
        assert_eq!(file.read_at(&mut BufSliceMut::new(&mut vec![0u8; 9], 9..), 0).unwrap(), 0);
    });
}

#[test]
fn unaligned_ranges_change_only_their_bytes() {
    Bed::each(|bed| {
        let (file, bytes) = registered(bed, "data");
        let mut buffer = device_copy(bed, &[0xee; 5000]);
        for (offset, len, at) in [(1, 4095, 4097), (4096, 1, 0), (123, 4000, 77_777), (0, 5000, 511)] {
            buffer.fill(0xee).unwrap();
            assert_eq!(file.read_at(&mut buffer.slice_mut(offset..offset + len), at).unwrap(), len);
            let read = buffer.to_vec().unwrap();
            let at = at as usize;
            assert!(read[offset..offset + len] == bytes[at..at + len], "{offset} {len} {at}");
            assert!(read[..offset].iter().chain(&read[offset + len..]).all(|byte| *byte == 0xee));
        }
        buffer.copy_from_host(0, &[7; 5000]).unwrap();
        assert_eq!(file.write_at(&buffer.slice(3..4102), 4095).unwrap(), 4099);
        let mut expected = bytes;
        expected[4095..4095 + 4099].fill(7);
        assert!(fs::read(bed.path("data")).unwrap() == expected);
    });
}

#[test]
fn offsets_beyond_off_t_never_reach_the_library() {
    let bed = Bed::emulated();
    let (file, _) = registered(&bed, "data");
    let mut device = bed.device.alloc(4096).unwrap();
    for offset in [1 << 63, u64::MAX] {
        assert_eq!(file.read_at(&mut device, offset).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.write_at(&device, offset).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let emulator = bed.emulator.as_ref().unwrap();
    assert_eq!((emulator.calls("cuFileRead"), emulator.calls("cuFileWrite")), (0, 0));
}

#[test]
fn writing_a_read_only_file_is_permission_denied() {
    let check = |bed: &Bed| {
        let file = read_only(bed, "data");
        let error = file.write_at(&vec![1u8; 10], 0).unwrap_err();
        assert_not_writable(bed, &error);
        if has_a_code_for_not_writable(bed) {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(file.read_at(&mut vec![0u8; 10], 0).unwrap(), 10);
    };
    Bed::each(check);
    check(&Bed::emulated_as("1.15"));
}

fn has_a_code_for_not_writable(bed: &Bed) -> bool {
    bed.driver.library().version() >= (Version { major: 1, minor: 16 })
}

fn assert_not_writable(bed: &Bed, error: &Error) {
    let code = OpError::INVALID_FILE_OPEN_FLAG.as_raw();
    let expected = if has_a_code_for_not_writable(bed) { code } else { libc::EIO };
    assert_eq!(error.raw_code(), Some(expected), "{error}");
}

#[test]
fn failed_transfers_decode_from_every_c_form() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let (file, _) = registered(&bed, "data");
    let mut buffer = vec![0u8; 1000];
    let mut fail = |settings: &str| {
        emulator.fault("cuFileRead", settings);
        file.read_at(&mut buffer, 0)
    };
    assert_eq!(errno(fail("errno=5")), Some(libc::EIO));
    assert_eq!(errno(fail("errno=28")), Some(libc::ENOSPC));
    assert_eq!(fail("errno=5022").unwrap_err().op_error(), Some(OpError::INVALID_VALUE));
    // Below −1, the value counts, not the errno beside it.
    assert_eq!(fail("ret=-5016 errno=5").unwrap_err().op_error(), Some(OpError::INVALID_MAPPING_SIZE));
    assert_eq!(errno(fail("ret=-22")), Some(libc::EINVAL));
    assert_eq!(fail("ret=-5777").unwrap_err().raw_code(), Some(5777));
    // A count stays a count beside any errno.
    assert_eq!(fail("ret=0 errno=25").unwrap(), 0);
    assert_eq!(fail("short=100").unwrap(), 100);
    let error = fail("errno=5").unwrap_err();
    let path = bed.path("data");
    let text = error.to_string();
    assert!(text.starts_with(&format!("cuFileRead(1000 bytes at 0 of {path:?}): ")), "{text}");

    // An errno of an earlier call does not count for this one.
    emulator.fault("cuFileRead", "ret=-1");
    // SAFETY: the location is the calling thread's.
    unsafe { *libc::__errno_location() = libc::ENOSPC };
    let error = file.read_at(&mut buffer, 0).unwrap_err();
    assert!(matches!(error, Error::Unspecified { .. }), "{error}");
    assert!(error.to_string().contains("/data\")"), "{error}");

    // A path must not write to the terminal that shows it.
    let (file, _) = registered(&bed, "red \u{1b}[31m\n");
    emulator.fault("cuFileRead", "errno=5");
    let text = file.read_at(&mut buffer, 0).unwrap_err().to_string();
    assert!(text.contains(r#"/red \u{1b}[31m\n")"#) && !text.contains('\u{1b}'), "{text:?}");

    emulator.fault("cuFileWrite", "errno=28");
    assert_eq!(io::Error::from(file.write_at(&buffer, 0).unwrap_err()).raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn refused_files_explain_the_reason() {
    Bed::each(|bed| {
        let register = |file: File| FileHandle::register(&bed.driver, file).unwrap_err();
        let directory = bed.path("folder");
        fs::create_dir(&directory).unwrap();
        let error = register(File::open(&directory).unwrap());
        assert_eq!(error.op_error(), Some(OpError::INVALID_FILE_TYPE), "{error}");
        let text = error.to_string();
        assert!(text.contains("it is a directory") && text.contains(directory.to_str().unwrap()), "{text}");
        let error = register(File::open("/dev/zero").unwrap());
        assert!(error.to_string().contains("character device"), "{error}");

        let path = bed.path("data");
        bed.file("data", b"some bytes");
        for (flag, name) in [(libc::O_APPEND, "O_APPEND"), (libc::O_NONBLOCK, "O_NONBLOCK")] {
            let open = OpenOptions::new().read(true).write(true).custom_flags(flag).open(&path).unwrap();
            let error = register(open);
            assert_eq!(error.op_error(), Some(OpError::INVALID_FILE_OPEN_FLAG), "{error}");
            assert!(error.to_string().contains(&format!("open it without {name}")), "{error}");
        }
        for flag in [libc::O_SYNC, libc::O_DSYNC, libc::O_NOATIME] {
            let open = OpenOptions::new().read(true).write(true).custom_flags(flag).open(&path).unwrap();
            FileHandle::register(&bed.driver, open).unwrap();
        }
    });
}

#[test]
fn errors_explain_old_libraries_and_missing_udev() {
    let bed = Bed::emulated_as("1.14");
    let file = bed.file("data", b"bytes");
    let file_system = cufile::FileProperties::of(&file).unwrap().file_system;
    bed.emulator.as_ref().unwrap().fault("cuFileHandleRegister", "err=5030");
    let text = FileHandle::register(&bed.driver, file).unwrap_err().to_string();
    assert!(text.contains("cuFileHandleRegister(") && text.contains(&file_system), "{text}");
}

#[test]
fn handles_show_properties_and_return_the_descriptor() {
    Bed::each(|bed| {
        let (file, bytes) = registered(bed, "data");
        let properties = file.properties().unwrap();
        assert_eq!(properties.file_type, FileType::Regular);
        assert_eq!(properties.open_flags & libc::O_ACCMODE, libc::O_RDWR);
        let number = file.descriptor().unwrap().as_raw_fd();
        let descriptor = file.deregister().expect("registered with a descriptor");
        assert_eq!(descriptor.as_raw_fd(), number);
        // Deregistered once, it registers again.
        let again = FileHandle::register(&bed.driver, descriptor).unwrap();
        let mut read = vec![0u8; LEN];
        again.read_at(&mut read, 0).unwrap();
        assert!(read == bytes);
    });
}

#[test]
fn one_file_can_be_registered_by_two_descriptors() {
    Bed::each(|bed| {
        let (first, _) = registered(bed, "data");
        let second = FileHandle::register(&bed.driver, File::open(bed.path("data")).unwrap()).unwrap();
        first.write_at(&vec![9u8; 10], 5).unwrap();
        let mut read = vec![0u8; 10];
        second.read_at(&mut read, 5).unwrap();
        assert_eq!(read, [9; 10]);
    });
}

#[test]
fn a_handle_keeps_the_driver_open() {
    let bed = Bed::emulated();
    let (file, bytes) = registered(&bed, "data");
    let Bed { driver, emulator, .. } = &bed;
    let emulator = emulator.as_ref().unwrap();
    let (error, driver) = driver.clone().close().unwrap_err().into_parts();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    drop(driver);
    let library = Library::from_sys(emulator.cufile()).unwrap();
    let alone = cufile::Driver::builder().library(library).cuda(bed.driver.cuda().clone()).open().unwrap();
    assert_eq!(emulator.live("use-count"), 2);
    let handle = FileHandle::register(&alone, File::open(bed.path("data")).unwrap()).unwrap();
    drop(alone);
    assert_eq!(emulator.live("use-count"), 2);
    let mut read = vec![0u8; LEN];
    handle.read_at(&mut read, 0).unwrap();
    assert!(read == bytes);
    drop(handle);
    assert_eq!((emulator.live("use-count"), emulator.live("handles")), (1, 1));
    drop(file);
    assert_eq!(emulator.live("handles"), 0);
}

#[test]
fn the_descriptor_closes_after_deregistration() {
    static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
    static SEEN: AtomicI32 = AtomicI32::new(0);
    fn is_open(descriptor: RawFd) -> bool {
        // SAFETY: the call takes integers.
        unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
    }
    unsafe extern "C" fn deregister(_: CUfileHandle_t) {
        SEEN.store(if is_open(DESCRIPTOR.load(Ordering::SeqCst)) { 1 } else { 2 }, Ordering::SeqCst);
    }
    let emulator = Emulator::start();
    // SAFETY: the function keeps the contract of the one that it replaces.
    let driver = unsafe { open_with(&emulator, |functions| functions.cuFileHandleDeregister = deregister) };
    let handle = FileHandle::register(&driver, tempfile::tempfile().unwrap()).unwrap();
    // No other thread's file can get this number when it is free again.
    let number = handle.descriptor().unwrap().as_raw_fd();
    // SAFETY: the call takes integers.
    let high = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 900) };
    drop(handle);
    // SAFETY: the descriptor was just made, and nothing else owns it.
    let file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(high) };
    DESCRIPTOR.store(high, Ordering::SeqCst);
    drop(FileHandle::register(&driver, file).unwrap());
    assert_eq!(SEEN.load(Ordering::SeqCst), 1);
    assert!(!is_open(high));
}

#[test]
fn threads_without_a_context_share_a_handle() {
    Bed::each(|bed| {
        if let Some(emulator) = &bed.emulator {
            emulator.control("require-context 1");
        }
        let (file, bytes) = registered(bed, "data");
        let mut buffer = bed.device.alloc(LEN).unwrap();
        in_threads(buffer.slice_mut(..).chunks(4000).enumerate().map(|(index, mut part)| {
            let file = &file;
            move || {
                let len = part.len_bytes();
                assert_eq!(file.read_at(&mut part, index as u64 * 4000).unwrap(), len);
            }
        }));
        assert!(buffer.to_vec().unwrap() == bytes);
    });
}

/// Forks a child, whose exit code is the number of the first failed check.
fn in_a_fork(work: impl FnOnce() -> i32) {
    // SAFETY: the child only runs `work` and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: the alarm ends a child that hangs, and the child runs no destructor of the parent.
        unsafe {
            libc::alarm(20);
            libc::_exit(work());
        }
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the check that failed in the child");
}

#[test]
fn every_call_fails_in_a_forked_child() {
    use cufile::{RegisterFlags, RegisteredBuffer};

    Bed::each(|bed| {
        let (file, bytes) = registered(bed, "data");
        let spare = File::open(bed.path("data")).unwrap();
        let mut host = vec![0u8; 1000];
        let device = device_copy(bed, &bytes);
        let mut buffer = RegisteredBuffer::register(&bed.driver, device, RegisterFlags::empty()).unwrap();
        let driver = match &bed.emulator {
            Some(emulator) => {
                let (library, cuda) = libraries(emulator);
                cufile::Driver::builder().library(library).cuda(cuda).open().unwrap()
            }
            None => cufile::Driver::open().unwrap(),
        };
        // The child has its own copy of each. Its changes do not reach the parent's.
        let mut taken = Some((spare, driver));
        let forked = |result: Result<usize>| matches!(result, Err(Error::Forked));
        let handle = &file;
        let calls = || bed.emulator.as_ref().map(|emulator| emulator.live("handles"));
        let before = calls();
        in_a_fork(|| {
            let (spare, driver) = taken.take().unwrap();
            let checks = [
                forked(handle.read_at(&mut host, 0)),
                forked(handle.write_at(&host, 0)),
                forked(handle.readv_at(&mut [&mut host], 0)),
                forked(handle.writev_at(&[&host], 0)),
                forked(handle.read_at(&mut buffer, 0)),
                matches!(FileHandle::register(&bed.driver, spare), Err(Failed { error: Error::Forked, .. })),
                matches!(
                    RegisteredBuffer::register(&bed.driver, vec![0u8; 10], RegisterFlags::empty()),
                    Err(Failed { error: Error::Forked, .. })
                ),
                matches!(
                    bed.driver.with_registered(&host, RegisterFlags::empty(), |_| ()),
                    Err(Error::Forked)
                ),
                matches!(bed.driver.use_count(), Err(Error::Forked)),
                matches!(bed.driver.properties(), Err(Error::Forked)),
                matches!(bed.driver.library().params().get(Param::ALLOW_COMPAT_MODE), Err(Error::Forked)),
                matches!(driver.close(), Err(Failed { error: Error::Forked, .. })),
            ];
            match checks.iter().position(|check| !check) {
                Some(failed) => failed as i32 + 1,
                None => 0,
            }
        });
        let mut parts = (Some(file), Some(buffer));
        in_a_fork(|| {
            let buffer = parts.1.take().unwrap();
            let Err(failed @ Failed { error: Error::Forked, .. }) = buffer.deregister() else { return 1 };
            let buffer = failed.into_value();
            drop(buffer);
            drop(parts.0.take());
            0
        });
        assert_eq!(calls(), before);
        let (Some(file), Some(mut buffer)) = parts else { unreachable!("the parent's are its own") };
        bed.driver.cuda().fill(&mut buffer, 0).unwrap();
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), LEN);
        assert!(buffer.get().to_vec().unwrap() == bytes);
        buffer.deregister().unwrap();
        taken.unwrap().1.close().unwrap();
    });
}

// Vectored transfers. `cuFileReadv` came with 1.19. Each test below runs with it and without.

fn each_route(test: impl Fn(&Bed)) {
    Bed::each(&test);
    test(&Bed::emulated_as("1.18"));
}

#[test]
fn vectored_transfers_fill_buffers_in_order() {
    each_route(|bed| {
        let (file, bytes) = registered(bed, "data");
        let mut host = vec![0u8; 1000];
        let mut none = Vec::new();
        let mut device = bed.device.alloc(5000).unwrap();
        let mut empty = bed.device.alloc(0).unwrap();
        let mut pinned = bed.device.alloc_pinned(3).unwrap();
        let buffers: &mut [&mut dyn IoBufMut] =
            &mut [&mut none, &mut host, &mut empty, &mut device, &mut pinned];
        assert_eq!(file.readv_at(buffers, 77).unwrap(), 6003);
        assert!(host == bytes[77..1077]);
        assert!(device.to_vec().unwrap() == bytes[1077..6077]);
        assert!(pinned[..] == bytes[6077..6080]);

        let target = FileHandle::register(&bed.driver, bed.file("target", b"")).unwrap();
        let buffers: [&dyn IoBuf; 5] = [&pinned, &empty, &device, &none, &host];
        assert_eq!(target.writev_at(&buffers, 10).unwrap(), 6003);
        let written = fs::read(bed.path("target")).unwrap();
        let expected = [&[0; 10], &bytes[6077..6080], &bytes[1077..6077], &bytes[77..1077]].concat();
        assert!(written == expected);
    });
}

#[test]
fn vectored_reads_are_short_only_at_the_end() {
    each_route(|bed| {
        let (file, bytes) = registered(bed, "data");
        let mut buffers = [vec![0u8; 100], vec![0; 100], vec![0; 100]];
        assert_eq!(file.readv_at(&mut buffers, LEN as u64 - 150).unwrap(), 150);
        assert!(buffers.concat()[..150] == bytes[LEN - 150..]);
        assert_eq!(file.readv_at(&mut buffers, LEN as u64).unwrap(), 0);
        assert_eq!(file.readv_at(&mut buffers, 1 << 40).unwrap(), 0);
    });
}

#[test]
fn vectored_transfers_of_empty_buffers_move_no_bytes() {
    each_route(|bed| {
        let (file, _) = registered(bed, "data");
        assert_eq!(file.readv_at::<Vec<u8>>(&mut [], 0).unwrap(), 0);
        assert_eq!(file.writev_at::<Vec<u8>>(&[], 0).unwrap(), 0);
        assert_eq!(file.readv_at(&mut [Vec::new(), Vec::new()], 0).unwrap(), 0);
        assert_eq!(file.writev_at(&[bed.device.alloc(0).unwrap()], 0).unwrap(), 0);
    });
}

#[test]
fn vectored_transfers_split_beyond_one_call() {
    each_route(|bed| {
        let (file, bytes) = registered(bed, "data");
        let lengths: Vec<usize> =
            (0..3000).map(|index| if index % 7 == 3 { 0 } else { index % 40 }).collect();
        let total: usize = lengths.iter().sum();
        let mut memory = bed.device.alloc(total).unwrap();
        let mut rest = Some(memory.slice_mut(..));
        let mut buffers = Vec::new();
        for len in lengths {
            let (part, behind) = rest.take().unwrap().split_at(len);
            buffers.push(part);
            rest = Some(behind);
        }
        assert_eq!(file.readv_at(&mut buffers, 5).unwrap(), total);
        assert_eq!(file.writev_at(&buffers, 5 + total as u64).unwrap(), total);
        assert!(memory.to_vec().unwrap() == bytes[5..5 + total]);
        assert!(fs::read(bed.path("data")).unwrap()[5 + total..5 + 2 * total] == bytes[5..5 + total]);
    });
    let bed = Bed::emulated();
    let (file, _) = registered(&bed, "data");
    let emulator = bed.emulator.as_ref().unwrap();
    let mut buffers = vec![vec![0u8; 10]; 300];
    emulator.fault("cuFileReadv", "after=1 errno=5");
    assert_eq!(file.readv_at(&mut buffers, 0).unwrap(), 160);
    assert_eq!(emulator.calls("cuFileReadv"), 2);
    emulator.fault("cuFileReadv", "after=2 short=15");
    assert_eq!(file.readv_at(&mut buffers, 0).unwrap(), 335);
}

#[test]
fn vectored_transfers_beyond_the_largest_offset_are_refused() {
    each_route(|bed| {
        let (file, _) = registered(bed, "data");
        let mut buffers = [vec![0u8; 100], vec![0; 100]];
        for offset in [i64::MAX as u64 - 150, i64::MAX as u64 + 1, u64::MAX] {
            let error = file.readv_at(&mut buffers, offset).unwrap_err();
            assert!(matches!(error, Error::InvalidInput { .. }), "{offset}: {error}");
            let error = file.writev_at(&buffers, offset).unwrap_err();
            assert!(matches!(error, Error::InvalidInput { .. }), "{offset}: {error}");
        }
    });
}

#[test]
fn vectored_writes_to_read_only_files_fail() {
    each_route(|bed| {
        let file = read_only(bed, "data");
        assert_not_writable(bed, &file.writev_at(&[vec![1u8; 10]], 0).unwrap_err());
        // For several buffers, cuFileWritev returns only EINVAL, or EIO in 1.19.
        file.writev_at(&[vec![1u8; 10], vec![2; 10]], 0).unwrap_err();
        assert!(fs::read(bed.path("data")).unwrap() == pattern(LEN));
    });
}

#[test]
fn vectored_transfers_use_one_call_if_available() {
    let run = |bed: &Bed| {
        let (file, _) = registered(bed, "data");
        // An empty buffer is in no call.
        let mut buffers = [vec![0u8; 100], vec![0; 100], vec![], vec![0; 100]];
        assert_eq!(file.readv_at(&mut buffers, 0).unwrap(), 300);
        assert_eq!(file.writev_at(&buffers, 0).unwrap(), 300);
        let emulator = bed.emulator.as_ref().unwrap();
        ["cuFileReadv", "cuFileRead", "cuFileWritev", "cuFileWrite"].map(|name| emulator.calls(name))
    };
    assert_eq!(run(&Bed::emulated()), [1, 0, 1, 0]);
    assert_eq!(run(&Bed::emulated_as("1.18")), [0, 3, 0, 3]);
}

#[test]
fn vectored_transfers_return_bytes_before_a_failure() {
    let bed = Bed::emulated_as("1.18");
    let emulator = bed.emulator.as_ref().unwrap();
    let (file, bytes) = registered(&bed, "data");
    let mut buffers = [vec![0u8; 100], vec![0; 100], vec![0; 100]];
    emulator.fault("cuFileRead", "after=1 errno=5");
    assert_eq!(file.readv_at(&mut buffers, 0).unwrap(), 100);
    assert_eq!(emulator.calls("cuFileRead"), 2);
    emulator.fault("cuFileRead", "errno=5");
    assert_eq!(errno(file.readv_at(&mut buffers, 100)), Some(libc::EIO));
    emulator.fault("cuFileRead", "after=1 short=30");
    assert_eq!(file.readv_at(&mut buffers, 0).unwrap(), 130);
    assert!(buffers.concat()[..130] == bytes[..130] && buffers[2] == [0; 100]);
    emulator.fault("cuFileWrite", "after=2 errno=28");
    assert_eq!(file.writev_at(&buffers, 0).unwrap(), 200);

    let bed = Bed::emulated();
    let (file, _) = registered(&bed, "data");
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.fault("cuFileReadv", "errno=5");
    assert_eq!(errno(file.readv_at(&mut buffers, 0)), Some(libc::EIO));
    emulator.fault("cuFileReadv", "short=130");
    assert_eq!(file.readv_at(&mut buffers, 0).unwrap(), 130);
}

#[test]
fn vectored_transfers_use_each_buffers_context() {
    let run = |bed: Bed| {
        let emulator = bed.emulator.as_ref().unwrap();
        emulator.control("require-context 1");
        let (file, bytes) = registered(&bed, "data");
        let other = bed.driver.cuda().device(1).unwrap();
        let mut buffers = [bed.device.alloc(100).unwrap(), other.alloc(100).unwrap()];
        assert_eq!(file.readv_at(&mut buffers, 0).unwrap(), 200);
        assert!(buffers[1].to_vec().unwrap() == bytes[100..200]);
        assert_eq!(file.writev_at(&buffers, 0).unwrap(), 200);
        // Buffers of one context, with host memory between them, still go together.
        let mut host = vec![0u8; 10];
        let [first, _] = &mut buffers;
        let buffers: &mut [&mut dyn IoBufMut] = &mut [&mut host, first];
        assert_eq!(file.readv_at(buffers, 0).unwrap(), 110);
        emulator.calls("cuFileReadv")
    };
    assert_eq!(run(Bed::emulated()), 1);
    assert_eq!(run(Bed::emulated_as("1.18")), 0);
}

#[test]
fn exact_reads_and_whole_writes_continue_after_short_calls() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let (file, bytes) = registered(&bed, "data");
    let mut read = vec![0u8; 5000];
    emulator.fault("cuFileRead", "short=123");
    file.read_exact_at(&mut read, 77).unwrap();
    assert!(read == bytes[77..5077] && emulator.calls("cuFileRead") == 2);
    emulator.fault("cuFileWrite", "short=123");
    emulator.fault("cuFileWrite", "after=1 short=0");
    let error = file.write_all_at(&read, 0).unwrap_err();
    assert_eq!(error.io_kind(), io::ErrorKind::WriteZero, "{error}");
    assert!(error.to_string().contains("4877 bytes at 123 of "), "{error}");
    file.write_all_at(&bytes[..123], 0).unwrap();
    emulator.fault("cuFileWrite", "short=1");
    file.write_all_at(&read, LEN as u64 - 10).unwrap();
    file.sync_all().unwrap();
    let written = fs::read(bed.path("data")).unwrap();
    assert!(written[..LEN - 10] == bytes[..LEN - 10] && written[LEN - 10..] == read);
}

#[test]
fn failed_sync_is_an_error() {
    let bed = Bed::emulated();
    let (file, _) = registered(&bed, "data");
    file.sync_all().unwrap();
    // A device that cannot be synced takes the place of the file.
    let device = fs::File::open("/dev/null").unwrap();
    // SAFETY: the descriptor stays open. It belongs to another file from now on.
    assert!(unsafe { libc::dup2(device.as_raw_fd(), file.descriptor().unwrap().as_raw_fd()) } >= 0);
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.io_kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("fsync"), "{error}");
}

#[test]
fn exact_reads_beyond_the_end_name_the_end() {
    Bed::each(|bed| {
        let (file, _) = registered(bed, "data");
        let mut device = bed.device.alloc(1000).unwrap();
        file.read_exact_at(&mut device, LEN as u64 - 1000).unwrap();
        let error = file.read_exact_at(&mut device, LEN as u64 - 300).unwrap_err();
        assert_eq!(error.io_kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains(&format!("700 bytes at {LEN} of ")), "{error}");
        file.read_exact_at(&mut device.slice_mut(..0), u64::MAX).unwrap();
    });
}

#[test]
fn borrowed_descriptors_stay_open_after_deregistration() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let file = bed.file("data", &bytes);
        for _ in 0..2 {
            let handle = FileHandle::register_borrowed(&bed.driver, file.as_fd()).unwrap();
            let mut read = vec![0u8; LEN];
            handle.read_exact_at(&mut read, 0).unwrap();
            assert!(read == bytes);
            assert_eq!(handle.descriptor().unwrap().as_raw_fd(), file.as_raw_fd());
            handle.sync_all().unwrap();
            assert_eq!(bed.driver.clone().close().unwrap_err().kind(), ErrorKind::Busy);
        }
        assert_eq!(file.metadata().unwrap().len(), LEN as u64, "the descriptor is open still");
        let folder = File::open(bed.path("")).unwrap();
        let error = FileHandle::register_borrowed(&bed.driver, folder.as_fd()).unwrap_err();
        assert!(error.op_error().is_some(), "{error}");
    });
}

#[test]
fn refused_descriptors_are_returned() {
    Bed::each(|bed| {
        let folder = File::open(bed.path("")).unwrap();
        let number = folder.as_raw_fd();
        let (error, descriptor) = FileHandle::register(&bed.driver, folder).unwrap_err().into_parts();
        assert!(error.op_error().is_some(), "{error}");
        assert_eq!(descriptor.as_raw_fd(), number);
        assert!(File::from(descriptor).metadata().unwrap().is_dir());
    });
}
