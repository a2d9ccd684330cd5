//! Batches: many reads and writes submitted with one call.
//!
//! A [`Batch`] owns its entries, which own their buffers and references to their files. A [`Completion`] reports each
//! entry, in any order, with the entry's number and buffer. The buffer of a failed entry stays with the batch until
//! the caller [cancels](Batch::cancel) or drops it. Nothing can be freed too early: dropping a batch waits for its
//! entries, and leaking it leaks their buffers.
//!
//! One batch takes buffers of one type. `Box<dyn IoBufMut + Send>` is a type for any buffer.
//! [`OwnedPart`](crate::OwnedPart) shares a buffer, registered once, with other entries.
//!
//! ```no_run
//! use std::fs::File;
//! use std::sync::Arc;
//!
//! use cufile::{Batch, Driver, Entry, FileHandle, IoBufMut};
//!
//! let driver = Driver::open()?;
//! let device = driver.cuda().device(0)?;
//! let file = Arc::new(FileHandle::register(&driver, File::open("data.bin")?)?);
//!
//! let mut batch: Batch<Box<dyn IoBufMut + Send>> = Batch::new(&driver, 2)?;
//! let on_the_gpu = Entry::read(&file, Box::new(device.alloc(1 << 20)?) as _, 0).id(1);
//! let on_the_host = Entry::read(&file, Box::new(vec![0u8; 4096]) as _, 1 << 20).id(2);
//! batch.submit([on_the_gpu, on_the_host])?;
//! for completion in batch.wait_all()? {
//!     println!("entry {}: {} bytes", completion.id, completion.result?);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ffi::c_uint;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io, ptr, thread};

use crate::fork::Mutex;
use cufile_sys::{
    CUfileBatchHandle_t, CUfileBatchMode_t, CUfileIOEvents_t, CUfileIOParams_anon_batch,
    CUfileIOParams_anon_u, CUfileIOParams_t, CUfileOpcode_t, CUfileStatus_t, off_t, timespec,
};

use crate::driver::Driver;
use crate::error::{Error, Raw, Result, check, decode};
use crate::failed::Failed;
use crate::handle::FileHandle;
use crate::library::Library;
use crate::memory::{IoBuf, IoBufMut, Span, file_offset, name};
use crate::patience::PATIENCE;

const SUBMIT: &str = "cuFileBatchIOSubmit";
const GET_STATUS: &str = "cuFileBatchIOGetStatus";

/// A read or write for a [`Batch`].
///
/// Names elsewhere: `CUfileIOParams_t`, `CUfileIOParams`, `CUFILE_BATCH`, `CUfileBatchMode_t`, `cufileBatchMode`,
/// `CUfileOpcode`, `CUfileOpcode_t` (C); `Opcode`, `BatchMode`, `IOParams` (Python); `BatchOp` (KvikIO, kvik-rs);
/// `BatchOpcode`, `IoOp`, `opcode`, `dev_ptr` (kvik-rs).
pub struct Entry<B> {
    id: u64,
    file: Arc<FileHandle>,
    file_offset: u64,
    buffer: B,
    buffer_offset: usize,
    len_bytes: usize,
    opcode: CUfileOpcode_t,
    /// Makes the type invariant in `B`, too, which scopes rely on.
    address: fn(&mut B) -> *mut u8,
}

impl<B: IoBuf> Entry<B> {
    /// Creates a read into the whole buffer from `file_offset` in bytes.
    ///
    /// Borrowed buffers cannot be submitted, because a leaked batch would outlive the borrow:
    /// ```compile_fail,E0597
    /// # use {cufile::{Batch, Entry, FileHandle}, std::sync::Arc};
    /// fn too_short(mut batch: Batch<&'static mut [u8]>, file: &Arc<FileHandle>) {
    ///     let mut buffer = vec![0u8; 4096];
    ///     let _ = batch.submit([Entry::read(file, &mut buffer[..], 0)]);
    ///     std::mem::forget(batch);
    /// }
    /// ```
    pub fn read(file: &Arc<FileHandle>, buffer: B, file_offset: u64) -> Self
    where
        B: IoBufMut,
    {
        Self::new(file, buffer, file_offset, CUfileOpcode_t::CUFILE_READ, B::as_mut_ptr)
    }

    /// Creates a write of the whole buffer to `file_offset` in bytes. [Other writers](FileHandle::write_at)
    /// include the other entries.
    pub fn write(file: &Arc<FileHandle>, buffer: B, file_offset: u64) -> Self {
        Self::new(file, buffer, file_offset, CUfileOpcode_t::CUFILE_WRITE, |buffer| {
            buffer.as_ptr().cast_mut()
        })
    }

    fn new(
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
        opcode: CUfileOpcode_t,
        address: fn(&mut B) -> *mut u8,
    ) -> Self {
        let len_bytes = buffer.len_bytes();
        let file = Arc::clone(file);
        Self { id: 0, file, file_offset, buffer, buffer_offset: 0, len_bytes, opcode, address }
    }

    /// Limits the entry to `len_bytes` bytes at `buffer_offset` of the buffer, both in bytes. The submission checks
    /// the range.
    ///
    /// Names elsewhere: `dev_offset` (kvik-rs).
    #[must_use]
    #[doc(alias = "dev_offset")]
    pub fn range(mut self, buffer_offset: usize, len_bytes: usize) -> Self {
        (self.buffer_offset, self.len_bytes) = (buffer_offset, len_bytes);
        self
    }

    /// Sets the number that the entry's completion carries; 0 by default. The batch itself ignores it.
    #[must_use]
    pub fn id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }
}

impl<B> Entry<B> {
    /// Returns the buffer.
    pub fn into_buffer(self) -> B {
        self.buffer
    }

    fn result(&self, status: Status, count: isize) -> Result<usize> {
        match decode(GET_STATUS, Raw::Completion { count, asked: self.len_bytes }) {
            Ok(count) if status == Status::COMPLETE => Ok(count),
            Err(error) if status == Status::COMPLETE || count < 0 => Err(error.about(self)),
            _ => {
                let operation = format!("{GET_STATUS}({self}): the entry ended as {status:?}").into();
                let errno = match status {
                    Status::INVALID => libc::EINVAL,
                    Status::CANCELED => libc::ECANCELED,
                    Status::TIMEOUT => libc::ETIMEDOUT,
                    _ => return Err(Error::Unspecified { operation }),
                };
                Err(Error::Io { operation, source: io::Error::from_raw_os_error(errno) })
            }
        }
    }
}

impl<B> fmt::Display for Entry<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.opcode == CUfileOpcode_t::CUFILE_WRITE { "write" } else { "read" };
        let Self { id, len_bytes, file_offset, file, .. } = self;
        write!(f, "entry {id}, {what} of {len_bytes} bytes at {file_offset} of {}", file.name())
    }
}

impl<B> fmt::Debug for Entry<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("id", &self.id)
            .field("opcode", &self.opcode)
            .field("file", &self.file)
            .field("file_offset", &self.file_offset)
            .field("buffer_offset", &self.buffer_offset)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

/// A finished entry of a [`Batch`].
///
/// Names elsewhere: `CUfileIOEvents_t`, `CUfileIOEvents` (C); `IOEvents` (Python); `BatchEvent` (kvik-rs).
pub struct Completion<B> {
    /// The number given to [`Entry::id`].
    pub id: u64,
    /// The status that libcufile reported; [`CANCELED`](Status::CANCELED) if [`Batch::cancel`] ended it.
    pub status: Status,
    /// The number of bytes: fewer than asked for only at the file's end. Any status except
    /// [`COMPLETE`](Status::COMPLETE) is an error, which names entry, range and file.
    ///
    /// Names elsewhere: `bytes_transferred` (kvik-rs).
    #[doc(alias = "bytes_transferred")]
    pub result: Result<usize>,
    /// The entry's buffer. `None` unless the status is [`COMPLETE`](Status::COMPLETE): libcufile may still use the
    /// memory then. The batch keeps the buffer until [`Batch::cancel`] returns it or the batch is dropped.
    pub buffer: Option<B>,
}

impl<B> fmt::Debug for Completion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id)
            .field("status", &self.status)
            .field("result", &self.result)
            .finish_non_exhaustive()
    }
}

/// The state of an entry (`CUfileStatus_t`). Any number is valid: newer libraries may have more.
///
/// Names elsewhere: `BatchEventStatus` (kvik-rs).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(CUfileStatus_t);

impl Status {
    /// Submitted, not begun (`CUFILE_WAITING`).
    #[doc(alias = "CUFILE_WAITING")]
    pub const WAITING: Self = Self(CUfileStatus_t::CUFILE_WAITING);
    /// Begun (`CUFILE_PENDING`).
    #[doc(alias = "CUFILE_PENDING")]
    pub const PENDING: Self = Self(CUfileStatus_t::CUFILE_PENDING);
    /// Refused (`CUFILE_INVALID`).
    #[doc(alias = "CUFILE_INVALID")]
    pub const INVALID: Self = Self(CUfileStatus_t::CUFILE_INVALID);
    /// Cancelled (`CUFILE_CANCELED`).
    #[doc(alias = "CUFILE_CANCELED")]
    pub const CANCELED: Self = Self(CUfileStatus_t::CUFILE_CANCELED);
    /// Done (`CUFILE_COMPLETE`).
    #[doc(alias = "CUFILE_COMPLETE")]
    pub const COMPLETE: Self = Self(CUfileStatus_t::CUFILE_COMPLETE);
    /// Abandoned because it took too long (`CUFILE_TIMEOUT`).
    #[doc(alias = "CUFILE_TIMEOUT")]
    pub const TIMEOUT: Self = Self(CUfileStatus_t::CUFILE_TIMEOUT);
    /// Tried without success (`CUFILE_FAILED`).
    #[doc(alias = "CUFILE_FAILED")]
    pub const FAILED: Self = Self(CUfileStatus_t::CUFILE_FAILED);

    /// Creates a status from C's number.
    pub const fn from_raw(raw: u32) -> Self {
        Self(CUfileStatus_t::from_raw(raw))
    }

    /// Returns C's number.
    pub const fn as_raw(self) -> u32 {
        self.0.as_raw()
    }

    /// Returns the C name, if this version of the crate knows it.
    pub const fn name(self) -> Option<&'static str> {
        self.0.name()
    }

    fn is_in_flight(self) -> bool {
        self == Self::WAITING || self == Self::PENDING
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Status({})", self.as_raw()),
        }
    }
}

/// Reads and writes that one call submits (`cuFileBatchIOSetUp`).
///
/// Entries are not ordered with each other or with any CUDA stream. As completions make room, the batch takes new
/// entries.
///
/// Unregistered host memory has limits, because libcufile (1.16 and 1.20, in compatibility mode) corrupts memory in
/// two cases: if the program polls some entries of a batch while others are moving, and if a second submission is in
/// flight. So such entries can be submitted only while no entry of any batch of the process is in flight, and must
/// be waited for together. A [`RegisteredBuffer`](crate::RegisteredBuffer) has no such limits.
///
/// The buffer of a failed entry stays with the batch, because libcufile may still use it; [`cancel`](Self::cancel)
/// returns it, and dropping the batch frees it.
///
/// Dropping waits for the entries in flight; after 30 seconds, it leaks the batch with their buffers, except
/// unregistered host memory, for which it waits without limit. [`cancel`](Self::cancel) stops the entries
/// instead.
///
/// A batch that leaks or is forgotten ([`mem::forget`](std::mem::forget)) counts as in flight for ever: other batches then take
/// no unregistered host memory.
///
/// Names elsewhere: `CUfileBatchHandle_t` (C); `BatchHandle` (Python, KvikIO, kvik-rs).
pub struct Batch<B> {
    raw: CUfileBatchHandle_t,
    /// Dropped only when libcufile no longer uses what they hold.
    slots: ManuallyDrop<Vec<Slot<B>>>,
    free: Vec<u32>,
    capacity: usize,
    /// Entries that libcufile accepted and has not reported.
    in_flight: usize,
    /// True if a submission failed and libcufile may have begun a part of it.
    doubtful: bool,
    /// True if there is unregistered host memory among the entries in flight.
    whole: bool,
    traffic: Arc<Mutex<Traffic>>,
    max_entry_bytes: u64,
    // Kept for their memory.
    staged: Vec<Entry<B>>,
    parameters: Vec<CUfileIOParams_t>,
    events: Vec<CUfileIOEvents_t>,
    driver: Driver,
}

/// The entries of all batches that are in flight in one libcufile.
#[derive(Default)]
struct Traffic {
    batches: usize,
    /// True if one of them has unregistered host memory, which must be alone.
    whole: bool,
}

/// Libraries with the same functions share it.
fn traffic(library: &Library) -> Arc<Mutex<Traffic>> {
    static LIBRARIES: Mutex<Vec<(usize, Arc<Mutex<Traffic>>)>> = Mutex::of_static(Vec::new());
    let mut libraries = LIBRARIES.lock();
    let key = library.functions().cuFileBatchIOSetUp as usize;
    let known = libraries.iter().find(|(other, _)| *other == key);
    if let Some((_, traffic)) = known {
        return Arc::clone(traffic);
    }
    let traffic = Arc::default();
    libraries.push((key, Arc::clone(&traffic)));
    traffic
}

struct Slot<B> {
    /// The number of entries that the slot had before: it tells a late event from one of the present entry.
    generation: u32,
    entry: Option<Entry<B>>,
    /// libcufile's report of the entry, if libcufile may still use the buffer.
    failed: Option<(Status, isize)>,
}

impl<B> Slot<B> {
    const EMPTY: Self = Self { generation: 0, entry: None, failed: None };
}

// SAFETY: one thread at a time uses a batch. NVIDIA's guides bind a batch to no thread. The pointers in `parameters`
// and `events` are leftovers.
unsafe impl<B: Send> Send for Batch<B> {}
// SAFETY: a shared reference gives no access to C or to a buffer.
unsafe impl<B> Sync for Batch<B> {}

impl<B: IoBuf + 'static> Batch<B> {
    /// Sets up a batch of at most `capacity` entries at a time (`cuFileBatchIOSetUp`).
    ///
    /// Names elsewhere: `batch_io_set_up` (Python).
    ///
    /// # Errors
    /// [`Error::InvalidInput`] with the limit if the driver allows no such capacity
    /// ([`max_batch_entries`](crate::DriverProperties::max_batch_entries), the parameter `io_batchsize`), or
    /// cuFile's error.
    #[doc(alias = "cuFileBatchIOSetUp")]
    #[doc(alias = "batch_io_set_up")]
    pub fn new(driver: &Driver, capacity: usize) -> Result<Self> {
        Self::set_up(driver, capacity)
    }
}

impl<B: IoBuf> Batch<B> {
    /// Does what [`new`](Self::new) does, for a batch that ends before its buffers' lifetime.
    pub(crate) fn set_up(driver: &Driver, capacity: usize) -> Result<Self> {
        const OPERATION: &str = "cuFileBatchIOSetUp";
        let properties = driver.properties()?;
        let limit = properties.max_batch_entries;
        let Some(nr) = c_uint::try_from(capacity).ok().filter(|nr| (1..=limit).contains(nr)) else {
            return Err(Error::invalid(
                OPERATION,
                format!("{capacity} entries; this driver allows 1 to {limit} (its parameter io_batchsize)"),
            ));
        };
        // Before C, so that a failing allocation leaves nothing behind.
        let slots = (0..nr).map(|_| Slot::EMPTY).collect();
        let parameters = Vec::with_capacity(capacity);
        let none =
            CUfileIOEvents_t { cookie: ptr::null_mut(), status: CUfileStatus_t::CUFILE_WAITING, ret: 0 };
        let mut batch = Self {
            raw: ptr::null_mut(),
            slots: ManuallyDrop::new(slots),
            free: (0..nr).rev().collect(),
            capacity,
            in_flight: 0,
            doubtful: false,
            whole: false,
            traffic: traffic(driver.library()),
            max_entry_bytes: properties.max_direct_io_bytes,
            staged: Vec::with_capacity(capacity),
            parameters,
            events: vec![none; capacity],
            driver: driver.clone(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call.
        check(OPERATION, unsafe { (driver.library().functions().cuFileBatchIOSetUp)(&mut raw, nr) })?;
        batch.raw = raw;
        Ok(batch)
    }

    /// Submits entries (`cuFileBatchIOSubmit`).
    ///
    /// Names elsewhere: `batch_io_submit` (Python).
    ///
    /// # Errors
    /// [`Failed`] returns the entries if nothing was submitted: [`Error::InvalidInput`] if
    /// - the batch has no room for them, or a range is not in its buffer;
    /// - an entry is longer than [`max_direct_io_bytes`](crate::DriverProperties::max_direct_io_bytes):
    ///   libcufile would cut it short and call it complete;
    /// - these or the batch's entries in flight have unregistered host memory (see [`Batch`]).
    ///
    /// [`Error::InUse`] if entries of other batches are in flight, and they or these have unregistered host memory.
    ///
    /// If libcufile itself fails the call, it does not say which entries it has begun. All of them then stay with the
    /// batch, which takes no more entries: [`Failed`] returns none. [`poll`](Self::poll) returns entries that
    /// libcufile reports, and [`cancel`](Self::cancel) returns the rest.
    #[doc(alias = "cuFileBatchIOSubmit")]
    #[doc(alias = "batch_io_submit")]
    pub fn submit(
        &mut self,
        entries: impl IntoIterator<Item = Entry<B>>,
    ) -> Result<(), Failed<Vec<Entry<B>>>> {
        let mut taken = mem::take(&mut self.staged);
        taken.extend(entries);
        match self.submit_all(&mut taken) {
            Ok(()) => {
                self.staged = taken;
                Ok(())
            }
            Err(error) => Err(Failed::new(error, taken)),
        }
    }

    fn submit_all(&mut self, entries: &mut Vec<Entry<B>>) -> Result<()> {
        self.check(entries)?;
        if entries.is_empty() {
            return Ok(());
        }
        let whole = entries.iter().any(|entry| is_unregistered_host(&entry.buffer));
        // Each buffer may have another context, but the thread has one.
        let context = entries.iter().find_map(|entry| entry.buffer.location().context);
        let driver = self.driver.clone();
        let _entered = context.map(|context| context.enter(driver.cuda())).transpose()?;
        self.enter_traffic(whole)?;
        // Counted from here on: not even a panic of a buffer's method can then hide an entry that C may know.
        self.in_flight += entries.len();
        self.doubtful = true;
        self.parameters.clear();
        for entry in entries.drain(..) {
            let parameters = self.place(entry);
            self.parameters.push(parameters);
        }
        // SAFETY: the batch is set up, and ranges were checked. The slots hold files and buffers until an event
        // or the end of the batch proves that libcufile is done with them. Without proof, they leak. libcufile
        // copies the parameters: measured, overwriting them right after the call has no effect.
        let status = unsafe {
            (driver.library().functions().cuFileBatchIOSubmit)(
                self.raw,
                self.parameters.len() as c_uint,
                self.parameters.as_mut_ptr(),
                0,
            )
        };
        let submitted = check(SUBMIT, status);
        self.doubtful = submitted.is_err();
        submitted.map_err(|error| self.submission_failed(error))
    }

    #[cold]
    fn submission_failed(&self, error: Error) -> Error {
        let first = self.parameters.first().and_then(|first| self.slots.get(slot_of(first.cookie.addr()).0));
        let Some(first) = first.and_then(|slot| slot.entry.as_ref()) else { return error };
        error.about(&format_args!("{} entries, the first: {first}", self.parameters.len()))
    }

    fn check(&self, entries: &[Entry<B>]) -> Result<()> {
        self.driver.check_alive()?;
        self.check_certain(SUBMIT)?;
        if entries.len() > self.free.len() {
            let (new, room) = (entries.len(), self.free.len());
            return Err(Error::invalid(
                SUBMIT,
                format!("{new} entries, but the batch has room for only {room} more"),
            ));
        }
        let whole = || entries.iter().any(|entry| is_unregistered_host(&entry.buffer));
        if self.in_flight > 0 && !entries.is_empty() && (self.whole || whole()) {
            return Err(Error::invalid(
                SUBMIT,
                "entries with unregistered host memory must be submitted and waited for together; register the buffers",
            ));
        }
        let limit = self.max_entry_bytes;
        for (number, entry) in entries.iter().enumerate() {
            self.check_entry(entry, limit).map_err(|error| match error {
                Error::InvalidInput { operation, problem } => {
                    let place = format!("{} of {}", number + 1, entries.len());
                    Error::invalid(operation, format!("{entry} ({place}): {problem}"))
                }
                other => other,
            })?;
        }
        Ok(())
    }

    fn check_entry(&self, entry: &Entry<B>, limit: u64) -> Result<()> {
        Span::new(SUBMIT, &entry.buffer, entry.buffer_offset, entry.len_bytes)?;
        file_offset(SUBMIT, entry.file_offset)?;
        if entry.len_bytes as u64 > limit {
            return Err(Error::invalid(
                SUBMIT,
                format!("libcufile moves at most {limit} bytes in one entry; split the entry"),
            ));
        }
        if !entry.file.driver().library().is(self.driver.library()) {
            return Err(Error::invalid(SUBMIT, "the file is registered with another libcufile"));
        }
        Ok(())
    }

    fn enter_traffic(&mut self, whole: bool) -> Result<()> {
        let mut traffic = self.traffic.lock();
        let others = traffic.batches - usize::from(self.in_flight > 0);
        if others > 0 && (whole || traffic.whole) {
            let what =
                "unregistered host memory must be in flight alone; register it to lift that limit. libcufile";
            return Err(Error::InUse { what, users: others });
        }
        traffic.batches = others + 1;
        traffic.whole = whole;
        self.whole = whole;
        Ok(())
    }

    fn place(&mut self, entry: Entry<B>) -> CUfileIOParams_t {
        let index = self.free.pop().expect("as many free slots as entries");
        let slot = &mut self.slots[index as usize];
        let entry = slot.entry.insert(entry);
        // Only now does the buffer stay in its place: moving a boxed one invalidates earlier pointers into it.
        let start = (entry.address)(&mut entry.buffer);
        let (base, offset) = name(&entry.buffer, start, entry.buffer_offset);
        let batch = CUfileIOParams_anon_batch {
            devPtr_base: base.cast(),
            file_offset: entry.file_offset as off_t,
            devPtr_offset: offset as off_t,
            size: entry.len_bytes,
        };
        CUfileIOParams_t {
            mode: CUfileBatchMode_t::CUFILE_BATCH,
            u: CUfileIOParams_anon_u { batch },
            fh: entry.file.as_raw(),
            opcode: entry.opcode,
            cookie: ptr::without_provenance_mut(cookie(index, slot.generation)),
        }
    }

    /// Waits until `min` entries have ended, or `timeout` has passed, and returns at most `max` of them
    /// (`cuFileBatchIOGetStatus`).
    ///
    /// `min` is capped at the number of entries in flight. Without a `timeout`, this waits without limit. After
    /// a failed submission, it does not wait, because it is unknown whether an entry is left.
    ///
    /// Names elsewhere: `batch_io_get_status` (Python); `status` (KvikIO, kvik-rs).
    ///
    /// # Errors
    /// cuFile's error; [`Error::Forked`]. [`Error::InvalidInput`] if unregistered host memory is in flight and
    /// this call would not wait for all of it (see [`Batch`]): with a `timeout`, with fewer than
    /// [`in_flight`](Self::in_flight) as `min` or `max`, or after a failed submission.
    #[doc(alias = "cuFileBatchIOGetStatus")]
    #[doc(alias = "batch_io_get_status")]
    #[doc(alias = "status")]
    pub fn poll(&mut self, min: usize, max: usize, timeout: Option<Duration>) -> Result<Vec<Completion<B>>> {
        let mut completions = Vec::new();
        self.poll_into(min, max, timeout, &mut completions)?;
        Ok(completions)
    }

    /// Does what [`poll`](Self::poll) does, but appends to a vector that the caller can reuse, and returns the number of
    /// completions appended.
    ///
    /// Names elsewhere: `cuFileBatchIOGetStatus` (C); `batch_io_get_status` (Python).
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[doc(alias = "cuFileBatchIOGetStatus")]
    #[doc(alias = "batch_io_get_status")]
    pub fn poll_into(
        &mut self,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion<B>>,
    ) -> Result<usize> {
        self.reap(min, max, timeout, |completion| completions.push(completion))
    }

    /// Waits until every entry has ended.
    ///
    /// Names elsewhere: `cuFileBatchIOGetStatus` (C); `batch_io_get_status` (Python).
    ///
    /// # Errors
    /// The completions so far come with cuFile's error; [`in_flight`](Self::in_flight) entries are left.
    /// [`Error::InvalidInput`] after a failed submission: it is unknown whether an entry is left.
    #[doc(alias = "cuFileBatchIOGetStatus")]
    #[doc(alias = "batch_io_get_status")]
    pub fn wait_all(&mut self) -> Result<Vec<Completion<B>>, Failed<Vec<Completion<B>>>> {
        let mut completions = Vec::with_capacity(self.in_flight);
        match self.drain(|completion| completions.push(completion)) {
            Ok(()) => Ok(completions),
            Err(error) => Err(Failed::new(error, completions)),
        }
    }

    /// Waits until every entry has ended, but no longer than `timeout`. Returns the entries that have ended;
    /// the buffers of the others stay with the batch.
    ///
    /// Names elsewhere: `cuFileBatchIOGetStatus` (C); `batch_io_get_status` (Python).
    ///
    /// # Errors
    /// As [`wait_all`](Self::wait_all), and [`Error::InvalidInput`] if unregistered host memory is in flight
    /// (see [`Batch`]).
    #[doc(alias = "cuFileBatchIOGetStatus")]
    #[doc(alias = "batch_io_get_status")]
    pub fn wait_all_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Vec<Completion<B>>, Failed<Vec<Completion<B>>>> {
        let mut completions = Vec::with_capacity(self.in_flight);
        match self.drain_for(timeout, |completion| completions.push(completion)) {
            Ok(()) => Ok(completions),
            Err(error) => Err(Failed::new(error, completions)),
        }
    }

    /// Cancels what is in flight (`cuFileBatchIOCancel`), destroys the batch, and returns every entry.
    ///
    /// Consumes the batch, because a cancelled batch reports nothing more. Entries that had ended before have their
    /// results, and others have [`Status::CANCELED`]: libcufile does not say how many of their bytes it moved.
    /// Entries whose completions came without a buffer are returned again, with the buffer. If libcufile cannot
    /// cancel, this waits for the entries instead.
    ///
    /// ```compile_fail,E0382
    /// # use cufile::{Batch, Result};
    /// fn again(batch: Batch<Vec<u8>>) -> Result<()> {
    ///     let completions = batch.cancel()?;
    ///     batch.poll(1, 1, None)?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// Names elsewhere: `cuFileBatchIODestroy` (C); `batch_io_cancel`, `batch_io_destroy` (Python).
    ///
    /// # Errors
    /// cuFile's error, if it can neither cancel nor report; or [`Error::Forked`]. The completions so far come
    /// with it; the buffers of entries that may be in flight are leaked.
    #[doc(alias = "cuFileBatchIOCancel")]
    #[doc(alias = "batch_io_cancel")]
    #[doc(alias = "cuFileBatchIODestroy")]
    #[doc(alias = "batch_io_destroy")]
    pub fn cancel(mut self) -> Result<Vec<Completion<B>>, Failed<Vec<Completion<B>>>> {
        self.cancel_in_place()
    }

    /// Does what [`cancel`](Self::cancel) does; afterwards the batch can only be dropped.
    pub(crate) fn cancel_in_place(&mut self) -> Result<Vec<Completion<B>>, Failed<Vec<Completion<B>>>> {
        let mut completions = Vec::with_capacity(self.in_flight);
        match self.end(|completion| completions.push(completion)) {
            Ok(()) => Ok(completions),
            Err(error) => Err(Failed::new(error, completions)),
        }
    }

    fn end(&mut self, mut completed: impl FnMut(Completion<B>)) -> Result<()> {
        self.driver.check_alive()?;
        // What is reported without a buffer now comes with it below.
        let mut with_buffer = |completion: Completion<B>| {
            if completion.buffer.is_some() {
                completed(completion);
            }
        };
        // An error here, even of a call that libcufile refuses, shows again below.
        let _ = self.reap(0, self.in_flight, Some(Duration::ZERO), &mut with_buffer);
        if self.in_flight > 0
            && let Err(error) = self.cancel_raw()
        {
            if self.doubtful {
                return Err(error);
            }
            self.drain(&mut with_buffer)?;
        }
        self.destroy();
        for slot in self.slots.iter_mut() {
            let Some(entry) = slot.entry.take() else { continue };
            let (status, count) = slot.failed.unwrap_or((Status::CANCELED, 0));
            let (id, result) = (entry.id, entry.result(status, count));
            completed(Completion { id, status, result, buffer: Some(entry.buffer) });
        }
        Ok(())
    }

    /// Returns the number of entries that were submitted and have not come back.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the largest number of entries that can be in flight.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the length in bytes of the longest entry: the driver's `max_direct_io_bytes`.
    pub fn max_entry_bytes(&self) -> u64 {
        self.max_entry_bytes
    }
}

// What dropping needs, for any `B`.
impl<B> Batch<B> {
    fn reap(
        &mut self,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
        mut completed: impl FnMut(Completion<B>),
    ) -> Result<usize> {
        self.driver.check_alive()?;
        let max = max.min(self.in_flight);
        if max == 0 {
            return Ok(0);
        }
        if self.whole && (self.doubtful || min.min(max) < self.in_flight || timeout.is_some()) {
            return Err(Error::invalid(
                GET_STATUS,
                "entries with unregistered host memory must be waited for together; register the buffers",
            ));
        }
        let min = if self.doubtful && timeout.is_none() { 0 } else { min.min(max) };
        let mut nr = max as c_uint;
        let mut timeout = timeout.map(time_of);
        // SAFETY: the batch is set up; `events` has room for `max` events; `nr` and the time outlive the call.
        check(GET_STATUS, unsafe {
            (self.driver.library().functions().cuFileBatchIOGetStatus)(
                self.raw,
                min as c_uint,
                &mut nr,
                self.events.as_mut_ptr(),
                timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
            )
        })?;
        let mut count = 0;
        for index in 0..max.min(nr as usize) {
            let event = self.events[index];
            let status = Status(event.status);
            if status.is_in_flight() {
                continue;
            }
            // Ignores an event that belongs to no entry in flight.
            let Some(completion) = self.complete(event.cookie.addr(), status, event.ret as isize) else {
                continue;
            };
            self.in_flight -= 1;
            count += 1;
            if self.in_flight == 0 {
                self.leave_traffic();
            }
            completed(completion);
        }
        Ok(count)
    }

    fn leave_traffic(&mut self) {
        let mut traffic = self.traffic.lock();
        traffic.batches -= 1;
        traffic.whole = false;
        self.whole = false;
    }

    fn check_certain(&self, operation: &'static str) -> Result<()> {
        if self.doubtful {
            return Err(Error::invalid(
                operation,
                "an earlier submission to this batch failed; cancel the batch",
            ));
        }
        Ok(())
    }

    /// Returns the completion of the entry of a cookie. Its slot keeps the buffer, and a new slot takes over.
    fn complete(&mut self, cookie: usize, status: Status, count: isize) -> Option<Completion<B>> {
        let (index, generation) = slot_of(cookie);
        let is_it = |slot: &&mut Slot<B>| slot.generation == generation && slot.failed.is_none();
        let slot = self.slots.get_mut(index).filter(is_it)?;
        let entry = slot.entry.as_ref()?;
        let (id, result) = (entry.id, entry.result(status, count));
        if status == Status::COMPLETE {
            let buffer = slot.entry.take().map(Entry::into_buffer);
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index as u32);
            return Some(Completion { id, status, result, buffer });
        }
        slot.failed = Some((status, count));
        // At most one slot exists for each submitted entry, and each entry holds memory: a u32 counts them.
        self.free.push(self.slots.len() as u32);
        self.slots.push(Slot::EMPTY);
        Some(Completion { id, status, result, buffer: None })
    }

    fn drain(&mut self, mut completed: impl FnMut(Completion<B>)) -> Result<()> {
        self.check_certain(GET_STATUS)?;
        while self.in_flight > 0 {
            if self.reap(self.in_flight, self.in_flight, None, &mut completed)? == 0 {
                // Some versions may return before there is something.
                thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    fn drain_for(&mut self, timeout: Duration, mut completed: impl FnMut(Completion<B>)) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let all = self.in_flight;
            let count = self.reap(all, all, Some(left), &mut completed)?;
            if self.in_flight == 0 || left.is_zero() {
                return Ok(());
            }
            if count == 0 {
                // Some versions may return before there is something.
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn cancel_raw(&mut self) -> Result<()> {
        // SAFETY: the batch is set up.
        check("cuFileBatchIOCancel", unsafe {
            (self.driver.library().functions().cuFileBatchIOCancel)(self.raw)
        })
    }

    fn destroy(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: set up in `new` and destroyed once: nothing calls C for a null batch.
            unsafe { (self.driver.library().functions().cuFileBatchIODestroy)(self.raw) };
            self.raw = ptr::null_mut();
            if self.in_flight > 0 {
                self.leave_traffic();
            }
            self.in_flight = 0;
            self.doubtful = false;
        }
    }
}

/// Returns at most a century, so that no arithmetic overflows.
fn time_of(timeout: Duration) -> timespec {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86400);
    let timeout = timeout.min(CENTURY);
    timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ }
}

/// Returns whether libcufile's own threads move the memory; partial reports corrupt memory then.
fn is_unregistered_host(buffer: &impl IoBuf) -> bool {
    let location = buffer.location();
    location.is_host_accessible && !location.is_registered
}

/// Returns the number that C reports an entry by.
fn cookie(index: u32, generation: u32) -> usize {
    // cuFile exists for 64-bit machines only.
    ((u64::from(generation) << 32) + u64::from(index)) as usize
}

fn slot_of(cookie: usize) -> (usize, u32) {
    (cookie as u32 as usize, (cookie as u64 >> 32) as u32)
}

impl<B> Batch<B> {
    /// Waits until libcufile is done with the buffers of all entries, for at most `patience`, and destroys the batch. Returns
    /// whether it is.
    pub(crate) fn settle(&mut self, patience: Option<Duration>) -> bool {
        // A forked child does not own what its parent submitted.
        if self.raw.is_null() || !self.driver.is_alive() {
            return true;
        }
        let waited = match patience {
            // libcufile corrupts memory if a wait ends before unregistered host memory has been moved.
            Some(patience) if !self.whole && !self.doubtful => self.drain_for(patience, drop),
            _ => self.drain(drop),
        };
        // Waiting rather than cancelling: an entry's own event is the best proof that libcufile is done with
        // its buffer, and half-done writes help no caller. Where no events come, because libcufile cannot
        // report or a submission failed, a successful cancel is the proof. It waits for what has begun, as
        // destroying does.
        let is_over = match waited {
            Ok(()) => self.in_flight == 0,
            Err(_) => self.cancel_raw().is_ok(),
        };
        if is_over {
            self.destroy();
        }
        is_over
    }
}

impl<B> Drop for Batch<B> {
    fn drop(&mut self) {
        if self.settle(Some(PATIENCE)) && self.driver.is_alive() {
            // SAFETY: dropped here and nowhere else; not reached if a buffer's drop panics above, or in a forked
            // child.
            unsafe { ManuallyDrop::drop(&mut self.slots) };
        }
    }
}

impl<B> fmt::Debug for Batch<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("in_flight", &self.in_flight)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timeout_is_longer_than_a_century() {
        let century = Duration::from_secs(3_153_600_000);
        for (timeout, expected) in [
            (Duration::ZERO, (0, 0)),
            (Duration::from_micros(1_500_000), (1, 500_000_000)),
            (century - Duration::from_nanos(1), (3_153_599_999, 999_999_999)),
            (century + Duration::from_nanos(1), (3_153_600_000, 0)),
            (Duration::MAX, (3_153_600_000, 0)),
        ] {
            let time = time_of(timeout);
            assert_eq!((time.tv_sec, time.tv_nsec), expected, "{timeout:?}");
        }
    }

    #[test]
    fn cookies_name_slots_and_generations() {
        for (index, generation) in [(0, 0), (7, 0), (0, 7), (u32::MAX, u32::MAX), (5, u32::MAX)] {
            assert_eq!(slot_of(cookie(index, generation)), (index as usize, generation));
        }
        assert_eq!(cookie(5, 3), 0x3_0000_0005);
    }

    #[test]
    fn only_waiting_and_pending_entries_are_under_way() {
        assert!(Status::WAITING.is_in_flight() && Status::PENDING.is_in_flight());
        let over = [Status::INVALID, Status::CANCELED, Status::COMPLETE, Status::TIMEOUT, Status::FAILED];
        assert!(!over.iter().any(|status| status.is_in_flight()));
    }
}
