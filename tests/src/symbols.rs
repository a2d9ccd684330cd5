//! Removal of functions from a shared object, to make it like an older one.

use std::ops::Range;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// Overwrites the first byte of each name in the dynamic loader's table of names. A look-up then finds the name's
/// hash, but not the name.
///
/// # Panics
/// If the library does not export a name.
pub(crate) fn hide<'a>(library: &mut [u8], names: impl Iterator<Item = &'a str>) {
    let table = strings(library).expect("a 64-bit shared object with a dynamic string table");
    let table = &mut library[table];
    for name in names {
        let entry = [&[0], name.as_bytes(), &[0]].concat();
        let found = table.windows(entry.len()).position(|window| window == entry);
        let at = found.unwrap_or_else(|| panic!("the emulator does not export {name}"));
        table[at + 1] = b'-';
    }
}

/// Finds the dynamic string table in the file.
fn strings(library: &[u8]) -> Option<Range<usize>> {
    let headers = long(library, 0x20)? as usize;
    let size = usize::from(u16::from_le_bytes(library.get(0x36..0x38)?.try_into().ok()?));
    let count = usize::from(u16::from_le_bytes(library.get(0x38..0x3a)?.try_into().ok()?));
    let headers: Vec<usize> = (0..count).map(|index| headers + index * size).collect();
    let of_kind = |kind| headers.iter().filter(move |at| word(library, **at) == Some(kind));

    let dynamic = *of_kind(PT_DYNAMIC).next()?;
    let (start, length) = (long(library, dynamic + 0x8)? as usize, long(library, dynamic + 0x20)? as usize);
    let entry = |tag| {
        let mut entries = (start..start + length).step_by(16);
        entries.find(|at| long(library, *at) == Some(tag)).and_then(|at| long(library, at + 8))
    };
    let (address, length) = (entry(DT_STRTAB)?, entry(DT_STRSZ)? as usize);

    // The entry is an address; the segment that contains it gives its place in the file.
    for segment in of_kind(PT_LOAD) {
        let (offset, base) = (long(library, segment + 0x8)?, long(library, segment + 0x10)?);
        if (base..base + long(library, segment + 0x20)?).contains(&address) {
            let first = (offset + address - base) as usize;
            return Some(first..first + length);
        }
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
