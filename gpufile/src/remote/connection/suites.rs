//! The ways to encrypt that a session offers. They leave decrypted bytes where the encrypted ones were.
//!
//! rustls decrypts a record in place, and then copies the bytes to memory of its own. [`note`] finds them in place
//! instead, and lets rustls copy the first byte only. All else is left to rustls.

use std::cell::RefCell;
use std::mem;
use std::ops::Range;
use std::sync::LazyLock;

use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, KeyBlockShape, MessageDecrypter,
    MessageEncrypter, Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::{
    CipherSuite, CipherSuiteCommon, ConnectionTrafficSecrets, ContentType, Error, SupportedCipherSuite,
    Tls12CipherSuite, Tls13CipherSuite,
};

thread_local! {
    /// The addresses of the bytes of the records that this thread decrypts for [`note`].
    static DECRYPTED: RefCell<Option<Vec<Range<usize>>>> = const { RefCell::new(None) };
}

/// The most bytes of each record that the session gets. It refuses many records without any.
pub(super) const LEFT_BYTES: usize = 1;

/// Calls a function that lets a session process the records in a buffer. Appends the addresses of the application's bytes
/// that were decrypted there. The session then has the first byte of each record.
pub(super) fn note<T>(found: &mut Vec<Range<usize>>, process: impl FnOnce() -> T) -> T {
    DECRYPTED.set(Some(mem::take(found)));
    let done = process();
    *found = DECRYPTED.take().unwrap_or_default();
    done
}

/// Returns ring's provider with suites for [`note`]. Those with AES-128 come first, which takes less time than AES-256 at
/// both ends.
pub(super) fn provider() -> CryptoProvider {
    static SUITES: LazyLock<Vec<SupportedCipherSuite>> = LazyLock::new(|| {
        let mut suites = ring::ALL_CIPHER_SUITES.to_vec();
        suites.sort_by_key(|suite| !is_short(suite.suite()));
        suites.into_iter().map(in_place).collect()
    });
    CryptoProvider { cipher_suites: SUITES.clone(), ..ring::default_provider() }
}

fn is_short(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

/// Returns a suite that is the same, except for its decrypters. It lives as long as the process.
fn in_place(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let common = |of: &CipherSuiteCommon| CipherSuiteCommon {
        suite: of.suite,
        hash_provider: of.hash_provider,
        confidentiality_limit: of.confidentiality_limit,
    };
    match suite {
        SupportedCipherSuite::Tls12(of) => SupportedCipherSuite::Tls12(leak(Tls12CipherSuite {
            common: common(&of.common),
            prf_provider: of.prf_provider,
            kx: of.kx,
            sign: of.sign,
            aead_alg: leak(InPlace(of.aead_alg)),
        })),
        SupportedCipherSuite::Tls13(of) => SupportedCipherSuite::Tls13(leak(Tls13CipherSuite {
            common: common(&of.common),
            hkdf_provider: of.hkdf_provider,
            aead_alg: leak(InPlace(of.aead_alg)),
            quic: None,
        })),
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// An algorithm, or a decrypter, whose decrypted bytes are noted.
struct InPlace<T>(T);

impl MessageDecrypter for InPlace<Box<dyn MessageDecrypter>> {
    fn decrypt<'a>(
        &mut self,
        message: InboundOpaqueMessage<'a>,
        sequence: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let mut plain = self.0.decrypt(message, sequence)?;
        DECRYPTED.with_borrow_mut(|decrypted| {
            if let (Some(decrypted), ContentType::ApplicationData) = (decrypted, plain.typ) {
                let start = plain.payload.as_ptr().addr();
                decrypted.push(start..start + plain.payload.len());
                plain.payload = &plain.payload[..plain.payload.len().min(LEFT_BYTES)];
            }
        });
        Ok(plain)
    }
}

impl Tls12AeadAlgorithm for InPlace<&'static dyn Tls12AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        self.0.encrypter(key, iv, extra)
    }

    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        Box::new(InPlace(self.0.decrypter(key, iv)))
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        self.0.key_block_shape()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: &[u8],
        explicit: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv, explicit)
    }
}

impl Tls13AeadAlgorithm for InPlace<&'static dyn Tls13AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        self.0.encrypter(key, iv)
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Box::new(InPlace(self.0.decrypter(key, iv)))
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }
}
