//! Tests of servers that fail: the right bytes after another try, or an error that says what failed.

mod remote_support;

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use gpufile::IoRange;
use gpufile::remote::{RemoteError, RemoteOptions};
use remote_support::{cause, engine, options};
use testkit::bed::{Bed, pattern};
use testkit::random::{Random, cases};
use testkit::web::{Fault, Server};

const LONG: usize = (3 << 20) + 4321;
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn faults_that_pass_cost_only_another_try() {
    let bytes = pattern(LONG);
    let plain = Server::new(bytes.clone());
    repair(&plain, &bytes, &options());
    let encrypted = Server::encrypted(bytes.clone());
    repair(&encrypted, &bytes, &options().trust(encrypted.certificate().as_bytes()).unwrap());
}

fn repair(server: &Server, bytes: &[u8], options: &RemoteOptions) {
    Bed::each(|bed| {
        let engine = engine(bed);
        let options = options.clone().engine(&engine);
        for fault in Fault::passing().into_iter().chain(Fault::RIGHT) {
            server.fail([fault.clone()]);
            let file = options.open(&server.url("/data")).unwrap();
            server.fail([fault.clone(), fault.clone()]);
            let mut device = bed.device.alloc(LONG).unwrap();
            file.read_exact_at(&mut device, 0).unwrap();
            assert!(device.to_vec().unwrap() == bytes, "{fault:?}");
            server.fail([fault.clone(), fault.clone()]);
            let mut host = vec![0; LONG];
            file.read_exact_at(&mut host, 0).unwrap();
            assert!(host == bytes, "{fault:?}");
            assert_eq!(server.forget_faults(), 0);
        }
    });
}

#[test]
fn later_tries_ask_only_for_missing_bytes() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let file = options().open(&server.url("/data")).unwrap();
    server.requests();
    server.fail([Fault::Close(1000), Fault::Reset(0), Fault::Close(100)]);
    let mut host = vec![0; 5000];
    file.read_exact_at(&mut host, 7).unwrap();
    assert!(host == bytes[7..5007]);
    let ranges: Vec<_> = server.requests().into_iter().map(|request| request.range.unwrap()).collect();
    assert_eq!(ranges, [7..5007, 1007..5007, 1007..5007, 1107..5007]);
}

#[test]
fn lasting_faults_are_errors_with_their_place() {
    let server = Server::new(pattern(LONG));
    let file = options().tries(3).open(&server.url("/data")).unwrap().with_chunk_bytes(1 << 20);
    for fault in Fault::passing() {
        server.requests();
        server.fail_always(Some(fault.clone()));
        let error = file.read_exact_at(&mut vec![0; 700_001], 1000).unwrap_err();
        let place = format!("cannot read 700001 bytes at 1000 of \"{}\"", server.url("/data"));
        assert!(error.to_string().starts_with(&place), "{error}");
        match (cause(&error), &fault) {
            (RemoteError::Status { status, .. }, Fault::Status(sent, _)) => assert_eq!(status, sent),
            (
                RemoteError::Connection(_),
                Fault::Close(_) | Fault::Reset(_) | Fault::HangUp | Fault::EndlessHead,
            ) => {}
            (RemoteError::Answer { .. }, _) => assert!(!matches!(fault, Fault::Status(..)), "{error}"),
            _ => panic!("{fault:?}: {error}"),
        }
        match fault {
            Fault::Close(bytes) => assert_eq!(error.bytes_done(), 3 * bytes, "{error}"),
            // A reset may overtake bytes.
            Fault::Reset(bytes) => assert!(error.bytes_done() <= 3 * bytes, "{error}"),
            _ => assert_eq!(error.bytes_done(), 0, "{error}"),
        }
        let opened = options().tries(2).open(&server.url("/data"));
        assert!(matches!(fault, Fault::Close(_) | Fault::Reset(_)) || opened.is_err(), "{fault:?}");
        server.forget_faults();
    }
}

#[test]
fn refusals_are_errors_at_once() {
    let server = Server::new(pattern(LONG));
    let file = options().open(&server.url("/data")).unwrap();
    for (status, kind) in [
        (400, ErrorKind::Other),
        (401, ErrorKind::PermissionDenied),
        (403, ErrorKind::PermissionDenied),
        (404, ErrorKind::NotFound),
        (410, ErrorKind::NotFound),
        (501, ErrorKind::Other),
    ] {
        server.requests();
        server.fail_always(Some(Fault::Status(status, None)));
        let error = file.read_exact_at(&mut vec![0; 10], 0).unwrap_err();
        assert_eq!((cause(&error).status(), error.kind()), (Some(status), kind));
        assert_eq!(options().open(&server.url("/data")).unwrap_err().kind(), kind);
        assert_eq!(server.requests().len(), 2, "neither was repeated");
    }
}

#[test]
fn statuses_of_choice_are_repeated() {
    let bytes = pattern(1000);
    let server = Server::new(bytes);
    for (again, status, requests) in [(vec![418], 418, 3), (vec![429], 503, 1), (vec![], 429, 1)] {
        server.fail_always(Some(Fault::Status(status, None)));
        let error = options().tries(3).statuses(again).open(&server.url("/data")).unwrap_err();
        assert_eq!(cause(&error).status(), Some(status));
        assert_eq!(server.requests().len(), requests);
    }
}

#[test]
fn servers_choose_the_wait_before_the_next_try() {
    let server = Server::new(pattern(LONG));
    let file = options().open(&server.url("/data")).unwrap();
    for status in [429, 503] {
        server.fail([Fault::Status(status, Some(1))]);
        let begun = Instant::now();
        file.read_exact_at(&mut vec![0; 10], 0).unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(1));
    }
    // No wait is longer than the time for a try.
    let file = options().timeout(SHORT).open(&server.url("/data")).unwrap();
    server.fail([Fault::Status(503, Some(1000))]);
    let begun = Instant::now();
    file.read_exact_at(&mut vec![0; 10], 0).unwrap();
    assert!(begun.elapsed() >= SHORT && begun.elapsed() < Duration::from_secs(100));
}

#[test]
fn changed_objects_are_errors() {
    let bytes = pattern(LONG);
    for honest in [true, false] {
        let server = Server::new(bytes.clone());
        if !honest {
            server.ignore_conditions();
        }
        let file = options().open(&server.url("/data")).unwrap();
        file.read_exact_at(&mut vec![0; 10], 0).unwrap();
        let condition = server.requests()[1].header("If-Match").map(str::to_owned);
        assert_eq!(condition.as_deref(), Some("\"1\""));
        for (other, etag) in
            [(&bytes[..], "\"2\""), (&bytes[1..], "\"1\""), (&[], "\"3\""), (&bytes[..], "W/\"1\"")]
        {
            server.set(other.to_vec(), Some(etag));
            let error = file.read_exact_at(&mut vec![0; 10], 5).unwrap_err();
            assert!(matches!(cause(&error), RemoteError::Changed), "{etag}: {error}");
            assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle);
        }
        server.set(bytes.clone(), Some("\"1\""));
        file.read_exact_at(&mut vec![0; 10], 5).unwrap();
        server.fail([Fault::OtherTotal]);
        assert!(matches!(cause(&file.read_at(&mut vec![0; 10], 5).unwrap_err()), RemoteError::Changed));
    }
}

#[test]
fn objects_without_an_etag_have_the_time_of_change() {
    let bytes = pattern(LONG);
    let server = Server::new(Vec::new());
    server.set(bytes.clone(), None);
    server.set_headers("Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    let file = options().open(&server.url("/data")).unwrap();
    assert_eq!(file.etag(), None);
    file.read_exact_at(&mut vec![0; 10], 5).unwrap();
    let sent = server.requests();
    assert_eq!(sent[1].header("If-Unmodified-Since"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    server.set_headers("Last-Modified: Sun, 06 Nov 1994 08:49:38 GMT\r\n");
    let error = file.read_exact_at(&mut vec![0; 10], 5).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Changed), "{error}");
    // Without either, the length is compared.
    server.set_headers("");
    let file = options().open(&server.url("/data")).unwrap();
    file.read_exact_at(&mut vec![0; 10], 5).unwrap();
    server.set(bytes[1..].to_vec(), None);
    let error = file.read_exact_at(&mut vec![0; 10], 5).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Changed), "{error}");
}

#[test]
fn objects_that_change_during_a_read_are_never_mixed() {
    let (old, new) = (vec![1; LONG], vec![2; LONG]);
    let server = Server::new(Vec::new());
    for round in 0..20 {
        let (before, after) = (format!("\"{round}\""), format!("\"{round} new\""));
        server.set(old.clone(), Some(&before));
        let file = options().open(&server.url("/data")).unwrap().with_chunk_bytes(50_000);
        let mut host = vec![0; LONG];
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_micros(200 * round));
                server.set(new.clone(), Some(&after));
            });
            file.read_exact_at(&mut host, 0)
        });
        match outcome {
            Ok(()) => assert!(host == old),
            Err(error) => assert!(matches!(cause(&error), RemoteError::Changed), "{error}"),
        }
    }
}

#[test]
fn reads_end_whatever_the_server_sends() {
    let bytes = pattern(LONG);
    let slow = [
        Fault::Stall(0, 20 * SHORT),
        Fault::Stall(10, 20 * SHORT),
        Fault::Trickle(SHORT / 100),
        Fault::SlowHead(SHORT / 100),
        Fault::SlowLines(SHORT / 100),
        Fault::EndlessInterim,
        Fault::SlowInterim(SHORT / 100),
        Fault::SlowRedirect(SHORT / 4),
        Fault::OneByte,
    ];
    let end_slow = |fault: &Fault, closes: bool| {
        let server = Server::new(bytes.clone());
        if closes {
            server.close_after(1, false);
        }
        let file = options().timeout(SHORT).tries(3).open(&server.url("/data")).unwrap();
        // One try is slow.
        server.fail([fault.clone()]);
        let mut host = vec![0; 100_000];
        file.read_exact_at(&mut host, 3).unwrap();
        assert!(host == bytes[3..100_003]);
        // All are.
        server.fail_always(Some(fault.clone()));
        let begun = Instant::now();
        let error = file.read_exact_at(&mut host, 3).unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Deadline { .. }), "{fault:?}: {error}");
        assert!(begun.elapsed() >= 3 * SHORT && begun.elapsed() < 20 * SHORT, "{:?}", begun.elapsed());
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    };
    thread::scope(|scope| {
        for fault in &slow {
            scope.spawn(|| end_slow(fault, false));
            scope.spawn(|| end_slow(fault, true));
        }
    });
}

#[test]
fn redirects_between_bytes_end() {
    let server = Server::new(pattern(LONG));
    let file = options().timeout(SHORT).tries(3).open(&server.url("/data")).unwrap();
    let redirect = Fault::Redirect("/data".to_owned());
    server.fail((0..200_000).map(|at| if at % 2 == 0 { Fault::OneByte } else { redirect.clone() }));
    let begun = Instant::now();
    let error = file.read_exact_at(&mut vec![0; 100_000], 3).unwrap_err();
    assert!(error.bytes_done() > 0 && begun.elapsed() < 20 * SHORT, "{error}");
}

#[test]
fn openings_end_whatever_the_server_sends() {
    let server = Server::new(pattern(1000));
    for fault in [
        Fault::SlowHead(SHORT / 100),
        Fault::SlowLines(SHORT / 100),
        Fault::SlowInterim(SHORT / 100),
        Fault::SlowRedirect(SHORT / 4),
    ] {
        server.fail_always(Some(fault.clone()));
        let begun = Instant::now();
        let error = options().timeout(SHORT).tries(2).open(&server.url("/data")).unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Deadline { .. }), "{fault:?}: {error}");
        assert!(begun.elapsed() < 20 * SHORT, "{fault:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn slow_connections_carry_more_than_one_timeout() {
    const PIECE: usize = 64 << 10;
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    let (timeout, pause) = (Duration::from_millis(1500), Duration::from_millis(400));
    let file = options().timeout(timeout).tries(1).gap_bytes(0).open(&server.url("/data")).unwrap();
    server.fail([Fault::Paced(PIECE, pause)]);
    let mut host = vec![0; 6 * PIECE];
    let begun = Instant::now();
    file.read_exact_at(&mut host, 5).unwrap();
    assert!(host == bytes[5..5 + 6 * PIECE] && begun.elapsed() > timeout);
    // Short ranges are all that was asked for.
    server.fail_always(Some(Fault::Late(pause)));
    let range = |number: usize| IoRange {
        file_offset: number as u64 * 20_000,
        buffer_offset: number * 100,
        len_bytes: 100,
    };
    file.read_many(&mut host, &(0..6).map(range).collect::<Vec<_>>()).unwrap();
    for number in 0..6 {
        assert!(host[number * 100..][..100] == bytes[number * 20_000..][..100]);
    }
}

#[test]
fn servers_that_do_not_answer_are_errors() {
    let address = {
        let server = Server::new(Vec::new());
        server.url("/data")
    };
    let error = options().tries(2).open(&address).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Connection(_)), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    let error = options().tries(1).open("http://no-such-host.invalid/data").unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Connection(_)), "{error}");
}

#[test]
fn random_faults_lead_to_no_wrong_byte() {
    let sequences = cases(1000);
    let bytes = pattern(LONG);
    let (plain, encrypted) = (Server::new(bytes.clone()), Server::encrypted(bytes.clone()));
    let trusting = options().trust(encrypted.certificate().as_bytes()).unwrap();
    let bed = Bed::emulated();
    let engine = engine(&bed);
    let every: Vec<_> = Fault::passing()
        .into_iter()
        .chain(Fault::RIGHT)
        .chain([Fault::OtherTotal, Fault::Status(404, None), Fault::Status(503, Some(0))])
        .collect();
    let (mut succeeded, mut failed) = (0, 0);
    for seed in 0..sequences {
        let mut random = Random::new(seed);
        let server = if random.one_in(3) { &encrypted } else { &plain };
        let most = if random.one_in(4) { 1 << 20 } else { 20_000 };
        let len = 1 + random.below(most);
        let offset = random.below(LONG - len);
        let faults: Vec<_> =
            (0..random.below(14)).map(|_| every[random.below(every.len())].moved(&mut random, len)).collect();
        server.forget_faults();
        // The first one may meet the opening.
        let early = random.below(2).min(faults.len());
        server.fail(faults[..early].iter().cloned());
        let tries = 1 + random.below(6) as u32;
        let opened = trusting.clone().engine(&engine).tries(tries).open(&server.url("/data"));
        server.fail(faults[early..].iter().cloned());
        let Ok(file) = opened else {
            assert!(early > 0, "seed {seed}");
            failed += 1;
            continue;
        };
        let file = file.with_chunk_bytes(1 + random.below(300_000));
        let expected = &bytes[offset..offset + len];
        let outcome = if random.one_in(2) {
            let mut host = vec![0xee; len];
            let outcome = file.read_exact_at(&mut host, offset as u64);
            outcome.map(|()| assert!(host == expected, "seed {seed}: {faults:?}"))
        } else {
            let mut device = bed.device.alloc(len).unwrap();
            let outcome = file.read_exact_at(&mut device, offset as u64);
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
    let is_mixed = succeeded > sequences / 3 && failed > sequences / 20;
    assert!(is_mixed || sequences < 100, "{succeeded} succeeded, {failed} failed");
}
