//! Finds entries of a read that overlap in memory.

use super::transfer::{Entries, Segment};

/// Returns the numbers of two entries that overlap in memory. Empty entries overlap nothing. `numbers` keeps its memory for
/// the next call.
pub(crate) fn overlap(entries: &Entries<'_>, numbers: &mut Vec<u64>) -> Option<(usize, usize)> {
    if ascends(spans(entries)) || !may_overlap(entries, numbers) {
        return None;
    }
    overlaps(entries).first().map(|(one, other)| (*one.min(other), *one.max(other)))
}

/// Returns each entry whose memory overlaps that of another entry, and the number of one such other. Leaves out entries
/// that are out of range.
pub(crate) fn overlaps(entries: &Entries<'_>) -> Vec<(usize, usize)> {
    let in_range = |(_, _, entry): &(usize, usize, usize)| entries.refusal(*entry).is_none();
    let mut spans: Vec<_> = spans(entries).filter(in_range).collect();
    spans.sort_unstable();
    let mut found = Vec::new();
    // The last end of all spans so far, and its entry.
    let mut last_end: Option<(usize, usize)> = None;
    for (start, len_bytes, entry) in spans {
        if let Some((_, other)) = last_end.filter(|(end, _)| *end > start) {
            found.extend([(entry, other), (other, entry)]);
        }
        last_end = last_end.max(Some((start + len_bytes, entry)));
    }
    found
}

fn spans(entries: &Entries<'_>) -> impl Iterator<Item = (usize, usize, usize)> {
    let all = (0..entries.len()).map(|entry| {
        let Segment { ptr, len_bytes, .. } = entries.get(entry);
        (ptr.addr(), len_bytes, entry)
    });
    all.filter(|(_, len_bytes, _)| *len_bytes > 0)
}

/// Returns whether each span begins behind the end of the one before.
fn ascends(spans: impl Iterator<Item = (usize, usize, usize)>) -> bool {
    let mut end = 0;
    spans.fold(true, |ascends, (start, len_bytes, _)| {
        let ascends = ascends & (start >= end);
        end = start.wrapping_add(len_bytes);
        ascends
    })
}

/// Returns false if no spans overlap. Spans become numbers, which are sorted in a third of the time. Returns true if a
/// length or a distance does not allow that.
fn may_overlap(entries: &Entries<'_>, numbers: &mut Vec<u64>) -> bool {
    const LEN_BITS: u32 = 24;
    let base = spans(entries).map(|(start, ..)| start).min().unwrap_or(0);
    let mut fits = true;
    numbers.clear();
    numbers.extend(spans(entries).map(|(start, len_bytes, _)| {
        let (distance, len_bytes) = ((start - base) as u64, len_bytes as u64);
        fits &= len_bytes >> LEN_BITS == 0 && distance.leading_zeros() >= LEN_BITS;
        distance << LEN_BITS | len_bytes
    }));
    if !fits {
        return true;
    }
    numbers.sort_unstable();
    let start = |number: u64| number >> LEN_BITS;
    let len_bytes = |number: u64| number & ((1 << LEN_BITS) - 1);
    numbers.windows(2).any(|pair| start(pair[0]) + len_bytes(pair[0]) > start(pair[1]))
}

#[cfg(test)]
mod tests {
    use std::ptr::without_provenance_mut as at;

    use super::super::transfer::{Entry, IoRange};
    use super::*;
    use crate::memory::Memory;
    use crate::open_file::OpenFile;
    use crate::settings::Settings;

    fn overlap_of(spans: &[(usize, usize)]) -> Option<(usize, usize)> {
        let file = OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default());
        let entries: Vec<_> = spans
            .iter()
            .map(|&(start, len)| Entry { file: &file, offset: 0, memory: Memory::on_host(at(start), len) })
            .collect();
        overlap(&Entries::Requests(&entries), &mut vec![7; 3])
    }

    #[test]
    fn overlaps_are_found_in_any_order() {
        for (spans, expected) in [
            (&[][..], None),
            (&[(500, 100), (0, 101), (600, 10), (100, 100)], Some((1, 3))),
            (&[(500, 100), (0, 100), (600, 10), (100, 100)], None),
            (&[(0, 100), (99, 1)], Some((0, 1))),
            (&[(100, 1), (0, 100)], None),
            // Empty entries have no bytes to overlap with, and hide nothing.
            (&[(50, 0), (0, 100), (50, 0), (100, 100)], None),
            (&[(0, 100), (50, 0), (60, 100)], Some((0, 2))),
            // The two entries that touch are not the two that overlap.
            (&[(0, 100), (100, 100), (150, 100)], Some((1, 2))),
            // Long entries, and entries far apart.
            (&[(1 << 30, 1 << 25), (0, 1 << 30), (1 << 50, 7)], None),
            (&[(1 << 30, 1 << 25), (0, (1 << 30) + 1), (1 << 50, 7)], Some((0, 1))),
            (&[(1 << 50, 7), (0, 5), ((1 << 50) + 6, 1)], Some((0, 2))),
            (&[(1 << 40, (1 << 24) - 1), (1, 5), ((1 << 40) + (1 << 24) - 2, 1)], Some((0, 2))),
        ] {
            assert_eq!(overlap_of(spans), expected, "{spans:?}");
        }
    }

    #[test]
    fn all_overlaps_are_those_of_all_pairs() {
        let file = OpenFile::for_test(tempfile::tempfile().unwrap(), Settings::default());
        let mut random = 1u64;
        let mut below = |most: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % most
        };
        for case in 0..2000 {
            let (count, room, longest) = (below(9), 1 + below(60), 1 + below(30));
            let ranges: Vec<_> = (0..count)
                .map(|_| IoRange { file_offset: 0, buffer_offset: below(room), len_bytes: below(longest) })
                .collect();
            // Ranges that end behind the buffer do not count.
            let memory = Memory::on_host(at(4096), 1 + below(90));
            let span = |entry: usize| (ranges[entry].buffer_offset, ranges[entry].len_bytes);
            let do_overlap = |one: usize, other: usize| {
                let ((a, a_len), (b, b_len)) = (span(one), span(other));
                let are_valid = [one, other].iter().all(|entry| ranges[*entry].lies_within(memory.len_bytes));
                one != other && are_valid && a.max(b) < (a + a_len).min(b + b_len)
            };
            let found = overlaps(&Entries::Ranges { file: &file, memory, ranges: &ranges });
            assert!(found.iter().all(|(one, other)| do_overlap(*one, *other)), "{case}: {ranges:?}");
            for one in 0..count {
                let expected = (0..count).any(|other| do_overlap(one, other));
                assert_eq!(found.iter().any(|(entry, _)| *entry == one), expected, "{case}: {ranges:?}");
            }
        }
    }

    #[test]
    fn overlaps_match_a_model_of_bytes() {
        let mut random = 3u64;
        let mut below = |most: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % most
        };
        let mut found = 0;
        for _ in 0..3000 {
            let spans: Vec<_> = (0..1 + below(12)).map(|_| (7 + below(400), below(30))).collect();
            let mut taken = [0; 500];
            spans
                .iter()
                .for_each(|(start, len)| taken[*start..start + len].iter_mut().for_each(|of| *of += 1));
            let expected = taken.iter().any(|count| *count > 1);
            match overlap_of(&spans) {
                None => assert!(!expected, "{spans:?}"),
                Some((one, other)) => {
                    let ((a, a_len), (b, b_len)) = (spans[one], spans[other]);
                    assert!(one < other && a < b + b_len && b < a + a_len, "{spans:?}");
                    found += 1;
                }
            }
        }
        assert!((500..2500).contains(&found), "{found}");
    }
}
