//! How transfers are cut into chunks.

use super::Engine;
use crate::memory::Place;

/// How a transfer is cut into chunks and handed out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cutting {
    pub chunk_bytes: usize,
    /// Whether the chunks at the beginning are shorter, each longer than the one before.
    pub is_graded: bool,
    /// How many chunks of the same call came before, in other jobs.
    pub chunks_before: usize,
    /// How long the last chunk is, which is then carried out when the others are done; 0 makes it like the others.
    pub last_bytes: usize,
    /// Whether the chunks are carried out in order, one at a time.
    pub serial: bool,
    /// How many chunks are worked on at a time at most, if not as many as the workers take.
    pub at_once: Option<usize>,
    /// Whether the calling thread does all of it.
    pub inline: bool,
}

impl Cutting {
    /// How many bytes the chunk with this number has at most.
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
    /// How a transfer of so many bytes is cut: into chunks short enough that all workers have several, so that they end
    /// together, and long enough to be worth a copy; and for a GPU at first shorter, each of another length, so that it has
    /// something to copy soon, and does not get it all at once.
    pub(crate) fn cutting(&self, total_bytes: usize, place: Place, task_bytes: Option<usize>) -> Cutting {
        const SMALLEST: usize = 512 << 10;
        const TURNS: usize = 5;
        let settings = &self.0.settings;
        let buffer = settings.bounce_buffer_bytes;
        let chunk_bytes = match (task_bytes.or(settings.task_bytes), place) {
            (Some(task), Place::Host) => task,
            (Some(task), Place::Device(_)) => task.min(buffer),
            (None, _) => {
                let share = (total_bytes / settings.threads.saturating_mul(TURNS)).next_multiple_of(64 << 10);
                share.max(SMALLEST).min(buffer)
            }
        };
        let is_cut_freely = task_bytes.or(settings.task_bytes).is_none();
        let is_graded = is_cut_freely && chunk_bytes > SMALLEST && place != Place::Host;
        Cutting { chunk_bytes, is_graded, ..Cutting::default() }
    }
}
