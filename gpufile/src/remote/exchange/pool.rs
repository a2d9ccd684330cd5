//! Connections that wait for their next request. All files of the process share them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cufile::fork::{Mutex, OnceCell};

use super::super::connection::Connection;
use super::super::connection::server::Server;

/// The time after which an unused connection is closed. Many servers wait longer.
const MOST_IDLE: Duration = Duration::from_secs(30);
/// The most connections that wait.
const MOST_WAITING: usize = 256;

/// A connection that waits since a time.
struct Waiting {
    since: Instant,
    server: Server,
    connection: Connection,
}

/// Connections that wait, those that have waited longest first. A forked child has none of its parent's: it would read
/// the answers to the parent's requests.
#[derive(Default)]
pub(super) struct Pool(Mutex<VecDeque<Waiting>>);

impl Pool {
    /// Returns the pool of the process.
    pub fn of_process() -> &'static Self {
        static POOL: OnceCell<Pool> = OnceCell::new();
        POOL.get_or_init(Pool::default)
    }

    /// Takes the connection that was used last, if one waits that the server has not closed.
    pub fn take(&self, server: &Server) -> Option<Connection> {
        loop {
            let Waiting { since, mut connection, .. } = {
                let mut waiting = self.0.lock();
                let last = waiting.iter().rposition(|one| one.server == *server)?;
                waiting.remove(last)?
            };
            if since.elapsed() < MOST_IDLE && connection.is_idle() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer was received whole. Closes those that waited too long, and the one that
    /// waited longest if there are too many.
    pub fn put(&self, server: Server, connection: Connection) {
        let mut waiting = self.0.lock();
        let old = waiting.iter().take_while(|one| one.since.elapsed() >= MOST_IDLE).count();
        let too_many = (waiting.len() + 1).saturating_sub(MOST_WAITING);
        let closed: Vec<_> = waiting.drain(..old.max(too_many)).collect();
        waiting.push_back(Waiting { since: Instant::now(), server, connection });
        drop(waiting);
        drop(closed);
    }
}
