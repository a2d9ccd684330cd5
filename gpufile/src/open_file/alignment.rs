//! The arithmetic of `O_DIRECT`: the bounds of aligned ranges, and the place of their bytes in a buffer.

use crate::gpu::bounce::Bounce;

/// The alignment in bytes of offsets and lengths, and of addresses up to that of bounce buffers. It is a power of
/// two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alignment(pub usize);

impl Alignment {
    pub fn up(self, position: usize) -> usize {
        position.next_multiple_of(self.0)
    }

    /// Returns whether address, offset and length are all aligned.
    pub fn fits(self, address: *const u8, offset: u64, len_bytes: usize) -> bool {
        let is_in_place = address.addr().is_multiple_of(self.0.min(Bounce::ALIGNMENT));
        is_in_place && (offset | len_bytes as u64).is_multiple_of(self.0 as u64)
    }

    /// Returns the number of bytes between `offset` and the next aligned one.
    pub fn until_aligned(self, offset: u64) -> usize {
        (offset.next_multiple_of(self.0 as u64) - offset) as usize
    }

    /// Returns the largest multiple of the alignment that is at most `len_bytes`.
    pub fn aligned_part(self, len_bytes: usize) -> usize {
        len_bytes & !(self.0 - 1)
    }

    /// Returns the smallest aligned range around a range: how many bytes earlier it begins, and its length in bytes.
    pub fn enclosing(self, offset: u64, len_bytes: usize) -> (usize, usize) {
        let head = self.head(offset);
        (head, self.up(head + len_bytes))
    }

    /// Returns the number of bytes between the last aligned offset and this one.
    pub fn head(self, offset: u64) -> usize {
        (offset % self.0 as u64) as usize
    }

    /// Returns the place for reading the enclosing range into an aligned buffer whose first `end` bytes are taken.
    /// Returns `None` without room for that, or for `behind_bytes` more behind the range.
    pub fn place_for_read(
        self,
        (end, room_bytes): (usize, usize),
        offset: u64,
        len_bytes: usize,
        behind_bytes: usize,
    ) -> Option<usize> {
        let head = self.head(offset);
        let whole = head.checked_add(len_bytes)?.checked_next_multiple_of(self.0)?;
        let first = end.checked_next_multiple_of(self.0)?;
        let start = first.checked_add(head)?;
        let whole_end = first.checked_add(whole)?;
        let behind_end = start.checked_add(len_bytes)?.checked_add(behind_bytes)?;
        (whole_end.max(behind_end) <= room_bytes).then_some(start)
    }

    /// Returns the most bytes of a range whose enclosing range fits into a buffer, wherever it begins.
    pub fn most_bytes(self, room_bytes: usize) -> usize {
        room_bytes.saturating_sub(2 * self.0)
    }

    /// Returns the place for a range in an aligned buffer whose first `end` bytes are taken. The aligned part of the
    /// range can be written from there. Returns `end` if there is no room for that.
    pub fn place_for_write(self, (end, room_bytes): (usize, usize), offset: u64, len_bytes: usize) -> usize {
        let place = || {
            let start = end.checked_next_multiple_of(self.0)?.checked_add(self.head(offset))?;
            (start.checked_add(len_bytes)? <= room_bytes).then_some(start)
        };
        place().unwrap_or(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: Alignment = Alignment(512);

    #[test]
    fn positions_and_lengths_are_aligned() {
        for (position, next, before) in
            [(0, 0, 0), (1, 512, 0), (511, 512, 0), (512, 512, 512), (1025, 1536, 1024)]
        {
            assert_eq!(SECTOR.up(position), next);
            assert_eq!(SECTOR.until_aligned(position as u64), next - position);
            assert_eq!(SECTOR.aligned_part(position), before);
        }
        for (offset, len_bytes, enclosing) in [
            (0, 512, (0, 512)),
            (0, 513, (0, 1024)),
            (700, 1, (188, 512)),
            (1023, 2, (511, 1024)),
            (1024, 0, (0, 0)),
        ] {
            assert_eq!(SECTOR.enclosing(offset, len_bytes), enclosing, "{len_bytes} bytes at {offset}");
        }
    }

    #[test]
    fn address_offset_and_length_must_all_be_aligned() {
        for (address, offset, len_bytes, aligned) in [
            (1024, 512, 2048, true),
            (1025, 512, 2048, false),
            (1024, 513, 2048, false),
            (1024, 512, 256, false),
            // A bit that is set in two of the three counts as set.
            (1025, 513, 2048, false),
            (1024, 513, 2049, false),
        ] {
            let address = std::ptr::without_provenance(address);
            assert_eq!(SECTOR.fits(address, offset, len_bytes), aligned);
        }
        let large = Alignment(64 << 10);
        for (address, offset, aligned) in
            [(4096, 1 << 20, true), (2048, 1 << 20, false), (1 << 16, 4096, false)]
        {
            assert_eq!(large.fits(std::ptr::without_provenance(address), offset, 1 << 16), aligned);
        }
    }

    #[test]
    fn reads_are_placed_where_the_enclosing_range_has_room() {
        for (end, offset, len_bytes, behind_bytes, start, room_bytes) in [
            (0, 0, 512, 0, 0, 512),
            // The over-read behind the range shares its room with the bytes that come later.
            (1, 700, 1000, 0, 700, 2048),
            (1, 700, 1000, 348, 700, 2048),
            (1, 700, 1000, 349, 700, 2049),
            (600, 3, 5, 2000, 1027, 3032),
        ] {
            let place = |room| SECTOR.place_for_read((end, room), offset, len_bytes, behind_bytes);
            let what = format!("{len_bytes} bytes at {offset} behind {end}");
            assert_eq!(place(room_bytes), Some(start), "{what}");
            assert_eq!(place(room_bytes - 1), None, "{what}");
        }
        for (end, len_bytes, behind_bytes) in [(usize::MAX, 1, 0), (0, usize::MAX, 0), (0, 1, usize::MAX)] {
            assert_eq!(SECTOR.place_for_read((end, usize::MAX), 700, len_bytes, behind_bytes), None);
        }
    }

    #[test]
    fn buffers_have_room_for_ranges_at_any_offset() {
        for (room_bytes, most) in [(0, 0), (1023, 0), (1024, 0), (1025, 1), (8192, 7168)] {
            assert_eq!(SECTOR.most_bytes(room_bytes), most);
            for offset in 0..if most > 0 { 1024 } else { 0 } {
                assert!(
                    SECTOR.place_for_read((0, room_bytes), offset, most, 0).is_some(),
                    "{most} at {offset}"
                );
            }
        }
    }

    #[test]
    fn writes_are_placed_aligned_where_there_is_room() {
        for (end, offset, len_bytes, start) in [(0, 0, 512, 0), (1, 0, 512, 512), (1, 700, 1000, 700)] {
            let place = |room| SECTOR.place_for_write((end, room), offset, len_bytes);
            assert_eq!(place(start + len_bytes), start, "{len_bytes} bytes at {offset} behind {end}");
            if start > end {
                assert_eq!(place(start + len_bytes - 1), end, "{len_bytes} bytes at {offset} behind {end}");
            }
        }
        for (end, len_bytes) in [(usize::MAX, 1), (1, usize::MAX)] {
            assert_eq!(SECTOR.place_for_write((end, usize::MAX), 700, len_bytes), end);
        }
    }
}
