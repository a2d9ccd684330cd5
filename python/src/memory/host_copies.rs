//! Copies between memory of the host, by several threads if they are long.

use std::cmp;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cufile::fork;

/// Bytes to copy. The source and the target do not overlap.
#[derive(Clone, Copy)]
pub struct HostCopy {
    pub source: *const u8,
    pub target: *mut u8,
    pub len_bytes: usize,
}

// SAFETY: addresses. `copy_all` requires of its caller that the memory may be used.
unsafe impl Send for HostCopy {}
// SAFETY: as above.
unsafe impl Sync for HostCopy {}

/// Copies all. New pages of memory take longer than the copies into them, and threads get them at once.
///
/// # Safety
/// The memory must be valid, and no two targets may overlap.
pub unsafe fn copy_all(copies: &[HostCopy]) {
    const PIECE_BYTES: usize = 4 << 20;
    const MOST_THREADS: usize = 4;
    let pieces: Vec<HostCopy> = copies.iter().flat_map(|copy| copy.pieces(PIECE_BYTES)).collect();
    let total_bytes: usize = pieces.iter().map(|piece| piece.len_bytes).sum();
    let useful = (total_bytes / (4 * PIECE_BYTES)).min(MOST_THREADS);
    // Counting the processors reads files of the kernel, which takes longer than a short copy.
    let threads =
        if useful > 1 { cmp::min(useful, thread::available_parallelism().map_or(1, usize::from)) } else { 1 };
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: the caller's promise. Each piece is copied once.
            unsafe { piece.target.copy_from_nonoverlapping(piece.source, piece.len_bytes) };
        }
    };
    fork::scope(|scope| {
        for _ in 1..threads {
            // Without another thread, this one does all.
            let _ = scope.spawn("gpufile-copy", work);
        }
        work();
    });
}

impl HostCopy {
    fn pieces(self, most_bytes: usize) -> impl Iterator<Item = Self> {
        (0..self.len_bytes).step_by(most_bytes).map(move |at| Self {
            source: self.source.wrapping_add(at),
            target: self.target.wrapping_add(at),
            len_bytes: most_bytes.min(self.len_bytes - at),
        })
    }
}
