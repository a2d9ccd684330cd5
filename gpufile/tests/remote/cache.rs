//! Tests of objects that a folder keeps.

use std::fs;
use std::path::Path;
use std::thread;

use crate::support::{cause, engine, options};
use gpufile::Cause;
use gpufile::remote::RemoteOptions;
use testkit::bed::{Bed, pattern};
use testkit::web::{Fault, Server};

const LONG: usize = (33 << 20) + 4321;

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Opens the object, and compares its bytes. Returns the number of requests.
#[track_caller]
fn read(bed: &Bed, options: &RemoteOptions, server: &Server, bytes: &[u8]) -> usize {
    server.requests();
    let file = options.open(&server.url("/data?secret")).unwrap();
    let mut device = bed.device.alloc(bytes.len()).unwrap();
    file.read_exact_at(&mut device, 0).unwrap();
    assert!(device.to_vec().unwrap() == bytes);
    assert_eq!(file.len_bytes().unwrap(), bytes.len() as u64);
    server.requests().len()
}

#[test]
fn later_reads_come_from_the_folder() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let bed = Bed::emulated();
    let folder = bed.path("cache");
    let options = options().engine(&engine(&bed)).cache(&folder, 1 << 30);
    assert!(read(&bed, &options, &server, &bytes) > 10);
    assert_eq!((read(&bed, &options, &server, &bytes), files(&folder)), (1, 1));
    // Another version is another object.
    let changed = pattern(LONG + 1)[1..].to_vec();
    server.set(changed.clone(), Some("\"2\""));
    assert!(read(&bed, &options, &server, &changed) > 10);
    assert_eq!((read(&bed, &options, &server, &changed), files(&folder)), (1, 2));
    // Names and errors tell no secret.
    let file = options.open(&server.url("/data?secret")).unwrap();
    let error = file.read_exact_at(&mut vec![0; 2], LONG as u64 - 1).unwrap_err();
    assert!(!error.to_string().contains("secret") && !format!("{file:?}").contains("secret"), "{error}");
}

#[test]
fn objects_without_a_version_or_room_are_not_kept() {
    let bytes = pattern(100_000);
    let server = Server::new(bytes.clone());
    let bed = Bed::emulated();
    let folder = bed.path("cache");
    let options = options().engine(&engine(&bed));
    let small = options.clone().cache(&folder, 99_999);
    assert!(read(&bed, &small, &server, &bytes) > 1);
    let large = options.cache(&folder, 1 << 30);
    for etag in [None, Some("W/\"1\"")] {
        server.set(bytes.clone(), etag);
        assert!(read(&bed, &large, &server, &bytes) > 1);
    }
    server.set(Vec::new(), Some("\"3\""));
    read(&bed, &large, &server, &[]);
    assert_eq!(files(&folder), 0);
}

#[test]
fn objects_that_cannot_be_fetched_leave_nothing() {
    let server = Server::new(pattern(LONG));
    let bed = Bed::emulated();
    let folder = bed.path("cache");
    let options = options().engine(&engine(&bed)).tries(1).cache(&folder, 1 << 30);
    // The first request opens the object.
    server.fail(std::iter::repeat_n(Fault::Interim, 12).chain([Fault::Status(403, None)]));
    let error = options.open(&server.url("/data")).unwrap_err();
    assert_eq!(cause(&error).status(), Some(403));
    assert_eq!(files(&folder), 0);
    bed.file("file", b"");
    let error = options.cache(bed.path("file"), 1).open(&server.url("/data")).unwrap_err();
    assert!(matches!(error.cause(), Cause::Io(_)), "{error}");
}

#[test]
fn readers_side_by_side_get_the_right_bytes() {
    let bytes = pattern(3 << 20);
    let server = Server::new(bytes.clone());
    let bed = Bed::emulated();
    let folder = bed.path("cache");
    // There is room for two of three objects.
    let options = options().engine(&engine(&bed)).cache(&folder, 7 << 20);
    thread::scope(|scope| {
        for reader in 0..6 {
            let (options, server, bytes) = (&options, &server, &bytes);
            scope.spawn(move || {
                for round in 0..10 {
                    let file = options.open(&server.url(&format!("/{}", (reader + round) % 3))).unwrap();
                    let mut host = vec![0; bytes.len()];
                    file.read_exact_at(&mut host, 0).unwrap();
                    assert!(host == *bytes);
                }
            });
        }
    });
    assert!((1..=2).contains(&files(&folder)), "{} files", files(&folder));
}
