//! Unused connections, which all files of the process share.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cufile::fork::{Mutex, OnceCell};

use super::super::connection::Connection;
use super::super::connection::server::Server;

/// The time after which a connection is closed. Many servers wait longer.
const MOST_IDLE: Duration = Duration::from_secs(30);
const MOST_WAITING: usize = 256;

struct Waiting {
    since: Instant,
    server: Server,
    connection: Connection,
}

/// The connections, oldest first. A forked child has none of its parent's: it would read the answers to the parent's
/// requests.
#[derive(Default)]
pub(super) struct Pool(Mutex<VecDeque<Waiting>>);

impl Pool {
    pub fn of_process() -> &'static Self {
        static POOL: OnceCell<Pool> = OnceCell::new();
        POOL.get_or_init(Pool::default)
    }

    /// Takes the connection used last that the server has not closed.
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

    /// Keeps a connection whose last answer was received whole. Closes old ones, and the oldest if there are too many.
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
