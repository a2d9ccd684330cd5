//! Registered buffers.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::{DerefMut, RangeBounds};
use std::process::abort;
use std::{fmt, ptr, slice};

use cuda_rt_sys::runtime::{cudaMemoryType, cudaPointerAttributes};
use cufile_sys::{CU_FILE_RDMA_REGISTER, CU_FILE_RDMA_RELAXED_ORDERING};

use crate::cuda::{Cuda, MappedBuffer};
use crate::driver::Driver;
use crate::error::{Error, OpError, Result, check, check_driver, check_runtime};
use crate::failed::Failed;
use crate::memory::{IoBuf, IoBufMut, Location, filled};
use crate::slice::{BufSlice, BufSliceMut};

bitflags::bitflags! {
    /// Flags for the registration of a buffer.
    ///
    /// Names elsewhere: `CU_FILE_BUF_REGISTER_FLAGS_NONE` (C). Some wrappers of cuFile document
    /// `CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY` and `CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY`, which no `cufile.h` from
    /// 1.11 to 1.20 has.
    #[doc(alias = "CU_FILE_BUF_REGISTER_FLAGS_NONE")]
    #[doc(alias = "CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY")]
    #[doc(alias = "CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY")]
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct RegisterFlags: i32 {
        /// For user-space RDMA transfers (`CU_FILE_RDMA_REGISTER`).
        #[doc(alias = "CU_FILE_RDMA_REGISTER")]
        const RDMA_REGISTER = CU_FILE_RDMA_REGISTER as i32;
        /// RDMA writes may arrive in any order (`CU_FILE_RDMA_RELAXED_ORDERING`).
        #[doc(alias = "CU_FILE_RDMA_RELAXED_ORDERING")]
        const RDMA_RELAXED_ORDERING = CU_FILE_RDMA_RELAXED_ORDERING as i32;
    }
}

/// Memory registered with cuFile, which the direct paths need not pin again for each transfer.
///
/// It owns the buffer and a reference to the driver. It deregisters before the buffer is freed or the driver closes,
/// because freeing registered memory can deadlock with nvidia-fs. Device, mapped, pinned and other host memory can be registered; managed memory
/// cannot. One registration may be inside another, unless both start at the same address.
///
/// # When to register
///
/// Transfers work without registration: libcufile then moves the bytes through a bounce buffer in GPU memory.
///
/// | buffer | registration |
/// |---|---|
/// | reused for many aligned transfers, for example to stream a file | once, for the whole buffer |
/// | filled once, for example with a model | none: it costs more than the copy that it saves |
/// | shared by threads, each with its part | once, for the whole buffer; its [parts](Self::slice_mut) use it |
/// | for transfers that are mostly [unaligned](#unaligned-transfers) | none: they pass through a bounce buffer anyway |
/// | on a GPU whose BAR 1 is smaller than its memory | none, or small buffers: registrations of all processes share it |
///
/// The examples `pattern_1_register_each_part`, `pattern_2_register_whole` and `pattern_3_unregistered` measure
/// the choices.
///
/// # Unaligned transfers
///
/// A transfer is unaligned if one of these is no multiple of 4 KiB: the offset in the file, the length, the address of
/// the buffer, or the offset into it. libcufile then uses its bounce buffers, with registered memory too. A write reads
/// the blocks at its ends, changes them and writes them back. That is not atomic, so no other thread may write to the
/// same blocks at the same time. If libcufile cannot allocate the bounce buffers, the transfer fails, unless
/// `allow_compat_mode` in `cufile.json` permits POSIX calls.
///
/// # Host memory
///
/// With nvidia-fs, a registered buffer also takes as much host memory, up to the largest direct transfer
/// ([`Param::MAX_DIRECT_IO_SIZE`](crate::params::Param::MAX_DIRECT_IO_SIZE), 16 MiB by default). 256 threads that
/// each register 1 MiB take 256 MiB, which `gpufile check` shows as shadow buffers. A smaller limit saves this
/// memory, at the cost of more calls.
///
/// # Use
///
/// [`Driver::with_registered`] and [`Driver::with_registered_mut`] register a borrow while a closure runs.
/// [`Cuda::copy`] and [`Cuda::fill`] copy and fill the memory.
///
/// It is itself an [`IoBuf`], and so are its [parts](Self::slice_mut). Parts use the registration too, and many
/// threads may use them at once:
///
/// ```no_run
/// use std::thread;
///
/// use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};
///
/// const PART: usize = 16 << 20;
///
/// let driver = Driver::open()?;
/// let file = FileHandle::register(&driver, std::fs::File::open("data.bin")?)?;
/// let memory = driver.cuda().device(0)?.alloc(8 * PART)?;
/// let mut buffer = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
/// thread::scope(|threads| {
///     for (index, mut part) in buffer.slice_mut(..).chunks(PART).enumerate() {
///         let file = &file;
///         threads.spawn(move || file.read_at(&mut part, (index * PART) as u64));
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Borrowed memory cannot be registered this way, because a program that forgets the registration (`mem::forget`)
/// could free registered memory:
///
/// ```compile_fail,E0597
/// # use cufile::{Driver, RegisterFlags, RegisteredBuffer};
/// # let driver = Driver::open()?;
/// let memory = driver.cuda().device(0)?.alloc(4096)?;
/// std::mem::forget(RegisteredBuffer::register(&driver, &memory, RegisterFlags::empty())?);
/// drop(memory);
/// # Ok::<(), cufile::Error>(())
/// ```
///
/// A part does not outlive the registration:
///
/// ```compile_fail,E0505
/// # use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};
/// # let driver = Driver::open()?;
/// # let file = FileHandle::register(&driver, std::fs::File::open("data.bin")?)?;
/// # let memory = driver.cuda().device(0)?.alloc(4096)?;
/// let mut buffer = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
/// let mut part = buffer.slice_mut(..512);
/// let memory = buffer.deregister();
/// file.read_at(&mut part, 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A file cannot be read into a part while the same bytes can be used otherwise:
///
/// ```compile_fail,E0502
/// # use cufile::{Driver, FileHandle, RegisterFlags, RegisteredBuffer};
/// # let driver = Driver::open()?;
/// # let file = FileHandle::register(&driver, std::fs::File::open("data.bin")?)?;
/// # let memory = driver.cuda().device(0)?.alloc(4096)?;
/// let mut buffer = RegisteredBuffer::register(&driver, memory, RegisterFlags::empty())?;
/// let shared = buffer.slice(..);
/// file.read_at(&mut buffer.slice_mut(..512), 0)?;
/// file.write_at(&shared, 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// If cuFile refuses to deregister the buffer, dropping leaks it, still registered. `mem::forget` also leaves it
/// registered, and the driver open.
pub struct RegisteredBuffer<B: IoBuf> {
    buffer: ManuallyDrop<B>,
    registered_bytes: usize,
    /// True if the buffer is a borrow, which cannot be leaked.
    is_borrowed: bool,
    driver: Driver,
}

impl<B: IoBuf + 'static> RegisteredBuffer<B> {
    /// Registers all of `buffer` (`cuFileBufRegister`).
    ///
    /// Names elsewhere: `buf_register` (Python); `buffer_register` (KvikIO, kvik-rs); `memory_register` (KvikIO).
    ///
    /// # Errors
    /// cuFile's code, with the kind of memory: `MEMORY_ALREADY_REGISTERED` if a registration starts at the same
    /// address, `CUDA_MEMORY_TYPE_INVALID` for managed memory, `CUDA_POINTER_RANGE_ERROR` for more than the
    /// allocation, `INVALID_VALUE` for no bytes. [`Failed`] returns the buffer.
    #[doc(alias = "buf_register")]
    #[doc(alias = "cuFileBufRegister")]
    #[doc(alias = "buffer_register")]
    #[doc(alias = "memory_register")]
    pub fn register(driver: &Driver, buffer: B, flags: RegisterFlags) -> Result<Self, Failed<B>> {
        let registered_bytes = buffer.len_bytes();
        // SAFETY: all of the buffer. It is owned: it stays allocated if the registration is forgotten.
        unsafe { Self::register_bytes(driver, buffer, registered_bytes, flags, false) }
    }
}

impl<B: IoBuf> RegisteredBuffer<B> {
    /// # Safety
    /// So many bytes from the buffer's start must belong to it, though they need not be mapped yet. A
    /// registration of memory that is not owned must have `is_borrowed`, and must be dropped before the borrow ends.
    unsafe fn register_bytes(
        driver: &Driver,
        buffer: B,
        registered_bytes: usize,
        flags: RegisterFlags,
        is_borrowed: bool,
    ) -> Result<Self, Failed<B>> {
        let registered = || {
            driver.check_alive()?;
            let _entered =
                buffer.location().context.map(|context| context.enter(driver.cuda())).transpose()?;
            // SAFETY: the memory stays allocated until it is deregistered, because `RegisteredBuffer` holds it.
            check("cuFileBufRegister", unsafe {
                (driver.library().functions().cuFileBufRegister)(
                    base(&buffer),
                    registered_bytes,
                    flags.bits(),
                )
            })
            .map_err(|error| explain(error, driver.cuda(), &buffer, registered_bytes))
        };
        match registered() {
            Ok(()) => {
                let buffer = ManuallyDrop::new(buffer);
                Ok(Self { buffer, registered_bytes, is_borrowed, driver: driver.clone() })
            }
            Err(error) => Err(Failed::new(error, buffer)),
        }
    }

    /// Returns the buffer. There is no `&mut B`, through which a caller could replace the buffer.
    pub fn get(&self) -> &B {
        &self.buffer
    }

    /// Returns the driver that the buffer is registered with.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the bytes in `range`, from which any number of threads may write to files at once.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> BufSlice<'_> {
        BufSlice::new(self, range)
    }

    /// Deregisters the memory and returns the buffer (`cuFileBufDeregister`).
    ///
    /// Names elsewhere: `buf_deregister` (Python); `buffer_deregister` (KvikIO, kvik-rs); `memory_deregister` (KvikIO).
    ///
    /// # Errors
    /// cuFile's error. [`Failed`] returns the registration.
    #[doc(alias = "buf_deregister")]
    #[doc(alias = "cuFileBufDeregister")]
    #[doc(alias = "buffer_deregister")]
    #[doc(alias = "memory_deregister")]
    pub fn deregister(self) -> Result<B, Failed<Self>> {
        match self.deregister_raw() {
            Ok(()) => {
                let this = ManuallyDrop::new(self);
                // SAFETY: `this` is never dropped, so each field is read out once.
                let (buffer, _driver) = unsafe { (ptr::read(&this.buffer), ptr::read(&this.driver)) };
                Ok(ManuallyDrop::into_inner(buffer))
            }
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    fn deregister_raw(&self) -> Result<()> {
        self.driver.check_alive()?;
        let _entered =
            self.buffer.location().context.map(|context| context.enter(self.driver.cuda())).transpose()?;
        // SAFETY: registered in `register_bytes`; ownership or `&mut` proves that no transfer is in flight.
        check("cuFileBufDeregister", unsafe {
            (self.driver.library().functions().cuFileBufDeregister)(base(&*self.buffer))
        })
    }
}

impl<B: IoBufMut> RegisteredBuffer<B> {
    /// Returns the bytes in `range`, so that a file can be read into them.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as for a slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> BufSliceMut<'_> {
        BufSliceMut::new(self, range)
    }

    /// Returns the bytes of registered host memory.
    pub fn as_mut_slice(&mut self) -> &mut [u8]
    where
        B: DerefMut<Target = [u8]>,
    {
        assert!(self.buffer.location().is_host_accessible, "the host cannot access the memory");
        let len_bytes = self.buffer.len_bytes();
        if len_bytes == 0 {
            return &mut [];
        }
        // SAFETY: initialised bytes that the host can access, to which `&mut self` is the only access. `deref_mut` might put
        // other bytes in the place of the registered ones.
        unsafe { slice::from_raw_parts_mut(self.buffer.as_mut_ptr(), len_bytes) }
    }
}

impl Driver {
    /// Registers borrowed memory while `work` runs (`cuFileBufRegister`, `cuFileBufDeregister`), for writing it to files.
    ///
    /// `work` gets all of the buffer, as a part that uses the registration.
    ///
    /// # Errors
    /// As [`RegisteredBuffer::register`].
    ///
    /// # Aborts
    /// Borrowed memory cannot be leaked: if it stayed registered, freeing it could deadlock with nvidia-fs, and
    /// libcufile would take later memory at its address for registered memory. So the process aborts if libcufile
    /// twice refuses to deregister the memory, or once after a panic of `work`.
    #[doc(alias = "cuFileBufRegister")]
    #[doc(alias = "cuFileBufDeregister")]
    pub fn with_registered<R>(
        &self,
        buffer: &(impl IoBuf + ?Sized),
        flags: RegisterFlags,
        work: impl FnOnce(BufSlice<'_>) -> R,
    ) -> Result<R> {
        let len_bytes = buffer.len_bytes();
        // SAFETY: all of the buffer; `work` cannot keep the registration from its end here.
        let registered = unsafe { RegisteredBuffer::register_bytes(self, buffer, len_bytes, flags, true) }?;
        let result = work(registered.slice(..));
        // Dropping an error tries once more, and does not return if that fails.
        drop(registered.deregister());
        Ok(result)
    }

    /// Registers borrowed memory while `work` runs (`cuFileBufRegister`, `cuFileBufDeregister`), for reading files into it.
    ///
    /// ```no_run
    /// # use cufile::{Driver, FileHandle, RegisterFlags};
    /// # let driver = Driver::open()?;
    /// # let file = FileHandle::register(&driver, std::fs::File::open("data.bin")?)?;
    /// let mut memory = driver.cuda().device(0)?.alloc(1 << 20)?;
    /// let bytes = driver.with_registered_mut(&mut memory, RegisterFlags::empty(), |part| {
    ///     part.chunks(4096).enumerate().try_fold(0, |bytes, (index, mut part)| {
    ///         Ok::<_, cufile::Error>(bytes + file.read_at(&mut part, (index * 4096) as u64)?)
    ///     })
    /// })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The part cannot outlive the registration:
    ///
    /// ```compile_fail
    /// # use cufile::{Driver, RegisterFlags};
    /// # let driver = Driver::open()?;
    /// let mut memory = vec![0; 4096];
    /// let part = driver.with_registered_mut(&mut memory, RegisterFlags::empty(), |part| part)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`with_registered`](Self::with_registered), which also states when the process aborts.
    #[doc(alias = "cuFileBufRegister")]
    #[doc(alias = "cuFileBufDeregister")]
    pub fn with_registered_mut<R>(
        &self,
        buffer: &mut (impl IoBufMut + ?Sized),
        flags: RegisterFlags,
        work: impl FnOnce(BufSliceMut<'_>) -> R,
    ) -> Result<R> {
        let len_bytes = buffer.len_bytes();
        // SAFETY: all of the buffer; `work` cannot keep the registration from its end here.
        let mut registered =
            unsafe { RegisteredBuffer::register_bytes(self, buffer, len_bytes, flags, true) }?;
        let result = work(registered.slice_mut(..));
        // Dropping an error tries once more, and does not return if that fails.
        drop(registered.deregister());
        Ok(result)
    }
}

impl RegisteredBuffer<MappedBuffer> {
    /// Registers the whole reserved range, even where it is not mapped yet (`cuFileBufRegister`). Memory that is
    /// [mapped later](Self::grow) is then already registered.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    #[doc(alias = "cuFileBufRegister")]
    #[allow(clippy::result_large_err, reason = "the error returns the buffer")]
    pub fn register_reserved(
        driver: &Driver,
        buffer: MappedBuffer,
        flags: RegisterFlags,
    ) -> Result<Self, Failed<MappedBuffer>> {
        let reserved_bytes = buffer.reserved_bytes();
        // SAFETY: the reserved range is the buffer's own.
        unsafe { Self::register_bytes(driver, buffer, reserved_bytes, flags, false) }
    }

    /// Maps more of the reserved range, as [`MappedBuffer::grow`] does.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] beyond what was registered, because cuFile refuses transfers there: use
    /// [`register_reserved`](Self::register_reserved). Else as [`MappedBuffer::grow`].
    #[doc(alias = "cuMemMap")]
    pub fn grow(&mut self, additional_bytes: usize) -> Result<()> {
        let room = self.registered_bytes - self.buffer.len_bytes();
        if additional_bytes > room {
            let registered = self.registered_bytes;
            return Err(Error::invalid(
                "grow",
                format!(
                    "{additional_bytes} more bytes, but only {room} of the {registered} registered bytes are left"
                ),
            ));
        }
        self.buffer.grow(additional_bytes)
    }
}

impl<B: IoBuf> Drop for RegisteredBuffer<B> {
    fn drop(&mut self) {
        let kept = match self.deregister_raw() {
            // A forked child does not own the registration.
            Ok(()) | Err(Error::Forked) => None,
            Err(error) => match error.op_error() {
                Some(OpError::MEMORY_NOT_REGISTERED | OpError::DRIVER_NOT_INITIALIZED) => None,
                _ => Some(error),
            },
        };
        match kept {
            // SAFETY: dropped here alone, and not used afterwards.
            None => unsafe { ManuallyDrop::drop(&mut self.buffer) },
            Some(error) if self.is_borrowed => give_up(&error),
            // Memory that is still registered leaks. `deregister` returns the error.
            Some(_) => {}
        }
    }
}

// SAFETY: the buffer inside keeps the promise, and is not replaced. Its address is the one registered.
unsafe impl<B: IoBuf> IoBuf for RegisteredBuffer<B> {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        self.buffer.as_ptr()
    }

    #[inline]
    fn len_bytes(&self) -> usize {
        self.buffer.len_bytes()
    }

    #[inline]
    fn location(&self) -> Location {
        Location { is_registered: true, base_offset: 0, ..self.buffer.location() }
    }
}

// SAFETY: the buffer inside keeps the promise.
unsafe impl<B: IoBufMut> IoBufMut for RegisteredBuffer<B> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.buffer.as_mut_ptr()
    }
}

impl<B: IoBuf> fmt::Debug for RegisteredBuffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredBuffer({} bytes at {:p})", self.len_bytes(), self.as_ptr())
    }
}

#[cold]
fn give_up(error: &Error) -> ! {
    eprintln!("cufile: aborting, because borrowed memory is still registered: {error}");
    abort();
}

fn base(buffer: &impl IoBuf) -> *const c_void {
    buffer.as_ptr().cast()
}

/// Adds to an error the memory that libcufile refused, and the reason if known. The buffer's context must be current.
fn explain(error: Error, cuda: &Cuda, buffer: &impl IoBuf, len_bytes: usize) -> Error {
    let address = base(buffer);
    // Without a context, the query would make one.
    let kind =
        buffer.location().context.map_or(cudaMemoryType::cudaMemoryTypeUnregistered, |_| kind(cuda, address));
    let advice = advice(error.op_error(), kind, len_bytes, || allocated_after(cuda, address));
    let kind = kind_name(kind, buffer.location().is_host_accessible);
    error.about(&format_args!("{len_bytes} bytes of {kind} at {address:p}")).advise(advice)
}

/// Returns advice; `left` returns the number of bytes to the end of the allocation.
fn advice(
    error: Option<OpError>,
    kind: cudaMemoryType,
    len_bytes: usize,
    left: impl FnOnce() -> Option<usize>,
) -> String {
    match error {
        Some(OpError::INVALID_VALUE) if len_bytes == 0 => {
            "the buffer is empty; register at least one byte".to_owned()
        }
        Some(OpError::CUDA_MEMORY_TYPE_INVALID) if kind == cudaMemoryType::cudaMemoryTypeManaged => {
            "cuFile cannot register managed memory; transfer it unregistered, or use device or pinned memory"
                .to_owned()
        }
        Some(OpError::CUDA_POINTER_RANGE_ERROR) => match left() {
            Some(left) if left < len_bytes => format!("the allocation ends after {left} bytes"),
            _ => String::new(),
        },
        Some(OpError::MEMORY_ALREADY_REGISTERED) => {
            "another registration starts at the same address, or ends within this one; share that one"
                .to_owned()
        }
        _ => String::new(),
    }
}

fn kind_name(kind: cudaMemoryType, is_host_accessible: bool) -> &'static str {
    match kind {
        cudaMemoryType::cudaMemoryTypeHost => "pinned host memory",
        cudaMemoryType::cudaMemoryTypeDevice => "device memory",
        cudaMemoryType::cudaMemoryTypeManaged => "managed memory",
        _ if is_host_accessible => "host memory",
        _ => "memory unknown to CUDA",
    }
}

fn kind(cuda: &Cuda, address: *const c_void) -> cudaMemoryType {
    let get = cuda.runtime().cudaPointerGetAttributes;
    // SAFETY: a struct of numbers and pointers; the pointer outlives the call, and CUDA accepts any address.
    let attributes: Result<cudaPointerAttributes> =
        unsafe { filled(|attributes| check_runtime("cudaPointerGetAttributes", get(attributes, address))) };
    attributes.map_or(cudaMemoryType::cudaMemoryTypeUnregistered, |attributes| attributes.type_)
}

fn allocated_after(cuda: &Cuda, address: *const c_void) -> Option<usize> {
    let (mut start, mut len_bytes) = (0, 0);
    let address = address.addr();
    // SAFETY: both outlive the call; CUDA accepts any address.
    check_driver("cuMemGetAddressRange", unsafe {
        (cuda.driver().cuMemGetAddressRange_v2)(&mut start, &mut len_bytes, address as u64)
    })
    .ok()?;
    (start as usize).checked_add(len_bytes)?.checked_sub(address)
}

#[cfg(test)]
mod tests {
    use cudaMemoryType as Kind;

    use super::*;

    #[test]
    fn advice_depends_on_the_error_and_the_memory() {
        let (device, managed) = (Kind::cudaMemoryTypeDevice, Kind::cudaMemoryTypeManaged);
        for (error, kind, len_bytes, left, expected) in [
            (Some(OpError::INVALID_VALUE), device, 0, None, "the buffer is empty"),
            (Some(OpError::INVALID_VALUE), device, 1, None, ""),
            (Some(OpError::CUDA_MEMORY_TYPE_INVALID), managed, 9, None, "cannot register managed memory"),
            (Some(OpError::CUDA_MEMORY_TYPE_INVALID), device, 9, None, ""),
            (Some(OpError::CUDA_POINTER_RANGE_ERROR), device, 9, Some(8), "ends after 8 bytes"),
            (Some(OpError::CUDA_POINTER_RANGE_ERROR), device, 9, Some(9), ""),
            (Some(OpError::CUDA_POINTER_RANGE_ERROR), device, 9, None, ""),
            (Some(OpError::MEMORY_ALREADY_REGISTERED), device, 9, None, "share that one"),
            (Some(OpError::INTERNAL_ERROR), managed, 0, Some(0), ""),
            (None, managed, 0, Some(0), ""),
        ] {
            let found = advice(error, kind, len_bytes, || left);
            assert_eq!(found.is_empty(), expected.is_empty(), "{error:?}: {found}");
            assert!(found.contains(expected), "{error:?}: {found}");
        }
    }

    #[test]
    fn each_kind_of_memory_has_a_name() {
        for (kind, is_host_accessible, expected) in [
            (Kind::cudaMemoryTypeHost, true, "pinned host memory"),
            (Kind::cudaMemoryTypeDevice, false, "device memory"),
            (Kind::cudaMemoryTypeManaged, true, "managed memory"),
            (Kind::cudaMemoryTypeUnregistered, true, "host memory"),
            (Kind::cudaMemoryTypeUnregistered, false, "memory unknown to CUDA"),
        ] {
            assert_eq!(kind_name(kind, is_host_accessible), expected);
        }
    }
}
