//! Stream-ordered transfers: reads and writes that a CUDA stream carries out in turn with its other work.
//!
//! A [`RegisteredStream`] submits; what it returns is an [`Operation`], which owns everything that libcufile uses until
//! the transfer is over: the size and the offsets, the buffer, and references to the file and the stream. So nothing can
//! be freed too early, whatever becomes of the operation:
//! - [`wait`](Operation::wait) waits and gives the buffer back with the number of bytes;
//! - dropping waits, also in a panic or an early return;
//! - leaking ([`std::mem::forget`]) leaks the buffer too.
//!
//! Unless the stream's [`StreamFlags`] fix them at submission, the size and the offsets are read when the transfer
//! runs. Until then a [`LateBound`] can set them, from any thread or from a function that the stream calls.
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

use std::collections::HashMap;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::{error, fmt, mem, ptr};

use cufile_sys::{
    CU_FILE_STREAM_FIXED_BUF_OFFSET, CU_FILE_STREAM_FIXED_FILE_OFFSET, CU_FILE_STREAM_FIXED_FILE_SIZE,
    CU_FILE_STREAM_PAGE_ALIGNED_INPUTS, CUfileError_t, CUfileHandle_t, CUstream, off_t,
};

use crate::cuda::{Event, Stream};
use crate::driver::Driver;
use crate::error::{Error, Raw, Result, check, decode};
use crate::handle::FileHandle;
use crate::memory::{IoBuf, IoBufMut, Span, file_offset, name};

/// What [`StreamFlags::PAGE_ALIGNED_INPUTS`] promises, in bytes.
const PAGE: u64 = 4096;

bitflags::bitflags! {
    /// What libcufile may rely on for all transfers of a stream.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct StreamFlags: u32 {
        /// The buffer offset is what it is at submission (`CU_FILE_STREAM_FIXED_BUF_OFFSET`).
        const FIXED_BUF_OFFSET = CU_FILE_STREAM_FIXED_BUF_OFFSET;
        /// The file offset is what it is at submission (`CU_FILE_STREAM_FIXED_FILE_OFFSET`).
        const FIXED_FILE_OFFSET = CU_FILE_STREAM_FIXED_FILE_OFFSET;
        /// The size is what it is at submission (`CU_FILE_STREAM_FIXED_FILE_SIZE`).
        const FIXED_FILE_SIZE = CU_FILE_STREAM_FIXED_FILE_SIZE;
        /// Size, offsets and the buffer's address are multiples of 4096 bytes
        /// (`CU_FILE_STREAM_PAGE_ALIGNED_INPUTS`); others are refused before libcufile sees them.
        const PAGE_ALIGNED_INPUTS = CU_FILE_STREAM_PAGE_ALIGNED_INPUTS;
    }
}

/// A CUDA stream registered with cuFile, which carries out reads and writes in turn with its other work.
///
/// Clones refer to the same registration; each [`Operation`] holds one. When the last one goes, the stream is
/// deregistered, and only then its reference to the [`Stream`] given up. Registering and deregistering wait for the
/// stream's work.
///
/// While other registered streams have done I/O and live, a stream that has done I/O stays registered, and with it the
/// [`Stream`], until they go too: libcufile (measured with 1.16 and 1.20) mixes up later operations if one of several
/// such streams is deregistered, and reports bytes that it did not move. So a program that makes a stream for each
/// transfer, while one stream stays, collects streams; better use a few for long.
///
/// A stream should be registered once: a second registration, possible for the default stream and for streams made
/// elsewhere, replaces the flags of the first.
#[derive(Clone)]
pub struct RegisteredStream(Arc<Registered>);

struct Registered {
    registration: Arc<Registration>,
    /// Whether an operation was submitted.
    used: AtomicBool,
    /// Whether `release` has done its work.
    released: bool,
    /// Taken to submit, because libcufile aborts if two threads submit to one stream at a time.
    turn: Arc<Mutex<()>>,
}

/// What libcufile knows of a stream.
struct Registration {
    // Not dropped in a forked child, where it would call CUDA.
    stream: ManuallyDrop<Arc<Stream>>,
    flags: StreamFlags,
    registered: AtomicBool,
    driver: Driver,
}

/// The streams of one libcufile that have done I/O.
#[derive(Default)]
struct Used {
    /// How many of them live.
    live: usize,
    /// Those that nobody has any more, still registered.
    parked: Vec<Arc<Registration>>,
}

/// The streams that have done I/O, by libcufile.
fn used() -> MutexGuard<'static, HashMap<usize, Used>> {
    static USED: LazyLock<Mutex<HashMap<usize, Used>>> = LazyLock::new(Mutex::default);
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`used`] knows a libcufile by.
fn key(driver: &Driver) -> usize {
    driver.library().functions().cuFileStreamDeregister as usize
}

/// What tells streams apart: device and handle.
type Identity = (u32, usize);

fn identity(stream: &Stream) -> Identity {
    let handle = match stream.as_raw().addr() {
        // `cudaStreamLegacy` is the null stream.
        0 | 1 => 0,
        other => other,
    };
    (stream.device().ordinal(), handle)
}

/// The turns of a CUDA stream, the same for all its registrations: the default stream, and streams made elsewhere, can
/// have several.
fn turn(stream: &Stream) -> Arc<Mutex<()>> {
    static TURNS: LazyLock<Mutex<HashMap<Identity, Weak<Mutex<()>>>>> = LazyLock::new(Mutex::default);
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.retain(|_, turn| turn.strong_count() > 0);
    let entry = turns.entry(identity(stream)).or_default();
    entry.upgrade().unwrap_or_else(|| {
        let new = Arc::default();
        *entry = Arc::downgrade(&new);
        new
    })
}

impl RegisteredStream {
    /// Registers a stream (`cuFileStreamRegister`): one of its own or, as an [`Arc`], one that others submit work to.
    ///
    /// [`Device::default_stream`](crate::cuda::Device::default_stream) and [`Stream::from_raw`] give streams that
    /// were not made here.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the stream belongs to another CUDA library than the driver's, or what cuFile said.
    #[doc(alias = "cuFileStreamRegister")]
    pub fn register(driver: &Driver, stream: impl Into<Arc<Stream>>, flags: StreamFlags) -> Result<Self> {
        const OPERATION: &str = "cuFileStreamRegister";
        driver.check_alive()?;
        let stream = stream.into();
        let device = stream.device();
        let (ours, theirs) = (driver.cuda().runtime(), device.cuda().runtime());
        if !ptr::fn_addr_eq(ours.cudaEventRecord, theirs.cudaEventRecord) {
            return Err(Error::invalid(
                OPERATION,
                "the stream belongs to another libcudart than the driver's",
            ));
        }
        let entered = device.enter()?;
        let turn = turn(&stream);
        if let Some(registration) = used().entry(key(driver)).or_default().take(&stream, flags)? {
            let used = AtomicBool::new(true);
            return Ok(Self(Arc::new(Registered { registration, used, released: false, turn })));
        }
        // SAFETY: the stream stays alive until it is deregistered, because `Registration` holds both.
        check(OPERATION, unsafe {
            (driver.library().functions().cuFileStreamRegister)(raw(&stream), flags.bits())
        })?;
        drop(entered);
        let registration = Arc::new(Registration {
            stream: ManuallyDrop::new(stream),
            flags,
            registered: AtomicBool::new(true),
            driver: driver.clone(),
        });
        let used = AtomicBool::new(false);
        Ok(Self(Arc::new(Registered { registration, used, released: false, turn })))
    }

    /// The stream, for other work on it.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.0.registration.stream
    }

    /// What it was registered with.
    pub fn flags(&self) -> StreamFlags {
        self.0.registration.flags
    }

    /// The driver that it is registered with.
    pub fn driver(&self) -> &Driver {
        &self.0.registration.driver
    }

    /// Waits for the stream's work and deregisters it (`cuFileStreamDeregister`), now or, as [above](Self), later.
    ///
    /// # Errors
    /// The registration comes back with the error: [`Error::InUse`] while operations or clones refer to it, or what
    /// cuFile said.
    #[doc(alias = "cuFileStreamDeregister")]
    #[allow(clippy::result_large_err, reason = "the error carries the registration back")]
    pub fn deregister(self) -> Result<(), (Self, Error)> {
        let mut this = self;
        let Some(registered) = Arc::get_mut(&mut this.0) else {
            let users = Arc::strong_count(&this.0) - 1;
            return Err((this, Error::InUse { what: "the registered stream", users }));
        };
        match registered.release() {
            Ok(()) => Ok(()),
            Err(error) => Err((this, error)),
        }
    }

    /// Reads into the whole buffer from `file_offset` in bytes, after the stream's work so far (`cuFileReadAsync`).
    ///
    /// The operation owns the buffer until the read is over, so it cannot be one that is merely borrowed:
    /// ```compile_fail,E0597
    /// # use {cufile::{FileHandle, RegisteredStream}, std::sync::Arc};
    /// fn too_short(stream: &RegisteredStream, file: &Arc<FileHandle>) {
    ///     let mut buffer = vec![0u8; 4096];
    ///     std::mem::forget(stream.read_at(file, &mut buffer, 0));
    /// }
    /// ```
    ///
    /// # Errors
    /// The buffer comes back with what cuFile said.
    #[doc(alias = "cuFileReadAsync")]
    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    pub fn read_at<B: IoBufMut + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<B>> {
        let len_bytes = buffer.len_bytes();
        self.read_range_at(file, buffer, 0, len_bytes, file_offset)
    }

    /// Reads `len_bytes` bytes from `file_offset` to `buffer_offset` of the buffer, all in bytes, after the stream's
    /// work so far (`cuFileReadAsync`).
    ///
    /// # Errors
    /// The buffer comes back with [`Error::InvalidInput`] if it has no such range; else as
    /// [`read_at`](Self::read_at).
    #[doc(alias = "cuFileReadAsync")]
    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    pub fn read_range_at<B: IoBufMut + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        buffer_offset: usize,
        len_bytes: usize,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<B>> {
        match self.arguments(READ, &buffer, buffer_offset, len_bytes, file_offset) {
            Ok(arguments) => self.read_late(file, buffer, &arguments),
            Err(error) => Err(Failed { error, buffer: Some(buffer) }),
        }
    }

    /// Reads what `arguments` say when the stream gets there (`cuFileReadAsync`).
    ///
    /// # Errors
    /// The buffer comes back with [`Error::InvalidInput`] if the arguments were made for a longer buffer or for a
    /// stream with other flags; else as [`read_at`](Self::read_at).
    #[doc(alias = "cuFileReadAsync")]
    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    pub fn read_late<B: IoBufMut + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<B>> {
        self.submit(READ, file, buffer, B::as_mut_ptr, arguments)
    }

    /// Writes the whole buffer to `file_offset` in bytes, after the stream's work so far (`cuFileWriteAsync`).
    ///
    /// As in [`read_at`](Self::read_at), the buffer cannot be one that is merely borrowed:
    /// ```compile_fail,E0597
    /// # use {cufile::{FileHandle, RegisteredStream}, std::sync::Arc};
    /// fn too_short(stream: &RegisteredStream, file: &Arc<FileHandle>) {
    ///     let buffer = vec![0u8; 4096];
    ///     std::mem::forget(stream.write_at(file, &buffer, 0));
    /// }
    /// ```
    ///
    /// # Errors
    /// The buffer comes back with what cuFile said.
    #[doc(alias = "cuFileWriteAsync")]
    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    pub fn write_at<B: IoBuf + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<B>> {
        let len_bytes = buffer.len_bytes();
        self.write_range_at(file, buffer, 0, len_bytes, file_offset)
    }

    /// Writes `len_bytes` bytes from `buffer_offset` of the buffer to `file_offset`, all in bytes, after the stream's
    /// work so far (`cuFileWriteAsync`).
    ///
    /// # Errors
    /// The buffer comes back with [`Error::InvalidInput`] if it has no such range; else as
    /// [`write_at`](Self::write_at).
    #[doc(alias = "cuFileWriteAsync")]
    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    pub fn write_range_at<B: IoBuf + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        buffer_offset: usize,
        len_bytes: usize,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<B>> {
        match self.arguments(WRITE, &buffer, buffer_offset, len_bytes, file_offset) {
            Ok(arguments) => self.write_late(file, buffer, &arguments),
            Err(error) => Err(Failed { error, buffer: Some(buffer) }),
        }
    }

    /// Writes what `arguments` say when the stream gets there (`cuFileWriteAsync`).
    ///
    /// # Errors
    /// As [`read_late`](Self::read_late).
    #[doc(alias = "cuFileWriteAsync")]
    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    pub fn write_late<B: IoBuf + 'static>(
        &self,
        file: &Arc<FileHandle>,
        buffer: B,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<B>> {
        self.submit(WRITE, file, buffer, |buffer| buffer.as_ptr().cast_mut(), arguments)
    }

    /// Arguments for a transfer of `buffer` on this stream that can be set until it runs: at first, and at most,
    /// `max_len_bytes` bytes, at `buffer_offset` of the buffer and `file_offset` of the file, all in bytes.
    ///
    /// Made before the transfer is submitted, they can be moved into a function that the stream calls first.
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
        let (base_offset, buffer_len_bytes) = (buffer.base_offset(), buffer.len_bytes());
        let is_registered = buffer.is_registered();
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

    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    fn submit<B: IoBuf + 'static>(
        &self,
        operation: &'static str,
        file: &Arc<FileHandle>,
        buffer: B,
        address: fn(&mut B) -> *mut u8,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<B>> {
        let event = match self.prepare(operation, file, &buffer, &arguments.0) {
            Ok(event) => event,
            Err(error) => return Err(Failed { error, buffer: Some(buffer) }),
        };
        let mut pending = Box::new(Pending {
            bytes: AtomicIsize::new(UNWRITTEN),
            arguments: arguments.clone(),
            buffer,
            file: Arc::clone(file),
            operation,
            event: None,
            stream: self.clone(),
        });
        // Only now, because moving some buffers, boxed ones, ends the life of earlier pointers into them.
        let start = address(&mut pending.buffer);
        let (base, _) = name(&pending.buffer, start, arguments.0.first_buffer_offset);
        let pending = NonNull::from(Box::leak(pending));
        self.0.mark_used();
        // SAFETY: a box's content, to which there are only shared references until it is a box again.
        let shared = unsafe { pending.as_ref() };
        match shared.call(base) {
            Ok(()) => (),
            Err(error) => {
                // SAFETY: leaked above; a call that fails leaves nothing in flight.
                let Pending { buffer, .. } = *unsafe { Box::from_raw(pending.as_ptr()) };
                return Err(Failed { error, buffer: Some(buffer) });
            }
        }
        if self.stream().record_into(&event).is_ok() {
            // SAFETY: `shared` is not used any more; libcufile knows only addresses inside of two atomics.
            unsafe { (*pending.as_ptr()).event = Some(event) };
        }
        Ok(Operation { pending, owns: PhantomData })
    }

    /// What can fail before anything is submitted.
    fn prepare<B: IoBuf>(
        &self,
        operation: &'static str,
        file: &FileHandle,
        buffer: &B,
        arguments: &Arguments,
    ) -> Result<Event> {
        self.driver().check_alive()?;
        if !file.driver().library().is(self.driver().library()) {
            return Err(Error::invalid(operation, "the file is registered with another libcufile"));
        }
        if arguments.flags != self.flags() {
            return Err(Error::invalid(operation, "the arguments were made for a stream with other flags"));
        }
        let like = |buffer: &B| {
            buffer.len_bytes() >= arguments.buffer_len_bytes
                && buffer.base_offset() == arguments.base_offset
                && buffer.is_registered() == arguments.is_registered
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
        Event::new(self.stream().device())
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

impl Registered {
    /// Notes that the stream does I/O.
    fn mark_used(&self) {
        if !self.used.load(Ordering::Acquire) {
            let mut all = used();
            if !self.used.swap(true, Ordering::AcqRel) {
                all.entry(key(&self.registration.driver)).or_default().live += 1;
            }
        }
    }

    /// Deregisters the stream, or parks it until that is safe. Nothing is left to do then when it is dropped.
    fn release(&mut self) -> Result<()> {
        let driver = self.registration.driver.clone();
        // Before the lock, which may be held for ever in a forked child.
        driver.check_alive()?;
        if !self.used.load(Ordering::Acquire) {
            self.registration.deregister()?;
            self.released = true;
            return Ok(());
        }
        // Deregistering waits, but others should not have to. A failure comes again.
        let _ = self.registration.stream.synchronize();
        let mut all = used();
        let used = all.entry(key(&driver)).or_default();
        if used.live > 1 {
            used.parked.push(Arc::clone(&self.registration));
        } else {
            self.registration.deregister()?;
        }
        self.released = true;
        let parked = used.leave();
        // What is freed here may take a while.
        drop(all);
        drop(parked);
        Ok(())
    }
}

impl Used {
    /// The registration of a parked stream, which lives again.
    fn take(&mut self, stream: &Stream, flags: StreamFlags) -> Result<Option<Arc<Registration>>> {
        let same = |parked: &Arc<Registration>| identity(&parked.stream) == identity(stream);
        let Some(index) = self.parked.iter().position(same) else { return Ok(None) };
        if self.parked[index].flags != flags {
            let what = "an earlier registration of the stream, with other flags,";
            return Err(Error::InUse { what, users: self.live });
        }
        self.live += 1;
        Ok(Some(self.parked.swap_remove(index)))
    }

    /// One stream less; with the last, all that were parked are deregistered, and can be freed.
    fn leave(&mut self) -> Vec<Arc<Registration>> {
        self.live -= 1;
        if self.live > 0 {
            return Vec::new();
        }
        for registration in &self.parked {
            // There is nobody to tell.
            let _ = registration.deregister();
        }
        mem::take(&mut self.parked)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // `RegisteredStream::deregister` is for those who want the error.
        let alive = self.registration.driver.is_alive();
        if !self.released && alive && self.release().is_err() && *self.used.get_mut() {
            let parked = used().entry(key(&self.registration.driver)).or_default().leave();
            drop(parked);
        }
    }
}

impl Registration {
    fn deregister(&self) -> Result<()> {
        if !self.registered.load(Ordering::Acquire) {
            return Ok(());
        }
        let _entered = self.stream.device().enter()?;
        // SAFETY: registered in `register`, deregistered once, and the stream is still alive.
        check("cuFileStreamDeregister", unsafe {
            (self.driver.library().functions().cuFileStreamDeregister)(raw(&self.stream))
        })?;
        self.registered.store(false, Ordering::Release);
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.driver.is_alive() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.stream) };
        }
    }
}

/// The stream as cuFile's header has it: the runtime's and the driver's streams are the same.
fn raw(stream: &Stream) -> CUstream {
    stream.as_raw().cast()
}

/// The byte count before libcufile writes one. Not 0, so that a transfer that libcufile gives up without a word, which
/// 1.20 does, is not taken for the end of the file.
const UNWRITTEN: isize = isize::MIN;

const READ: &str = "cuFileReadAsync";
const WRITE: &str = "cuFileWriteAsync";

/// The size and the offsets of a stream-ordered transfer, which can be set until it runs.
///
/// Clones refer to the same values. They can be set from any thread, and by a function that the stream calls before the
/// transfer (`cudaLaunchHostFunc`, here [`Stream::call_on_host`]); the order of a stream makes sure that the transfer
/// sees what was set. Setting them when it has run changes nothing. They may serve several transfers.
///
/// Whatever is set from wherever, the transfer stays in the buffer: the length can only be lowered, because libcufile
/// prepares for the one that it finds at submission, and the buffer offset leaves room for the longest transfer. The
/// buffer offset can be set only for registered memory: libcufile takes other memory to be as long as the transfer.
///
/// ```no_run
/// # use {std::sync::Arc, cufile::*};
/// # fn index() -> u64 { 7 }
/// # fn late(stream: RegisteredStream, file: Arc<FileHandle>, buffer: cuda::DeviceBuffer) -> Result<()> {
/// let arguments = stream.late_bound(&buffer, 0, 1 << 20, 0)?;
/// let setter = arguments.clone();
/// // The stream calls this when its work so far is done, which finds out what to read.
/// stream.stream().call_on_host(move || {
///     setter.set_file_offset(index() << 20).expect("a late-bound file offset");
/// })?;
/// let (bytes, buffer) = stream.read_late(&file, buffer, &arguments)?.wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LateBound(Arc<Arguments>);

/// What C reads through pointers, as plain memory: aligned words, which it sees whole, in either state.
struct Arguments {
    len_bytes: AtomicUsize,
    file_offset: AtomicI64,
    // From the base that C gets: that of the registration, or where the transfer begins.
    buffer_offset: AtomicI64,
    // These two from the buffer's first byte.
    first_buffer_offset: usize,
    max_buffer_offset: usize,
    base_offset: usize,
    buffer_len_bytes: usize,
    is_registered: bool,
    flags: StreamFlags,
}

impl LateBound {
    /// How many bytes will be transferred.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes.load(Ordering::Acquire)
    }

    /// Where in the file, in bytes.
    pub fn file_offset(&self) -> u64 {
        self.0.file_offset.load(Ordering::Acquire) as u64
    }

    /// Where in the buffer, in bytes.
    pub fn buffer_offset(&self) -> usize {
        match self.0.is_registered {
            true => self.0.buffer_offset.load(Ordering::Acquire) as usize - self.0.base_offset,
            false => self.0.first_buffer_offset,
        }
    }

    /// Lowers the number of bytes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if it is more than now, not aligned as the stream's flags promise, or fixed by them.
    pub fn set_len_bytes(&self, len_bytes: usize) -> Result<()> {
        const OPERATION: &str = "set_len_bytes";
        self.0.check_late(OPERATION, StreamFlags::FIXED_FILE_SIZE)?;
        self.0.check_aligned(OPERATION, len_bytes as u64)?;
        let lower = |now| (len_bytes <= now).then_some(len_bytes);
        match self.0.len_bytes.fetch_update(Ordering::Release, Ordering::Relaxed, lower) {
            Ok(_) => Ok(()),
            Err(now) => Err(Error::invalid(OPERATION, format!("{len_bytes} is more than {now} bytes"))),
        }
    }

    /// Sets the place in the file, in bytes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if it does not fit into `off_t`, is not aligned as the stream's flags promise, or is
    /// fixed by them.
    pub fn set_file_offset(&self, offset: u64) -> Result<()> {
        const OPERATION: &str = "set_file_offset";
        self.0.check_late(OPERATION, StreamFlags::FIXED_FILE_OFFSET)?;
        self.0.check_aligned(OPERATION, offset)?;
        let offset = file_offset(OPERATION, offset)?;
        self.0.file_offset.store(offset, Ordering::Release);
        Ok(())
    }

    /// Sets the place in the buffer, in bytes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the longest transfer, as it was made for, does not fit there, the memory is not
    /// registered, or the offset is not aligned as the stream's flags promise, or fixed by them.
    pub fn set_buffer_offset(&self, offset: usize) -> Result<()> {
        const OPERATION: &str = "set_buffer_offset";
        let arguments = &*self.0;
        arguments.check_late(OPERATION, StreamFlags::FIXED_BUF_OFFSET)?;
        if !arguments.is_registered {
            return Err(Error::invalid(
                OPERATION,
                "libcufile takes no late offset into memory not registered",
            ));
        }
        if offset > arguments.max_buffer_offset {
            let max_len_bytes = arguments.buffer_len_bytes - arguments.max_buffer_offset;
            return Err(Error::invalid(
                OPERATION,
                format!(
                    "{max_len_bytes} bytes, the longest transfer, at offset {offset} of a buffer of {} bytes",
                    arguments.buffer_len_bytes
                ),
            ));
        }
        // No overflow: `RegisteredStream::arguments` saw that the buffer's end fits.
        let from_base = arguments.base_offset + offset;
        arguments.check_aligned(OPERATION, from_base as u64)?;
        arguments.buffer_offset.store(from_base as off_t, Ordering::Release);
        Ok(())
    }
}

impl Arguments {
    fn check_late(&self, operation: &'static str, flag: StreamFlags) -> Result<()> {
        if self.flags.contains(flag) {
            return Err(Error::invalid(operation, "the stream's flags fix it at submission"));
        }
        Ok(())
    }

    fn check_aligned(&self, operation: &'static str, value: u64) -> Result<()> {
        if self.flags.contains(StreamFlags::PAGE_ALIGNED_INPUTS) && !value.is_multiple_of(PAGE) {
            return Err(Error::invalid(
                operation,
                format!("{value} is no multiple of {PAGE}, as the stream's flags promise"),
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for LateBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateBound")
            .field("len_bytes", &self.len_bytes())
            .field("file_offset", &self.file_offset())
            .field("buffer_offset", &self.buffer_offset())
            .finish_non_exhaustive()
    }
}

/// A stream-ordered read or write that was submitted.
///
/// Owns the buffer until the transfer is over. [`wait`](Self::wait) gives it back; dropping waits and frees it;
/// forgetting leaks it. Neither may happen in a function that a stream calls, where CUDA lets nobody wait: the buffer
/// is leaked then.
///
/// File, stream and driver live at least as long as the operation, whatever happens to other references to them.
#[must_use = "dropping an operation waits for it"]
pub struct Operation<B> {
    // A pointer rather than a box, which would claim that nobody else writes to what libcufile writes to.
    pending: NonNull<Pending<B>>,
    owns: PhantomData<Pending<B>>,
}

// SAFETY: owns what it points to; whose parts other than the buffer may be used and dropped on any thread.
unsafe impl<B: Send> Send for Operation<B> {}
// SAFETY: as above; a shared reference gives no access to the buffer.
unsafe impl<B> Sync for Operation<B> {}

/// All that libcufile uses until a transfer is over.
struct Pending<B> {
    /// Written by C.
    bytes: AtomicIsize,
    arguments: LateBound,
    buffer: B,
    file: Arc<FileHandle>,
    operation: &'static str,
    /// Follows the transfer in the stream; `None` if it could not be recorded.
    event: Option<Event>,
    stream: RegisteredStream,
}

impl<B> Pending<B> {
    /// Calls C.
    fn call(&self, base: *mut u8) -> Result<()> {
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
        // The stream's and not the buffer's, because the null stream is that of the current context.
        let _entered = stream.device().enter()?;
        let arguments = &*self.arguments.0;
        let _turn = self.stream.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: file, buffer, arguments, the place for the result and the stream live until the transfer is over,
        // because `Pending` holds them, and is leaked if that cannot be told. Whatever the arguments become, the
        // range is in the buffer: length and buffer offset never exceed what `LateBound` keeps them below.
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

    /// Waits until libcufile is done with everything here; an error says that it may not be.
    fn settle(&self) -> Result<()> {
        self.stream.driver().check_alive()?;
        match &self.event {
            Some(event) => event.wait(),
            None => self.stream.stream().synchronize(),
        }
    }
}

impl<B> Operation<B> {
    fn pending(&self) -> &Pending<B> {
        // SAFETY: leaked in `submit`, and a box again only when the operation ends.
        unsafe { self.pending.as_ref() }
    }

    /// Whether the transfer is over, so that [`wait`](Self::wait) does not wait.
    ///
    /// # Errors
    /// What CUDA said, which may be the failure of earlier work on the stream; [`Error::Forked`].
    #[doc(alias = "cudaEventQuery")]
    pub fn is_done(&self) -> Result<bool> {
        let pending = self.pending();
        pending.stream.driver().check_alive()?;
        match &pending.event {
            Some(event) => event.is_done(),
            None => pending.stream.stream().is_idle(),
        }
    }

    /// Waits for the transfer and gives its number of bytes, and the buffer.
    ///
    /// A read has fewer bytes than asked for at the end of the file, 0 beyond it.
    ///
    /// # Errors
    /// The buffer comes back with what cuFile said of the transfer. It does not come back, and is leaked, if CUDA
    /// fails to wait, or in a forked child ([`Error::Forked`]): then nobody knows whether the transfer is over.
    #[allow(clippy::result_large_err, reason = "the error carries the buffer back")]
    pub fn wait(self) -> Result<(usize, B), Failed<B>> {
        let this = ManuallyDrop::new(self);
        if let Err(error) = this.pending().settle() {
            return Err(Failed { error, buffer: None });
        }
        // SAFETY: leaked in `submit`; libcufile is done with it, and `this` is never dropped.
        let Pending { bytes, buffer, operation, .. } = *unsafe { Box::from_raw(this.pending.as_ptr()) };
        let result = match bytes.into_inner() {
            UNWRITTEN => Err(Error::Unspecified { operation: operation.into() }),
            bytes => decode(operation, Raw::Completion(bytes)),
        };
        match result {
            Ok(bytes) => Ok((bytes, buffer)),
            Err(error) => Err(Failed { error, buffer: Some(buffer) }),
        }
    }

    /// What is transferred; can be set until the stream gets there.
    pub fn arguments(&self) -> &LateBound {
        &self.pending().arguments
    }

    /// The stream that the operation is on.
    pub fn stream(&self) -> &RegisteredStream {
        &self.pending().stream
    }

    /// The file.
    pub fn file(&self) -> &Arc<FileHandle> {
        &self.pending().file
    }
}

impl<B> Drop for Operation<B> {
    fn drop(&mut self) {
        if self.pending().settle().is_ok() {
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

/// A stream-ordered transfer that failed, and its buffer. Converts into [`Error`], dropping the buffer.
pub struct Failed<B> {
    /// What went wrong.
    pub error: Error,
    /// The buffer. `None` only if nobody knows whether the transfer is over; it is leaked then.
    pub buffer: Option<B>,
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.error.source()
    }
}
