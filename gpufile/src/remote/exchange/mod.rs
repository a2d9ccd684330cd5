//! Requests on one connection, and their answers: several requests may be on their way.

pub(super) mod facts;
mod pool;
pub(super) mod race;
pub(super) mod times;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use self::facts::Facts;
use self::pool::Pool;
use self::times::Times;
use super::batch::{Batch, Place};
use super::connection::Connection;
use super::connection::answer::Answer;
use super::connection::limit::Limit;
use super::connection::request::Request;
use super::connection::server::Server;
use super::connection::tls::Trust;
use crate::error::RemoteError;

/// The most requests that are on their way on a connection.
const MOST_WAITING: usize = 64;
/// The most bytes of their text. The server's kernel has room for it, so that the two sides never wait for each other.
const MOST_TEXT_BYTES: usize = 24 << 10;

/// The most bytes behind a range that are received and dropped, instead of closing the connection.
const MOST_REST_BYTES: u64 = 64 << 10;

/// The parts that the requests of a try share.
#[derive(Debug)]
pub(crate) struct Terms<'o> {
    pub request: Request<'o>,
    /// True if the request names the version, where there is one.
    pub is_conditional: bool,
    pub server: Server,
    pub trust: Option<&'o Trust>,
    pub facts: &'o Facts,
    pub times: &'o Times,
    pub request_bytes: Option<u64>,
    /// True if late answers are asked for again.
    pub repeats_late: bool,
}

/// A failure on a connection.
#[derive(Debug)]
pub(crate) enum Broken {
    Failed(RemoteError),
    /// The server closed the connection between two answers. The same request may succeed on another one.
    Closed(RemoteError),
    /// The answer has no bytes, but a status. Its body says more.
    Refused(Box<Answer>, Vec<u8>),
    /// The answer has other bytes than its head says, and some were used.
    Untrue(RemoteError),
}

impl From<RemoteError> for Broken {
    fn from(error: RemoteError) -> Self {
        Broken::Failed(error)
    }
}

#[derive(Debug)]
struct Asked {
    range: Range<u64>,
    /// The bytes of the batch before it.
    before: u64,
    sent: Instant,
    /// True if no other request was on its way.
    is_alone: bool,
}

/// A connection, and the requests on it.
#[derive(Debug)]
pub(crate) struct Exchange<'t, 'o> {
    terms: &'t Terms<'o>,
    connection: Connection,
    /// True if the connection waited in the pool, where the server may have closed it.
    is_pooled: bool,
    text_bytes: usize,
    next: Place,
    waiting: VecDeque<Asked>,
    /// The needed bytes that are left of the current answer, after its head.
    body_left: Option<usize>,
    /// The numbers of bytes before and behind the needed ones.
    skipped_left: usize,
    rest_left: usize,
    /// True if the answer is not received up to its end.
    is_cut: bool,
    /// The bytes of the batch before the next byte.
    at: u64,
    answers: u32,
    /// The number of requests whose bytes have all arrived.
    fulfilled: u32,
    last: Option<Answer>,
    begun: Instant,
}

impl<'t, 'o> Exchange<'t, 'o> {
    /// Takes a connection from the pool, or makes one, for a batch from `start` on.
    pub fn begin(terms: &'t Terms<'o>, start: Place, limit: Limit<'_>) -> Result<Self, RemoteError> {
        let pooled = Pool::of_process().take(&terms.server);
        let is_pooled = pooled.is_some();
        let connection = match pooled {
            Some(connection) => connection,
            None => Connection::new(&terms.request.address, &terms.server, terms.trust, limit)?,
        };
        Ok(Self {
            terms,
            connection,
            is_pooled,
            text_bytes: terms.request.most_text_bytes(),
            next: start,
            waiting: VecDeque::new(),
            body_left: None,
            skipped_left: 0,
            rest_left: 0,
            is_cut: false,
            at: start.before,
            answers: 0,
            fulfilled: 0,
            last: None,
            begun: Instant::now(),
        })
    }

    /// Returns the number of answers that were received whole.
    pub fn answers(&self) -> u32 {
        self.answers
    }

    pub fn fulfilled(&self) -> u32 {
        self.fulfilled
    }

    /// Returns whether the head of the current answer has arrived.
    pub fn is_answering(&self) -> bool {
        self.body_left.is_some()
    }

    /// Returns whether the current answer takes much longer than others did.
    pub fn is_late(&self) -> bool {
        let Some(Asked { range, .. }) = self.waiting.front() else { return false };
        self.terms.repeats_late && self.terms.times.is_late(self.begun.elapsed(), range.end - range.start)
    }

    /// Asks for one range, and receives the head of the answer.
    pub fn ask(&mut self, range: Range<u64>, limit: Limit<'_>) -> Result<Answer, Broken> {
        let sent = Instant::now();
        self.connection.send(&self.terms.request, &[range], limit).map_err(|error| self.failed(error))?;
        loop {
            limit.check()?;
            if let Some(answer) = self.connection.receive_head(0).map_err(|error| self.failed(error))? {
                self.terms.times.note_latency(sent.elapsed());
                return Ok(answer);
            }
        }
    }

    /// Sends further requests, if few enough are on their way.
    pub fn send_more(&mut self, batch: &Batch, limit: Limit<'_>) -> Result<(), Broken> {
        let most_bytes = self.terms.request_bytes.unwrap_or(u64::MAX);
        let window = self.terms.times.window();
        let mut bytes: u64 = self.waiting.iter().map(|asked| asked.range.end - asked.range.start).sum();
        let most_waiting = MOST_WAITING.min(MOST_TEXT_BYTES / self.text_bytes).max(1);
        if !self.waiting.is_empty() && (bytes > window / 2 || self.waiting.len() > most_waiting / 2) {
            return Ok(());
        }
        let mut ranges = Vec::new();
        while self.waiting.len() < most_waiting {
            let mut next = self.next;
            let Some((range, place)) = batch.next_request(&mut next, most_bytes) else { break };
            let is_alone = self.waiting.is_empty();
            bytes = bytes.saturating_add(range.end - range.start);
            if !is_alone && bytes > window {
                break;
            }
            let sent = Instant::now();
            if is_alone {
                self.begun = sent;
            }
            ranges.push(range.clone());
            self.waiting.push_back(Asked { range, before: place.before, sent, is_alone });
            self.next = next;
        }
        if ranges.is_empty() {
            return Ok(());
        }
        self.connection.send(&self.terms.request, &ranges, limit).map_err(|error| self.failed(error))
    }

    /// Receives what comes next, if it comes within a [`TICK`](super::connection::limit::TICK). Returns whether it did.
    pub fn receive(&mut self, batch: &mut Batch) -> Result<bool, Broken> {
        let Some(left) = self.body_left else { return self.receive_head() };
        if self.skipped_left > 0 {
            let count = self.connection.drop_some(self.skipped_left)?;
            self.skipped_left -= count;
            return Ok(count > 0);
        }
        if left == 0 {
            return self.end_body(batch);
        }
        if batch.place().before < self.at {
            batch.skip_gap();
        }
        let known = batch.place().before.saturating_sub(self.at);
        let count = match usize::try_from(known).map_or(left, |known| known.min(left)) {
            0 => self.connection.receive(batch, left)?,
            known => self.connection.drop_some(known)?,
        };
        self.at += count as u64;
        self.body_left = Some(left - count);
        if left == count {
            self.end_body(batch)?;
        }
        Ok(count > 0)
    }

    /// Ends the current answer, after its needed bytes. Returns false if its end does not come within a
    /// [`TICK`](super::connection::limit::TICK).
    fn end_body(&mut self, batch: &mut Batch) -> Result<bool, Broken> {
        if self.rest_left > 0 {
            self.rest_left -= self.connection.drop_some(self.rest_left)?;
            if self.rest_left > 0 {
                return Ok(false);
            }
        }
        if !self.is_cut {
            match self.connection.end_body() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error @ RemoteError::Answer { .. }) => return Err(Broken::Untrue(error)),
                Err(error) => return Err(error.into()),
            }
        }
        self.end_answer(batch)?;
        Ok(true)
    }

    fn receive_head(&mut self) -> Result<bool, Broken> {
        let Some(Asked { range, before, sent, is_alone, .. }) = self.waiting.front() else {
            return Ok(false);
        };
        let (start, len_bytes, before, sent, is_alone) =
            (range.start, range.end - range.start, *before, *sent, *is_alone);
        let head = self.connection.receive_head(len_bytes as usize);
        let Some(mut answer) = head.map_err(|error| self.failed(error))? else { return Ok(false) };
        if is_alone {
            self.terms.times.note_latency(sent.elapsed());
        }
        if !matches!(answer.status, 200 | 206 | 416) {
            return Err(Broken::Refused(Box::new(answer), Vec::new()));
        }
        let part = self.terms.facts.check(&answer, start, len_bytes)?;
        self.is_cut = part.rest > MOST_REST_BYTES;
        self.rest_left = if self.is_cut { 0 } else { part.rest as usize };
        answer.keeps_connection &= !self.is_cut;
        (self.body_left, self.skipped_left, self.at) = (Some(part.count), part.skipped, before);
        self.last = Some(answer);
        Ok(true)
    }

    fn end_answer(&mut self, batch: &mut Batch) -> Result<(), Broken> {
        let Some(asked) = self.waiting.pop_front() else { return Ok(()) };
        let len_bytes = asked.range.end - asked.range.start;
        self.body_left = None;
        self.answers += 1;
        self.terms.times.note(self.begun.elapsed(), len_bytes);
        self.begun = Instant::now();
        let has_all = self.at >= asked.before + len_bytes;
        self.fulfilled += u32::from(has_all);
        let keeps = self.last.as_ref().is_some_and(|answer| answer.keeps_connection);
        let has_more = !self.waiting.is_empty();
        if !keeps && has_more {
            self.terms.times.note_closed(self.answers);
        }
        if !batch.is_done() && (!keeps || !has_all && has_more) {
            let reason = RemoteError::answer("it ends the connection");
            return Err(Broken::Closed(reason));
        }
        if !has_all {
            self.next = batch.place();
        }
        Ok(())
    }

    /// Keeps the connection for other requests, if all answers were received whole.
    pub fn end(self) {
        let keeps = self.last.is_some_and(|answer| answer.keeps_connection);
        if self.waiting.is_empty() && self.body_left.is_none() && keeps {
            put(&self.terms.server, self.connection);
        }
    }

    /// Receives the body of an answer without bytes of the object, and keeps the connection, if that takes little. Returns the
    /// part that arrived.
    pub fn end_with(mut self, answer: &Answer, limit: Limit<'_>) -> Vec<u8> {
        let (rest, keeps) = self.connection.rest(answer, limit);
        if keeps && self.waiting.len() <= 1 {
            put(&self.terms.server, self.connection);
        }
        rest
    }

    /// Returns the failure of a call between two answers.
    fn failed(&self, error: RemoteError) -> Broken {
        let is_between = !self.connection.has_some() && (self.is_pooled || self.answers > 0);
        match error {
            RemoteError::Connection(_) if is_between => {
                if self.answers > 0 {
                    self.terms.times.note_closed(self.answers);
                }
                Broken::Closed(error)
            }
            error => Broken::Failed(error),
        }
    }
}

fn put(server: &Server, connection: Connection) {
    Pool::of_process().put(server.clone(), connection);
}
