//! Sharing numbered work among threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use cufile::fork::{self, Mutex};

/// The bytes that are worth a thread: to decode them takes about ten times as long as to start one.
const THREAD_BYTES: u64 = 256 << 10;

/// Returns the number of threads to decode `count` chunks of `chunk_bytes` each. There are at most `most_threads`, and
/// together they decode at most `most_bytes` at a time, unless one chunk has more. If each chunk is waited for, as that of
/// a server, it is worth a thread.
pub(super) fn threads(
    most_threads: usize,
    count: u64,
    chunk_bytes: u64,
    most_bytes: u64,
    waits: bool,
) -> usize {
    let worth = if waits { count } else { count.saturating_mul(chunk_bytes) / THREAD_BYTES };
    let threads = worth.min(most_bytes / chunk_bytes.max(1)).min(count);
    most_threads.min(threads as usize).max(1)
}

/// Calls `work` for the numbers from 0 to `count`, `step` of them at a time, on up to `threads` threads. The caller's
/// thread is one of them.
///
/// # Errors
/// The first error of `work`. Threads take no more numbers after it.
pub(super) fn share<E: Send>(
    count: u64,
    step: u64,
    threads: usize,
    work: impl Fn(Range<u64>) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let (next, mut failed) = (AtomicU64::new(0), Mutex::new(None));
    let step = step.max(1);
    let take_turns = || {
        let take = |start: u64| (start < count).then(|| start.saturating_add(step));
        while let Ok(start) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            if let Err(error) = work(start..start.saturating_add(step).min(count)) {
                next.store(u64::MAX, Ordering::Relaxed);
                failed.lock().get_or_insert(error);
            }
        }
    };
    let helpers = count.div_ceil(step).min(threads as u64).saturating_sub(1);
    fork::scope(|scope| {
        for _ in 0..helpers {
            // If a thread cannot start, the others take its turns.
            let _ = scope.spawn("gpufile-zarr", take_turns);
        }
        take_turns();
    });
    failed.get_mut().take().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_or_large_work_gets_few_threads() {
        const MIB: u64 = 1 << 20;
        for (count, chunk_bytes, expected) in [
            (0, 0, 1),
            (100, 1000, 1),
            (11, 100_000, 4),
            (100, MIB, 8),
            (3, MIB, 3),
            (100, 32 * MIB, 4),
            (100, 1 << 40, 1),
            (u64::MAX, u64::MAX, 1),
        ] {
            assert_eq!(threads(8, count, chunk_bytes, 128 * MIB, false), expected, "{count} {chunk_bytes}");
        }
        assert_eq!(threads(8, 5, 1000, 128 * MIB, true), 5);
        assert_eq!(threads(8, 5, 32 * MIB, 128 * MIB, true), 4);
        assert_eq!(threads(8, 100, 0, 128 * MIB, true), 8);
    }

    #[test]
    fn every_number_is_handed_out_once() {
        for (count, step, threads) in [(0, 3, 4), (1, 3, 4), (100, 3, 4), (100, 200, 2), (7, 0, 1)] {
            let seen = Mutex::new(Vec::new());
            share(count, step, threads, |turn| {
                seen.lock().extend(turn);
                Ok::<_, ()>(())
            })
            .unwrap();
            let mut seen = std::mem::take(&mut *seen.lock());
            seen.sort();
            assert!(seen.into_iter().eq(0..count), "{count} {step} {threads}");
        }
    }

    #[test]
    fn a_failure_ends_the_loop() {
        let calls = AtomicU64::new(0);
        let outcome = share(u64::MAX, 1, 3, |turn| {
            calls.fetch_add(1, Ordering::Relaxed);
            if turn.start >= 10 { Err(turn.start) } else { Ok(()) }
        });
        assert!((10..13).contains(&outcome.unwrap_err()));
        assert!(calls.into_inner() <= 13);
    }
}
