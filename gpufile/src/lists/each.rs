//! Reads and writes of many ranges in one call, with an outcome for each range.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use cufile::{IoBuf, IoBufMut};

use crate::direction::Direction;
use crate::engine::{
    Choices, Engine, Entries, Entry, Growth, InFlight, IoRange, Transfer, Workers, groups, overlaps,
};
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::lists::request::Request;
use crate::memory::Memory;
use crate::open_file::outcome::EntryStop;

impl File {
    /// Reads many ranges of the file into one buffer, in one call, like [`read_many`](Self::read_many). Returns the
    /// outcome of each range, in the order of the ranges.
    ///
    /// An outcome is what [`read_at`](Self::read_at) returns: the number of bytes, or the error. The number
    /// is less than the length of the range only if the file ends there. A range that fails does not stop the
    /// others. Ranges beyond the buffer fail with [`Cause::Invalid`]. So do ranges that overlap in it, except
    /// where [`read_many`](Self::read_many) permits that.
    ///
    /// ```
    /// use gpufile::{File, IoRange};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "abcdef")?;
    /// let mut buffer = vec![0; 8]; // or device memory
    /// let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 4 };
    /// let ranges = [range(0, 0), range(4, 4), range(0, 6)]; // the last ends behind the buffer
    /// let outcomes = File::open(&path)?.read_many_each(&mut buffer, &ranges)?;
    /// assert!(matches!(outcomes[..], [Ok(4), Ok(2), Err(_)])); // the file ends within the second
    /// assert_eq!(buffer[..6], *b"abcdef");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Transfer`] if the engine cannot find the GPU of the buffer. Nothing is read then.
    #[must_use = "the outcomes have the errors"]
    pub fn read_many_each<B: IoBufMut + ?Sized>(
        &self,
        buffer: &mut B,
        ranges: &[IoRange],
    ) -> Result<Vec<Result<usize>>> {
        let memory = self.memory_mut(buffer, 0)?;
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        Ok(unsafe { self.each_range(Direction::Read, &memory, ranges) })
    }

    /// Writes one buffer to many ranges of the file, in one call, like [`write_many`](Self::write_many) and with the
    /// same restrictions. Returns the outcome of each range, in the order of the ranges.
    ///
    /// An outcome is what [`write_all_at`](Self::write_all_at) returns. A range that fails does not stop the
    /// others. Ranges beyond the buffer fail with [`Cause::Invalid`]. If a range fails, the engine may write
    /// the others twice.
    ///
    /// ```
    /// use gpufile::{File, IoRange};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// let buffer = b"abcd".to_vec(); // or device memory
    /// let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 2 };
    /// let ranges = [range(2, 0), range(0, 3), range(0, 2)]; // the second ends behind the buffer
    /// let outcomes = File::create(&path)?.write_many_each(&buffer, &ranges)?;
    /// assert!(matches!(outcomes[..], [Ok(()), Err(_), Ok(())]));
    /// assert_eq!(std::fs::read(&path)?, b"cdab");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Transfer`] if the engine cannot find the GPU of the buffer. Nothing is written then.
    #[must_use = "the outcomes have the errors"]
    pub fn write_many_each<B: IoBuf + ?Sized>(
        &self,
        buffer: &B,
        ranges: &[IoRange],
    ) -> Result<Vec<Result<()>>> {
        let memory = self.memory(buffer, 0)?;
        // SAFETY: the buffer is borrowed for as long as the call lasts.
        let outcomes = unsafe { self.each_range(Direction::Write, &memory, ranges) };
        Ok(outcomes.into_iter().map(|outcome| outcome.map(drop)).collect())
    }

    /// Carries out ranges of one buffer. Returns the outcome of each.
    ///
    /// # Safety
    /// As for [`Workers::run`].
    unsafe fn each_range(
        &self,
        direction: Direction,
        memory: &Memory,
        ranges: &[IoRange],
    ) -> Vec<Result<usize>> {
        if ranges.is_empty() {
            return Vec::new();
        }
        let workers = self.engine().workers();
        let transfer = self.transfer(direction, *memory, ranges, Growth::MayAllocate);
        let whole = match direction {
            // SAFETY: the caller's promise.
            Direction::Read => unsafe { workers.read_ranges(&transfer) },
            // SAFETY: the caller's promise.
            Direction::Write => unsafe { workers.run(&transfer) },
        };
        let Ok(stop) = whole else {
            // SAFETY: the caller's promise.
            return unsafe { self.each_valid_range(direction, memory, ranges) };
        };
        let mut outcomes =
            Outcomes::of(transfer.entries.lens(), |stop| transfer.entries.outcome(direction, stop));
        if let Some(stop) = stop {
            outcomes.stopped(0..ranges.len(), stop);
        }
        // SAFETY: the caller's promise. The ranges were checked above.
        unsafe { carry_out(workers, &mut outcomes, &transfer) };
        outcomes.each
    }

    /// Carries out the valid ones among ranges that were refused together. Returns the outcome of each.
    ///
    /// # Safety
    /// As for [`Workers::run`].
    #[cold]
    unsafe fn each_valid_range(
        &self,
        direction: Direction,
        memory: &Memory,
        ranges: &[IoRange],
    ) -> Vec<Result<usize>> {
        let refusals =
            refusals(&self.transfer(direction, *memory, ranges, Growth::MayAllocate).entries, direction);
        let valid = without_refused(ranges, &refusals);
        // SAFETY: the caller's promise.
        with_refused(refusals, unsafe { self.each_range(direction, memory, &valid) })
    }
}

impl Engine {
    /// Reads many ranges of any files into any memory, in one call, like [`read_many`](Self::read_many). Returns the
    /// outcome of each request, in the order of the requests, as [`File::read_many_each`] does.
    ///
    /// ```
    /// use gpufile::{Engine, File, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = |name| folder.path().join(name);
    /// # std::fs::write(path("a.bin"), "aaaa")?;
    /// # std::fs::write(path("b.bin"), "bbbb")?;
    /// let (a, b) = (File::options().write(true).open(path("a.bin"))?, File::open(path("b.bin"))?);
    /// let (mut head, mut tail) = (vec![0; 4], vec![0; 4]); // or device memory
    /// let mut requests = [
    ///     Request { file: &a, buffer: &mut head, offset: 0 },
    ///     Request { file: &b, buffer: &mut tail, offset: 1 },
    /// ];
    /// let outcomes = Engine::global().read_many_each(&mut requests);
    /// assert!(matches!(outcomes[..], [Err(_), Ok(3)])); // the first file may only be written
    /// assert_eq!(tail[..3], *b"bbb");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the outcomes have the errors"]
    pub fn read_many_each<B: IoBufMut, F: Borrow<File>>(
        &self,
        requests: &mut [Request<B, F>],
    ) -> Vec<Result<usize>> {
        let (entries, refusals) = accepted(Request::to_read(requests));
        // SAFETY: the requests, which hold their buffers, are borrowed mutably for as long as the call lasts.
        with_refused(refusals, unsafe { self.read_each(&entries) })
    }

    /// Writes memory to many ranges of any files, in one call, like [`write_many`](Self::write_many) and with the
    /// same restrictions. Returns the outcome of each request, in the order of the requests, as
    /// [`File::write_many_each`] does.
    ///
    /// ```
    /// use gpufile::{Engine, File, Request};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = |name| folder.path().join(name);
    /// # std::fs::write(path("a.bin"), "aaaa")?;
    /// let (a, b) = (File::open(path("a.bin"))?, File::create(path("b.bin"))?);
    /// let bytes = b"abcd".to_vec(); // or device memory
    /// let requests = [&a, &b].map(|file| Request { file, buffer: &bytes, offset: 0 });
    /// let outcomes = Engine::global().write_many_each(&requests);
    /// assert!(matches!(outcomes[..], [Err(_), Ok(())])); // the first file may only be read
    /// assert_eq!(std::fs::read(path("b.bin"))?, b"abcd");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the outcomes have the errors"]
    pub fn write_many_each<B: IoBuf, F: Borrow<File>>(&self, requests: &[Request<B, F>]) -> Vec<Result<()>> {
        let (entries, refusals) = accepted(Request::to_write(requests));
        let entries = &entries[..];
        let each = Entries::Requests(entries);
        let mut outcomes = Outcomes::of(each.lens(), |stop| each.outcome(Direction::Write, stop));
        let mut start = 0;
        outcomes.lists.extend(groups(entries).map(|group| {
            start += group.len();
            start - group.len()..start
        }));
        let transfer = self.transfer(Direction::Write, entries, Growth::MayAllocate);
        // SAFETY: the requests, which hold their buffers, are borrowed for as long as the call lasts. The entries were
        // checked, and may overlap.
        unsafe { carry_out(self.workers(), &mut outcomes, &transfer) };
        with_refused(refusals, outcomes.each).into_iter().map(|outcome| outcome.map(drop)).collect()
    }

    /// Reads entries. Returns the outcome of each.
    ///
    /// # Safety
    /// As for [`Workers::run`].
    unsafe fn read_each(&self, entries: &[Entry<'_>]) -> Vec<Result<usize>> {
        if entries.is_empty() {
            return Vec::new();
        }
        let transfer = self.transfer(Direction::Read, entries, Growth::MayAllocate);
        // SAFETY: the caller's promise.
        let Ok(stop) = (unsafe { self.workers().run(&transfer) }) else {
            let refusals = refusals(&Entries::Requests(entries), Direction::Read);
            let valid = without_refused(entries, &refusals);
            // SAFETY: the caller's promise.
            return with_refused(refusals, unsafe { self.read_each(&valid) });
        };
        let each = Entries::Requests(entries);
        let mut outcomes = Outcomes::of(each.lens(), |stop| each.outcome(Direction::Read, stop));
        if let Some(stop) = stop {
            outcomes.stopped(0..entries.len(), stop);
        }
        // SAFETY: the caller's promise. The job of all entries would have refused an overlap.
        unsafe { carry_out(self.workers(), &mut outcomes, &transfer) };
        outcomes.each
    }
}

/// The outcomes of entries, and the lists of those entries that are still to be carried out.
struct Outcomes<F> {
    /// The outcome of each entry. Unless the entry is in a list, the outcome is final.
    each: Vec<Result<usize>>,
    /// The lists, as ranges of the entries' numbers.
    lists: Vec<Range<usize>>,
    /// Converts the stop of an entry into the outcome of the entry.
    outcome: F,
}

impl<F: Fn(EntryStop) -> Result<usize>> Outcomes<F> {
    /// Returns the outcomes of entries of these lengths in bytes, as if all were carried out.
    fn of(lens: impl Iterator<Item = usize>, outcome: F) -> Self {
        Self { each: lens.map(Ok).collect(), lists: Vec::new(), outcome }
    }

    /// Notes that a list stopped, and which of its entries are still to be carried out.
    ///
    /// The other entries of the list may have been carried out or not. They form lists that are at most half
    /// as long. So a million entries are carried out 20 times at most, even if all of them fail.
    fn stopped(&mut self, list: Range<usize>, EntryStop { entry, stop }: EntryStop) {
        let entry = list.start + entry;
        // Many entries share a copy to or from the GPU. If it fails, its first entry is tried again alone.
        if list.len() > 1 && matches!(stop.cause, Some(Cause::Cufile(_))) {
            self.lists.push(entry..entry + 1);
        } else {
            self.each[entry] = (self.outcome)(EntryStop { entry, stop });
        }
        let middle = list.start + list.len() / 2;
        for others in [list.start..entry, entry + 1..list.end] {
            let halves = [others.start..others.end.min(middle), others.start.max(middle)..others.end];
            self.lists.extend(halves.into_iter().filter(|half| !half.is_empty()));
        }
    }
}

/// Carries out the lists of the transfer's entries, several at once, until all outcomes are final.
///
/// # Safety
/// As for [`Workers::run`]. The entries must lie in their buffers. Those of a read must not overlap in memory.
unsafe fn carry_out(
    workers: &Workers,
    outcomes: &mut Outcomes<impl Fn(EntryStop) -> Result<usize>>,
    transfer: &Transfer<'_>,
) {
    while !outcomes.lists.is_empty() {
        let lists = mem::take(&mut outcomes.lists);
        let is_alone = lists.len() == 1;
        let mut in_flight = InFlight::new(workers, |list, stop: Option<EntryStop>| {
            if let Some(stop) = stop {
                outcomes.stopped(list, stop);
            }
            None
        });
        for list in lists {
            let growth = if is_alone { Growth::MayAllocate } else { Growth::BesideOthers };
            let choices = Choices { growth, ..transfer.choices };
            let part = Transfer { entries: transfer.entries.part(list.clone()), choices, ..*transfer };
            // SAFETY: the caller's promise; `in_flight` waits for the job.
            let prepared = unsafe { workers.prepare(&part) };
            let (job, chunks) = prepared.expect("valid entries");
            workers.start(&job, chunks == 1 && is_alone);
            in_flight.push(list, job);
        }
        in_flight.finish();
    }
}

/// The errors of the entries that were refused, by their numbers.
type Refusals = BTreeMap<usize, Error>;

/// Returns the entries that can be begun, and the refusals of the others.
fn accepted<'e>(entries: impl Iterator<Item = Result<Entry<'e>>>) -> (Vec<Entry<'e>>, Refusals) {
    let mut refusals = Refusals::new();
    let accept = |(entry, made): (usize, Result<_>)| made.map_err(|error| refusals.insert(entry, error)).ok();
    (entries.enumerate().filter_map(accept).collect(), refusals)
}

/// Returns the refusals of entries that were refused together: because of their ranges, and because those of a read overlap
/// in memory.
#[cold]
fn refusals(entries: &Entries<'_>, direction: Direction) -> Refusals {
    let beyond = (0..entries.len()).filter_map(|entry| entries.refusal(entry));
    let overlapping = match direction {
        Direction::Read => overlaps(entries),
        Direction::Write => Vec::new(),
    };
    let overlap = |(entry, other)| EntryStop::refused(entry, entries.overlaps(other));
    let stops = beyond.chain(overlapping.into_iter().map(overlap));
    stops.map(|stop| (stop.entry, entries.error(direction, stop))).collect()
}

/// Returns the entries that were not refused.
fn without_refused<T: Copy>(entries: &[T], refusals: &Refusals) -> Vec<T> {
    assert!(!refusals.is_empty(), "the engine refused valid entries");
    let valid = entries.iter().enumerate().filter(|(entry, _)| !refusals.contains_key(entry));
    valid.map(|(_, entry)| *entry).collect()
}

/// Returns the outcomes of all entries. `others` are those of the entries that were not refused.
fn with_refused(mut refusals: Refusals, others: Vec<Result<usize>>) -> Vec<Result<usize>> {
    if refusals.is_empty() {
        return others;
    }
    let count = refusals.len() + others.len();
    let mut others = others.into_iter();
    let outcome = |entry| match refusals.remove(&entry) {
        Some(error) => Err(error),
        None => others.next().expect("an outcome for each valid entry"),
    };
    (0..count).map(outcome).collect()
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::open_file::outcome::Stop;

    /// Carries out all lists as a transfer would that fails at these entries. Returns the outcomes, and the
    /// number of entries that were handed to transfers.
    fn carried_out(len: usize, fails: impl Fn(usize) -> bool, cause: fn() -> Cause) -> (Vec<bool>, usize) {
        let error = |EntryStop { entry, stop }| {
            assert!(fails(entry), "{entry}");
            Err(Error::Cufile { cause: stop.cause.unwrap() })
        };
        let mut outcomes = Outcomes::of(iter::repeat_n(1, len), error);
        outcomes.lists.push(0..len);
        let mut done = vec![false; len];
        let mut handed_out = 0;
        while let Some(list) = outcomes.lists.pop() {
            handed_out += list.len();
            let failed = list.clone().find(|entry| fails(*entry));
            done[list.start..failed.unwrap_or(list.end)].fill(true);
            if let Some(failed) = failed {
                let stop = Stop { done_bytes: 0, cause: Some(cause()) };
                outcomes.stopped(list.clone(), EntryStop { entry: failed - list.start, stop });
            }
        }
        assert!(done.iter().enumerate().all(|(entry, done)| *done != fails(entry)));
        (outcomes.each.iter().map(Result::is_ok).collect(), handed_out)
    }

    #[test]
    fn each_failed_entry_gets_its_own_error() {
        let causes: [fn() -> Cause; 2] = [|| Cause::Invalid(String::new()), || cufile::Error::Forked.into()];
        for cause in causes {
            for len in [1, 2, 3, 17, 1000] {
                for every in [1, 2, 3, 10, 999] {
                    let fails = |entry: usize| (entry + 1).is_multiple_of(every);
                    let (outcomes, _) = carried_out(len, fails, cause);
                    assert!(outcomes.iter().enumerate().all(|(entry, is_ok)| *is_ok != fails(entry)));
                }
            }
        }
    }

    #[test]
    fn failures_cost_no_quadratic_time() {
        const LEN: usize = 1 << 16;
        let cause = || Cause::Invalid(String::new());
        for failed in [0, 1, LEN / 3, LEN / 2, LEN - 1] {
            let (_, handed_out) = carried_out(LEN, |entry| entry == failed, cause);
            assert!(handed_out < 2 * LEN, "{failed}: {handed_out}");
        }
        let (_, handed_out) = carried_out(LEN, |_| true, cause);
        assert!(handed_out <= 17 * LEN, "{handed_out}");
    }
}
