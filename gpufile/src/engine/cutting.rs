//! The lengths of the chunks that transfers are cut into.

use super::Engine;
use crate::memory::Place;

/// The rules by which a transfer is cut into chunks and handed out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cutting {
    pub chunk_bytes: usize,
    /// True if the chunks at the beginning are shorter, each longer than the one before.
    pub is_graded: bool,
    /// The number of chunks of the same call that came before, in other jobs.
    pub chunks_before: usize,
    /// The length in bytes of the last chunk, which is carried out when the others are done; 0 makes it like
    /// the others.
    pub last_bytes: usize,
    /// True if the chunks are carried out in order, one at a time.
    pub serial: bool,
    /// The most chunks that are in flight at a time; `None` for as many as the workers take.
    pub at_once: Option<usize>,
    /// True if the calling thread does all of it.
    pub inline: bool,
}

impl Cutting {
    /// Returns the most bytes that the chunk with this number has.
    pub fn chunk_len(&self, chunk: usize) -> usize {
        const FIRST: usize = 256 << 10;
        const LONGER: usize = 64 << 10;
        if !self.is_graded {
            return self.chunk_bytes;
        }
        (FIRST + LONGER * (self.chunks_before + chunk)).min(self.chunk_bytes)
    }
}

impl Engine {
    /// Chooses how to cut a transfer of so many bytes. Chunks are short enough that each worker has several,
    /// so that all end together, and long enough to be worth a copy. For a GPU, the first chunks are shorter,
    /// each of another length: the GPU soon has something to copy, and does not get it all at once.
    pub(crate) fn cutting(&self, total_bytes: usize, place: Place, chunk_bytes: Option<usize>) -> Cutting {
        const SMALLEST: usize = 512 << 10;
        const TURNS: usize = 5;
        let settings = &self.0.settings;
        let buffer = settings.bounce_buffer_bytes;
        let asked = chunk_bytes.or(settings.chunk_bytes);
        let chunk_bytes = match (asked, place) {
            (Some(bytes), Place::Host) => bytes,
            (Some(bytes), Place::Device(_)) => bytes.min(buffer),
            (None, _) => {
                let share = (total_bytes / settings.threads.saturating_mul(TURNS)).next_multiple_of(64 << 10);
                share.max(SMALLEST).min(buffer)
            }
        };
        let is_graded = asked.is_none() && chunk_bytes > SMALLEST && place != Place::Host;
        Cutting { chunk_bytes, is_graded, ..Cutting::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn graded_chunks_grow_to_their_full_length() {
        let graded = Cutting { chunk_bytes: 500 * KIB, is_graded: true, ..Cutting::default() };
        let lengths: Vec<_> = (0..6).map(|chunk| graded.chunk_len(chunk) / KIB).collect();
        assert_eq!(lengths, [256, 320, 384, 448, 500, 500]);
        let later = Cutting { chunks_before: 2, ..graded };
        assert_eq!([0, 1, 2].map(|chunk| later.chunk_len(chunk) / KIB), [384, 448, 500]);
        let even = Cutting { is_graded: false, ..graded };
        assert_eq!([0, 1, 9].map(|chunk| even.chunk_len(chunk) / KIB), [500; 3]);
    }

    #[test]
    fn all_workers_have_several_chunks_that_are_worth_a_copy() {
        let engine = Engine::builder().threads(4).bounce_buffer_bytes(4096 * KIB).build();
        let device = Place::Device(0);
        for (total, chunk, is_graded) in [
            (0, 512, false),
            (1024, 512, false),
            // A twentieth of it each, in steps of 64 KiB.
            (20 * 512, 512, false),
            (20 * 512 + 20, 576, true),
            (20 * 576, 576, true),
            (20 * 4096, 4096, true),
            (20 * 4097, 4096, true),
            (1 << 30, 4096, true),
        ] {
            for place in [Place::Host, device] {
                let cutting = engine.cutting(total * KIB, place, None);
                assert_eq!(cutting.chunk_bytes, chunk * KIB, "{total} KiB");
                assert_eq!(cutting.is_graded, is_graded && place == device, "{total} KiB");
                assert_eq!((cutting.last_bytes, cutting.chunks_before, cutting.at_once), (0, 0, None));
                assert!(!cutting.serial && !cutting.inline);
            }
        }
    }

    #[test]
    fn a_length_that_was_asked_for_is_kept_where_buffers_allow() {
        let of_engine = Engine::builder().bounce_buffer_bytes(64 * KIB).chunk_bytes(5000 * KIB).build();
        let of_call = Engine::builder().bounce_buffer_bytes(64 * KIB).build();
        for (engine, task) in [(&of_engine, None), (&of_call, Some(5000 * KIB))] {
            let lengths = [Place::Host, Place::Device(0)].map(|place| {
                let cutting = engine.cutting(1 << 30, place, task);
                assert!(!cutting.is_graded);
                cutting.chunk_bytes
            });
            assert_eq!(lengths, [5000 * KIB, 64 * KIB]);
        }
        assert_eq!(of_engine.cutting(1 << 30, Place::Host, Some(7)).chunk_bytes, 7);
    }
}
