//! Reads of files over storages, into host and device memory, and storages that fail.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use gpufile::storage::{Error, Spans, Storage};
use gpufile::{Cause, File, IoRange, Request, RouteKind};
use testkit::bed::{Bed, pattern};
use testkit::in_flight::{block_on, soon};

use crate::support::{engine, fill, put, storage, write_raw};

const LONG: usize = (9 << 20) + 4321;

type Read = fn(&[u8], &mut Spans<'_>) -> Result<(), Error>;

const WAYS: [Read; 3] = [put, fill, write_raw];

fn file(bed: &Bed, storage: Arc<dyn Storage>) -> File {
    File::options().engine(&engine(bed)).open_storage("contents", storage).unwrap()
}

#[test]
fn ranges_have_the_bytes_of_the_storage() {
    let bytes = pattern(LONG);
    Bed::each(|bed| {
        for read in WAYS {
            let file = file(bed, storage(&bytes, read));
            assert_eq!(file.len_bytes().unwrap(), LONG as u64);
            for len in [0, 1, 4096, 64 << 10, (64 << 10) + 1, 1 << 20, LONG - 77] {
                let mut device = bed.device.alloc(len).unwrap();
                file.read_exact_at(&mut device, 77).unwrap();
                assert!(device.to_vec().unwrap() == bytes[77..77 + len], "{len} bytes");
                let mut host = Vec::with_capacity(len);
                let read = file.read_uninit_at(host.spare_capacity_mut(), 77).unwrap();
                assert!(read[..len] == bytes[77..77 + len], "{len} bytes");
                let mut inline = vec![0; len];
                file.inline().with_chunk_bytes(100_000).read_exact_at(&mut inline, 77).unwrap();
                assert!(inline == bytes[77..77 + len]);
            }
            for (start, there) in [(LONG - 10, 10), (LONG, 0), (LONG + 5, 0)] {
                let mut device = bed.device.alloc(1 << 20).unwrap();
                assert_eq!(file.read_at(&mut device, start as u64).unwrap(), there);
                let mut host = vec![0; 1 << 20];
                assert_eq!(file.read_at(&mut host, start as u64).unwrap(), there);
                assert!(host[..there] == bytes[start.min(LONG)..]);
            }
            let error = file.read_exact_at(&mut [0; 20][..], LONG as u64 - 10).unwrap_err();
            assert!(matches!(error.cause(), Cause::EndOfFile { at } if *at == LONG as u64), "{error}");
        }
    });
}

#[test]
fn lists_futures_and_streams_read_storages() {
    let bytes = pattern(LONG);
    Bed::each(|bed| {
        let engine = engine(bed);
        let file = file(bed, storage(&bytes, put)).with_engine(&engine).unwrap();
        let ranges: Vec<_> = (0..300)
            .map(|number| IoRange {
                file_offset: (299 - number) * 20_000,
                buffer_offset: number as usize * 9000,
                len_bytes: 9000,
            })
            .collect();
        let mut device = bed.device.alloc(300 * 9000).unwrap();
        file.read_many(&mut device, &ranges).unwrap();
        let found = device.to_vec().unwrap();
        for IoRange { file_offset, buffer_offset, len_bytes } in ranges {
            assert!(found[buffer_offset..][..len_bytes] == bytes[file_offset as usize..][..len_bytes]);
        }
        let (count, host) = block_on(file.read_at_async(vec![0; LONG], 3));
        assert!(count.unwrap() == LONG - 3 && host[..LONG - 3] == bytes[3..]);
        let stream = bed.device.stream().unwrap();
        let (count, device) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
        assert!(count.unwrap() == LONG && device.to_vec().unwrap() == bytes);

        let other = File::from_storage("other", storage(&bytes[..100], fill)).unwrap();
        let (mut first, mut second) = (vec![0; 50], bed.device.alloc(2 << 20).unwrap());
        let mut requests = [Request { file: &other, buffer: &mut first[..], offset: 9 }];
        engine.read_many(&mut requests).unwrap();
        engine.read_many(&mut [Request { file: &file, buffer: &mut second, offset: 7 }]).unwrap();
        assert!(first == bytes[9..59] && second.to_vec().unwrap() == bytes[7..][..2 << 20]);
    });
}

#[test]
fn storages_are_only_read() {
    let bed = Bed::emulated();
    let file = file(&bed, storage(b"contents", put));
    for error in [
        file.write_all_at(&[1; 10][..], 0).unwrap_err(),
        file.set_len(3).unwrap_err(),
        file.map().map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("contents"), "{error}");
    }
    assert_eq!(file.route().kind(), RouteKind::Posix);
    assert!(file.route().to_string().contains("a storage that has no descriptor"), "{}", file.route());
    assert_eq!(file.len_bytes().unwrap(), 8);
}

#[derive(Debug)]
struct Mine;

impl fmt::Display for Mine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mine")
    }
}

impl std::error::Error for Mine {}

#[test]
fn errors_of_a_storage_end_the_operation() {
    let bytes = pattern(LONG);
    Bed::each(|bed| {
        let read = |bytes: &[u8], spans: &mut Spans<'_>| {
            let range = spans.next_range().unwrap();
            match range.contains(&5_000_000) {
                false => put(bytes, spans),
                true => {
                    spans.put(&bytes[range.start as usize..5_000_000])?;
                    Err(io::Error::new(io::ErrorKind::HostUnreachable, Mine).into())
                }
            }
        };
        let file = file(bed, storage(&bytes, read));
        let mut device = bed.device.alloc(LONG).unwrap();
        let mut host = vec![0; LONG];
        for error in [file.read_at(&mut device, 0).unwrap_err(), file.read_at(&mut host, 0).unwrap_err()] {
            assert_eq!((error.kind(), error.bytes_done()), (io::ErrorKind::HostUnreachable, 5_000_000));
            let Cause::Storage { error: cause, .. } = error.cause() else { panic!("{error}") };
            assert!(cause.is::<Mine>() && error.to_string().contains("mine"), "{error}");
        }
        assert!(host[..5_000_000] == bytes[..5_000_000]);
        assert!(device.to_vec().unwrap()[..5_000_000] == bytes[..5_000_000]);
    });
}

#[test]
fn short_reads_of_a_storage_are_errors() {
    let bytes = pattern(LONG);
    Bed::each(|bed| {
        let file = file(
            bed,
            storage(&bytes, |bytes, spans| {
                let range = spans.next_range().unwrap();
                let end = range.end.min(100_000);
                Ok(spans.put(&bytes[range.start.min(end) as usize..end as usize])?)
            }),
        );
        let mut device = bed.device.alloc(LONG).unwrap();
        for error in
            [file.read_at(&mut device, 3).unwrap_err(), file.read_at(&mut vec![0; LONG], 3).unwrap_err()]
        {
            let cause = error.cause();
            let is_early = matches!(cause, Cause::EndedEarly { at: 100_000, end } if *end == LONG as u64);
            assert!(is_early && error.bytes_done() == 99_997, "{error}");
        }
    });
}

#[test]
fn panics_of_a_storage_are_errors() {
    let bytes = pattern(LONG);
    Bed::each(|bed| {
        let panics = Arc::new(AtomicBool::new(true));
        let file = file(
            bed,
            storage(&bytes, {
                let panics = panics.clone();
                move |bytes, spans| {
                    assert!(!panics.load(Ordering::Acquire), "on demand");
                    put(bytes, spans)
                }
            }),
        );
        for len in [10, LONG] {
            let mut device = bed.device.alloc(len).unwrap();
            panics.store(true, Ordering::Release);
            for error in [
                file.read_at(&mut device, 0).unwrap_err(),
                file.read_at(&mut vec![0; len], 0).unwrap_err(),
                file.inline().read_at(&mut vec![0; len], 0).unwrap_err(),
                file.read_at_async(vec![0; len], 0).wait().0.unwrap_err(),
            ] {
                assert!(error.to_string().contains("the storage panicked: on demand"), "{error}");
                assert_eq!(error.bytes_done(), 0);
            }
            panics.store(false, Ordering::Release);
            file.read_exact_at(&mut device, 0).unwrap();
            assert!(device.to_vec().unwrap() == bytes[..len]);
        }
    });
}

#[test]
fn cancelled_reads_of_a_storage_stop() {
    Bed::each(|bed| {
        let reading = Arc::new(AtomicUsize::new(0));
        let waits = {
            let reading = reading.clone();
            move |_: &[u8], spans: &mut Spans<'_>| {
                reading.fetch_add(1, Ordering::AcqRel);
                while !spans.is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                reading.fetch_sub(1, Ordering::AcqRel);
                Err(Mine.into())
            }
        };
        let file = file(bed, storage(&pattern(LONG), waits));
        let future = file.read_at_async(vec![0; LONG], 0);
        soon("a read waits", || reading.load(Ordering::Acquire) > 0);
        let (count, _) = future.cancel();
        assert_eq!(count.unwrap(), 0);
        drop(file.read_at_async(bed.device.alloc(LONG).unwrap(), 0));
        soon("no read waits", || reading.load(Ordering::Acquire) == 0);
    });
}

#[test]
fn files_keep_their_storage_and_let_it_go() {
    let bed = Bed::emulated();
    let contents = storage(b"contents", put);
    let file = file(&bed, contents.clone());
    assert!(Arc::ptr_eq(file.storage().unwrap(), &contents));
    let clone = file.clone();
    drop(file);
    assert_eq!(clone.read_at(&mut [0; 3][..], 0).unwrap(), 3);
    drop(clone);
    soon("the file lets the storage go", || Arc::strong_count(&contents) == 1);
    bed.file("local", b"contents");
    assert!(File::open(bed.path("local")).unwrap().storage().is_none());
}

#[test]
fn storages_may_read_files_of_this_crate() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(LONG));
    let inner = File::options().read(true).engine(&engine(&bed)).open(bed.path("data")).unwrap();
    let engine = engine(&bed);
    let bytes = pattern(LONG);
    // Contents that are decoded: each byte is another one in the file.
    let decoded = storage(&bytes, move |_, spans| {
        while let Some(range) = spans.next_range() {
            let mut part = vec![0; ((range.end - range.start) as usize).min(1 << 20)];
            inner.read_exact_at(&mut part, range.start)?;
            part.iter_mut().for_each(|byte| *byte = !*byte);
            spans.put(&part)?;
        }
        Ok(())
    });
    let file = File::options().engine(&engine).open_storage("decoded", decoded).unwrap();
    let mut found = bed.device.alloc(LONG).unwrap();
    file.read_exact_at(&mut found, 0).unwrap();
    let expected: Vec<_> = bytes.iter().map(|byte| !byte).collect();
    assert!(found.to_vec().unwrap() == expected);
}
