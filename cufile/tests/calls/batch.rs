//! Tests of batches: the bytes that they move, the match of entries and completions, and memory that stays while in
//! flight.

use std::ffi::c_uint;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use cufile::{
    Batch, Entry, Error, ErrorKind, FileHandle, IoBuf, IoBufMut, Location, OpError, OwnedPart, RegisterFlags,
    RegisteredBuffer, Status,
};
use cufile_sys::{
    CUfileBatchHandle_t, CUfileError_t, CUfileIOEvents_t, CUfileIOParams_t, Functions, off_t, timespec,
};
use testkit::Emulator;
use testkit::bed::{Bed, open_with, pattern};
use testkit::in_flight::{Life, Tracked, register, soon};

const PAGE: usize = 4096;

type Any = Box<dyn IoBufMut + Send>;

fn bytes_of(bed: &Bed, buffer: &Any) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len_bytes()];
    bed.driver.cuda().copy(buffer, &mut bytes).unwrap();
    bytes
}

#[test]
fn one_batch_mixes_directions_files_and_kinds_of_memory() {
    Bed::each(|bed| {
        let bytes = pattern(4 * PAGE);
        let (source, target) = (register(bed, "source", &bytes), register(bed, "target", &[]));
        let mut device = bed.device.alloc(PAGE).unwrap();
        device.copy_from_host(0, &bytes[..PAGE]).unwrap();
        let registered = bed.device.alloc_pinned(4 * PAGE).unwrap();
        let registered = RegisteredBuffer::register(&bed.driver, registered, RegisterFlags::empty()).unwrap();
        let pinned = bed.device.alloc_pinned(PAGE).unwrap();
        let mut batch = Batch::<Any>::new(&bed.driver, 4).unwrap();
        let mut entries = vec![
            Entry::write(&target, Box::new(device) as Any, 0).id(10),
            Entry::read(&source, Box::new(pinned) as Any, 0).range(96, PAGE - 96).id(11),
            Entry::read(&source, Box::new(registered) as Any, PAGE as u64).range(PAGE, 2 * PAGE).id(12),
            Entry::read(&source, Box::new(vec![0u8; PAGE]) as Any, 3 * PAGE as u64 + 96).id(13),
        ];
        batch.submit(entries.drain(..)).unwrap();
        assert!(entries.is_empty());
        let completions = batch.wait_all().unwrap();
        assert_eq!((completions.len(), batch.in_flight()), (4, 0));
        for completion in &completions {
            assert_eq!(completion.status, Status::COMPLETE);
            let count = *completion.result.as_ref().unwrap();
            match completion.id {
                10 => assert_eq!(count, PAGE),
                11 => {
                    assert_eq!(bytes_of(bed, completion.buffer.as_ref().unwrap())[96..], bytes[..PAGE - 96])
                }
                12 => assert_eq!(
                    bytes_of(bed, completion.buffer.as_ref().unwrap())[PAGE..3 * PAGE],
                    bytes[PAGE..3 * PAGE]
                ),
                13 => {
                    assert_eq!(count, PAGE - 96, "short at the end of the file");
                    assert_eq!(
                        bytes_of(bed, completion.buffer.as_ref().unwrap())[..count],
                        bytes[3 * PAGE + 96..]
                    );
                }
                id => panic!("no entry has the number {id}"),
            }
        }
        assert_eq!(std::fs::read(bed.path("target")).unwrap(), bytes[..PAGE]);
    });
}

type Host = RegisteredBuffer<Vec<u8>>;

fn host(file: &FileHandle) -> Host {
    RegisteredBuffer::register(file.driver(), vec![0; PAGE], RegisterFlags::empty()).unwrap()
}

fn pages(file: &Arc<FileHandle>, count: usize) -> Vec<Entry<Host>> {
    (0..count).map(|page| Entry::read(file, host(file), (page * PAGE) as u64).id(page as u64)).collect()
}

#[test]
fn batches_with_unregistered_host_memory_complete_as_a_whole() {
    Bed::each(|bed| {
        let bytes = pattern(16 * PAGE);
        let file = register(bed, "data", &bytes);
        let mut batch = Batch::<Any>::new(&bed.driver, 16).unwrap();
        let entry = |page: usize| {
            let buffer: Any = match page {
                3 => Box::new(vec![0u8; PAGE]),
                7 => Box::new(bed.device.alloc_pinned(PAGE).unwrap()),
                _ => Box::new(host(&file)),
            };
            Entry::read(&file, buffer, (page * PAGE) as u64).id(page as u64)
        };
        for _ in 0..5 {
            batch.submit((0..15).map(entry)).unwrap();
            let refused = |result: Result<Vec<_>, Error>| {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            };
            refused(batch.poll(1, 15, None));
            refused(batch.poll(15, 5, None));
            refused(batch.poll(15, 15, Some(Duration::from_secs(1))));
            let (error, more) = batch.submit([entry(15)]).unwrap_err().into_parts();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!((more.len(), batch.in_flight()), (1, 15));
            let completions = batch.poll(15, 15, None).unwrap();
            assert_eq!(completions.len(), 15);
            for completion in completions {
                assert_eq!(completion.result.unwrap(), PAGE);
                assert_eq!(
                    bytes_of(bed, completion.buffer.as_ref().unwrap()),
                    bytes[completion.id as usize * PAGE..][..PAGE]
                );
            }
        }
        batch.submit([entry(0)]).unwrap();
        let (error, unregistered) = batch.submit([entry(3)]).unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(batch.wait_all().unwrap().len(), 1);
        batch.submit(unregistered).unwrap();
        assert_eq!(batch.cancel().unwrap().len(), 1);
    });
}

#[test]
fn unregistered_host_memory_excludes_other_batches() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(PAGE));
        let mut batches = [(); 2].map(|()| Batch::<Any>::new(&bed.driver, 2).unwrap());
        let [one, other] = &mut batches;
        let unregistered = || vec![Entry::read(&file, Box::new(vec![0u8; PAGE]) as Any, 0)];
        let pinned = || vec![Entry::read(&file, Box::new(bed.device.alloc_pinned(PAGE).unwrap()) as Any, 0)];
        let registered = || vec![Entry::read(&file, Box::new(host(&file)) as Any, 0)];
        let refused = |batch: &mut Batch<Any>, entries: Vec<_>| {
            let (error, entries) = batch.submit(entries).unwrap_err().into_parts();
            assert!(matches!(error, Error::InUse { users: 1, .. }), "{error}");
            assert!(error.to_string().contains("unregistered"), "{error}");
            assert_eq!((entries.len(), batch.in_flight()), (1, 0), "nothing was submitted");
        };
        one.submit(unregistered()).unwrap();
        refused(other, unregistered());
        refused(other, registered());
        one.wait_all().unwrap();
        other.submit(registered()).unwrap();
        refused(one, unregistered());
        refused(one, pinned());
        one.submit(registered()).unwrap();
        other.submit(registered()).unwrap();
        one.wait_all().unwrap();
        // Registered memory of the batch counts once.
        refused(one, unregistered());
        other.wait_all().unwrap();
        one.submit(unregistered()).unwrap();
        // The use ends with the batch, too.
        let [one, mut other] = batches;
        drop(one);
        other.submit(unregistered()).unwrap();
        other.cancel().unwrap();
        Batch::new(&bed.driver, 1).unwrap().submit(unregistered()).unwrap();
    });
}

struct Panicking(Vec<u8>);

// SAFETY: the vector inside keeps the promise.
unsafe impl IoBuf for Panicking {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.0.len()
    }

    fn location(&self) -> Location {
        Location::HOST
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Panicking {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        std::panic::resume_unwind(Box::new("on purpose"))
    }
}

#[test]
fn other_batches_continue_after_a_buffer_panics() {
    let bed = Bed::emulated();
    let file = register(&bed, "data", &pattern(PAGE));
    let mut batch = Batch::<Any>::new(&bed.driver, 2).unwrap();
    let (tracked, life) = Tracked::new(PAGE);
    let entries = [
        Entry::read(&file, Box::new(tracked) as Any, 0),
        Entry::read(&file, Box::new(Panicking(vec![0; PAGE])) as Any, 0),
    ];
    let caught = catch_unwind(AssertUnwindSafe(|| batch.submit(entries)));
    assert!(caught.is_err() && !life.is_freed());
    let mut other = Batch::<Any>::new(&bed.driver, 2).unwrap();
    let next = [Entry::read(&file, Box::new(vec![0u8; PAGE]) as Any, 0)];
    let (error, next) = other.submit(next).unwrap_err().into_parts();
    assert!(matches!(error, Error::InUse { .. }));
    life.over.store(true, Ordering::SeqCst);
    drop(batch);
    assert!(life.is_freed());
    other.submit(next).unwrap();
    other.wait_all().unwrap();
}

#[test]
fn completions_belong_to_their_entries_in_any_order() {
    Bed::each(|bed| {
        let bytes = pattern(32 * PAGE);
        let file = register(bed, "data", &bytes);
        let mut batch = Batch::new(&bed.driver, 16).unwrap();
        if let Some(emulator) = &bed.emulator {
            emulator.control("reverse-completions 1");
        }
        // These entries are more than fit at a time, so that places in the batch are used again.
        let mut waiting = pages(&file, 32);
        let mut seen = [false; 32];
        let mut first = None;
        while seen.contains(&false) {
            let room = (batch.capacity() - batch.in_flight()).min(waiting.len());
            batch.submit(waiting.drain(..room)).unwrap();
            for completion in batch.poll(1, 5, None).unwrap() {
                let page = completion.id as usize;
                first.get_or_insert(page);
                assert_eq!(completion.result.unwrap(), PAGE);
                assert_eq!(completion.buffer.as_ref().unwrap().get()[..], bytes[page * PAGE..][..PAGE]);
                assert!(!seen[page], "{page} twice");
                seen[page] = true;
            }
        }
        if bed.emulator.is_some() {
            assert_eq!(first, Some(15));
        }
    });
}

#[test]
fn refused_capacity_names_the_limit() {
    Bed::each(|bed| {
        let limit = bed.driver.properties().unwrap().max_batch_entries as usize;
        for capacity in [0, limit + 1, usize::MAX] {
            let error = Batch::<Vec<u8>>::new(&bed.driver, capacity).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let text = error.to_string();
            assert!(text.contains(&format!("1 to {limit}")) && text.contains("io_batchsize"), "{text}");
        }
        for capacity in [1, limit] {
            assert_eq!(Batch::<Vec<u8>>::new(&bed.driver, capacity).unwrap().capacity(), capacity);
        }
    });
}

#[test]
fn overlong_entries_are_refused() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(PAGE));
        let mut batch = Batch::new(&bed.driver, 2).unwrap();
        let limit = batch.max_entry_bytes() as usize;
        assert_eq!(limit as u64, bed.driver.properties().unwrap().max_direct_io_bytes);
        let entries =
            [Entry::read(&file, vec![0; PAGE], 0).id(1), Entry::write(&file, vec![0; limit + 1], 0).id(2)];
        let (error, entries) = batch.submit(entries).unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
        assert_eq!((entries.len(), batch.in_flight()), (2, 0), "nothing was submitted");
        batch.submit(entries.into_iter().map(|entry| entry.range(0, 100))).unwrap();
        assert_eq!(batch.wait_all().unwrap().len(), 2);
    });
}

#[test]
fn submitting_does_not_wait_for_the_driver_lock() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(PAGE));
    let mut batch = Batch::new(&bed.driver, 1).unwrap();
    // The batch asks for that under a lock. A thread that opens the driver holds the lock until the driver is open.
    let asked = emulator.calls("cuFileDriverGetProperties");
    batch.submit(pages(&file, 1)).unwrap();
    batch.wait_all().unwrap();
    assert_eq!(emulator.calls("cuFileDriverGetProperties"), asked);
}

#[test]
fn the_longest_entry_is_moved_whole() {
    Bed::each(|bed| {
        let mut batch = Batch::new(&bed.driver, 1).unwrap();
        let limit = batch.max_entry_bytes() as usize;
        let bytes = pattern(limit);
        let file = register(bed, "data", &bytes);
        batch.submit([Entry::read(&file, vec![0; limit], 0)]).unwrap();
        let [completion] = <[_; 1]>::try_from(batch.wait_all().unwrap()).unwrap();
        assert_eq!(completion.result.unwrap(), limit);
        assert!(completion.buffer.unwrap() == bytes);
    });
}

#[test]
fn invalid_entries_are_refused_before_any_is_submitted() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(PAGE));
        let mut batch = Batch::new(&bed.driver, 2).unwrap();
        let mut refused = |entry: Entry<Vec<u8>>| {
            let entries = [Entry::read(&file, vec![0; 100], 0), entry];
            let (error, entries) = batch.submit(entries).unwrap_err().into_parts();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!((entries.len(), batch.in_flight()), (2, 0));
        };
        for (offset, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1), (1, usize::MAX)] {
            refused(Entry::read(&file, vec![0; 100], 0).range(offset, len));
            refused(Entry::write(&file, vec![0; 100], 0).range(offset, len));
        }
        refused(Entry::read(&file, vec![0; 100], 1 << 63));
        let other = Bed::emulated();
        refused(Entry::read(&register(&other, "data", &[]), vec![0; 100], 0));
        let three = (0..3).map(|_| Entry::read(&file, vec![0; 100], 0));
        let (error, three) = batch.submit(three).unwrap_err().into_parts();
        assert_eq!((error.kind(), three.len()), (ErrorKind::InvalidInput, 3));
        batch.submit([]).unwrap();
        if let Some(emulator) = &bed.emulator {
            assert_eq!(emulator.calls("cuFileBatchIOSubmit"), 0);
        }
    });
}

/// Makes a batch of `count` entries of which `fault` hits the second.
fn with_fault(count: usize, fault: &str) -> (Bed, Batch<Host>) {
    let bed = Bed::emulated();
    let file = register(&bed, "data", &pattern(count * PAGE));
    let mut batch = Batch::new(&bed.driver, count).unwrap();
    bed.emulator.as_ref().unwrap().fault("batch-entry", &format!("after=1 {fault}"));
    batch.submit(pages(&file, count)).unwrap();
    (bed, batch)
}

#[test]
fn failed_entries_do_not_affect_the_others() {
    let failing = |fault: &str| {
        let (_bed, mut batch) = with_fault(3, fault);
        let mut completions = batch.wait_all().unwrap();
        assert_eq!(completions.len(), 3);
        completions.sort_by_key(|completion| completion.id);
        let failed = completions.remove(1);
        assert!(completions.iter().all(|other| matches!(other.result, Ok(PAGE))));
        (failed.status, failed.result.unwrap_err())
    };
    let (status, error) = failing("bytes=-5016");
    assert_eq!((status, error.op_error()), (Status::FAILED, Some(OpError::INVALID_MAPPING_SIZE)));
    let (status, error) = failing("bytes=-5");
    assert!(status == Status::FAILED && matches!(error, Error::Io { .. }) && error.raw_code() == Some(5));
    let (status, error) = failing("bytes=-5777");
    assert_eq!((status, error.op_error()), (Status::FAILED, Some(OpError::from_raw(5777))));
    for (status, errno) in [
        (Status::INVALID, libc::EINVAL),
        (Status::CANCELED, libc::ECANCELED),
        (Status::TIMEOUT, libc::ETIMEDOUT),
    ] {
        let (found, error) = failing(&format!("status={}", status.as_raw()));
        assert_eq!((found, error.raw_code()), (status, Some(errno)));
    }
    let (status, error) = failing("status=64");
    assert!(status == Status::FAILED && matches!(error, Error::Unspecified { .. }), "{error}");
}

#[test]
fn failed_entries_keep_their_buffers_until_destruction() {
    // Only `COMPLETE` means that libcufile is done with the memory. 4096 is an unknown status.
    for status in [Status::FAILED, Status::TIMEOUT, Status::CANCELED, Status::INVALID, Status::from_raw(4096)]
    {
        for is_cancelled in [true, false] {
            let bed = Bed::emulated();
            let file = register(&bed, "data", &pattern(PAGE));
            let mut batch = Batch::new(&bed.driver, 1).unwrap();
            let entry = || {
                let (buffer, life) = Tracked::new(PAGE);
                let buffer = RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty()).unwrap();
                (Entry::read(&file, buffer, 0).id(7), life)
            };
            let (failing, life) = entry();
            let raw = status.as_raw();
            bed.emulator.as_ref().unwrap().fault("batch-entry", &format!("status={raw} bytes=-5016"));
            batch.submit([failing]).unwrap();
            let [failed] = <[_; 1]>::try_from(batch.wait_all().unwrap()).unwrap();
            assert!(failed.buffer.is_none() && failed.result.is_err() && failed.status == status);
            drop(failed);
            assert!(!life.is_freed());
            // There is room for others.
            assert_eq!((batch.in_flight(), batch.capacity()), (0, 1));
            let (next, next_life) = entry();
            batch.submit([next]).unwrap();
            next_life.over.store(true, Ordering::SeqCst);
            assert!(batch.wait_all().unwrap()[0].buffer.is_some());
            assert!(!life.is_freed() && next_life.is_freed());
            life.over.store(true, Ordering::SeqCst);
            if is_cancelled {
                // Nothing is in flight, so nothing can be cancelled.
                bed.emulator.as_ref().unwrap().fault("cuFileBatchIOCancel", "times=all err=5042");
                let [again] = <[_; 1]>::try_from(batch.cancel().unwrap()).unwrap();
                assert_eq!((again.id, again.status), (7, status));
                assert_eq!(again.result.unwrap_err().raw_code(), Some(5016));
                assert!(again.buffer.is_some());
            } else {
                drop(batch);
            }
            assert!(life.is_freed());
        }
    }
}

#[test]
fn cancelling_returns_a_failed_entry_once_with_its_buffer() {
    let (_bed, batch) = with_fault(3, "bytes=-5016");
    std::thread::sleep(Duration::from_millis(30));
    let mut completions = batch.cancel().unwrap();
    completions.sort_by_key(|completion| completion.id);
    assert_eq!(completions.iter().map(|completion| completion.id).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(completions.iter().all(|completion| completion.buffer.is_some()));
}

#[test]
fn errors_name_entry_range_and_file() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(4 * PAGE));
    let mut batch = Batch::new(&bed.driver, 4).unwrap();
    let path = bed.path("data").display().to_string();
    let named = |error: &Error, what: &str| {
        let text = error.to_string();
        assert!(text.contains(what) && text.contains(&path), "{text}");
    };
    for fault in ["bytes=-5016", "bytes=-5", "bytes=-1", "status=32", "status=4096"] {
        emulator.fault("batch-entry", fault);
        let entry = Entry::write(&file, host(&file), 4096).range(96, 1000).id(17);
        batch.submit([entry]).unwrap();
        let [failed] = <[_; 1]>::try_from(batch.wait_all().unwrap()).unwrap();
        named(
            &failed.result.unwrap_err(),
            "cuFileBatchIOGetStatus(entry 17, write of 1000 bytes at 4096 of ",
        );
    }
    for completion in batch.cancel().unwrap() {
        named(&completion.result.unwrap_err(), "entry 17, write of 1000 bytes at 4096 of ");
    }
    let mut batch = Batch::new(&bed.driver, 4).unwrap();
    let refused = [pages(&file, 1).remove(0), Entry::read(&file, host(&file), 77).range(0, 5000).id(3)];
    let error = Error::from(batch.submit(refused).unwrap_err());
    named(&error, "entry 3, read of 5000 bytes at 77 of ");
    assert!(error.to_string().contains("(2 of 2)"), "{error}");
    emulator.fault("cuFileBatchIOSubmit", "err=5035");
    let error = Error::from(batch.submit(pages(&file, 2)).unwrap_err());
    named(&error, "cuFileBatchIOSubmit(2 entries, the first: entry 0, read of 4096 bytes at 0 of ");
}

#[test]
fn statuses_print_their_c_names() {
    assert_eq!(Status::TIMEOUT.name(), Some("CUFILE_TIMEOUT"));
    assert_eq!(format!("{:?} {:?}", Status::COMPLETE, Status::from_raw(7)), "CUFILE_COMPLETE Status(7)");
}

#[test]
fn failed_setup_destroys_nothing() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.fault("cuFileBatchIOSetUp", "err=5039");
    let error = Batch::<Vec<u8>>::new(&bed.driver, 1).unwrap_err();
    assert_eq!(error.op_error(), Some(OpError::INTERNAL_BATCH_SETUP_ERROR));
    assert_eq!(emulator.calls("cuFileBatchIODestroy"), 0);
}

#[test]
fn unknown_statuses_are_kept_as_errors() {
    let (_bed, mut batch) = with_fault(2, "status=4096");
    let mut completions = batch.wait_all().unwrap();
    completions.sort_by_key(|completion| completion.id);
    assert_eq!(completions[1].status, Status::from_raw(4096));
    assert_eq!(completions[1].status.name(), None);
    let error = completions.remove(1).result.unwrap_err();
    assert!(
        matches!(error, Error::Unspecified { .. }) && error.to_string().contains("Status(4096)"),
        "{error}"
    );
}

#[test]
fn events_of_unfinished_entries_do_not_return_the_buffer() {
    for status in [Status::WAITING, Status::PENDING] {
        let (_bed, mut batch) = with_fault(2, &format!("status={}", status.as_raw()));
        let completions = batch.poll(2, 2, None).unwrap();
        assert_eq!((completions.len(), completions[0].id, batch.in_flight()), (1, 0, 1));
        let rest = batch.cancel().unwrap();
        assert_eq!((rest.len(), rest[0].id, rest[0].status), (1, 1, Status::CANCELED));
    }
}

#[test]
fn polling_respects_the_least_and_the_most_completions() {
    let bed = Bed::emulated();
    let file = register(&bed, "data", &pattern(8 * PAGE));
    let mut batch = Batch::new(&bed.driver, 8).unwrap();
    assert_eq!(batch.poll(5, 5, None).unwrap().len(), 0, "nothing in flight is nothing to wait for");
    let held = bed.emulator.as_ref().unwrap().hold("batch-entry", "after=4");
    batch.submit(pages(&file, 8)).unwrap();
    assert_eq!(batch.poll(4, 3, None).unwrap().len(), 3);
    assert_eq!(batch.poll(1, 8, None).unwrap().len(), 1);
    let before = Instant::now();
    assert_eq!(batch.poll(1, 8, Some(Duration::ZERO)).unwrap().len(), 0);
    assert_eq!(batch.poll(1, 8, Some(Duration::from_millis(20))).unwrap().len(), 0);
    assert!(before.elapsed() >= Duration::from_millis(20));
    held.release();
    let mut completions = Vec::new();
    assert_eq!(batch.poll_into(100, usize::MAX, Some(Duration::MAX), &mut completions).unwrap(), 4);
    assert_eq!((completions.len(), batch.in_flight()), (4, 0));
}

#[test]
fn cancelling_returns_every_buffer_after_destruction() {
    Bed::each(|bed| {
        let file = register(bed, "data", &pattern(8 * PAGE));
        let mut batch = Batch::new(&bed.driver, 8).unwrap();
        let held = bed.emulator.as_ref().map(|emulator| emulator.hold("batch-entry", "after=3"));
        batch.submit(pages(&file, 8)).unwrap();
        let mut completions = match held {
            None => batch.cancel().unwrap(),
            Some(held) => {
                held.wait_for(1);
                held.release_during("cuFileBatchIOCancel", || batch.cancel().unwrap())
            }
        };
        completions.sort_by_key(|completion| completion.id);
        assert!(completions.iter().map(|completion| completion.id).eq(0..8));
        for completion in &completions {
            match &completion.result {
                Ok(count) => assert_eq!((completion.status, *count), (Status::COMPLETE, PAGE)),
                Err(error) => {
                    assert_eq!(
                        (completion.status, error.raw_code()),
                        (Status::CANCELED, Some(libc::ECANCELED))
                    );
                }
            }
        }
        if let Some(emulator) = &bed.emulator {
            assert_eq!(completions.iter().filter(|completion| completion.result.is_ok()).count(), 3);
            assert_eq!((emulator.live("batches"), emulator.calls("cuFileBatchIOCancel")), (0, 1));
        }
        assert_eq!(Arc::strong_count(&file), 1);
    });
}

#[test]
fn an_idle_batch_is_destroyed_without_cancelling() {
    let bed = Bed::emulated();
    let batch: Batch<Vec<u8>> = Batch::new(&bed.driver, 2).unwrap();
    assert!(batch.cancel().unwrap().is_empty());
    let emulator = bed.emulator.as_ref().unwrap();
    assert_eq!((emulator.live("batches"), emulator.calls("cuFileBatchIOCancel")), (0, 0));
}

fn in_flight(bed: &Bed) -> (Batch<RegisteredBuffer<Tracked>>, Arc<Life>) {
    let file = register(bed, "data", &pattern(PAGE));
    let mut batch = Batch::new(&bed.driver, 1).unwrap();
    let (buffer, life) = Tracked::new(PAGE);
    let buffer = RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty()).unwrap();
    batch.submit([Entry::read(&file, buffer, 0)]).unwrap();
    (batch, life)
}

#[test]
fn cancelling_waits_if_libcufile_cannot_cancel() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let held = emulator.hold("batch-entry", "");
    let (batch, life) = in_flight(&bed);
    emulator.fault("cuFileBatchIOCancel", "err=5042");
    life.over.store(true, Ordering::SeqCst);
    let completions = held.release_during("cuFileBatchIOCancel", || batch.cancel().unwrap());
    assert!(matches!(completions[0].result, Ok(PAGE)));
    assert_eq!(completions[0].buffer.as_ref().unwrap().get().bytes(), pattern(PAGE));
}

#[test]
fn dropping_a_batch_waits_before_the_buffers_are_freed() {
    Bed::each(|bed| {
        let held = bed.emulator.as_ref().map(|emulator| emulator.hold("batch-entry", ""));
        let (mut batch, life) = in_flight(bed);
        assert!(!life.is_freed());
        if let Some(emulator) = &bed.emulator {
            assert_eq!(batch.poll(1, 1, Some(Duration::ZERO)).unwrap().len(), 0);
            assert_eq!(emulator.live("handles"), 1, "the entry keeps its file registered");
        }
        std::thread::scope(|scope| {
            let life = Arc::clone(&life);
            let end = move || {
                std::thread::sleep(Duration::from_millis(50));
                life.over.store(true, Ordering::SeqCst);
                drop(held);
            };
            match bed.emulator {
                Some(_) => drop(scope.spawn(end)),
                None => end(),
            }
            drop(batch);
        });
        assert!(life.is_freed());
        if let Some(emulator) = &bed.emulator {
            assert_eq!((emulator.live("batches"), emulator.live("handles")), (0, 0));
        }
    });
}

#[test]
fn forgotten_batches_leak_memory_in_use() {
    Bed::each(|bed| {
        let bytes = pattern(PAGE);
        let file = register(bed, "data", &bytes);
        let mut batch = Batch::new(&bed.driver, 1).unwrap();
        let (buffer, life) = Tracked::new(PAGE);
        let address = buffer.bytes().as_ptr();
        let held = bed.emulator.as_ref().map(|emulator| emulator.hold("batch-entry", ""));
        batch.submit([Entry::read(&file, buffer, 0)]).unwrap();
        drop(file);
        let mut forgotten = ManuallyDrop::new(batch);
        // Freed memory would be given out again.
        let others: Vec<_> = (0..64).map(|_| vec![0xee_u8; PAGE]).collect();
        drop(held);
        // SAFETY: the buffer was leaked. The read may still write to it, so the compiler must not keep a value.
        let byte = |at: usize| unsafe { address.wrapping_add(at).read_volatile() };
        soon("the read ends", || (0..PAGE).all(|at| byte(at) == bytes[at]));
        assert!(!life.is_freed());
        assert!(others.iter().flatten().all(|byte| *byte == 0xee));
        if let Some(emulator) = &bed.emulator {
            assert_eq!((emulator.live("handles"), emulator.live("batches")), (1, 1));
        }
        // libcufile may crash if the process ends with the driver open.
        life.over.store(true, Ordering::SeqCst);
        // SAFETY: the value is dropped once.
        unsafe { ManuallyDrop::drop(&mut forgotten) };
        assert!(life.is_freed());
    });
}

#[test]
fn entries_stay_after_a_failed_submission_until_cancelled() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(4 * PAGE));
    let mut batch = Batch::new(&bed.driver, 4).unwrap();
    batch.submit(pages(&file, 1)).unwrap();
    emulator.fault("cuFileBatchIOSubmit", "err=5035");
    let (error, entries) = batch.submit(pages(&file, 2)).unwrap_err().into_parts();
    assert_eq!(error.op_error(), Some(OpError::BATCH_SUBMIT_FAILED));
    assert!(entries.is_empty() && batch.in_flight() == 3);
    let (error, more) = batch.submit(pages(&file, 1)).unwrap_err().into_parts();
    assert_eq!((error.kind(), more.len()), (ErrorKind::InvalidInput, 1));
    assert_eq!(batch.poll(1, 4, Some(Duration::from_secs(5))).unwrap().len(), 1, "what was submitted before");
    assert_eq!(batch.poll(1, 4, None).unwrap().len(), 0, "does not wait for what may not come");
    let (error, some) = batch.wait_all().unwrap_err().into_parts();
    assert!(some.is_empty() && error.kind() == ErrorKind::InvalidInput);
    assert_eq!(batch.cancel().unwrap().len(), 2);
    assert_eq!(emulator.live("batches"), 0);
}

#[test]
fn drop_after_failed_submission_frees_only_after_cancelling() {
    for can_cancel in [true, false] {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        let file = register(&bed, "data", &pattern(PAGE));
        let mut batch = Batch::new(&bed.driver, 1).unwrap();
        let (buffer, life) = Tracked::new(PAGE);
        emulator.fault("cuFileBatchIOSubmit", "err=5040");
        batch.submit([Entry::read(&file, buffer, 0)]).unwrap_err();
        life.over.store(can_cancel, Ordering::SeqCst);
        if !can_cancel {
            emulator.fault("cuFileBatchIOCancel", "err=5042");
        }
        drop(batch);
        assert_eq!(life.is_freed(), can_cancel);
        assert_eq!(emulator.live("batches"), i64::from(!can_cancel), "destroying waits for what has begun");
    }
}

#[test]
fn buffers_are_leaked_if_libcufile_can_neither_report_nor_cancel() {
    for cancel in [true, false] {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        let _held = emulator.hold("batch-entry", "");
        let (batch, life) = in_flight(&bed);
        emulator.fault("cuFileBatchIOGetStatus", "times=all err=5041");
        emulator.fault("cuFileBatchIOCancel", "times=all err=5042");
        if cancel {
            let (error, some) = batch.cancel().unwrap_err().into_parts();
            assert!(some.is_empty());
            assert_eq!(error.op_error(), Some(OpError::INTERNAL_BATCH_GETSTATUS_ERROR));
        } else {
            drop(batch);
        }
        assert!(!life.is_freed());
    }
}

#[test]
fn an_error_while_cancelling_loses_no_completion() {
    for submission_fails in [false, true] {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        let bytes = pattern(2 * PAGE);
        let file = register(&bed, "data", &bytes);
        let mut batch = Batch::new(&bed.driver, 2).unwrap();
        let buffers = [(); 2].map(|()| bed.device.alloc(PAGE).unwrap());
        let [done, slow] = buffers.map(|buffer| Entry::read(&file, buffer, 0));
        batch.submit([done.id(1)]).unwrap();
        soon("the first entry begins", || emulator.calls("batch-entry") == 1);
        std::thread::sleep(Duration::from_millis(200));
        let _held = emulator.hold("batch-entry", "");
        if submission_fails {
            emulator.fault("cuFileBatchIOSubmit", "err=5035");
        }
        assert_eq!(batch.submit([slow.id(2)]).is_err(), submission_fails);
        emulator.fault("cuFileBatchIOGetStatus", "after=1 times=all err=5041");
        emulator.fault("cuFileBatchIOCancel", "times=all err=5042");
        let some = batch.cancel().unwrap_err().into_value();
        assert_eq!(some.iter().map(|completion| completion.id).collect::<Vec<_>>(), [1]);
        assert!(some[0].buffer.as_ref().unwrap().to_vec().unwrap() == bytes[..PAGE]);
    }
}

#[test]
fn an_error_while_waiting_loses_no_completion() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(2 * PAGE));
    let mut batch = Batch::new(&bed.driver, 2).unwrap();
    batch.submit(pages(&file, 2)).unwrap();
    emulator.fault("cuFileBatchIOGetStatus", "err=5041");
    let (error, some) = batch.wait_all().unwrap_err().into_parts();
    assert_eq!(error.op_error(), Some(OpError::INTERNAL_BATCH_GETSTATUS_ERROR));
    assert_eq!(some.len() + batch.in_flight(), 2);
    assert_eq!(batch.wait_all().unwrap().len(), 2 - some.len());
}

type GetStatus = unsafe extern "C" fn(
    CUfileBatchHandle_t,
    c_uint,
    *mut c_uint,
    *mut CUfileIOEvents_t,
    *mut timespec,
) -> CUfileError_t;

static REAL_GET_STATUS: OnceLock<GetStatus> = OnceLock::new();

static BEFORE: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Reports one event twice, then the event before it again, or an event of an entry that never existed.
unsafe extern "C" fn confused_get_status(
    batch: CUfileBatchHandle_t,
    least: c_uint,
    nr: *mut c_uint,
    events: *mut CUfileIOEvents_t,
    timeout: *mut timespec,
) -> CUfileError_t {
    // SAFETY: the caller gives room for `nr` events.
    unsafe {
        let room = *nr;
        *nr = 1;
        let status = REAL_GET_STATUS.get().unwrap()(batch, least.min(1), nr, events, timeout);
        if *nr == 1 && room >= 3 {
            let event = *events;
            let before = BEFORE.swap(event.cookie.addr(), Ordering::SeqCst);
            *events.add(1) = event;
            *events.add(2) = CUfileIOEvents_t { cookie: ptr::without_provenance_mut(before), ..event };
            *nr = 3;
        }
        status
    }
}

#[test]
fn events_that_belong_to_no_entry_in_flight_are_ignored() {
    let emulator = Emulator::start();
    let confused = |functions: &mut Functions| {
        REAL_GET_STATUS.set(functions.cuFileBatchIOGetStatus).unwrap();
        functions.cuFileBatchIOGetStatus = confused_get_status;
    };
    // SAFETY: the function keeps the contract of the one that it replaces.
    let driver = unsafe { open_with(&emulator, confused) };
    let bed = Bed::on(emulator);
    let file = FileHandle::register(&driver, bed.file("data", &pattern(6 * PAGE))).unwrap();
    let file = Arc::new(file);
    let mut batch = Batch::new(&driver, 8).unwrap();
    bed.emulator.as_ref().unwrap().fault("batch-entry", "after=1 bytes=-5");
    batch.submit(pages(&file, 6)).unwrap();
    let mut ids = Vec::new();
    while batch.in_flight() > 2 {
        ids.extend(batch.poll(1, 8, None).unwrap().iter().map(|completion| completion.id));
    }
    assert_eq!(ids, [0, 1, 2, 3]);
    // This entry takes the place of the one before. The old event says nothing about it.
    batch.submit([Entry::read(&file, host(&file), 0).id(6)]).unwrap();
    let ids: Vec<_> = batch.poll(1, 8, None).unwrap().iter().map(|completion| completion.id).collect();
    assert_eq!((&ids[..], batch.in_flight()), (&[4][..], 2));
    assert_eq!(batch.wait_all().unwrap().len(), 2);
}

#[test]
fn many_entries_use_parts_of_one_registered_buffer() {
    Bed::each(|bed| {
        let bytes = pattern(8 * PAGE - 96);
        let file = register(bed, "data", &bytes);
        let memory = bed.device.alloc(bytes.len()).unwrap();
        let buffer = RegisteredBuffer::register(&bed.driver, memory, RegisterFlags::empty()).unwrap();
        let parts = OwnedPart::split(buffer, PAGE);
        let mut batch = Batch::new(&bed.driver, 8).unwrap();
        let entry = |(page, part)| Entry::read(&file, part, (page * PAGE) as u64).id(page as u64);
        batch.submit(parts.into_iter().enumerate().map(entry)).unwrap();
        let mut completions = Vec::new();
        while batch.in_flight() > 0 {
            batch.poll_into(1, 8, None, &mut completions).unwrap();
        }
        completions.sort_by_key(|completion| completion.id);
        for completion in &completions {
            let (part, at) = (completion.buffer.as_ref().unwrap(), completion.id as usize * PAGE);
            assert_eq!(*completion.result.as_ref().unwrap(), part.len_bytes());
            assert_eq!((part.location().base_offset, part.location().is_registered), (at, true));
            let mut read = vec![0; part.len_bytes()];
            bed.driver.cuda().copy(part, &mut read).unwrap();
            assert!(read == bytes[at..][..part.len_bytes()]);
        }
        let mut parts: Vec<_> = completions.into_iter().filter_map(|completion| completion.buffer).collect();
        let mut last = parts.pop().unwrap();
        for part in parts {
            last = last.into_whole().expect_err("there are others");
            drop(part);
        }
        assert!(last.into_whole().unwrap().get().to_vec().unwrap() == bytes);
        if let Some(emulator) = &bed.emulator {
            assert_eq!((emulator.live("buffers"), emulator.live("allocations")), (0, 0));
        }
    });
}

type Submit =
    unsafe extern "C" fn(CUfileBatchHandle_t, c_uint, *mut CUfileIOParams_t, c_uint) -> CUfileError_t;

static REAL_SUBMIT: OnceLock<Submit> = OnceLock::new();

/// Address, offset and length of each entry that libcufile got.
static SUBMITTED: Mutex<Vec<(usize, off_t, usize)>> = Mutex::new(Vec::new());

unsafe extern "C" fn noting_submit(
    batch: CUfileBatchHandle_t,
    nr: c_uint,
    entries: *mut CUfileIOParams_t,
    flags: c_uint,
) -> CUfileError_t {
    // SAFETY: the caller gives `nr` entries, of a batch.
    unsafe {
        let entries_of_a_batch =
            std::slice::from_raw_parts(entries, nr as usize).iter().map(|entry| entry.u.batch);
        let noted =
            entries_of_a_batch.map(|entry| (entry.devPtr_base.addr(), entry.devPtr_offset, entry.size));
        SUBMITTED.lock().unwrap().extend(noted);
        REAL_SUBMIT.get().unwrap()(batch, nr, entries, flags)
    }
}

#[test]
fn entries_with_parts_name_the_registered_address_and_their_offset() {
    let emulator = Emulator::start();
    let noting = |functions: &mut Functions| {
        REAL_SUBMIT.set(functions.cuFileBatchIOSubmit).unwrap();
        functions.cuFileBatchIOSubmit = noting_submit;
    };
    // SAFETY: the function keeps the contract of the one that it replaces.
    let driver = unsafe { open_with(&emulator, noting) };
    let file = Arc::new(FileHandle::register(&driver, tempfile::tempfile().unwrap()).unwrap());
    let submitted = |buffer: Any| {
        let mut batch = Batch::new(&driver, 4).unwrap();
        let parts = OwnedPart::split(buffer, PAGE).into_iter();
        batch.submit(parts.map(|part| Entry::write(&file, part, 0).range(8, 16))).unwrap();
        batch.wait_all().unwrap();
        std::mem::take(&mut *SUBMITTED.lock().unwrap())
    };
    let device = driver.cuda().device(0).unwrap();
    let memory = device.alloc(3 * PAGE).unwrap();
    let base = memory.as_ptr().addr();
    let registered = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty()).unwrap();
    assert_eq!(submitted(Box::new(registered)), [0, 1, 2].map(|page| (base, (page * PAGE + 8) as off_t, 16)));
    // Unregistered memory begins where the entry does.
    let memory = device.alloc(2 * PAGE).unwrap();
    let base = memory.as_ptr().addr();
    assert_eq!(submitted(Box::new(memory)), [8, PAGE + 8].map(|at| (base + at, 0, 16)));
}

#[test]
fn batches_can_move_to_another_thread() {
    Bed::each(|bed| {
        let bytes = pattern(4 * PAGE);
        let file = register(bed, "data", &bytes);
        let mut batch = Batch::new(&bed.driver, 4).unwrap();
        batch.submit(pages(&file, 4)).unwrap();
        let completions = std::thread::spawn(move || batch.wait_all().unwrap()).join().unwrap();
        for completion in completions {
            assert_eq!(
                completion.buffer.as_ref().unwrap().get()[..],
                bytes[completion.id as usize * PAGE..][..PAGE]
            );
        }
    });
}

#[test]
fn drop_does_not_cancel_a_batch_twice() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let file = register(&bed, "data", &pattern(4 * PAGE));
    let mut batch: Batch<cufile::cuda::DeviceBuffer> = Batch::new(&bed.driver, 4).unwrap();
    emulator.fault("cuFileBatchIOSubmit", "err=5035");
    batch.submit([Entry::read(&file, bed.device.alloc(PAGE).unwrap(), 0)]).unwrap_err();
    assert_eq!(batch.cancel().unwrap().len(), 1);
    assert_eq!(emulator.calls("cuFileBatchIOCancel"), 1, "once, and not by dropping it");
}
