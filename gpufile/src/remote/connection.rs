//! One connection to a server. Bytes that follow the head of an answer go to the memory of the caller as they arrive.

use std::io::{self, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::address::Address;
use super::answer::Answer;
use super::error::RemoteError;
use super::target::Target;

/// The number of bytes that are received with the head of an answer. They include the first bytes of the body, which are
/// copied once more from there.
const HEAD_BYTES: usize = 4 << 10;
/// The longest head in bytes.
const MOST_HEAD_BYTES: usize = 64 << 10;

/// The end of the time for one try.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    pub fn after(timeout: Duration) -> Self {
        Self { at: Instant::now() + timeout, timeout }
    }

    /// Returns the time that is left, which is not zero.
    fn left(&self) -> Result<Duration, RemoteError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(RemoteError::deadline(self.timeout)) } else { Ok(left) }
    }

    /// Returns the error of a call that waited as long as was left.
    fn error(&self, error: io::Error) -> RemoteError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => RemoteError::deadline(self.timeout),
            _ => RemoteError::Connection(error),
        }
    }
}

/// A connection, and the bytes that arrived on it and were not used yet.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    /// Connects to one of the server's addresses.
    pub fn new(address: &Address, deadline: Deadline) -> Result<Self, RemoteError> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for socket in address.resolve().map_err(RemoteError::Connection)? {
            match Self::connect(&socket, deadline.left()?) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(deadline.error(last))
    }

    fn connect(socket: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(socket, timeout)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Returns whether the server has sent nothing since the last answer, not even the end of the connection.
    pub fn is_idle(&self) -> bool {
        let mut byte = 0_u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: `byte` outlives the call.
        let found = unsafe { libc::recv(self.stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
        self.received.is_empty()
            && found < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    }

    /// Sends a request, and receives the head of the answer.
    pub fn ask(&mut self, request: &[u8], deadline: Deadline) -> Result<Answer, RemoteError> {
        self.stream.set_write_timeout(Some(deadline.left()?)).map_err(RemoteError::Connection)?;
        self.stream.write_all(request).map_err(|error| deadline.error(error))?;
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
            self.received.resize(before + HEAD_BYTES, 0);
            let read = self.read(deadline, before);
            self.received.truncate(before + *read.as_ref().unwrap_or(&0));
            read?;
        }
    }

    /// Receives bytes behind those that were received before.
    fn read(&mut self, deadline: Deadline, before: usize) -> Result<usize, RemoteError> {
        self.wait_at_most(deadline)?;
        loop {
            match self.stream.read(&mut self.received[before..]) {
                Ok(0) => return Err(closed()),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(deadline.error(error)),
            }
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
        let mut left = len_bytes - early;
        while left > 0 {
            self.wait_at_most(deadline)?;
            let memory = target.memory(left);
            // SAFETY: zeros are valid.
            let mut message: libc::msghdr = unsafe { mem::zeroed() };
            message.msg_iov = memory.as_ptr().cast_mut();
            message.msg_iovlen = memory.len() as _;
            // SAFETY: the owner of the target keeps its memory, and nothing else uses it.
            let count = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut message, libc::MSG_WAITALL) };
            match usize::try_from(count) {
                Ok(0) => return Err(closed()),
                Ok(count) => {
                    target.advance(count);
                    left -= count;
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(deadline.error(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// Receives the rest of an answer that is not needed, if it is short. Returns whether the connection can be used
    /// again.
    pub fn skip(&mut self, body_bytes: u64, deadline: Deadline) -> bool {
        let mut left = body_bytes;
        while left > 0 && body_bytes <= MOST_HEAD_BYTES as u64 {
            if self.received.is_empty() {
                self.received.resize(HEAD_BYTES, 0);
                let read = self.read(deadline, 0);
                self.received.truncate(*read.as_ref().unwrap_or(&0));
                if read.is_err() {
                    return false;
                }
            }
            let some = self.received.len().min(left as usize);
            self.received.drain(..some);
            left -= some as u64;
        }
        left == 0
    }

    /// Limits the wait of the next call that receives bytes.
    fn wait_at_most(&self, deadline: Deadline) -> Result<(), RemoteError> {
        self.stream.set_read_timeout(Some(deadline.left()?)).map_err(RemoteError::Connection)
    }
}

/// Returns the error of a server that closed the connection too early.
fn closed() -> RemoteError {
    RemoteError::Connection(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it too early"))
}
