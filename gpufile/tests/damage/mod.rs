//! Random damage, for tests of parsers.

/// Xorshift: the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// Returns the range of some digits of the text, which is empty if the place has none.
    fn digits(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let from = self.below(bytes.len());
        let start = bytes[from..].iter().position(u8::is_ascii_digit).map_or(from, |at| from + at);
        let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        start..start + len
    }

    /// Damages a text one to three times. `words` are those of the format.
    pub fn damage(&mut self, bytes: &mut Vec<u8>, words: &[&str]) {
        const NUMBERS: [&str; 12] = [
            "0",
            "1",
            "2",
            "8",
            "-1",
            "1e3",
            "4294967296",
            "4611686018427387904",
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999999999999999999999999",
        ];
        for _ in 0..1 + self.below(3) {
            let (a, b) = (self.below(bytes.len() + 1), self.below(bytes.len() + 1));
            let (start, end) = (a.min(b), a.max(b));
            let near = end.min(start + 8);
            match self.below(9) {
                0 if !bytes.is_empty() => {
                    let at = self.below(bytes.len());
                    bytes[at] ^= 1 << self.below(8);
                }
                1 => bytes.truncate(end),
                2 => bytes.insert(start, self.next() as u8),
                3 => drop(bytes.drain(start..near)),
                4 | 5 => {
                    let digits = self.digits(bytes);
                    bytes.splice(digits, self.pick(&NUMBERS).bytes());
                }
                6 => drop(bytes.splice(start..near, self.pick(words).bytes())),
                7 => {
                    let copy = bytes[start..end].to_vec();
                    bytes.splice(b..b, copy);
                }
                _ => {
                    let digits = self.digits(bytes);
                    let copy = bytes[digits].to_vec();
                    let digits = self.digits(bytes);
                    bytes.splice(digits, copy);
                }
            }
        }
    }
}

/// Fails unless the parser took some of the damaged headers and refused most. Otherwise the rounds show nothing.
pub fn assert_both(taken: usize, rounds: usize) {
    assert!(taken > rounds / 100 && taken < rounds * 9 / 10, "{taken} of {rounds} were taken");
}
