//! The counts of an engine: bytes and requests by route, and what kept transfers from a better one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{RouteKind, trace};
use cufile::fork::{Mutex, OnceCell};

/// The counts of an [`Engine`](crate::Engine) since it was built, by [`Engine::stats`](crate::Engine::stats).
///
/// ```
/// use gpufile::{Engine, File};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, [7; 1000])?;
/// let engine = Engine::builder().build();
/// let mut buffer = vec![0; 1000]; // or device memory
/// File::options().read(true).engine(&engine).open(&path)?.read_exact_at(&mut buffer, 0)?;
/// let stats = engine.stats();
/// assert_eq!((stats.host.reads, stats.host.read_bytes), (1, 1000));
/// println!("{} bytes by GPUDirect Storage", stats.gds.read_bytes);
/// for (reason, count) in &stats.fallbacks {
///     println!("{count} times: {reason}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Host memory, by plain reads and writes.
    pub host: Traffic,
    /// Device memory, by [`RouteKind::Posix`]. Stream-ordered transfers of device memory always take this route.
    pub posix: Traffic,
    /// Device memory, by [`RouteKind::CufileCompat`].
    pub cufile_compat: Traffic,
    /// Device memory, by [`RouteKind::P2pDma`].
    pub p2p_dma: Traffic,
    /// Device memory, by [`RouteKind::Gds`].
    pub gds: Traffic,
    /// The number of calls that continued where the kernel or cuFile had moved fewer bytes than asked.
    pub continued_calls: u64,
    /// The number of bytes of pinned host memory that the engine has at present.
    ///
    /// Names elsewhere: `num_free_buffers` (KvikIO, kvik-rs).
    #[doc(alias = "num_free_buffers")]
    pub pinned_bytes: u64,
    /// Each reason against a better way, and how often it applied: once for each file whose device memory does not use
    /// GPUDirect Storage, for each buffer that CUDA did not pin, and for each GPU without kernels.
    pub fallbacks: BTreeMap<String, u64>,
}

/// The requests of one route, and their bytes. Ranges that follow each other in a file are one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// The number of reads from files.
    pub reads: u64,
    /// The number of bytes that reads brought.
    pub read_bytes: u64,
    /// The number of writes to files.
    pub writes: u64,
    /// The number of bytes that writes took.
    pub write_bytes: u64,
}

/// The counters behind [`Stats`], which an engine and its files share.
#[derive(Default)]
pub(crate) struct Counters {
    /// Host memory, and each kind of route.
    routes: [Counter; 5],
    continued_calls: AtomicU64,
    pinned_bytes: AtomicU64,
    fallbacks: Mutex<BTreeMap<String, u64>>,
    /// The first reason.
    not_pinned: OnceCell<String>,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").finish_non_exhaustive()
    }
}

/// The counters of a route, in cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counter {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
}

/// The way of a request's bytes: between a file and host memory, or by a route of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Host,
    Device(RouteKind),
}

impl Way {
    /// Device memory whose bytes pass through the engine's pinned memory.
    pub const BOUNCED: Self = Way::Device(RouteKind::Posix);

    fn number(self) -> usize {
        match self {
            Way::Host | Way::Device(RouteKind::Unavailable) => 0,
            Way::Device(RouteKind::Posix) => 1,
            Way::Device(RouteKind::CufileCompat) => 2,
            Way::Device(RouteKind::P2pDma) => 3,
            Way::Device(RouteKind::Gds) => 4,
        }
    }
}

impl Counters {
    /// The most reasons that are told apart, so that no text of a library fills the memory.
    const MOST_REASONS: usize = 64;

    pub fn read(&self, way: Way, bytes: usize) {
        let Counter { reads, read_bytes, .. } = &self.routes[way.number()];
        reads.fetch_add(1, Relaxed);
        read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn write(&self, way: Way, bytes: usize) {
        let Counter { writes, write_bytes, .. } = &self.routes[way.number()];
        writes.fetch_add(1, Relaxed);
        write_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a call that continues a transfer: one with bytes before it.
    pub fn called(&self, bytes_before: usize) {
        if bytes_before > 0 {
            self.continued_calls.fetch_add(1, Relaxed);
        }
    }

    pub fn allocated_pinned(&self, bytes: usize) {
        self.pinned_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn freed_pinned(&self, bytes: usize) {
        self.pinned_bytes.fetch_sub(bytes as u64, Relaxed);
    }

    pub fn fell_back(&self, reason: &str) {
        trace::not_taken(reason);
        let mut fallbacks = self.fallbacks.lock();
        let is_full = fallbacks.len() >= Self::MOST_REASONS && !fallbacks.contains_key(reason);
        *fallbacks.entry(if is_full { "other reasons" } else { reason }.to_owned()).or_default() += 1;
    }

    /// Counts a buffer that CUDA did not pin, and keeps the first reason.
    pub fn not_pinned(&self, reason: impl fmt::Display) {
        let reason = reason.to_string();
        self.fell_back(&reason);
        self.not_pinned.get_or_init(|| reason);
    }

    /// Returns the first reason against pinning host memory.
    pub fn why_not_pinned(&self) -> Option<&str> {
        self.not_pinned.get().map(String::as_str)
    }

    pub fn stats(&self) -> Stats {
        let [host, posix, cufile_compat, p2p_dma, gds] = self.routes.each_ref().map(Counter::traffic);
        let fallbacks = self.fallbacks.lock().clone();
        let (continued_calls, pinned_bytes) =
            (self.continued_calls.load(Relaxed), self.pinned_bytes.load(Relaxed));
        Stats { host, posix, cufile_compat, p2p_dma, gds, continued_calls, pinned_bytes, fallbacks }
    }
}

impl Counter {
    fn traffic(&self) -> Traffic {
        let [reads, read_bytes, writes, write_bytes] =
            [&self.reads, &self.read_bytes, &self.writes, &self.write_bytes].map(|count| count.load(Relaxed));
        Traffic { reads, read_bytes, writes, write_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_its_own_counts() {
        let counters = Counters::default();
        let kinds = [RouteKind::Posix, RouteKind::CufileCompat, RouteKind::P2pDma, RouteKind::Gds];
        let ways = [Way::Host].into_iter().chain(kinds.map(Way::Device));
        for (number, way) in ways.enumerate() {
            counters.read(way, 10 + number);
            counters.read(way, 0);
            counters.write(way, 20 + number);
        }
        let Stats { host, posix, cufile_compat, p2p_dma, gds, .. } = counters.stats();
        for (number, traffic) in [host, posix, cufile_compat, p2p_dma, gds].into_iter().enumerate() {
            let number = number as u64;
            let expected = Traffic { reads: 2, read_bytes: 10 + number, writes: 1, write_bytes: 20 + number };
            assert_eq!(traffic, expected);
        }
    }

    #[test]
    fn reasons_are_counted_and_limited() {
        let counters = Counters::default();
        for number in 0..Counters::MOST_REASONS + 10 {
            counters.fell_back(&format!("reason {number}"));
            counters.fell_back("reason 0");
        }
        let fallbacks = counters.stats().fallbacks;
        assert_eq!(fallbacks.len(), Counters::MOST_REASONS + 1);
        assert_eq!(fallbacks["reason 0"], Counters::MOST_REASONS as u64 + 11);
        assert_eq!(fallbacks["other reasons"], 10);
    }
}
