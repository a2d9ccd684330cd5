//! Encrypted connections, and the certificates that they trust.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::deadline::Deadline;
use super::error::{RemoteError, closed};

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

/// An encrypted connection.
pub(super) struct Encrypted {
    session: ClientConnection,
    stream: TcpStream,
}

impl Encrypted {
    /// Makes sure that a server has this name and a key that only the two know.
    pub fn new(
        stream: TcpStream,
        host: &str,
        trust: &Trust,
        deadline: Deadline,
    ) -> Result<Self, RemoteError> {
        let no_name =
            |_| RemoteError::Invalid { reason: "the host has no name for a certificate".to_owned() };
        let name = ServerName::try_from(host.to_owned()).map_err(no_name)?;
        let session = ClientConnection::new(trust.config.clone(), name).map_err(failed)?;
        let mut encrypted = Self { session, stream };
        while encrypted.session.is_handshaking() {
            encrypted.exchange(deadline)?;
        }
        Ok(encrypted)
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns whether no bytes were received that were not used.
    pub fn has_nothing(&mut self) -> bool {
        self.session.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() == 0)
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8], deadline: Deadline) -> Result<(), RemoteError> {
        self.session.writer().write_all(bytes).map_err(RemoteError::Connection)?;
        self.flush(deadline)
    }

    /// Receives bytes for `take`, which returns the number of those that it used.
    pub fn receive(
        &mut self,
        deadline: Deadline,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> Result<(), RemoteError> {
        loop {
            let mut reader = self.session.reader();
            match reader.fill_buf() {
                Ok([]) => return Err(closed()),
                Ok(bytes) => {
                    let count = take(bytes);
                    reader.consume(count);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.exchange(deadline)?,
                Err(error) => return Err(RemoteError::Connection(error)),
            }
        }
    }

    /// Sends what is due, and receives once.
    fn exchange(&mut self, deadline: Deadline) -> Result<(), RemoteError> {
        self.flush(deadline)?;
        deadline.limit_receiving(&self.stream)?;
        match self.session.read_tls(&mut self.stream) {
            Ok(0) if self.session.is_handshaking() => return Err(closed()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(deadline.error(error)),
        }
        let processed = self.session.process_new_packets();
        // If the session fails, a message to the server says why.
        let flushed = self.flush(deadline);
        processed.map_err(failed)?;
        flushed
    }

    fn flush(&mut self, deadline: Deadline) -> Result<(), RemoteError> {
        while self.session.wants_write() {
            deadline.limit_sending(&self.stream)?;
            self.session.write_tls(&mut self.stream).map_err(|error| deadline.error(error))?;
        }
        Ok(())
    }
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
