//! One connection to a server: requests, and their answers in the same order.

pub(super) mod answer;
mod http1;
#[cfg(feature = "http2")]
mod http2;
pub(super) mod limit;
mod names;
pub(super) mod request;
pub(super) mod server;
pub(super) mod socket;
mod suites;
pub(super) mod tls;

use std::net::SocketAddr;
use std::ops::Range;

use self::answer::Answer;
use self::http1::{Http1, Stream};
#[cfg(feature = "http2")]
use self::http2::Http2;
use self::limit::Limit;
use self::names::look_up;
use self::request::Request;
use self::server::Server;
use self::socket::Socket;
use self::tls::{Encrypted, Trust};
use super::address::Address;
use super::batch::Batch;
use super::error::RemoteError;

/// A connection to a server.
#[derive(Debug)]
pub(crate) enum Connection {
    Http1(Http1),
    #[cfg(feature = "http2")]
    Http2(Box<Http2>),
}

/// Calls a method of either protocol.
macro_rules! either {
    ($connection:expr, $protocol:ident => $call:expr) => {
        match $connection {
            Connection::Http1($protocol) => $call,
            #[cfg(feature = "http2")]
            Connection::Http2($protocol) => $call,
        }
    };
}

impl Connection {
    /// Connects to one of the server's addresses, or to one of the proxy's.
    pub fn new(
        address: &Address,
        server: &Server,
        trust: Option<&Trust>,
        limit: Limit<'_>,
    ) -> Result<Self, RemoteError> {
        let sockets = resolve(address, server, limit)?;
        Self::of_socket(Socket::connect(&sockets, limit)?, address, server, trust, limit)
    }

    /// Makes a connection of a socket to the server or its proxy, which it encrypts if the address says so.
    pub fn of_socket(
        socket: Socket,
        address: &Address,
        server: &Server,
        trust: Option<&Trust>,
        limit: Limit<'_>,
    ) -> Result<Self, RemoteError> {
        if !address.is_encrypted() {
            return Ok(Self::Http1(Http1::new(Stream::Plain(socket))));
        }
        let socket = match &server.proxy {
            Some(proxy) => Http1::tunnel(socket, &proxy.connect_request(address), limit)?,
            None => socket,
        };
        let trust = trust.cloned().unwrap_or_else(Trust::of_machine);
        let encrypted = Encrypted::new(socket, address.name(), &trust, server.http2, limit)?;
        #[cfg(feature = "http2")]
        if encrypted.speaks_http2() {
            return Ok(Self::Http2(Box::new(Http2::new(encrypted, limit)?)));
        }
        Ok(Self::Http1(Http1::new(Stream::Encrypted(Box::new(encrypted)))))
    }

    /// Returns whether another request can be sent: nothing has come since the last answer, not even the end.
    pub fn is_idle(&mut self) -> bool {
        either!(self, protocol => protocol.is_idle())
    }

    /// Returns the most bytes of all answers that may be on their way, if there are several.
    pub fn most_bytes(&self) -> u64 {
        match self {
            Connection::Http1(_) => u64::MAX,
            #[cfg(feature = "http2")]
            Connection::Http2(_) => Http2::MOST_BYTES,
        }
    }

    /// Sends requests for these ranges.
    pub fn send(
        &mut self,
        request: &Request<'_>,
        ranges: &[Range<u64>],
        limit: Limit<'_>,
    ) -> Result<(), RemoteError> {
        match self {
            Connection::Http1(http1) => http1.send(request.text(ranges).as_bytes(), limit),
            #[cfg(feature = "http2")]
            Connection::Http2(http2) => http2.send(request, ranges),
        }
    }

    /// Receives the head of the next answer, behind which `coming` bytes are known to come. Returns `None` if it does not
    /// arrive within a [`TICK`](limit::TICK).
    pub fn receive_head(&mut self, coming: usize) -> Result<Option<Answer>, RemoteError> {
        either!(self, protocol => protocol.receive_head(coming))
    }

    /// Returns whether a part of an answer has arrived that was not used yet.
    pub fn has_some(&self) -> bool {
        match self {
            Connection::Http1(http1) => http1.has_some(),
            // h2 keeps the start of a head to itself.
            #[cfg(feature = "http2")]
            Connection::Http2(_) => false,
        }
    }

    /// Receives up to `most_bytes` of a body, which has no less, into the memory of the batch. Returns 0
    /// if none arrive within a [`TICK`](limit::TICK).
    pub fn receive(&mut self, batch: &mut Batch, most_bytes: usize) -> Result<usize, RemoteError> {
        either!(self, protocol => protocol.receive(batch, most_bytes))
    }

    /// Receives up to `most_bytes` that are not needed. Returns 0 if none arrive within a [`TICK`](limit::TICK).
    pub fn drop_some(&mut self, most_bytes: usize) -> Result<usize, RemoteError> {
        either!(self, protocol => protocol.drop_some(most_bytes))
    }

    /// Ends an answer whose body is not needed, if that takes little. Returns whether the connection can be used again.
    pub fn skip(&mut self, body_bytes: u64, limit: Limit<'_>) -> bool {
        match self {
            Connection::Http1(http1) => http1.skip(body_bytes, limit),
            #[cfg(feature = "http2")]
            Connection::Http2(http2) => http2.skip(),
        }
    }
}

/// Returns the addresses to connect to.
pub(crate) fn resolve(
    address: &Address,
    server: &Server,
    limit: Limit<'_>,
) -> Result<Vec<SocketAddr>, RemoteError> {
    let proxy = server.proxy.as_ref();
    let (name, port) = proxy.map_or((address.name(), address.port()), |proxy| (&proxy.host, proxy.port));
    look_up(name, port, limit)
}
