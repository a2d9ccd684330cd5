//! A registered file: reads and writes.

use std::any::Any;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::Arc;
use std::{fmt, fs, io, mem, ptr, slice};

use cufile_sys::{CUfileDescr_t, CUfileHandle_t, off_t};

use crate::cuda::Context;
use crate::driver::Driver;
use crate::error::{Error, Raw, Result, check, decode};
use crate::failed::Failed;
use crate::file_info::FileProperties;
use crate::memory::{IoBuf, IoBufMut, Span, file_offset};
use crate::system::{self, BorrowedFd, OwnedFd, RawFd};

/// A file registered with cuFile (`CUfileHandle_t`).
///
/// Owns its descriptor and a reference to the driver. Dropping deregisters the file, then closes the descriptor, then
/// releases the driver. Reads and writes are positional and take `&self`, so threads can share a handle.
///
/// They are not ordered with any CUDA stream. Synchronise before writing a kernel's output, and before a kernel of another stream
/// uses bytes that were read.
///
/// ```no_run
/// # use cufile::{Driver, FileHandle};
/// let driver = Driver::open()?;
/// let file = FileHandle::register(&driver, std::fs::File::open("data.bin")?)?;
/// let mut header = vec![0; 512];
/// assert_eq!(file.read_at(&mut header, 0)?, 512);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Names elsewhere: `CUfileDescr_t`, `CUfileDescr`, `CUfileFileHandleType` (C); `FileHandleType`, `Descr` (Python);
/// `CUFileHandleWrapper` (KvikIO).
#[doc(alias = "CUfileHandle_t")]
pub struct FileHandle {
    raw: CUfileHandle_t,
    // Dropped after `Drop::drop` has deregistered, in this order.
    file: File,
    driver: Driver,
}

pub(crate) enum File {
    Descriptor(OwnedFd),
    Borrowed(RawFd),
    /// A userspace file system and its table of functions. Not a box, because moving a box claims sole access
    /// to its content, and libcufile holds a pointer there.
    Userspace(#[allow(dead_code, reason = "only to be kept alive")] Arc<dyn Any + Send + Sync>),
}

// SAFETY: any thread may call cuFile on a handle (NVIDIA's guides share one between threads).
unsafe impl Send for FileHandle {}
// SAFETY: as above.
unsafe impl Sync for FileHandle {}

impl FileHandle {
    /// Registers an open file (`cuFileHandleRegister`).
    ///
    /// The direct paths need `O_DIRECT`. Without it, or without such a path, cuFile uses its compatibility mode
    /// if allowed.
    ///
    /// Names elsewhere: `CU_FILE_HANDLE_TYPE_OPAQUE_FD`, `CUfileDescr_t` (C); `handle_register` (Python);
    /// `register_handle` (KvikIO). The handles of Windows, `CU_FILE_HANDLE_TYPE_OPAQUE_WIN32`, have no counterpart:
    /// libcufile exists for Linux alone.
    ///
    /// # Errors
    /// cuFile's code, and the property of the file that explains it: its type, its flags, its file system, a
    /// missing udev record. [`Failed`] returns the descriptor.
    #[doc(alias = "handle_register")]
    #[doc(alias = "CU_FILE_HANDLE_TYPE_OPAQUE_FD")]
    #[doc(alias = "CU_FILE_HANDLE_TYPE_OPAQUE_WIN32")]
    #[doc(alias = "cuFileHandleRegister")]
    #[doc(alias = "CUfileDescr_t")]
    #[doc(alias = "register_handle")]
    pub fn register(driver: &Driver, file: impl Into<OwnedFd>) -> Result<Self, Failed<OwnedFd>> {
        let file = file.into();
        let descriptor = system::description(system::raw(system::lend(&file)));
        // SAFETY: the descriptor names the file, and `register_as` takes both.
        let registered = unsafe { Self::register_as(driver, descriptor, File::Descriptor(file)) };
        registered.map_err(|failed| {
            failed.map(|file| match file {
                File::Descriptor(file) => file,
                File::Borrowed(_) | File::Userspace(_) => unreachable!("an owned descriptor was registered"),
            })
        })
    }

    /// Registers an open file for as long as its descriptor is borrowed (`cuFileHandleRegister`).
    ///
    /// A forgotten handle ([`mem::forget`]) stays registered, but no code can use it.
    ///
    /// ```no_run
    /// use std::os::fd::AsFd;
    ///
    /// # use cufile::{Driver, FileHandle};
    /// # let driver = Driver::open()?;
    /// let file = std::fs::File::open("data.bin")?;
    /// let mut bytes = vec![0; 512];
    /// FileHandle::register_borrowed(&driver, file.as_fd())?.read_exact_at(&mut bytes, 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The descriptor cannot be closed while the handle exists:
    ///
    /// ```compile_fail,E0505
    /// use std::os::fd::AsFd;
    ///
    /// # use cufile::{Driver, FileHandle};
    /// # let driver = Driver::open()?;
    /// let file = std::fs::File::open("data.bin")?;
    /// let handle = FileHandle::register_borrowed(&driver, file.as_fd())?;
    /// drop(file);
    /// handle.read_at(&mut vec![0; 512], 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`register`](Self::register).
    #[doc(alias = "cuFileHandleRegister")]
    pub fn register_borrowed<'fd>(driver: &Driver, file: BorrowedFd<'fd>) -> Result<BorrowedHandle<'fd>> {
        let file = system::raw(file);
        let (file, descriptor) = (File::Borrowed(file), system::description(file));
        // SAFETY: each user of the handle borrows the `BorrowedHandle`, which does not outlive the descriptor.
        let handle = unsafe { Self::register_as(driver, descriptor, file) }?;
        Ok(BorrowedHandle { handle, descriptor: PhantomData })
    }

    /// # Safety
    /// The object that `descriptor` refers to must be `file`, or live as long.
    pub(crate) unsafe fn register_as(
        driver: &Driver,
        mut descriptor: CUfileDescr_t,
        file: File,
    ) -> Result<Self, Failed<File>> {
        if let Err(error) = driver.check_alive() {
            return Err(Failed::new(error, file));
        }
        let mut raw = ptr::null_mut();
        // SAFETY: both outlive the call. `FileHandle` owns the file that the descriptor refers to until it has
        // deregistered the handle.
        let status =
            unsafe { (driver.library().functions().cuFileHandleRegister)(&mut raw, &mut descriptor) };
        match check("cuFileHandleRegister", status) {
            Ok(()) => Ok(Self { raw, file, driver: driver.clone() }),
            Err(error) => Err(Failed::new(explain(error, &file, driver), file)),
        }
    }

    /// Reads into the whole buffer from `file_offset` in bytes (`cuFileRead`). For a part, pass a
    /// [`BufSliceMut`](crate::BufSliceMut).
    ///
    /// Returns the number of bytes read: fewer than asked for at the end of the file, 0 beyond it. The rest of
    /// the buffer is undefined.
    ///
    /// Names elsewhere: `pread` (Python).
    ///
    /// # Errors
    /// The error of cuFile or the operating system.
    #[doc(alias = "pread")]
    #[doc(alias = "cuFileRead")]
    #[inline]
    pub fn read_at<B: IoBufMut + ?Sized>(&self, buffer: &mut B, file_offset: u64) -> Result<usize> {
        let len_bytes = buffer.len_bytes();
        self.read_part(buffer, 0, len_bytes, file_offset)
    }

    #[inline]
    fn read_part<B: IoBufMut + ?Sized>(
        &self,
        buffer: &mut B,
        buffer_offset: usize,
        len_bytes: usize,
        file_offset: u64,
    ) -> Result<usize> {
        let span = Span::new_mut("cuFileRead", buffer, buffer_offset, len_bytes)?;
        self.transfer("cuFileRead", span.context, file_offset, len_bytes, |at| {
            // SAFETY: the handle is registered; the span lies in the buffer, to which there is no other access.
            unsafe {
                (self.driver.library().functions().cuFileRead)(
                    self.raw,
                    span.base,
                    span.len_bytes,
                    at,
                    span.offset,
                )
            }
        })
    }

    /// Reads the whole buffer from `file_offset` in bytes, with as many calls of `cuFileRead` as needed.
    ///
    /// Names elsewhere: `CU_FILE_OP_PARTIAL_COMPLETION` (C).
    ///
    /// # Errors
    /// [`Error::Io`] of the kind [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the file ends before; else
    /// as [`read_at`](Self::read_at). The contents of the buffer are undefined then.
    #[doc(alias = "CU_FILE_OP_PARTIAL_COMPLETION")]
    #[doc(alias = "cuFileRead")]
    pub fn read_exact_at<B: IoBufMut + ?Sized>(&self, buffer: &mut B, file_offset: u64) -> Result<()> {
        let len_bytes = buffer.len_bytes();
        let mut done = 0;
        while done < len_bytes {
            let at = file_offset.saturating_add(done as u64);
            match self.read_part(buffer, done, len_bytes - done, at)? {
                0 => {
                    return Err(self.ended("cuFileRead", io::ErrorKind::UnexpectedEof, len_bytes - done, at));
                }
                bytes => done += bytes,
            }
        }
        Ok(())
    }

    /// Reads from `file_offset` in bytes into host memory that need not be initialised (`cuFileRead`). Returns
    /// the bytes read, fewer than the buffer's only at the end of the file.
    ///
    /// ```no_run
    /// # use cufile::{Driver, FileHandle};
    /// # let driver = Driver::open()?;
    /// let file = FileHandle::register(&driver, std::fs::File::open("data.bin")?)?;
    /// let mut memory = Vec::with_capacity(512);
    /// let header: &mut [u8] = file.read_uninit_at(memory.spare_capacity_mut(), 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    #[doc(alias = "cuFileRead")]
    pub fn read_uninit_at<'b>(
        &self,
        buffer: &'b mut [MaybeUninit<u8>],
        file_offset: u64,
    ) -> Result<&'b mut [u8]> {
        let (ptr, len_bytes) = (buffer.as_mut_ptr(), buffer.len());
        let done = self.transfer("cuFileRead", None, file_offset, len_bytes, |at| {
            // SAFETY: the handle is registered; the buffer is borrowed mutably.
            unsafe { (self.driver.library().functions().cuFileRead)(self.raw, ptr.cast(), len_bytes, at, 0) }
        })?;
        // SAFETY: libcufile has written as many bytes, which are no more than it was asked for.
        Ok(unsafe { slice::from_raw_parts_mut(ptr.cast(), done) })
    }

    /// Writes the whole buffer to `file_offset` in bytes, with as many calls of `cuFileWrite` as needed. Mind
    /// [other writers](Self::write_at).
    ///
    /// # Errors
    /// [`Error::Io`] of the kind [`WriteZero`](io::ErrorKind::WriteZero) if libcufile writes no more; else as
    /// [`write_at`](Self::write_at). The number of bytes written is unknown then.
    #[doc(alias = "cuFileWrite")]
    pub fn write_all_at<B: IoBuf + ?Sized>(&self, buffer: &B, file_offset: u64) -> Result<()> {
        let len_bytes = buffer.len_bytes();
        let mut done = 0;
        while done < len_bytes {
            let at = file_offset.saturating_add(done as u64);
            match self.write_part(buffer, done, len_bytes - done, at)? {
                0 => return Err(self.ended("cuFileWrite", io::ErrorKind::WriteZero, len_bytes - done, at)),
                bytes => done += bytes,
            }
        }
        Ok(())
    }

    #[cold]
    fn ended(&self, operation: &'static str, kind: io::ErrorKind, len_bytes: usize, at: u64) -> Error {
        Error::Io { operation: operation.into(), source: kind.into() }
            .about(&format_args!("{len_bytes} bytes at {at} of {}", self.file))
    }

    /// Waits until the written bytes and the file's length are on the device (`fsync`).
    ///
    /// # Errors
    /// The kernel's error; [`Error::InvalidInput`] for a userspace file system, which has no descriptor.
    #[doc(alias = "fsync")]
    pub fn sync_all(&self) -> Result<()> {
        const OPERATION: &str = "fsync";
        let Some(descriptor) = self.descriptor() else {
            return Err(Error::invalid(OPERATION, "a userspace file system has no descriptor to sync"));
        };
        system::sync(descriptor)
            .map_err(|source| Error::Io { operation: OPERATION.into(), source }.about(&self.file))
    }

    /// Writes the whole buffer to `file_offset` in bytes (`cuFileWrite`). Returns how many bytes were written.
    ///
    /// Names elsewhere: `pwrite` (Python).
    ///
    /// # Other writers
    /// On a direct path, libcufile writes whole blocks of 4 KiB. Where a range begins or ends within a block,
    /// it reads, changes and writes back the block. Until the write has ended, nothing else may write to these
    /// blocks, not even other bytes of them: no other call, batch, stream, descriptor, mapping or process. Such
    /// bytes may be lost without an error.
    ///
    /// # Errors
    /// The error of cuFile or the operating system.
    #[doc(alias = "pwrite")]
    #[doc(alias = "cuFileWrite")]
    #[inline]
    pub fn write_at<B: IoBuf + ?Sized>(&self, buffer: &B, file_offset: u64) -> Result<usize> {
        self.write_part(buffer, 0, buffer.len_bytes(), file_offset)
    }

    #[inline]
    fn write_part<B: IoBuf + ?Sized>(
        &self,
        buffer: &B,
        buffer_offset: usize,
        len_bytes: usize,
        file_offset: u64,
    ) -> Result<usize> {
        let span = Span::new("cuFileWrite", buffer, buffer_offset, len_bytes)?;
        self.transfer("cuFileWrite", span.context, file_offset, len_bytes, |at| {
            // SAFETY: the handle is registered; the span lies in the buffer, which is borrowed during the call.
            unsafe {
                (self.driver.library().functions().cuFileWrite)(
                    self.raw,
                    span.base,
                    span.len_bytes,
                    at,
                    span.offset,
                )
            }
        })
    }

    #[inline]
    pub(crate) fn transfer(
        &self,
        operation: &'static str,
        context: Option<Context>,
        offset: u64,
        len_bytes: usize,
        call: impl FnOnce(off_t) -> isize,
    ) -> Result<usize> {
        self.driver.check_alive()?;
        let offset = file_offset(operation, offset)?;
        let _entered = context.map(|context| context.enter(self.driver.cuda())).transpose()?;
        // So that a value after the call is that call's.
        system::set_errno(0);
        let count = call(offset);
        // errno counts only for −1, and only right after the call.
        let errno = if count == -1 { system::errno() } else { 0 };
        decode(operation, Raw::Transfer { count, asked: len_bytes, errno })
            .map_err(|error| self.failed(error, offset, len_bytes))
    }

    #[cold]
    fn failed(&self, error: Error, offset: off_t, len_bytes: usize) -> Error {
        error.about(&format_args!("{len_bytes} bytes at {offset} of {}", self.file))
    }

    /// Returns the file's path or, without one, its descriptor, or a note about a userspace file system.
    pub(crate) fn name(&self) -> impl fmt::Display {
        &self.file
    }

    /// Returns the file's properties and open flags.
    ///
    /// Names elsewhere: `get_file_properties` (Python). Some wrappers of cuFile document `set_file_properties`, which
    /// no `cufile.h` from 1.11 to 1.20 has.
    ///
    /// # Errors
    /// [`Error::Io`] with the kernel's error; [`Error::InvalidInput`] for a userspace file system, whose files
    /// the kernel does not know.
    #[doc(alias = "get_file_properties")]
    #[doc(alias = "set_file_properties")]
    pub fn properties(&self) -> Result<FileProperties> {
        match self.descriptor() {
            Some(descriptor) => FileProperties::of(descriptor),
            None => Err(Error::invalid(
                "properties",
                "a userspace file system has no descriptor, so its properties are unknown",
            )),
        }
    }

    /// Returns the descriptor that the file was registered with; `None` for a userspace file system.
    ///
    /// Names elsewhere: `fd` (KvikIO, kvik-rs).
    #[doc(alias = "fd")]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.file {
            File::Descriptor(file) => Some(system::lend(file)),
            // SAFETY: open as long as the handle can be used.
            File::Borrowed(file) => Some(unsafe { system::borrow(*file) }),
            File::Userspace(_) => None,
        }
    }

    /// Returns the driver that the file is registered with.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns C's handle, for calls outside this crate. Do not deregister it.
    #[doc(alias = "handle")]
    pub fn as_raw(&self) -> CUfileHandle_t {
        self.raw
    }

    /// Deregisters the file and returns its descriptor (`cuFileHandleDeregister`). A userspace file system has none;
    /// this drops its file.
    ///
    /// Names elsewhere: `handle_deregister` (Python); `unregister_handle` (KvikIO).
    #[doc(alias = "handle_deregister")]
    #[doc(alias = "cuFileHandleDeregister")]
    #[doc(alias = "unregister_handle")]
    pub fn deregister(self) -> Option<OwnedFd> {
        self.deregister_raw();
        let this = mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so each field is read out once.
        let (file, _driver) = unsafe { (ptr::read(&this.file), ptr::read(&this.driver)) };
        match file {
            File::Descriptor(file) => Some(file),
            File::Borrowed(_) | File::Userspace(_) => None,
        }
    }

    fn deregister_raw(&self) {
        if self.driver.is_alive() {
            // SAFETY: registered in `register_as` and deregistered once. Its file is still alive, and `&mut` or
            // ownership proves that no read or write is in flight.
            unsafe { (self.driver.library().functions().cuFileHandleDeregister)(self.raw) };
        }
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        self.deregister_raw();
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let descriptor = self.descriptor();
        f.debug_struct("FileHandle")
            .field("raw", &self.raw)
            .field("descriptor", &descriptor)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            File::Descriptor(file) => show(system::raw(system::lend(file)), f),
            File::Borrowed(file) => show(*file, f),
            File::Userspace(_) => f.write_str("a userspace file system"),
        }
    }
}

fn show(file: RawFd, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match fs::read_link(format!("/proc/self/fd/{file:?}")) {
        Ok(path) => write!(f, "{path:?}"),
        Err(_) => write!(f, "descriptor {file:?}"),
    }
}

/// A [`FileHandle`] whose descriptor is borrowed, from [`FileHandle::register_borrowed`].
///
/// It lends only references, so that the handle cannot outlive the descriptor.
#[derive(Debug)]
pub struct BorrowedHandle<'fd> {
    handle: FileHandle,
    descriptor: PhantomData<BorrowedFd<'fd>>,
}

impl Deref for BorrowedHandle<'_> {
    type Target = FileHandle;

    fn deref(&self) -> &FileHandle {
        &self.handle
    }
}

fn explain(error: Error, file: &File, driver: &Driver) -> Error {
    let error = error.about(file);
    let descriptor = match file {
        File::Descriptor(descriptor) => system::lend(descriptor),
        // SAFETY: open as long as it is borrowed, which the caller of `register_borrowed` does.
        File::Borrowed(descriptor) => unsafe { system::borrow(*descriptor) },
        File::Userspace(_) => return error,
    };
    match (error.op_error(), FileProperties::of(descriptor)) {
        (Some(code), Ok(properties)) => error.advise(properties.explain(code, driver.library().version())),
        _ => error,
    }
}
