//! The bytes of a region that transfers use.
//!
//! Whole pages are bits, so that the thousands of pieces of a call take microseconds. Parts of pages are in a map, which is
//! empty if all pieces are aligned to pages.

use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: usize = 4096;

/// The bytes in use. No byte is in use twice.
#[derive(Default)]
pub struct Leases {
    /// A bit for each page that is in use as a whole.
    pages: Vec<u64>,
    /// The other ranges in use, by their start. Each lies within one page.
    edges: BTreeMap<usize, usize>,
    bytes: usize,
}

impl Leases {
    /// Returns the number of bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a range. Returns false if some of it is in use.
    #[inline]
    pub fn take(&mut self, range: Range<usize>) -> bool {
        match whole_pages(&range) {
            Some((word, mask)) if self.edges.is_empty() && word < self.pages.len() => {
                let is_free = self.pages[word] & mask == 0;
                if is_free {
                    self.pages[word] |= mask;
                    self.bytes += range.len();
                }
                is_free
            }
            _ => self.take_any(range),
        }
    }

    fn take_any(&mut self, range: Range<usize>) -> bool {
        let (edges, pages) = parts(&range);
        let is_free = edges.iter().all(|edge| self.is_free_edge(edge)) && self.are_free_pages(&pages);
        if is_free {
            self.bytes += range.len();
            self.edges
                .extend(edges.into_iter().filter(|edge| !edge.is_empty()).map(|edge| (edge.start, edge.end)));
            let words = pages.end.div_ceil(64);
            if self.pages.len() < words {
                self.pages.resize(words, 0);
            }
            each_word(&pages, |word, mask| {
                self.pages[word] |= mask;
                true
            });
        }
        is_free
    }

    /// Gives a range back that was taken as a whole.
    #[inline]
    pub fn give_back(&mut self, range: Range<usize>) {
        self.bytes -= range.len();
        match whole_pages(&range) {
            Some((word, mask)) => self.pages[word] &= !mask,
            None => self.give_back_any(range),
        }
    }

    fn give_back_any(&mut self, range: Range<usize>) {
        let (edges, pages) = parts(&range);
        for edge in edges.iter().filter(|edge| !edge.is_empty()) {
            self.edges.remove(&edge.start);
        }
        each_word(&pages, |word, mask| {
            self.pages[word] &= !mask;
            true
        });
    }

    fn is_free_edge(&self, edge: &Range<usize>) -> bool {
        edge.is_empty() || {
            let page = edge.start / PAGE;
            let is_whole = self.pages.get(page / 64).is_some_and(|word| word >> (page % 64) & 1 == 1);
            let before = self.edges.range(..edge.end).next_back();
            !is_whole && before.is_none_or(|(_, end)| *end <= edge.start)
        }
    }

    fn are_free_pages(&self, pages: &Range<usize>) -> bool {
        let has_edges = || self.edges.range(pages.start * PAGE..pages.end * PAGE).next().is_some();
        (self.edges.is_empty() || pages.is_empty() || !has_edges())
            && each_word(pages, |word, mask| self.pages.get(word).is_none_or(|bits| bits & mask == 0))
    }
}

/// Returns the word of a range of whole pages and the range's bits in it, if one word has all of them. Most pieces
/// are such ranges.
#[inline]
fn whole_pages(range: &Range<usize>) -> Option<(usize, u64)> {
    let (first, last) = (range.start / PAGE, range.end / PAGE);
    let is_whole =
        (range.start | range.end).is_multiple_of(PAGE) && first < last && first / 64 == (last - 1) / 64;
    is_whole.then(|| (first / 64, (u64::MAX >> (64 - (last - first))) << (first % 64)))
}

/// Returns the two ends of a range that cover parts of pages, and the numbers of the whole pages between them.
fn parts(range: &Range<usize>) -> ([Range<usize>; 2], Range<usize>) {
    let (first, last) = (range.start.div_ceil(PAGE), range.end / PAGE);
    if first > last {
        // The range lies within one page.
        return ([range.clone(), range.end..range.end], 0..0);
    }
    ([range.start..first * PAGE, last * PAGE..range.end], first..last)
}

/// Calls `of` with each word of bits for these pages, and the bits in it, while it returns true.
fn each_word(pages: &Range<usize>, mut of: impl FnMut(usize, u64) -> bool) -> bool {
    let mut at = pages.start;
    while at < pages.end {
        let count = (64 - at % 64).min(pages.end - at);
        let mask = (u64::MAX >> (64 - count)) << (at % 64);
        if !of(at / 64, mask) {
            return false;
        }
        at += count;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_like_flags_of_each_byte() {
        taken_like_flags([1, 17, PAGE / 2, PAGE, PAGE]);
    }

    #[test]
    fn whole_pages_are_taken_like_flags_of_each_byte() {
        taken_like_flags([PAGE; 5]);
    }

    /// Compares leases with a model that has a flag for each byte. Ranges start and end at multiples of one of these
    /// units.
    fn taken_like_flags(units: [usize; 5]) {
        const LEN: usize = 150 * PAGE;
        let mut state = 7_u64;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % limit
        };
        let (mut leases, mut model, mut taken) = (Leases::default(), vec![false; LEN], Vec::new());
        let mut refused = 0;
        for _ in 0..6_000 {
            if below(3) == 0 && !taken.is_empty() {
                let range: Range<usize> = taken.swap_remove(below(taken.len()));
                model[range.clone()].fill(false);
                leases.give_back(range);
            } else {
                let unit = units[below(5)];
                let start = below(LEN / unit) * unit;
                let longest = [10, PAGE, 3 * PAGE, 80 * PAGE][below(4)];
                let end = LEN.min(start + (below(longest) / unit * unit).max(1));
                let is_free = model[start..end].iter().all(|used| !used);
                assert_eq!(leases.take(start..end), is_free, "{start}..{end}");
                refused += usize::from(!is_free);
                if is_free {
                    model[start..end].fill(true);
                    taken.push(start..end);
                }
            }
            if below(50) == 0 {
                assert_eq!(leases.bytes(), model.iter().filter(|used| **used).count());
            }
        }
        assert!(refused > 300 && taken.len() > 10, "{refused} {}", taken.len());
        taken.into_iter().for_each(|range| leases.give_back(range));
        assert!(leases.bytes() == 0 && leases.edges.is_empty() && leases.pages.iter().all(|word| *word == 0));
    }
}
