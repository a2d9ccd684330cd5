//! Objects of servers of HTTP: the tries of a read, and what to do when one fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::address::Address;
use super::batch::Batch;
use super::connection::answer::Answer;
use super::connection::limit::{Limit, sleep};
use super::connection::request::Request;
use super::connection::server::Server;
use super::connection::socket::Socket;
use super::connection::{Connection, resolve};
use super::exchange::facts::Facts;
use super::exchange::race;
use super::exchange::times::Times;
use super::exchange::{Broken, Exchange, Terms};
use super::policy::Policy;
use super::probe::Probe;
use super::said::said;
use super::source::Source;
use crate::error::RemoteError;
use crate::storage::{Error, Spans, Storage};
use cufile::fork::Mutex;

/// The name of the program in each request.
const USER_AGENT: &str = concat!("gpufile/", env!("CARGO_PKG_VERSION"));
/// The most bytes of a part of a long read from a near server. Those of all threads fit into a processor's caches.
const NEAR_BYTES: usize = 2 << 20;
/// The most redirects of one request.
const MOST_REDIRECTS: u32 = 10;

/// An object on a server, as it was when it was opened.
#[derive(Debug)]
pub(super) struct HttpObject {
    source: Source,
    /// The origin of the first address, which gets the headers of the policy.
    home: String,
    first: Arc<Address>,
    /// The address of a redirect, or a later one of the source. A forked child begins with the first.
    location: Mutex<Option<Arc<Address>>>,
    facts: Facts,
    times: Times,
    policy: Policy,
    /// True if requests do not name the version, as for servers that weaken ETags. Answers are still compared with it.
    is_unconditional: AtomicBool,
}

struct Failure {
    error: RemoteError,
    next: Next,
}

enum Next {
    /// No try would do better.
    Stop,
    /// Another try after a wait, of the time that the server asks for.
    Wait(Option<Duration>),
    /// Another try at once, which does not count: the server closed the connection between two answers.
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
            // That of a proxy, such as a missing password.
            RemoteError::Status { status: 400..500, .. } => Next::Stop,
            _ => Next::Wait(None),
        };
        Self { error, next }
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
            first: Arc::new(address),
            location: Mutex::default(),
            facts: Facts::default(),
            times: Times::default(),
            policy: policy.clone(),
            is_unconditional: AtomicBool::new(false),
        };
        object.facts = object.repeat(&|| false, |terms, limit| {
            let mut exchange = Exchange::begin(terms, Default::default(), *limit)?;
            let answer = exchange.ask(0..1, *limit)?;
            let body = exchange.end_with(&answer, *limit);
            match answer.status {
                200 | 206 | 416 => Ok(Facts::of_first(&answer, &body)?),
                _ => Err(Broken::Refused(Box::new(answer), body)),
            }
        })?;
        Ok(object)
    }

    /// Returns whether the server answers soon.
    pub fn is_near(&self) -> bool {
        self.times.are_near()
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    pub fn origin(&self) -> &str {
        &self.home
    }

    /// Returns the ETag of the object, if the server sent one.
    pub fn etag(&self) -> Option<&str> {
        self.facts.version.etag.as_deref()
    }

    /// Makes a new connection to the server, and ends it.
    pub fn probe(&self) -> Result<Probe, RemoteError> {
        let location = self.location();
        let limit = Limit::after(self.policy.timeout, &|| false);
        let start = Instant::now();
        let server = self.server(&location)?;
        let sockets = resolve(&location, &server, limit)?;
        let resolved = Instant::now();
        let socket = Socket::connect(&sockets, limit)?;
        let connected = Instant::now();
        Connection::of_socket(socket, &location, &server, self.policy.trust.as_ref(), limit)?;
        Ok(Probe {
            server: location.origin(),
            modified: self.facts.version.modified.clone(),
            resolve: resolved - start,
            connect: connected - resolved,
            encrypt: location.is_encrypted().then(|| connected.elapsed()),
        })
    }

    fn server(&self, address: &Address) -> Result<Server, RemoteError> {
        let Policy { proxies, environment, trust, .. } = &self.policy;
        let (origin, proxy) = (address.origin(), proxies.choose(address, environment)?);
        Ok(Server { origin, trust: trust.as_ref().map(|trust| trust.number), proxy })
    }

    fn terms(&self) -> Result<Terms<'_>, RemoteError> {
        let address = self.location();
        let server = self.server(&address)?;
        let mut headers = vec![("Accept-Encoding", "identity"), ("User-Agent", USER_AGENT)];
        let is_conditional = !self.is_unconditional.load(Ordering::Relaxed);
        if is_conditional {
            headers.extend(self.facts.version.condition());
        }
        if server.origin == self.home {
            headers.extend(self.policy.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        }
        let request = Request::new(address, headers, server.proxy.as_ref());
        let trust = self.policy.trust.as_ref();
        let Self { facts, times, policy, .. } = self;
        let Policy { request_bytes, repeats_late, .. } = *policy;
        Ok(Terms { request, is_conditional, server, trust, facts, times, request_bytes, repeats_late })
    }

    /// Returns the failure of an answer without bytes.
    fn refused(&self, terms: &Terms<'_>, answer: &Answer, body: &[u8]) -> Failure {
        let (location, status) = (&terms.request.address, answer.status);
        if let (301 | 302 | 303 | 307 | 308, Some(to)) = (status, &answer.location) {
            return match location.redirected(to) {
                Ok(to) => {
                    *self.location.lock() = Some(Arc::new(to));
                    let error = RemoteError::answer(format!("it redirects more than {MOST_REDIRECTS} times"));
                    Failure { error, next: Next::Redirected }
                }
                Err(error) => Failure { error, next: Next::Stop },
            };
        }
        if status == 412 {
            // The version of the next answer is compared. Requests of other threads may be on their way with the condition.
            self.is_unconditional.store(true, Ordering::Relaxed);
            let next = if terms.is_conditional { Next::Reconnect } else { Next::Stop };
            return Failure { error: RemoteError::Changed, next };
        }
        let reason = match status {
            301 | 307 => ", which names another server; check the endpoint and the region",
            401 | 407 => ", which asks for credentials",
            403 => ", which permits no access; signed addresses and credentials expire",
            404 | 410 => ", which means that there is no such object",
            429 => ", which means too many requests",
            503 => ", which means that it is busy",
            _ => "",
        };
        let headers = self.policy.headers.iter().map(|(_, value)| value.as_str());
        let body = if answer.coding.is_some() { &[] } else { body };
        let said = said(&answer.clues, body, &location.secrets().chain(headers).collect::<Vec<_>>());
        let error = RemoteError::Status { status, reason, said };
        if self.policy.statuses.contains(&status) {
            return Failure { error, next: Next::Wait(answer.retry_after) };
        }
        // The address, or the one to which the server redirected, may be signed and have expired.
        let next = if self.source.can_replace(location, status) { Next::Renew } else { Next::Stop };
        Failure { error, next }
    }

    /// Repeats requests until they succeed, or no tries are left. Requests after a redirect or a closed connection share the
    /// limit of their try.
    fn repeat<T>(
        &self,
        is_cancelled: &dyn Fn() -> bool,
        mut ask: impl FnMut(&Terms<'_>, &mut Limit<'_>) -> Result<T, Broken>,
    ) -> Result<T, RemoteError> {
        let (mut tries, mut redirects, mut is_renewed) = (1, 0, false);
        let mut limit = Limit::after(self.policy.timeout, is_cancelled);
        loop {
            let terms = self.terms()?;
            let broken = match ask(&terms, &mut limit) {
                Ok(done) => return Ok(done),
                Err(broken) => broken,
            };
            if limit.take_progress() {
                // The request that failed is another one than before.
                (tries, redirects, is_renewed) = (1, 0, false);
            }
            let Failure { error, next } = match broken {
                Broken::Failed(error) => error.into(),
                Broken::Closed(error) => Failure { error, next: Next::Reconnect },
                Broken::Refused(answer, body) => self.refused(&terms, &answer, &body),
                Broken::Untrue(error) => Failure { error, next: Next::Stop },
            };
            match next {
                _ if is_cancelled() => return Err(error),
                Next::Reconnect => {}
                Next::Renew if !is_renewed => {
                    let address = self.source.address()?;
                    *self.location.lock() = Some(Arc::new(address));
                    (is_renewed, limit) = (true, limit.renewed());
                }
                Next::Redirected if redirects < MOST_REDIRECTS => redirects += 1,
                Next::Wait(asked) if tries < self.policy.tries => {
                    let wait = asked.unwrap_or(self.policy.wait * (1 << (tries - 1).min(16)));
                    sleep(wait.min(self.policy.timeout), is_cancelled);
                    (tries, limit) = (tries + 1, limit.renewed());
                }
                _ => return Err(error),
            }
        }
    }

    fn location(&self) -> Arc<Address> {
        self.location.lock().clone().unwrap_or_else(|| self.first.clone())
    }
}

impl Storage for HttpObject {
    fn len_bytes(&self) -> u64 {
        self.facts.len_bytes
    }

    fn most_part_bytes(&self) -> Option<usize> {
        self.is_near().then_some(NEAR_BYTES)
    }

    fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error> {
        // SAFETY: only the batch uses the memory, until this function returns: it is received by calls that have returned then.
        let mut batch = unsafe { Batch::new(spans.as_raw(), self.policy.gap_bytes) };
        let is_cancelled = || spans.is_cancelled();
        let received = self.repeat(&is_cancelled, |terms, limit| race::receive(terms, &mut batch, limit));
        let done_bytes = batch.done_bytes();
        // SAFETY: the batch counts the bytes that arrived in the memory.
        unsafe { spans.advance(done_bytes) };
        Ok(received?)
    }
}
