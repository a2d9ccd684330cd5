//! One connection to a server. Bytes that follow the head of an answer go to the memory of the caller as they arrive.

use std::ffi::c_int;
use std::io::{self, Read};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

use super::address::Address;
use super::answer::Answer;
use super::batch::Batch;
use super::error::{RemoteError, closed};
use super::limit::{Limit, TICK, is_tick};
use super::proxy::Proxy;
use super::tls::{Encrypted, Trust, acknowledge, send_all};

/// The number of bytes that are received with the head of an answer. They include the first bytes of the body, which are
/// copied once more from there.
const HEAD_BYTES: usize = 8 << 10;
/// The longest head in bytes.
const MOST_HEAD_BYTES: usize = 64 << 10;

/// A connection, and the bytes that arrived on it and were not used yet.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    received: Vec<u8>,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Encrypted(Box<Encrypted>),
}

impl Connection {
    /// Connects to one of the server's addresses, or to one of the proxy's.
    pub fn new(
        address: &Address,
        proxy: Option<&Proxy>,
        trust: Option<&Trust>,
        limit: Limit<'_>,
    ) -> Result<Self, RemoteError> {
        let sockets = resolve(address, proxy)?;
        Self::of_stream(connect_any(&sockets, limit)?, address, proxy, trust, limit)
    }

    /// Makes a connection of a stream to the server or its proxy, which it encrypts if the address says so.
    pub fn of_stream(
        stream: TcpStream,
        address: &Address,
        proxy: Option<&Proxy>,
        trust: Option<&Trust>,
        limit: Limit<'_>,
    ) -> Result<Self, RemoteError> {
        let plain = Self { stream: Stream::Plain(stream), received: Vec::new() };
        if !address.is_encrypted() {
            return Ok(plain);
        }
        let stream = match proxy {
            Some(proxy) => plain.tunnel(&proxy.connect_request(address), limit)?,
            None => plain.stream,
        };
        let Stream::Plain(stream) = stream else { unreachable!("made above") };
        let trust = trust.cloned().unwrap_or_else(Trust::of_machine);
        let encrypted = Encrypted::new(stream, address.name(), &trust, limit)?;
        Ok(Self { stream: Stream::Encrypted(Box::new(encrypted)), received: Vec::new() })
    }

    /// Asks a proxy for a connection to the server, which then has the stream.
    fn tunnel(mut self, request: &str, limit: Limit<'_>) -> Result<Stream, RemoteError> {
        self.send(request.as_bytes(), limit)?;
        let answer = loop {
            limit.check()?;
            if let Some(answer) = self.receive_head()? {
                break answer;
            }
        };
        match answer.status {
            200..300 if self.received.is_empty() => Ok(self.stream),
            200..300 => Err(RemoteError::answer("the proxy sent bytes before the server did")),
            status => Err(RemoteError::Status { status, reason: ", which is the answer of the proxy" }),
        }
    }

    /// Returns whether the server has sent nothing since the last answer, not even the end of the connection.
    pub fn is_idle(&mut self) -> bool {
        self.received.is_empty()
            && match &mut self.stream {
                Stream::Plain(stream) => has_nothing(stream),
                Stream::Encrypted(encrypted) => encrypted.has_nothing() && has_nothing(encrypted.stream()),
            }
    }

    /// Sends requests.
    pub fn send(&mut self, requests: &[u8], limit: Limit<'_>) -> Result<(), RemoteError> {
        match &mut self.stream {
            Stream::Plain(stream) => send_all(stream, requests, limit),
            Stream::Encrypted(encrypted) => encrypted.send(requests, limit),
        }
    }

    /// Receives the head of the next answer. Returns `None` if it is not whole after one call of the kernel, or within a
    /// [`TICK`].
    pub fn receive_head(&mut self) -> Result<Option<Answer>, RemoteError> {
        let head = self.take_head()?;
        if head.is_some() || !self.receive_some()? { Ok(head) } else { self.take_head() }
    }

    /// Takes the head of the next answer, if it has arrived.
    fn take_head(&mut self) -> Result<Option<Answer>, RemoteError> {
        while let Some((answer, len_bytes)) = Answer::parse(&self.received)? {
            self.received.drain(..len_bytes);
            // Interim answers come before the real one.
            if !(100..200).contains(&answer.status) {
                return Ok(Some(answer));
            }
        }
        match self.received.len() {
            MOST_HEAD_BYTES.. => Err(RemoteError::answer("its head is longer than 64 KiB")),
            _ => Ok(None),
        }
    }

    /// Returns whether a part of an answer has arrived that was not used yet.
    pub fn has_some(&self) -> bool {
        !self.received.is_empty()
    }

    /// Receives bytes, and keeps them behind those that were received before. Returns false if none arrive within a
    /// [`TICK`].
    fn receive_some(&mut self) -> Result<bool, RemoteError> {
        let received = &mut self.received;
        let stream = match &mut self.stream {
            Stream::Plain(stream) => stream,
            Stream::Encrypted(encrypted) => {
                return encrypted.receive(|bytes| {
                    let some = &bytes[..bytes.len().min(HEAD_BYTES)];
                    received.extend_from_slice(some);
                    some.len()
                });
            }
        };
        acknowledge(stream);
        let before = received.len();
        received.resize(before + HEAD_BYTES, 0);
        let read = stream.read(&mut received[before..]);
        received.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(closed()),
            Ok(_) => Ok(true),
            Err(error) if is_tick(&error) => Ok(false),
            Err(error) => Err(RemoteError::Connection(error)),
        }
    }

    /// Receives up to `most_bytes` of a body into the memory of the batch. Returns 0 if none arrive within a [`TICK`].
    pub fn receive(&mut self, batch: &mut Batch, most_bytes: usize) -> Result<usize, RemoteError> {
        let early = most_bytes.min(self.received.len());
        if early > 0 {
            batch.copy_from(&self.received[..early]);
            self.received.drain(..early);
            return Ok(early);
        }
        match &mut self.stream {
            Stream::Plain(stream) => receive_into(stream, batch, most_bytes),
            Stream::Encrypted(encrypted) => {
                let mut count = 0;
                encrypted.receive(|bytes| {
                    let some = &bytes[..bytes.len().min(most_bytes)];
                    batch.copy_from(some);
                    count = some.len();
                    count
                })?;
                Ok(count)
            }
        }
    }

    /// Receives up to `most_bytes` that are not needed. Returns 0 if none arrive within a [`TICK`].
    pub fn drop_some(&mut self, most_bytes: usize) -> Result<usize, RemoteError> {
        if self.received.is_empty() {
            self.receive_some()?;
        }
        let some = self.received.len().min(most_bytes);
        self.received.drain(..some);
        Ok(some)
    }

    /// Receives the rest of an answer that is not needed, if it is short. Returns whether the connection can be used
    /// again.
    pub fn skip(&mut self, body_bytes: u64, limit: Limit<'_>) -> bool {
        let mut left = body_bytes;
        while left > 0 && body_bytes <= MOST_HEAD_BYTES as u64 {
            let some = self.drop_some(left as usize);
            let Ok(count) = some.and_then(|count| limit.check().map(|()| count)) else { return false };
            left -= count as u64;
        }
        left == 0
    }
}

/// Returns the addresses to connect to.
pub(super) fn resolve(address: &Address, proxy: Option<&Proxy>) -> Result<Vec<SocketAddr>, RemoteError> {
    let sockets = proxy.map_or_else(|| address.resolve(), Proxy::resolve);
    sockets.map_err(RemoteError::Connection)
}

/// Connects to the first of these addresses that accepts.
pub(super) fn connect_any(sockets: &[SocketAddr], limit: Limit<'_>) -> Result<TcpStream, RemoteError> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for socket in sockets {
        match connect(socket, limit)? {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(RemoteError::Connection(last))
}

/// Connects to a server, with calls that wait at most a [`TICK`].
fn connect(address: &SocketAddr, limit: Limit<'_>) -> Result<io::Result<TcpStream>, RemoteError> {
    let connected = || {
        let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
        let _ = socket.set_tcp_nodelay(true);
        socket.set_nonblocking(true)?;
        match socket.connect(&(*address).into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(socket),
        }
    };
    let socket = match connected() {
        Ok(socket) => socket,
        Err(error) => return Ok(Err(error)),
    };
    while !is_writable(&socket) {
        limit.check()?;
    }
    let ready = || match socket.take_error()? {
        Some(error) => Err(error),
        None => {
            socket.set_nonblocking(false)?;
            socket.set_read_timeout(Some(TICK))?;
            socket.set_write_timeout(Some(TICK))
        }
    };
    Ok(ready().map(|()| socket.into()))
}

/// Waits at most a [`TICK`] until a connection is made, or has failed.
fn is_writable(socket: &Socket) -> bool {
    let mut list = [libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 }];
    // SAFETY: the list outlives the call.
    let count = unsafe { libc::poll(list.as_mut_ptr(), 1, TICK.as_millis() as c_int) };
    count > 0
}

/// Returns whether neither bytes nor the end of the stream have arrived.
fn has_nothing(stream: &TcpStream) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `byte` outlives the call.
    let found = unsafe { libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    found < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

/// Receives up to `len_bytes` that have arrived. If none have, waits for all of them, but not much longer than a [`TICK`].
fn receive_into(stream: &TcpStream, batch: &mut Batch, len_bytes: usize) -> Result<usize, RemoteError> {
    match receive_flagged(stream, batch, len_bytes, libc::MSG_DONTWAIT)? {
        0 => {
            acknowledge(stream);
            receive_flagged(stream, batch, len_bytes, libc::MSG_WAITALL)
        }
        count => Ok(count),
    }
}

/// Receives up to `len_bytes`. Returns 0 if none arrive within the time that the flags give.
fn receive_flagged(
    stream: &TcpStream,
    batch: &mut Batch,
    len_bytes: usize,
    flags: c_int,
) -> Result<usize, RemoteError> {
    let memory = batch.memory(len_bytes);
    // SAFETY: zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = memory.as_ptr().cast_mut();
    message.msg_iovlen = memory.len() as _;
    // SAFETY: the creator of the batch promised that its memory is valid, and no other code has it.
    let count = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, flags) };
    match usize::try_from(count) {
        Ok(0) => Err(closed()),
        Ok(count) => {
            batch.advance(count);
            Ok(count)
        }
        Err(_) => match io::Error::last_os_error() {
            error if is_tick(&error) => Ok(0),
            error => Err(RemoteError::Connection(error)),
        },
    }
}
