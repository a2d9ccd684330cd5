//! The parts of a packed tensor: its head, the index of its groups, and their lengths. Nothing is decoded here.

use std::ops::Range;

use super::fault::{Fault, VERSION};
use super::sum::sum;

pub const MAGIC: [u8; 8] = *b"gpfpack\n";
/// The values of each group. The last one of a tensor may have fewer.
pub const GROUP: usize = 8192;
/// The values of the last group are filled up to a multiple of this.
const PADDED: usize = 128;
pub const HEAD_BYTES: usize = 64;
/// The bytes of the index for each group.
pub const ENTRY_BYTES: usize = 16;
/// Blocks begin at multiples of this, in bytes from the first.
pub const UNIT: usize = 16;
/// The number of escapes of a block that has its values as they are.
const STORED: u16 = u16::MAX;

/// The type of a packed tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bf16,
    F16,
    F32,
    F8E4M3,
    F8E5M2,
}

impl Kind {
    /// All kinds, in the order of their numbers, which begin with 1.
    pub const ALL: [Self; 5] = [Self::Bf16, Self::F16, Self::F32, Self::F8E4M3, Self::F8E5M2];

    fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).wrapping_sub(1)).copied()
    }

    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    pub fn value_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::F8E4M3 | Self::F8E5M2 => 1,
        }
    }

    /// Returns the bytes of a value that a block has as they are.
    pub fn low_bytes(self) -> usize {
        match self {
            Self::F32 => 3,
            Self::Bf16 | Self::F16 => 1,
            Self::F8E4M3 | Self::F8E5M2 => 0,
        }
    }

    /// Returns the planes of bits of a value that a block has as they are.
    pub fn raw_planes(self) -> usize {
        match self {
            Self::Bf16 | Self::F32 => 0,
            Self::F16 | Self::F8E5M2 => 3,
            Self::F8E4M3 => 4,
        }
    }

    /// Returns the largest exponent field.
    pub fn most_symbol(self) -> u8 {
        match self {
            Self::Bf16 | Self::F32 => 255,
            Self::F16 | Self::F8E5M2 => 31,
            Self::F8E4M3 => 15,
        }
    }

    /// Returns the bytes of a block's parts of fixed length, for `padded` padded values.
    pub fn fixed_bytes(self, padded: usize) -> usize {
        padded * self.low_bytes() + (self.raw_planes() + 3) * (padded / 8)
    }
}

/// Returns the number of values of a group with its padding.
pub fn padded(values: usize) -> usize {
    values.next_multiple_of(PADDED)
}

/// The exponents of a tensor that have short codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tables {
    /// The exponents of the codes 0 to 6. The last byte is 0.
    pub common: [u8; 8],
    /// The exponents of the escapes 0 to 14. The last byte is 0.
    pub rare: [u8; 16],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The end of the block, in units from the start of the first.
    pub end: u32,
    /// The number of values without a code of three bits, or [`STORED`].
    pub escapes: u16,
    /// The number of values without an escape of four bits.
    pub patches: u16,
    /// The checksum of the block.
    pub sum: u64,
}

impl Entry {
    /// Returns the entry of a block with its values as they are. The end is not known yet.
    pub fn stored(sum: u64) -> Self {
        Self { end: 0, escapes: STORED, patches: 0, sum }
    }

    pub fn is_stored(&self) -> bool {
        self.escapes == STORED
    }

    /// Returns the bytes of the block, for a group of `values` values.
    pub fn block_bytes(&self, kind: Kind, values: usize) -> usize {
        let bytes = match self.is_stored() {
            true => values * kind.value_bytes(),
            false => {
                let nibbles = usize::from(self.escapes).div_ceil(2).next_multiple_of(4);
                kind.fixed_bytes(padded(values)) + nibbles + 4 * usize::from(self.patches)
            }
        };
        bytes.next_multiple_of(UNIT)
    }

    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..4].copy_from_slice(&self.end.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.escapes.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.patches.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sum.to_le_bytes());
        bytes
    }

    pub fn of_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        Self {
            end: word as u32,
            escapes: (word >> 32) as u16,
            patches: (word >> 48) as u16,
            sum: u64::from_le_bytes(bytes[8..].try_into().expect("eight bytes")),
        }
    }
}

/// The head of a packed tensor and the index of its groups, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub kind: Kind,
    pub values: u64,
    pub tables: Tables,
    pub entries: Vec<Entry>,
}

/// Returns the bytes of the head and the index of a tensor with `values` values; `None` beyond the memory of a
/// machine.
pub fn front_bytes(values: u64) -> Option<usize> {
    let groups = usize::try_from(values.div_ceil(GROUP as u64)).ok()?;
    groups.checked_mul(ENTRY_BYTES)?.checked_add(HEAD_BYTES)
}

impl Layout {
    pub fn values_of(&self, group: usize) -> usize {
        let before = (group * GROUP) as u64;
        (self.values - before).min(GROUP as u64) as usize
    }

    /// Returns the range of a group's block, in bytes from the start of the tensor.
    pub fn block(&self, group: usize) -> Range<u64> {
        let front = (HEAD_BYTES + self.entries.len() * ENTRY_BYTES) as u64;
        let start = group.checked_sub(1).map_or(0, |before| self.entries[before].end);
        front + u64::from(start) * UNIT as u64..front + u64::from(self.entries[group].end) * UNIT as u64
    }

    pub fn len_bytes(&self) -> u64 {
        let end = self.entries.last().map_or(0, |last| last.end);
        (HEAD_BYTES + self.entries.len() * ENTRY_BYTES) as u64 + u64::from(end) * UNIT as u64
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.entries.len() * ENTRY_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, self.kind.number(), 0, 0]);
        bytes.extend_from_slice(&(GROUP as u32).to_le_bytes());
        bytes.extend_from_slice(&self.values.to_le_bytes());
        bytes.extend_from_slice(&self.tables.common);
        bytes.extend_from_slice(&self.tables.rare);
        bytes.extend_from_slice(&self.len_bytes().to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        self.entries.iter().for_each(|entry| bytes.extend_from_slice(&entry.to_bytes()));
        let sum = sum(&bytes);
        bytes[HEAD_BYTES - 8..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses and checks the head and the index of a tensor of this kind, with `values` values in `len_bytes` bytes.
    pub fn parse(front: &[u8], kind: Kind, values: u64, len_bytes: u64) -> Result<Self, Fault> {
        let Some((head, index)) = front.split_first_chunk::<HEAD_BYTES>() else {
            return Err(Fault::Head("it has fewer bytes than a head"));
        };
        if head[..8] != MAGIC {
            return Err(Fault::Head("it does not begin as a packed tensor"));
        }
        if head[8] != VERSION {
            return Err(Fault::Version(head[8]));
        }
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let mut whole = front.to_vec();
        whole[HEAD_BYTES - 8..HEAD_BYTES].fill(0);
        if sum(&whole) != number(HEAD_BYTES - 8) {
            return Err(Fault::Sum(None));
        }
        if Kind::of_number(head[9]) != Some(kind) {
            return Err(Fault::Head("it has another type than the header says"));
        }
        if number(16) != values {
            return Err(Fault::Head("it has another number of values than the header says"));
        }
        let tables = Tables {
            common: head[24..32].try_into().expect("eight bytes"),
            rare: head[32..48].try_into().expect("sixteen bytes"),
        };
        let is_large = |symbol: &u8| *symbol > kind.most_symbol();
        let is_padded = head[10..12] == [0; 2] && (tables.common[7], tables.rare[15]) == (0, 0);
        if head[12..16] != (GROUP as u32).to_le_bytes()
            || !is_padded
            || tables.common.iter().chain(&tables.rare).any(is_large)
        {
            return Err(Fault::Head("its head is wrong"));
        }
        let (entries, rest) = index.as_chunks::<ENTRY_BYTES>();
        let entries: Vec<_> = entries.iter().map(Entry::of_bytes).collect();
        if !rest.is_empty() || entries.len() as u64 != values.div_ceil(GROUP as u64) {
            return Err(Fault::Head("its index has another number of groups than its values fill"));
        }
        let layout = Self { kind, values, tables, entries };
        let mut start = 0;
        for (group, entry) in layout.entries.iter().enumerate() {
            let values = layout.values_of(group);
            let is_possible = entry.is_stored() && entry.patches == 0
                || usize::from(entry.escapes) <= padded(values) && entry.patches <= entry.escapes;
            let end = start + (entry.block_bytes(kind, values) / UNIT) as u64;
            if !is_possible || u64::from(entry.end) != end {
                return Err(Fault::Index(group));
            }
            start = end;
        }
        if (layout.len_bytes(), number(48)) != (len_bytes, len_bytes) {
            return Err(Fault::Head("it has another length than its index says"));
        }
        Ok(layout)
    }
}
