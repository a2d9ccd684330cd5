//! The bytes that a part of a file may have.

use std::ops::Range;

/// Bytes as they were last acknowledged, and later writes whose extent is unknown.
#[derive(Debug, Clone)]
pub struct Expected {
    bytes: Vec<u8>,
    doubts: Vec<Doubt>,
}

/// A write of which each byte may be there or not.
#[derive(Debug, Clone)]
struct Doubt {
    range: Range<usize>,
    /// The first byte's position in the noise.
    noise: usize,
}

impl Doubt {
    fn part(&self, range: Range<usize>) -> Option<Self> {
        let part = self.range.start.max(range.start)..self.range.end.min(range.end);
        (part.start < part.end)
            .then(|| Self { noise: self.noise + part.start - self.range.start, range: part })
    }
}

impl Expected {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, doubts: Vec::new() }
    }

    pub fn acknowledge(&mut self, start: usize, written: &[u8]) {
        let end = start + written.len();
        self.bytes[start..end].copy_from_slice(written);
        let doubts = self.doubts.iter();
        self.doubts =
            doubts.flat_map(|doubt| [doubt.part(0..start), doubt.part(end..usize::MAX)]).flatten().collect();
    }

    /// Notes a write that may have happened, byte by byte.
    pub fn doubt(&mut self, start: usize, len_bytes: usize, noise: usize) {
        if len_bytes > 0 {
            self.doubts.push(Doubt { range: start..start + len_bytes, noise });
        }
    }

    pub fn part(&self, range: Range<usize>) -> Self {
        let within = |doubt: Doubt| Doubt {
            range: doubt.range.start - range.start..doubt.range.end - range.start,
            ..doubt
        };
        let doubts = self.doubts.iter().filter_map(|doubt| doubt.part(range.clone())).map(within);
        Self { doubts: doubts.collect(), bytes: self.bytes[range.clone()].to_vec() }
    }

    /// Returns the first and the last wrong byte. `found` may have fewer bytes than expected.
    pub fn wrong(&self, found: &[u8], noise: &[u8]) -> Option<(usize, usize)> {
        let expected = &self.bytes[..found.len()];
        if found == expected {
            return None;
        }
        let is_wrong = |at: &usize| {
            let may_be = |doubt: &Doubt| {
                doubt.range.contains(at) && noise[doubt.noise + at - doubt.range.start] == found[*at]
            };
            found[*at] != expected[*at] && !self.doubts.iter().any(may_be)
        };
        let first = (0..found.len()).find(is_wrong)?;
        Some((first, (0..found.len()).rfind(is_wrong).unwrap_or(first)))
    }
}

#[test]
fn model_distinguishes_lost_bytes_from_uncertain_bytes() {
    let noise: Vec<u8> = (1..=100).collect();
    let mut expected = Expected::new(vec![0; 10]);
    expected.acknowledge(2, &noise[..4]);
    let acknowledged = [0, 0, 1, 2, 3, 4, 0, 0, 0, 0];
    assert_eq!(expected.wrong(&acknowledged, &noise), None);
    assert_eq!(expected.wrong(&[0, 0, 1, 0, 3, 4, 0, 0, 7, 0], &noise), Some((3, 8)));
    expected.doubt(4, 4, 50);
    assert_eq!(expected.wrong(&acknowledged, &noise), None);
    assert_eq!(expected.wrong(&[0, 0, 1, 2, 51, 4, 53, 0, 0, 0], &noise), None);
    assert_eq!(expected.wrong(&[0, 0, 1, 2, 51, 0, 53, 0, 0, 0], &noise), Some((5, 5)));
    assert_eq!(expected.part(3..7).wrong(&[2, 3, 52, 0], &noise), None);
    expected.acknowledge(5, &[9]);
    assert_eq!(expected.wrong(&[0, 0, 1, 2, 51, 9, 53], &noise), None);
    assert_eq!(expected.wrong(&[0, 0, 1, 2, 51, 52, 53], &noise), Some((5, 5)));
}
