//! The memory that a call has taken from regions, until its transfers have ended.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Cause, Error};
use crate::kv_blocks::error::BlockError;
use crate::kv_blocks::region::{Piece, Refused, RegionMemory, Shared};
use crate::kv_blocks::spares::Spare;

/// The pieces of all blocks of a call. Dropping it gives them back to their regions.
#[derive(Default)]
pub struct Held {
    pub regions: Vec<HeldRegion>,
    pub pieces: Spare<HeldPiece>,
    /// The number of the region that was found last.
    last: usize,
}

/// A region that some of the pieces are parts of.
pub struct HeldRegion {
    shared: Arc<Shared>,
    pub memory: RegionMemory,
}

/// A piece, with the number of its region.
#[derive(Clone, Copy)]
pub struct HeldPiece {
    pub region: usize,
    pub offset: usize,
    pub len_bytes: usize,
    pub block_offset: u64,
}

impl Held {
    /// Returns a list without pieces, which will be in the memory of `pieces`.
    pub fn new(pieces: Spare<HeldPiece>) -> Self {
        Self { regions: Vec::new(), pieces, last: 0 }
    }

    /// Takes all pieces of a block, or none. Returns their places in the list of pieces.
    ///
    /// # Errors
    /// If a piece exceeds its region, or if some of its memory is in use.
    pub fn take(&mut self, pieces: &[Piece<'_>]) -> Result<Range<usize>, BlockError> {
        let start = self.pieces.len();
        for run in pieces.chunk_by(|one, next| Arc::ptr_eq(one.shared, next.shared)) {
            let ranges = run.iter().filter(|piece| piece.len_bytes > 0).map(range);
            let memory = match run[0].shared.take(ranges) {
                Ok(memory) => memory,
                Err(refused) => {
                    self.give_back(start);
                    return Err(match refused {
                        Refused::InUse => BlockError::InUse,
                        Refused::Beyond(len_bytes) => {
                            invalid(format!("a piece of it exceeds the region of {len_bytes} bytes"))
                        }
                    });
                }
            };
            let region = self.number_of(run[0].shared, memory);
            let held = run.iter().filter(|piece| piece.len_bytes > 0).map(|piece| HeldPiece {
                region,
                offset: piece.offset,
                len_bytes: piece.len_bytes,
                block_offset: piece.block_offset as u64,
            });
            self.pieces.extend(held);
        }
        Ok(start..self.pieces.len())
    }

    fn number_of(&mut self, shared: &Arc<Shared>, memory: RegionMemory) -> usize {
        let is_it = |region: &HeldRegion| Arc::ptr_eq(&region.shared, shared);
        // Blocks with a region for each layer name them in the same order.
        let (before, behind) = self.regions.split_at(self.last.min(self.regions.len()));
        let found = behind.iter().position(is_it).map(|at| before.len() + at);
        let found = found.or_else(|| before.iter().position(is_it));
        self.last = found.unwrap_or_else(|| {
            self.regions.push(HeldRegion { shared: shared.clone(), memory });
            self.regions.len() - 1
        });
        self.last
    }

    /// Gives back the pieces from `start` on.
    fn give_back(&mut self, start: usize) {
        for run in self.pieces[start..].chunk_by(|one, next| one.region == next.region) {
            let ranges = run.iter().map(|piece| piece.offset..piece.offset + piece.len_bytes);
            self.regions[run[0].region].shared.give_back(ranges);
        }
        self.pieces.truncate(start);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(0);
    }
}

/// Returns the memory of a piece. One that wraps around exceeds every region.
fn range(piece: &Piece<'_>) -> Range<usize> {
    piece.offset..piece.offset.saturating_add(piece.len_bytes)
}

/// Checks that pieces cover the first bytes of a block, without gaps and overlaps. Returns the number of these bytes.
///
/// # Errors
/// If they do not, or if they are more than `most` or none.
pub fn covered(pieces: &[Piece<'_>], most: u64) -> Result<u64, BlockError> {
    let filled = pieces.iter().filter(|piece| piece.len_bytes > 0);
    if filled.clone().is_sorted_by_key(|piece| piece.block_offset) {
        return covered_in_order(filled, most);
    }
    let mut order: Vec<_> = filled.collect();
    order.sort_unstable_by_key(|piece| piece.block_offset);
    covered_in_order(order.into_iter(), most)
}

fn covered_in_order<'a>(pieces: impl Iterator<Item = &'a Piece<'a>>, most: u64) -> Result<u64, BlockError> {
    let mut end = 0;
    for piece in pieces {
        if piece.block_offset as u64 != end {
            let what = if piece.block_offset as u64 > end { "leave out" } else { "have twice" };
            return Err(invalid(format!("its pieces {what} byte {}", end.min(piece.block_offset as u64))));
        }
        end = end.saturating_add(piece.len_bytes as u64);
    }
    within(end, most)
}

/// Returns the end in the block of the last of these pieces.
///
/// # Errors
/// If it exceeds `most`, or if all pieces are empty.
pub fn end(pieces: &[Piece<'_>], most: u64) -> Result<u64, BlockError> {
    let pieces = pieces.iter().filter(|piece| piece.len_bytes > 0);
    let end = |piece: &Piece<'_>| (piece.block_offset as u64).saturating_add(piece.len_bytes as u64);
    within(pieces.map(end).max().unwrap_or(0), most)
}

fn within(end: u64, most: u64) -> Result<u64, BlockError> {
    match end {
        0 => Err(invalid("its pieces are empty".to_owned())),
        end if end > most => Err(invalid(format!("its pieces end at byte {end}, and blocks have {most}"))),
        end => Ok(end),
    }
}

/// Returns the error of a block that a caller has described wrongly.
pub fn invalid(why: String) -> BlockError {
    BlockError::Failed(Error::Cufile { cause: Cause::Invalid(format!("the block is refused: {why}")) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_blocks::Region;

    #[test]
    fn pieces_of_a_stored_block_cover_its_first_bytes() {
        let region = Region::new(vec![0_u8; 100]);
        let check = |pieces: &[(usize, usize)]| {
            let pieces: Vec<_> = pieces.iter().map(|(at, len)| region.piece(0, *len, *at)).collect();
            covered(&pieces, 50).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[(0, 20), (20, 30)]), Ok(50));
        assert_eq!(check(&[(7, 3), (0, 7), (2, 0)]), Ok(10));
        for (pieces, why) in [
            (&[][..], "empty"),
            (&[(0, 0)], "empty"),
            (&[(1, 9)], "leave out byte 0"),
            (&[(0, 9), (10, 1)], "leave out byte 9"),
            (&[(0, 9), (8, 2)], "have twice byte 8"),
            (&[(0, 51)], "end at byte 51, and blocks have 50"),
            (&[(0, 9), (9, usize::MAX)], "end at byte 18446744073709551615"),
        ] {
            let error = check(pieces).unwrap_err();
            assert!(error.contains(why), "{pieces:?}: {error}");
        }
        assert_eq!(end(&[region.piece(0, 5, 30), region.piece(0, 5, 2)], 50).unwrap(), 35);
    }

    #[test]
    fn a_refused_block_takes_no_memory() {
        let (one, two) = (Region::new(vec![0_u8; 100]), Region::new(vec![0_u8; 100]));
        let mut held = Held::default();
        let pieces = [one.piece(0, 10, 0), two.piece(0, 10, 10), two.piece(50, 0, 20), one.piece(10, 5, 20)];
        assert_eq!(held.take(&pieces).unwrap(), 0..3);
        assert_eq!((held.regions.len(), one.bytes_in_use(), two.bytes_in_use()), (2, 15, 10));
        let again = [one.piece(20, 10, 0), two.piece(95, 5, 0), two.piece(5, 10, 10)];
        assert!(matches!(held.take(&again), Err(BlockError::InUse)));
        let beyond = [one.piece(20, 10, 0), two.piece(usize::MAX, 10, 10)];
        assert!(held.take(&beyond).unwrap_err().to_string().contains("region of 100 bytes"));
        assert_eq!((held.pieces.len(), one.bytes_in_use(), two.bytes_in_use()), (3, 15, 10));
        drop(held);
        assert_eq!((one.bytes_in_use(), two.bytes_in_use()), (0, 0));
    }
}
