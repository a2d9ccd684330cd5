//! One connection to a server. Bytes that follow the head of an answer go to the memory of the caller as they arrive.

use std::io::{self, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::address::Address;
use super::answer::Answer;
use super::deadline::Deadline;
use super::error::{RemoteError, closed};
use super::target::Target;
use super::tls::{Encrypted, Trust};

/// The number of bytes that are received with the head of an answer. They include the first bytes of the body, which are
/// copied once more from there.
const HEAD_BYTES: usize = 4 << 10;
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
    /// Connects to one of the server's addresses.
    pub fn new(address: &Address, trust: Option<&Trust>, deadline: Deadline) -> Result<Self, RemoteError> {
        let sockets = address.resolve().map_err(RemoteError::Connection)?;
        Self::of_stream(connect_any(&sockets, deadline)?, address, trust, deadline)
    }

    /// Makes a connection of a stream to the server, which it encrypts if the address says so.
    pub fn of_stream(
        stream: TcpStream,
        address: &Address,
        trust: Option<&Trust>,
        deadline: Deadline,
    ) -> Result<Self, RemoteError> {
        let stream = match address.is_encrypted() {
            true => {
                let trust = trust.cloned().unwrap_or_else(Trust::of_machine);
                Stream::Encrypted(Box::new(Encrypted::new(stream, address.name(), &trust, deadline)?))
            }
            false => Stream::Plain(stream),
        };
        Ok(Self { stream, received: Vec::new() })
    }

    /// Returns whether the server has sent nothing since the last answer, not even the end of the connection.
    pub fn is_idle(&mut self) -> bool {
        self.received.is_empty()
            && match &mut self.stream {
                Stream::Plain(stream) => has_nothing(stream),
                Stream::Encrypted(encrypted) => encrypted.has_nothing() && has_nothing(encrypted.stream()),
            }
    }

    /// Sends a request, and receives the head of the answer.
    pub fn ask(&mut self, request: &[u8], deadline: Deadline) -> Result<Answer, RemoteError> {
        match &mut self.stream {
            Stream::Plain(stream) => {
                deadline.limit_sending(stream)?;
                stream.write_all(request).map_err(|error| deadline.error(error))?;
            }
            Stream::Encrypted(encrypted) => encrypted.send(request, deadline)?,
        }
        loop {
            let answer = self.receive_head(deadline)?;
            // Interim answers come before the real one.
            if !(100..200).contains(&answer.status) {
                return Ok(answer);
            }
        }
    }

    fn receive_head(&mut self, deadline: Deadline) -> Result<Answer, RemoteError> {
        loop {
            if let Some((answer, len_bytes)) = Answer::parse(&self.received)? {
                self.received.drain(..len_bytes);
                return Ok(answer);
            }
            let before = self.received.len();
            if before >= MOST_HEAD_BYTES {
                return Err(RemoteError::answer("its head is longer than 64 KiB"));
            }
            self.receive_some(deadline)?;
        }
    }

    /// Receives bytes, and keeps them behind those that were received before.
    fn receive_some(&mut self, deadline: Deadline) -> Result<(), RemoteError> {
        let received = &mut self.received;
        let stream = match &mut self.stream {
            Stream::Plain(stream) => stream,
            Stream::Encrypted(encrypted) => {
                return encrypted.receive(deadline, |bytes| {
                    let some = &bytes[..bytes.len().min(HEAD_BYTES)];
                    received.extend_from_slice(some);
                    some.len()
                });
            }
        };
        deadline.limit_receiving(stream)?;
        let before = received.len();
        received.resize(before + HEAD_BYTES, 0);
        let read = stream.read(&mut received[before..]);
        received.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(closed()),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(deadline.error(error)),
            _ => Ok(()),
        }
    }

    /// Receives the next `len_bytes` of a body into the target.
    pub fn receive(
        &mut self,
        target: &mut Target<'_>,
        len_bytes: usize,
        deadline: Deadline,
    ) -> Result<(), RemoteError> {
        let early = len_bytes.min(self.received.len());
        target.copy_from(&self.received[..early]);
        self.received.drain(..early);
        let end = target.done_bytes() + len_bytes - early;
        while target.done_bytes() < end {
            let left = end - target.done_bytes();
            match &mut self.stream {
                Stream::Plain(stream) => receive_into(stream, target, left, deadline)?,
                Stream::Encrypted(encrypted) => encrypted.receive(deadline, |bytes| {
                    let some = &bytes[..bytes.len().min(left)];
                    target.copy_from(some);
                    some.len()
                })?,
            }
        }
        Ok(())
    }

    /// Receives the rest of an answer that is not needed, if it is short. Returns whether the connection can be used
    /// again.
    pub fn skip(&mut self, body_bytes: u64, deadline: Deadline) -> bool {
        let mut left = body_bytes;
        while left > 0 && body_bytes <= MOST_HEAD_BYTES as u64 {
            if self.received.is_empty() && self.receive_some(deadline).is_err() {
                return false;
            }
            let some = self.received.len().min(left as usize);
            self.received.drain(..some);
            left -= some as u64;
        }
        left == 0
    }
}

/// Connects to the first of these addresses that accepts.
pub(super) fn connect_any(sockets: &[SocketAddr], deadline: Deadline) -> Result<TcpStream, RemoteError> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for socket in sockets {
        match connect(socket, deadline.left()?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(deadline.error(last))
}

fn connect(socket: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(socket, timeout)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns whether neither bytes nor the end of the stream have arrived.
fn has_nothing(stream: &TcpStream) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `byte` outlives the call.
    let found = unsafe { libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    found < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

/// Receives up to `len_bytes`, and waits for all of them until the deadline.
fn receive_into(
    stream: &TcpStream,
    target: &mut Target<'_>,
    len_bytes: usize,
    deadline: Deadline,
) -> Result<(), RemoteError> {
    deadline.limit_receiving(stream)?;
    let memory = target.memory(len_bytes);
    // SAFETY: zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = memory.as_ptr().cast_mut();
    message.msg_iovlen = memory.len() as _;
    // SAFETY: the creator of the target promised that its memory is valid, and no other code has it.
    let count = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_WAITALL) };
    match usize::try_from(count) {
        Ok(0) => Err(closed()),
        Ok(count) => {
            target.advance(count);
            Ok(())
        }
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(deadline.error(error)),
        },
    }
}
