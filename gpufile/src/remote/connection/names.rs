//! The look-up of names. The C library cannot end one, so a thread makes it that may be left behind.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, PoisonError, Weak};

use cufile::fork::{self, Mutex};

use super::limit::{Limit, TICK};
use crate::error::RemoteError;

type Found = io::Result<Vec<SocketAddr>>;

#[derive(Default)]
struct LookUp {
    found: Mutex<Option<Found>>,
    ended: Condvar,
}

/// Returns the addresses of a name, which may be an address itself, with this port.
///
/// # Errors
/// Those of the limit, and [`RemoteError::Connection`] if the name has no address.
pub(super) fn look_up(name: &str, port: u16, limit: Limit<'_>) -> Result<Vec<SocketAddr>, RemoteError> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let ask = |name: &str| (name, 0).to_socket_addrs().map(Iterator::collect);
    let mut addresses = wait(&*share(name, ask).map_err(RemoteError::Connection)?, limit)?;
    addresses.iter_mut().for_each(|address| address.set_port(port));
    Ok(addresses)
}

/// Returns the running look-up of a name, or begins one.
fn share(name: &str, ask: impl FnOnce(&str) -> Found + Send + 'static) -> io::Result<Arc<LookUp>> {
    /// The running look-ups by name, which callers share, so that threads do not pile up.
    static RUNNING: Mutex<BTreeMap<String, Weak<LookUp>>> = Mutex::of_static(BTreeMap::new());
    let mut running = RUNNING.lock();
    running.retain(|_, one| one.strong_count() > 0);
    if let Some(found) = running.get(name).and_then(Weak::upgrade) {
        return Ok(found);
    }
    let begun = begin(name, ask)?;
    running.insert(name.to_owned(), Arc::downgrade(&begun));
    Ok(begun)
}

fn begin(name: &str, ask: impl FnOnce(&str) -> Found + Send + 'static) -> io::Result<Arc<LookUp>> {
    let begun = Arc::<LookUp>::default();
    let (its, name) = (begun.clone(), name.to_owned());
    fork::spawn("gpufile-name", move || {
        let found = ask(&name);
        *its.found.lock() = Some(found);
        its.ended.notify_all();
    })?;
    Ok(begun)
}

fn wait(look_up: &LookUp, limit: Limit<'_>) -> Result<Vec<SocketAddr>, RemoteError> {
    let mut found = look_up.found.lock();
    loop {
        match &*found {
            Some(Ok(addresses)) => return Ok(addresses.clone()),
            Some(Err(error)) => {
                let same = io::Error::new(error.kind(), error.to_string());
                return Err(RemoteError::Connection(same));
            }
            None => limit.check()?,
        }
        found = look_up.ended.wait_timeout(found, TICK).unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn slow_names_take_no_longer_than_the_limit() {
        let (sender, receiver) = channel();
        let ask = move |_: &str| Ok(vec![receiver.recv().unwrap()]);
        let short = Limit::after(Duration::from_millis(1), &|| false);
        let late = wait(&share("slow.test", ask).unwrap(), short);
        assert!(matches!(late, Err(RemoteError::Deadline { .. })), "{late:?}");
        let cancelled = look_up("slow.test", 80, Limit::after(Duration::from_secs(30), &|| true));
        assert!(matches!(&cancelled, Err(RemoteError::Connection(error))
            if error.raw_os_error() == Some(libc::ECANCELED)));
        // The first look-up still runs, and no second one begins.
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let same = share("slow.test", |_| unreachable!()).unwrap();
        sender.send(address).unwrap();
        assert_eq!(wait(&same, Limit::after(Duration::from_secs(30), &|| false)).unwrap(), [address]);
    }

    #[test]
    fn addresses_are_names_of_themselves() {
        let limit = Limit::after(Duration::from_secs(30), &|| false);
        for (name, address) in [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80")] {
            assert_eq!(look_up(name, 80, limit).unwrap(), [address.parse().unwrap()]);
        }
        assert!(look_up("localhost", 80, limit).unwrap().iter().all(|address| address.port() == 80));
    }
}
