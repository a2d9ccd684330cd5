//! The checksum of a packed tensor's parts.

/// The step between the keys of successive words.
const KEY: u32 = 0x9e37_79b1;

/// Returns the checksum of bytes, whose number is a multiple of 8.
///
/// Each pair of words `a`, `b` adds `(a + k) (b + k') + a + 2^32 b` to the length in bytes, modulo 2^64. `k` and `k'` are
/// `KEY` times the number of the word, counted from 1, modulo 2^32, as are the two sums in parentheses. So vectors
/// and the threads of a GPU add in any order, and words that change places change the sum.
#[inline(always)]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut sum = bytes.len() as u64;
    let mut key = KEY;
    for pair in bytes.as_chunks::<8>().0 {
        let pair = u64::from_le_bytes(*pair);
        let a = (pair as u32).wrapping_add(key);
        let b = ((pair >> 32) as u32).wrapping_add(key.wrapping_add(KEY));
        sum = sum.wrapping_add(u64::from(a).wrapping_mul(u64::from(b))).wrapping_add(pair);
        key = key.wrapping_add(KEY.wrapping_mul(2));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_page() {
        assert_eq!(sum(&[]), 0);
        let key = |n: u64| n * u64::from(KEY) % (1 << 32);
        assert_eq!(sum(&[0; 8]), 8_u64.wrapping_add(key(1) * key(2)));
        let words = [5_u64, 7, 11, 13];
        let bytes: Vec<u8> = words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect();
        let first = (5 + key(1)) % (1 << 32) * ((7 + key(2)) % (1 << 32));
        let second = (11 + key(3)) % (1 << 32) * ((13 + key(4)) % (1 << 32));
        let pairs = 5 + 11 + ((7 + 13) << 32);
        assert_eq!(sum(&bytes), 16_u64.wrapping_add(first).wrapping_add(second).wrapping_add(pairs));
    }

    #[test]
    fn changed_and_swapped_words_change_the_sum() {
        let mut bytes: Vec<u8> = (0..64).collect();
        let before = sum(&bytes);
        for at in 0..64 {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                assert_ne!(sum(&bytes), before);
                bytes[at] ^= 1 << bit;
            }
        }
        // The same bit of two words, and two words that change places.
        for (one, other) in [(3, 7), (3, 11), (7, 11)] {
            bytes[one] ^= 0x80;
            bytes[other] ^= 0x80;
            assert_ne!(sum(&bytes), before);
            bytes[one] ^= 0x80;
            bytes[other] ^= 0x80;
        }
        bytes.rotate_left(8);
        assert_ne!(sum(&bytes), before);
    }
}
