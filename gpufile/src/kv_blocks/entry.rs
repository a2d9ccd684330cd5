//! The form of the index: a header, and an entry for each slot. All numbers are little-endian.
//!
//! An entry of zeros is a free slot. Every other entry has a checksum of itself, which covers the number of its slot. So an
//! entry that is damaged, half written, or in a wrong place does not pass for a block.

/// The length of an entry and of the used part of the header, in bytes. No entry lies in two sectors of a disk.
pub const ENTRY_BYTES: usize = 64;

/// The place of the first entry in the file.
pub const HEADER_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"gpufKVB7";
/// The first bytes of indexes that earlier versions made. No single wrong bit makes them of the others.
const EARLIER: [&[u8; 8]; 3] = [b"gpufKVB1", b"gpufKVB2", b"gpufKVB4"];
/// The checksum covers the bytes before it.
const CHECKED_BYTES: usize = ENTRY_BYTES - 4;

/// The facts that hold for all blocks of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub block_bytes: u64,
    pub blocks_per_file: u32,
    /// True if all blocks reached the disk before the store was closed.
    pub is_clean: bool,
    /// The boot of the machine in which the store was last open.
    pub boot: [u8; 16],
    /// The number of times that the store was opened for writing.
    pub opened: u32,
    /// The store, which no other has. All its folders have it.
    pub store: [u8; 12],
    /// The number of this folder. The first has the entries.
    pub folder: u16,
    /// The number of folders of the store.
    pub folders: u16,
}

/// A block in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub key: u128,
    /// Of two entries with the same key, the one with the higher generation is valid.
    pub generation: u64,
    pub len_bytes: u64,
    /// The [sum](super::sum) of the block, if it was computed.
    pub checksum: Option<u64>,
    /// True if the block had reached the disk before this entry was written.
    pub is_durable: bool,
}

const HAS_CHECKSUM: u32 = 1;
const IS_DURABLE: u32 = 2;

/// The contents of the place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Free,
    Damaged,
    Block(Entry),
}

impl Header {
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.block_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.blocks_per_file.to_le_bytes());
        bytes[20..24].copy_from_slice(&u32::from(self.is_clean).to_le_bytes());
        bytes[24..40].copy_from_slice(&self.boot);
        bytes[40..44].copy_from_slice(&self.opened.to_le_bytes());
        bytes[44..46].copy_from_slice(&self.folder.to_le_bytes());
        bytes[46..48].copy_from_slice(&self.folders.to_le_bytes());
        bytes[48..60].copy_from_slice(&self.store);
        sealed(bytes)
    }

    /// Returns the header in these bytes, or `None` if it is damaged or that of another file.
    pub fn parse(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        (bytes.starts_with(MAGIC) && is_sealed(bytes)).then(|| Self {
            block_bytes: u64::from_le_bytes(part(bytes, 8)),
            blocks_per_file: u32::from_le_bytes(part(bytes, 16)),
            is_clean: part(bytes, 20) == 1_u32.to_le_bytes(),
            boot: part(bytes, 24),
            opened: u32::from_le_bytes(part(bytes, 40)),
            folder: u16::from_le_bytes(part(bytes, 44)),
            folders: u16::from_le_bytes(part(bytes, 46)),
            store: part(bytes, 48),
        })
    }

    /// Returns whether an earlier version made the file, whose form this one does not read.
    pub fn is_earlier(bytes: &[u8; ENTRY_BYTES]) -> bool {
        EARLIER.iter().any(|magic| bytes.starts_with(*magic))
    }

    /// Returns the least generation of blocks that are stored after this opening. No earlier opening used it, so an entry that
    /// a reader saw never comes back for other bytes.
    pub fn first_generation(&self) -> u64 {
        /// More would exceed the generations that are possible.
        const MOST_OPENED: u32 = (1 << 22) - 1;
        u64::from(self.opened.min(MOST_OPENED)) << 40
    }
}

impl Entry {
    /// Returns whether the disk has the block, or a fetch finds that it has not. `has_all` is true if the machine did not stop
    /// since the store wrote.
    pub fn is_believed(&self, has_all: bool, has_checksums: bool) -> bool {
        has_all || self.is_durable || has_checksums && self.checksum.is_some()
    }

    pub fn to_bytes(self, slot: u32) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let flags = if self.checksum.is_some() { HAS_CHECKSUM } else { 0 };
        let flags = flags | if self.is_durable { IS_DURABLE } else { 0 };
        bytes[..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.checksum.unwrap_or(0).to_le_bytes());
        bytes[40..44].copy_from_slice(&flags.to_le_bytes());
        bytes[56..60].copy_from_slice(&slot.to_le_bytes());
        sealed(bytes)
    }

    /// Returns what the bytes say about a slot, whose blocks have at most `block_bytes` bytes.
    pub fn parse(bytes: &[u8; ENTRY_BYTES], slot: u32, block_bytes: u64) -> Found {
        if *bytes == [0; ENTRY_BYTES] {
            return Found::Free;
        }
        let flags = u32::from_le_bytes(part(bytes, 40));
        let checksum = u64::from_le_bytes(part(bytes, 32));
        let entry = Self {
            key: u128::from_le_bytes(part(bytes, 0)),
            generation: u64::from_le_bytes(part(bytes, 16)),
            len_bytes: u64::from_le_bytes(part(bytes, 24)),
            checksum: (flags & HAS_CHECKSUM != 0).then_some(checksum),
            is_durable: flags & IS_DURABLE != 0,
        };
        // No store makes more generations than this.
        let is_possible = (1..=block_bytes).contains(&entry.len_bytes) && entry.generation < u64::MAX / 2;
        match is_sealed(bytes) && part(bytes, 56) == slot.to_le_bytes() && is_possible {
            true => Found::Block(entry),
            false => Found::Damaged,
        }
    }
}

fn part<const N: usize>(bytes: &[u8; ENTRY_BYTES], start: usize) -> [u8; N] {
    bytes[start..start + N].try_into().expect("as many bytes")
}

fn sealed(mut bytes: [u8; ENTRY_BYTES]) -> [u8; ENTRY_BYTES] {
    let checksum = crc32fast::hash(&bytes[..CHECKED_BYTES]);
    bytes[CHECKED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn is_sealed(bytes: &[u8; ENTRY_BYTES]) -> bool {
    crc32fast::hash(&bytes[..CHECKED_BYTES]).to_le_bytes() == bytes[CHECKED_BYTES..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry = Entry {
        key: 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef,
        generation: 42,
        len_bytes: 1000,
        checksum: Some(7),
        is_durable: true,
    };

    const HEADER: Header = Header {
        block_bytes: 5,
        blocks_per_file: 6,
        is_clean: true,
        boot: [3; 16],
        opened: 7,
        store: [8; 12],
        folder: 1,
        folders: 2,
    };

    #[test]
    fn entries_are_read_as_written_and_in_no_other_slot() {
        for entry in [ENTRY, Entry { checksum: None, is_durable: false, ..ENTRY }] {
            let bytes = entry.to_bytes(9);
            assert_eq!(Entry::parse(&bytes, 9, 1000), Found::Block(entry));
            assert_eq!(Entry::parse(&bytes, 8, 1000), Found::Damaged);
            assert_eq!(Entry::parse(&bytes, 9, 999), Found::Damaged);
        }
        let header = HEADER;
        assert_eq!(Header::parse(&header.to_bytes()), Some(header));
        assert_eq!(Entry::parse(&[0; ENTRY_BYTES], 0, 1), Found::Free);
        assert_eq!(Header::parse(&[0; ENTRY_BYTES]), None);
        // Generations of any number of openings are possible, and ascend.
        let first = |opened| Header { opened, ..HEADER }.first_generation();
        assert!(first(7) > first(6) && first(1) > 0);
        let entry = Entry { generation: first(u32::MAX) + (1 << 41), ..ENTRY };
        assert_eq!(Entry::parse(&entry.to_bytes(0), 0, 1000), Found::Block(entry));
    }

    #[test]
    fn each_changed_bit_is_noticed() {
        let header = HEADER;
        for bit in 0..8 * ENTRY_BYTES {
            let flip = |mut bytes: [u8; ENTRY_BYTES]| {
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            };
            assert_eq!(Entry::parse(&flip(ENTRY.to_bytes(9)), 9, 1000), Found::Damaged, "bit {bit}");
            assert_eq!(Header::parse(&flip(header.to_bytes())), None, "bit {bit}");
        }
        // A write that was cut off.
        for end in 1..ENTRY_BYTES {
            let mut bytes = [0; ENTRY_BYTES];
            bytes[..end].copy_from_slice(&ENTRY.to_bytes(9)[..end]);
            assert_eq!(Entry::parse(&bytes, 9, 1000), Found::Damaged, "{end} bytes");
        }
    }
}
