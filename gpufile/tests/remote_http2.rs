//! Tests of servers that speak HTTP/2.

mod remote_support;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use gpufile::remote::{RemoteError, RemoteOptions};
use gpufile::{File, IoRange};
use remote_support::{cause, engine, options};
use testkit::bed::{Bed, pattern};
use testkit::gateway::{Choices, Gateway};
use testkit::random::Random;
use testkit::web::{Fault, Server};

const LONG: usize = (3 << 20) + 4321;
const SHORT: Duration = Duration::from_millis(300);

fn offering(gateway: &Gateway) -> RemoteOptions {
    options().http2(true).trust(gateway.certificate()).unwrap()
}

/// Reads a file whole, and by a list of many requests, into device and host memory.
fn assert_reads(bed: &Bed, file: &File, bytes: &[u8]) {
    let mut device = bed.device.alloc(bytes.len()).unwrap();
    file.with_chunk_bytes(300_000).read_exact_at(&mut device, 0).unwrap();
    assert!(device.to_vec().unwrap() == bytes);
    let ranges: Vec<_> = (0..60)
        .map(|number| IoRange {
            file_offset: (59 - number) * 50_000 + 17,
            buffer_offset: number as usize * 1000,
            len_bytes: 1000,
        })
        .collect();
    let mut host = vec![0; 60_000];
    file.read_many(&mut host, &ranges).unwrap();
    for IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        let at = file_offset as usize;
        assert!(host[buffer_offset..][..len_bytes] == bytes[at..][..len_bytes]);
    }
}

#[test]
fn ranges_come_by_http2_where_it_is_chosen() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    for choices in [
        Choices::default(),
        Choices { most_open: Some(1), ..Choices::default() },
        Choices { most_open: Some(3), ends_separately: true, ..Choices::default() },
        Choices { most_requests: Some(5), ..Choices::default() },
    ] {
        let gateway = Gateway::new(&server, choices);
        Bed::each(|bed| {
            let options = offering(&gateway).header("X-Key", "a").engine(&engine(bed));
            let file = options.open(&gateway.url("/a%20b?c=%25")).unwrap();
            server.requests();
            assert_reads(bed, &file, &bytes);
            let requests = server.requests();
            assert!(requests.len() >= 70, "{} requests", requests.len());
            for request in requests {
                assert_eq!(request.target, "/a%20b?c=%25");
                let header = |name| request.header(name);
                assert_eq!([header("If-Match"), header("X-Key")], [Some("\"1\""), Some("a")]);
                assert_eq!(header("Accept-Encoding"), Some("identity"));
            }
        });
        assert!(choices.most_open.is_none_or(|most| gateway.most_open() <= most as usize));
    }
}

#[test]
fn servers_without_http2_answer_as_before() {
    let bytes = pattern(LONG);
    let (plain, encrypted) = (Server::new(bytes.clone()), Server::encrypted(bytes.clone()));
    Bed::each(|bed| {
        let options = options().http2(true).engine(&engine(bed));
        assert_reads(bed, &options.open(&plain.url("/data")).unwrap(), &bytes);
        let trusting = options.trust(encrypted.certificate().as_bytes()).unwrap();
        assert_reads(bed, &trusting.open(&encrypted.url("/data")).unwrap(), &bytes);
    });
}

#[test]
fn servers_of_http2_only_are_an_error_without_the_option() {
    let server = Server::new(pattern(10));
    let gateway = Gateway::new(&server, Choices::default());
    let begun = Instant::now();
    let error = options().trust(gateway.certificate()).unwrap().open(&gateway.url("/a")).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("http2") && begun.elapsed() < Duration::from_secs(5), "{error}");
    assert_eq!(server.requests().len(), 0);
}

/// The faults that a gateway can pass on.
fn faults() -> impl Iterator<Item = Fault> {
    Fault::passing().into_iter().chain(Fault::RIGHT)
}

#[test]
fn faults_of_streams_cost_only_another_try() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let gateway = Gateway::new(&server, Choices::default());
    Bed::each(|bed| {
        let options = offering(&gateway).engine(&engine(bed));
        for fault in faults() {
            server.fail([fault.clone()]);
            let file = options.open(&gateway.url("/data")).unwrap();
            server.fail([fault.clone(), fault.clone()]);
            let mut device = bed.device.alloc(LONG).unwrap();
            file.read_exact_at(&mut device, 0).unwrap();
            assert!(device.to_vec().unwrap() == bytes, "{fault:?}");
            assert_eq!(server.forget_faults(), 0);
        }
    });
}

#[test]
fn connections_that_end_cost_only_another_one() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    for count in [2, 7] {
        for choices in [
            Choices { most_requests: Some(count), ..Choices::default() },
            Choices { closes_after: Some(count), ..Choices::default() },
        ] {
            let gateway = Gateway::new(&server, choices);
            Bed::each(|bed| {
                let file =
                    offering(&gateway).tries(20).engine(&engine(bed)).open(&gateway.url("/data")).unwrap();
                assert_reads(bed, &file, &bytes);
            });
            // A connection that ends by its word still takes what was sent before it.
            let fewest = if choices.closes_after.is_some() { 10 } else { 3 };
            assert!(gateway.connections() >= fewest, "{} connections", gateway.connections());
        }
    }
}

#[test]
fn the_last_answer_counts_although_the_connection_ends_behind_it() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let gateway = Gateway::new(&server, Choices { most_requests: Some(1), ..Choices::default() });
    let file = offering(&gateway).tries(1).open(&gateway.url("/data")).unwrap();
    for len_bytes in (1..200).map(|count| count * 991) {
        let mut host = vec![0; len_bytes];
        file.read_exact_at(&mut host, 77).unwrap();
        assert!(host == bytes[77..][..len_bytes]);
    }
    assert_eq!(gateway.connections(), 200);
}

#[test]
fn answers_count_although_the_connection_takes_no_more_requests() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let choices = Choices { most_open: Some(1), most_requests: Some(3), ..Choices::default() };
    let gateway = Gateway::new(&server, choices);
    let file = offering(&gateway).open(&gateway.url("/data")).unwrap();
    let ranges: Vec<_> = (0..30)
        .map(|number| IoRange {
            file_offset: number * 100_000,
            buffer_offset: number as usize * 1000,
            len_bytes: 1000,
        })
        .collect();
    server.requests();
    let mut host = vec![0; 30_000];
    file.read_many(&mut host, &ranges).unwrap();
    for (part, range) in host.chunks(1000).zip(&ranges) {
        assert!(part == &bytes[range.file_offset as usize..][..1000]);
    }
    let requests = server.requests().len();
    assert_eq!(requests, 30);
}

#[test]
fn refusals_and_changes_are_errors_at_once() {
    let server = Server::new(pattern(LONG));
    let gateway = Gateway::new(&server, Choices::default());
    let file = offering(&gateway).open(&gateway.url("/data?sig=secret")).unwrap();
    server.requests();
    for (status, kind) in [(403, ErrorKind::PermissionDenied), (404, ErrorKind::NotFound)] {
        server.fail([Fault::Status(status, None)]);
        let error = file.read_exact_at(&mut vec![0; 10], 0).unwrap_err();
        assert_eq!((cause(&error).status(), error.kind()), (Some(status), kind));
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    server.set(pattern(LONG), Some("\"2\""));
    let error = file.read_exact_at(&mut vec![0; 10], 0).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Changed), "{error}");
    assert_eq!(server.requests().len(), 3, "none was repeated");
}

#[test]
fn slow_streams_end_with_the_deadline() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let gateway = Gateway::new(&server, Choices::default());
    let file = offering(&gateway).timeout(SHORT).tries(3).open(&gateway.url("/data")).unwrap();
    for fault in [Fault::Stall(0, 20 * SHORT), Fault::Stall(10, 20 * SHORT), Fault::Trickle(SHORT / 100)] {
        server.fail([fault.clone()]);
        let mut host = vec![0; 100_000];
        file.read_exact_at(&mut host, 3).unwrap();
        assert!(host == bytes[3..100_003]);
        server.fail_always(Some(fault));
        let begun = Instant::now();
        let error = file.read_exact_at(&mut host, 3).unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Deadline { .. }), "{error}");
        assert!(begun.elapsed() >= 3 * SHORT && begun.elapsed() < 20 * SHORT, "{:?}", begun.elapsed());
        server.forget_faults();
    }
}

#[test]
fn late_streams_are_asked_for_again() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let gateway = Gateway::new(&server, Choices::default());
    let file =
        offering(&gateway).repeat_late(true).open(&gateway.url("/data")).unwrap().with_chunk_bytes(100_000);
    let mut host = vec![0; LONG];
    file.read_exact_at(&mut host, 0).unwrap();
    server.fail([Fault::Stall(50_000, Duration::from_secs(20))]);
    let begun = Instant::now();
    file.read_exact_at(&mut host, 0).unwrap();
    assert!(host == bytes && begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn random_faults_of_streams_lead_to_no_wrong_byte() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let bed = Bed::emulated();
    let engine = engine(&bed);
    let every: Vec<_> = faults().chain([Fault::OtherTotal, Fault::Status(404, None)]).collect();
    let (mut succeeded, mut failed) = (0, 0);
    for round in 0..10 {
        let choices = Choices {
            most_open: [None, Some(1), Some(4)][round % 3],
            most_requests: [None, Some(3)][round % 2],
            closes_after: [None, None, None, Some(9)][round % 4],
            ends_separately: round % 2 == 1,
        };
        let gateway = Gateway::new(&server, choices);
        for seed in 0..30 {
            let mut random = Random::new(seed + 100 * round as u64);
            let most = if random.one_in(4) { 1 << 20 } else { 20_000 };
            let len = 1 + random.below(most);
            let offset = random.below(LONG - len);
            let options = offering(&gateway).engine(&engine).tries(1 + random.below(6) as u32);
            let Ok(file) = options.open(&gateway.url("/data")) else {
                failed += 1;
                continue;
            };
            let faults: Vec<_> = (0..random.below(14))
                .map(|_| every[random.below(every.len())].moved(&mut random, len))
                .collect();
            server.fail(faults.iter().cloned());
            let mut host = vec![0xee; len];
            let outcome =
                file.with_chunk_bytes(1 + random.below(300_000)).read_exact_at(&mut host, offset as u64);
            match outcome {
                Ok(()) => {
                    assert!(host == bytes[offset..offset + len], "{round}, seed {seed}: {faults:?}");
                    succeeded += 1;
                }
                Err(_) => failed += 1,
            }
            server.forget_faults();
        }
    }
    assert!(succeeded > 100 && failed > 10, "{succeeded} succeeded, {failed} failed");
}
