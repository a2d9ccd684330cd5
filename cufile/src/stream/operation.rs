//! A submitted transfer, and everything that libcufile uses until it is over.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use cufile_sys::{CUfileError_t, CUfileHandle_t, CUstream, off_t};

use super::registration::raw;
use super::{LateBound, RegisteredStream};
use crate::cuda::Event;
use crate::error::{Error, Raw, Result, check, decode};
use crate::failed::Failed;
use crate::handle::FileHandle;
use crate::patience::{PATIENCE, wait_until};

/// The byte count before libcufile writes one. It is not 0, which would mean the end of the file: 1.20 silently gives
/// up some transfers.
pub(super) const UNWRITTEN: isize = isize::MIN;

pub(super) const READ: &str = "cuFileReadAsync";
pub(super) const WRITE: &str = "cuFileWriteAsync";

/// A submitted stream-ordered read or write.
///
/// Owns the buffer until the transfer has ended, and [`wait`](Self::wait) returns it. Dropping waits for at most
/// 30 seconds and then frees the buffer, or leaks it if the transfer is not over; forgetting leaks it. Do not wait
/// or drop in a function that a stream calls: CUDA allows no waiting there, and the buffer leaks.
///
/// File, stream and driver live at least as long as the operation.
///
/// No other thread may begin a capture of the stream while a transfer is submitted. If this crate notices one, it
/// leaks the buffer.
#[must_use = "dropping an operation waits for it"]
pub struct Operation<B> {
    // A pointer rather than a box, because a box claims sole access, and libcufile writes there.
    pub(super) pending: NonNull<Pending<B>>,
    pub(super) owns: PhantomData<Pending<B>>,
}

// SAFETY: owns its `Pending`, whose parts other than the buffer may be used and dropped on any thread.
unsafe impl<B: Send> Send for Operation<B> {}
// SAFETY: as above; a shared reference gives no access to the buffer.
unsafe impl<B> Sync for Operation<B> {}

/// Everything that libcufile uses until a transfer is over.
pub(super) struct Pending<B> {
    /// Written by C.
    pub(super) bytes: Arc<AtomicIsize>,
    /// The length at submission; a later one is never greater.
    pub(super) asked: usize,
    pub(super) arguments: LateBound,
    pub(super) buffer: B,
    pub(super) file: Arc<FileHandle>,
    pub(super) operation: &'static str,
    pub(super) fate: Fate,
    /// Follows the transfer in the stream; `None` if it could not be recorded.
    pub(super) event: Option<Event>,
    pub(super) stream: RegisteredStream,
}

/// The outcome of submitting a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The stream runs the transfer, and libcufile then writes the byte count.
    Accepted,
    /// libcufile queues a transfer in several steps, so it may be in the stream nevertheless.
    Refused,
    /// A capture began during the call, and each launch of its graph runs the transfer.
    Captured,
}

impl<B> Pending<B> {
    /// Calls C, with the context of the stream current: the null stream is that of the current context.
    pub(super) fn call(&self, base: *mut u8) -> Result<()> {
        type Submit = unsafe extern "C" fn(
            CUfileHandle_t,
            *mut std::ffi::c_void,
            *mut usize,
            *mut off_t,
            *mut off_t,
            *mut isize,
            CUstream,
        ) -> CUfileError_t;
        let stream = self.stream.stream();
        let functions = self.stream.driver().library().functions();
        let submit: Submit =
            if self.operation == READ { functions.cuFileReadAsync } else { functions.cuFileWriteAsync };
        let arguments = &*self.arguments.0;
        let _turn = self.stream.0.registration.turn.lock();
        // SAFETY: `Pending` holds file, buffer, arguments, the place for the result and the stream until the
        // transfer is over, and leaks if its end is unknown. The range is always in the buffer, because
        // `LateBound` limits length and buffer offset.
        check(self.operation, unsafe {
            submit(
                self.file.as_raw(),
                base.cast(),
                arguments.len_bytes.as_ptr(),
                arguments.file_offset.as_ptr(),
                arguments.buffer_offset.as_ptr(),
                self.bytes.as_ptr(),
                raw(stream),
            )
        })
    }

    /// Waits until libcufile is done with everything here; after an error it may not be.
    fn settle(&self) -> Result<()> {
        self.stream.driver().check_alive()?;
        if self.fate == Fate::Captured {
            return Err(captured(self.operation));
        }
        match &self.event {
            Some(event) => event.wait()?,
            None => self.stream.stream().synchronize()?,
        }
        // The stream has passed the transfer, but did not run it. libcufile silently gave it up, or it went
        // into the graph of a capture that has ended.
        if self.fate == Fate::Accepted && self.bytes.load(Ordering::Acquire) == UNWRITTEN {
            return Err(Error::Unspecified { operation: self.operation.into() });
        }
        Ok(())
    }
}

pub(super) fn captured(operation: &'static str) -> Error {
    Error::invalid(operation, "the stream is being captured; end the capture first")
}

impl<B> Operation<B> {
    fn pending(&self) -> &Pending<B> {
        // SAFETY: leaked in `submit`, and a box again only when the operation ends.
        unsafe { self.pending.as_ref() }
    }

    /// Leaks everything if libcufile does not confirm that.
    fn end(self) -> Result<Box<Pending<B>>> {
        let this = ManuallyDrop::new(self);
        this.pending().settle()?;
        // SAFETY: leaked in `submit`; libcufile is done with it, and `this` is never dropped.
        Ok(unsafe { Box::from_raw(this.pending.as_ptr()) })
    }

    /// Returns whether the transfer has ended. [`wait`](Self::wait) then returns at once.
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work on the stream; [`Error::Forked`].
    #[doc(alias = "cudaEventQuery")]
    pub fn is_done(&self) -> Result<bool> {
        let pending = self.pending();
        pending.stream.driver().check_alive()?;
        match &pending.event {
            Some(event) => event.is_done(),
            None => pending.stream.stream().is_idle(),
        }
    }

    /// Waits until the transfer has ended, but no longer than `timeout`. Returns whether it has ended;
    /// [`wait`](Self::wait) then returns at once.
    ///
    /// # Errors
    /// As [`is_done`](Self::is_done).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        wait_until(timeout, || self.is_done())
    }

    /// Waits for the transfer and returns its number of bytes, and the buffer.
    ///
    /// A read has fewer bytes than asked for at the end of the file, 0 beyond it.
    ///
    /// # Errors
    /// Returns the buffer with cuFile's error for the transfer. The buffer is leaked instead if the transfer may
    /// still be in flight. Causes are: CUDA fails to wait; libcufile never wrote a byte count; the stream was
    /// captured while the transfer was submitted; the process is a forked child ([`Error::Forked`]).
    pub fn wait(self) -> Result<(usize, B), Failed<Kept<B>>> {
        match self.end() {
            Err(error) => Err(Failed::new(error, Kept(State::Leaked))),
            Ok(ended) => {
                let Pending { bytes, asked, buffer, operation, .. } = *ended;
                match decode(operation, Raw::Completion { count: bytes.load(Ordering::Acquire), asked }) {
                    Ok(bytes) => Ok((bytes, buffer)),
                    Err(error) => Err(Failed::new(error, Kept::free(buffer))),
                }
            }
        }
    }

    /// Returns the place of the byte count, which outlives the operation.
    pub(crate) fn count(&self) -> Count {
        Count(Arc::clone(&self.pending().bytes))
    }

    /// Returns the size and the offsets, which can be set until the stream runs the transfer.
    pub fn arguments(&self) -> &LateBound {
        &self.pending().arguments
    }

    /// Returns the stream that the operation is on.
    pub fn stream(&self) -> &RegisteredStream {
        &self.pending().stream
    }

    /// Returns the file.
    pub fn file(&self) -> &Arc<FileHandle> {
        &self.pending().file
    }
}

pub(crate) struct Count(Arc<AtomicIsize>);

impl Count {
    pub(crate) fn is_written(&self) -> bool {
        self.0.load(Ordering::Acquire) != UNWRITTEN
    }
}

impl<B> Drop for Operation<B> {
    fn drop(&mut self) {
        if self.wait_timeout(PATIENCE).is_ok_and(|is_over| is_over) && self.pending().settle().is_ok() {
            // SAFETY: leaked in `submit`; libcufile is done with it, and nothing uses the operation any more.
            drop(unsafe { Box::from_raw(self.pending.as_ptr()) });
        }
    }
}

impl<B> fmt::Debug for Operation<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.pending();
        f.debug_struct("Operation")
            .field("operation", &pending.operation)
            .field("arguments", &pending.arguments)
            .field("file", &pending.file)
            .finish_non_exhaustive()
    }
}

/// The buffer of a failed stream-ordered transfer.
///
/// The transfer may be in the stream nevertheless, because libcufile queues it in several steps; this type then
/// keeps the buffer until the stream has passed that point: [`into_buffer`](Self::into_buffer) and dropping wait for
/// it, dropping for at most 30 seconds.
pub struct Kept<B>(State<B>);

enum State<B> {
    /// Nothing uses the buffer.
    Free(B),
    /// libcufile may use it until the stream has passed the call.
    InDoubt(Operation<B>),
    /// libcufile may still use the buffer, for an unknown time.
    Leaked,
}

impl<B> Kept<B> {
    pub(super) fn free(buffer: B) -> Self {
        Self(State::Free(buffer))
    }

    pub(super) fn in_doubt(operation: Operation<B>) -> Self {
        Self(State::InDoubt(operation))
    }

    /// Returns whether a graph can run the transfer at any time.
    pub(crate) fn is_captured(&self) -> bool {
        matches!(&self.0, State::InDoubt(operation) if operation.pending().fate == Fate::Captured)
    }

    /// Returns the buffer. If the transfer may still be in the stream, this first waits for the work already in the
    /// stream.
    ///
    /// Returns `None` if the transfer may still be in flight; the buffer is leaked then.
    pub fn into_buffer(self) -> Option<B> {
        match self.0 {
            State::Free(buffer) => Some(buffer),
            State::InDoubt(operation) => operation.end().ok().map(|ended| ended.buffer),
            State::Leaked => None,
        }
    }
}

impl<B> fmt::Debug for Kept<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Free(_) => "Kept(free)",
            State::InDoubt(_) => "Kept(in doubt)",
            State::Leaked => "Kept(leaked)",
        })
    }
}

impl<B> Failed<Kept<B>> {
    /// Returns the buffer, as [`Kept::into_buffer`] does.
    pub fn into_buffer(self) -> Option<B> {
        self.into_value().into_buffer()
    }
}
