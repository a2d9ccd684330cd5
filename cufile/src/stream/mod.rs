//! Stream-ordered transfers: reads and writes that a CUDA stream runs in order with its other work.
//!
//! A [`RegisteredStream`] submits transfers and returns an [`Operation`] for each. Until the transfer has ended, the
//! operation owns everything that libcufile uses, so nothing can be freed too early:
//! - [`wait`](Operation::wait) returns the buffer and the number of bytes;
//! - dropping waits, also in a panic or an early return, for at most 30 seconds, and then leaks;
//! - leaking ([`std::mem::forget`]) leaks the buffer too.
//!
//! A call that fails may have queued the transfer: its error is [`Failed`], whose [`Kept`] holds the buffer until
//! the stream has passed the call.
//!
//! libcufile reads the size and the offsets when the transfer runs, unless the stream's [`StreamFlags`] fix them at
//! submission. Until then a [`LateBound`] can set them, from any thread or from a function that the stream calls.
//!
//! ```no_run
//! use std::fs::File;
//! use std::sync::Arc;
//!
//! use cufile::{Driver, FileHandle, RegisteredStream, StreamFlags};
//!
//! let driver = Driver::open()?;
//! let device = driver.cuda().device(0)?;
//! let file = Arc::new(FileHandle::register(&driver, File::open("data.bin")?)?);
//! let stream = RegisteredStream::register(&driver, device.stream()?, StreamFlags::empty())?;
//!
//! let reading = stream.read_at(&file, device.alloc(1 << 20)?, 0)?;
//! // Kernels launched on the stream now run after the read.
//! let (bytes, buffer) = reading.wait()?;
//! println!("{bytes} bytes: {:?}", &buffer.to_vec()?[..bytes]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod late_bound;
mod operation;
mod registration;

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicIsize, AtomicUsize};

use cufile_sys::{
    CU_FILE_STREAM_FIXED_BUF_OFFSET, CU_FILE_STREAM_FIXED_FILE_OFFSET, CU_FILE_STREAM_FIXED_FILE_SIZE,
    CU_FILE_STREAM_PAGE_ALIGNED_INPUTS, off_t,
};

pub use late_bound::LateBound;
pub(crate) use operation::Count;
pub use operation::{Kept, Operation};

use crate::cuda::{Entered, Event, Stream};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::failed::Failed;
use crate::handle::FileHandle;
use crate::memory::{IoBuf, IoBufMut, Location, Span, file_offset, name};
use late_bound::Arguments;
use operation::{Fate, Pending, READ, UNWRITTEN, WRITE, captured};
use registration::Registered;

bitflags::bitflags! {
    /// The promises about all transfers of a stream, on which libcufile may rely.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct StreamFlags: u32 {
        /// The buffer offset does not change after submission (`CU_FILE_STREAM_FIXED_BUF_OFFSET`).
        #[doc(alias = "CU_FILE_STREAM_FIXED_BUF_OFFSET")]
        const FIXED_BUF_OFFSET = CU_FILE_STREAM_FIXED_BUF_OFFSET;
        /// The file offset does not change after submission (`CU_FILE_STREAM_FIXED_FILE_OFFSET`).
        #[doc(alias = "CU_FILE_STREAM_FIXED_FILE_OFFSET")]
        const FIXED_FILE_OFFSET = CU_FILE_STREAM_FIXED_FILE_OFFSET;
        /// The size does not change after submission (`CU_FILE_STREAM_FIXED_FILE_SIZE`).
        #[doc(alias = "CU_FILE_STREAM_FIXED_FILE_SIZE")]
        const FIXED_FILE_SIZE = CU_FILE_STREAM_FIXED_FILE_SIZE;
        /// Size, offsets and the buffer's address are multiples of 4096 bytes
        /// (`CU_FILE_STREAM_PAGE_ALIGNED_INPUTS`). This crate refuses others before libcufile sees them.
        #[doc(alias = "CU_FILE_STREAM_PAGE_ALIGNED_INPUTS")]
        const PAGE_ALIGNED_INPUTS = CU_FILE_STREAM_PAGE_ALIGNED_INPUTS;
    }
}

/// A CUDA stream registered with cuFile, which runs reads and writes in order with its other work.
///
/// Clones refer to the same registration; each [`Operation`] holds one. Dropping the last one deregisters the stream,
/// and then releases the [`Stream`]. Registering and deregistering wait for the stream's work.
///
/// A stream that has done I/O stays registered, and keeps its [`Stream`], while other such streams live: otherwise
/// libcufile (1.16 and 1.20) mixes up later operations and reports bytes that it did not move. So streams accumulate
/// in a program that creates one for each transfer while another lives; prefer a few long-lived streams.
///
/// A stream that libcufile fails to deregister, or that still has work 30 seconds after it was dropped, stays
/// registered too: it is not destroyed, and keeps the driver open. [`deregister`](Self::deregister) returns the
/// error. A new registration of the stream shares the old one, and dropping other streams tries to deregister it
/// again.
///
/// libcufile registers a stream once, and identifies it by its handle alone. Registering the default stream or a
/// stream of other code again shares the first registration and its driver, or with other flags fails with
/// [`Error::InUse`]. The default stream of a second device fails so too, because its handle is the same null.
#[derive(Clone)]
pub struct RegisteredStream(Arc<Registered>);

impl RegisteredStream {
    /// Registers a stream (`cuFileStreamRegister`): an owned one or, as an [`Arc`], one to which other code
    /// submits work.
    ///
    /// [`Device::default_stream`](crate::cuda::Device::default_stream) and [`Stream::from_raw`] return streams of
    /// other code.
    ///
    /// Names elsewhere: `stream_register` (Python).
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the stream belongs to another CUDA library than the driver's; [`Error::InUse`] if
    /// its handle is registered with other flags or for another device, or is still registered although it was
    /// dropped, as explained [above](Self); or cuFile's error. [`Failed`] returns the stream.
    #[doc(alias = "cuFileStreamRegister")]
    #[doc(alias = "stream_register")]
    pub fn register(
        driver: &Driver,
        stream: impl Into<Arc<Stream>>,
        flags: StreamFlags,
    ) -> Result<Self, Failed<Arc<Stream>>> {
        let stream = stream.into();
        match Registered::new(driver, &stream, flags) {
            Ok(registered) => Ok(Self(Arc::new(registered))),
            Err(error) => Err(Failed::new(error, stream)),
        }
    }

    /// Returns the stream, for other work on it.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.0.registration.stream
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the flags that the stream was registered with.
    pub fn flags(&self) -> StreamFlags {
        self.0.registration.flags
    }

    /// Returns the driver that the stream is registered with.
    pub fn driver(&self) -> &Driver {
        &self.0.registration.driver
    }

    /// Waits for the stream's work and deregisters it (`cuFileStreamDeregister`). In some cases, later: see
    /// [`RegisteredStream`](Self). Of several registrations of the stream, the last one to end deregisters it.
    ///
    /// Names elsewhere: `stream_deregister` (Python).
    ///
    /// # Errors
    /// [`Error::InUse`] while operations or clones refer to it, or cuFile's error. [`Failed`] returns the registration.
    #[doc(alias = "cuFileStreamDeregister")]
    #[doc(alias = "stream_deregister")]
    pub fn deregister(self) -> Result<(), Failed<Self>> {
        let mut this = self;
        let Some(registered) = Arc::get_mut(&mut this.0) else {
            let users = Arc::strong_count(&this.0) - 1;
            return Err(Failed::new(Error::InUse { what: "the registered stream", users }, this));
        };
        match registered.release() {
            Ok(()) => Ok(()),
            Err(error) => Err(Failed::new(error, this)),
        }
    }

    /// Reads into the whole buffer from `file_offset` in bytes, after the work already in the stream
    /// (`cuFileReadAsync`). For a part of a buffer, pass an [`OwnedPart`](crate::OwnedPart), or use
    /// [`read_late`](Self::read_late).
    ///
    /// The operation owns the buffer until the read has ended, so a borrowed buffer is refused:
    /// ```compile_fail,E0597
    /// # use {cufile::{FileHandle, RegisteredStream}, std::sync::Arc};
    /// fn too_short(stream: &RegisteredStream, file: &Arc<FileHandle>) {
    ///     let mut buffer = vec![0u8; 4096];
    ///     std::mem::forget(stream.read_at(file, &mut buffer, 0));
    /// }
    /// ```
    ///
    /// Names elsewhere: `read_async` (Python).
    ///
    /// # Errors
    /// cuFile's error; [`Failed::into_buffer`] returns the buffer.
    #[doc(alias = "read_async")]
    #[doc(alias = "cuFileReadAsync")]
    pub fn read_at<B: IoBufMut + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.read_borrowed(file, buffer, file_offset)
    }

    /// Reads the range that `arguments` hold when the stream runs the read (`cuFileReadAsync`).
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the arguments were made for a longer buffer or for a
    /// stream with other flags; else as [`read_at`](Self::read_at).
    #[doc(alias = "cuFileReadAsync")]
    pub fn read_late<B: IoBufMut + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.read_borrowed_late(file, buffer, arguments)
    }

    /// Writes the whole buffer to `file_offset` in bytes, after the work already in the stream (`cuFileWriteAsync`).
    /// Mind [other writers](FileHandle::write_at) until the operation has ended.
    ///
    /// A borrowed buffer is refused, as in [`read_at`](Self::read_at):
    /// ```compile_fail,E0597
    /// # use {cufile::{FileHandle, RegisteredStream}, std::sync::Arc};
    /// fn too_short(stream: &RegisteredStream, file: &Arc<FileHandle>) {
    ///     let buffer = vec![0u8; 4096];
    ///     std::mem::forget(stream.write_at(file, &buffer, 0));
    /// }
    /// ```
    ///
    /// Names elsewhere: `write_async` (Python).
    ///
    /// # Errors
    /// cuFile's error; [`Failed::into_buffer`] returns the buffer.
    #[doc(alias = "write_async")]
    #[doc(alias = "cuFileWriteAsync")]
    pub fn write_at<B: IoBuf + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.write_borrowed(file, buffer, file_offset)
    }

    /// Writes the range that `arguments` hold when the stream runs the write (`cuFileWriteAsync`). Mind [other
    /// writers](FileHandle::write_at).
    ///
    /// # Errors
    /// As [`read_late`](Self::read_late).
    #[doc(alias = "cuFileWriteAsync")]
    pub fn write_late<B: IoBuf + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.write_borrowed_late(file, buffer, arguments)
    }

    /// Returns arguments for a transfer of `buffer` on this stream, which can be set until it runs. They start
    /// with `max_len_bytes` bytes, which is also the maximum, at `buffer_offset` of the buffer and
    /// `file_offset` of the file, all in bytes.
    ///
    /// A clone can move into a function that the stream calls before the transfer.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the buffer has no such range, or if the stream has
    /// [`PAGE_ALIGNED_INPUTS`](StreamFlags::PAGE_ALIGNED_INPUTS) and a value or the buffer is not aligned.
    pub fn late_bound<B: IoBuf + ?Sized>(
        &self,
        buffer: &B,
        buffer_offset: usize,
        max_len_bytes: usize,
        file_offset: u64,
    ) -> Result<LateBound> {
        self.arguments("late_bound", buffer, buffer_offset, max_len_bytes, file_offset)
    }

    /// Does what [`read_at`](Self::read_at) does, for a buffer that may end before the stream: a
    /// [`scope`](crate::scope()) waits for it.
    pub(crate) fn read_borrowed<B: IoBufMut>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        match self.arguments(READ, &buffer, 0, buffer.len_bytes(), file_offset) {
            Ok(arguments) => self.read_borrowed_late(file, buffer, &arguments),
            Err(error) => Err(Failed::new(error, Kept::free(buffer))),
        }
    }

    /// Does what [`read_late`](Self::read_late) does, in the same way.
    pub(crate) fn read_borrowed_late<B: IoBufMut>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.submit(READ, file, buffer, B::as_mut_ptr, arguments)
    }

    /// Does what [`write_at`](Self::write_at) does, in the same way.
    pub(crate) fn write_borrowed<B: IoBuf>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        match self.arguments(WRITE, &buffer, 0, buffer.len_bytes(), file_offset) {
            Ok(arguments) => self.write_borrowed_late(file, buffer, &arguments),
            Err(error) => Err(Failed::new(error, Kept::free(buffer))),
        }
    }

    /// Does what [`write_late`](Self::write_late) does, in the same way.
    pub(crate) fn write_borrowed_late<B: IoBuf>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.submit(WRITE, file, buffer, |buffer| buffer.as_ptr().cast_mut(), arguments)
    }

    fn arguments<B: IoBuf + ?Sized>(
        &self,
        operation: &'static str,
        buffer: &B,
        buffer_offset: usize,
        max_len_bytes: usize,
        offset: u64,
    ) -> Result<LateBound> {
        let span = Span::new(operation, buffer, buffer_offset, max_len_bytes)?;
        let offset = file_offset(operation, offset)?;
        let Location { base_offset, is_registered, .. } = buffer.location();
        let buffer_len_bytes = buffer.len_bytes();
        // So that no later offset overflows.
        if off_t::try_from(base_offset.saturating_add(buffer_len_bytes)).is_err() {
            return Err(Error::invalid(operation, "the buffer's end does not fit into off_t"));
        }
        let arguments = Arguments {
            len_bytes: AtomicUsize::new(max_len_bytes),
            file_offset: AtomicI64::new(offset),
            buffer_offset: AtomicI64::new(if is_registered { span.offset } else { 0 }),
            first_buffer_offset: buffer_offset,
            max_buffer_offset: buffer_len_bytes - max_len_bytes,
            base_offset,
            buffer_len_bytes,
            is_registered,
            flags: self.flags(),
        };
        arguments.check_aligned(operation, max_len_bytes as u64)?;
        arguments.check_aligned(operation, offset as u64)?;
        arguments.check_aligned(operation, span.offset as u64)?;
        let (base, _) = name(buffer, buffer.as_ptr().cast_mut(), buffer_offset);
        arguments.check_aligned(operation, base.addr() as u64)?;
        Ok(LateBound(Arc::new(arguments)))
    }

    fn submit<B: IoBuf>(
        &self,
        operation: &'static str,
        file: &Arc<FileHandle>,
        buffer: B,
        address: fn(&mut B) -> *mut u8,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        let (event, _entered) = match self.prepare(operation, file, &buffer, &arguments.0) {
            Ok(prepared) => prepared,
            Err(error) => return Err(Failed::new(error, Kept::free(buffer))),
        };
        let mut pending = Box::new(Pending {
            bytes: Arc::new(AtomicIsize::new(UNWRITTEN)),
            asked: arguments.len_bytes(),
            arguments: arguments.clone(),
            buffer,
            file: Arc::clone(file),
            operation,
            fate: Fate::Accepted,
            event: None,
            stream: self.clone(),
        });
        // Only now, because moving a boxed buffer invalidates earlier pointers into it.
        let start = address(&mut pending.buffer);
        let (base, _) = name(&pending.buffer, start, arguments.0.first_buffer_offset);
        let pending = NonNull::from(Box::leak(pending));
        self.0.mark_used();
        // SAFETY: a box's content, with only shared references until it is a box again.
        let called = unsafe { pending.as_ref() }.call(base);
        // It was not captured before, but another thread may have begun a capture since.
        let (fate, called) = match self.stream().is_capturing() {
            Ok(true) => (Fate::Captured, Err(captured(operation))),
            _ if called.is_err() => (Fate::Refused, called),
            _ => (Fate::Accepted, called),
        };
        // Recorded for a failed call too, because it may have queued the transfer.
        let event = self.stream().record_into(&event).is_ok().then_some(event);
        // SAFETY: no reference is left; libcufile knows only the addresses of atomics.
        unsafe {
            (*pending.as_ptr()).fate = fate;
            (*pending.as_ptr()).event = event;
        }
        let operation = Operation { pending, owns: PhantomData };
        match called {
            Ok(()) => Ok(operation),
            Err(error) => Err(Failed::new(error, Kept::in_doubt(operation))),
        }
    }

    fn prepare<B: IoBuf>(
        &self,
        operation: &'static str,
        file: &FileHandle,
        buffer: &B,
        arguments: &Arguments,
    ) -> Result<(Event, Entered<'_>)> {
        self.driver().check_alive()?;
        if !file.driver().library().is(self.driver().library()) {
            return Err(Error::invalid(operation, "the file is registered with another libcufile"));
        }
        if arguments.flags != self.flags() {
            return Err(Error::invalid(
                operation,
                "the arguments were made for a stream with other flags; create them with this stream's late_bound",
            ));
        }
        let like = |buffer: &B| {
            let Location { base_offset, is_registered, .. } = buffer.location();
            buffer.len_bytes() >= arguments.buffer_len_bytes
                && base_offset == arguments.base_offset
                && is_registered == arguments.is_registered
        };
        if !like(buffer) {
            return Err(Error::invalid(
                operation,
                format!(
                    "the arguments were made for another buffer, of {} bytes; this one has {}",
                    arguments.buffer_len_bytes,
                    buffer.len_bytes()
                ),
            ));
        }
        let (base, _) = name(buffer, buffer.as_ptr().cast_mut(), arguments.first_buffer_offset);
        arguments.check_aligned(operation, base.addr() as u64)?;
        if self.stream().is_capturing()? {
            // Each launch of the graph would use the buffer again, even after it was freed.
            return Err(captured(operation));
        }
        let device = self.stream().device();
        Ok((Event::new(device)?, device.enter()?))
    }
}

impl fmt::Debug for RegisteredStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredStream")
            .field("stream", self.stream())
            .field("flags", &self.flags())
            .finish_non_exhaustive()
    }
}
