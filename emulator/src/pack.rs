//! The kernels of gpufile/kernels/pack.cu: they pack groups of values, as docs/packed.md specifies them.

use crate::unpack::{BF16, F8_E4M3, F8_E5M2, F16, F32, STORED, checksum};

const GROUP: usize = 8192;
const ESCAPE: u8 = 7;
const PATCH: u8 = 15;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub values: u64,
    pub count: u64,
    pub kind: u32,
    pub reserved: u32,
    pub common: [u8; 8],
    pub rare: [u8; 16],
}

// The kernels' own assertion has the same number.
const _: () = assert!(size_of::<Job>() == 48);

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Entry {
    pub end: u32,
    pub escapes: u16,
    pub patches: u16,
    pub sum: u64,
}

impl Job {
    pub fn value_bytes(&self) -> usize {
        match self.kind {
            F32 => 4,
            BF16 | F16 => 2,
            _ => 1,
        }
    }

    /// Returns the bytes of a group in those of all values.
    pub fn group(&self, number: usize) -> std::ops::Range<usize> {
        let of = |values: usize| values.min(self.count as usize) * self.value_bytes();
        of(number * GROUP)..of((number + 1) * GROUP)
    }

    fn value(&self, bytes: &[u8]) -> u32 {
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
    }

    fn symbol(&self, value: u32) -> u8 {
        (match self.kind {
            F32 => value >> 23 & 255,
            BF16 => value >> 7 & 255,
            F16 => value >> 10 & 31,
            F8_E5M2 => value >> 2 & 31,
            _ => value >> 3 & 15,
        }) as u8
    }

    /// Returns the code of an exponent, and its escape.
    fn code(&self, symbol: u8) -> (u8, u8) {
        let code = (0..7).rev().find(|code| self.common[usize::from(*code)] == symbol).unwrap_or(ESCAPE);
        let escape = (0..15).find(|escape| self.rare[usize::from(*escape)] == symbol).unwrap_or(PATCH);
        (code, escape)
    }

    /// Returns the numbers of escapes and patches of a group.
    pub fn counts(&self, group: &[u8]) -> (u16, u16) {
        let (block, escapes, patches) = self.encoded(group);
        match block.len() < group.len().next_multiple_of(16) {
            true => (escapes, patches),
            false => (STORED, 0),
        }
    }

    /// Returns the block of a group with these numbers, and its checksum.
    pub fn block(&self, group: &[u8], entry: Entry) -> (Vec<u8>, u64) {
        let block = match entry.escapes {
            STORED => padded(group.to_vec()),
            _ => self.encoded(group).0,
        };
        let sum = checksum(&block);
        (block, sum)
    }

    fn encoded(&self, group: &[u8]) -> (Vec<u8>, u16, u16) {
        let values: Vec<u32> = group.chunks(self.value_bytes()).map(|bytes| self.value(bytes)).collect();
        let n = values.len().next_multiple_of(128);
        let at = |i: usize| values.get(i).copied().unwrap_or(0);
        let symbols: Vec<u8> =
            (0..n).map(|i| values.get(i).map_or(self.common[0], |value| self.symbol(*value))).collect();
        let top = |value: u32| (value >> 8 & 0x80 | value & 0x7f) as u8;
        let mut block: Vec<u8> = match self.kind {
            BF16 => (0..n).map(|i| top(at(i))).collect(),
            F16 => (0..n).map(|i| at(i) as u8).collect(),
            F32 => {
                let halves = (0..n).flat_map(|i| (at(i) as u16).to_le_bytes());
                halves.chain((0..n).map(|i| top(at(i) >> 16))).collect()
            }
            _ => Vec::new(),
        };
        let mut plane = |bit: &dyn Fn(usize) -> u32| {
            block.extend((0..n / 8).map(|byte| (0..8).map(|i| (bit(8 * byte + i) << i) as u8).sum::<u8>()));
        };
        let raw: &[u32] = match self.kind {
            F16 => &[8, 9, 15],
            F8_E5M2 => &[0, 1, 7],
            F8_E4M3 => &[0, 1, 2, 7],
            _ => &[],
        };
        raw.iter().for_each(|shift| plane(&|i| at(i) >> shift & 1));
        (0..3).for_each(|bit| plane(&|i| u32::from(self.code(symbols[i]).0) >> bit & 1));
        let escaped: Vec<usize> = (0..n).filter(|i| self.code(symbols[*i]).0 == ESCAPE).collect();
        let mut nibbles: Vec<u8> = escaped.iter().map(|i| self.code(symbols[*i]).1).collect();
        nibbles.resize(escaped.len().next_multiple_of(8), 0);
        block.extend(nibbles.chunks(2).map(|pair| pair[0] | pair[1] << 4));
        let patched: Vec<_> = escaped.iter().filter(|i| self.code(symbols[**i]).1 == PATCH).collect();
        for i in &patched {
            block.extend_from_slice(&(**i as u32 | u32::from(symbols[**i]) << 16).to_le_bytes());
        }
        (padded(block), escaped.len() as u16, patched.len() as u16)
    }
}

fn padded(mut block: Vec<u8>) -> Vec<u8> {
    block.resize(block.len().next_multiple_of(16), 0);
    block
}
