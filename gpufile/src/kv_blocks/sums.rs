//! The sums of blocks in the memory of the host and of GPUs.

use std::mem;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cufile::fork::{self, Mutex};

use crate::gpu::gpus::Gpus;
use crate::gpu::sum::{SumPart, Summer};
use crate::kv_blocks::sum::sum;
use crate::memory::{Memory, Place};

/// The kernel of each GPU that sums blocks, by its ordinal. `None` if the GPU cannot, which stays so.
#[derive(Default)]
pub struct Sums {
    of_gpus: Mutex<Vec<(u32, Option<Summer>)>>,
}

/// Adjacent bytes of a block in memory.
#[derive(Clone, Copy)]
pub struct Part {
    /// The number of the block.
    pub block: usize,
    pub memory: Memory,
    /// The place of the first byte in the block.
    pub start: u64,
}

impl Sums {
    /// Returns the sum of each of these blocks. `None` for one with memory on a GPU that does not sum.
    ///
    /// # Safety
    /// The memory must be allocated, and nothing may write it until this returns.
    pub unsafe fn of(&self, gpus: &Gpus, parts: &[Part], blocks: usize) -> Vec<Option<u64>> {
        let mut sums = vec![Some(0_u64); blocks];
        let mut add = |part: &Part, found: Option<u64>| {
            let sum = &mut sums[part.block];
            *sum = sum.zip(found).map(|(sum, found)| sum.wrapping_add(found));
        };
        let (on_host, mut on_gpus): (Vec<&Part>, Vec<&Part>) =
            parts.iter().partition(|part| part.memory.place == Place::Host);
        let len_bytes = on_host.iter().map(|part| part.memory.len_bytes as u64).sum();
        let found = on_threads(&on_host, len_bytes, |part| {
            // SAFETY: the caller's promise. The host can read this memory.
            let bytes = unsafe { slice::from_raw_parts(part.memory.ptr, part.memory.len_bytes) };
            sum(bytes, part.start)
        });
        on_host.iter().zip(found).for_each(|(part, found)| add(part, Some(found)));
        on_gpus.sort_by_key(|part| part.memory.place);
        for of_gpu in on_gpus.chunk_by(|one, next| one.memory.place == next.memory.place) {
            // SAFETY: the caller's promise.
            let found = unsafe { self.on_gpu(gpus, of_gpu) };
            for (number, part) in of_gpu.iter().enumerate() {
                add(part, found.as_ref().map(|found| found[number]));
            }
        }
        sums
    }

    /// Returns the sum of each part, all in the memory of one GPU.
    ///
    /// # Safety
    /// As for [`of`](Self::of).
    unsafe fn on_gpu(&self, gpus: &Gpus, parts: &[&Part]) -> Option<Vec<u64>> {
        let Place::Device(ordinal) = parts.first()?.memory.place else { return None };
        if parts.iter().any(|part| !part.memory.is_in_primary_context) {
            return None;
        }
        let mut cut = Vec::with_capacity(parts.len());
        for part in parts {
            let Memory { ptr, len_bytes, .. } = part.memory;
            for at in (0..len_bytes).step_by(Summer::MOST_BYTES) {
                cut.push(SumPart {
                    address: (ptr.addr() + at) as u64,
                    start: part.start + at as u64,
                    len_bytes: (len_bytes - at).min(Summer::MOST_BYTES) as u64,
                });
            }
        }
        let mut of_gpus = self.of_gpus.lock();
        // Of a GPU that other code has reset, nothing may be used.
        let lost = of_gpus
            .extract_if(.., |(of, summer)| *of == ordinal && summer.as_ref().is_some_and(Summer::is_lost));
        mem::forget(lost.collect::<Vec<_>>());
        let at = of_gpus.iter().position(|(of, _)| *of == ordinal).unwrap_or_else(|| {
            of_gpus.push((ordinal, gpus.device(ordinal).and_then(|device| Summer::new(&device)).ok()));
            of_gpus.len() - 1
        });
        // SAFETY: memory of the primary context. The rest is the caller's promise.
        let found = unsafe { of_gpus[at].1.as_mut()?.sums(&cut) };
        if found.is_err() {
            // The GPU may still use its table.
            mem::forget(of_gpus[at].1.take());
        }
        let mut found = found.ok()?.into_iter();
        let sum = |part: &&Part| {
            let pieces = part.memory.len_bytes.div_ceil(Summer::MOST_BYTES);
            found.by_ref().take(pieces).fold(0, u64::wrapping_add)
        };
        Some(parts.iter().map(sum).collect())
    }
}

/// Returns what `work` returns for each item, on several threads if they have many bytes.
pub fn on_threads<T: Sync, R: Send>(items: &[T], len_bytes: u64, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    /// The fewest bytes that are worth another thread.
    const BYTES_PER_THREAD: u64 = 4 << 20;
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    let threads = processors.min(16).min(items.len()).min((len_bytes / BYTES_PER_THREAD) as usize + 1);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return found };
            found.push((at, work(item)));
        }
    };
    let mut found = fork::scope(|scope| {
        let others: Vec<_> = (1..threads).filter_map(|_| scope.spawn("gpufile-sum", work).ok()).collect();
        let mut found = work();
        found.extend(others.into_iter().flat_map(|thread| thread.join().expect("it does not panic")));
        found
    });
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, result)| result).collect()
}
