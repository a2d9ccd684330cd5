//! Random damage, for tests of parsers.

use crate::random::Random;

/// Returns the range of some digits, empty if there are none.
fn digits(random: &mut Random, bytes: &[u8]) -> std::ops::Range<usize> {
    let from = random.below(bytes.len());
    let start = bytes[from..].iter().position(u8::is_ascii_digit).map_or(from, |at| from + at);
    let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    start..start + len
}

/// Damages a text one to three times. `words` are those of the format.
pub fn damage(random: &mut Random, bytes: &mut Vec<u8>, words: &[&str]) {
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
    for _ in 0..1 + random.below(3) {
        let (a, b) = (random.below(bytes.len() + 1), random.below(bytes.len() + 1));
        let (start, end) = (a.min(b), a.max(b));
        let near = end.min(start + 8);
        match random.below(9) {
            0 if !bytes.is_empty() => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            1 => bytes.truncate(end),
            2 => bytes.insert(start, random.next_number() as u8),
            3 => drop(bytes.drain(start..near)),
            4 | 5 => {
                let place = digits(random, bytes);
                bytes.splice(place, random.pick(&NUMBERS).bytes());
            }
            6 => drop(bytes.splice(start..near, random.pick(words).bytes())),
            7 => {
                let copy = bytes[start..end].to_vec();
                bytes.splice(b..b, copy);
            }
            _ => {
                let copy = bytes[digits(random, bytes)].to_vec();
                let place = digits(random, bytes);
                bytes.splice(place, copy);
            }
        }
    }
}

/// Fails unless the parser took some damaged headers and refused others, without which the rounds show nothing.
pub fn assert_both(taken: usize, rounds: usize) {
    assert!(taken > rounds / 100 && taken < rounds * 9 / 10, "{taken} of {rounds} were taken");
}
