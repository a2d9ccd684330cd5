//! The servers that connections belong to.

use super::super::proxy::Proxy;

/// A server with which connections can be shared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// The scheme, the host and the port.
    pub origin: String,
    /// The number of the [trust](super::tls::Trust); `None` for that of the machine.
    pub trust: Option<u64>,
    pub proxy: Option<Proxy>,
}
