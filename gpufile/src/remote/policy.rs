//! The choices that all requests of an object follow.

use std::fmt;
use std::time::Duration;

use super::cache::Cache;
use super::connection::tls::Trust;
use super::environment::Environment;
use super::proxy::Proxies;
use crate::error::RemoteError;

#[derive(Clone)]
pub(super) struct Policy {
    /// The time for one try, as [`Limit`](super::connection::limit) counts it.
    pub timeout: Duration,
    pub tries: u32,
    pub wait: Duration,
    pub statuses: Vec<u16>,
    /// The headers for the server of the object's address.
    pub headers: Vec<(String, String)>,
    /// `None` for the trust of the machine.
    pub trust: Option<Trust>,
    /// The options of S3, which override the environment.
    pub s3: Vec<(String, String)>,
    pub azure: Vec<(String, String)>,
    pub gcs: Vec<(String, String)>,
    pub cache: Option<Cache>,
    pub proxies: Proxies,
    pub environment: Environment,
    /// The most bytes of a request; `None` for what suits the server.
    pub request_bytes: Option<u64>,
    /// The longest gap between two ranges that is received.
    pub gap_bytes: usize,
    /// True if late answers are asked for on a second connection.
    pub repeats_late: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            tries: 5,
            wait: Duration::from_millis(100),
            statuses: vec![408, 429, 500, 502, 503, 504],
            headers: Vec::new(),
            trust: None,
            s3: Vec::new(),
            azure: Vec::new(),
            gcs: Vec::new(),
            cache: None,
            proxies: Proxies::default(),
            environment: Environment::now(),
            request_bytes: None,
            gap_bytes: 32 << 10,
            repeats_late: true,
        }
    }
}

impl Policy {
    /// # Errors
    /// [`RemoteError::Invalid`] if a header cannot be sent.
    pub fn check(&self) -> Result<(), RemoteError> {
        /// The headers that requests have anyway, and those about the connection.
        const OURS: [&str; 14] = [
            "host",
            "range",
            "if-match",
            "if-unmodified-since",
            "accept-encoding",
            "connection",
            "content-length",
            "proxy-authorization",
            "transfer-encoding",
            "te",
            "trailer",
            "upgrade",
            "keep-alive",
            "proxy-connection",
        ];
        let is_name = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        for (name, value) in &self.headers {
            let is_ours = OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours));
            if !is_name(name) || is_ours || value.chars().any(char::is_control) {
                return Err(RemoteError::Invalid { reason: format!("the header {name:?} cannot be sent") });
            }
        }
        Ok(())
    }
}

/// Shows no values of headers and of options of stores, which may be secret.
impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |pairs: &[(String, String)]| -> Vec<_> { pairs.iter().map(|(name, _)| name.clone()).collect() };
        let mut all = f.debug_struct("Policy");
        all.field("timeout", &self.timeout)
            .field("tries", &self.tries)
            .field("wait", &self.wait)
            .field("statuses", &self.statuses)
            .field("headers", &names(&self.headers))
            .field("trust", &self.trust)
            .field("cache", &self.cache)
            .field("proxies", &self.proxies)
            .field("request_bytes", &self.request_bytes)
            .field("gap_bytes", &self.gap_bytes)
            .field("repeats_late", &self.repeats_late);
        all.field("s3", &names(&self.s3));
        all.field("azure", &names(&self.azure));
        all.field("gcs", &names(&self.gcs));
        all.finish()
    }
}
