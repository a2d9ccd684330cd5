//! Tests of files on servers: the calls of files, connections, redirects and settings.

use std::fs;
use std::iter;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{cause, engine, options};
use gpufile::remote::RemoteError;
use gpufile::{Cause, Engine, File, IoRange, Request, RouteKind};
use testkit::bed::{Bed, pattern};
use testkit::in_a_fork;
use testkit::in_flight::block_on;
use testkit::web::{Fault, Server};

/// A length of many chunks, and a multiple of none.
const LONG: usize = (9 << 20) + 4321;

#[test]
fn single_ranges_have_the_bytes_of_the_object() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    Bed::each(|bed| {
        let file = options().engine(&engine(bed)).open(&server.url("/data")).unwrap();
        assert_eq!((file.len_bytes().unwrap(), file.etag()), (LONG as u64, Some("\"1\"")));
        for len in [0, 1, 511, 4096, 64 << 10, (64 << 10) + 1, 1 << 20, 4 << 20, LONG - 77] {
            let mut device = bed.device.alloc(len).unwrap();
            file.read_exact_at(&mut device, 77).unwrap();
            assert!(device.to_vec().unwrap() == bytes[77..77 + len], "{len} bytes");
            let mut host = vec![0; len];
            file.read_exact_at(&mut host, 77).unwrap();
            assert!(host == bytes[77..77 + len], "{len} bytes");
            let mut inline = vec![0; len];
            file.inline().with_chunk_bytes(100_000).read_exact_at(&mut inline, 77).unwrap();
            assert!(inline == host);
        }
    });
}

#[test]
fn reads_end_with_the_object() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    Bed::each(|bed| {
        let file = options().engine(&engine(bed)).open(&server.url("/data")).unwrap();
        server.requests();
        for (start, there) in [(LONG - 10, 10), (LONG, 0), (LONG + 5, 0), (5, LONG - 5)] {
            let mut host = vec![0; LONG];
            assert_eq!(file.read_at(&mut host, start as u64).unwrap(), there);
            assert!(host[..there] == bytes[start.min(LONG)..]);
            let mut device = bed.device.alloc(LONG).unwrap();
            assert_eq!(file.read_at(&mut device, start as u64).unwrap(), there);
            assert!(device.to_vec().unwrap()[..there] == bytes[start.min(LONG)..]);
        }
        assert!(server.requests().iter().all(|request| request.range.as_ref().unwrap().end <= LONG as u64));
        let error = file.read_exact_at(&mut vec![0; 20], LONG as u64 - 10).unwrap_err();
        assert!(matches!(error.cause(), Cause::EndOfFile { at } if *at == LONG as u64), "{error}");
        assert_eq!(error.bytes_done(), 10);
    });
}

#[test]
fn lists_of_ranges_reach_their_places() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    Bed::each(|bed| {
        let file = options().engine(&engine(bed)).open(&server.url("/data")).unwrap();
        // Ranges behind each other, apart, and in another order than in the file.
        let ranges: Vec<_> = (0..300)
            .map(|number| {
                let file_offset = if number % 3 == 0 {
                    number * 20_000
                } else {
                    (number - number % 3) * 20_000 + number % 3 * 9000
                };
                IoRange { file_offset, buffer_offset: (299 - number as usize) * 9000, len_bytes: 9000 }
            })
            .collect();
        let mut expected = vec![0; 300 * 9000];
        for IoRange { file_offset, buffer_offset, len_bytes } in &ranges {
            let source = &bytes[*file_offset as usize..][..*len_bytes];
            expected[*buffer_offset..][..*len_bytes].copy_from_slice(source);
        }
        server.requests();
        let mut host = vec![0; expected.len()];
        file.read_many(&mut host, &ranges).unwrap();
        assert!(host == expected);
        let count = server.requests().len();
        assert!(count < 200, "{count} requests: neighbours are one request");
        let mut device = bed.device.alloc(expected.len()).unwrap();
        file.read_many(&mut device, &ranges).unwrap();
        assert!(device.to_vec().unwrap() == expected);

        let beyond = IoRange { file_offset: LONG as u64 - 5, buffer_offset: 0, len_bytes: 9000 };
        let outcomes = file.read_many_each(&mut host, &[ranges[0], beyond]).unwrap();
        assert_eq!(outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [9000, 5]);
    });
}

#[test]
fn one_list_reads_servers_and_local_files() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let other = Server::new(bytes[..100].to_vec());
    Bed::each(|bed| {
        let engine = engine(bed);
        bed.file("local", &bytes);
        let local = File::options().read(true).engine(&engine).open(bed.path("local")).unwrap();
        let remote = options().engine(&engine).open(&server.url("/data")).unwrap();
        let other: File = options().engine(&engine).open(&other.url("/data")).unwrap().into();
        let (mut first, mut second) =
            (bed.device.alloc(2 << 20).unwrap(), bed.device.alloc(3 << 20).unwrap());
        let mut third = bed.device.alloc(50).unwrap();
        let mut requests = [
            Request { file: &local, buffer: &mut first, offset: 5 },
            Request { file: &*remote, buffer: &mut second, offset: 7 },
            Request { file: &other, buffer: &mut third, offset: 9 },
        ];
        engine.read_many(&mut requests).unwrap();
        assert!(first.to_vec().unwrap() == bytes[5..][..2 << 20]);
        assert!(second.to_vec().unwrap() == bytes[7..][..3 << 20]);
        assert!(third.to_vec().unwrap() == bytes[9..][..50]);
    });
}

#[test]
fn futures_and_streams_read_objects() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    Bed::each(|bed| {
        let file = options().engine(&engine(bed)).open(&server.url("/data")).unwrap();
        let (count, host) = block_on(file.read_at_async(vec![0; LONG], 3));
        assert_eq!(count.unwrap(), LONG - 3);
        assert!(host[..LONG - 3] == bytes[3..]);
        let stream = bed.device.stream().unwrap();
        let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        let (count, device) = io.wait();
        assert_eq!(count.unwrap(), LONG);
        assert!(device.to_vec().unwrap() == bytes);
        server.fail_always(Some(Fault::Status(403, None)));
        let (outcome, _) = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0).wait();
        assert_eq!(cause(&outcome.unwrap_err()).status(), Some(403));
        server.forget_faults();
    });
}

#[test]
fn device_memory_takes_the_route_through_host_memory() {
    let server = Server::new(pattern(100));
    let bed = Bed::emulated();
    let file = options().engine(&engine(&bed)).open(&server.url("/data")).unwrap();
    assert_eq!(file.route().kind(), RouteKind::Posix);
    assert_eq!(file.route().why_not_gds(), Some("the bytes come from a storage that has no descriptor"));
}

#[test]
fn calls_that_need_a_descriptor_are_refused() {
    let server = Server::new(pattern(100));
    let file = options().open(&server.url("/data")).unwrap();
    let written = file.write_all_at(&vec![0; 10], 0).unwrap_err();
    assert!(written.to_string().contains(&server.url("/data")), "{written}");
    assert!(file.set_len(5).is_err() && file.map().is_err());
    assert_eq!(file.len_bytes().unwrap(), 100);
}

#[test]
fn objects_are_read_by_another_engine() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    Bed::each(|bed| {
        let first = options().open(&server.url("/data")).unwrap();
        let other = engine(bed);
        let file = first.with_chunk_bytes(200_000).with_engine(&other).unwrap();
        assert_eq!((file.len_bytes().unwrap(), file.path()), (LONG as u64, first.path()));
        let mut device = bed.device.alloc(LONG).unwrap();
        file.read_exact_at(&mut device, 0).unwrap();
        assert!(device.to_vec().unwrap() == bytes);
        assert_eq!(other.stats().posix.read_bytes, LONG as u64);
    });
}

#[test]
fn files_of_one_server_share_its_connections() {
    testkit::alone(|| {
        let bytes = pattern(LONG);
        let server = Server::new(bytes.clone());
        let engine = Engine::builder().threads(1).build();
        let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
        let mut before = 0;
        for number in 0..1000 {
            let file = options().engine(&engine).open(&server.url("/data?number")).unwrap();
            let mut some = vec![0; 100];
            file.read_exact_at(&mut some, number).unwrap();
            assert!(some == bytes[number as usize..][..100]);
            if number == 10 {
                before = descriptors();
            }
        }
        let connections = server.requests().iter().map(|request| request.connection).max().unwrap() + 1;
        assert!(connections < 3, "{connections} connections");
        assert!(descriptors() < before + 10, "{} descriptors, {before} before", descriptors());
    });
}

#[test]
fn connections_that_the_server_closed_are_replaced() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    // A single try: the second connection is not a second try.
    let file = options().tries(1).open(&server.url("/data")).unwrap();
    for _ in 0..20 {
        server.close_connections();
        let mut all = vec![0; LONG];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == bytes);
    }
}

#[test]
fn forked_children_have_connections_of_their_own() {
    testkit::alone(|| {
        let bytes = pattern(LONG);
        let server = Server::new(bytes.clone());
        let engine = Engine::builder().threads(2).build();
        let file = options().engine(&engine).open(&server.url("/data")).unwrap();
        file.read_exact_at(&mut vec![0; 10], 0).unwrap();
        let before = server.requests().iter().map(|request| request.connection).max().unwrap();
        let child = || {
            let mut all = vec![0; LONG];
            file.read_exact_at(&mut all, 0).unwrap();
            assert!(all == bytes);
        };
        in_a_fork(child).unwrap();
        assert!(server.requests().iter().all(|request| request.connection > before));
        file.read_exact_at(&mut vec![0; 10], 0).unwrap();
    });
}

#[test]
fn redirects_are_followed_without_headers_for_others() {
    let bytes = pattern(LONG);
    let (server, other) = (Server::new(Vec::new()), Server::new(bytes.clone()));
    server.fail_always(Some(Fault::Redirect(other.url("/signed?signature"))));
    let options = options().header("Authorization", "secret").header("X-Two", "2");
    let file = options.open(&server.url("/data")).unwrap();
    let mut all = vec![0; LONG];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == bytes);
    let sent = server.requests();
    assert_eq!((sent[0].header("authorization"), sent[0].header("x-two")), (Some("secret"), Some("2")));
    assert_eq!(sent.len(), 1, "later ranges go to where the first one was found");
    let sent = other.requests();
    assert!(sent.iter().all(|request| request.target == "/signed?signature"));
    assert!(sent.iter().all(|request| request.header("authorization").is_none()));
    // A signed address that has expired: the first server signs another one.
    other.fail([Fault::Status(403, None)]);
    let mut some = vec![0; 1000];
    file.read_exact_at(&mut some, 5).unwrap();
    assert!(some == bytes[5..1005]);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn redirects_in_a_circle_end_with_an_error() {
    let server = Server::new(pattern(100));
    server.fail_always(Some(Fault::Redirect("/data".to_owned())));
    let error = options().open(&server.url("/data")).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Answer { .. }), "{error}");
    assert_eq!(server.requests().len(), 11);
    server.fail_always(Some(Fault::Redirect("ftp://me:secret@example.org/".to_owned())));
    let error = options().open(&server.url("/data")).unwrap_err().to_string();
    assert!(error.contains("redirects") && !error.contains("secret"), "{error}");
}

#[test]
fn empty_objects_are_opened() {
    let server = Server::new(Vec::new());
    let file = options().open(&server.url("/empty")).unwrap();
    assert_eq!((file.len_bytes().unwrap(), file.read_at(&mut vec![0; 10], 0).unwrap()), (0, 0));
    server.fail([Fault::Whole]);
    assert_eq!(options().open(&server.url("/empty")).unwrap().len_bytes().unwrap(), 0);
}

#[test]
fn headers_that_cannot_be_sent_are_refused() {
    let server = Server::new(pattern(100));
    for (name, value) in [
        ("", "x"),
        ("a b", "x"),
        ("a:", "x"),
        ("a", "x\r\nb: y"),
        ("Range", "bytes=0-5"),
        ("host", "x"),
        ("TE", "gzip"),
        ("Upgrade", "h2c"),
    ] {
        let error = options().header(name, value).open(&server.url("/data")).unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Invalid { .. }), "{error}");
    }
    assert!(server.requests().is_empty());
}

#[test]
fn secrets_appear_in_no_error_and_no_log() {
    let server = Server::new(pattern(100));
    let options = options().header("Authorization", "secret");
    let url = server.url("/data?signature=secret");
    let file = options.open(&url).unwrap();
    let shown = format!("{options:?} {file:?} {:?}", file.path());
    assert!(!shown.contains("secret") && shown.contains("/data"), "{shown}");
    server.fail_always(Some(Fault::Status(500, None)));
    let error = file.read_at(&mut vec![0; 10], 20).unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(!text.contains("secret"), "{text}");
    let place = format!("cannot read 10 bytes at 20 of \"{}\"", server.url("/data"));
    assert!(text.contains(&place) && text.contains("status 500"), "{text}");
    let error = options.open(&url).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    for wrong in ["http://me:secret@localhost/data", "s3://me:secret@bucket/?secret", "me:secret@host"] {
        let error = options.open(wrong).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}

#[test]
fn encrypted_servers_are_read_if_they_are_trusted() {
    let bytes = pattern(LONG);
    let server = Server::encrypted(bytes.clone());
    let trusting = options().trust(server.certificate().as_bytes()).unwrap();
    Bed::each(|bed| {
        let file = trusting.clone().engine(&engine(bed)).open(&server.url("/data")).unwrap();
        let (mut host, mut device) = (vec![0; LONG], bed.device.alloc(LONG).unwrap());
        file.read_exact_at(&mut host, 0).unwrap();
        assert!(host == bytes);
        file.read_exact_at(&mut device, 0).unwrap();
        assert!(device.to_vec().unwrap() == bytes);
    });
    let connections = server.requests().iter().map(|request| request.connection).max().unwrap() + 1;
    assert!(connections < 20, "{connections} connections");
    // The connections that wait belong to those that trust the server.
    for wrong in [options(), options().trust(Server::encrypted(Vec::new()).certificate().as_bytes()).unwrap()]
    {
        let error = wrong.open(&server.url("/data")).unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Certificate { .. }), "{error}");
    }
    let other_name = server.url("/data").replace("localhost", "127.0.0.1");
    let error = trusting.open(&other_name).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Certificate { .. }), "{error}");
    assert!(server.requests().is_empty(), "no request came before the check");
    let plain = Server::new(Vec::new());
    let hasty = trusting.tries(1).timeout(Duration::from_millis(300));
    let error = hasty.open(&plain.url("/data").replace("http:", "https:")).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Deadline { .. }), "{error}");
    for pem in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(matches!(options().trust(pem.as_bytes()), Err(RemoteError::Invalid { .. })));
    }
}

#[test]
fn a_new_server_keeps_its_connection_after_hundreds_of_others() {
    testkit::alone(|| {
        let bytes = pattern(100);
        let read = |server: &Server| {
            let file = options().open(&server.url("/data")).unwrap();
            file.read_exact_at(&mut vec![0; 100], 0).unwrap();
        };
        // More than the connections that wait at most.
        let others: Vec<_> = iter::repeat_with(|| Server::new(bytes.clone())).take(300).collect();
        others.iter().for_each(read);
        let server = Server::new(bytes.clone());
        read(&server);
        read(&server);
        assert!(server.requests().iter().all(|request| request.connection == 0));
    });
}

#[test]
fn default_engines_have_many_connections() {
    let bytes = pattern(16 << 20);
    Bed::each(|bed| {
        let server = Server::new(bytes.clone());
        let engine = Engine::builder().driver(bed.driver.clone()).build();
        let file = options().engine(&engine).open(&server.url("/data")).unwrap();
        server.fail_always(Some(Fault::Stall(0, Duration::from_secs(60))));
        let waiting = file.read_at_async(bed.device.alloc(bytes.len()).unwrap(), 0);
        // As many as an engine with two threads has are not enough.
        let end = Instant::now() + Duration::from_secs(30);
        while server.open_connections() < 16 {
            assert!(Instant::now() < end, "{} connections", server.open_connections());
            thread::sleep(Duration::from_millis(1));
        }
        drop(waiting.cancel());
        server.fail_always(None);
        let mut device = bed.device.alloc(bytes.len()).unwrap();
        file.read_exact_at(&mut device, 0).unwrap();
        assert!(device.to_vec().unwrap() == bytes);
        assert!(engine.stats().pinned_bytes > 0 && engine.release_buffers() > 0);
    });
}
