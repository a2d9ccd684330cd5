//! The kernel of gpufile/kernels/unpack.cu: it decodes groups of packed tensors, as docs/packed.md specifies them.

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub address: u64,
    pub status: u64,
    pub sum: u64,
    pub offset: u32,
    pub len: u32,
    pub from: u32,
    pub to: u32,
    pub values: u32,
    pub number: u32,
    pub kind: u32,
    pub escapes: u16,
    pub patches: u16,
    pub common: [u8; 8],
    pub rare: [u8; 16],
}

// The kernel's own assertion has the same number.
const _: () = assert!(size_of::<Group>() == 80);

pub(crate) const BF16: u32 = 1;
pub(crate) const F16: u32 = 2;
pub(crate) const F32: u32 = 3;
pub(crate) const F8_E4M3: u32 = 4;
pub(crate) const F8_E5M2: u32 = 5;
pub(crate) const STORED: u16 = u16::MAX;

impl Group {
    pub fn value_bytes(&self) -> usize {
        match self.kind {
            F32 => 4,
            BF16 | F16 => 2,
            _ => 1,
        }
    }

    /// Returns the wanted values; `None` if a check fails.
    pub fn unpack(&self, block: &[u8]) -> Option<Vec<u8>> {
        if checksum(block) != self.sum {
            return None;
        }
        let bytes = self.value_bytes();
        let wanted = self.from as usize..self.to as usize;
        if self.escapes == STORED {
            return Some(block[wanted.start * bytes..wanted.end * bytes].to_vec());
        }
        let n = (self.values as usize).next_multiple_of(128);
        let low = block[..n * [0, 1, 1, 3, 0, 0][self.kind as usize]].len();
        let raw = [0, 0, 3, 0, 4, 3][self.kind as usize];
        let bit = |plane: usize, i: usize| block[low + plane * n / 8 + i / 8] >> (i % 8) & 1;
        let nibbles = low + (raw + 3) * n / 8;
        let patches = nibbles + usize::from(self.escapes).div_ceil(2).next_multiple_of(4);
        let (mut escape, mut patch) = (0, 0);
        let mut values = Vec::new();
        for i in 0..n {
            let code = (0..3).map(|plane| bit(raw + plane, i) << plane).sum::<u8>();
            let symbol = if code < 7 {
                self.common[usize::from(code)]
            } else if escape == self.escapes {
                return None;
            } else {
                let nibble = block[nibbles + usize::from(escape) / 2] >> (escape % 2 * 4) & 15;
                escape += 1;
                if nibble < 15 {
                    self.rare[usize::from(nibble)]
                } else if patch == self.patches {
                    return None;
                } else {
                    let at = patches + 4 * usize::from(patch);
                    patch += 1;
                    let place = usize::from(block[at]) + 256 * usize::from(block[at + 1]);
                    if place != i || block[at + 3] != 0 {
                        return None;
                    }
                    block[at + 2]
                }
            };
            if wanted.contains(&i) {
                let value = self.value(block, symbol, n, i, |plane| bit(plane, i));
                values.extend_from_slice(&value.to_le_bytes()[..bytes]);
            }
        }
        (escape == self.escapes && patch == self.patches).then_some(values)
    }

    fn value(&self, block: &[u8], symbol: u8, n: usize, i: usize, raw: impl Fn(usize) -> u8) -> u32 {
        let symbol = u32::from(symbol);
        let top = |byte: u8| u32::from(byte & 128) << 8 | symbol << 7 | u32::from(byte & 127);
        match self.kind {
            BF16 => top(block[i]),
            F32 => top(block[2 * n + i]) << 16 | u32::from(block[2 * i + 1]) << 8 | u32::from(block[2 * i]),
            F8_E4M3 => {
                (0..3).map(|plane| u32::from(raw(plane)) << plane).sum::<u32>()
                    | symbol << 3
                    | u32::from(raw(3)) << 7
            }
            kind => {
                let high = u32::from(raw(0)) | u32::from(raw(1)) << 1 | symbol << 2 | u32::from(raw(2)) << 7;
                if kind == F8_E5M2 { high } else { high << 8 | u32::from(block[i]) }
            }
        }
    }
}

pub(crate) fn checksum(block: &[u8]) -> u64 {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let mut sum = block.len() as u64;
    for (number, pair) in (0..).zip(block.chunks_exact(8)) {
        let (a, b) = (word(&pair[..4]), word(&pair[4..]));
        let keyed = |word: u32, number: u32| u64::from(word.wrapping_add(number.wrapping_mul(0x9e37_79b1)));
        let product = keyed(a, 2 * number + 1).wrapping_mul(keyed(b, 2 * number + 2));
        sum = sum.wrapping_add(product).wrapping_add(u64::from(a)).wrapping_add(u64::from(b) << 32);
    }
    sum
}
