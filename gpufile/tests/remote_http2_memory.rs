//! A test of the memory that reads by HTTP/2 take. It runs where nginx is installed.

#[allow(dead_code, reason = "other tests use other servers")]
mod real_servers;

use gpufile::Engine;
use gpufile::remote::RemoteFile;
use real_servers::Nginx;
use testkit::bed::{Bed, pattern};
use testkit::counting::{Counting, assert_counting, peak};

#[global_allocator]
static COUNTING: Counting = Counting;

const LONG: usize = (64 << 20) + 4321;
const THREADS: usize = 4;

/// The bodies of several requests come in turn, and each waits for those before it. Their sum is limited.
#[test]
fn bodies_of_http2_wait_in_limited_memory() {
    assert_counting();
    let Some(nginx) = Nginx::start("") else { return };
    let bytes = pattern(LONG);
    std::fs::write(nginx.path("data"), &bytes).unwrap();
    let bed = Bed::emulated();
    let engine = Engine::builder().driver(bed.driver.clone()).threads(THREADS).build();
    for request_bytes in [100_000, 64 << 20] {
        let options = RemoteFile::options().engine(&engine).http2(true).request_bytes(request_bytes);
        let options = options.trust(nginx.certificate()).unwrap();
        let file = options.open(&nginx.encrypted_url("/data")).unwrap().with_chunk_bytes(8 << 20);
        let mut host = vec![0; LONG];
        let peak_bytes = peak(|| file.read_exact_at(&mut host, 0).unwrap());
        assert!(peak_bytes < THREADS * (2 << 20), "{peak_bytes} bytes");
        assert!(host == bytes);
    }
}
