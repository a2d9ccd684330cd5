//! Objects of servers of HTTP: a request for each range, and what to do when one fails.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::address::Address;
use super::answer::{Answer, ContentRange, Version};
use super::connection::{Connection, connect_any};
use super::deadline::Deadline;
use super::error::RemoteError;
use super::policy::Policy;
use super::pool::{Pool, Server};
use super::probe::Probe;
use super::source::Source;
use super::target::Target;
use crate::error::Cause;
use crate::open_file::outcome::{Outcome, Stop};
use crate::open_file::{Object, Span};

/// The most redirects of one request.
const MOST_REDIRECTS: u32 = 10;

/// An object on a server, as it was when it was opened.
#[derive(Debug)]
pub(super) struct HttpObject {
    source: Source,
    /// The origin of the first address, which gets the headers of the policy.
    home: String,
    /// The address of the source, or one that the server redirected to.
    location: Mutex<Arc<Address>>,
    len_bytes: u64,
    version: Version,
    policy: Policy,
}

/// A failed try.
struct Failure {
    error: RemoteError,
    next: Next,
}

/// The step after a failed try.
enum Next {
    /// No try would do better.
    Stop,
    /// Another try after a wait, of the time that the server asks for.
    Wait(Option<Duration>),
    /// Another try at once, which does not count: the server had closed an old connection.
    Reconnect,
    /// Another try at another address.
    Redirected,
    /// Another try at a new address from the source.
    Renew,
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        let next = match error {
            RemoteError::Changed | RemoteError::Invalid { .. } | RemoteError::Certificate { .. } => {
                Next::Stop
            }
            _ => Next::Wait(None),
        };
        Self { error, next }
    }
}

/// An answer that has bytes of the range, and the connection on which they follow.
struct Reply {
    answer: Answer,
    server: Server,
    connection: Connection,
}

impl Reply {
    /// Keeps the connection for other requests, if the answer was received whole.
    fn end(self) {
        if let Some(pool) = Pool::of_process().filter(|_| self.answer.keeps_connection) {
            pool.put(self.server, self.connection);
        }
    }
}

impl HttpObject {
    /// Asks the server for the length and the version of an object.
    pub fn open(source: Source, policy: &Policy) -> Result<Self, RemoteError> {
        policy.check()?;
        let address = source.address()?;
        let mut object = Self {
            source,
            home: address.origin(),
            location: Mutex::new(Arc::new(address)),
            len_bytes: 0,
            version: Version::default(),
            policy: policy.clone(),
        };
        let (len_bytes, version) = object.repeat(|deadline| {
            let mut reply = object.ask(0, 1, deadline)?;
            let len_bytes = length_of(&reply.answer)?;
            let version = reply.answer.version.clone();
            if reply.connection.skip(reply.answer.body_bytes.unwrap_or(u64::MAX), deadline) {
                reply.end();
            }
            Ok((len_bytes, version))
        })?;
        (object.len_bytes, object.version) = (len_bytes, version);
        Ok(object)
    }

    #[cfg(feature = "formats")]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the ETag of the object, if the server sent one.
    pub fn etag(&self) -> Option<&str> {
        self.version.etag.as_deref()
    }

    /// Makes a new connection to the server, and ends it.
    pub fn probe(&self) -> Result<Probe, RemoteError> {
        let location = self.location().clone();
        let deadline = Deadline::after(self.policy.timeout);
        let start = Instant::now();
        let sockets = location.resolve().map_err(RemoteError::Connection)?;
        let resolved = Instant::now();
        let stream = connect_any(&sockets, deadline)?;
        let connected = Instant::now();
        Connection::of_stream(stream, &location, self.policy.trust.as_ref(), deadline)?;
        Ok(Probe {
            server: location.origin(),
            modified: self.version.modified.clone(),
            resolve: resolved - start,
            connect: connected - resolved,
            encrypt: location.is_encrypted().then(|| connected.elapsed()),
        })
    }

    /// Receives the next bytes of a range that begins at `offset`, until the target has `len_bytes`.
    fn receive(
        &self,
        offset: u64,
        len_bytes: usize,
        target: &mut Target<'_>,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        while target.done_bytes() < len_bytes {
            let (start, left) = (offset + target.done_bytes() as u64, len_bytes - target.done_bytes());
            let mut reply = self.ask(start, left as u64, deadline)?;
            let count = self.check(&reply.answer, start, left)?;
            reply.connection.receive(target, count, deadline)?;
            reply.end();
        }
        Ok(())
    }

    /// Returns the number of bytes that an answer has from `start` on, at most `most_bytes`.
    fn check(&self, answer: &Answer, start: u64, most_bytes: usize) -> Result<usize, RemoteError> {
        let wrong = |what: &str| Err(RemoteError::answer(format!("{what} for the bytes from {start} on")));
        match answer.range {
            Some(ContentRange { total_bytes: Some(total), .. }) if total != self.len_bytes => {
                Err(RemoteError::Changed)
            }
            _ if answer.status == 200 => wrong("it has the whole object (status 200)"),
            _ if answer.status != 206 => wrong("it has no bytes (status 416)"),
            _ if answer.version != self.version => Err(RemoteError::Changed),
            _ if answer.is_encoded => wrong("its bytes are encoded"),
            Some(ContentRange { bytes: Some((first, last)), .. })
                if first == start && last - first < most_bytes as u64 =>
            {
                let count = last - first + 1;
                match answer.body_bytes {
                    Some(body_bytes) if body_bytes != count => wrong("its length is not that of its range"),
                    _ => Ok(count as usize),
                }
            }
            _ => wrong("it has another range"),
        }
    }

    /// Sends a request for a range. Returns the answer if it has bytes, or says that there are none.
    fn ask(&self, start: u64, len_bytes: u64, deadline: Deadline) -> Result<Reply, Failure> {
        let location = self.location().clone();
        let origin = location.origin();
        let server =
            Server { origin: origin.clone(), trust: self.policy.trust.as_ref().map(|trust| trust.number) };
        let pooled = Pool::of_process().and_then(|pool| pool.take(&server));
        let is_pooled = pooled.is_some();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => Connection::new(&location, self.policy.trust.as_ref(), deadline)?,
        };
        let request = self.request(&location, &origin, start, len_bytes);
        let answer = match connection.ask(request.as_bytes(), deadline) {
            Ok(answer) => answer,
            Err(error @ RemoteError::Connection(_)) if is_pooled => {
                return Err(Failure { error, next: Next::Reconnect });
            }
            Err(error) => return Err(error.into()),
        };
        let body_bytes = answer.body_bytes.filter(|_| !answer.is_encoded);
        match answer.status {
            200 | 206 | 416 => Ok(Reply { answer, server, connection }),
            _ => {
                let failure = self.refused(&location, &answer);
                // A connection on which an error was reported serves the next try, too.
                if body_bytes.is_some_and(|bytes| connection.skip(bytes, deadline)) {
                    Reply { answer, server, connection }.end();
                }
                Err(failure)
            }
        }
    }

    fn request(&self, location: &Address, origin: &str, start: u64, len_bytes: u64) -> String {
        let (target, host, last) = (location.target(), location.host(), start + len_bytes - 1);
        let mut request = format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nRange: bytes={start}-{last}\r\nAccept-Encoding: identity\r\n\
             User-Agent: gpufile/{}\r\n",
            env!("CARGO_PKG_VERSION")
        );
        self.version.write_condition(&mut request);
        if origin == self.home {
            for (name, value) in &self.policy.headers {
                request.extend([name, ": ", value, "\r\n"]);
            }
        }
        request + "\r\n"
    }

    /// Returns the failure that an answer without bytes means.
    fn refused(&self, location: &Arc<Address>, answer: &Answer) -> Failure {
        let status = answer.status;
        if let (301 | 302 | 303 | 307 | 308, Some(to)) = (status, &answer.location) {
            return match location.redirected(to) {
                Ok(to) => {
                    *self.location() = Arc::new(to);
                    let error = RemoteError::answer(format!("it redirects more than {MOST_REDIRECTS} times"));
                    Failure { error, next: Next::Redirected }
                }
                Err(error) => Failure { error, next: Next::Stop },
            };
        }
        if status == 412 {
            return RemoteError::Changed.into();
        }
        let reason = match status {
            401 | 407 => ", which asks for credentials",
            403 => ", which permits no access; signed addresses and credentials expire",
            404 | 410 => ", which means that there is no such object",
            429 => ", which means too many requests",
            503 => ", which means that it is busy",
            _ => "",
        };
        let error = RemoteError::Status { status, reason };
        if self.policy.statuses.contains(&status) {
            return Failure { error, next: Next::Wait(answer.retry_after) };
        }
        // The address, or the one to which the server redirected, may be signed and have expired.
        let next = if self.source.can_replace(location) { Next::Renew } else { Next::Stop };
        Failure { error, next }
    }

    /// Repeats a request until it succeeds, or no more tries are left.
    fn repeat<T>(&self, mut ask: impl FnMut(Deadline) -> Result<T, Failure>) -> Result<T, RemoteError> {
        let (mut tries, mut redirects, mut is_renewed) = (1, 0, false);
        loop {
            let Failure { error, next } = match ask(Deadline::after(self.policy.timeout)) {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            match next {
                Next::Reconnect => {}
                Next::Renew if !is_renewed => {
                    let address = self.source.address()?;
                    *self.location() = Arc::new(address);
                    is_renewed = true;
                }
                Next::Redirected if redirects < MOST_REDIRECTS => redirects += 1,
                Next::Wait(asked) if tries < self.policy.tries => {
                    let wait = asked.unwrap_or(self.policy.wait * (1 << (tries - 1).min(16)));
                    thread::sleep(wait.min(self.policy.timeout));
                    tries += 1;
                }
                _ => return Err(error),
            }
        }
    }

    fn location(&self) -> MutexGuard<'_, Arc<Address>> {
        self.location.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the length of an object, from the first answer of its server.
fn length_of(answer: &Answer) -> Result<u64, RemoteError> {
    let no_ranges = || RemoteError::answer("the server sends no ranges");
    match answer {
        Answer { is_encoded: true, .. } => Err(RemoteError::answer("its bytes are encoded")),
        Answer { status: 206, body_bytes: Some(other), .. } if *other != 1 => {
            Err(RemoteError::answer("its length is not that of its range"))
        }
        // An empty object has no range.
        Answer { status: 200, body_bytes: Some(0), .. } => Ok(0),
        Answer {
            status: 206,
            range: Some(ContentRange { bytes: Some((0, 0)), total_bytes: Some(total) }),
            ..
        } => Ok(*total),
        Answer { status: 206, range: Some(ContentRange { total_bytes: None, .. }), .. } => {
            Err(RemoteError::answer("the server does not know the length of the object"))
        }
        Answer { status: 416, range: Some(ContentRange { bytes: None, total_bytes: Some(0) }), .. } => Ok(0),
        Answer { status: 206, .. } => Err(RemoteError::answer("it has another range than the first byte")),
        _ => Err(no_ranges()),
    }
}

impl Object for HttpObject {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    unsafe fn read(&self, spans: &[Span]) -> Outcome {
        let offset = spans.first().map_or(0, |span| span.offset);
        let asked: usize = spans.iter().map(|span| span.len_bytes).sum();
        let there = self.len_bytes.saturating_sub(offset);
        let len_bytes = usize::try_from(there).map_or(asked, |there| there.min(asked));
        // SAFETY: the caller's promise.
        let mut target = unsafe { Target::new(spans) };
        let received = self.repeat(|deadline| self.receive(offset, len_bytes, &mut target, deadline));
        received.map_err(|error| Stop::failed(target.done_bytes(), Cause::from(error)))?;
        if len_bytes < asked { Err(Stop::end_of_file(len_bytes)) } else { Ok(()) }
    }
}
