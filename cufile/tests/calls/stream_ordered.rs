//! Tests of stream-ordered reads and writes: the bytes that they move, and memory that stays while in flight.

use std::ffi::c_void;
use std::fmt::Debug;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use cuda_rt_sys::driver::CUresult;
use cuda_rt_sys::runtime::{self, cudaError_t, cudaHostFn_t, cudaStream_t};
use cufile::cuda::{Cuda, DeviceBuffer, Stream};
use cufile::{
    Driver, Error, ErrorKind, Failed, FileHandle, IoBuf, IoBufMut, OpError, OwnedPart, RegisterFlags,
    RegisteredBuffer, RegisteredStream, StreamFlags,
};
use cufile_sys::{CUfileError_t, CUfileHandle_t, CUfileOpError, CUstream, Functions, off_t};
use testkit::bed::{Bed, libraries, open_with, pattern};
use testkit::in_flight::{Bomb, Gate, Life, Tracked, register};
use testkit::{Emulator, in_threads};

const PAGE: usize = 4096;

fn stream(bed: &Bed, flags: StreamFlags) -> RegisteredStream {
    let stream = bed.device.stream().unwrap();
    RegisteredStream::register(&bed.driver, stream, flags).unwrap()
}

fn device_copy(bed: &Bed, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = bed.device.alloc(bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

fn registered<B: IoBuf + 'static>(bed: &Bed, buffer: B) -> RegisteredBuffer<B> {
    RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty()).unwrap()
}

fn read_range<B: IoBufMut + Debug + 'static>(
    stream: &RegisteredStream,
    file: &Arc<FileHandle>,
    buffer: B,
    (at, len, from): (usize, usize, u64),
) -> (usize, B) {
    let range = stream.late_bound(&buffer, at, len, from).unwrap();
    stream.read_late(file, buffer, &range).unwrap().wait().unwrap()
}

/// Makes a first transfer of device memory: libcufile's preparations would otherwise wait behind a closed
/// gate.
fn warm_up(bed: &Bed, stream: &RegisteredStream, file: &Arc<FileHandle>) {
    stream.read_at(file, filled(bed, PAGE), 0).unwrap().wait().unwrap();
}

fn filled(bed: &Bed, len_bytes: usize) -> DeviceBuffer {
    device_copy(bed, &vec![0xee; len_bytes])
}

#[test]
fn reads_follow_earlier_writes_in_the_stream() {
    Bed::each(|bed| {
        let bytes = pattern(3 * PAGE);
        let file = register(bed, "data", &[]);
        let stream_without_flags = stream(bed, StreamFlags::empty());
        for flags in [StreamFlags::empty(), StreamFlags::all()] {
            let stream = stream(bed, flags);
            // The copies come before the gate, because they may have to wait behind it too.
            let (mut source, mut target) =
                (bed.device.alloc_pinned(3 * PAGE).unwrap(), bed.device.alloc_pinned(3 * PAGE).unwrap());
            source.copy_from_slice(&bytes);
            target.fill(0xee);
            warm_up(bed, &stream_without_flags, &file);
            let gate = Gate::close(stream.stream());
            let writing = stream.write_at(&file, source, 0).unwrap();
            let reading = stream.read_at(&file, target, 0).unwrap();
            assert!(!writing.is_done().unwrap() && !reading.is_done().unwrap());
            gate.open();
            let (count, buffer) = reading.wait().unwrap();
            assert_eq!(count, bytes.len());
            assert_eq!(buffer[..], bytes);
            assert!(writing.is_done().unwrap(), "{flags:?}");
            let (count, source) = writing.wait().unwrap();
            assert_eq!(count, bytes.len());
            assert_eq!(source[..], bytes);
        }
    });
}

#[test]
fn reads_end_at_the_end_of_the_file() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE + 100);
        let file = register(bed, "data", &bytes);
        let stream = stream(bed, StreamFlags::empty());
        let (count, buffer) = stream.read_at(&file, filled(bed, PAGE), PAGE as u64).unwrap().wait().unwrap();
        assert_eq!(count, 100);
        assert_eq!(buffer.to_vec().unwrap()[..100], bytes[PAGE..]);
        let (count, _) = stream.read_at(&file, buffer, 10 * PAGE as u64).unwrap().wait().unwrap();
        assert_eq!(count, 0);
    });
}

#[test]
fn ranges_reach_the_right_bytes_of_every_memory_kind() {
    Bed::each(|bed| {
        let bytes = pattern(4 * PAGE);
        let file = register(bed, "data", &bytes);
        let stream = stream(bed, StreamFlags::empty());
        let check = |found: &[u8]| {
            assert_eq!(found[PAGE..3 * PAGE], bytes[2 * PAGE..]);
            assert!(found[..PAGE].iter().chain(&found[3 * PAGE..]).all(|byte| *byte == 0xee));
        };
        let (at, len, from) = (PAGE, 2 * PAGE, 2 * PAGE as u64);

        let host = vec![0xee; 4 * PAGE];
        let (count, host) = read_range(&stream, &file, host, (at, len, from));
        assert_eq!(count, len);
        check(&host);
        let boxed = host.iter().map(|_| 0xee).collect::<Vec<u8>>().into_boxed_slice();
        check(&read_range(&stream, &file, boxed, (at, len, from)).1);
        let mut pinned = bed.device.alloc_pinned(4 * PAGE).unwrap();
        pinned.fill(0xee);
        check(&read_range(&stream, &file, pinned, (at, len, from)).1);
        let device = filled(bed, 4 * PAGE);
        let (_, device) = read_range(&stream, &file, device, (at, len, from));
        check(&device.to_vec().unwrap());
        let device = filled(bed, 4 * PAGE);
        let device = registered(bed, device);
        let (_, device) = read_range(&stream, &file, device, (at, len, from));
        check(&device.get().to_vec().unwrap());
    });
}

#[test]
fn values_out_of_bounds_never_reach_the_library() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(PAGE));
        let stream = stream(bed, StreamFlags::empty());
        let buffer = vec![0; 100];
        for (offset, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1), (1, usize::MAX)] {
            let error = stream.late_bound(&buffer, offset, len, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{offset} {len}");
        }
        let failed = stream.read_at(&file, buffer, u64::MAX).unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
        let failed = stream.write_at(&file, failed.into_buffer().unwrap(), u64::MAX).unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
        assert_eq!(failed.into_buffer().unwrap().len(), 100);
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.calls("cuFileReadAsync") + emulator.calls("cuFileWriteAsync"), 0);
        }
    });
}

#[test]
fn host_can_set_late_values_until_the_transfer_runs() {
    Bed::each(|bed| {
        let bytes = pattern(4 * PAGE);
        let file = register(bed, "data", &bytes);
        let stream = stream(bed, StreamFlags::empty());
        let buffer = registered(bed, vec![0xee; 4 * PAGE]);
        let gate = Gate::close(stream.stream());
        let late = stream.late_bound(&buffer, 0, 2 * PAGE, 0).unwrap();
        let reading = stream.read_late(&file, buffer, &late).unwrap();
        thread::spawn(move || {
            late.set_file_offset(3 * PAGE as u64).unwrap();
            late.set_buffer_offset(2 * PAGE).unwrap();
            late.set_len_bytes(PAGE).unwrap();
        })
        .join()
        .unwrap();
        gate.open();
        let (count, buffer) = reading.wait().unwrap();
        let buffer = buffer.get();
        assert_eq!(count, PAGE);
        assert_eq!(buffer[2 * PAGE..3 * PAGE], bytes[3 * PAGE..]);
        assert!(buffer[..2 * PAGE].iter().chain(&buffer[3 * PAGE..]).all(|byte| *byte == 0xee));
    });
}

#[test]
fn stream_functions_can_set_late_values() {
    Bed::each(|bed| {
        let bytes = pattern(4 * PAGE);
        let file = register(bed, "data", &bytes);
        let stream = stream(bed, StreamFlags::empty());
        let buffer = filled(bed, 4 * PAGE);
        let late = stream.late_bound(&buffer, 0, 4 * PAGE, 0).unwrap();
        let setter = late.clone();
        let set = move || {
            setter.set_file_offset(PAGE as u64).unwrap();
            setter.set_len_bytes(2 * PAGE).unwrap();
        };
        stream.stream().call_on_host(set).unwrap();
        let (count, buffer) = stream.read_late(&file, buffer, &late).unwrap().wait().unwrap();
        assert_eq!(count, 2 * PAGE);
        assert_eq!(buffer.to_vec().unwrap()[..2 * PAGE], bytes[PAGE..3 * PAGE]);

        let source = registered(bed, device_copy(bed, &bytes));
        let late = stream.late_bound(&source, 0, PAGE, 0).unwrap();
        let setter = late.clone();
        stream.stream().call_on_host(move || setter.set_buffer_offset(3 * PAGE).unwrap()).unwrap();
        stream.write_late(&file, source, &late).unwrap().wait().unwrap();
        let mut written = vec![0; PAGE];
        file.read_at(&mut written, 0).unwrap();
        assert_eq!(written, bytes[3 * PAGE..]);
    });
}

#[test]
fn late_values_cannot_reach_beyond_the_buffer() {
    let bed = Bed::emulated();
    let stream = stream(&bed, StreamFlags::empty());
    let late = stream.late_bound(&registered(&bed, vec![0; 100]), 10, 60, 0).unwrap();
    let refused = |result: Result<(), Error>| assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
    refused(late.set_len_bytes(61));
    refused(late.set_len_bytes(usize::MAX));
    // The longest transfer must fit, not the present one. The two values are not set at one moment.
    late.set_len_bytes(20).unwrap();
    let error = late.set_buffer_offset(41).unwrap_err();
    let text = "the longest transfer, of 60 bytes, does not fit at offset 41 of a buffer of 100 bytes";
    assert!(error.to_string().contains(text), "{error}");
    refused(Err(error));
    refused(late.set_buffer_offset(usize::MAX));
    late.set_buffer_offset(40).unwrap();
    // libcufile may have prepared for 20 bytes.
    refused(late.set_len_bytes(21));
    refused(late.set_file_offset(1 << 63));
    late.set_file_offset((1 << 63) - 1).unwrap();
    assert_eq!((late.len_bytes(), late.buffer_offset(), late.file_offset()), (20, 40, (1 << 63) - 1));
    assert_eq!(stream.late_bound(&vec![0; 100], 41, 60, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn late_offsets_count_from_the_registered_address() {
    Bed::each(|bed| {
        let bytes = pattern(2 * PAGE);
        let file = register(bed, "data", &bytes);
        let stream = stream(bed, StreamFlags::empty());
        let mut parts = OwnedPart::split(registered(bed, vec![0xee; 6 * PAGE]), 2 * PAGE);
        let part = parts.remove(1);
        let reading = {
            let gate = Gate::close(stream.stream());
            let late = stream.late_bound(&part, 0, PAGE, 0).unwrap();
            let reading = stream.read_late(&file, part, &late).unwrap();
            reading.arguments().set_buffer_offset(PAGE).unwrap();
            assert_eq!(reading.arguments().buffer_offset(), PAGE);
            assert!(reading.arguments().set_buffer_offset(PAGE + 1).is_err());
            gate.open();
            reading
        };
        let (_, part) = reading.wait().unwrap();
        drop(parts);
        let whole = part.into_whole().unwrap();
        let all = whole.get();
        assert_eq!(all[3 * PAGE..4 * PAGE], bytes[..PAGE]);
        assert!(all[..3 * PAGE].iter().chain(&all[4 * PAGE..]).all(|byte| *byte == 0xee));
    });
}

#[test]
fn only_registered_memory_allows_a_late_buffer_offset() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE);
        let file = register(bed, "data", &bytes);
        let stream = stream(bed, StreamFlags::empty());
        let buffer = vec![0xee; 3 * PAGE];
        let late = stream.late_bound(&buffer, 2 * PAGE, PAGE, 0).unwrap();
        assert_eq!(late.buffer_offset(), 2 * PAGE);
        let error = late.set_buffer_offset(PAGE).unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && error.to_string().contains("registered"),
            "{error}"
        );
        let (_, buffer) = stream.read_late(&file, buffer, &late).unwrap().wait().unwrap();
        assert_eq!(buffer[2 * PAGE..], bytes);
        assert!(buffer[..2 * PAGE].iter().all(|byte| *byte == 0xee));
    });
}

#[test]
fn values_fixed_by_flags_cannot_be_set_late() {
    let bed = Bed::emulated();
    let buffer = registered(&bed, vec![0; 100]);
    let fixed = |flags| stream(&bed, flags).late_bound(&buffer, 0, 60, 0).unwrap();
    let late = fixed(StreamFlags::FIXED_FILE_SIZE);
    assert!(
        late.set_len_bytes(1).is_err()
            && late.set_buffer_offset(1).is_ok()
            && late.set_file_offset(1).is_ok()
    );
    let late = fixed(StreamFlags::FIXED_BUF_OFFSET);
    assert!(
        late.set_len_bytes(1).is_ok()
            && late.set_buffer_offset(1).is_err()
            && late.set_file_offset(1).is_ok()
    );
    let late = fixed(StreamFlags::FIXED_FILE_OFFSET);
    assert!(
        late.set_len_bytes(1).is_ok()
            && late.set_buffer_offset(1).is_ok()
            && late.set_file_offset(1).is_err()
    );
}

#[test]
fn page_aligned_flag_refuses_unaligned_arguments() {
    let bed = Bed::emulated();
    let file = register(&bed, "data", &pattern(PAGE));
    let stream = stream(&bed, StreamFlags::PAGE_ALIGNED_INPUTS);
    let unaligned = vec![0; 4 * PAGE];
    let at = unaligned.as_ptr().align_offset(PAGE) + 1;
    let unaligned = Box::leak(unaligned.into_boxed_slice());
    assert!(stream.late_bound(&&unaligned[at..], 0, PAGE, 0).is_err());
    let buffer = registered(&bed, bed.device.alloc_pinned(4 * PAGE).unwrap());
    for (at, len, from) in [(0, 100, 0), (1, PAGE, 0), (0, PAGE, 1)] {
        assert!(stream.late_bound(&buffer, at, len, from).is_err(), "{at} {len} {from}");
    }
    let late = stream.late_bound(&buffer, 0, 2 * PAGE, 0).unwrap();
    assert!(
        late.set_len_bytes(1).is_err()
            && late.set_buffer_offset(1).is_err()
            && late.set_file_offset(1).is_err()
    );
    assert_eq!(stream.read_late(&file, buffer, &late).unwrap().wait().unwrap().0, PAGE);
}

#[test]
fn late_arguments_fit_only_their_buffer_and_flags() {
    let bed = Bed::emulated();
    let file = register(&bed, "data", &pattern(PAGE));
    let (late_stream, fixed) = (stream(&bed, StreamFlags::empty()), stream(&bed, StreamFlags::all()));
    let late = late_stream.late_bound(&vec![0; 2 * PAGE], 0, PAGE, 0).unwrap();
    let failed = late_stream.read_late(&file, vec![0; PAGE], &late).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
    let failed = fixed.read_late(&file, vec![0; 2 * PAGE], &late).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
    let failed = late_stream.read_late(&file, registered(&bed, vec![0; 2 * PAGE]), &late).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
    let (count, _) = late_stream.read_late(&file, vec![0; 3 * PAGE], &late).unwrap().wait().unwrap();
    assert_eq!(count, PAGE);
}

#[test]
fn default_and_foreign_streams_work() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE);
        let file = register(bed, "data", &bytes);
        let elsewhere = bed.device.stream().unwrap();
        // SAFETY: the original outlives the copy.
        let copy = unsafe { Stream::from_raw(&bed.device, elsewhere.as_raw()) };
        for stream in [bed.device.default_stream(), copy] {
            let stream = RegisteredStream::register(&bed.driver, stream, StreamFlags::empty()).unwrap();
            let (count, buffer) = stream.read_at(&file, filled(bed, PAGE), 0).unwrap().wait().unwrap();
            assert_eq!((count, buffer.to_vec().unwrap()), (PAGE, bytes.clone()));
            stream.deregister().unwrap();
        }
        assert!(elsewhere.is_idle().unwrap(), "it was not destroyed");
    });
}

#[test]
fn transfers_keep_file_and_stream_alive() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE);
        let file = register(bed, "data", &bytes);
        let stream = stream(bed, StreamFlags::empty());
        warm_up(bed, &stream, &file);
        let buffer = filled(bed, PAGE);
        let gate = Gate::close(stream.stream());
        let reading = stream.read_at(&file, buffer, 0).unwrap();
        drop((file, stream));
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.live("handles"), 1);
            assert_eq!(emulator.live("stream-registrations"), 1);
            assert_eq!(emulator.live("streams"), 1);
        }
        gate.open();
        let (count, buffer) = reading.wait().unwrap();
        assert_eq!((count, buffer.to_vec().unwrap()), (PAGE, bytes));
        if let Some(emulator) = &bed.emulator {
            // Deregistering a stream that is destroyed already would fail and leave the registration.
            assert_eq!(emulator.live("stream-registrations"), 0);
            assert_eq!(emulator.live("handles"), 0);
            assert_eq!(emulator.live("streams"), 0);
            assert_eq!(emulator.live("events"), 0);
        }
    });
}

#[test]
fn used_streams_are_deregistered_when_the_last_one_drops() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE);
        let file = register(bed, "data", &bytes);
        let read = |stream: &RegisteredStream| {
            let buffer = filled(bed, PAGE);
            let (count, buffer) = stream.read_at(&file, buffer, 0).unwrap().wait().unwrap();
            assert_eq!((count, buffer.to_vec().unwrap()), (PAGE, bytes.clone()));
        };
        let registrations = |expected: i64| {
            if let Some(emulator) = &bed.emulator {
                assert_eq!(emulator.live("stream-registrations"), expected);
                assert_eq!(emulator.live("streams"), expected);
            }
        };
        let [stays, idle] = [(); 2].map(|()| stream(bed, StreamFlags::empty()));
        read(&stays);
        drop(idle);
        registrations(1);
        for round in 0..20 {
            read(&stream(bed, StreamFlags::empty()));
            registrations(2 + round);
        }
        let explicit = stream(bed, StreamFlags::empty());
        read(&explicit);
        explicit.deregister().unwrap();
        registrations(22);
        read(&stays);
        drop(stays);
        registrations(0);
        for _ in 0..3 {
            read(&stream(bed, StreamFlags::empty()));
            registrations(0);
        }
    });
}

#[test]
fn kept_streams_register_again_without_a_libcufile_call() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(PAGE));
        let read = |stream: &RegisteredStream| {
            assert_eq!(stream.read_at(&file, vec![0; PAGE], 0).unwrap().wait().unwrap().0, PAGE);
        };
        let stays = stream(bed, StreamFlags::empty());
        read(&stays);
        let raw = Arc::new(bed.device.stream().unwrap());
        let again = |flags| RegisteredStream::register(&bed.driver, Arc::clone(&raw), flags);
        for _ in 0..3 {
            read(&again(StreamFlags::empty()).unwrap());
        }
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.calls("cuFileStreamRegister"), 2);
            assert_eq!(emulator.live("stream-registrations"), 2);
        }
        let other_flags = StreamFlags::FIXED_FILE_SIZE;
        assert!(matches!(again(other_flags), Err(Failed { error: Error::InUse { .. }, .. })));
        drop(stays);
        read(&again(other_flags).unwrap());
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.live("stream-registrations"), 0);
        }
    });
}

#[test]
fn repeated_registrations_of_a_stream_share_one() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE);
        let file = register(bed, "data", &bytes);
        let read = |stream: &RegisteredStream| {
            assert_eq!(
                stream.read_at(&file, vec![0; PAGE], 0).unwrap().wait().unwrap(),
                (PAGE, bytes.clone())
            );
        };
        let register = |flags| RegisteredStream::register(&bed.driver, bed.device.default_stream(), flags);
        let flags = StreamFlags::FIXED_FILE_SIZE;
        for uses in [false, true] {
            let [first, second] = [(); 2].map(|()| register(flags).unwrap());
            if uses {
                read(&first);
                read(&second);
            }
            let other = register(StreamFlags::empty());
            assert!(matches!(other, Err(Failed { error: Error::InUse { users: 2, .. }, .. })), "{other:?}");
            first.deregister().unwrap();
            read(&second);
            drop(second);
            register(StreamFlags::empty()).unwrap();
        }
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.calls("cuFileStreamRegister"), 4);
            assert_eq!(emulator.live("stream-registrations"), 0);
        }
    });
}

#[test]
fn each_implicit_stream_is_the_null_stream() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE);
        let file = register(bed, "data", &bytes);
        // The null stream, `cudaStreamLegacy` and `cudaStreamPerThread`.
        let streams = [0, 1, 2].map(|handle| {
            // SAFETY: these streams are always alive.
            let stream = unsafe { Stream::from_raw(&bed.device, std::ptr::without_provenance_mut(handle)) };
            assert!(stream.as_raw().is_null(), "{handle}");
            RegisteredStream::register(&bed.driver, stream, StreamFlags::empty()).unwrap()
        });
        for stream in &streams {
            let (read, buffer) = stream.read_at(&file, vec![0; PAGE], 0).unwrap().wait().unwrap();
            assert!(read == PAGE && buffer == bytes);
        }
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.live("stream-registrations"), 1);
        }
    });
}

#[test]
fn default_streams_of_two_devices_share_one_registration() {
    let bed = Bed::emulated();
    let default = |gpu| {
        let stream = bed.driver.cuda().device(gpu).unwrap().default_stream();
        RegisteredStream::register(&bed.driver, stream, StreamFlags::empty())
    };
    let first = default(0).unwrap();
    assert!(matches!(default(1), Err(Failed { error: Error::InUse { users: 1, .. }, .. })));
    drop(first);
    default(1).unwrap();
}

#[test]
fn registrations_are_keyed_by_handle_and_library() {
    let (bed, other) = (Bed::emulated(), Bed::emulated());
    let register = |bed: &Bed, raw: usize, flags| {
        // SAFETY: the null stream, by either of its handles.
        let stream = unsafe { Stream::from_raw(&bed.device, ptr::without_provenance_mut(raw)) };
        RegisteredStream::register(&bed.driver, stream, flags)
    };
    let _null = register(&bed, 0, StreamFlags::empty()).unwrap();
    // `cudaStreamLegacy` is the null stream.
    let legacy = register(&bed, 1, StreamFlags::all());
    assert!(matches!(legacy, Err(Failed { error: Error::InUse { users: 1, .. }, .. })));
    // Other registrations at the same time change nothing.
    let _another = stream(&bed, StreamFlags::empty());
    let _legacy = register(&bed, 1, StreamFlags::empty()).unwrap();
    assert_eq!(bed.emulator.as_ref().unwrap().calls("cuFileStreamRegister"), 2);
    let _elsewhere = register(&other, 0, StreamFlags::all()).unwrap();
}

#[test]
fn any_kept_stream_can_be_registered_again() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(PAGE));
    let [stays, one, other] = [(); 3].map(|()| Arc::new(bed.device.stream().unwrap()));
    let used = |raw: &Arc<Stream>| {
        let stream = RegisteredStream::register(&bed.driver, Arc::clone(raw), StreamFlags::empty()).unwrap();
        stream.read_at(&file, vec![0; PAGE], 0).unwrap().wait().unwrap();
        stream
    };
    let first = used(&stays);
    drop((used(&one), used(&other)));
    let again = used(&one);
    drop((first, stays));
    assert_eq!(emulator.live("stream-registrations"), 3, "one is used");
    drop(again);
    assert_eq!(emulator.live("stream-registrations"), 0);
    assert_eq!(emulator.calls("cuFileStreamRegister"), 3);
}

#[test]
fn failed_transfers_are_one_error_with_errno() {
    let bed = Bed::emulated();
    let file = register(&bed, "data", &pattern(PAGE));
    let stream = stream(&bed, StreamFlags::empty());
    bed.emulator.as_ref().unwrap().fault("cuFileReadAsync", "bytes=-22");
    let failed = stream.read_at(&file, vec![0; PAGE], 0).unwrap().wait().unwrap_err();
    assert!(failed.to_string().starts_with("cuFileReadAsync: "), "{failed}");
    assert!(failed.to_string().contains("os error 22"), "{failed}");
    let source =
        std::error::Error::source(&failed).and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(libc::EINVAL), "{failed:?}");
}

#[test]
fn threads_can_register_and_drop_one_stream_concurrently() {
    let bed = Bed::emulated();
    let file = register(&bed, "data", &pattern(PAGE));
    in_threads((0..4).map(|thread| {
        let (bed, file) = (&bed, &file);
        move || {
            for round in 0..100 {
                let stream = bed.device.default_stream();
                let stream = RegisteredStream::register(&bed.driver, stream, StreamFlags::empty()).unwrap();
                if (round + thread) % 3 == 0 {
                    stream.read_at(file, vec![0; PAGE], 0).unwrap().wait().unwrap();
                }
            }
        }
    }));
    assert_eq!(bed.emulator.as_ref().unwrap().live("stream-registrations"), 0);
}

#[test]
fn streams_in_use_are_not_deregistered() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(PAGE));
        let stream = stream(bed, StreamFlags::empty());
        let reading = stream.read_at(&file, vec![0; PAGE], 0).unwrap();
        let (error, stream) = stream.deregister().unwrap_err().into_parts();
        assert!(matches!(error, Error::InUse { users: 1, .. }), "{error}");
        reading.wait().unwrap();
        stream.deregister().unwrap();
    });
}

#[test]
fn failed_deregistration_keeps_the_stream() {
    for uses in [false, true] {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        let file = register(&bed, "data", &pattern(PAGE));
        let raw = Arc::new(bed.device.stream().unwrap());
        let register = |flags| RegisteredStream::register(&bed.driver, Arc::clone(&raw), flags);
        let first = register(StreamFlags::empty()).unwrap();
        let read = |stream: &RegisteredStream| {
            if uses {
                stream.read_at(&file, vec![0; PAGE], 0).unwrap().wait().unwrap();
            }
        };
        read(&first);
        emulator.fault("cuFileStreamDeregister", "times=all err=5030");
        let (error, first) = first.deregister().unwrap_err().into_parts();
        assert_eq!(error.raw_code(), Some(5030));
        drop(first);
        let live = |what| emulator.live(what);
        assert_eq!((live("stream-registrations"), live("streams")), (1, 1));
        // A second registration is the same one.
        let (error, _) = register(StreamFlags::FIXED_FILE_SIZE).unwrap_err().into_parts();
        assert!(matches!(error, Error::InUse { users: 1, .. }), "{error}");
        let second = register(StreamFlags::empty()).unwrap();
        assert_eq!(emulator.calls("cuFileStreamRegister"), 1);
        read(&second);
        drop((second, raw));
        assert_eq!((live("stream-registrations"), live("streams")), (1, 1));
        // `cufile` tries again when another stream goes.
        emulator.control("clear");
        drop(stream(&bed, StreamFlags::empty()));
        assert_eq!((live("stream-registrations"), live("streams")), (0, 0));
    }
}

fn open_soon(gate: Gate, life: &Arc<Life>) -> thread::JoinHandle<()> {
    let life = Arc::clone(life);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        life.over.store(true, Ordering::SeqCst);
        gate.open();
    })
}

#[test]
fn drop_waits_before_freeing_the_buffer() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(PAGE));
        let stream = stream(bed, StreamFlags::empty());
        let gate = Gate::close(stream.stream());
        let (buffer, life) = Tracked::new(PAGE);
        let reading = stream.read_at(&file, buffer, 0).unwrap();
        let opener = open_soon(gate, &life);
        drop(reading);
        assert!(life.is_freed());
        opener.join().unwrap();
    });
}

#[test]
fn unwinding_waits_before_freeing_the_buffer() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(PAGE));
        let stream = stream(bed, StreamFlags::empty());
        let gate = Gate::close(stream.stream());
        let (buffer, life) = Tracked::new(PAGE);
        let opener = open_soon(gate, &life);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _reading = stream.read_at(&file, buffer, 0).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(caught.is_err() && life.is_freed());
        opener.join().unwrap();
    });
}

#[test]
fn forgotten_operations_leak_memory_in_use() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE);
        let file = register(bed, "data", &bytes);
        let raw_stream = Arc::new(bed.device.stream().unwrap());
        let stream =
            RegisteredStream::register(&bed.driver, Arc::clone(&raw_stream), StreamFlags::empty()).unwrap();
        let gate = Gate::close(&raw_stream);
        let (buffer, life) = Tracked::new(PAGE);
        let address = buffer.bytes().as_ptr();
        let mut forgotten = ManuallyDrop::new(stream.read_at(&file, buffer, 0).unwrap());
        drop((file, stream));
        // Freed memory would be given out again.
        let others: Vec<_> = (0..64).map(|_| vec![0xee_u8; PAGE]).collect();
        gate.open();
        raw_stream.synchronize().unwrap();
        assert!(!life.is_freed());
        // SAFETY: the buffer was leaked, and the read into it is over.
        assert_eq!(unsafe { std::slice::from_raw_parts(address, PAGE) }, bytes);
        assert!(others.iter().flatten().all(|byte| *byte == 0xee));
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.live("handles"), 1);
            assert_eq!(emulator.live("stream-registrations"), 1);
        }
        // libcufile may crash if the process ends with the driver open.
        life.over.store(true, Ordering::SeqCst);
        // SAFETY: the value is dropped once.
        unsafe { ManuallyDrop::drop(&mut forgotten) };
        assert!(life.is_freed());
    });
}

#[test]
fn failed_calls_return_the_buffer() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(PAGE));
    let stream = stream(&bed, StreamFlags::empty());
    emulator.fault("cuFileReadAsync", "err=5038");
    let (error, kept) = stream.read_at(&file, vec![7; PAGE], 0).unwrap_err().into_parts();
    let buffer = kept.into_buffer();
    assert_eq!(error.op_error(), Some(OpError::ASYNC_NOT_SUPPORTED));
    emulator.fault("cuFileWriteAsync", "err=5777");
    let (error, kept) = stream.write_at(&file, buffer.unwrap(), 0).unwrap_err().into_parts();
    let buffer = kept.into_buffer();
    assert_eq!(error.op_error(), Some(OpError::from_raw(5777)), "unknown codes are kept");
    assert_eq!(buffer.unwrap(), [7; PAGE]);
    // A failure before the call of libcufile does not wait for the stream.
    let gate = Gate::close(stream.stream());
    emulator.fault("cudaEventCreateWithFlags", "err=2");
    let (error, kept) = stream.read_at(&file, vec![7; PAGE], 0).unwrap_err().into_parts();
    let buffer = kept.into_buffer();
    assert!(error.kind() == ErrorKind::OutOfMemory && buffer.is_some());
    assert!(!stream.stream().is_idle().unwrap());
    gate.open();
    assert!(stream.deregister().is_ok(), "nothing refers to the stream");
}

static REAL_READ: OnceLock<ReadAsync> = OnceLock::new();

unsafe extern "C" fn queue_and_fail(
    file: CUfileHandle_t,
    base: *mut c_void,
    len_bytes: *mut usize,
    file_offset: *mut off_t,
    buffer_offset: *mut off_t,
    bytes: *mut isize,
    stream: CUstream,
) -> CUfileError_t {
    let real = REAL_READ.get().unwrap();
    // SAFETY: the caller keeps the promise.
    unsafe { real(file, base, len_bytes, file_offset, buffer_offset, bytes, stream) };
    CUfileError_t { err: CUfileOpError::CU_FILE_INTERNAL_ERROR, cu_err: CUresult::CUDA_SUCCESS }
}

#[test]
fn refused_calls_keep_the_buffer_until_the_stream_passes() {
    let bed = Bed::emulated();
    let queue_and_fail = |functions: &mut Functions| {
        REAL_READ.set(functions.cuFileReadAsync).unwrap();
        functions.cuFileReadAsync = queue_and_fail;
    };
    // SAFETY: the function keeps the contract of libcufile's.
    let driver = unsafe { open_with(bed.emulator.as_ref().unwrap(), queue_and_fail) };
    let bytes = pattern(PAGE);
    let file = Arc::new(FileHandle::register(&driver, bed.file("data", &bytes)).unwrap());
    let stream = bed.device.stream().unwrap();
    let stream = RegisteredStream::register(&driver, stream, StreamFlags::empty()).unwrap();
    for is_dropped in [true, false] {
        let (buffer, life) = Tracked::new(PAGE);
        let gate = Gate::close(stream.stream());
        let failed = stream.read_at(&file, buffer, 0).unwrap_err();
        assert_eq!(failed.error.op_error(), Some(OpError::INTERNAL_ERROR));
        assert!(!life.is_freed());
        let opener = open_soon(gate, &life);
        if is_dropped {
            drop(failed);
            assert!(life.is_freed());
        } else {
            let buffer = failed.into_buffer().unwrap();
            assert!(life.over.load(Ordering::SeqCst));
            assert_eq!(buffer.bytes(), bytes, "the transfer was in the stream");
        }
        opener.join().unwrap();
    }
    // The memory is not freed either if CUDA cannot tell.
    let (buffer, life) = Tracked::new(PAGE);
    let failed = stream.read_at(&file, buffer, 0).unwrap_err();
    bed.emulator.as_ref().unwrap().fault("cudaEventSynchronize", "err=700");
    assert!(failed.into_buffer().is_none() && !life.is_freed());
}

#[test]
fn a_capture_begun_during_submission_leaks_the_buffer() {
    let bed = Bed::emulated();
    let file = register(&bed, "data", &pattern(PAGE));
    let stream = stream(&bed, StreamFlags::empty());
    let (buffer, life) = Tracked::new(PAGE);
    // The first question is asked before the call.
    bed.emulator.as_ref().unwrap().fault("cudaStreamIsCapturing", "after=1 status=1");
    let failed = stream.read_at(&file, buffer, 0).unwrap_err();
    assert!(failed.to_string().contains("captured"), "{failed}");
    stream.stream().synchronize().unwrap();
    assert!(failed.into_buffer().is_none() && !life.is_freed());
}

#[test]
fn failed_transfers_of_every_form_return_the_buffer() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(PAGE));
    let stream = stream(&bed, StreamFlags::empty());
    let fail = |bytes: i64| {
        emulator.fault("cuFileReadAsync", &format!("bytes={bytes}"));
        let failed = stream.read_at(&file, vec![7; PAGE], 0).unwrap().wait().unwrap_err();
        let (error, kept) = failed.into_parts();
        let buffer = kept.into_buffer();
        assert_eq!(buffer.as_deref(), Some(&[7; PAGE][..]));
        error
    };
    assert_eq!(fail(-5016).op_error(), Some(OpError::INVALID_MAPPING_SIZE));
    assert_eq!(fail(-5777).op_error(), Some(OpError::from_raw(5777)));
    assert!(matches!(fail(-22), Error::Io { source, .. } if source.raw_os_error() == Some(22)));
    assert!(matches!(fail(-1), Error::Unspecified { .. }));
    emulator.fault("cuFileReadAsync", "short=5");
    assert_eq!(stream.read_at(&file, vec![7; PAGE], 0).unwrap().wait().unwrap().0, 5);
}

#[test]
fn buffers_leak_if_waiting_for_the_transfer_fails() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(PAGE));
    let stream = stream(&bed, StreamFlags::empty());
    for wait in [true, false] {
        let (buffer, life) = Tracked::new(PAGE);
        let reading = stream.read_at(&file, buffer, 0).unwrap();
        emulator.fault("cudaEventSynchronize", "err=700");
        if wait {
            let failed = reading.wait().unwrap_err();
            assert!(failed.error.kind() == ErrorKind::Cuda && failed.into_buffer().is_none());
        } else {
            drop(reading);
        }
        assert!(!life.is_freed());
    }
}

#[test]
fn operations_without_an_event_wait_for_the_stream() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let bytes = pattern(PAGE);
    let file = register(&bed, "data", &bytes);
    let stream = stream(&bed, StreamFlags::empty());
    emulator.fault("cudaEventRecord", "err=400 times=2");
    let gate = Gate::close(stream.stream());
    let reading = stream.read_at(&file, vec![0; PAGE], 0).unwrap();
    assert!(!reading.is_done().unwrap());
    gate.open();
    assert_eq!(reading.wait().unwrap(), (PAGE, bytes));
    let gate = Gate::close(stream.stream());
    let (buffer, life) = Tracked::new(PAGE);
    let reading = stream.read_at(&file, buffer, 0).unwrap();
    let opener = open_soon(gate, &life);
    drop(reading);
    assert!(life.is_freed());
    opener.join().unwrap();
}

#[test]
fn files_and_streams_of_another_library_are_refused() {
    let (bed, other) = (Bed::emulated(), Bed::emulated());
    let stream = stream(&bed, StreamFlags::empty());
    let failed = stream.read_at(&register(&other, "data", &[]), vec![0; PAGE], 0).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
    let foreign = other.device.stream().unwrap();
    let error = RegisteredStream::register(&bed.driver, foreign, StreamFlags::empty()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn many_threads_can_share_one_stream() {
    Bed::each(|bed| {
        let bytes = pattern(64 * PAGE);
        let file = register(bed, "data", &bytes);
        let stream = stream(bed, StreamFlags::empty());
        thread::scope(|scope| {
            for start in 0..8 {
                let (file, stream, bytes) = (&file, &stream, &bytes);
                scope.spawn(move || {
                    for page in (start..64).step_by(8) {
                        let reading = stream.read_at(file, vec![0; PAGE], (page * PAGE) as u64).unwrap();
                        let (count, buffer) = reading.wait().unwrap();
                        assert_eq!((count, &buffer[..]), (PAGE, &bytes[page * PAGE..][..PAGE]));
                    }
                });
            }
        });
    });
}

#[test]
fn streams_survive_panicking_host_functions() {
    Bed::each(|bed| {
        let stream = bed.device.stream().unwrap();
        stream.call_on_host(|| std::panic::resume_unwind(Box::new(Bomb))).unwrap();
        stream.call_on_host(|| std::panic::resume_unwind(Box::new("on purpose"))).unwrap();
        let called = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&called);
        stream.call_on_host(move || flag.store(true, Ordering::SeqCst)).unwrap();
        stream.synchronize().unwrap();
        assert!(called.load(Ordering::SeqCst));
    });
}

type LaunchHostFunc = unsafe extern "C" fn(cudaStream_t, cudaHostFn_t, *mut c_void) -> cudaError_t;

static REAL_LAUNCH: OnceLock<LaunchHostFunc> = OnceLock::new();

/// Queues the call twice, as two launches of a graph do, and then reports the failure of earlier work.
unsafe extern "C" fn launch_twice_and_fail(
    stream: cudaStream_t,
    function: cudaHostFn_t,
    data: *mut c_void,
) -> cudaError_t {
    let real = REAL_LAUNCH.get().unwrap();
    // SAFETY: the caller keeps the promise.
    unsafe {
        real(stream, function, data);
        real(stream, function, data);
    }
    cudaError_t::cudaErrorIllegalAddress
}

unsafe extern "C" fn launch_twice(
    stream: cudaStream_t,
    function: cudaHostFn_t,
    data: *mut c_void,
) -> cudaError_t {
    // SAFETY: the caller keeps the promise.
    unsafe { launch_twice_and_fail(stream, function, data) };
    cudaError_t::cudaSuccess
}

#[test]
fn host_functions_run_at_most_once() {
    let emulator = Emulator::start();
    let (_, plain) = libraries(&emulator);
    let mut functions = *emulator.runtime();
    REAL_LAUNCH.set(functions.cudaLaunchHostFunc).unwrap();
    for (launch, calls) in [(launch_twice as LaunchHostFunc, 1), (launch_twice_and_fail, 0)] {
        functions.cudaLaunchHostFunc = launch;
        // SAFETY: these are the emulator's functions, and one that keeps the contract of CUDA's.
        let runtime = unsafe { runtime::Library::from_functions(functions) };
        let cuda = Cuda::from_sys(emulator.driver(), runtime).unwrap();
        let stream = cuda.device(0).unwrap().stream().unwrap();
        let counter = Arc::<AtomicUsize>::default();
        // SAFETY: the stream outlives the copy.
        let plain = unsafe { Stream::from_raw(&plain.device(0).unwrap(), stream.as_raw()) };
        let gate = Gate::close(&plain);
        let counted = Arc::clone(&counter);
        let launched = stream.call_on_host(move || _ = counted.fetch_add(1, Ordering::SeqCst));
        assert_eq!(launched.is_ok(), calls == 1);
        gate.open();
        stream.synchronize().unwrap();
        assert_eq!(counter.load(Ordering::SeqCst), calls);
        assert_eq!(Arc::strong_count(&counter), 1, "it is dropped");
    }
}

#[test]
fn captured_streams_are_refused() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = Arc::new(FileHandle::register(&bed.driver, bed.file("data", &[1; PAGE])).unwrap());
    let stream = stream(&bed, StreamFlags::empty());
    let before = emulator.calls("cuFileReadAsync");
    emulator.control("fault cudaStreamIsCapturing status=1");
    assert!(
        matches!(stream.read_at(&file, vec![0; PAGE], 0), Err(failed) if failed.to_string().contains("captured"))
    );
    assert_eq!(emulator.calls("cuFileReadAsync"), before);
    assert_eq!(stream.read_at(&file, vec![0; PAGE], 0).unwrap().wait().unwrap(), (PAGE, vec![1; PAGE]));
}

fn with_read(bed: &Bed, read: ReadAsync) -> Driver {
    // SAFETY: the tests' functions keep the contract of the ones that they replace.
    unsafe { open_with(bed.emulator.as_ref().unwrap(), |functions| functions.cuFileReadAsync = read) }
}

type ReadAsync = unsafe extern "C" fn(
    CUfileHandle_t,
    *mut c_void,
    *mut usize,
    *mut off_t,
    *mut off_t,
    *mut isize,
    CUstream,
) -> CUfileError_t;

const SUCCESS: CUfileError_t =
    CUfileError_t { err: CUfileOpError::CU_FILE_SUCCESS, cu_err: CUresult::CUDA_SUCCESS };

#[test]
fn transfers_without_a_byte_count_are_errors_and_leak() {
    unsafe extern "C" fn silent(
        _: CUfileHandle_t,
        _: *mut c_void,
        _: *mut usize,
        _: *mut off_t,
        _: *mut off_t,
        _: *mut isize,
        _: CUstream,
    ) -> CUfileError_t {
        SUCCESS
    }
    let bed = Bed::emulated();
    let driver = with_read(&bed, silent);
    let file = Arc::new(FileHandle::register(&driver, bed.file("data", &pattern(PAGE))).unwrap());
    let stream = bed.device.stream().unwrap();
    let stream = RegisteredStream::register(&driver, stream, StreamFlags::empty()).unwrap();
    for is_dropped in [false, true] {
        let (buffer, life) = Tracked::new(PAGE);
        let reading = stream.read_at(&file, buffer, 0).unwrap();
        if is_dropped {
            drop(reading);
        } else {
            let (error, kept) = reading.wait().unwrap_err().into_parts();
            let buffer = kept.into_buffer();
            assert!(matches!(error, Error::Unspecified { .. }) && buffer.is_none());
        }
        assert!(!life.is_freed(), "nothing says that it is over");
    }
}

#[test]
fn submissions_to_one_stream_are_serialised() {
    static INSIDE: AtomicUsize = AtomicUsize::new(0);
    static MET: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn slow(
        _: CUfileHandle_t,
        _: *mut c_void,
        _: *mut usize,
        _: *mut off_t,
        _: *mut off_t,
        bytes: *mut isize,
        _: CUstream,
    ) -> CUfileError_t {
        if INSIDE.fetch_add(1, Ordering::SeqCst) > 0 {
            MET.store(true, Ordering::SeqCst);
        }
        thread::sleep(Duration::from_millis(1));
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: the caller keeps the promise.
        unsafe { *bytes = 0 };
        SUCCESS
    }
    let bed = Bed::emulated();
    let driver = with_read(&bed, slow);
    let file = Arc::new(FileHandle::register(&driver, bed.file("data", &[])).unwrap());
    // These are two registrations of the one default stream.
    let streams = [(); 2].map(|()| {
        RegisteredStream::register(&driver, bed.device.default_stream(), StreamFlags::empty()).unwrap()
    });
    thread::scope(|scope| {
        for stream in streams.iter().cycle().take(8) {
            let file = &file;
            scope.spawn(move || {
                for _ in 0..10 {
                    stream.read_at(file, vec![0; PAGE], 0).unwrap().wait().unwrap();
                }
            });
        }
    });
    assert!(!MET.load(Ordering::SeqCst));
}

#[test]
fn page_alignment_is_checked_for_the_target_buffer() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(4 * PAGE));
    let flags = StreamFlags::PAGE_ALIGNED_INPUTS;
    let stream = RegisteredStream::register(&bed.driver, bed.device.stream().unwrap(), flags).unwrap();
    let whole = Box::leak(vec![0_u8; 4 * PAGE].into_boxed_slice());
    let (_, aligned) = whole.split_at_mut(whole.as_ptr().align_offset(PAGE));
    let (aligned, rest) = aligned.split_at_mut(PAGE);
    let arguments = stream.late_bound(&aligned, 0, PAGE, 0).unwrap();
    stream.read_late(&file, &mut *aligned, &arguments).unwrap().wait().unwrap();
    let before = emulator.calls("cuFileReadAsync");
    let misaligned = &mut rest[8..][..PAGE];
    assert!(stream.read_late(&file, misaligned, &arguments).is_err());
    assert_eq!(emulator.calls("cuFileReadAsync"), before);
}
