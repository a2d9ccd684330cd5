//! Tests of servers that fail: the right bytes after another try, or an error that says what failed.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{cause, engine, options};
use gpufile::IoRange;
use gpufile::remote::{RemoteError, RemoteOptions};
use testkit::bed::{Bed, pattern};
use testkit::in_threads;
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
fn refusals_have_the_words_of_the_server() {
    let server = Server::new(pattern(LONG));
    let url = server.url("/data?sig=hidden-signature");
    let options = options().header("Authorization", "Bearer hidden-token");
    let file = options.open(&url).unwrap();
    for (head, body, word) in [
        (
            "301 Moved\r\nx-amz-bucket-region: eu-west-1",
            "<Error><Code>PermanentRedirect</Code></Error>",
            "eu-west-1",
        ),
        (
            "400 Bad\r\nx-ms-request-id: 12-3",
            "<Error><Code>Skew</Code><Message>the clock</Message></Error>",
            "Skew: the clock (request 12-3)",
        ),
        (
            "403 No\r\nTransfer-Encoding: chunked",
            "6\r\n{\"mess\r\ne\r\nage\": \"a key\"}\r\n0\r\n\r\n",
            ": a key",
        ),
        (
            "403 No\r\nContent-Type: text/plain",
            "Auth failed: invalid range\nhidden-line",
            "Auth failed: invalid range",
        ),
        ("403 No", "hidden-token and hidden-signature of /a?hidden=b", "… and … of /a"),
    ] {
        let length = if head.contains("chunked") {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        let answer = format!("HTTP/1.1 {head}\r\n{length}\r\n{body}").into_bytes();
        server.fail([Fault::Raw(answer.clone())]);
        let of_read = file.read_exact_at(&mut vec![0; 10], 0).unwrap_err();
        server.fail([Fault::Raw(answer.clone()), Fault::Raw(answer)]);
        let of_open = options.open(&url).unwrap_err();
        for error in [of_read, of_open] {
            let text = error.to_string();
            assert!(text.contains(word) && !text.contains("hidden") && !text.contains('\n'), "{text}");
            assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
        }
        server.forget_faults();
    }
}

#[test]
fn refusals_show_no_secret_that_a_server_repeats() {
    let server = Server::new(pattern(LONG));
    let body = "<Error><Code>InvalidToken</Code><Message>The token is wrong.</Message><Token-0>hidden</Token-0>\
        <StringToSign>GET /a?hidden</StringToSign></Error>";
    let said = |head: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 400 Bad\r\n{head}Content-Length: {}\r\n\r\n", body.len());
        server.fail([Fault::Raw([head.as_bytes(), body].concat())]);
        options().open(&server.url("/data")).unwrap_err().to_string()
    };
    let text = said("", body.as_bytes());
    assert!(text.ends_with("status 400: InvalidToken: The token is wrong."), "{text}");
    // Compressed words are none.
    let text = said("Content-Encoding: gzip\r\nx-amz-request-id: A1\r\n", b"\x1f\x8bhidden");
    assert!(text.ends_with("status 400: (request A1)"), "{text}");
    let text = said("", &[b'a'; 70_000]);
    assert!(text.len() < 500, "{text}");
}

#[test]
fn whole_objects_are_ranges_of_themselves() {
    let bytes = pattern(12);
    let server = Server::new(bytes.clone());
    let file = options().tries(1).open(&server.url("/data")).unwrap();
    // The header of the range means nothing beside this status.
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nContent-Range: bytes 0-11/12\r\nETag: \"1\"\r\n\r\n";
    server.fail([Fault::Raw([head.as_bytes(), &bytes].concat())]);
    let mut host = [0; 12];
    file.read_exact_at(&mut host[..], 0).unwrap();
    assert!(host == bytes[..]);
}

#[test]
fn codings_that_encode_nothing_are_read() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    for coding in ["", "identity", "aws-chunked", "aws-chunked,", "aws-chunked,identity"] {
        server.set_headers(&format!("Content-Encoding: {coding}\r\n"));
        let file = options().open(&server.url("/data")).unwrap();
        let mut host = vec![0; 10_000];
        file.read_exact_at(&mut host, 7).unwrap();
        assert!(host == bytes[7..10_007]);
    }
    for coding in ["gzip", "aws-chunked,br"] {
        server.set_headers(&format!("Content-Encoding: {coding}\r\n"));
        let error = options().tries(1).open(&server.url("/data")).unwrap_err();
        assert!(error.to_string().contains(coding.trim_start_matches("aws-chunked,")), "{error}");
    }
}

#[test]
fn short_objects_come_from_servers_without_ranges() {
    let bytes = pattern(LONG);
    let server = Server::new(bytes.clone());
    server.fail_always(Some(Fault::Whole));
    let file = options().tries(1).open(&server.url("/data")).unwrap().with_chunk_bytes(1 << 20);
    let mut host = vec![0; LONG - 1000];
    file.read_exact_at(&mut host, 1000).unwrap();
    assert!(host == bytes[1000..]);
    server.set(bytes[1..].to_vec(), Some("\"1\""));
    assert!(matches!(cause(&file.read_exact_at(&mut host, 0).unwrap_err()), RemoteError::Changed));
    server.set(vec![0; 9 << 20], None);
    let error = options().tries(1).open(&server.url("/data")).unwrap_err();
    assert!(error.to_string().contains("sends no ranges"), "{error}");
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
        for (other, etag) in [(&bytes[..], "\"2\""), (&bytes[1..], "\"1\""), (&[], "\"3\"")] {
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
fn weak_and_strong_etags_of_one_version_are_the_same() {
    let bytes = pattern(LONG);
    for honest in [true, false] {
        let server = Server::new(bytes.clone());
        if !honest {
            server.ignore_conditions();
        }
        for first in ["\"1\"", "W/\"1\""] {
            server.set(bytes.clone(), Some(first));
            let file = options().tries(1).open(&server.url("/data")).unwrap();
            for etag in ["W/\"1\"", "\"1\"", "W/\"1\""] {
                server.set(bytes.clone(), Some(etag));
                let mut host = vec![0; 100_000];
                file.read_exact_at(&mut host, 5).unwrap();
                assert!(host == bytes[5..100_005]);
            }
            server.set(bytes.clone(), Some("W/\"2\""));
            let error = file.read_exact_at(&mut vec![0; 10], 5).unwrap_err();
            assert!(matches!(cause(&error), RemoteError::Changed), "{error}");
        }
    }
}

#[test]
fn threads_may_find_a_weak_etag_at_once() {
    let bytes = pattern(1000);
    let server = Server::new(bytes.clone());
    for _ in 0..30 {
        server.set(bytes.clone(), Some("\"1\""));
        let file = options().tries(1).open(&server.url("/data")).unwrap();
        server.set(bytes.clone(), Some("W/\"1\""));
        in_threads((0..4).map(|_| || file.read_exact_at(&mut vec![0; 100], 5).unwrap()));
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
fn proxies_and_handshakes_end_with_the_deadline() {
    // The begin of an answer to CONNECT, and that of a message of TLS.
    for (is_proxy, begin) in [(true, &b"HTTP/1.1 200 "[..]), (false, &[22, 3, 3, 64, 0, 2, 0, 63, 252])] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let _ = stream.set_nodelay(true);
                    for byte in begin.iter().chain(std::iter::repeat(&b'x')) {
                        if stream.write_all(&[*byte]).is_err() {
                            return;
                        }
                        thread::sleep(SHORT / 100);
                    }
                });
            }
        });
        let (url, proxy) = match is_proxy {
            true => ("https://example.invalid/a".to_owned(), format!("http://{address}")),
            false => (format!("https://{address}/a"), String::new()),
        };
        let begun = Instant::now();
        let error = options().proxy(&proxy).unwrap().timeout(SHORT).tries(2).open(&url).unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Deadline { .. }), "{is_proxy}: {error}");
        assert!(begun.elapsed() < 20 * SHORT, "{:?}", begun.elapsed());
    }
}

#[test]
fn extreme_numbers_are_errors() {
    let server = Server::new(pattern(1000));
    let file = options().tries(1).open(&server.url("/data")).unwrap();
    let most = u64::MAX;
    for head in [
        format!("206 P\r\nContent-Range: bytes 5-{most}/*\r\nContent-Length: {most}"),
        format!("206 P\r\nContent-Range: bytes 0-{most}/{most}\r\nContent-Length: 1"),
        format!("206 P\r\nContent-Range: bytes 5-9/1000\r\nContent-Length: {most}"),
        format!("206 P\r\nContent-Range: bytes 5-9/{}\r\nContent-Length: 5", 1_u64 << 32 | 1000),
        "206 P\r\nContent-Range: bytes 4294967301-4294967305/1000\r\nContent-Length: 5".to_owned(),
        format!("200 O\r\nContent-Length: {most}"),
        format!("416 R\r\nContent-Range: bytes */{most}\r\nContent-Length: {most}"),
        format!("404 N\r\nContent-Length: {most}"),
        format!("503 N\r\nRetry-After: {most}\r\nContent-Length: 0"),
        format!("302 F\r\nLocation: http://[::1]:99999/\r\nContent-Length: {most}"),
        "206 P\r\nETag: \"1\"\r\nContent-Range: bytes 5-9/1000\r\nTransfer-Encoding: chunked\r\n\r\n\
            ffffffffffffffff\r\nabcdefgh"
            .to_owned(),
        "206 P\r\nETag: \"1\"\r\nContent-Range: bytes 5-9/1000\r\nTransfer-Encoding: chunked\r\n\r\n\
            10000000000000005\r\nabcde\r\n0\r\n"
            .to_owned(),
    ] {
        let answer = Fault::Raw(format!("HTTP/1.1 {head}\r\n\r\n").into_bytes());
        server.fail([answer.clone()]);
        let error = file.read_exact_at(&mut [0; 5][..], 5).unwrap_err();
        assert!(!matches!(cause(&error), RemoteError::Deadline { .. }), "{head}: {error}");
        server.fail([answer]);
        let options = options().tries(1).timeout(Duration::from_secs(3));
        assert!(options.open(&server.url("/data")).is_err(), "{head}");
        assert_eq!(server.forget_faults(), 0);
    }
    file.read_exact_at(&mut [0; 5][..], 5).unwrap();
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

/// Writes the answers of a server to requests for ranges, which are right or wrong in unusual ways.
struct Odd {
    random: Random,
    /// True if RFC 9110 and 9112 permit the answer, and it has bytes of the range.
    is_right: bool,
    /// True if the connection ends with the answer.
    ends: bool,
}

impl Odd {
    fn one_of<'s>(&mut self, all: &[&'s str]) -> &'s str {
        all[self.random.below(all.len())]
    }

    fn chunked(&mut self, body: &[u8]) -> Vec<u8> {
        let (mut sent, mut rest) = (Vec::new(), body);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(1 + self.random.below(rest.len()));
            let zeros = self.one_of(&["", "0", "000"]);
            let extension = self.one_of(&["", ";a", ";a=b;c=\"d\"", " "]);
            sent.extend(format!("{zeros}{:X}{extension}\r\n", chunk.len()).as_bytes());
            sent.extend(chunk);
            sent.extend(b"\r\n");
            rest = behind;
        }
        let trailers = self.one_of(&["", "X-Sum: 1\r\n", "A: b\r\nContent-Length: 3\r\n"]);
        sent.extend(format!("0\r\n{trailers}\r\n").as_bytes());
        sent
    }

    fn answer(&mut self, bytes: &[u8], first: usize, last: usize) -> Vec<u8> {
        let total = bytes.len();
        let (mut from, mut to) = (first, last);
        let is_whole = self.random.one_in(8);
        match self.random.below(5) {
            _ if is_whole => (from, to) = (0, total - 1),
            0 => to = first + self.random.below(last - first + 1),
            1 => (from, to) = (first - self.random.below(first.min(5000) + 1), last),
            2 => to = (last + self.random.below(5000)).min(total - 1),
            _ => {}
        }
        let mut body = bytes[from..=to].to_vec();
        let mut shown = (from, to, total);
        let mut lines =
            vec![self.one_of(&["Date: x", "Vary: *", "X-Odd: é", "Server:", "Set-Cookie: a=b"]).to_owned()];
        let etag = self.one_of(&["ETag: \"1\"", "etag:W/\"1\"", "ETAG : \"1\"", "ETag:\t\"1\" \t"]);
        lines.push(etag.to_owned());
        lines.push(
            self.one_of(&[
                "Content-Encoding:",
                "Content-Encoding: identity",
                "Age: 1",
                "Content-Encoding: aws-chunked",
            ])
            .to_owned(),
        );
        lines.push(
            self.one_of(&[
                "Last-Modified: x",
                "Content-Type: text/html",
                "Accept-Ranges: none",
                "X-A: b\r\n c",
            ])
            .to_owned(),
        );
        // Half of the answers that are not right have a wrong body or head.
        let wrong = if self.random.one_in(3) { 0 } else { 1 + self.random.below(12) };
        let is_wrong = self.random.one_in(2) && wrong > 0;
        self.is_right = !is_wrong;
        let mut status =
            if is_whole { "200 OK" } else { self.one_of(&["206 Partial Content", "206", "206 "]) };
        let mut chunked = self.random.one_in(3);
        // Without a length, nothing contradicts a wrong range.
        let has_length = !chunked && (is_wrong || !self.random.one_in(4));
        if is_wrong {
            match wrong {
                1 => shown.0 += 1,
                2 => shown.2 += 1,
                3 => body.push(7),
                4 => lines.push("Content-Encoding: gzip".to_owned()),
                5 => lines.push("Content-Type: multipart/byteranges; boundary=x".to_owned()),
                6 => {
                    status =
                        self.one_of(&["204 No", "404 No", "500 No", "416 No", "203 Other", "999 ", "101 Up"])
                }
                7 => lines.push("Content-Range: bytes 0-0/1".to_owned()),
                8 => lines.push("Content-Length: 1, 2".to_owned()),
                9 => lines.push("Transfer-Encoding: gzip, chunked".to_owned()),
                10 => lines[1] = "ETag: \"2\"".to_owned(),
                11 => (shown.0, shown.1) = (shown.1, shown.0),
                _ => shown = (usize::MAX, usize::MAX, usize::MAX),
            }
        }
        if !is_whole || is_wrong {
            let unit = self.one_of(&["bytes", "Bytes", "BYTES"]);
            let of = if self.random.one_in(5) { "*".to_owned() } else { shown.2.to_string() };
            lines.push(format!("Content-Range: {unit} {}-{}/{of}", shown.0, shown.1));
        }
        let length = body.len();
        if chunked {
            lines.push(format!(
                "{}: {}",
                self.one_of(&["Transfer-Encoding", "transfer-encoding"]),
                self.one_of(&["chunked", "Chunked", "identity, chunked"])
            ));
            if self.random.one_in(6) {
                lines.push(format!("Content-Length: {length}"));
            }
        } else if has_length {
            lines.push(match self.random.below(3) {
                0 => format!("Content-Length: {length}, {length}"),
                1 => format!("content-length:{length}\r\nContent-Length: {length}"),
                _ => format!("Content-Length: {length}"),
            });
        }
        self.ends = !chunked && !has_length || self.random.one_in(4);
        if self.ends && self.random.one_in(2) {
            lines.push("Connection: close".to_owned());
        }
        for at in (1..lines.len()).rev() {
            lines.swap(at, self.random.below(at + 1));
        }
        let interim = self.one_of(&[
            "",
            "",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 103 \r\nLink: </a>\r\n\r\n",
            "\r\n",
        ]);
        let version = if !chunked && self.random.one_in(6) { "1.0" } else { "1.1" };
        let end = if self.random.one_in(6) { "\n" } else { "\r\n" };
        let head: String = lines.iter().map(|line| format!("{line}{end}")).collect();
        let mut sent = format!("{interim}HTTP/{version} {status}{end}{head}{end}").into_bytes();
        chunked &= !body.is_empty();
        sent.extend(if chunked { self.chunked(&body) } else { body });
        if is_wrong && self.random.one_in(4) {
            let at = self.random.below(sent.len());
            sent.truncate(at);
            self.ends = true;
        }
        sent
    }
}

fn serve_odd(listener: &TcpListener, bytes: &Arc<Vec<u8>>) {
    for stream in listener.incoming() {
        let (stream, bytes) = (stream.unwrap(), bytes.clone());
        thread::spawn(move || -> Option<()> {
            let mut lines = BufReader::new(stream.try_clone().ok()?).lines().map_while(Result::ok);
            let mut seed = None;
            loop {
                let line = lines.next()?;
                if let Some(name) = line.strip_prefix("GET /") {
                    seed = name.split(' ').next()?.parse::<u64>().ok();
                }
                let Some(range) = line.strip_prefix("Range: bytes=") else { continue };
                let (first, last) = range.split_once('-')?;
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
                let total = bytes.len();
                let (sent, ends) = if last == 0 {
                    let head = format!(
                        "HTTP/1.1 206 P\r\nETag: \"1\"\r\nContent-Length: 1\r\nContent-Range: bytes 0-0/{total}\r\n\r\n"
                    );
                    ([head.as_bytes(), &bytes[..1]].concat(), false)
                } else {
                    odd_answer(seed?, &bytes, first, last)
                };
                (&stream).write_all(&sent).ok()?;
                if ends {
                    let _ = stream.shutdown(Shutdown::Both);
                    return None;
                }
            }
        });
    }
}

/// Returns the answer of a seed, and whether the connection then ends. Those of even seeds are right.
fn odd_answer(seed: u64, bytes: &[u8], first: usize, last: usize) -> (Vec<u8>, bool) {
    let mut odd =
        Odd { random: Random::new(seed.wrapping_mul(1 << 20) + first as u64), is_right: false, ends: false };
    loop {
        let sent = odd.answer(bytes, first, last);
        if odd.is_right || seed % 2 == 1 {
            return (sent, odd.ends);
        }
    }
}

#[test]
fn odd_answers_give_right_bytes_or_an_error() {
    let count = cases(5000);
    let bytes = Arc::new(pattern(20_000));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = bytes.clone();
    thread::spawn(move || serve_odd(&listener, &served));
    let bed = Bed::emulated();
    let engine = engine(&bed);
    let (mut right, mut wrong, mut failed) = (0, 0, 0);
    for seed in 0..count {
        let mut random = Random::new(seed);
        let len = 2 + random.below(5000);
        let offset = 1 + random.below(bytes.len() - len - 1);
        let options = options().engine(&engine).tries(1).timeout(Duration::from_secs(5));
        let file = options.open(&format!("http://{address}/{seed}")).unwrap();
        let mut host = vec![0xee; len];
        match file.read_exact_at(&mut host, offset as u64) {
            Ok(()) => {
                assert!(host == bytes[offset..offset + len], "seed {seed}");
                *(if seed % 2 == 0 { &mut right } else { &mut wrong }) += 1;
            }
            Err(error) => {
                assert!(seed % 2 == 1, "seed {seed}: {error}");
                assert!(!matches!(cause(&error), RemoteError::Deadline { .. }), "seed {seed}: {error}");
                failed += 1;
            }
        }
    }
    println!("{right} right, {wrong} others with right bytes, {failed} failed");
    assert!(right >= count / 2 && failed > count / 20, "{right} {wrong} {failed}");
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
