//! The contract of [`Storage`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test calls the suite, and not in a forked child"
)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use super::super::{Span, Spans, Storage, text_of};
use super::rule::{Breach, Rule};

/// Returns the rules of the contract that a storage with these contents breaks. One read must return within `patience`; ten
/// seconds suit most.
///
/// It reads single ranges and lists, with memory that is initialised and memory that may not be, on one thread and on eight,
/// cancelled, and in a forked child. Some reads want all contents, so these should have some megabytes at most. It gives up after
/// a read that does not return, whose thread stays behind.
///
/// # Panics
/// If the process can make no thread or no child.
pub fn breaches(storage: Arc<dyn Storage>, contents: &[u8], patience: Duration) -> Vec<Breach> {
    let mut suite =
        Suite { storage, contents: contents.into(), patience, found: Vec::new(), done: Vec::new() };
    // An error is a hang: further reads would wait as long.
    let _ = suite.run();
    suite.found
}

/// The bytes around each span, which no read may change.
const GUARD: [u8; 64] = [0xc3; 64];
/// The wait after a read, in which late writes to its memory would show.
const SETTLE: Duration = Duration::from_millis(100);
const THREADS: usize = 8;

struct Suite {
    storage: Arc<dyn Storage>,
    contents: Arc<[u8]>,
    patience: Duration,
    found: Vec<Breach>,
    /// The returned reads, whose memory must stay as it was then.
    done: Vec<Read>,
}

struct Hang;

enum End {
    Filled,
    Failed(String),
    Panicked(String),
}

/// A read of ranges, and its memory: a guard, the memory of a range, a guard, and so on.
struct Read {
    ranges: Vec<Range<usize>>,
    memory: Vec<u8>,
    /// The memory as it was when the read returned.
    then: Vec<u8>,
    filled_bytes: usize,
    is_full: bool,
    end: End,
}

impl Read {
    /// Makes memory that differs from the contents in each byte.
    fn new(ranges: &[Range<usize>], contents: &[u8]) -> Self {
        let mut memory = GUARD.to_vec();
        for range in ranges {
            memory.extend(contents[range.clone()].iter().map(|byte| !byte));
            memory.extend(GUARD);
        }
        Self {
            ranges: ranges.to_vec(),
            memory,
            then: Vec::new(),
            filled_bytes: 0,
            is_full: false,
            end: End::Filled,
        }
    }

    /// Reads, and asks `is_cancelled` as the storage does.
    fn carry_out(&mut self, storage: &dyn Storage, are_initialised: bool, is_cancelled: &dyn Fn() -> bool) {
        let mut next = self.memory.as_mut_ptr().wrapping_add(GUARD.len());
        let spans: Vec<_> = self
            .ranges
            .iter()
            .map(|range| {
                let (offset, len_bytes, ptr) = (range.start as u64, range.len(), next);
                next = next.wrapping_add(len_bytes + GUARD.len());
                Span { offset, len_bytes, ptr }
            })
            .collect();
        // SAFETY: the memory stays until the end of the suite, and only this read uses it.
        let mut request = unsafe { Spans::new(&spans, are_initialised, is_cancelled) };
        self.end = match catch_unwind(AssertUnwindSafe(|| storage.read(&mut request))) {
            Ok(Ok(())) => End::Filled,
            Ok(Err(error)) => End::Failed(error.to_string()),
            Err(panic) => End::Panicked(text_of(&*panic).to_owned()),
        };
        (self.filled_bytes, self.is_full) = (request.filled_bytes(), request.is_full());
        self.then = self.now();
    }

    /// Returns the memory, to which a wrong storage may be writing.
    fn now(&self) -> Vec<u8> {
        // SAFETY: the address is that of a byte of the memory.
        self.memory.iter().map(|byte| unsafe { ptr::from_ref(byte).read_volatile() }).collect()
    }

    fn breaches(&self, contents: &[u8], is_cancelled: bool) -> Vec<(Rule, &'static str)> {
        let mut found = Vec::new();
        let mut note = |rule, what, is_broken| {
            if is_broken {
                found.push((rule, what));
            }
        };
        let (mut at, mut left) = (0, self.filled_bytes);
        let (mut are_guards_kept, mut is_given, mut is_right) = (true, true, true);
        for range in &self.ranges {
            are_guards_kept &= self.then[at..][..GUARD.len()] == GUARD;
            at += GUARD.len();
            let some = range.len().min(left);
            for (byte, expected) in self.then[at..][..some].iter().zip(&contents[range.clone()]) {
                is_given &= *byte != !expected;
                is_right &= byte == expected || *byte == !expected;
            }
            (at, left) = (at + range.len(), left - some);
        }
        are_guards_kept &= self.then[at..] == GUARD;
        let is_filled = matches!(self.end, End::Filled);
        note(Rule::Memory, "wrote outside of the spans", !are_guards_kept);
        // Some of the wrong bytes may be those that were there before.
        note(Rule::Memory, "counted bytes that it did not write", is_right && !is_given);
        note(Rule::Bytes, "gave other bytes than the contents", !is_right);
        note(
            Rule::ShortReads,
            "returned Ok before the spans were full",
            is_filled && !self.is_full && !is_cancelled,
        );
        note(Rule::Panics, "panicked", matches!(self.end, End::Panicked(_)));
        note(Rule::Errors, "failed", matches!(self.end, End::Failed(_)) && !is_cancelled);
        found
    }
}

impl Suite {
    fn run(&mut self) -> Result<(), Hang> {
        self.check_length();
        let len = self.contents.len();
        if len == 0 {
            return Ok(());
        }
        for ranges in lists(len) {
            for are_initialised in [true, false] {
                self.read("a read of", &ranges, are_initialised, None)?;
            }
        }
        for answers in [0, 1, 2, 5] {
            self.read("a cancelled read of", &[0..len], true, Some(answers))?;
            self.read("a cancelled read of", &[len / 2..len, 0..len / 2 + 1], true, Some(answers))?;
        }
        self.read_at_once()?;
        self.read_in_a_child();
        self.read("a later read of", &[0..len], true, None)?;
        self.check_length();
        thread::sleep(SETTLE);
        if let Some(read) = self.done.iter().find(|read| read.now() != read.then) {
            let found =
                format!("a read of {} wrote to the memory after it had returned", shown(&read.ranges));
            self.note(Rule::Memory, found);
        }
        Ok(())
    }

    fn note(&mut self, rule: Rule, found: String) {
        self.found.push(Breach { rule, found });
    }

    fn check_length(&mut self) {
        for _ in 0..2 {
            match catch_unwind(AssertUnwindSafe(|| self.storage.len_bytes())) {
                Ok(len_bytes) if len_bytes == self.contents.len() as u64 => {}
                Ok(len_bytes) => {
                    let expected = self.contents.len();
                    self.note(Rule::Bytes, format!("len_bytes returned {len_bytes} instead of {expected}"));
                }
                Err(panic) => self.note(Rule::Panics, format!("len_bytes panicked: {}", text_of(&*panic))),
            }
        }
    }

    /// Reads ranges on a thread. A cancelled read learns so after `answers` questions.
    fn read(
        &mut self,
        name: &str,
        ranges: &[Range<usize>],
        are_initialised: bool,
        answers: Option<usize>,
    ) -> Result<(), Hang> {
        let (send, returned) = channel();
        let (storage, mut read) = (self.storage.clone(), Read::new(ranges, &self.contents));
        thread::spawn(move || {
            let asked = AtomicUsize::new(0);
            let is_cancelled =
                || answers.is_some_and(|answers| asked.fetch_add(1, Ordering::Relaxed) >= answers);
            read.carry_out(&*storage, are_initialised, &is_cancelled);
            let _ = send.send(read);
        });
        match returned.recv_timeout(self.patience) {
            Ok(read) => {
                self.take(name, read, answers.is_some());
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => {
                let rule = if answers.is_some() { Rule::Cancelling } else { Rule::ShortReads };
                self.note(rule, format!("{name} {} did not return", shown(ranges)));
                Err(Hang)
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("a read catches panics"),
        }
    }

    /// Notes the breaches of a returned read, and keeps its memory.
    fn take(&mut self, name: &str, read: Read, is_cancelled: bool) {
        let text = match &read.end {
            End::Filled => String::new(),
            End::Failed(text) | End::Panicked(text) => format!(": {text}"),
        };
        for (rule, what) in read.breaches(&self.contents, is_cancelled) {
            self.note(rule, format!("{name} {} {what}{text}", shown(&read.ranges)));
        }
        self.done.push(read);
    }

    fn read_at_once(&mut self) -> Result<(), Hang> {
        let (send, returned) = channel();
        let barrier = Arc::new(Barrier::new(THREADS));
        let len = self.contents.len();
        for number in 0..THREADS {
            let (send, storage, barrier) = (send.clone(), self.storage.clone(), barrier.clone());
            let ranges = [len * number / THREADS..len, 0..len * number / THREADS];
            let ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
            let mut read = Read::new(&ranges, &self.contents);
            thread::spawn(move || {
                barrier.wait();
                read.carry_out(&*storage, true, &|| false);
                let _ = send.send(read);
            });
        }
        for _ in 0..THREADS {
            let Ok(read) = returned.recv_timeout(self.patience) else {
                self.note(Rule::Threads, format!("one of {THREADS} reads at once did not return"));
                return Err(Hang);
            };
            let before = self.found.len();
            self.take("a read beside others of", read, false);
            // What only several threads see is a breach of their rule.
            self.found[before..].iter_mut().for_each(|breach| breach.rule = Rule::Threads);
        }
        Ok(())
    }

    /// Reads in a forked child, which has none of the threads.
    fn read_in_a_child(&mut self) {
        let ranges = [0..self.contents.len()];
        let mut read = Read::new(&ranges, &self.contents);
        // SAFETY: the child reads, compares and ends, without a lock of this module.
        let child = unsafe { libc::fork() };
        assert_ne!(child, -1, "a child for a read");
        if child == 0 {
            read.carry_out(&*self.storage, true, &|| false);
            // An error is permitted, and ends the read as a cancelled one.
            let may_fail = matches!(read.end, End::Failed(_));
            let is_right = read.breaches(&self.contents, may_fail).is_empty();
            // SAFETY: ends the child.
            unsafe { libc::_exit((!is_right).into()) };
        }
        let start = Instant::now();
        let found = loop {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
            if ended == child {
                match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
                    Some(0) => return,
                    Some(_) => break "a read in a forked child gave wrong bytes or panicked",
                    None => break "a read in a forked child ended the child",
                }
            }
            if start.elapsed() > self.patience {
                // SAFETY: the child is this process's, and is waited for.
                unsafe { libc::kill(child, libc::SIGKILL) };
                // SAFETY: `status` outlives the call.
                unsafe { libc::waitpid(child, &mut status, 0) };
                break "a read in a forked child did not return";
            }
            thread::sleep(Duration::from_millis(1));
        };
        self.note(Rule::Forks, found.to_owned());
    }
}

/// Returns lists of ranges: the whole, parts at each end and in the middle, adjoining, scattered, descending and overlapping ones.
fn lists(len: usize) -> Vec<Vec<Range<usize>>> {
    let middle = len / 2;
    let at = |start: usize, bytes: usize| start.min(len)..start.saturating_add(bytes).min(len);
    let mut lists = vec![vec![0..len], vec![0..1], vec![len - 1..len], vec![at(middle, 1)]];
    for bytes in [7, 511, 4096, 65_537] {
        lists.extend([
            vec![at(0, bytes)],
            vec![at(1, bytes)],
            vec![at(middle, bytes)],
            vec![len.saturating_sub(bytes)..len],
        ]);
    }
    lists.push(vec![0..middle, middle..len]);
    lists.push(vec![middle..len, 0..middle]);
    lists.push(vec![0..len, at(middle, 100), at(middle, 100), 0..1]);
    lists.push((0..64).map(|number| at(number * len / 64, 1 + number)).collect());
    lists.push((0..64).rev().map(|number| at(number * len / 64, 3)).collect());
    for list in &mut lists {
        list.retain(|range| !range.is_empty());
    }
    lists.retain(|list| !list.is_empty());
    lists
}

/// Returns the first ranges for a message.
fn shown(ranges: &[Range<usize>]) -> String {
    match ranges {
        [first, _, ..] => format!("{first:?} and {} more ranges", ranges.len() - 1),
        [range] => format!("{range:?}"),
        [] => "nothing".to_owned(),
    }
}
