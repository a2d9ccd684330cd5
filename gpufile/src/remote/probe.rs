//! The steps to a new connection.

use std::time::Duration;

/// A new connection to the server of an object, and the time that each step took.
///
/// ```no_run
/// use gpufile::remote::RemoteFile;
///
/// # fn main() -> gpufile::Result<()> {
/// let probe = RemoteFile::open("https://example.org/data.bin")?.probe()?;
/// println!("{} in {:?}", probe.server, probe.resolve + probe.connect);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Probe {
    /// The scheme, the host and the port of the server, after redirects.
    pub server: String,
    /// The time of the object's last change as the server writes it, if it sends no ETag.
    pub modified: Option<String>,
    /// The time to find the addresses of the host.
    pub resolve: Duration,
    /// The time to connect to one of them.
    pub connect: Duration,
    /// The time to agree on keys; `None` without TLS. This connection may continue the session of an earlier one.
    pub encrypt: Option<Duration>,
}
