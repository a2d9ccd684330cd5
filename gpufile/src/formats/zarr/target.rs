//! Copying host bytes to and from a buffer of the host or a GPU.

use super::runs::Runs;
use crate::Engine;
use crate::cuda::Stream;
use crate::memory::{Memory, Place};

/// The most bytes of repeated elements in host memory for copying.
const PATTERN_BYTES: usize = 1 << 20;

/// A buffer's memory, and the stream that copies to and from it if it is on a GPU.
pub(super) struct Target {
    memory: Memory,
    stream: Option<Stream>,
}

impl Target {
    /// Returns the target, with a new stream if the memory is on a GPU.
    pub fn new(memory: Memory, engine: &Engine) -> cufile::Result<Self> {
        let stream = match memory.place {
            Place::Host => None,
            Place::Device(_) => Some(engine.gpus().cuda()?.device_of(&memory)?.stream()?),
        };
        Ok(Self { memory, stream })
    }

    pub fn on_host(bytes: &mut [u8]) -> Self {
        Self { memory: Memory::on_host(bytes.as_mut_ptr(), bytes.len()), stream: None }
    }

    pub fn is_on_host(&self) -> bool {
        self.stream.is_none()
    }

    /// Copies bytes to the buffer.
    ///
    /// # Safety
    /// The memory must be that of an `IoBufMut`. Nothing else may use this part of it during the call.
    pub unsafe fn put(&self, start: usize, bytes: &[u8]) -> cufile::Result<()> {
        let target = self.part(start, bytes.len());
        match &self.stream {
            None => {
                // SAFETY: within the buffer, which is the caller's alone, and the bytes are not part of it.
                unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
            Some(stream) => {
                // SAFETY: within the buffer; both stay until the stream has been waited for.
                let copied = unsafe { stream.copy_to_device(target, bytes) };
                stream.synchronize().and(copied)
            }
        }
    }

    /// Copies bytes from the buffer.
    ///
    /// # Safety
    /// The memory must be that of an `IoBuf`. Nothing may write this part of it during the call.
    pub unsafe fn get(&self, start: usize, bytes: &mut [u8]) -> cufile::Result<()> {
        let source = self.part(start, bytes.len()).cast_const();
        match &self.stream {
            None => {
                // SAFETY: within the buffer, and the bytes are not part of it.
                unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
                Ok(())
            }
            Some(stream) => {
                // SAFETY: within the buffer; both stay until the stream has been waited for.
                let copied = unsafe { stream.copy_from_device(bytes, source) };
                stream.synchronize().and(copied)
            }
        }
    }

    /// Repeats an element over runs of the buffer.
    ///
    /// # Safety
    /// As for [`put`](Self::put).
    pub unsafe fn fill(&self, runs: &Runs, element: &[u8]) -> cufile::Result<()> {
        let pattern = repeated(element, runs.run_bytes.min(PATTERN_BYTES));
        let parts = runs.iter().flat_map(|run| {
            (0..runs.run_bytes)
                .step_by(pattern.len())
                .map(move |done| (run.in_region + done, runs.run_bytes - done))
        });
        let mut parts = parts.map(|(start, left)| {
            let len_bytes = left.min(pattern.len());
            (self.part(start, len_bytes), len_bytes)
        });
        let Some(stream) = &self.stream else {
            for (target, len_bytes) in parts {
                // SAFETY: within the buffer, which is the caller's alone.
                unsafe { target.copy_from_nonoverlapping(pattern.as_ptr(), len_bytes) };
            }
            return Ok(());
        };
        let copied = parts.try_for_each(|(target, len_bytes)| {
            // SAFETY: within the buffer, without overlap; the pattern stays until the stream has been waited for.
            unsafe { stream.copy_to_device(target, &pattern[..len_bytes]) }
        });
        stream.synchronize().and(copied)
    }

    /// Returns the address of a part, which must lie within the target.
    fn part(&self, start: usize, len_bytes: usize) -> *mut u8 {
        let end = start.checked_add(len_bytes);
        assert!(end.is_some_and(|end| end <= self.memory.len_bytes), "a part lies within its target");
        self.memory.ptr.wrapping_add(start)
    }
}

/// Repeats an element as often as it fits into `most_bytes` bytes, but at least once.
pub(super) fn repeated(element: &[u8], most_bytes: usize) -> Vec<u8> {
    element.repeat((most_bytes / element.len()).max(1))
}
