//! One connection of HTTP/1.1 to a server: requests, and their answers in the same order. The bytes of answers go to the
//! caller's memory as they arrive.

pub(super) mod answer;
mod chunks;
pub(super) mod limit;
mod names;
pub(super) mod request;
pub(super) mod server;
pub(super) mod socket;
pub(super) mod tls;

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;
use std::{io, mem};

use self::answer::Answer;
use self::chunks::Chunks;
use self::limit::Limit;
use self::names::look_up;
use self::request::Request;
use self::server::Server;
use self::socket::Socket;
use self::tls::{Encrypted, Trust};
use super::address::Address;
use super::batch::Batch;
use crate::error::RemoteError;

/// The bytes that are received with a head. The first bytes of the body among them are copied once more.
const HEAD_BYTES: usize = 8 << 10;
/// The longest head in bytes, and the longest body of an answer without bytes of an object.
const MOST_HEAD_BYTES: usize = 64 << 10;
/// The most time for such a body.
const MOST_REST: Duration = Duration::from_secs(1);

/// A connection, and its bytes that were not used yet.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    received: Vec<u8>,
    /// The place in the body, if it comes in chunks.
    chunks: Option<Chunks>,
}

#[derive(Debug)]
enum Stream {
    Plain(Socket),
    Encrypted(Box<Encrypted>),
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

    /// Makes a connection of a socket to the server or its proxy, encrypted if the address says so.
    pub fn of_socket(
        socket: Socket,
        address: &Address,
        server: &Server,
        trust: Option<&Trust>,
        limit: Limit<'_>,
    ) -> Result<Self, RemoteError> {
        if !address.is_encrypted() {
            return Ok(Self::of_stream(Stream::Plain(socket)));
        }
        let socket = match &server.proxy {
            Some(proxy) => Self::tunnel(socket, &proxy.connect_request(address), limit)?,
            None => socket,
        };
        let trust = trust.cloned().unwrap_or_else(Trust::of_machine);
        let encrypted = Encrypted::new(socket, address.name(), &trust, limit)?;
        Ok(Self::of_stream(Stream::Encrypted(Box::new(encrypted))))
    }

    fn of_stream(stream: Stream) -> Self {
        Self { stream, received: Vec::new(), chunks: None }
    }

    /// Asks a proxy for a connection to the server, and returns it.
    fn tunnel(mut socket: Socket, request: &str, limit: Limit<'_>) -> Result<Socket, RemoteError> {
        socket.send(request.as_bytes(), limit)?;
        let mut this = Self::of_stream(Stream::Plain(socket));
        let answer = loop {
            limit.check()?;
            if let Some(answer) = this.receive_head(0)? {
                break answer;
            }
        };
        match (answer.status, this.stream) {
            (200..300, Stream::Plain(socket)) if this.received.is_empty() => Ok(socket),
            (200..300, _) => Err(RemoteError::answer("the proxy sent bytes before the server did")),
            (status, _) => {
                let reason = ", which is the answer of the proxy";
                Err(RemoteError::Status { status, reason, said: String::new() })
            }
        }
    }

    /// Returns whether the server has sent nothing since the last answer, not even the end.
    pub fn is_idle(&mut self) -> bool {
        self.received.is_empty()
            && match &mut self.stream {
                Stream::Plain(socket) => socket.has_nothing(),
                Stream::Encrypted(encrypted) => encrypted.has_nothing(),
            }
    }

    /// Sends requests for these ranges.
    pub fn send(
        &mut self,
        request: &Request<'_>,
        ranges: &[Range<u64>],
        limit: Limit<'_>,
    ) -> Result<(), RemoteError> {
        let text = request.text(ranges);
        match &mut self.stream {
            Stream::Plain(socket) => socket.send(text.as_bytes(), limit),
            Stream::Encrypted(encrypted) => encrypted.send(text.as_bytes(), limit),
        }
    }

    /// Receives the next head, and waits for the `coming` bytes behind it at once. Returns `None` if it is not whole after
    /// one call of the kernel, or within a [`TICK`](limit::TICK).
    pub fn receive_head(&mut self, coming: usize) -> Result<Option<Answer>, RemoteError> {
        let head = self.take_head()?;
        if head.is_some() || !self.receive_some(coming)? { Ok(head) } else { self.take_head() }
    }

    fn take_head(&mut self) -> Result<Option<Answer>, RemoteError> {
        while let Some((answer, len_bytes)) = Answer::parse(&self.received)? {
            self.received.drain(..len_bytes);
            // Interim answers come before the real one.
            if !(100..200).contains(&answer.status) {
                self.chunks = answer.is_chunked.then_some(Chunks::Length);
                return Ok(Some(answer));
            }
        }
        match self.received.len() {
            MOST_HEAD_BYTES.. => Err(RemoteError::answer("its head is longer than 64 KiB")),
            _ => Ok(None),
        }
    }

    /// Returns whether unused bytes have arrived.
    pub fn has_some(&self) -> bool {
        !self.received.is_empty()
    }

    /// Receives a head or its start, or bytes that are not needed, and keeps them behind earlier ones. Behind them, `coming`
    /// bytes are known to come. Returns false if none arrive within a [`TICK`](limit::TICK).
    fn receive_some(&mut self, coming: usize) -> Result<bool, RemoteError> {
        let coming = coming.saturating_add(1).saturating_sub(self.received.len()).max(1);
        let received = &mut self.received;
        let socket = match &mut self.stream {
            Stream::Plain(socket) => socket,
            Stream::Encrypted(encrypted) => {
                return encrypted.receive(coming, |bytes| {
                    let some = &bytes[..bytes.len().min(HEAD_BYTES)];
                    received.extend_from_slice(some);
                    some.len()
                });
            }
        };
        let before = received.len();
        received.resize(before + HEAD_BYTES, 0);
        let count = socket.receive(&mut received[before..], coming);
        received.truncate(before + *count.as_ref().unwrap_or(&0));
        Ok(count? > 0)
    }

    /// Receives up to `most_bytes` of a body, which has no less, into the batch. Returns 0 if none arrive within a
    /// [`TICK`](limit::TICK).
    pub fn receive(&mut self, batch: &mut Batch, most_bytes: usize) -> Result<usize, RemoteError> {
        let most_bytes = match self.next_bytes(most_bytes)? {
            0 => return Ok(0),
            most_bytes => most_bytes,
        };
        let early = most_bytes.min(self.received.len());
        let count = if early > 0 {
            batch.copy_from(&self.received[..early]);
            self.received.drain(..early);
            early
        } else {
            match &mut self.stream {
                Stream::Plain(socket) => receive_into(socket, batch, most_bytes)?,
                Stream::Encrypted(encrypted) => {
                    let mut count = 0;
                    encrypted.receive(most_bytes, |bytes| {
                        let some = &bytes[..bytes.len().min(most_bytes)];
                        batch.copy_from(some);
                        count = some.len();
                        count
                    })?;
                    count
                }
            }
        };
        self.advance(count);
        Ok(count)
    }

    /// Receives up to `most_bytes` that are not needed. Returns 0 if none arrive within a [`TICK`](limit::TICK).
    pub fn drop_some(&mut self, most_bytes: usize) -> Result<usize, RemoteError> {
        let some = self.some(most_bytes)?;
        self.received.drain(..some);
        Ok(some)
    }

    /// Uses received bytes of the body, and returns their number, at most `most_bytes`. Returns 0 if none arrive within a
    /// [`TICK`](limit::TICK).
    fn some(&mut self, most_bytes: usize) -> Result<usize, RemoteError> {
        let most_bytes = self.next_bytes(most_bytes)?;
        if self.received.is_empty() && most_bytes > 0 {
            self.receive_some(0)?;
        }
        let some = self.received.len().min(most_bytes);
        self.advance(some);
        Ok(some)
    }

    /// Returns the bytes of the body before the next header of a chunk, at most `most_bytes`. Returns 0 if that is unknown
    /// within a [`TICK`](limit::TICK).
    ///
    /// # Errors
    /// [`RemoteError::Answer`] if the body has ended.
    fn next_bytes(&mut self, most_bytes: usize) -> Result<usize, RemoteError> {
        match self.read_frame()? {
            None => Ok(most_bytes),
            Some(Chunks::End) => Err(RemoteError::answer("its body is shorter than its range")),
            Some(chunks) => Ok(usize::try_from(chunks.left_bytes()).unwrap_or(usize::MAX).min(most_bytes)),
        }
    }

    /// Reads the part of the frame that arrives within a [`TICK`](limit::TICK). Returns the place behind it.
    fn read_frame(&mut self) -> Result<Option<Chunks>, RemoteError> {
        let Some(mut chunks) = self.chunks else { return Ok(None) };
        for _ in 0..2 {
            let used = chunks.read(&self.received)?;
            self.received.drain(..used);
            if chunks.left_bytes() > 0 || chunks == Chunks::End || !self.receive_some(0)? {
                break;
            }
        }
        self.chunks = Some(chunks);
        Ok(self.chunks)
    }

    fn advance(&mut self, count: usize) {
        if let Some(chunks) = &mut self.chunks {
            chunks.advance(count);
        }
    }

    /// Receives the end of a body's chunks. Returns false if it does not arrive within a [`TICK`](limit::TICK).
    ///
    /// # Errors
    /// [`RemoteError::Answer`] if the body has more bytes.
    pub fn end_body(&mut self) -> Result<bool, RemoteError> {
        match self.read_frame()? {
            None | Some(Chunks::End) => {
                self.chunks = None;
                Ok(true)
            }
            Some(chunks) if chunks.left_bytes() > 0 => {
                Err(RemoteError::answer("its body is longer than its range"))
            }
            Some(_) => Ok(false),
        }
    }

    /// Receives the whole body of an answer, if it is short and comes soon. Returns the part that arrived, and whether the
    /// connection can be used again.
    pub fn rest(&mut self, answer: &Answer, limit: Limit<'_>) -> (Vec<u8>, bool) {
        let (mut rest, limit) = (Vec::new(), limit.at_most(MOST_REST));
        let len_bytes = match (answer.body_bytes, answer.status) {
            (Some(len_bytes), _) => usize::try_from(len_bytes).unwrap_or(usize::MAX),
            (None, 204 | 304) => 0,
            (None, _) => usize::MAX,
        };
        while rest.len() < len_bytes.min(MOST_HEAD_BYTES) && limit.check().is_ok() {
            match self.some(len_bytes - rest.len()) {
                Ok(count) => rest.extend(self.received.drain(..count)),
                Err(_) if self.chunks == Some(Chunks::End) => break,
                Err(_) => return (rest, false),
            }
        }
        let is_whole = match self.chunks {
            Some(chunks) => chunks == Chunks::End,
            None => rest.len() == len_bytes,
        };
        (rest, is_whole && answer.keeps_connection)
    }
}

/// Receives up to `len_bytes`, which are known to come. Returns 0 if none arrive within a [`TICK`](limit::TICK).
fn receive_into(socket: &mut Socket, batch: &mut Batch, len_bytes: usize) -> Result<usize, RemoteError> {
    let count = socket.receive_with(len_bytes, |stream| {
        let memory = batch.memory(len_bytes);
        // SAFETY: zeros are valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = memory.as_ptr().cast_mut();
        message.msg_iovlen = memory.len() as _;
        // SAFETY: the creator of the batch promised that its memory is valid, and no other code has it.
        let count = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, 0) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    })?;
    batch.advance(count);
    Ok(count)
}

pub(crate) fn resolve(
    address: &Address,
    server: &Server,
    limit: Limit<'_>,
) -> Result<Vec<SocketAddr>, RemoteError> {
    let proxy = server.proxy.as_ref();
    let (name, port) = proxy.map_or((address.name(), address.port()), |proxy| (&proxy.host, proxy.port));
    look_up(name, port, limit)
}
