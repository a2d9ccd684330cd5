//! Encrypted connections, and the certificates that they trust.

use std::fmt;
use std::io::{self, Read, Write};
use std::mem;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ClientConfig, RootCertStore};
use socket2::SockRef;

use super::error::{RemoteError, closed};
use super::limit::{Limit, is_tick};

/// The authorities whose certificates are trusted.
#[derive(Clone)]
pub(super) struct Trust {
    /// A number by which connections that trust others are told apart.
    pub number: u64,
    roots: Arc<RootCertStore>,
    config: Arc<ClientConfig>,
}

impl Trust {
    /// Returns the trust in the authorities that the machine trusts. They are read once.
    pub fn of_machine() -> Self {
        static TRUST: LazyLock<Trust> = LazyLock::new(|| {
            let mut roots = RootCertStore::empty();
            // Without any, the check of the first certificate fails.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Trust::new(roots)
        });
        TRUST.clone()
    }

    fn new(roots: RootCertStore) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has the usual versions")
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { number: NUMBERS.fetch_add(1, Ordering::Relaxed), roots, config: Arc::new(config) }
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
        if roots.len() == before { Err(invalid("there is none".to_owned())) } else { Ok(Self::new(roots)) }
    }
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

/// An encrypted connection.
pub(super) struct Encrypted {
    session: UnbufferedClientConnection,
    stream: TcpStream,
    /// Bytes as they arrived. Those of `encrypted` were not decrypted yet.
    buffer: Vec<u8>,
    encrypted: Range<usize>,
    /// Decrypted bytes, of which the first `used` were used.
    plain: Vec<u8>,
    used: usize,
}

/// The next step of a session.
enum Step {
    /// A record came, whose bytes were given away.
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
    /// Makes sure that a server has this name and a key that only the two know.
    pub fn new(stream: TcpStream, host: &str, trust: &Trust, limit: Limit<'_>) -> Result<Self, RemoteError> {
        let no_name =
            |_| RemoteError::Invalid { reason: "the host has no name for a certificate".to_owned() };
        let name = ServerName::try_from(host.to_owned()).map_err(no_name)?;
        let session = UnbufferedClientConnection::new(trust.config.clone(), name).map_err(failed)?;
        let buffer = vec![0; RECEIVED_BYTES];
        let mut this = Self { session, stream, buffer, encrypted: 0..0, plain: Vec::new(), used: 0 };
        this.go_on(limit)?;
        Ok(this)
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns whether no bytes were received that were not used.
    pub fn has_nothing(&self) -> bool {
        self.used == self.plain.len() && self.encrypted.is_empty()
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8], limit: Limit<'_>) -> Result<(), RemoteError> {
        self.go_on(limit)?;
        let Self { session, buffer, encrypted, .. } = self;
        // `go_on` has processed what the buffer has.
        let status = session.process_tls_records(&mut buffer[encrypted.clone()]);
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else { return Err(closed()) };
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
        send_all(&mut self.stream, &sent[..len_bytes], limit)
    }

    /// Sends and receives until the session takes bytes to send.
    fn go_on(&mut self, limit: Limit<'_>) -> Result<(), RemoteError> {
        let mut sent = Vec::new();
        loop {
            limit.check()?;
            let step = self.process(&mut sent, |_| 0);
            if step.is_err() {
                // A message to the server says why the session failed.
                let _ = self.process(&mut sent, |_| 0);
            }
            if matches!(step, Ok(Step::Send) | Err(_)) {
                send_all(&mut self.stream, &mem::take(&mut sent), limit)?;
            }
            match step? {
                Step::Received | Step::Encoded | Step::Send => {}
                Step::Handshake => {
                    self.fill()?;
                }
                Step::Ready => return Ok(()),
                Step::Closed => return Err(closed()),
            }
        }
    }

    /// Receives bytes for `take`, which returns the number of those that it used. Returns false if too few arrive within a
    /// [`TICK`](super::limit::TICK).
    pub fn receive(&mut self, mut take: impl FnMut(&[u8]) -> usize) -> Result<bool, RemoteError> {
        if self.used < self.plain.len() {
            self.used += take(&self.plain[self.used..]);
            return Ok(true);
        }
        let (mut answers, mut was_filled) = (Vec::new(), false);
        loop {
            match self.process(&mut answers, &mut take)? {
                Step::Received => return Ok(true),
                Step::Encoded => {}
                Step::Send => {
                    // Short messages, such as those that change keys, fit into what the kernel buffers.
                    self.stream.write_all(&answers).map_err(RemoteError::Connection)?;
                    answers.clear();
                }
                // A record may come a byte at a time.
                Step::Handshake | Step::Ready if !was_filled && self.fill()? => was_filled = true,
                Step::Handshake | Step::Ready => return Ok(false),
                Step::Closed => return Err(closed()),
            }
        }
    }

    /// Receives bytes once. Returns false if none arrive within a [`TICK`](super::limit::TICK).
    fn fill(&mut self) -> Result<bool, RemoteError> {
        self.buffer.copy_within(self.encrypted.clone(), 0);
        self.encrypted = 0..self.encrypted.len();
        if self.encrypted.end == self.buffer.len() {
            // A long chain of certificates. The session refuses what is longer than 64 KiB.
            self.buffer.resize(2 * RECEIVED_BYTES, 0);
        }
        acknowledge(&self.stream);
        match self.stream.read(&mut self.buffer[self.encrypted.end..]) {
            Ok(0) => Err(closed()),
            Ok(count) => {
                self.encrypted.end += count;
                Ok(true)
            }
            Err(error) if is_tick(&error) => Ok(false),
            Err(error) => Err(RemoteError::Connection(error)),
        }
    }

    /// Decrypts records for `take`, or does what comes before that. Appends what is to be sent.
    fn process(
        &mut self,
        sent: &mut Vec<u8>,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Result<Step, RemoteError> {
        let Self { session, buffer, encrypted, plain, used, .. } = self;
        let UnbufferedStatus { discard, state } = session.process_tls_records(&mut buffer[encrypted.clone()]);
        let step = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let payload = record.map_err(failed)?.payload;
                    let count = if *used == plain.len() { take(payload) } else { 0 };
                    if count < payload.len() {
                        plain.drain(..mem::take(used));
                        plain.extend_from_slice(&payload[count..]);
                    }
                }
                Ok(Step::Received)
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                let before = sent.len();
                match data.encode(&mut []) {
                    Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                        sent.resize(before + required_size, 0);
                        data.encode(&mut sent[before..]).map(|_| Step::Encoded)
                    }
                    other => other.map(|_| Step::Encoded),
                }
                .map_err(|error| RemoteError::Connection(io::Error::other(error)))
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(Step::Send)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Step::Handshake),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Ready),
            Ok(_) => Ok(Step::Closed),
            Err(error) => Err(failed(error)),
        };
        encrypted.start += discard;
        step
    }
}

/// Acknowledges at once what has arrived. Some servers hold back the last bytes of an answer until then, which otherwise
/// takes 40 ms: nginx with `tcp_nopush`, and those that send the head and the body separately.
pub(super) fn acknowledge(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_tcp_quickack(true);
}

/// Sends bytes, with calls that wait at most a [`TICK`](super::limit::TICK).
pub(super) fn send_all(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    limit: Limit<'_>,
) -> Result<(), RemoteError> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if is_tick(&error) => limit.check()?,
            Err(error) => return Err(RemoteError::Connection(error)),
        }
    }
    Ok(())
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Encrypted").field(&self.stream).finish()
    }
}

/// Returns the failure of a session.
fn failed(error: rustls::Error) -> RemoteError {
    match error {
        rustls::Error::InvalidCertificate(reason) => RemoteError::Certificate { reason: reason.to_string() },
        error => RemoteError::Connection(io::Error::other(error)),
    }
}
