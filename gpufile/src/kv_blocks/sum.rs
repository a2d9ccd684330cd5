//! The sum of a block's bytes, by which a fetch finds damage. `kernels/sum.cu` computes it on GPUs.
//!
//! A block has words of 4 bytes, little-endian, the last one filled up with zeros, and rows of 1024 words. Each place in a row has
//! an odd factor of 32 bits, and each row one of 64 bits. The sum is that of each word times its two factors, modulo 2^64. So the
//! parts of a block can be summed in any order and anywhere. A wrong word changes the sum. Two wrong words hide each other in about
//! one of 2^32 cases. It finds damage, not intent.

/// The words of a row.
const ROW: usize = 1024;

/// The factors of the places in a row.
static OF_PLACES: [u64; ROW] = {
    let mut factors = [0; ROW];
    let mut place = 0;
    while place < ROW {
        factors[place] = mixed(place as u64) & 0xffff_ffff;
        place += 1;
    }
    factors
};

/// Returns an odd number.
const fn mixed(number: u64) -> u64 {
    let number = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (number ^ number >> 32) | 1
}

/// Returns what adjacent bytes of a block add to its sum. `start` is the place of the first.
pub fn sum(bytes: &[u8], start: u64) -> u64 {
    let first = start.next_multiple_of(4);
    let (before, rest) = bytes.split_at(bytes.len().min((first - start) as usize));
    let (mut words, after) = rest.as_chunks::<4>();
    let mut sum = of_bytes(before, start);
    let mut word = first / 4;
    while !words.is_empty() {
        let place = word as usize % ROW;
        let (row, others) = words.split_at(words.len().min(ROW - place));
        sum = sum.wrapping_add(of_row(row, &OF_PLACES[place..]).wrapping_mul(row_factor(word)));
        (words, word) = (others, word + row.len() as u64);
    }
    sum.wrapping_add(of_bytes(after, 4 * word))
}

/// Returns the factor of the row with a word.
fn row_factor(word: u64) -> u64 {
    mixed((ROW as u64) + word / ROW as u64)
}

/// Returns the sum of words times the factors of their places.
fn of_row(words: &[[u8; 4]], factors: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has these instructions.
        return unsafe { of_row_avx2(words, factors) };
    }
    of_row_plain(words, factors)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn of_row_avx2(words: &[[u8; 4]], factors: &[u64]) -> u64 {
    of_row_plain(words, factors)
}

#[inline(always)]
fn of_row_plain(words: &[[u8; 4]], factors: &[u64]) -> u64 {
    let products = words.iter().zip(factors).map(|(word, factor)| {
        // Of 32 bits each, for which processors have vectors.
        u64::from(u32::from_le_bytes(*word)) * (factor & 0xffff_ffff)
    });
    products.fold(0, u64::wrapping_add)
}

/// Returns what single bytes add, each what it has in its word.
fn of_bytes(bytes: &[u8], start: u64) -> u64 {
    let each = bytes.iter().zip(start..).map(|(byte, place)| {
        let word = u64::from(*byte) << (place % 4 * 8);
        word.wrapping_mul(OF_PLACES[(place / 4) as usize % ROW]).wrapping_mul(row_factor(place / 4))
    });
    each.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use testkit::random::{Random, seed};

    use super::*;

    #[test]
    fn parts_add_up_wherever_they_are_cut() {
        let mut random = Random::new(seed());
        let bytes: Vec<u8> = (0..20_000).map(|_| random.below(256) as u8).collect();
        let whole = sum(&bytes, 0);
        for _ in 0..300 {
            let mut cuts = [random.below(20_001) as usize, random.below(20_001) as usize];
            cuts.sort_unstable();
            let [one, two] = cuts;
            let parts =
                [sum(&bytes[two..], two as u64), sum(&bytes[..one], 0), sum(&bytes[one..two], one as u64)];
            assert_eq!(parts.into_iter().fold(0, u64::wrapping_add), whole, "{cuts:?}");
        }
        assert_eq!(sum(&[], 7), 0);
        // Zeros behind the end add nothing.
        assert_eq!(sum(&[&bytes[..], &[0; 9]].concat(), 0), whole);
    }

    #[test]
    fn each_changed_bit_and_each_exchange_is_noticed() {
        let mut random = Random::new(seed());
        let bytes: Vec<u8> = (0..9001).map(|_| random.below(256) as u8).collect();
        let whole = sum(&bytes, 0);
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let by_bit = sum(&changed[bit / 8..=bit / 8], (bit / 8) as u64);
            let old = sum(&bytes[bit / 8..=bit / 8], (bit / 8) as u64);
            assert_ne!(by_bit, old, "bit {bit}");
        }
        for (one, two, len_bytes) in [(0, 4096, 4096), (0, 4, 4), (16, 4112, 16), (1, 2, 1), (100, 8100, 512)]
        {
            let mut changed = bytes.clone();
            for at in 0..len_bytes {
                changed.swap(one + at, two + at);
            }
            assert_ne!(sum(&changed, 0), whole, "{len_bytes} bytes at {one} and {two}");
        }
    }
}
