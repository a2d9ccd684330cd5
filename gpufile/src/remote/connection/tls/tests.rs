use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ProtocolVersion, ServerConfig, ServerConnection, SupportedProtocolVersion};
use testkit::web::certificate;

use super::*;

const LONG: usize = 300_001;
/// The time for one test.
const LONGEST: Duration = Duration::from_secs(60);

fn pattern() -> Vec<u8> {
    (0..LONG).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// The way in which a server damages the encrypted bytes that it sends after the handshake.
type Damage = fn(&mut Vec<u8>);

/// Starts a server for one connection. After a request of 3 bytes, `answer` writes to the session; what it wrote is
/// damaged, sent in pieces of 9,999 bytes, and followed by the end of the stream.
fn serve(
    version: &'static SupportedProtocolVersion,
    fragment_bytes: Option<usize>,
    answer: impl FnOnce(&mut ServerConnection, &mut Vec<u8>) + Send + 'static,
    damage: Damage,
) -> (std::net::SocketAddr, Trust) {
    let (pem, key) = certificate();
    let trust = Trust::new(RootCertStore::empty(), Vec::new()).with(pem.as_bytes()).unwrap();
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect();
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
        .unwrap();
    config.max_fragment_size = fragment_bytes;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut session = ServerConnection::new(Arc::new(config)).unwrap();
        session.set_buffer_limit(None);
        rustls::Stream::new(&mut session, &mut stream).read_exact(&mut [0; 3]).unwrap();
        let mut sent = Vec::new();
        answer(&mut session, &mut sent);
        write_all(&mut session, &mut sent);
        damage(&mut sent);
        sent.chunks(9_999).for_each(|piece| stream.write_all(piece).unwrap());
        // Receives what the client says to the damage, so that nothing is reset.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = TcpStream::read_to_end(&mut stream, &mut Vec::new());
    });
    (address, trust)
}

fn write_all(session: &mut ServerConnection, sent: &mut Vec<u8>) {
    while session.wants_write() {
        session.write_tls(sent).unwrap();
    }
}

/// Asks a server, and receives up to `most_bytes` in parts of odd lengths. Returns them, and the failure if they are fewer.
fn receive(
    address: std::net::SocketAddr,
    trust: &Trust,
    most_bytes: usize,
) -> (Encrypted, Vec<u8>, Option<RemoteError>) {
    let limit = Limit::after(LONGEST, &|| false);
    let socket = Socket::connect(&[address], limit).unwrap();
    let mut session = Encrypted::new(socket, "localhost", trust, limit).unwrap();
    session.send(b"abc", limit).unwrap();
    let mut all = Vec::new();
    while all.len() < most_bytes {
        limit.check().unwrap();
        let take = |bytes: &[u8]| {
            let some = &bytes[..bytes.len().min(5_003).min(most_bytes - all.len())];
            all.extend_from_slice(some);
            some.len()
        };
        let received = session.receive(1, take);
        // The session may be asked to send before all was received.
        let done = if all.len() < LONG / 2 {
            received.and_then(|_| session.go_on(limit))
        } else {
            received.map(|_| ())
        };
        if let Err(error) = done {
            return (session, all, Some(error));
        }
    }
    (session, all, None)
}

#[test]
fn records_of_each_version_and_length_arrive_whole() {
    for (version, fragment_bytes) in
        [(&TLS12, None), (&TLS12, Some(100)), (&TLS13, None), (&TLS13, Some(100)), (&TLS13, Some(1_400))]
    {
        let answer = |session: &mut ServerConnection, sent: &mut Vec<u8>| {
            for part in pattern().chunks(70_001) {
                session.writer().write_all(part).unwrap();
                write_all(session, sent);
                if session.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
                    session.refresh_traffic_keys().unwrap();
                }
            }
            session.send_close_notify();
        };
        let (address, trust) = serve(version, fragment_bytes, answer, |_| {});
        let (session, all, error) = receive(address, &trust, LONG + 1);
        assert!(all == pattern(), "{version:?} {fragment_bytes:?}: {} bytes, {error:?}", all.len());
        assert!(matches!(error, Some(RemoteError::Connection(_))), "{error:?}");
        let suite = session.session.negotiated_cipher_suite().unwrap().suite();
        assert!(format!("{suite:?}").contains("AES_128_GCM"), "{suite:?}");
    }
}

#[test]
fn damaged_records_give_no_bytes() {
    let cases: [(&str, Damage); 4] = [
        ("no end of the session", |_| {}),
        ("no end of a record", |sent| sent.truncate(sent.len() - 1)),
        ("another byte", |sent| *sent.last_mut().unwrap() ^= 1),
        ("another record", |sent| sent.extend([23, 3, 3, 0, 30].iter().chain(&[0; 30]))),
    ];
    for version in [&TLS12, &TLS13] {
        for (name, damage) in cases {
            let answer = |session: &mut ServerConnection, _: &mut Vec<u8>| {
                session.writer().write_all(&pattern()).unwrap();
            };
            let (address, trust) = serve(version, None, answer, damage);
            let (_, all, error) = receive(address, &trust, LONG + 1);
            assert!(matches!(error, Some(RemoteError::Connection(_))), "{version:?} {name}: {error:?}");
            let is_whole = all.len() == LONG;
            assert!(pattern().starts_with(&all), "{version:?} {name}");
            assert_eq!(is_whole, name.starts_with("no end of the s") || name == "another record", "{name}");
        }
    }
}

#[test]
fn servers_without_http1_are_named() {
    let (pem, key) = certificate();
    let trust = Trust::new(RootCertStore::empty(), Vec::new()).with(pem.as_bytes()).unwrap();
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect();
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut session = ServerConnection::new(Arc::new(config)).unwrap();
        while session.complete_io(&mut stream).is_ok() {}
    });
    let limit = Limit::after(LONGEST, &|| false);
    let socket = Socket::connect(&[address], limit).unwrap();
    let error = Encrypted::new(socket, "localhost", &trust, limit).unwrap_err();
    assert!(
        matches!(error, RemoteError::Invalid { .. }) && error.to_string().contains("HTTP/1.1"),
        "{error}"
    );
}
