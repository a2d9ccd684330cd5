//! Tests of lists of ranges of an object: few requests, several on their way, and the right bytes in each place.

use crate::support::{cause, engine, options};
use gpufile::IoRange;
use gpufile::remote::RemoteFile;
use testkit::bed::{Bed, pattern};
use testkit::random::{Random, cases};
use testkit::web::{Fault, Server};

const LONG: usize = (3 << 20) + 4321;

fn expected(bytes: &[u8], ranges: &[IoRange], len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len];
    for IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        let source = &bytes[*file_offset as usize..][..*len_bytes];
        buffer[*buffer_offset..][..*len_bytes].copy_from_slice(source);
    }
    buffer
}

/// Returns ranges of the same length, each `gap_bytes` bytes behind the end of the one before.
fn apart(count: usize, len_bytes: usize, gap_bytes: usize) -> Vec<IoRange> {
    let range = |number: usize| IoRange {
        file_offset: (number * (len_bytes + gap_bytes)) as u64,
        buffer_offset: (count - 1 - number) * len_bytes,
        len_bytes,
    };
    (0..count).map(range).collect()
}

#[track_caller]
fn compare(bed: &Bed, file: &RemoteFile, bytes: &[u8], ranges: &[IoRange], len: usize) {
    let expected = expected(bytes, ranges, len);
    let mut host = vec![0; len];
    file.read_many(&mut host, ranges).unwrap();
    assert!(host == expected);
    let mut device = bed.device.alloc(len).unwrap();
    device.fill(0).unwrap();
    file.read_many(&mut device, ranges).unwrap();
    assert!(device.to_vec().unwrap() == expected);
}

#[test]
fn near_ranges_share_a_request() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    Bed::each(|bed| {
        let engine = engine(bed);
        let options = options().engine(&engine);
        for (gap_bytes, limit_bytes, expected) in [
            (1000, None, 1),
            (1000, Some(1000), 1),
            (1000, Some(999), 100),
            (0, Some(0), 1),
            (33 << 10, None, 30),
        ] {
            let ranges = apart(if gap_bytes > 10_000 { 30 } else { 100 }, 2000, gap_bytes);
            let options =
                limit_bytes.into_iter().fold(options.clone(), |options, bytes| options.gap_bytes(bytes));
            let file = options.open(&server.url("/data")).unwrap();
            server.requests();
            compare(bed, &file, &bytes, &ranges, 100 * 2000);
            let requests = server.requests();
            assert_eq!(requests.len(), 2 * expected, "{gap_bytes} {limit_bytes:?}");
            let most =
                requests.iter().filter_map(|request| request.range.as_ref()).map(|range| range.end).max();
            assert_eq!(most, ranges.last().map(|range| range.file_offset + 2000));
        }
    });
}

#[test]
fn requests_have_a_settable_length() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    for most in [1, 5000, 1 << 20] {
        let len = if most == 1 { 100 } else { LONG };
        let file = options().request_bytes(most).open(&server.url("/data")).unwrap();
        server.requests();
        let mut host = vec![0; len];
        file.read_exact_at(&mut host, 0).unwrap();
        assert!(host == bytes[..len]);
        let requests = server.requests();
        let lens =
            requests.iter().filter_map(|request| request.range.as_ref()).map(|range| range.end - range.start);
        assert!(lens.clone().all(|len| len <= most as u64) && lens.sum::<u64>() == len as u64);
    }
}

#[test]
fn several_requests_are_on_their_way() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let bed = Bed::emulated();
    let file = options().engine(&engine(&bed)).gap_bytes(0).open(&server.url("/data")).unwrap();
    let ranges = apart(40, 1000, 1000);
    let mut host = vec![0; 40 * 1000];
    server.requests();
    file.read_many(&mut host, &ranges).unwrap();
    assert!(host == expected(&bytes, &ranges, host.len()));
    let requests = server.requests();
    let followed = requests.iter().filter(|request| request.is_followed).count();
    assert_eq!(requests.len(), 40);
    assert!(followed >= 30, "{followed} requests came before the answer to the one before");
}

#[test]
fn servers_that_close_connections_cost_no_try() {
    let bytes = pattern(LONG);
    let (plain, encrypted) = (Server::new(bytes.clone()), Server::encrypted(bytes.clone()));
    let trusting = options().trust(encrypted.certificate().as_bytes()).unwrap();
    let bed = Bed::emulated();
    let engine = engine(&bed);
    for (server, options) in [(&plain, &options()), (&encrypted, &trusting)] {
        for (answers, is_polite) in [(1, true), (1, false), (3, true), (3, false), (20, true), (20, false)] {
            server.close_after(answers, is_polite);
            let options = options.clone().engine(&engine).gap_bytes(0).tries(1);
            let file = options.open(&server.url("/data")).unwrap();
            let ranges = apart(200, 3000, 2000);
            compare(&bed, &file, &bytes, &ranges, 200 * 3000);
        }
    }
}

#[test]
fn ranges_behind_the_end_stop_the_list() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let bed = Bed::emulated();
    let file = options().engine(&engine(&bed)).open(&server.url("/data")).unwrap();
    let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 100 };
    let end = LONG as u64;
    let ranges =
        [range(0, 0), range(end - 300, 100), range(end - 50, 200), range(end + 100, 300), range(5, 400)];
    let mut host = vec![0; 500];
    let outcomes = file.read_many_each(&mut host, &ranges).unwrap();
    assert_eq!(outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [100, 100, 50, 0, 100]);
    assert!(host[..100] == bytes[..100] && host[100..200] == bytes[LONG - 300..][..100]);
    assert!(host[200..250] == bytes[LONG - 50..] && host[400..] == bytes[5..105]);
    assert!(file.read_many(&mut host, &ranges).is_err());
}

#[test]
fn each_range_has_its_own_failure() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let bed = Bed::emulated();
    let file = options().engine(&engine(&bed)).gap_bytes(0).tries(1).open(&server.url("/data")).unwrap();
    let ranges = apart(60, 1000, 1000);
    let mut host = vec![0; 60 * 1000];
    server.fail([Fault::Status(403, None), Fault::Garbage]);
    let outcomes = file.read_many_each(&mut host, &ranges).unwrap();
    let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    // The server may have answered with garbage on the connection of the first failure.
    assert!((1..=2).contains(&failed.len()), "{} failures", failed.len());
    assert_eq!(cause(failed[0]).status(), Some(403));
    for (range, outcome) in ranges.iter().zip(&outcomes) {
        let there = &host[range.buffer_offset..][..range.len_bytes];
        let source = &bytes[range.file_offset as usize..][..range.len_bytes];
        assert!(outcome.is_err() || there == source);
    }
}

#[test]
fn random_lists_and_faults_lead_to_no_wrong_byte() {
    let sequences = cases(300);
    let bytes = pattern(LONG);
    let (plain, encrypted) = (Server::new(bytes.clone()), Server::encrypted(bytes.clone()));
    let trusting = options().trust(encrypted.certificate().as_bytes()).unwrap();
    let bed = Bed::emulated();
    let engine = engine(&bed);
    let (mut succeeded, mut failed) = (0, 0);
    for seed in 0..sequences {
        let mut random = Random::new(seed);
        let (server, options) = if random.one_in(3) { (&encrypted, &trusting) } else { (&plain, &options()) };
        server.forget_faults();
        let (len, gap) = (1 + random.below(9000), random.below(9000));
        let count = 1 + random.below(LONG / (len + gap).max(20_000));
        let mut ranges = apart(count, len, gap);
        if random.one_in(2) {
            for last in 1..ranges.len() {
                let other = random.below(last + 1);
                let offset = ranges[last].file_offset;
                ranges[last].file_offset = ranges[other].file_offset;
                ranges[other].file_offset = offset;
            }
        }
        let options =
            options.clone().engine(&engine).gap_bytes(random.below(9000)).tries(1 + random.below(5) as u32);
        let options =
            if random.one_in(2) { options.request_bytes(1 + random.below(20_000)) } else { options };
        let file = options.open(&server.url("/data")).unwrap();
        let faults: Vec<_> = (0..random.below(12))
            .map(|_| match random.below(9) {
                0 => Fault::Close(random.below(len)),
                1 => Fault::Reset(random.below(len)),
                2 => Fault::Shifted(1 + random.below(len) as u64),
                3 => Fault::Longer(1 + random.below(9) as u64),
                4 => Fault::Status([404, 503, 429][random.below(3)], None),
                5 => Fault::HangUp,
                6 => Fault::Whole,
                7 => Fault::Shorter,
                _ => Fault::Pieces,
            })
            .collect();
        server.fail(faults.iter().cloned());
        let expected = expected(&bytes, &ranges, count * len);
        let outcome = if random.one_in(2) {
            let mut host = vec![0; count * len];
            let outcome = file.read_many(&mut host, &ranges);
            outcome.map(|()| assert!(host == expected, "seed {seed}: {faults:?}"))
        } else {
            let mut device = bed.device.alloc(count * len).unwrap();
            let outcome = file.read_many(&mut device, &ranges);
            outcome.map(|()| assert!(device.to_vec().unwrap() == expected, "seed {seed}: {faults:?}"))
        };
        match outcome {
            Ok(()) => succeeded += 1,
            Err(error) => {
                assert!(!faults.is_empty(), "seed {seed}: {error}");
                failed += 1;
            }
        }
    }
    // A few sequences may all end in the same way.
    let is_mixed = succeeded > sequences / 4 && failed > sequences / 20;
    assert!(is_mixed || sequences < 100, "{succeeded} succeeded, {failed} failed");
}
