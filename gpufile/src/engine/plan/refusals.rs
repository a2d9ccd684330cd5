//! The entries of a list that are refused, while the others are carried out.

use std::collections::BTreeMap;
use std::mem;

use super::overlap::overlaps;
use super::transfer::{Entry, Transfer};
use crate::direction::Direction;
use crate::error::Error;
use crate::open_file::outcome::EntryStop;

/// The errors of refused entries, by their numbers in the caller's list.
#[derive(Default)]
pub(crate) struct Refusals(BTreeMap<usize, Error>);

impl Refusals {
    /// Returns the entries that can be begun, and the refusals of the others.
    pub fn of_requests<'e>(
        entries: impl Iterator<Item = Result<Entry<'e>, Error>>,
    ) -> (Vec<Entry<'e>>, Self) {
        let mut refusals = BTreeMap::new();
        let accept = |(entry, made): (usize, Result<_, Error>)| {
            made.map_err(|error| refusals.insert(entry, error)).ok()
        };
        let accepted = entries.enumerate().filter_map(accept).collect();
        (accepted, Self(refusals))
    }

    /// Returns the refusals because of ranges, and because entries of a read overlap in memory.
    #[cold]
    pub fn of(transfer: &Transfer<'_>) -> Self {
        let Transfer { entries, direction, .. } = transfer;
        let beyond = (0..entries.len()).filter_map(|entry| entries.refusal(entry));
        let overlapping = match direction {
            Direction::Read => overlaps(entries),
            Direction::Write => Vec::new(),
        };
        let overlap = |(entry, other)| EntryStop::refused(entry, entries.overlaps(other));
        let stops = beyond.chain(overlapping.into_iter().map(overlap));
        Self(stops.map(|stop| (stop.entry, entries.error(*direction, stop))).collect())
    }

    /// Runs the entries that are not refused. If `run` refuses some, the others run alone. Returns the result, and all
    /// refusals.
    pub fn run<T: Copy, R>(mut self, entries: &[T], run: impl Fn(&[T]) -> Result<R, Self>) -> (R, Self) {
        let mut found = match run(entries) {
            Ok(result) => return (result, self),
            Err(Self(found)) => found,
        };
        let Self(before) = mem::take(&mut self);
        let numbers = (0..).filter(|number| !before.contains_key(number));
        let mut valid = Vec::new();
        for ((at, entry), number) in entries.iter().enumerate().zip(numbers) {
            match found.remove(&at) {
                Some(error) => drop(self.0.insert(number, error)),
                None => valid.push(*entry),
            }
        }
        self.0.extend(before);
        let Ok(result) = run(&valid) else { panic!("the engine refused valid entries") };
        (result, self)
    }

    pub fn with_others(mut self, others: Vec<Result<usize, Error>>) -> Vec<Result<usize, Error>> {
        if self.0.is_empty() {
            return others;
        }
        let count = self.0.len() + others.len();
        let mut others = others.into_iter();
        let outcome = |entry| match self.0.remove(&entry) {
            Some(error) => Err(error),
            None => others.next().expect("an outcome for each valid entry"),
        };
        (0..count).map(outcome).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;

    fn refused(entries: &[usize]) -> Refusals {
        let error = |entry: &usize| Error::Cufile { cause: Cause::Invalid(entry.to_string()) };
        Refusals(entries.iter().map(|entry| (*entry, error(entry))).collect())
    }

    #[test]
    fn later_refusals_count_those_before() {
        // Of eight entries, 1 and 4 are refused at first; then the entries 2 and 5, which are numbers 1 and 3 of the others.
        let run = |entries: &[usize]| match entries.contains(&2) {
            true => Err(refused(&[1, 3])),
            false => Ok(entries.to_vec()),
        };
        let (done, refusals) = refused(&[1, 4]).run(&[0, 2, 3, 5, 6, 7], run);
        assert_eq!(done, [0, 3, 6, 7]);
        let outcomes = refusals.with_others(done.into_iter().map(Ok).collect());
        let found: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().ok().copied()).collect();
        assert_eq!(found, [Some(0), None, None, Some(3), None, None, Some(6), Some(7)]);
    }
}
