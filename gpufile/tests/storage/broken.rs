//! Storages that each break a rule of the contract, which the suite finds.

use std::collections::BTreeSet;
use std::fmt;
use std::panic;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gpufile::storage::conformance::{Rule, breaches};
use gpufile::storage::{Error, Spans, Storage};
use testkit::alone;
use testkit::bed::pattern;

use crate::support::{fill, put, storage};

const LEN: usize = 100_000;

/// Returns the rules that a storage of `LEN` bytes breaks. The suite forks, so no other test may run.
fn broken_by(storage: Arc<dyn Storage>) -> BTreeSet<String> {
    // To print a backtrace can take longer than the suite waits.
    panic::set_hook(Box::new(|_| {}));
    let found = breaches(storage, &pattern(LEN), Duration::from_secs(2));
    drop(panic::take_hook());
    assert!(found.iter().all(|breach| breach.to_string().starts_with(&format!("{:?}: ", breach.rule))));
    found.iter().map(|breach| format!("{:?}", breach.rule)).collect()
}

/// Expects that a storage which reads so breaks these rules, and no others.
fn breaks<R>(rules: &[Rule], read: R)
where
    R: Fn(&[u8], &mut Spans<'_>) -> Result<(), Error> + Send + Sync + 'static,
{
    expect(rules, storage(&pattern(LEN), read));
}

fn expect(rules: &[Rule], storage: Arc<dyn Storage>) {
    alone(|| {
        let expected: BTreeSet<_> = rules.iter().map(|rule| format!("{rule:?}")).collect();
        assert_eq!(broken_by(storage), expected);
    });
}

/// Contents with another length.
struct Length<L>(L);

impl<L> fmt::Debug for Length<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a length")
    }
}

impl<L: Fn() -> u64 + Send + Sync> Storage for Length<L> {
    fn len_bytes(&self) -> u64 {
        (self.0)()
    }

    fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error> {
        put(&pattern(LEN), spans)
    }
}

#[test]
fn wrong_lengths_are_found() {
    expect(&[Rule::Bytes], Arc::new(Length(|| LEN as u64 - 1)));
}

#[test]
fn changing_lengths_are_found() {
    let calls = AtomicU64::new(0);
    let len_bytes = move || LEN as u64 + u64::from(calls.fetch_add(1, Ordering::Relaxed) > 0);
    expect(&[Rule::Bytes], Arc::new(Length(len_bytes)));
}

#[test]
fn wrong_bytes_are_found() {
    breaks(&[Rule::Bytes, Rule::Forks, Rule::Threads], |bytes, spans| {
        let mut bytes = bytes.to_vec();
        bytes[LEN - 1] ^= 1;
        put(&bytes, spans)
    });
}

#[test]
fn spans_that_are_filled_in_another_order_are_found() {
    breaks(&[Rule::Bytes, Rule::Threads], |bytes, spans| {
        let mut ranges: Vec<_> = spans.ranges().collect();
        ranges.sort_by_key(|range| range.start);
        Ok(ranges
            .into_iter()
            .try_for_each(|range| spans.put(&bytes[range.start as usize..range.end as usize]))?)
    });
}

#[test]
fn short_reads_are_found() {
    breaks(&[Rule::ShortReads, Rule::Threads], |bytes, spans| {
        let range = spans.next_range().unwrap();
        Ok(spans.put(&bytes[range.start as usize..range.end as usize])?)
    });
}

#[test]
fn writes_beyond_a_span_are_found() {
    breaks(&[Rule::Memory, Rule::Forks, Rule::Threads], |bytes, spans| {
        let last = spans.as_raw().last().unwrap();
        // SAFETY: not as it should be, but the suite has memory there.
        unsafe { last.ptr.add(last.len_bytes).write(1) };
        put(bytes, spans)
    });
}

#[test]
fn writes_after_the_return_are_found() {
    breaks(&[Rule::Memory], |bytes, spans| {
        let first = spans.as_raw().next().unwrap().ptr as usize;
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            // SAFETY: not as it should be, but the suite keeps the memory.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(first).write_volatile(0x77) };
        });
        put(bytes, spans)
    });
}

#[test]
fn counts_without_bytes_are_found() {
    breaks(&[Rule::Memory, Rule::Forks, Rule::Threads], |bytes, spans| {
        // SAFETY: not as it should be, but the suite's memory is initialised.
        unsafe { spans.advance(1) };
        put(bytes, spans)
    });
}

#[test]
fn readers_that_count_too_much_are_found() {
    breaks(&[Rule::Bytes, Rule::Memory, Rule::Forks, Rule::Threads], |bytes, spans| {
        spans.fill(|_| Ok(1))?;
        fill(bytes, spans)
    });
}

#[test]
fn failed_reads_of_bytes_that_exist_are_found() {
    breaks(&[Rule::Errors, Rule::Threads], |bytes, spans| {
        if spans.ranges().any(|range| range.end == LEN as u64) {
            return Err("the last byte cannot be read".into());
        }
        put(bytes, spans)
    });
}

#[test]
fn reads_that_ignore_cancelling_are_found() {
    breaks(&[Rule::Cancelling], |bytes, spans| {
        while spans.is_cancelled() {
            thread::sleep(Duration::from_millis(1));
        }
        put(bytes, spans)
    });
}

#[test]
fn storages_for_one_read_at_a_time_are_found() {
    let is_reading = AtomicBool::new(false);
    breaks(&[Rule::Threads], move |bytes, spans| {
        if is_reading.swap(true, Ordering::AcqRel) {
            return Err("another read is not done".into());
        }
        thread::sleep(Duration::from_millis(5));
        let read = put(bytes, spans);
        is_reading.store(false, Ordering::Release);
        read
    });
}

#[test]
fn storages_that_wait_for_a_parents_thread_are_found() {
    breaks(&[Rule::Forks], {
        let (send, asked) = channel::<std::sync::mpsc::Sender<()>>();
        // The test's process, and not the one in which it runs its body, has this thread until it is asked.
        let start = Mutex::new(Some(asked));
        move |bytes, spans| {
            if let Some(asked) = start.lock().unwrap().take() {
                thread::spawn(move || asked.into_iter().for_each(|answer| answer.send(()).unwrap()));
            }
            let (answer, answered) = channel();
            send.send(answer).unwrap();
            answered.recv()?;
            put(bytes, spans)
        }
    });
}

#[test]
fn panics_are_found() {
    breaks(&[Rule::Panics], |bytes, spans| {
        let range = spans.next_range().unwrap();
        assert!(range.start != 0 || range.end == LEN as u64, "a range in front");
        put(bytes, spans)
    });
}
