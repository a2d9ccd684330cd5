use std::env;
use std::time::{Duration, Instant};

use crate::support::{cause, engine, options};
use gpufile::remote::{RemoteError, RemoteFile};
use testkit::bed::{Bed, pattern};
use testkit::proxy::Proxy;
use testkit::this_test;
use testkit::web::Server;

const LONG: usize = (3 << 20) + 4321;

#[test]
fn plain_requests_name_the_whole_address() {
    let bytes = pattern(LONG);
    let (server, proxy) = (Server::new(bytes.clone()), Proxy::new(None));
    let bed = Bed::emulated();
    let through = format!("http://me:secret@{}", proxy.address());
    let options = options().engine(&engine(&bed)).proxy(&through).unwrap();
    let file = options.open(&server.url("/data?query")).unwrap();
    let mut device = bed.device.alloc(LONG).unwrap();
    file.read_exact_at(&mut device, 0).unwrap();
    assert!(device.to_vec().unwrap() == bytes);
    for request in server.requests() {
        assert_eq!(request.target, server.url("/data?query"));
        assert_eq!(request.header("Proxy-Authorization"), Some("Basic bWU6c2VjcmV0"));
    }
    assert!(!proxy.heads().is_empty());
    assert!(!format!("{options:?}").contains("secret"));
    // Connections that go through the proxy do not serve requests that do not.
    let direct = options.proxy("").unwrap().open(&server.url("/data?query")).unwrap();
    direct.read_exact_at(&mut vec![0; 100], 0).unwrap();
    assert!(server.requests().iter().all(|request| request.target == "/data?query"));
    assert!(proxy.heads().is_empty());
}

#[test]
fn encrypted_requests_pass_through_a_tunnel() {
    let bytes = pattern(LONG);
    let (server, proxy) = (Server::encrypted(bytes.clone()), Proxy::new(None));
    let trusting = options().trust(server.certificate().as_bytes()).unwrap();
    let through = format!("me:secret@{}", proxy.address());
    let file = trusting.proxy(&through).unwrap().open(&server.url("/data")).unwrap();
    let mut host = vec![0; LONG];
    file.read_exact_at(&mut host, 0).unwrap();
    assert!(host == bytes);
    let to = server.url("").replace("https://", "");
    let heads = proxy.heads();
    assert!(!heads.is_empty());
    for head in heads {
        assert!(head.starts_with(&format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n")), "{head}");
        assert!(head.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{head}");
    }
    // The server itself gets no password of the proxy.
    for request in server.requests() {
        assert_eq!((request.target.as_str(), request.header("Proxy-Authorization")), ("/data", None));
    }
}

#[test]
fn proxies_that_refuse_are_errors_at_once() {
    let proxy = Proxy::new(Some(407));
    let server = Server::encrypted(Vec::new());
    let trusting = options().trust(server.certificate().as_bytes()).unwrap();
    for address in ["http://127.0.0.1:1/data".to_owned(), server.url("/data")] {
        let through = trusting.clone().proxy(&proxy.address().to_string()).unwrap();
        let error = through.open(&address).unwrap_err();
        assert_eq!(cause(&error).status(), Some(407), "{error}");
        assert_eq!(proxy.heads().len(), 1, "{address}");
    }
    let unavailable = Proxy::new(Some(503));
    let through = trusting.tries(3).proxy(&unavailable.address().to_string()).unwrap();
    assert_eq!(cause(&through.open(&server.url("/data")).unwrap_err()).status(), Some(503));
    assert_eq!(unavailable.heads().len(), 3);
    assert!(server.requests().is_empty());
    let error = options().proxy("socks5://me:secret@host").unwrap_err();
    assert!(matches!(error, RemoteError::Invalid { .. }) && !error.to_string().contains("secret"), "{error}");
}

#[test]
fn records_that_come_bytewise_end_with_the_deadline() {
    let (server, proxy) = (Server::encrypted(pattern(LONG)), Proxy::slow_after(50_000));
    let trusting = options().trust(server.certificate().as_bytes()).unwrap();
    let through = trusting.proxy(&proxy.address().to_string()).unwrap();
    let timeout = Duration::from_millis(600);
    let file = through.tries(1).timeout(timeout).open(&server.url("/data")).unwrap();
    let begun = Instant::now();
    let error = file.inline().read_exact_at(&mut vec![0; LONG], 0).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Deadline { .. }), "{error}");
    // A whole record takes eight seconds.
    assert!(begun.elapsed() >= timeout && begun.elapsed() < 12 * timeout, "{:?}", begun.elapsed());
}

#[test]
fn variables_of_the_process_name_the_proxy() {
    const OBJECT: &str = "GPUFILE_TEST_OBJECT";
    if let Ok(address) = env::var(OBJECT) {
        // This is the child process, with the variables of its parent.
        let mut host = vec![0; 1000];
        RemoteFile::open(&address).unwrap().read_exact_at(&mut host, 0).unwrap();
        assert!(host == pattern(1000));
        return;
    }
    let (server, proxy) = (Server::new(pattern(1000)), Proxy::new(None));
    for (exceptions, expected) in [("example.org", 1), ("127.0.0.0/8", 0)] {
        let mut child = this_test();
        child
            .env(OBJECT, server.url("/data"))
            .env("http_proxy", proxy.address().to_string())
            .env("no_proxy", exceptions);
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert_eq!(proxy.heads().len(), expected, "{exceptions}");
        assert_eq!(server.requests().len(), 2);
    }
}
