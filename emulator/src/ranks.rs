//! Ranks of a communicator, each a process or a thread, connected by Unix sockets.
//!
//! A rank whose peer has ended waits until it is aborted, as NCCL does within a host.

use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;
use std::{ptr, slice};

use crate::control::{Hit, lock};
use crate::memory::Place;
use crate::stream::Stream;

const PAUSE: Duration = Duration::from_millis(5);

pub(crate) struct Step {
    pub root: usize,
    pub from: Place,
    pub to: Place,
    pub len_bytes: usize,
}

/// This rank's end of a communicator.
pub(crate) struct Comm {
    pub rank: usize,
    pub ranks: usize,
    /// By rank, when all are connected; `None` for this one.
    peers: OnceLock<Vec<Option<UnixStream>>>,
    is_aborted: AtomicBool,
    /// Work that NCCL's own thread has not put into its stream yet.
    submitted: Mutex<Vec<Work>>,
}

type Work = (Arc<Stream>, Box<dyn FnOnce() + Send>);

struct Aborted;

impl Comm {
    /// Starts to connect to the other ranks.
    ///
    /// # Errors
    /// That of the operating system, if it starts no thread.
    pub(crate) fn join(id: &[u8], rank: usize, ranks: usize) -> io::Result<Arc<Self>> {
        let comm = Arc::new(Self {
            rank,
            ranks,
            peers: OnceLock::new(),
            is_aborted: AtomicBool::new(false),
            submitted: Mutex::default(),
        });
        let (joining, id) = (Arc::clone(&comm), id.to_vec());
        thread::Builder::new().name("emulated-nccl".to_owned()).spawn(move || {
            if let Ok(peers) = joining.connect(&id) {
                joining.peers.set(peers).expect("connected once");
            }
        })?;
        Ok(comm)
    }

    fn connect(&self, id: &[u8]) -> Result<Vec<Option<UnixStream>>, Aborted> {
        let address = |rank: usize| {
            let name = [b"emulated-nccl-", id, &[rank as u8]].concat();
            SocketAddr::from_abstract_name(name).expect("a short name")
        };
        let listener = UnixListener::bind_addr(&address(self.rank)).expect("a rank joins once");
        listener.set_nonblocking(true).expect("a socket that need not wait");
        let mut peers: Vec<Option<UnixStream>> = (0..self.ranks).map(|_| None).collect();
        for (rank, peer) in peers.iter_mut().enumerate().take(self.rank) {
            let mut stream = self.retry(|| UnixStream::connect_addr(&address(rank)))?;
            stream.write_all(&[self.rank as u8]).map_err(|_| Aborted)?;
            *peer = Some(stream);
        }
        for _ in self.rank + 1..self.ranks {
            let (mut stream, _) = self.retry(|| listener.accept())?;
            stream.set_nonblocking(false).map_err(|_| Aborted)?;
            let mut rank = [0];
            self.retry(|| stream.read_exact(&mut rank))?;
            peers[usize::from(rank[0])] = Some(stream);
        }
        for peer in peers.iter().flatten() {
            peer.set_read_timeout(Some(PAUSE)).expect("a timeout");
            peer.set_write_timeout(Some(PAUSE)).expect("a timeout");
        }
        Ok(peers)
    }

    fn retry<T>(&self, mut action: impl FnMut() -> io::Result<T>) -> Result<T, Aborted> {
        while !self.is_aborted.load(Ordering::Relaxed) {
            match action() {
                Ok(value) => return Ok(value),
                Err(_) => thread::sleep(PAUSE),
            }
        }
        Err(Aborted)
    }

    /// Returns whether ranks are missing, or work is not in its stream. Puts such work there.
    pub(crate) fn is_at_work(&self) -> bool {
        let work = std::mem::take(&mut *lock(&self.submitted));
        let is_at_work = !work.is_empty() || self.peers.get().is_none();
        for (stream, job) in work {
            stream.push(job);
        }
        is_at_work
    }

    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn submit(self: &Arc<Self>, stream: Arc<Stream>, hit: Hit, steps: Vec<Step>) {
        let comm = Arc::clone(self);
        let job = Box::new(move || {
            hit.sleep();
            let Some(peers) = comm.peers.get() else { return };
            for step in steps {
                if comm.run(peers, &step).is_err() {
                    return;
                }
            }
        });
        lock(&self.submitted).push((stream, job));
    }

    fn run(&self, peers: &[Option<UnixStream>], step: &Step) -> Result<(), Aborted> {
        let Step { root, from, to, len_bytes } = step;
        if *root != self.rank {
            // SAFETY: the place has so many bytes, and the C caller lends them to the stream.
            let bytes = unsafe { slice::from_raw_parts_mut(to.pointer, *len_bytes) };
            return self.receive(peers[*root].as_ref().expect("another rank"), bytes);
        }
        for peer in peers.iter().flatten() {
            // SAFETY: as above.
            self.send(peer, unsafe { slice::from_raw_parts(from.pointer, *len_bytes) })?;
        }
        // SAFETY: as above. The two may be the same.
        unsafe { ptr::copy(from.pointer, to.pointer, *len_bytes) };
        Ok(())
    }

    fn receive(&self, mut peer: &UnixStream, mut bytes: &mut [u8]) -> Result<(), Aborted> {
        while !bytes.is_empty() {
            let done = self.retry_some(|| peer.read(bytes))?;
            bytes = &mut bytes[done..];
        }
        Ok(())
    }

    fn send(&self, mut peer: &UnixStream, mut bytes: &[u8]) -> Result<(), Aborted> {
        while !bytes.is_empty() {
            let done = self.retry_some(|| peer.write(bytes))?;
            bytes = &bytes[done..];
        }
        Ok(())
    }

    fn retry_some(&self, mut action: impl FnMut() -> io::Result<usize>) -> Result<usize, Aborted> {
        self.retry(|| match action()? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            moved => Ok(moved),
        })
    }
}
