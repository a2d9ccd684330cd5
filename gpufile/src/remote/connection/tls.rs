//! Encrypted connections, and the certificates that they trust.

use std::fmt;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::limit::Limit;
use super::socket::Socket;
use crate::error::RemoteError;
use cufile::fork::OnceCell;
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{AlertDescription, CipherSuite, ClientConfig, RootCertStore};

#[derive(Clone)]
pub(crate) struct Trust {
    /// A number for these authorities. Connections with others are not shared.
    pub number: u64,
    /// The authorities that were added to those of the machine.
    pub pem: Vec<u8>,
    roots: Arc<RootCertStore>,
    config: Arc<ClientConfig>,
}

impl Trust {
    /// Returns the trust in the authorities that the machine trusts. They are read once.
    pub fn of_machine() -> Self {
        static TRUST: OnceCell<Trust> = OnceCell::new();
        let read = || {
            let mut roots = RootCertStore::empty();
            // Without any, the check of the first certificate fails.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Trust::new(roots, Vec::new())
        };
        TRUST.get_or_init(read).clone()
    }

    /// Returns the configuration of connections, for another client of HTTP.
    pub fn config(&self) -> ClientConfig {
        ClientConfig::clone(&self.config)
    }

    fn new(roots: RootCertStore, pem: Vec<u8>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let roots = Arc::new(roots);
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has the usual versions")
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let config = Arc::new(config);
        Self { number: NUMBERS.fetch_add(1, Ordering::Relaxed), pem, roots, config }
    }

    /// Returns the trust in these authorities too, which are in the format PEM.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if there is no certificate, or a damaged one.
    pub fn with(&self, pem: &[u8]) -> Result<Self, RemoteError> {
        let mut roots = RootCertStore::clone(&self.roots);
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        }
        if roots.len() == before {
            return Err(invalid("there is none".to_owned()));
        }
        Ok(Self::new(roots, [&self.pem, &b"\n"[..], pem].concat()))
    }
}

/// Returns ring's provider with AES-128 first, which takes less time than AES-256 at both ends.
fn provider() -> CryptoProvider {
    let is_short = |suite| {
        matches!(
            suite,
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    };
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !is_short(suite.suite()));
    provider
}

fn invalid(reason: String) -> RemoteError {
    RemoteError::Invalid { reason: format!("the certificates to trust cannot be used: {reason}") }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} authorities", self.roots.len())
    }
}

/// The most bytes that one call of the kernel receives: several records of TLS.
const RECEIVED_BYTES: usize = 64 << 10;

pub(crate) struct Encrypted {
    session: UnbufferedClientConnection,
    socket: Socket,
    /// Bytes as they arrived, of which `encrypted` were not decrypted yet.
    buffer: Vec<u8>,
    encrypted: Range<usize>,
    /// Decrypted bytes that were not used yet: those from `used` on.
    plain: Vec<u8>,
    used: usize,
    /// Messages of the session to the server.
    answers: Vec<u8>,
}

enum Step {
    /// A record was decrypted.
    Received,
    /// Bytes to be sent were appended.
    Encoded,
    /// The appended bytes must be sent now.
    Send,
    /// The handshake needs more bytes from the server.
    Handshake,
    /// Nothing is left to do before more bytes are sent or received.
    Ready,
    /// The server ended the session.
    Closed,
}

impl Encrypted {
    /// Connects to a server that proves to have this name.
    pub fn new(socket: Socket, host: &str, trust: &Trust, limit: Limit<'_>) -> Result<Self, RemoteError> {
        let no_name =
            |_| RemoteError::Invalid { reason: "the host has no name for a certificate".to_owned() };
        let name = ServerName::try_from(host.to_owned()).map_err(no_name)?;
        let session = UnbufferedClientConnection::new(trust.config.clone(), name).map_err(failed)?;
        let (buffer, encrypted) = (vec![0; RECEIVED_BYTES], 0..0);
        let (plain, answers) = (Vec::new(), Vec::new());
        let mut this = Self { session, socket, buffer, encrypted, plain, used: 0, answers };
        this.go_on(limit)?;
        Ok(this)
    }

    /// Returns whether neither unused bytes nor the end of the stream have arrived.
    pub fn has_nothing(&self) -> bool {
        self.plain.is_empty() && self.encrypted.is_empty() && self.socket.has_nothing()
    }

    pub fn send(&mut self, bytes: &[u8], limit: Limit<'_>) -> Result<(), RemoteError> {
        self.go_on(limit)?;
        let sent = self.encrypt(bytes)?;
        self.socket.send(&sent, limit)
    }

    /// Returns encrypted bytes to send, after [`go_on`](Self::go_on).
    fn encrypt(&mut self, bytes: &[u8]) -> Result<Vec<u8>, RemoteError> {
        let Self { session, buffer, encrypted, .. } = self;
        // `go_on` has processed what the buffer has.
        let status = session.process_tls_records(&mut buffer[encrypted.clone()]);
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else {
            return Err(RemoteError::closed());
        };
        let mut sent = vec![0; bytes.len() + 1024];
        let len_bytes = loop {
            match traffic.encrypt(bytes, &mut sent) {
                Ok(len_bytes) => break len_bytes,
                Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    sent.resize(required_size, 0);
                }
                Err(error) => return Err(RemoteError::Connection(io::Error::other(error))),
            }
        };
        encrypted.start += status.discard;
        sent.truncate(len_bytes);
        Ok(sent)
    }

    /// Sends and receives until the session takes bytes to send.
    fn go_on(&mut self, limit: Limit<'_>) -> Result<(), RemoteError> {
        loop {
            limit.check()?;
            let step = self.process(&mut |_| 0);
            if step.is_err() {
                // A message to the server says why the session failed.
                let _ = self.process(&mut |_| 0);
            }
            if matches!(step, Ok(Step::Send) | Err(_)) {
                self.socket.send(&mem::take(&mut self.answers), limit)?;
            }
            match step? {
                Step::Received | Step::Encoded | Step::Send => {}
                Step::Handshake => {
                    self.fill(1)?;
                }
                Step::Ready => return Ok(()),
                Step::Closed => return Err(RemoteError::closed()),
            }
        }
    }

    /// Receives bytes for `take`, which returns the number that it used. Of them, `coming` are known to come. Returns false if
    /// too few arrive within a [`TICK`](super::limit::TICK), or have arrived if `coming` is 0.
    pub fn receive(
        &mut self,
        coming: usize,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Result<bool, RemoteError> {
        if !self.plain.is_empty() {
            self.used += take(&self.plain[self.used..]);
            if self.used == self.plain.len() {
                self.plain.clear();
                self.used = 0;
            }
            return Ok(true);
        }
        let mut was_filled = false;
        loop {
            match self.process(&mut take)? {
                Step::Received => return Ok(true),
                Step::Encoded => {}
                // Short messages, such as those that change keys, fit into what the kernel buffers.
                Step::Send => self.socket.send_at_once(&mem::take(&mut self.answers))?,
                // A record may come a byte at a time.
                Step::Handshake | Step::Ready if !was_filled && self.fill(coming)? => was_filled = true,
                Step::Handshake | Step::Ready => return Ok(false),
                Step::Closed => return Err(RemoteError::closed()),
            }
        }
    }

    /// Receives bytes once, as [`Socket::receive`]. Returns false for 0.
    fn fill(&mut self, coming: usize) -> Result<bool, RemoteError> {
        self.buffer.copy_within(self.encrypted.clone(), 0);
        self.encrypted = 0..self.encrypted.len();
        if self.encrypted.end == self.buffer.len() {
            // A long chain of certificates. The session refuses what is longer than 64 KiB.
            self.buffer.resize(2 * RECEIVED_BYTES, 0);
        }
        let room = &mut self.buffer[self.encrypted.end..];
        // Of a record, at least one more byte comes.
        let awaited = coming.saturating_sub(self.encrypted.len()).max(coming.min(1)).min(room.len());
        let count = self.socket.receive(room, awaited)?;
        self.encrypted.end += count;
        Ok(count > 0)
    }

    /// Decrypts a record for `take`, or does what comes before that.
    fn process(&mut self, take: &mut dyn FnMut(&[u8]) -> usize) -> Result<Step, RemoteError> {
        let Self { session, buffer, encrypted, plain, answers, .. } = self;
        let UnbufferedStatus { discard, state } = session.process_tls_records(&mut buffer[encrypted.clone()]);
        encrypted.start += discard;
        match state.map_err(failed)? {
            ConnectionState::ReadTraffic(mut traffic) => {
                // Bytes that were left before come first.
                let mut is_first = plain.is_empty();
                while let Some(record) = traffic.next_record() {
                    let payload = record.map_err(failed)?.payload;
                    let used = if mem::take(&mut is_first) { take(payload) } else { 0 };
                    plain.extend_from_slice(&payload[used..]);
                }
                Ok(Step::Received)
            }
            ConnectionState::EncodeTlsData(mut data) => {
                let before = answers.len();
                let encoded = match data.encode(&mut []) {
                    Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                        answers.resize(before + required_size, 0);
                        data.encode(&mut answers[before..])
                    }
                    other => other,
                };
                encoded.map_err(|error| RemoteError::Connection(io::Error::other(error)))?;
                Ok(Step::Encoded)
            }
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Ok(Step::Send)
            }
            ConnectionState::BlockedHandshake => Ok(Step::Handshake),
            ConnectionState::WriteTraffic(_) => Ok(Step::Ready),
            _ => Ok(Step::Closed),
        }
    }
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Encrypted").field(&self.socket).finish()
    }
}

fn failed(error: rustls::Error) -> RemoteError {
    match error {
        rustls::Error::InvalidCertificate(reason) => RemoteError::Certificate { reason: reason.to_string() },
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => RemoteError::Invalid {
            reason: "the server does not speak HTTP/1.1, the only version that it was offered".to_owned(),
        },
        error => RemoteError::Connection(io::Error::other(error)),
    }
}

#[cfg(test)]
mod tests {
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
    const LONGEST: Duration = Duration::from_secs(60);

    fn pattern() -> Vec<u8> {
        (0..LONG).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    /// Damages the encrypted bytes after the handshake.
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
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
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
                assert_eq!(
                    is_whole,
                    name.starts_with("no end of the s") || name == "another record",
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn servers_without_http1_are_named() {
        let (pem, key) = certificate();
        let trust = Trust::new(RootCertStore::empty(), Vec::new()).with(pem.as_bytes()).unwrap();
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect();
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
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
}
