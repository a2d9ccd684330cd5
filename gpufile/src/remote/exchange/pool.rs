//! Connections that wait for their next request. All files of the process share them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cufile::fork::{Mutex, OnceCell};

use super::super::connection::Connection;
use super::super::connection::server::Server;

/// The time after which an unused connection is closed. Many servers wait longer.
const MOST_IDLE: Duration = Duration::from_secs(30);
/// The most connections that wait.
const MOST_WAITING: usize = 256;

/// Connections that wait, by their server. A forked child has none of its parent's: it would read the answers to the
/// parent's requests.
#[derive(Default)]
pub(super) struct Pool(Mutex<HashMap<Server, Vec<(Instant, Connection)>>>);

impl Pool {
    /// Returns the pool of the process.
    pub fn of_process() -> &'static Self {
        static POOL: OnceCell<Pool> = OnceCell::new();
        POOL.get_or_init(Pool::default)
    }

    /// Takes a connection that the server has not closed, if one waits.
    pub fn take(&self, server: &Server) -> Option<Connection> {
        loop {
            let (since, mut connection) = {
                let mut waiting = self.0.lock();
                waiting.get_mut(server)?.pop()?
            };
            if since.elapsed() < MOST_IDLE && connection.is_idle() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer was received whole. Closes those that waited too long.
    pub fn put(&self, server: Server, connection: Connection) {
        let mut waiting = self.0.lock();
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
