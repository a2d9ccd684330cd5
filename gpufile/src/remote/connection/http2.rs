//! A connection of HTTP/2, by the crate h2. The requests on it are those of one read, and their bodies are received in the
//! order of the requests, as with HTTP/1.1.
//!
//! No thread and no runtime of its own drives a connection: the thread that reads polls it, and waits for the socket.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::{HeaderValue, Method, Uri, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::batch::Batch;
use super::super::error::{RemoteError, closed};
use super::answer::Answer;
use super::limit::Limit;
use super::request::Request;
use super::tls::Encrypted;

/// The most bytes of a body that may be on their way, or wait until those before them were received.
const STREAM_BYTES: u32 = 4 << 20;
/// The same of all bodies. It exceeds the sum of the requests, so that the next body always goes on.
const CONNECTION_BYTES: u32 = 2 * STREAM_BYTES;
/// The most bytes of one part of a body.
const FRAME_BYTES: u32 = 1 << 20;
/// The most bytes of the head of an answer.
const MOST_HEAD_BYTES: u32 = 64 << 10;
/// The most bytes that are taken from the socket before they are used. The caches of a processor have room for them.
const TURN_BYTES: usize = 256 << 10;

/// A connection, and the answers that are to come on it.
pub(crate) struct Http2 {
    driver: Connection<Wire, Bytes>,
    requests: SendRequest<Bytes>,
    turn: Arc<Turn>,
    /// The requests that the server does not take yet, because it limits how many are open.
    unsent: VecDeque<http::Request<()>>,
    /// The requests that were sent and have no answer yet, in their order.
    sent: VecDeque<ResponseFuture>,
    /// The body of the current answer. It stays until the next head arrives, because its end may come separately.
    body: Option<RecvStream>,
    /// Bytes of the body that were not used yet.
    rest: Bytes,
    /// The end of the connection. What arrived before it can still be received.
    end: Option<RemoteError>,
}

impl Http2 {
    /// The most bytes of all answers that may be on their way, if there are several. The server may send their parts in turn.
    pub const MOST_BYTES: u64 = 1 << 20;

    /// Begins to speak HTTP/2.
    pub fn new(encrypted: Encrypted, limit: Limit<'_>) -> Result<Self, RemoteError> {
        let turn = Arc::new(Turn::default());
        let wire = Wire { encrypted, turn: turn.clone() };
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_BYTES)
            .initial_connection_window_size(CONNECTION_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(MOST_HEAD_BYTES);
        let mut handshake = std::pin::pin!(builder.handshake(wire));
        let (requests, driver) = loop {
            limit.check()?;
            match handshake.as_mut().poll(&mut nobody()) {
                Poll::Ready(made) => break made.map_err(failed)?,
                Poll::Pending => {}
            }
        };
        Ok(Self {
            driver,
            requests,
            turn,
            unsent: VecDeque::new(),
            sent: VecDeque::new(),
            body: None,
            rest: Bytes::new(),
            end: None,
        })
    }

    /// Sends and receives what can be, and waits at most a [`TICK`](super::limit::TICK) if `coming` bytes are awaited.
    fn drive(&mut self, coming: usize) -> Result<(), RemoteError> {
        if self.end.is_some() {
            return Ok(());
        }
        // If the server takes no more, the answers to what it took come all the same.
        while !self.unsent.is_empty()
            && let Poll::Ready(Ok(())) = self.requests.poll_ready(&mut nobody())
            && let Some(request) = self.unsent.pop_front()
        {
            self.sent.push_back(self.requests.send_request(request, true).map_err(failed)?.0);
        }
        self.turn.coming.store(coming, Ordering::Relaxed);
        self.turn.left.store(TURN_BYTES, Ordering::Relaxed);
        if let Poll::Ready(ended) = Pin::new(&mut self.driver).poll(&mut nobody()) {
            self.end = Some(ended.map_or_else(failed, |()| closed()));
        }
        Ok(())
    }

    /// Returns the end of the connection, after all that arrived before it was used.
    fn check(&mut self) -> Result<(), RemoteError> {
        self.end.take().map_or(Ok(()), Err)
    }

    /// Returns whether the server takes another request.
    pub fn is_idle(&mut self) -> bool {
        self.rest.is_empty()
            && self.drive(0).and_then(|()| self.check()).is_ok()
            && matches!(self.requests.poll_ready(&mut nobody()), Poll::Ready(Ok(())))
    }

    /// Sends requests for these ranges.
    pub fn send(&mut self, request: &Request<'_>, ranges: &[Range<u64>]) -> Result<(), RemoteError> {
        for range in ranges {
            self.unsent.push_back(make(request, range)?);
        }
        self.drive(0)
    }

    /// Receives the head of the next answer, behind which `coming` bytes are known to come. Returns `None` if it does not
    /// arrive within a [`TICK`](super::limit::TICK).
    pub fn receive_head(&mut self, coming: usize) -> Result<Option<Answer>, RemoteError> {
        for coming in [0, coming.saturating_add(1)] {
            self.drive(coming)?;
            let Some(first) = self.sent.front_mut() else { continue };
            let Poll::Ready(response) = Pin::new(first).poll(&mut nobody()) else { continue };
            self.sent.pop_front();
            let response = response.map_err(failed)?;
            let answer = Answer::of_http2(&response)?;
            (self.body, self.rest) = (Some(response.into_body()), Bytes::new());
            return Ok(Some(answer));
        }
        if self.sent.is_empty()
            && let Poll::Ready(Err(error)) = self.requests.poll_ready(&mut nobody())
        {
            return Err(failed(error));
        }
        self.check().map(|()| None)
    }

    /// Receives up to `most_bytes` of a body, which has no less, into the memory of the batch. Returns 0 if none arrive
    /// within a [`TICK`](super::limit::TICK).
    pub fn receive(&mut self, batch: &mut Batch, most_bytes: usize) -> Result<usize, RemoteError> {
        let count = self.receive_some(most_bytes)?;
        batch.copy_from(&self.rest[..count]);
        self.release(count)
    }

    /// Receives up to `most_bytes` that are not needed. Returns 0 if none arrive within a
    /// [`TICK`](super::limit::TICK).
    pub fn drop_some(&mut self, most_bytes: usize) -> Result<usize, RemoteError> {
        let count = self.receive_some(most_bytes)?;
        self.release(count)
    }

    /// Receives a part of a body if there is none. Returns its length, or `most_bytes` if that is less.
    fn receive_some(&mut self, most_bytes: usize) -> Result<usize, RemoteError> {
        let mut polls = [0, most_bytes].into_iter();
        while self.rest.is_empty() {
            let Some(body) = &mut self.body else { return Err(closed()) };
            match body.poll_data(&mut nobody()) {
                Poll::Ready(Some(bytes)) => self.rest = bytes.map_err(failed)?,
                Poll::Ready(None) => return Err(closed()),
                Poll::Pending => match polls.next() {
                    Some(coming) => self.drive(coming)?,
                    None => return self.check().map(|()| 0),
                },
            }
        }
        Ok(self.rest.len().min(most_bytes))
    }

    /// Lets the server send as many bytes as were used.
    fn release(&mut self, count: usize) -> Result<usize, RemoteError> {
        self.rest.advance(count);
        if let Some(body) = &mut self.body {
            body.flow_control().release_capacity(count).map_err(failed)?;
        }
        Ok(count)
    }

    /// Ends the current answer, whose body is not needed. Returns whether the connection can be used again.
    pub fn skip(&mut self) -> bool {
        (self.body, self.rest) = (None, Bytes::new());
        self.drive(0).is_ok()
    }
}

impl fmt::Debug for Http2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2")
            .field("waiting", &(self.sent.len() + self.unsent.len()))
            .finish_non_exhaustive()
    }
}

/// Makes a request for a range.
fn make(request: &Request<'_>, range: &Range<u64>) -> Result<http::Request<()>, RemoteError> {
    let invalid = |error: &dyn fmt::Display| RemoteError::Invalid { reason: error.to_string() };
    let address = &request.address;
    let uri = Uri::builder().scheme("https").authority(address.host()).path_and_query(address.target());
    let mut made = http::Request::builder()
        .method(Method::GET)
        .version(Version::HTTP_2)
        .uri(uri.build().map_err(|error| invalid(&error))?)
        .header("range", format!("bytes={}-{}", range.start, range.end - 1));
    for (name, value) in &request.headers {
        let mut value = HeaderValue::from_str(value).map_err(|error| invalid(&error))?;
        // Those that may be secret are in no table that attackers could guess at.
        value.set_sensitive(!["Accept-Encoding", "User-Agent"].contains(name));
        made = made.header(*name, value);
    }
    made.body(()).map_err(|error| invalid(&error))
}

/// Returns the failure of a connection or of one answer.
fn failed(error: h2::Error) -> RemoteError {
    match error.reason() {
        Some(Reason::PROTOCOL_ERROR | Reason::COMPRESSION_ERROR | Reason::FRAME_SIZE_ERROR) => {
            RemoteError::answer(format!("no HTTP/2: {error}"))
        }
        _ if error.is_io() => {
            RemoteError::Connection(error.into_io().unwrap_or_else(|| ErrorKind::Other.into()))
        }
        _ => RemoteError::Connection(io::Error::other(error)),
    }
}

/// Returns a context for polls that are repeated anyway.
fn nobody() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// The limits of one poll of a connection.
#[derive(Debug, Default)]
struct Turn {
    /// The number of bytes that are awaited. 0 if the poll does not wait.
    coming: AtomicUsize,
    /// The number of bytes that may be received.
    left: AtomicUsize,
}

/// The encrypted bytes of a connection.
struct Wire {
    encrypted: Encrypted,
    turn: Arc<Turn>,
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { encrypted, turn } = self.get_mut();
        let most = buf.remaining().min(turn.left.load(Ordering::Relaxed));
        if most == 0 {
            return Poll::Pending;
        }
        // After the first bytes, a poll no longer waits.
        let coming = turn.coming.swap(0, Ordering::Relaxed);
        let received = encrypted.receive(coming, |bytes| {
            let some = &bytes[..bytes.len().min(most)];
            buf.put_slice(some);
            turn.left.fetch_sub(some.len(), Ordering::Relaxed);
            some.len()
        });
        if received.map_err(into_io)? { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = self.get_mut().encrypted.send_at_once(bytes);
        Poll::Ready(sent.map(|()| bytes.len()).map_err(into_io))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn into_io(error: RemoteError) -> io::Error {
    match error {
        RemoteError::Connection(error) => error,
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::address::Address;
    use super::*;

    #[test]
    fn requests_name_any_address_that_http1_names() {
        let every: String = (' '..='~').filter(|letter| !['/', '\\', '?', '#'].contains(letter)).collect();
        let text = format!("https://example.org:8443/{every}ü?{every}ü");
        let address = Arc::new(Address::parse(&text).unwrap());
        let request = Request::new(address.clone(), vec![("If-Match", "\"ü\""), ("X-Key", "secret")], None);
        let made = make(&request, &(3..10)).unwrap();
        assert_eq!(made.uri().path_and_query().unwrap().as_str(), address.target());
        assert_eq!(made.uri().authority().unwrap().as_str(), "example.org:8443");
        assert_eq!(made.headers()["range"], "bytes=3-9");
        assert!(made.headers()["x-key"].is_sensitive() && made.headers()["if-match"].is_sensitive());
    }
}
