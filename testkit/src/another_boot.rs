//! The folder of a block store as it is after the machine stopped.

use std::fs;
use std::path::Path;

/// The length in bytes of an index entry, and of the part of its header before a checksum.
pub const ENTRY: usize = 64;

/// Gives the index another boot of the machine, as if it had stopped since.
pub fn stop_the_machine(folder: &Path) {
    let path = folder.join("index");
    let mut bytes = fs::read(&path).unwrap();
    bytes[24] ^= 1;
    let checksum = crc32(&bytes[..ENTRY - 4]);
    bytes[ENTRY - 4..ENTRY].copy_from_slice(&checksum.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}
