//! Connections that wait for their next request. All files of the process share them.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cufile::fork::Generation;

use super::super::connection::Connection;
use super::super::connection::server::Server;

/// The time after which an unused connection is closed. Many servers wait longer.
const MOST_IDLE: Duration = Duration::from_secs(30);
/// The most connections that wait.
const MOST_WAITING: usize = 256;

/// Connections that wait, by their server.
pub(super) struct Pool {
    /// The process whose connections these are. A forked child would read the answers to its parent's requests.
    generation: Generation,
    waiting: Mutex<HashMap<Server, Vec<(Instant, Connection)>>>,
}

impl Pool {
    fn new() -> Self {
        Self { generation: Generation::current(), waiting: Mutex::default() }
    }

    /// Returns the pool of the process, or `None` in a forked child.
    pub fn of_process() -> Option<&'static Self> {
        static POOL: LazyLock<Pool> = LazyLock::new(Pool::new);
        Some(&*POOL).filter(|pool| pool.generation.is_current())
    }

    /// Takes a connection that the server has not closed, if one waits.
    pub fn take(&self, server: &Server) -> Option<Connection> {
        loop {
            let (since, mut connection) = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.get_mut(server)?.pop()?
            };
            if since.elapsed() < MOST_IDLE && connection.is_idle() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer was received whole. Closes those that waited too long.
    pub fn put(&self, server: Server, connection: Connection) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, connections| {
            // The last ones are used first, so the first ones have waited longest.
            let old = connections.iter().take_while(|(since, _)| since.elapsed() >= MOST_IDLE).count();
            connections.drain(..old);
            !connections.is_empty()
        });
        if waiting.values().map(Vec::len).sum::<usize>() < MOST_WAITING {
            waiting.entry(server).or_default().push((Instant::now(), connection));
        }
    }
}
