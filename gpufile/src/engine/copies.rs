//! Copies between the GPU and a bounce buffer.

use std::time::{Duration, Instant};
use std::{slice, thread};

use cufile::cuda::{Event, Stream};

/// Copies between device memory and a bounce buffer; neighbours on both sides count as one.
#[derive(Default)]
pub(crate) struct Copies {
    device: Vec<*mut u8>,
    host: Vec<*mut u8>,
    lens_bytes: Vec<usize>,
}

impl Copies {
    pub fn push(&mut self, device: *mut u8, host: *mut u8, len_bytes: usize) {
        if len_bytes == 0 {
            return;
        }
        if let (Some(last_device), Some(last_host), Some(last)) =
            (self.device.last(), self.host.last(), self.lens_bytes.last_mut())
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

    /// # Safety
    /// The device memory must be valid for the copies until they are done, and used by nothing else.
    pub unsafe fn issue_to_device(&self, stream: &Stream) -> cufile::Result<()> {
        match self.lens_bytes.as_slice() {
            // SAFETY: the caller's promise; the bounce buffer holds as many bytes.
            [len] => unsafe {
                stream.copy_to_device(self.device[0], slice::from_raw_parts(self.host[0], *len))
            },
            // SAFETY: as above.
            lens => unsafe { stream.copy_batch(&self.device, as_sources(&self.host), lens) },
        }
    }

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

/// Waits for copies: at first without giving the processor away, because small ones take microseconds, then with short
/// sleeps, and then with longer ones, so that many workers that wait for one link do not burn a processor each.
pub(crate) fn wait(event: &Event) -> cufile::Result<()> {
    const SPIN: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_micros(200);
    const SHORT_SLEEP: Duration = Duration::from_micros(10);
    const LONG_SLEEP: Duration = Duration::from_micros(50);
    let start = Instant::now();
    while !event.is_done()? {
        let waited = start.elapsed();
        if waited > SPIN {
            thread::sleep(if waited > LONG { LONG_SLEEP } else { SHORT_SLEEP });
        }
    }
    Ok(())
}
