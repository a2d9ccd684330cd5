//! A connection of TCP, whose calls wait at most a [`TICK`].

use std::ffi::c_int;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, Type};

use super::limit::{Limit, TICK};
use crate::error::RemoteError;

/// The most time for an address that is not the last one.
const MOST_CONNECTING: Duration = Duration::from_secs(1);

/// The most bytes that a thread waits for at a time, so that not each segment wakes it.
const MOST_AWAITED: usize = 512 << 10;

#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    /// The number of bytes that end a wait.
    awaited: usize,
}

impl Socket {
    /// Connects to the first of these addresses that accepts. None takes all of the time: one may not answer, as where IPv6
    /// is broken, but the next does.
    pub fn connect(addresses: &[SocketAddr], limit: Limit<'_>) -> Result<Self, RemoteError> {
        let mut last = RemoteError::Connection(io::ErrorKind::AddrNotAvailable.into());
        for (number, address) in addresses.iter().enumerate() {
            let own = match addresses.len() - number {
                1 => limit,
                left => limit.part(left).at_most(MOST_CONNECTING),
            };
            match connect(address, own) {
                Ok(Ok(stream)) => return Ok(Self { stream, awaited: 1 }),
                Ok(Err(error)) => last = RemoteError::Connection(error),
                Err(error) => last = error,
            }
            limit.check()?;
        }
        Err(last)
    }

    pub fn send(&mut self, mut bytes: &[u8], limit: Limit<'_>) -> Result<(), RemoteError> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_nothing(&error) => {
                    limit.check()?;
                    wait(&self.stream, libc::POLLOUT);
                }
                Err(error) => return Err(RemoteError::Connection(error)),
            }
        }
        Ok(())
    }

    /// Sends a few bytes, which fit into what the kernel buffers.
    pub fn send_at_once(&mut self, bytes: &[u8]) -> Result<(), RemoteError> {
        self.stream.write_all(bytes).map_err(RemoteError::Connection)
    }

    /// Receives bytes, of which `coming` are known to come. Returns 0 if none arrive within a [`TICK`], or have arrived if
    /// `coming` is 0.
    pub fn receive(&mut self, buffer: &mut [u8], coming: usize) -> Result<usize, RemoteError> {
        self.receive_with(coming, |mut stream| stream.read(buffer))
    }

    /// As [`receive`](Self::receive), with a call that does not wait, and may be repeated.
    pub fn receive_with(
        &mut self,
        coming: usize,
        mut call: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Result<usize, RemoteError> {
        let mut has_waited = coming == 0;
        loop {
            match call(&self.stream) {
                Ok(0) => return Err(RemoteError::closed()),
                Ok(count) => return Ok(count),
                Err(error) if !is_nothing(&error) => return Err(RemoteError::Connection(error)),
                Err(_) if has_waited => return Ok(0),
                Err(_) => self.await_bytes(coming),
            }
            has_waited = true;
        }
    }

    /// Waits at most a [`TICK`] until `count` bytes or the end of the stream have arrived.
    fn await_bytes(&mut self, count: usize) {
        let awaited = count.min(MOST_AWAITED);
        if self.awaited != awaited {
            let value = awaited as c_int;
            // SAFETY: `value` outlives the call, and its length is right.
            let status = unsafe {
                libc::setsockopt(
                    self.stream.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_RCVLOWAT,
                    (&raw const value).cast(),
                    size_of_val(&value) as _,
                )
            };
            if status == 0 {
                self.awaited = awaited;
            }
        }
        // Some servers hold back the last bytes of an answer until all others are acknowledged, which otherwise takes 40 ms:
        // nginx with `tcp_nopush`, and those that send the head and the body separately.
        let _ = SockRef::from(&self.stream).set_tcp_quickack(true);
        wait(&self.stream, libc::POLLIN);
    }

    /// Returns whether neither bytes nor the end of the stream have arrived.
    pub fn has_nothing(&self) -> bool {
        let peeked = self.stream.peek(&mut [0]);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Returns whether a call did nothing because it would wait.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn connect(address: &SocketAddr, limit: Limit<'_>) -> Result<io::Result<TcpStream>, RemoteError> {
    let connected = || {
        let socket = RawSocket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
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
    while !wait(&socket, libc::POLLOUT) {
        limit.check()?;
    }
    Ok(socket.take_error().and_then(|error| error.map_or(Ok(()), Err)).map(|()| socket.into()))
}

/// Waits at most a [`TICK`] until one of these events has happened, or an error. Returns whether it has.
fn wait(socket: &impl AsRawFd, events: i16) -> bool {
    let mut list = [libc::pollfd { fd: RawFd::from(socket.as_raw_fd()), events, revents: 0 }];
    // SAFETY: the list outlives the call.
    let count = unsafe { libc::poll(list.as_mut_ptr(), 1, TICK.as_millis() as c_int) };
    count > 0
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn addresses_that_do_not_answer_leave_time_for_the_next() {
        // A listener whose queue is full drops further connections.
        let full = RawSocket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        full.listen(0).unwrap();
        let silent = full.local_addr().unwrap().as_socket().unwrap();
        let queued: Vec<_> = (0..3)
            .map(|_| {
                let socket = RawSocket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&silent.into());
                socket
            })
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let start = Instant::now();
        let limit = Limit::after(Duration::from_secs(20), &|| false);
        let socket = Socket::connect(&[silent, silent, good], limit).unwrap();
        assert_eq!(socket.stream.peer_addr().unwrap(), good);
        assert!(start.elapsed() > MOST_CONNECTING, "the first address answered");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let short = Limit::after(Duration::from_millis(50), &|| false);
        assert!(matches!(Socket::connect(&[silent, silent], short), Err(RemoteError::Deadline { .. })));
        drop(queued);
    }
}
