//! Tests of the code: every value comes back, and damage is found.

use super::layout::{ENTRY_BYTES, HEAD_BYTES};
use super::*;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number near 0, seldom far from it, as weights are.
    fn weight(&mut self) -> f32 {
        let unit = |random: &mut Self| (random.next() >> 40) as f32 / (1 << 24) as f32;
        let sum: f32 = (0..6).map(|_| unit(self)).sum();
        (sum - 3.0) * 0.02 * if self.next().is_multiple_of(100) { 64.0 } else { 1.0 }
    }
}

/// Returns weights of a kind, by cutting bits from those of `F32`.
fn weights(kind: Kind, values: usize, random: &mut Random) -> Vec<u8> {
    let mut value = || {
        let bits = random.weight().to_bits();
        let (sign, exponent, mantissa) = (bits >> 31, (bits >> 23 & 255) as i32 - 127, bits & 0x7f_ffff);
        let small = |bias: i32, exponent_bits: u32, mantissa_bits: u32| {
            let most = (1 << exponent_bits) - 1;
            let exponent = (exponent + bias).clamp(0, most) as u32;
            (sign << exponent_bits | exponent) << mantissa_bits | mantissa >> (23 - mantissa_bits)
        };
        match kind {
            Kind::Bf16 => bits >> 16,
            Kind::F32 => bits,
            Kind::F16 => small(15, 5, 10),
            Kind::F8E4M3 => small(12, 4, 3),
            Kind::F8E5M2 => small(15, 5, 2),
        }
    };
    (0..values).flat_map(|_| value().to_le_bytes().into_iter().take(kind.value_bytes())).collect()
}

fn packed(kind: Kind, values: &[u8]) -> Vec<u8> {
    let mut histogram = [0; 256];
    count(kind, values, &mut histogram);
    let coder = Coder::new(kind, &histogram);
    let (mut blocks, mut entries, mut scratch) = (Vec::new(), Vec::new(), Scratch::new());
    for group in values.chunks(GROUP * kind.value_bytes()) {
        let entry = coder.encode(group, &mut blocks, &mut scratch);
        entries.push(Entry { end: (blocks.len() / UNIT) as u32, ..entry });
    }
    let values = (values.len() / kind.value_bytes()) as u64;
    let layout = Layout { kind, values, tables: coder.tables(), entries };
    let mut bytes = layout.to_bytes();
    bytes.extend_from_slice(&blocks);
    assert_eq!(layout.len_bytes(), bytes.len() as u64);
    bytes
}

fn unpacked(kind: Kind, values: u64, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let front = &bytes[..front_bytes(values).unwrap().min(bytes.len())];
    let layout = Layout::parse(front, kind, values, bytes.len() as u64)?;
    let mut out = vec![0xaa; values as usize * kind.value_bytes()];
    let mut scratch = Scratch::new();
    for (group, out) in out.chunks_mut(GROUP * kind.value_bytes()).enumerate() {
        let block = layout.block(group);
        let block = &bytes[block.start as usize..block.end as usize];
        decode(kind, &layout.tables, (group, layout.entries[group]), block, out, &mut scratch)?;
    }
    Ok(out)
}

#[test]
fn every_value_of_16_bits_comes_back() {
    for kind in Kind::ALL {
        // Twice over, so that types of 8 bits meet each value in each place.
        let all: Vec<u8> = (0..=u16::MAX).chain((0..=u16::MAX).rev()).flat_map(u16::to_le_bytes).collect();
        let values = (all.len() / kind.value_bytes()) as u64;
        assert!(unpacked(kind, values, &packed(kind, &all)).unwrap() == all, "{kind:?}");
    }
}

#[test]
fn tensors_of_any_length_come_back() {
    let mut random = Random(7);
    let lengths = [0, 1, 2, 127, 128, 129, 8191, 8192, 8193, 20_000, 24_576];
    for kind in Kind::ALL {
        for values in lengths {
            let bytes = weights(kind, values, &mut random);
            assert!(
                unpacked(kind, values as u64, &packed(kind, &bytes)).unwrap() == bytes,
                "{kind:?} {values}"
            );
        }
    }
}

#[test]
fn special_values_among_weights_come_back() {
    let specials: [u32; 10] = [
        0,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_1234,
        0xffff_ffff,
        0x7f81_0001,
        1,
        0x8000_0001,
        0x007f_ffff,
    ];
    let mut random = Random(11);
    for kind in Kind::ALL {
        let mut bytes = weights(kind, 3 * GROUP + 77, &mut random);
        for value in bytes.chunks_exact_mut(kind.value_bytes()) {
            if random.next().is_multiple_of(50) {
                let special = specials[random.next() as usize % specials.len()].to_le_bytes();
                value.copy_from_slice(&special[4 - kind.value_bytes()..]);
            }
        }
        let values = (bytes.len() / kind.value_bytes()) as u64;
        assert!(unpacked(kind, values, &packed(kind, &bytes)).unwrap() == bytes, "{kind:?}");
    }
}

#[test]
fn random_bits_are_stored_as_they_are() {
    let mut random = Random(5);
    for kind in Kind::ALL {
        let bytes: Vec<u8> = (0..2 * GROUP * kind.value_bytes()).map(|_| random.next() as u8).collect();
        let mut histogram = [0; 256];
        count(kind, &bytes, &mut histogram);
        assert!(Coder::new(kind, &histogram).share(&histogram) > 0.97, "{kind:?}");
        let packed = packed(kind, &bytes);
        assert!(packed.len() <= bytes.len() + HEAD_BYTES + 2 * ENTRY_BYTES, "{kind:?}");
        assert!(unpacked(kind, 2 * GROUP as u64, &packed).unwrap() == bytes, "{kind:?}");
    }
}

#[test]
fn weights_shrink_as_the_page_says() {
    let mut random = Random(3);
    for (kind, most) in
        [(Kind::Bf16, 0.71), (Kind::F16, 0.90), (Kind::F32, 0.86), (Kind::F8E4M3, 0.93), (Kind::F8E5M2, 0.83)]
    {
        let bytes = weights(kind, 32 * GROUP, &mut random);
        let share = packed(kind, &bytes).len() as f64 / bytes.len() as f64;
        assert!(share < most, "{kind:?}: {share}");
        let mut histogram = [0; 256];
        count(kind, &bytes, &mut histogram);
        let expected = Coder::new(kind, &histogram).share(&histogram);
        assert!((share - expected).abs() < 0.005, "{kind:?}: {share} instead of {expected}");
    }
}

/// Changes a byte in 10,000 ways, cuts the end off, and puts blocks in each other's place.
#[test]
fn damage_is_an_error() {
    let mut random = Random(13);
    for kind in Kind::ALL {
        let values = GROUP + 300;
        let bytes = weights(kind, values, &mut random);
        let whole = packed(kind, &bytes);
        let unpacked = |damaged: &[u8]| unpacked(kind, values as u64, damaged);
        assert!(unpacked(&whole).unwrap() == bytes);
        for _ in 0..2_000 {
            let mut damaged = whole.clone();
            // Every other case is in the head, the index, or the start of the first block.
            let end = if random.next().is_multiple_of(2) { damaged.len() } else { 200 };
            let at = random.next() as usize % end;
            damaged[at] ^= 1 + (random.next() % 255) as u8;
            assert!(unpacked(&damaged).is_err(), "{kind:?}: byte {at}");
        }
        for len in (0..whole.len()).step_by(97) {
            assert!(unpacked(&whole[..len]).is_err(), "{kind:?}: {len} bytes");
        }
        let wrong = Layout::parse(&whole[..front_bytes(values as u64).unwrap()], kind, 0, whole.len() as u64);
        assert!(wrong.is_err());
    }
}

/// Gives damaged blocks and indexes right checksums, so that the other checks meet them.
#[test]
fn damage_with_right_checksums_stays_in_bounds() {
    let mut random = Random(17);
    let mut refused = 0;
    for case in 0..3_000 {
        let kind = Kind::ALL[case % 5];
        let bytes = weights(kind, 600, &mut random);
        let mut damaged = packed(kind, &bytes);
        let fixed = HEAD_BYTES + ENTRY_BYTES;
        for _ in 0..1 + random.next() % 3 {
            let at = random.next() as usize % damaged.len();
            damaged[at] = random.next() as u8;
        }
        let sum_of_block = sum::sum(&damaged[fixed..]);
        damaged[fixed - 8..fixed].copy_from_slice(&sum_of_block.to_le_bytes());
        damaged[HEAD_BYTES - 8..HEAD_BYTES].fill(0);
        let sum_of_front = sum::sum(&damaged[..fixed]);
        damaged[HEAD_BYTES - 8..HEAD_BYTES].copy_from_slice(&sum_of_front.to_le_bytes());
        refused += usize::from(unpacked(kind, 600, &damaged).is_err());
    }
    assert!((300..3_000).contains(&refused), "{refused}");
}

#[test]
fn newer_versions_are_named() {
    let mut bytes = packed(Kind::Bf16, &[1; 400]);
    bytes[8] = 9;
    let error = unpacked(Kind::Bf16, 200, &bytes).unwrap_err();
    assert!(error.to_string().contains("version 9"), "{error}");
}
