//! Tests of answers that are late, and of reads that nobody waits for.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{cause, engine};
use gpufile::IoRange;
use gpufile::remote::RemoteError;
use gpufile::remote::RemoteOptions;
use testkit::bed::{Bed, pattern};
use testkit::web::{Fault, Server};

const LONG: usize = (3 << 20) + 4321;
fn options() -> RemoteOptions {
    crate::support::options().repeat_late(true)
}

/// A time that no test waits for.
const AGES: Duration = Duration::from_secs(25);

#[test]
fn late_answers_are_overtaken() {
    let bytes = pattern(LONG);
    let (plain, encrypted) = (Server::new(bytes.clone()), Server::encrypted(bytes.clone()));
    let trusting = options().trust(encrypted.certificate().as_bytes()).unwrap();
    let bed = Bed::emulated();
    let engine = engine(&bed);
    for (server, options) in [(&plain, &options()), (&encrypted, &trusting)] {
        let file = options.clone().engine(&engine).tries(1).open(&server.url("/data")).unwrap();
        for number in 0..20 {
            file.read_exact_at(&mut vec![0; 10_000], number * 10_000).unwrap();
        }
        for fault in
            [Fault::Stall(0, AGES), Fault::Stall(7000, AGES), Fault::Trickle(Duration::from_millis(20))]
        {
            server.requests();
            server.fail([fault.clone()]);
            let begun = Instant::now();
            let mut device = bed.device.alloc(10_000).unwrap();
            file.read_exact_at(&mut device, 33).unwrap();
            assert!(device.to_vec().unwrap() == bytes[33..10_033], "{fault:?}");
            assert!(begun.elapsed() < AGES / 2, "{fault:?}");
            let ranges: Vec<_> = server.requests().into_iter().filter_map(|request| request.range).collect();
            assert_eq!((ranges.len(), ranges[0].clone(), ranges[1].end), (2, 33..10_033, 10_033));
            // The second request asks only for the bytes that had not arrived.
            let arrived = if let Fault::Stall(bytes, _) = fault { bytes as u64 } else { 0 };
            assert!(ranges[1].start >= 33 + arrived, "{ranges:?}");
        }
    }
}

#[test]
fn late_answers_of_lists_are_overtaken() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let bed = Bed::emulated();
    let file = options().engine(&engine(&bed)).gap_bytes(0).tries(1).open(&server.url("/data")).unwrap();
    let range = |number: usize| IoRange {
        file_offset: number as u64 * 20_000,
        buffer_offset: number * 10_000,
        len_bytes: 10_000,
    };
    let ranges: Vec<_> = (0..150).map(range).collect();
    let mut host = vec![0; 150 * 10_000];
    file.read_many(&mut host, &ranges).unwrap();
    host.fill(0);
    let faults = (0..60).map(|number| match number {
        20 | 50 => Fault::Stall(number, AGES),
        _ => Fault::Shorter,
    });
    server.fail(faults);
    let begun = Instant::now();
    file.read_many(&mut host, &ranges).unwrap();
    assert!(begun.elapsed() < AGES / 2);
    for IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        assert!(host[buffer_offset..][..len_bytes] == bytes[file_offset as usize..][..len_bytes]);
    }
}

#[test]
fn late_answers_are_waited_for_by_choice() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let file = options().repeat_late(false).open(&server.url("/data")).unwrap();
    for number in 0..16 {
        file.read_exact_at(&mut vec![0; 100], number * 100).unwrap();
    }
    server.requests();
    server.fail([Fault::Trickle(Duration::from_millis(5))]);
    let mut host = vec![0; 100];
    file.read_exact_at(&mut host, 0).unwrap();
    assert!(host == bytes[..100]);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn slow_servers_get_few_second_requests() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let file = options().open(&server.url("/data")).unwrap();
    for number in 0..16 {
        file.read_exact_at(&mut vec![0; 100], number * 100).unwrap();
    }
    server.requests();
    server.fail_always(Some(Fault::Trickle(Duration::from_millis(2))));
    for number in 0..20 {
        let mut host = vec![0; 100];
        file.read_exact_at(&mut host, number * 100).unwrap();
        assert!(host == bytes[number as usize * 100..][..100]);
    }
    let count = server.requests().len();
    assert!(count <= 20 + 6, "{count} requests");
}

#[test]
fn second_requests_have_the_deadline_of_the_first() {
    let server = Server::new(pattern(LONG));
    let timeout = Duration::from_millis(400);
    let file = options().timeout(timeout).tries(1).open(&server.url("/data")).unwrap();
    for number in 0..16 {
        file.read_exact_at(&mut vec![0; 100], number * 100).unwrap();
    }
    server.requests();
    server.fail_always(Some(Fault::Stall(0, AGES)));
    let begun = Instant::now();
    let error = file.read_exact_at(&mut vec![0; 100], 0).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Deadline { .. }), "{error}");
    assert!(begun.elapsed() >= timeout && begun.elapsed() < AGES / 2);
    assert_eq!(server.requests().len(), 2);
}

/// Waits until the server has no connection. Returns the time that it took.
fn wait_for_closed(server: &Server) -> Duration {
    let begun = Instant::now();
    while server.open_connections() > 0 {
        assert!(begun.elapsed() < AGES / 2, "{} connections are open", server.open_connections());
        thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

fn wait_for_requests(server: &Server, count: usize) {
    let mut seen = 0;
    while seen < count {
        seen += server.requests().len();
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn cancelled_and_dropped_reads_end_their_requests() {
    let bytes = pattern(LONG);
    let bed = Bed::emulated();
    let engine = engine(&bed);
    let mut times = Vec::new();
    for round in 0..10 {
        let server = Server::new(bytes.clone());
        let file = options().engine(&engine).open(&server.url("/data")).unwrap().with_chunk_bytes(1 << 20);
        server.requests();
        server.fail_always(Some(Fault::Stall(1000, AGES)));
        let begun = if round % 2 == 0 {
            let future = file.read_at_async(bed.device.alloc(LONG).unwrap(), 0);
            wait_for_requests(&server, 3);
            let begun = Instant::now();
            let (outcome, _) = future.cancel();
            assert!(outcome.unwrap() < LONG);
            begun
        } else {
            let ranges = vec![IoRange { file_offset: 7, buffer_offset: 0, len_bytes: 2000 }];
            let future = file.read_many_each_async(vec![0; LONG], ranges);
            wait_for_requests(&server, 1);
            let begun = Instant::now();
            drop(future);
            begun
        };
        wait_for_closed(&server);
        times.push(begun.elapsed());
    }
    times.sort();
    println!("requests ended after {times:?}");
    // A busy machine may pause threads for longer.
    assert!(times[0] < Duration::from_millis(50), "{times:?}");
}

#[test]
fn cancelled_reads_wait_for_no_later_try() {
    let bed = Bed::emulated();
    let server = Server::new(pattern(LONG));
    let file = options().engine(&engine(&bed)).wait(AGES).open(&server.url("/data")).unwrap();
    server.requests();
    server.fail_always(Some(Fault::Status(503, None)));
    let future = file.read_at_async(vec![0; 100], 0);
    wait_for_requests(&server, 1);
    let begun = Instant::now();
    let (outcome, _) = future.cancel();
    assert_eq!(outcome.unwrap(), 0);
    assert!(begun.elapsed() < AGES / 2);
}

/// Answers requests for ranges of 100 bytes by a head and a body, each in a call of its own and without `TCP_NODELAY`. The
/// kernel then keeps the body until the head is acknowledged.
fn serve_in_two_calls(listener: &TcpListener) {
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        thread::spawn(move || {
            for line in BufReader::new(&stream).lines().map_while(Result::ok) {
                let Some(range) = line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned) else {
                    continue;
                };
                let (first, last) = range.split_once('-').unwrap();
                let (first, last) = (first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap().min(99));
                let len_bytes = last + 1 - first;
                let head = format!(
                    "ETag: \"1\"\r\nContent-Length: {len_bytes}\r\nContent-Range: bytes {first}-{last}/100"
                );
                (&stream)
                    .write_all(format!("HTTP/1.1 206 Partial Content\r\n{head}\r\n\r\n").as_bytes())
                    .unwrap();
                (&stream).write_all(&vec![7; len_bytes]).unwrap();
            }
        });
    }
}

#[test]
fn servers_that_wait_for_acknowledgements_get_them() {
    const READS: usize = 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/x", listener.local_addr().unwrap());
    thread::spawn(move || serve_in_two_calls(&listener));
    let bed = Bed::emulated();
    let file = options().engine(&engine(&bed)).open(&address).unwrap();
    let read = |_| {
        let mut bytes = [0; 100];
        let start = Instant::now();
        file.read_exact_at(&mut bytes[..], 0).unwrap();
        assert_eq!(bytes, [7; 100]);
        start.elapsed()
    };
    let mut times: Vec<_> = (0..READS).map(read).collect();
    times.sort();
    // The kernel delays acknowledgements by 40 ms. A busy machine may delay some reads.
    assert!(times[READS / 2] < Duration::from_millis(20), "{times:?}");
}
