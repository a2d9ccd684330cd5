//! Copies between the GPU and a bounce buffer.

use std::slice;
use std::time::Duration;

use cufile::cuda::{Event, Stream};

use super::sync::{Instant, sleep};

/// Copies between device memory and a bounce buffer. Neighbours on both sides count as one copy if they lie
/// in one allocation. CUDA may refuse a copy that crosses the end of an allocation, even if another
/// allocation begins there.
#[derive(Default)]
pub(crate) struct Copies {
    /// The address of the allocation that the last copy is in.
    last_base: usize,
    device: Vec<*mut u8>,
    host: Vec<*mut u8>,
    lens_bytes: Vec<usize>,
}

impl Copies {
    /// Adds a copy. `base` is the address of the allocation that contains the device memory.
    pub fn push(&mut self, base: usize, device: *mut u8, host: *mut u8, len_bytes: usize) {
        if len_bytes == 0 {
            return;
        }
        let same_base = self.last_base == base;
        self.last_base = base;
        if let (true, Some(last_device), Some(last_host), Some(last)) =
            (same_base, self.device.last(), self.host.last(), self.lens_bytes.last_mut())
            && last_device.wrapping_add(*last) == device
            && last_host.wrapping_add(*last) == host
        {
            *last += len_bytes;
            return;
        }
        self.device.push(device);
        self.host.push(host);
        self.lens_bytes.push(len_bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.lens_bytes.is_empty()
    }

    pub fn clear(&mut self) {
        self.device.clear();
        self.host.clear();
        self.lens_bytes.clear();
    }

    /// Submits the copies from the bounce buffer to the device.
    ///
    /// # Safety
    /// The device memory must be valid until the copies are done, and nothing else may use it.
    pub unsafe fn issue_to_device(&self, stream: &Stream) -> cufile::Result<()> {
        match self.lens_bytes.as_slice() {
            // SAFETY: the caller's promise; the bounce buffer has as many bytes.
            [len] => unsafe {
                stream.copy_to_device(self.device[0], slice::from_raw_parts(self.host[0], *len))
            },
            // SAFETY: as above.
            lens => unsafe { stream.copy_batch(&self.device, as_sources(&self.host), lens) },
        }
    }

    /// Submits the copies from the device to the bounce buffer.
    ///
    /// # Safety
    /// As for [`issue_to_device`](Self::issue_to_device).
    pub unsafe fn issue_to_host(&self, stream: &Stream) -> cufile::Result<()> {
        match self.lens_bytes.as_slice() {
            // SAFETY: the caller's promise; the bounce buffer has room for as many bytes.
            [len] => unsafe {
                stream.copy_from_device(slice::from_raw_parts_mut(self.host[0], *len), self.device[0])
            },
            // SAFETY: as above.
            lens => unsafe { stream.copy_batch(&self.host, as_sources(&self.device), lens) },
        }
    }
}

fn as_sources(pointers: &[*mut u8]) -> &[*const u8] {
    // SAFETY: pointers to mutable and to constant bytes are laid out alike.
    unsafe { slice::from_raw_parts(pointers.as_ptr().cast::<*const u8>(), pointers.len()) }
}

/// Waits for copies by asking again and again. At first it keeps the processor, because small copies take
/// microseconds. Then it sleeps briefly between questions, and later for longer. So many workers that wait
/// for one link do not occupy a processor each.
pub(crate) fn wait_by_looking(event: &Event) -> cufile::Result<()> {
    let start = Instant::now();
    while !event.is_done()? {
        if let Some(pause) = pause_after(start.elapsed()) {
            sleep(pause);
        }
    }
    Ok(())
}

/// Returns the time to sleep before asking again, after a wait of `waited`. Returns `None` for no sleep.
fn pause_after(waited: Duration) -> Option<Duration> {
    match waited.as_micros() {
        ..20 => None,
        20..200 => Some(Duration::from_micros(10)),
        200.. => Some(Duration::from_micros(50)),
    }
}

/// Waits up to about 30 seconds until something has ended. Returns whether it has.
pub(crate) fn ends_soon(has_ended: impl Fn() -> bool) -> bool {
    const PAUSE: Duration = Duration::from_millis(1);
    // The pauses are counted, so that a process that was suspended still gets its time.
    for _ in 0..30_000 {
        if has_ended() {
            return true;
        }
        sleep(PAUSE);
    }
    has_ended()
}

#[cfg(test)]
mod tests {
    use std::ptr::without_provenance_mut as at;

    use super::*;

    #[test]
    fn pauses_grow_with_the_time_waited() {
        for (waited, pause) in [(0, None), (19, None), (20, Some(10)), (199, Some(10)), (200, Some(50))] {
            let found = pause_after(Duration::from_micros(waited));
            assert_eq!(found, pause.map(Duration::from_micros), "{waited}");
        }
    }

    #[test]
    fn neighbours_within_one_allocation_are_copied_together() {
        let mut copies = Copies::default();
        for (base, device, host, len_bytes) in [
            (4096, 4096, 100, 50),
            (4096, 4146, 150, 50),
            // These continue no other: apart on the device, apart on the host, and in another allocation.
            (4096, 4200, 200, 8),
            (4096, 4208, 300, 0),
            (4096, 4208, 300, 8),
            (4216, 4216, 308, 8),
            (4216, 4224, 316, 8),
        ] {
            copies.push(base, at(device), at(host), len_bytes);
        }
        assert_eq!(copies.device, [4096, 4200, 4208, 4216].map(at));
        assert_eq!(copies.host, [100, 200, 300, 308].map(at));
        assert_eq!(copies.lens_bytes, [100, 8, 8, 16]);
        assert!(!copies.is_empty());
        copies.clear();
        assert!(copies.is_empty() && copies.device.is_empty() && copies.host.is_empty());
    }
}
