//! Tests of speed over long links. They compare times of one machine, and repeat what a busy one has disturbed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::options;
use gpufile::Engine;
use gpufile::remote::RemoteFile;
use testkit::bed::{Bed, pattern};
use testkit::delay::Link;
use testkit::web::Server;

/// The most rounds until one of them was not disturbed.
const MOST_ROUNDS: usize = 30;

fn link_to(server: &Server, millis: u64, window: Option<usize>) -> Link {
    let address = server.url("").replace("http://", "").parse::<SocketAddr>().unwrap();
    Link::new(address, Duration::from_millis(millis), window)
}

fn open(bed: &Bed, url: &str, connections: Option<usize>, chunk_bytes: usize) -> RemoteFile {
    let builder = Engine::builder().driver(bed.driver.clone()).chunk_bytes(chunk_bytes);
    let builder = connections.into_iter().fold(builder, |builder, count| builder.threads(count));
    options().engine(&builder.build()).open(url).unwrap()
}

fn time_of(file: &RemoteFile, expected: &[u8]) -> Duration {
    let mut host = vec![0; expected.len()];
    let begun = Instant::now();
    file.read_exact_at(&mut host, 0).unwrap();
    let time = begun.elapsed();
    assert!(host == expected);
    time
}

/// Repeats rounds until one succeeds. Each returns what it measured, too.
fn assert_soon(mut round: impl FnMut() -> (bool, String)) {
    let mut seen = Vec::new();
    for _ in 0..MOST_ROUNDS {
        let (succeeded, measured) = round();
        if succeeded {
            return;
        }
        seen.push(measured);
    }
    panic!("{seen:?}");
}

#[test]
fn connections_carry_a_window_in_each_round_trip() {
    const WINDOW: usize = 64 << 10;
    let bytes = pattern(16 * WINDOW);
    let server = Server::new(bytes.clone());
    let link = link_to(&server, 20, Some(WINDOW));
    let url = link.url(&server.url("/data"));
    let bed = Bed::emulated();
    let [one, eight] = [1, 8].map(|count| open(&bed, &url, Some(count), 2 * WINDOW));
    let of_one = time_of(&one, &bytes);
    // The last window needs no acknowledgement.
    assert!(of_one >= 15 * Duration::from_millis(20), "{of_one:?}");
    assert_soon(|| {
        let of_eight = time_of(&eight, &bytes);
        (of_eight < of_one / 4, format!("{of_one:?} {of_eight:?}"))
    });
}

#[test]
fn default_connections_keep_up_with_other_numbers() {
    let bytes = pattern(24 << 20);
    let server = Server::new(bytes.clone());
    for millis in [1, 20] {
        let link = link_to(&server, millis, None);
        let url = link.url(&server.url("/data"));
        let bed = Bed::emulated();
        let best_of = |file: &RemoteFile| (0..3).map(|_| time_of(file, &bytes)).min().unwrap();
        let default = open(&bed, &url, None, 1 << 20);
        let others = [4, 16, 64].map(|count| open(&bed, &url, Some(count), 1 << 20));
        assert_soon(|| {
            let [default, best] = [best_of(&default), others.iter().map(best_of).min().unwrap()];
            (default < 2 * best, format!("{millis} ms: {default:?} {best:?}"))
        });
    }
}
