//! Random numbers, and contents that are a function of the offset in the file.

/// A sequence of random numbers that its seed determines.
pub struct Random(u64);

impl Random {
    /// Returns a separate sequence for each thread and round.
    pub fn new(seed: u64, actor: u64, round: u64) -> Self {
        Self(mix(mix(mix(seed).wrapping_add(actor)).wrapping_add(round)))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns true once in `times` calls on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns a length from 1 to `most` bytes, as often short as long.
    pub fn len(&mut self, most: usize) -> usize {
        let bits = self.below(most.ilog2() as usize + 1);
        (1 + self.below(2 << bits)).min(most)
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Fills `bytes` with the contents from `offset` on of a file written with this salt.
pub fn fill(salt: u64, offset: u64, bytes: &mut [u8]) {
    let (mut word, mut skip) = (offset / 8, (offset % 8) as usize);
    let mut rest = bytes;
    while !rest.is_empty() {
        let all = mix(salt ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
        let len = (8 - skip).min(rest.len());
        let (now, later) = rest.split_at_mut(len);
        now.copy_from_slice(&all[skip..skip + len]);
        (word, skip, rest) = (word + 1, 0, later);
    }
}

pub fn content(salt: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(salt, offset, &mut bytes);
    bytes
}

/// Fails if two ranges of bytes differ, and reports the bytes of both at the difference.
pub fn compare(found: &[u8], expected: &[u8], what: impl FnOnce() -> String) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    if found.len() != expected.len() {
        return Err(format!("{}: {} bytes instead of {}", what(), found.len(), expected.len()));
    }
    let at = (0..found.len()).find(|at| found[*at] != expected[*at]).unwrap_or(0);
    let wrong = (0..found.len()).filter(|at| found[*at] != expected[*at]).count();
    let excerpt = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 8)]);
    let (found, expected) = (excerpt(found), excerpt(expected));
    Err(format!("{}: {wrong} bytes differ, from byte {at} on: {found} instead of {expected}", what()))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
