//! Sharing numbered work among threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

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
    let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
    let step = step.max(1);
    let take_turns = || {
        let take = |start: u64| (start < count).then(|| start.saturating_add(step));
        while let Ok(start) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            if let Err(error) = work(start..start.saturating_add(step).min(count)) {
                next.store(u64::MAX, Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    let helpers = count.div_ceil(step).min(threads as u64).saturating_sub(1);
    thread::scope(|scope| {
        for _ in 0..helpers {
            // If a thread cannot start, the others take its turns.
            let _ = thread::Builder::new().name("gpufile-zarr".to_owned()).spawn_scoped(scope, take_turns);
        }
        take_turns();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_handed_out_once() {
        for (count, step, threads) in [(0, 3, 4), (1, 3, 4), (100, 3, 4), (100, 200, 2), (7, 0, 1)] {
            let seen = Mutex::new(Vec::new());
            share(count, step, threads, |turn| {
                seen.lock().unwrap().extend(turn);
                Ok::<_, ()>(())
            })
            .unwrap();
            let mut seen = seen.into_inner().unwrap();
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
