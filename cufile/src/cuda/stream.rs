//! Streams and events.

use std::{fmt, ptr};

use cuda_rt_sys::runtime::{
    cudaError_t, cudaEvent_t, cudaEventDisableTiming, cudaStream_t, cudaStreamNonBlocking,
};

use super::Device;
use crate::error::{Result, check_runtime};

/// A queue of work on a device. Dropping it waits for the work.
pub struct Stream {
    device: Device,
    raw: cudaStream_t,
}

// SAFETY: CUDA allows a stream to be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the device's context is current.
        check_runtime("cudaStreamCreateWithFlags", unsafe {
            (device.cuda().runtime().cudaStreamCreateWithFlags)(&mut raw, cudaStreamNonBlocking)
        })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// The device that the stream is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// C's handle, for calls outside this crate.
    pub fn as_raw(&self) -> cudaStream_t {
        self.raw
    }

    /// Waits for all work submitted so far.
    ///
    /// # Errors
    /// What CUDA said, which may be the failure of earlier work.
    #[doc(alias = "cudaStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        check_runtime("cudaStreamSynchronize", unsafe {
            (self.device.cuda().runtime().cudaStreamSynchronize)(self.raw)
        })
    }

    /// Whether all work submitted so far is done. Stale as soon as more is submitted.
    ///
    /// # Errors
    /// What CUDA said, which may be the failure of earlier work.
    #[doc(alias = "cudaStreamQuery")]
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive.
        ready("cudaStreamQuery", unsafe { (self.device.cuda().runtime().cudaStreamQuery)(self.raw) })
    }

    /// Marks the present end of the stream's work.
    ///
    /// # Errors
    /// What CUDA said.
    #[doc(alias = "cudaEventRecord")]
    pub fn record(&self) -> Result<Event> {
        let event = Event::new(&self.device)?;
        let _entered = self.device.enter()?;
        // SAFETY: both are alive and of one device.
        check_runtime("cudaEventRecord", unsafe {
            (self.device.cuda().runtime().cudaEventRecord)(event.raw, self.raw)
        })?;
        Ok(event)
    }

    /// Makes work submitted from now on wait for `event`, which may be of another stream.
    ///
    /// # Errors
    /// What CUDA said.
    #[doc(alias = "cudaStreamWaitEvent")]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        // SAFETY: both are alive; CUDA keeps what it needs of the event.
        check_runtime("cudaStreamWaitEvent", unsafe {
            (self.device.cuda().runtime().cudaStreamWaitEvent)(self.raw, event.raw, 0)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once, after its work: what the work uses may be freed next.
        unsafe {
            (self.device.cuda().runtime().cudaStreamSynchronize)(self.raw);
            (self.device.cuda().runtime().cudaStreamDestroy)(self.raw);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p} on {:?})", self.raw, self.device)
    }
}

/// A point in a stream's work.
pub struct Event {
    device: Device,
    raw: cudaEvent_t,
}

// SAFETY: CUDA allows an event to be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    fn new(device: &Device) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the device's context is current.
        check_runtime("cudaEventCreateWithFlags", unsafe {
            (device.cuda().runtime().cudaEventCreateWithFlags)(&mut raw, cudaEventDisableTiming)
        })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Whether the work before the event is done.
    ///
    /// # Errors
    /// What CUDA said, which may be the failure of that work.
    #[doc(alias = "cudaEventQuery")]
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        ready("cudaEventQuery", unsafe { (self.device.cuda().runtime().cudaEventQuery)(self.raw) })
    }

    /// Waits for the work before the event.
    ///
    /// # Errors
    /// What CUDA said, which may be the failure of that work.
    #[doc(alias = "cudaEventSynchronize")]
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is alive.
        check_runtime("cudaEventSynchronize", unsafe {
            (self.device.cuda().runtime().cudaEventSynchronize)(self.raw)
        })
    }

    /// C's handle, for calls outside this crate.
    pub fn as_raw(&self) -> cudaEvent_t {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once; CUDA allows that while the event is pending.
        unsafe { (self.device.cuda().runtime().cudaEventDestroy)(self.raw) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p})", self.raw)
    }
}

fn ready(operation: &'static str, code: cudaError_t) -> Result<bool> {
    if code == cudaError_t::cudaErrorNotReady {
        return Ok(false);
    }
    check_runtime(operation, code).map(|()| true)
}
