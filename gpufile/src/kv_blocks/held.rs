//! The memory that a call has taken from regions, until its transfers have ended.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Cause, Error};
use crate::kv_blocks::error::BlockError;
use crate::kv_blocks::region::{Piece, Refused, RegionMemory, Shared};

/// The pieces of all blocks of a call. Dropping it gives them back to their regions.
#[derive(Default)]
pub struct Held {
    leases: Vec<Lease>,
    pub pieces: Vec<HeldPiece>,
}

/// Pieces of one region that one call of the region has given, at least one. The memory is valid as long as they are held.
struct Lease {
    shared: Arc<Shared>,
    memory: RegionMemory,
}

/// A piece, with the number of its lease.
#[derive(Clone, Copy)]
pub struct HeldPiece {
    lease: usize,
    pub offset: usize,
    pub len_bytes: usize,
    pub block_offset: u64,
}

impl Held {
    /// Takes all pieces of a block, or none. Returns their places in the list of pieces, which has no empty ones.
    ///
    /// # Errors
    /// If a piece exceeds its region, or if some of its memory is in use.
    pub fn take(&mut self, pieces: &[Piece<'_>]) -> Result<Range<usize>, BlockError> {
        let start = self.pieces.len();
        for run in pieces.chunk_by(|one, next| Arc::ptr_eq(one.shared, next.shared)) {
            let filled = run.iter().filter(|piece| piece.len_bytes > 0);
            if filled.clone().next().is_none() {
                // A region without a lease may give its memory to others.
                continue;
            }
            let shared = run[0].shared;
            let memory = match shared.take(filled.clone().map(range)) {
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
            let lease = self.leases.len();
            self.leases.push(Lease { shared: shared.clone(), memory });
            self.pieces.extend(filled.map(|piece| HeldPiece {
                lease,
                offset: piece.offset,
                len_bytes: piece.len_bytes,
                block_offset: piece.block_offset as u64,
            }));
        }
        Ok(start..self.pieces.len())
    }

    /// Returns the memory of the region that a piece is a part of.
    pub fn memory(&self, piece: &HeldPiece) -> RegionMemory {
        self.leases[piece.lease].memory
    }

    /// Returns the memory of all pieces, if they are parts of one region.
    pub fn only_memory(&self) -> Option<RegionMemory> {
        let (first, others) = self.leases.split_first()?;
        others.iter().all(|lease| Arc::ptr_eq(&lease.shared, &first.shared)).then_some(first.memory)
    }

    /// Gives back the pieces from `start` on.
    fn give_back(&mut self, start: usize) {
        let Some(&HeldPiece { lease: first, .. }) = self.pieces.get(start) else { return };
        for run in self.pieces[start..].chunk_by(|one, next| one.lease == next.lease) {
            let ranges = run.iter().map(|piece| piece.offset..piece.offset + piece.len_bytes);
            self.leases[run[0].lease].shared.give_back(ranges);
        }
        self.pieces.truncate(start);
        self.leases.truncate(first);
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
    use cufile::IoBuf as _;
    use testkit::random::{Random, seed};

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
        assert_eq!((one.bytes_in_use(), two.bytes_in_use()), (15, 10));
        let again = [one.piece(20, 10, 0), two.piece(95, 5, 0), two.piece(5, 10, 10)];
        assert!(matches!(held.take(&again), Err(BlockError::InUse)));
        let beyond = [one.piece(20, 10, 0), two.piece(usize::MAX, 10, 10)];
        assert!(held.take(&beyond).unwrap_err().to_string().contains("region of 100 bytes"));
        assert_eq!((held.pieces.len(), one.bytes_in_use(), two.bytes_in_use()), (3, 15, 10));
        drop(held);
        assert_eq!((one.bytes_in_use(), two.bytes_in_use()), (0, 0));
    }

    #[test]
    fn memory_is_that_of_the_time_of_the_lease() {
        let (region, other) = (Region::new(vec![0_u8; 100]), Region::new(vec![0_u8; 100]));
        let swap = || region.access(|bytes| std::mem::replace(bytes, vec![0; 100]));
        let address = || region.access(|bytes| bytes.as_ptr()).unwrap();
        let mut held = Held::default();
        // Neither an empty piece nor one of a refused block keeps the region.
        held.take(&[region.piece(0, 0, 0), other.piece(0, 10, 0)]).unwrap();
        let first = swap().unwrap();
        assert!(held.take(&[region.piece(0, 10, 0), other.piece(5, 10, 10)]).is_err());
        let second = swap().unwrap();
        let now = address();
        held.take(&[region.piece(0, 10, 0), other.piece(10, 10, 10)]).unwrap();
        let memory = held.memory(&held.pieces[1]);
        assert!(memory.as_ptr() == now && now != first.as_ptr() && now != second.as_ptr());
        assert!(swap().is_none());
        assert!(held.only_memory().is_none());
        held.give_back(1);
        assert_eq!(held.only_memory(), Some(held.memory(&held.pieces[0])));
    }

    /// A region as it must be: the memory of its buffer, and the bytes that are held.
    struct Model {
        region: Region<Vec<u8>>,
        address: *const u8,
        is_held: Vec<bool>,
    }

    impl Model {
        /// Gives the region a buffer of another length.
        fn swap(&mut self, len_bytes: usize) {
            let swapped = self.region.access(|bytes| {
                *bytes = vec![0; len_bytes];
                bytes.as_ptr()
            });
            assert_eq!(swapped.is_none(), self.is_held.contains(&true));
            if let Some(address) = swapped {
                (self.address, self.is_held) = (address, vec![false; len_bytes]);
            }
        }

        /// Takes a piece, if it is free.
        fn take(&mut self, offset: usize, len_bytes: usize) -> bool {
            let is_free = |bytes: &[bool]| !bytes.contains(&true);
            let can = len_bytes == 0 || self.is_held.get(offset..offset + len_bytes).is_some_and(is_free);
            self.set(offset, if can { len_bytes } else { 0 }, true);
            can
        }

        fn set(&mut self, offset: usize, len_bytes: usize, is_held: bool) {
            if len_bytes > 0 {
                self.is_held[offset..][..len_bytes].fill(is_held);
            }
        }
    }

    #[test]
    fn calls_hold_the_memory_that_a_model_holds() {
        let mut random = Random::new(seed());
        let mut models = [20_000, 9_000, 30].map(|len_bytes| {
            let region = Region::new(vec![0; len_bytes]);
            let address = region.access(|bytes| bytes.as_ptr()).unwrap();
            Model { region, address, is_held: vec![false; len_bytes] }
        });
        let mut calls: Vec<Held> = Vec::new();
        let mut refused = 0;
        for _ in 0..4_000 {
            match random.below(10) {
                0 => models[random.below(3)].swap(random.pick(&[1, 30, 9_000, 20_000])),
                1 | 2 if !calls.is_empty() => {
                    let held = calls.swap_remove(random.below(calls.len()));
                    for piece in &held.pieces {
                        let memory = held.memory(piece);
                        // SAFETY: a transfer writes the pieces of its call, which the region keeps for it.
                        unsafe {
                            memory.as_ptr().cast_mut().add(piece.offset).write_bytes(1, piece.len_bytes)
                        };
                        let model = models.iter_mut().find(|model| model.address == memory.as_ptr());
                        model.expect("the memory of a region").set(piece.offset, piece.len_bytes, false);
                    }
                }
                _ => {
                    if calls.is_empty() || random.one_in(4) {
                        calls.push(Held::default());
                    }
                    let lens = [0, 0, 1, 10, 700, 4096, 8192];
                    let piece = |random: &mut Random| {
                        let offset = random.below(5) * 4096 + random.pick(&[0, 0, 17, 4000]);
                        (random.below(3), offset, random.pick(&lens))
                    };
                    let block: Vec<_> = (0..1 + random.below(5)).map(|_| piece(&mut random)).collect();
                    // The pieces of a block exclude each other, too.
                    let mut take = |(at, offset, len_bytes): &(usize, usize, usize)| {
                        models[*at].take(*offset, *len_bytes)
                    };
                    let taken = block.iter().take_while(|piece| take(piece)).count();
                    let piece =
                        |(at, offset, len): &(usize, _, _)| models[*at].region.piece(*offset, *len, 0);
                    let pieces: Vec<_> = block.iter().map(piece).collect();
                    let call = random.below(calls.len());
                    assert_eq!(calls[call].take(&pieces).is_ok(), taken == block.len(), "{block:?}");
                    if taken < block.len() {
                        refused += 1;
                        block[..taken]
                            .iter()
                            .for_each(|(at, offset, len)| models[*at].set(*offset, *len, false));
                    }
                }
            }
            for model in &models {
                let held = model.is_held.iter().filter(|held| **held).count();
                assert_eq!(model.region.bytes_in_use(), held);
            }
        }
        assert!(refused > 300, "{refused}");
    }
}
