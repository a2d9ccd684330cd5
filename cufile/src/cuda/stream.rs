//! Streams and events.

use std::ffi::{c_uint, c_void};
#[cfg(feature = "cudarc")]
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, ptr};

use crate::fork::Mutex;
#[cfg(feature = "cudarc")]
use ::cudarc::driver::CudaStream;
use cuda_rt_sys::driver::{CUstreamBatchMemOpParams, CUstreamBatchMemOpType};
use cuda_rt_sys::runtime::{
    cudaError_t, cudaEvent_t, cudaEventDisableTiming, cudaMemcpyAttributes, cudaMemcpyKind,
    cudaMemcpySrcAccessOrder, cudaStream_t, cudaStreamCaptureStatus, cudaStreamNonBlocking,
};

use super::Device;
use crate::callback::contained;
use crate::error::{Error, Result, check_driver, check_runtime};

/// A queue of work on a device. Dropping a stream created here waits for its work without limit, as freeing
/// memory does in CUDA. A stream that is being captured is leaked.
#[doc(alias = "cudaStreamDestroy")]
pub struct Stream {
    device: Device,
    raw: cudaStream_t,
    owner: Owner,
}

/// Returns whether a handle means a stream that CUDA makes itself: the null stream (null, `cudaStreamLegacy`), or that
/// of the calling thread (`cudaStreamPerThread`).
pub(crate) fn is_implicit_stream(raw: cudaStream_t) -> bool {
    raw.addr() <= 2
}

/// Returns a handle that is the same on all threads, because any thread may use a [`Stream`]. The null stream takes
/// turns with the streams of threads.
fn same_on_all_threads(raw: cudaStream_t) -> cudaStream_t {
    if is_implicit_stream(raw) { ptr::null_mut() } else { raw }
}

enum Owner {
    /// The [`Stream`], when it is dropped.
    Value,
    /// The code that created it.
    Elsewhere,
    /// cudarc, but not before this is dropped.
    #[cfg(feature = "cudarc")]
    Cudarc { _stream: Arc<CudaStream> },
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
        Ok(Self { device: device.clone(), raw, owner: Owner::Value })
    }

    /// Returns a stream that dropping neither waits for nor destroys.
    pub(super) fn default_of(device: &Device) -> Self {
        Self { device: device.clone(), raw: ptr::null_mut(), owner: Owner::Elsewhere }
    }

    /// Returns a stream that other code created. Dropping the value neither waits nor destroys.
    ///
    /// `cudaStreamPerThread` is a different stream on each thread. The null stream takes its place: it runs its work
    /// after the earlier work of all these streams, and they run theirs after its earlier work.
    ///
    /// # Safety
    /// `raw` must be null or a stream of the device's primary context that stays alive as long as the value. A
    /// [`RegisteredStream`](crate::RegisteredStream) may hold the value even after the registered stream was
    /// dropped.
    pub unsafe fn from_raw(device: &Device, raw: cudaStream_t) -> Self {
        Self { device: device.clone(), raw: same_on_all_threads(raw), owner: Owner::Elsewhere }
    }

    #[cfg(feature = "cudarc")]
    pub(crate) fn lent(device: &Device, stream: Arc<CudaStream>) -> Self {
        let raw = same_on_all_threads(stream.cu_stream().cast());
        Self { device: device.clone(), raw, owner: Owner::Cudarc { _stream: stream } }
    }

    /// Returns the device that the stream is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns C's handle, for calls outside this crate.
    pub fn as_raw(&self) -> cudaStream_t {
        self.raw
    }

    /// Waits for all work submitted so far.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work.
    #[doc(alias = "cudaStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        // The null stream is that of the current context.
        let _entered = self.device.enter()?;
        let _beside = self.device.cuda().beside_captures();
        // SAFETY: the stream is alive.
        check_runtime("cudaStreamSynchronize", unsafe {
            (self.device.cuda().runtime().cudaStreamSynchronize)(self.raw)
        })
    }

    /// Returns whether all work submitted so far is done. The answer is out of date as soon as more work is
    /// submitted.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work.
    #[doc(alias = "cudaStreamQuery")]
    pub fn is_idle(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        let _beside = self.device.cuda().beside_captures();
        // SAFETY: the stream is alive.
        ready("cudaStreamQuery", unsafe { (self.device.cuda().runtime().cudaStreamQuery)(self.raw) })
    }

    /// Returns whether submitted work becomes part of a CUDA graph instead of running.
    ///
    /// # Errors
    /// CUDA's error; for the null stream, also an error if another stream is being captured.
    #[doc(alias = "cudaStreamIsCapturing")]
    pub fn is_capturing(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        let mut status = cudaStreamCaptureStatus::cudaStreamCaptureStatusNone;
        // SAFETY: the stream is alive, and `status` outlives the call.
        check_runtime("cudaStreamIsCapturing", unsafe {
            (self.device.cuda().runtime().cudaStreamIsCapturing)(self.raw, &mut status)
        })?;
        Ok(status != cudaStreamCaptureStatus::cudaStreamCaptureStatusNone)
    }

    /// Copies host bytes to device memory after the work already in the stream (`cudaMemcpyAsync`). To learn when the
    /// copy is done, [record](Self::record) an event right after it. Copies from pinned memory run in parallel with
    /// the host's work.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work. The copy may be in flight then.
    ///
    /// # Safety
    /// `target` must be device memory as long as `source`. Until the copy is done, nothing else may use
    /// `target`, and `source` must not change.
    #[doc(alias = "cudaMemcpyAsync")]
    pub unsafe fn copy_to_device(&self, target: *mut u8, source: &[u8]) -> Result<()> {
        let kind = cudaMemcpyKind::cudaMemcpyHostToDevice;
        // SAFETY: the caller's promise.
        unsafe { self.copy(target.cast(), source.as_ptr().cast(), source.len(), kind) }
    }

    /// Copies device memory to host bytes after the work already in the stream (`cudaMemcpyAsync`). Events and pinned
    /// memory serve as in [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Errors
    /// As [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Safety
    /// `source` must be device memory as long as `target`. Until the copy is done, nothing may write `source`,
    /// and nothing else may use `target`.
    #[doc(alias = "cudaMemcpyAsync")]
    pub unsafe fn copy_from_device(&self, target: &mut [u8], source: *const u8) -> Result<()> {
        let kind = cudaMemcpyKind::cudaMemcpyDeviceToHost;
        // SAFETY: the caller's promise.
        unsafe { self.copy(target.as_mut_ptr().cast(), source.cast(), target.len(), kind) }
    }

    /// Copies `len_bytes` bytes within the memory of the stream's device, after the work already in the stream
    /// (`cudaMemcpyAsync`).
    ///
    /// # Errors
    /// As [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Safety
    /// Both must be `len_bytes` of memory of the stream's device, without an overlap. Until the copy is done, nothing may
    /// write `source`, and nothing else may use `target`.
    #[doc(alias = "cudaMemcpyAsync")]
    pub unsafe fn copy_on_device(&self, target: *mut u8, source: *const u8, len_bytes: usize) -> Result<()> {
        let kind = cudaMemcpyKind::cudaMemcpyDeviceToDevice;
        // SAFETY: the caller's promise.
        unsafe { self.copy(target.cast(), source.cast(), len_bytes, kind) }
    }

    /// Copies `lens_bytes[i]` bytes from `sources[i]` to `targets[i]`, in any order, after the work already in the
    /// stream. Makes one call where CUDA has `cudaMemcpyBatchAsync` (13.0) and the stream is not the null stream,
    /// otherwise one call for each copy. One call saves time for many small copies.
    ///
    /// # Faults of CUDA
    /// CUDA crashes if two threads make that call at once, so the threads of a process take turns. If several
    /// processes make it on one GPU at once, a copy may fail with `cudaErrorLaunchFailure`, or return success and
    /// lose its bytes (driver 580.159). Use it only where no other process does. [Single
    /// copies](Self::copy_to_device) and [kernels](Self::launch) have no such fault.
    ///
    /// # Errors
    /// CUDA's error; some of the copies may be in flight then.
    ///
    /// # Panics
    /// If the three slices differ in length.
    ///
    /// # Safety
    /// Each pair must be ranges of host or device memory of the given length. Nothing else may use them until
    /// the copies are done. No two targets may overlap.
    #[doc(alias = "cudaMemcpyBatchAsync")]
    pub unsafe fn copy_batch(
        &self,
        targets: &[*mut u8],
        sources: &[*const u8],
        lens_bytes: &[usize],
    ) -> Result<()> {
        let count = lens_bytes.len();
        assert!(
            targets.len() == count && sources.len() == count,
            "the numbers of targets, sources and lengths differ"
        );
        let batch = self.device.cuda().runtime().cudaMemcpyBatchAsync;
        let (Some(batch), false) = (batch, self.raw.is_null() || count < 2) else {
            for i in 0..count {
                let kind = cudaMemcpyKind::cudaMemcpyDefault;
                // SAFETY: the caller's promise.
                unsafe { self.copy(targets[i].cast(), sources[i].cast(), lens_bytes[i], kind) }?;
            }
            return Ok(());
        };
        /// A lock, because two of these calls at once, in any streams, crash libcuda (580.159, libcudart 13.0 and
        /// 13.5) or corrupt the GPU's push buffer, with small copies within seconds. It guards no data, so a panic
        /// does no harm.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::of_static(());
        let _entered = self.device.enter()?;
        let _alone = ONE_AT_A_TIME.lock();
        // SAFETY: zeros are valid, and mean that the locations are unspecified.
        let mut attributes: cudaMemcpyAttributes = unsafe { std::mem::zeroed() };
        attributes.srcAccessOrder = cudaMemcpySrcAccessOrder::cudaMemcpySrcAccessOrderStream;
        let mut all_from_the_first = 0;
        // SAFETY: the caller's promise; CUDA reads the arrays before it returns.
        check_runtime("cudaMemcpyBatchAsync", unsafe {
            batch(
                targets.as_ptr().cast(),
                sources.as_ptr().cast(),
                lens_bytes.as_ptr(),
                count,
                &mut attributes,
                &mut all_from_the_first,
                1,
                self.raw,
            )
        })
    }

    /// # Safety
    /// Both ranges must be `len_bytes` long and of the named kinds, and stay untouched until the copy is done.
    unsafe fn copy(
        &self,
        target: *mut c_void,
        source: *const c_void,
        len_bytes: usize,
        kind: cudaMemcpyKind,
    ) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the caller's promise; the stream is alive.
        check_runtime("cudaMemcpyAsync", unsafe {
            (self.device.cuda().runtime().cudaMemcpyAsync)(target, source, len_bytes, kind, self.raw)
        })
    }

    /// Records an event after the work already in the stream.
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaEventRecord")]
    pub fn record(&self) -> Result<Event> {
        let event = Event::new(&self.device)?;
        self.record_into(&event)?;
        Ok(event)
    }

    /// Records `event`, which must be of the same device, after the work already in the stream. This replaces what it
    /// recorded before, so a program can reuse one event.
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaEventRecord")]
    pub fn record_into(&self, event: &Event) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: both are alive and of one device.
        check_runtime("cudaEventRecord", unsafe {
            (self.device.cuda().runtime().cudaEventRecord)(event.raw, self.raw)
        })
    }

    /// Calls `function` on a CUDA thread after the work already in the stream; later work waits for it.
    ///
    /// The function must not call CUDA, and must not wait for anything that needs the stream to continue. Dropping
    /// GPU buffers, streams, events and transfers calls CUDA: the function must pass them to another thread instead.
    /// If the stream fails, CUDA never calls the function. A panic in the function does not propagate.
    ///
    /// libcufile's first call on a stream waits for earlier submitted host functions, which therefore must not
    /// wait for anything that the thread does after it.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work. [`Error::InvalidInput`] if the stream is being
    /// captured. After an error, CUDA does not call the function. If a capture begins during the call, the
    /// graph calls the function at its first launch only.
    #[doc(alias = "cudaLaunchHostFunc")]
    pub fn call_on_host<F: FnOnce() + Send + 'static>(&self, function: F) -> Result<()> {
        unsafe extern "C" fn call(data: *mut c_void) {
            if let Some(function) = host_functions::take(data.addr()) {
                contained(function);
            }
        }
        let _entered = self.device.enter()?;
        if self.is_capturing()? {
            return Err(Error::invalid(
                "cudaLaunchHostFunc",
                "the stream is being captured; end the capture first".to_owned(),
            ));
        }
        let number = host_functions::keep(Box::new(function));
        // SAFETY: the stream is alive; `call` treats any data as a number, so CUDA may call it at any time and
        // any number of times.
        let code = unsafe {
            (self.device.cuda().runtime().cudaLaunchHostFunc)(
                self.raw,
                Some(call),
                ptr::without_provenance_mut(number),
            )
        };
        check_runtime("cudaLaunchHostFunc", code).inspect_err(|_| {
            // The error may be that of earlier work, with the call queued nevertheless. The call then finds no
            // function.
            drop(host_functions::take(number));
        })
    }

    /// Lets the stream wait for words in memory or write them, in this order, after the work already in it
    /// (`cuStreamBatchMemOp`). Work submitted later waits for that.
    ///
    /// A stream that waits takes one of the GPU's hardware queues (`CUDA_DEVICE_MAX_CONNECTIONS`, 8 by default). When
    /// all are taken, no stream continues, not even with copies.
    ///
    /// # Errors
    /// CUDA's error, also for more than 255 operations. CUDA then submitted nothing, unless the error is the
    /// failure of earlier work.
    ///
    /// # Safety
    /// The words must be aligned and in memory that the GPU can use, such as a
    /// [`PinnedBuffer`](super::PinnedBuffer). They must stay there until the stream has gone on. The host may
    /// use them only as atomics.
    #[doc(alias = "cuStreamBatchMemOp")]
    #[doc(alias = "cuStreamWaitValue32")]
    #[doc(alias = "cuStreamWriteValue32")]
    pub unsafe fn on_words(&self, operations: &[WordOperation]) -> Result<()> {
        let mut operations: Vec<_> = operations.iter().map(WordOperation::as_raw).collect();
        let _entered = self.device.enter()?;
        // SAFETY: the stream is alive, and the count is that of the operations; the rest is the caller's
        // promise.
        check_driver("cuStreamBatchMemOp", unsafe {
            (self.device.cuda().driver().cuStreamBatchMemOp_v2)(
                self.raw.cast(),
                operations.len() as u32,
                operations.as_mut_ptr(),
                0,
            )
        })
    }

    /// Makes work submitted from now on wait for `event`, which may be of another stream.
    ///
    /// # Errors
    /// CUDA's error.
    #[doc(alias = "cudaStreamWaitEvent")]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: both are alive; CUDA keeps what it needs of the event.
        check_runtime("cudaStreamWaitEvent", unsafe {
            (self.device.cuda().runtime().cudaStreamWaitEvent)(self.raw, event.raw, 0)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::Value) {
            return;
        }
        let Ok(_entered) = self.device.enter() else { return };
        // Waiting for a stream that is being captured ends the capture, and its graph may refer to the stream.
        // So the stream is leaked.
        if self.is_capturing().is_ok_and(|is_capturing| is_capturing) {
            return;
        }
        let _beside = self.device.cuda().beside_captures();
        // SAFETY: created in `new`, destroyed once, after its work: the memory of that work may be freed next.
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

/// An operation of a stream on a word in memory; for [`Stream::on_words`].
#[derive(Debug, Clone, Copy)]
pub enum WordOperation {
    /// Waits until the word has reached the value. The sign of their difference decides, so a counter may wrap
    /// around.
    Wait(*const u32, u32),
    /// Sets the word to the value. A reader of the value sees the writes of the stream's earlier work.
    Write(*mut u32, u32),
}

impl WordOperation {
    fn as_raw(&self) -> CUstreamBatchMemOpParams {
        let (operation, word, value) = match *self {
            WordOperation::Wait(word, value) => {
                (CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32, word, value)
            }
            WordOperation::Write(word, value) => {
                (CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32, word.cast_const(), value)
            }
        };
        // No flags: a wait is for a greater or equal value, and a write comes after all earlier writes.
        let address = word.expose_provenance() as u64;
        CUstreamBatchMemOpParams { operation, address, value64: value.into(), flags: 0, alias: 0, pad: 0 }
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
    pub(crate) fn new(device: &Device) -> Result<Self> {
        Self::with_flags(device, cudaEventDisableTiming)
    }

    pub(super) fn with_flags(device: &Device, flags: c_uint) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the device's context is current.
        check_runtime("cudaEventCreateWithFlags", unsafe {
            (device.cuda().runtime().cudaEventCreateWithFlags)(&mut raw, flags)
        })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Returns the time from `start` to this event, both of [`Device::timing_event`] and recorded.
    ///
    /// # Errors
    /// CUDA's error: `cudaErrorInvalidResourceHandle` for events without timing or that were never recorded,
    /// `cudaErrorNotReady` while either is not done; [`Error::Forked`].
    #[doc(alias = "cudaEventElapsedTime")]
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration> {
        let _entered = self.device.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive; the result outlives the call.
        check_runtime("cudaEventElapsedTime", unsafe {
            (self.device.cuda().runtime().cudaEventElapsedTime)(&mut milliseconds, start.raw, self.raw)
        })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    /// Returns whether the work before the event is done.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of that work; [`Error::Forked`].
    #[doc(alias = "cudaEventQuery")]
    pub fn is_done(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        let _beside = self.device.cuda().beside_captures();
        // SAFETY: the event is alive.
        ready("cudaEventQuery", unsafe { (self.device.cuda().runtime().cudaEventQuery)(self.raw) })
    }

    /// Waits for the work before the event.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of that work; [`Error::Forked`].
    #[doc(alias = "cudaEventSynchronize")]
    pub fn wait(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        let _beside = self.device.cuda().beside_captures();
        // SAFETY: the event is alive.
        check_runtime("cudaEventSynchronize", unsafe {
            (self.device.cuda().runtime().cudaEventSynchronize)(self.raw)
        })
    }

    /// Returns C's handle, for calls outside this crate.
    pub fn as_raw(&self) -> cudaEvent_t {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: created in `new`, destroyed once; CUDA allows that while the event is pending.
        unsafe { (self.device.cuda().runtime().cudaEventDestroy)(self.raw) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p})", self.raw)
    }
}

/// Functions for streams to call, by number.
///
/// CUDA gets a number, not an address. It may call the function once, never, after an error, or at every launch of a
/// captured graph.
mod host_functions {
    use std::collections::BTreeMap;
    use std::sync::MutexGuard;

    use crate::fork::Mutex;

    type Function = Box<dyn FnOnce() + Send>;

    #[derive(Default)]
    struct Functions {
        last: usize,
        waiting: BTreeMap<usize, Function>,
    }

    fn functions() -> MutexGuard<'static, Functions> {
        static FUNCTIONS: Mutex<Functions> =
            Mutex::of_static(Functions { last: 0, waiting: BTreeMap::new() });
        FUNCTIONS.lock()
    }

    pub(super) fn keep(function: Function) -> usize {
        let mut functions = functions();
        functions.last += 1;
        let number = functions.last;
        functions.waiting.insert(number, function);
        number
    }

    pub(super) fn take(number: usize) -> Option<Function> {
        functions().waiting.remove(&number)
    }
}

fn ready(operation: &'static str, code: cudaError_t) -> Result<bool> {
    if code == cudaError_t::cudaErrorNotReady {
        return Ok(false);
    }
    check_runtime(operation, code).map(|()| true)
}
