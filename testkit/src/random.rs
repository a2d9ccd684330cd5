//! Pseudorandom numbers, the same on every run of a seed.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the number of random cases: `CUFILE_TEST_CASES`, or `default`.
///
/// # Panics
/// If the variable is no number.
pub fn cases(default: u64) -> u64 {
    number_of("CUFILE_TEST_CASES").unwrap_or(default)
}

/// Returns the seed: `CUFILE_TEST_SEED`, or one from the time.
///
/// # Panics
/// If the variable is no number.
pub fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    number_of("CUFILE_TEST_SEED").unwrap_or_else(now)
}

fn number_of(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// A generator (xorshift64*).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator; the first numbers of neighbouring seeds differ.
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63);
        for _ in 0..8 {
            random.next_number();
        }
        random
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        ((self.next_number() >> 11) % limit.max(1) as u64) as usize
    }

    /// Returns true once in `count` times.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Returns one item.
    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// Shuffles items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}
