//! Memory and streams of [cudarc's driver API](::cudarc::driver), with the feature `cudarc`.
//!
//! cudarc orders its work on a slice with streams and events that file transfers do not know, so no work may use the
//! memory when a transfer begins. [`Synced`] waits for cudarc's submitted work, and holds the slice or the borrow, so
//! that cudarc submits no more until the transfer has ended. Both crates must have loaded the same libcuda. They
//! have, unless `CUDA_LIBRARY` names another file than the dynamic loader finds.
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use cufile::cudarc::Synced;
//! use cufile::{Driver, FileHandle};
//!
//! let stream = CudaContext::new(0)?.new_stream()?;
//! let mut weights = stream.alloc_zeros::<f32>(1 << 20)?;
//!
//! let driver = Driver::open()?;
//! let file = FileHandle::register(&driver, std::fs::File::open("weights.bin")?)?;
//! file.read_at(&mut Synced::new(&mut weights)?, 0)?;
//! println!("{:?}", stream.clone_dtoh(&weights.slice(..4))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A part of a slice is a view, `Synced::new(weights.slice_mut(..1024))`. [`Stream::from_cudarc`] turns cudarc's
//! stream into a [`Stream`] for stream-ordered transfers. With [`Synced::in_its_stream`], this thread does not wait
//! for that stream. cudarc's pinned memory needs none of this: `PinnedHostSlice::as_mut_slice` waits itself and
//! returns bytes.
//!
//! # Per-thread streams
//! Each thread has its own stream behind cudarc's `per_thread_stream`, which candle's `Device::new_cuda` uses, and no
//! call waits for another thread's. So [`Synced::new`] then waits for all work of the context, and
//! [`Stream::from_cudarc`] returns the null stream. CUDA runs its work after the earlier work of every per-thread
//! stream, and before their later work:
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use cufile::cuda::Stream;
//! use cufile::cudarc::Synced;
//! use cufile::{Driver, FileHandle, RegisteredStream, StreamFlags};
//!
//! let mine = CudaContext::new(0)?.per_thread_stream();
//! let driver = Driver::open()?;
//! let file = FileHandle::register(&driver, std::fs::File::open("weights.bin")?)?.into();
//! let all = Stream::from_cudarc(driver.cuda(), mine.clone())?;
//! let all = RegisteredStream::register(&driver, all, StreamFlags::empty())?;
//!
//! let weights = mine.alloc_zeros::<f32>(1 << 20)?;
//! // SAFETY: its first use is a transfer in a stream from `from_cudarc`.
//! let weights = unsafe { Synced::in_its_stream(weights) }?;
//! let (bytes, weights) = all.read_at(&file, weights, 0)?.wait()?;
//! println!("{bytes} bytes: {:?}", mine.clone_dtoh(&weights.into_inner())?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! libcuda (580.159) can hang at the end of a thread whose per-thread stream has work left. Such a thread should call
//! `synchronize` of the stream first.

use std::sync::Arc;
use std::{fmt, mem, ptr};

#[doc(no_inline)]
pub use ::cudarc;
use ::cudarc::driver::sys::CUdeviceptr;
use ::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    DriverError,
};
use bytemuck::AnyBitPattern;
use cuda_rt_sys::driver::CUresult;

use crate::cuda::{Context, Cuda, Stream, is_implicit_stream};
use crate::error::{Error, Result};
use crate::memory::{IoBuf, IoBufMut, Location};

/// A cudarc slice or view that no submitted work of cudarc uses any more.
///
/// `S` is a [`CudaSlice`], a [`CudaView`] or [`CudaViewMut`], or a borrow of one. Transfers that own their buffer
/// take an owned `CudaSlice`, which [`into_inner`](Self::into_inner) returns.
///
/// While the value lives, cudarc cannot free the memory:
///
/// ```compile_fail,E0505
/// # use cufile::cudarc::Synced;
/// # fn read(file: &cufile::FileHandle, stream: &std::sync::Arc<cudarc::driver::CudaStream>)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let mut slice = stream.alloc_zeros::<u8>(4096)?;
/// let mut buffer = Synced::new(&mut slice)?;
/// drop(slice);
/// file.read_at(&mut buffer, 0)?;
/// # Ok(())
/// # }
/// ```
///
/// cudarc cannot use bytes that a read will write:
///
/// ```compile_fail,E0502
/// # use cufile::cudarc::Synced;
/// # fn read(file: &cufile::FileHandle, stream: &std::sync::Arc<cudarc::driver::CudaStream>)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let mut slice = stream.alloc_zeros::<u8>(4096)?;
/// let mut buffer = Synced::new(slice.slice_mut(..512))?;
/// let copy = stream.clone_dtoh(&slice)?;
/// file.read_at(&mut buffer, 0)?;
/// # Ok(())
/// # }
/// ```
///
/// A file cannot be read into elements for which not every bit pattern is valid:
///
/// ```compile_fail,E0277
/// # use cufile::cudarc::Synced;
/// # fn read(file: &cufile::FileHandle, stream: &std::sync::Arc<cudarc::driver::CudaStream>)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let slice = stream.alloc_zeros::<bool>(4096)?;
/// file.read_at(&mut Synced::new(slice)?, 0)?;
/// # Ok(())
/// # }
/// ```
pub struct Synced<S> {
    slice: S,
    address: CUdeviceptr,
    len_bytes: usize,
    context: Context,
}

impl<S: Slice> Synced<S> {
    /// Waits for the submitted work that may use the slice. Like cudarc's own calls, this leaves the slice's
    /// context current on the calling thread.
    ///
    /// If cudarc created the slice's stream, this waits for it, and for what cudarc tracks on other streams: every
    /// write to the slice and, if a file can be read into `S`, its last read.
    ///
    /// cudarc does not track the default stream and the [per-thread stream](self#per-thread-streams); for their
    /// slices, or if tracking is off (`CudaContext::disable_event_tracking`), this waits for all work of the
    /// context.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the memory belongs to another context than a primary one; CUDA's error, which may be
    /// the failure of earlier work.
    #[doc(alias = "cuStreamSynchronize")]
    #[doc(alias = "cuCtxSynchronize")]
    pub fn new(slice: S) -> Result<Self> {
        let (synced, stream) = Self::behind_its_stream(slice)?;
        // The slice keeps its stream, and cudarc tracks uses while a stream that it created is alive.
        if is_implicit_stream(stream.cu_stream().cast())
            || !stream.context().is_managing_stream_synchronization()
        {
            stream.context().synchronize().map_err(|error| failed("cuCtxSynchronize", error))?;
        } else {
            stream.synchronize().map_err(|error| failed("cuStreamSynchronize", error))?;
        }
        Ok(synced)
    }

    /// Makes only the slice's stream wait for tracked uses on other streams, unlike [`new`](Self::new), where this
    /// thread waits. Use it for transfers in that same stream.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Safety
    /// The first transfer must be ordered after the work already in the slice's stream, for example with a
    /// [`Stream::from_cudarc`] of it. For the [per-thread stream](self#per-thread-streams), this means the work of
    /// every thread; `from_cudarc` orders after all of it. No other work may use the slice, except uses that cudarc
    /// tracks.
    pub unsafe fn in_its_stream(slice: S) -> Result<Self> {
        Ok(Self::behind_its_stream(slice)?.0)
    }

    fn behind_its_stream(mut slice: S) -> Result<(Self, Arc<CudaStream>)> {
        let (stream, address, len_bytes) = slice.order_in_its_stream();
        let context = stream.context();
        // cudarc keeps failures there.
        context.check_err().map_err(|error| failed("cuStreamWaitEvent", error))?;
        if !context.is_primary() {
            return Err(Error::invalid(
                "Synced::new",
                "the memory is not in the GPU's primary context, which transfers need; use CudaContext::new",
            ));
        }
        // SAFETY: the slice keeps its stream, which keeps the context.
        let context = unsafe { Context::from_raw(context.cu_ctx().cast()) };
        Ok((Self { slice, address, len_bytes, context }, stream))
    }
}

impl<S> Synced<S> {
    /// Returns the slice to cudarc.
    pub fn into_inner(self) -> S {
        self.slice
    }
}

// SAFETY: the allocation stays in place as long as the slice or its borrow, which this value keeps from other code.
// Its work so far is done, or ends before the transfer by the promise to `in_its_stream`.
unsafe impl<S: Slice> IoBuf for Synced<S> {
    fn as_ptr(&self) -> *const u8 {
        ptr::with_exposed_provenance(self.address as usize)
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        Location::device(self.context)
    }
}

// SAFETY: owned or mutably borrowed, and any bytes are valid elements.
unsafe impl<S: SliceMut> IoBufMut for Synced<S> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl<S> fmt::Debug for Synced<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Synced({} bytes at {:#x})", self.len_bytes, self.address)
    }
}

/// A slice or view of cudarc, owned or borrowed. This trait is sealed.
pub trait Slice: sealed::Slice {}

impl<S: sealed::Slice> Slice for S {}

/// A slice or view that a file can be read into: it may be written, and every bit pattern is a valid element.
/// bytemuck's [`AnyBitPattern`] marks such elements: numbers, the types of `half` with its feature `bytemuck`, and
/// types that derive it.
pub trait SliceMut: Slice {}

impl<T: AnyBitPattern> SliceMut for CudaSlice<T> {}
impl<T: AnyBitPattern> SliceMut for &mut CudaSlice<T> {}
impl<T: AnyBitPattern> SliceMut for CudaViewMut<'_, T> {}
impl<T: AnyBitPattern> SliceMut for &mut CudaViewMut<'_, T> {}

mod sealed {
    use super::*;

    pub trait Slice {
        /// Returns the stream, and address and length in bytes.
        fn order_in_its_stream(&mut self) -> (Arc<CudaStream>, CUdeviceptr, usize);
    }
}

macro_rules! slices {
    ($($slice:ty, $pointer:ident;)*) => {
        $(impl<T> sealed::Slice for $slice {
            fn order_in_its_stream(&mut self) -> (Arc<CudaStream>, CUdeviceptr, usize) {
                let len_bytes = self.num_bytes();
                let stream = self.stream().clone();
                let (address, recorder) = self.$pointer(&stream);
                // It would record a use that cudarc need not wait for: a transfer is over before cudarc has the
                // slice back. A read's record would also replace that of another stream.
                mem::forget(recorder);
                (stream, address, len_bytes)
            }
        })*
    };
}

slices! {
    CudaSlice<T>, device_ptr_mut;
    &mut CudaSlice<T>, device_ptr_mut;
    &CudaSlice<T>, device_ptr;
    CudaViewMut<'_, T>, device_ptr_mut;
    &mut CudaViewMut<'_, T>, device_ptr_mut;
    CudaView<'_, T>, device_ptr;
    &CudaView<'_, T>, device_ptr;
}

impl Stream {
    /// Returns a stream that shares cudarc's and keeps it alive. Dropping the value neither waits for it nor destroys it.
    ///
    /// For the [per-thread stream](crate::cudarc#per-thread-streams), this returns the null stream. Waiting for the
    /// null stream waits only for its own work.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the stream's context is not its GPU's primary context in `cuda`. Also CUDA's error.
    pub fn from_cudarc(cuda: &Cuda, stream: Arc<CudaStream>) -> Result<Self> {
        const OPERATION: &str = "Stream::from_cudarc";
        let context: &Arc<CudaContext> = stream.context();
        let ordinal = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
        let device = cuda.device(ordinal)?;
        if device.context().as_raw().addr() != context.cu_ctx().addr() {
            return Err(Error::invalid(
                OPERATION,
                "the stream is not in the GPU's primary context; create its context with CudaContext::new",
            ));
        }
        Ok(Stream::lent(&device, stream))
    }
}

fn failed(operation: &'static str, error: DriverError) -> Error {
    Error::CudaDriver { operation: operation.into(), code: CUresult::from_raw(error.0 as u32) }
}
