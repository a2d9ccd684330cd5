//! File systems in this process, such as RDMA file systems without a kernel module.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::sync::Arc;
use std::{fmt, mem, ptr, slice};

use cufile_sys::{CUfileDescr_t, CUfileFSOps_t, CUfileFileHandleType, cufileRDMAInfo_t, loff_t, sockaddr};

use crate::callback::contained;
use crate::driver::Driver;
use crate::error::Result;
use crate::failed::Failed;
use crate::handle::{File, FileHandle};
use crate::system::set_errno;

/// An open file of a file system in this process (`CUfileFSOps`).
///
/// **Experimental.** NVIDIA's only documentation of the table of functions is its declaration. This module follows
/// it, and was never tested with an RDMA device. Without such a device, cuFile 1.16 to 1.20 register such files,
/// and then fail every transfer (`IO_NOT_SUPPORTED`) without calling a method.
///
/// libcufile calls the methods from any of its threads, several at once. It never sees a panic: a method that panics
/// fails with `EIO`, or states no preference.
///
/// Names elsewhere: `sockaddr_t`, `CUfileFSOps_t`, `CU_FILE_HANDLE_TYPE_USERSPACE_FS` (C); `FSOps` (Python).
pub trait UserspaceFs: Send + Sync + 'static {
    /// Returns the name of the file system's type, as in libcufile's configuration.
    fn fs_type(&self) -> &CStr;

    /// Returns the addresses of the network devices to use; an empty list means any.
    fn rdma_device_list(&self) -> &[sockaddr] {
        &[]
    }

    /// Returns the priority of the network device at `address` for a transfer of this range; `None` is no
    /// preference.
    ///
    /// Use only the address of `buffer`: it may be device memory. `len_bytes` and `file_offset` are in bytes.
    fn rdma_device_priority(
        &self,
        buffer: *const u8,
        len_bytes: usize,
        file_offset: u64,
        address: Option<&sockaddr>,
    ) -> Option<u32> {
        let _ = (buffer, len_bytes, file_offset, address);
        None
    }

    /// Reads up to `len_bytes` bytes from `file_offset` in bytes into `buffer`, and returns their number.
    ///
    /// # Errors
    /// An errno; an error without one becomes `EIO`.
    ///
    /// # Safety
    /// `buffer` must be memory of `len_bytes` bytes that nothing else uses during the call. It may be device
    /// memory, which `rdma` then describes to the network.
    unsafe fn read(
        &self,
        buffer: *mut u8,
        len_bytes: usize,
        file_offset: u64,
        rdma: Option<RdmaInfo<'_>>,
    ) -> io::Result<usize>;

    /// Writes up to `len_bytes` bytes from `buffer` to `file_offset` in bytes, and returns their number.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Safety
    /// `buffer` must be memory of `len_bytes` bytes that nothing writes during the call. It may be device
    /// memory, which `rdma` then describes to the network.
    unsafe fn write(
        &self,
        buffer: *const u8,
        len_bytes: usize,
        file_offset: u64,
        rdma: Option<RdmaInfo<'_>>,
    ) -> io::Result<usize>;
}

/// The data that a peer on the network needs to access the buffer of a transfer (`cufileRDMAInfo_t`).
///
/// Names elsewhere: `cufileRDMAInfo`, `CU_FILE_RDMA_SUCCESS`, `CU_FILE_RDMA_ERR_BASE`, `CU_FILE_RDMA_RESET_TOKEN`,
/// `CU_FILE_RDMA_RESET_TOKEN_FAILED` (C).
#[derive(Clone, Copy)]
pub struct RdmaInfo<'a>(&'a cufileRDMAInfo_t);

impl RdmaInfo<'_> {
    /// Returns the version of the format of the description.
    pub fn version(&self) -> i32 {
        self.0.version
    }

    /// Returns libcufile's description.
    pub fn description(&self) -> &[u8] {
        match usize::try_from(self.0.desc_len) {
            // SAFETY: libcufile's structure holds this many bytes, as long as the transfer lasts.
            Ok(len) if !self.0.desc_str.is_null() => unsafe {
                slice::from_raw_parts(self.0.desc_str.cast(), len)
            },
            _ => &[],
        }
    }
}

impl fmt::Debug for RdmaInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RdmaInfo(version {}, {} bytes)", self.version(), self.description().len())
    }
}

impl FileHandle {
    /// Registers an open file of a userspace file system (`cuFileHandleRegister` with
    /// `CU_FILE_HANDLE_TYPE_USERSPACE_FS`). **Experimental**; see [`UserspaceFs`].
    ///
    /// The handle owns `file`, and drops it once it is deregistered.
    ///
    /// Names elsewhere: `CUfileFSOps` (C); `handle_register` (Python).
    ///
    /// # Errors
    /// cuFile's code: not every version and machine accepts such files. [`Failed`] returns the file.
    ///
    /// # Safety
    /// The loaded libcufile must call the file's functions only while the file is registered, with its own handle and
    /// valid pointers. It must neither change nor free the strings and addresses that they return. NVIDIA promises
    /// none of this.
    #[doc(alias = "cuFileHandleRegister")]
    #[doc(alias = "handle_register")]
    #[doc(alias = "CUfileFSOps")]
    pub unsafe fn register_userspace<F: UserspaceFs>(driver: &Driver, file: F) -> Result<Self, Failed<F>> {
        let file = Arc::new(Registered { operations: operations_of(&file), file });
        // SAFETY: all-zero is a valid descriptor: null pointers and integers.
        let mut descriptor: CUfileDescr_t = unsafe { mem::zeroed() };
        descriptor.type_ = CUfileFileHandleType::CU_FILE_HANDLE_TYPE_USERSPACE_FS;
        descriptor.handle.handle = ptr::from_ref(&file.file).cast_mut().cast();
        descriptor.fs_ops = &raw const file.operations;
        // SAFETY: both pointers are into the allocation of `file`, which `register_as` takes too and which
        // never moves.
        let registered = unsafe { Self::register_as(driver, descriptor, File::Userspace(file)) };
        registered.map_err(|failed| failed.map(into_file))
    }
}

struct Registered<F> {
    operations: CUfileFSOps_t,
    file: F,
}

fn into_file<F: UserspaceFs>(file: File) -> F {
    let File::Userspace(file) = file else { unreachable!("no descriptor was registered") };
    let file = file.downcast::<Registered<F>>().expect("the type that was registered");
    Arc::into_inner(file).expect("no other reference").file
}

fn operations_of<F: UserspaceFs>(_: &F) -> CUfileFSOps_t {
    CUfileFSOps_t {
        fs_type: Some(fs_type::<F>),
        getRDMADeviceList: Some(rdma_device_list::<F>),
        getRDMADevicePriority: Some(rdma_device_priority::<F>),
        read: Some(read::<F>),
        write: Some(write::<F>),
    }
}

/// # Safety
/// `handle` must be the one that [`FileHandle::register_userspace`] passed to libcufile, and still registered.
unsafe fn call<'a, F: UserspaceFs, R>(
    handle: *const c_void,
    failed: R,
    method: impl FnOnce(&'a F) -> R,
) -> R {
    // SAFETY: the caller's promise; only shared references exist.
    let file = unsafe { &*handle.cast::<F>() };
    contained(|| method(file)).unwrap_or(failed)
}

unsafe extern "C" fn fs_type<F: UserspaceFs>(handle: *const c_void) -> *const c_char {
    // SAFETY: called by libcufile while the file is registered.
    unsafe { call(handle, ptr::null(), |file: &F| file.fs_type().as_ptr()) }
}

unsafe extern "C" fn rdma_device_list<F: UserspaceFs>(
    handle: *const c_void,
    addresses: *mut *mut sockaddr,
) -> c_int {
    // SAFETY: called by libcufile while the file is registered.
    let list = unsafe { call(handle, [].as_slice(), |file: &F| file.rdma_device_list()) };
    if !addresses.is_null() {
        let first = if list.is_empty() { ptr::null_mut() } else { list.as_ptr().cast_mut() };
        // SAFETY: libcufile passes a place for the answer.
        unsafe { addresses.write(first) };
    }
    c_int::try_from(list.len()).unwrap_or(c_int::MAX)
}

unsafe extern "C" fn rdma_device_priority<F: UserspaceFs>(
    handle: *const c_void,
    buffer: *mut c_char,
    len_bytes: usize,
    file_offset: loff_t,
    address: *const sockaddr,
) -> c_int {
    let Ok(file_offset) = u64::try_from(file_offset) else { return -1 };
    // SAFETY: called by libcufile while the file is registered; null or an address that outlives the call.
    let priority = unsafe {
        let address = address.as_ref();
        call(handle, None, |file: &F| {
            file.rdma_device_priority(buffer.cast(), len_bytes, file_offset, address)
        })
    };
    priority.and_then(|priority| c_int::try_from(priority).ok()).unwrap_or(-1)
}

unsafe extern "C" fn read<F: UserspaceFs>(
    handle: *const c_void,
    buffer: *mut c_char,
    len_bytes: usize,
    file_offset: loff_t,
    rdma: *const cufileRDMAInfo_t,
) -> isize {
    // SAFETY: called by libcufile while the file is registered, with the buffer of a transfer. `rdma` is null
    // or a description that outlives the call.
    let done = unsafe {
        let rdma = rdma.as_ref().map(RdmaInfo);
        call(handle, panicked(), |file: &F| file.read(buffer.cast(), len_bytes, offset(file_offset)?, rdma))
    };
    as_c(done, len_bytes)
}

unsafe extern "C" fn write<F: UserspaceFs>(
    handle: *const c_void,
    buffer: *const c_char,
    len_bytes: usize,
    file_offset: loff_t,
    rdma: *const cufileRDMAInfo_t,
) -> isize {
    // SAFETY: as for `read`.
    let done = unsafe {
        let rdma = rdma.as_ref().map(RdmaInfo);
        call(handle, panicked(), |file: &F| file.write(buffer.cast(), len_bytes, offset(file_offset)?, rdma))
    };
    as_c(done, len_bytes)
}

fn panicked() -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(libc::EIO))
}

fn offset(file_offset: loff_t) -> io::Result<u64> {
    u64::try_from(file_offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Returns the count, or the negative errno. Also leaves it in `errno`, for a caller that expects a system call's −1.
fn as_c(done: io::Result<usize>, len_bytes: usize) -> isize {
    let errno = match done {
        // A larger count would make libcufile assume bytes that do not exist.
        Ok(bytes) if bytes <= len_bytes => return bytes as isize,
        Ok(_) => libc::EIO,
        Err(error) => error.raw_os_error().filter(|errno| *errno > 0).unwrap_or(libc::EIO),
    };
    set_errno(errno);
    -(errno as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken;

    impl UserspaceFs for Broken {
        fn fs_type(&self) -> &CStr {
            panic!("fs_type")
        }

        fn rdma_device_list(&self) -> &[sockaddr] {
            panic!("rdma_device_list")
        }

        fn rdma_device_priority(&self, _: *const u8, _: usize, _: u64, _: Option<&sockaddr>) -> Option<u32> {
            panic!("rdma_device_priority")
        }

        unsafe fn read(&self, _: *mut u8, _: usize, _: u64, _: Option<RdmaInfo<'_>>) -> io::Result<usize> {
            panic!("read")
        }

        unsafe fn write(
            &self,
            _: *const u8,
            len: usize,
            at: u64,
            _: Option<RdmaInfo<'_>>,
        ) -> io::Result<usize> {
            match at {
                0 => Ok(len + 1),
                1 => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
                3 => Err(io::Error::from_raw_os_error(0)),
                4 => Err(io::Error::from_raw_os_error(-5)),
                _ => Err(io::Error::other("no errno")),
            }
        }
    }

    #[test]
    fn panics_become_errors_or_no_preference_in_c() {
        let handle = ptr::from_ref(&Broken).cast();
        let operations = operations_of(&Broken);
        let mut addresses = ptr::dangling_mut();
        // SAFETY: the handle is a live `Broken`, and null may be passed for the rest.
        unsafe {
            assert!(operations.fs_type.unwrap()(handle).is_null());
            assert_eq!(operations.getRDMADeviceList.unwrap()(handle, &mut addresses), 0);
            assert!(addresses.is_null());
            let priority = operations.getRDMADevicePriority.unwrap();
            assert_eq!(priority(handle, ptr::null_mut(), 0, 0, ptr::null()), -1);
            let read = operations.read.unwrap();
            assert_eq!(read(handle, ptr::null_mut(), 1, 0, ptr::null()), -(libc::EIO as isize));
        }
    }

    #[test]
    fn errors_become_negative_errno_and_excess_counts_become_errors() {
        let handle = ptr::from_ref(&Broken).cast();
        let write = operations_of(&Broken).write.unwrap();
        for (offset, errno) in [
            (0, libc::EIO),
            (1, libc::ENOSPC),
            (2, libc::EIO),
            (3, libc::EIO),
            (4, libc::EIO),
            (-1, libc::EINVAL),
        ] {
            // SAFETY: the handle is a live `Broken`, which accesses no buffer.
            let done = unsafe { write(handle, ptr::null(), 10, offset, ptr::null()) };
            assert_eq!(done, -(errno as isize), "{offset}");
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(errno));
        }
    }

    struct Plain;

    impl UserspaceFs for Plain {
        fn fs_type(&self) -> &CStr {
            c"plain"
        }

        unsafe fn read(&self, _: *mut u8, _: usize, _: u64, _: Option<RdmaInfo<'_>>) -> io::Result<usize> {
            Ok(0)
        }

        unsafe fn write(&self, _: *const u8, _: usize, _: u64, _: Option<RdmaInfo<'_>>) -> io::Result<usize> {
            Ok(0)
        }
    }

    #[test]
    fn default_implementation_prefers_no_network_device() {
        assert!(Plain.rdma_device_list().is_empty());
        assert_eq!(Plain.rdma_device_priority(ptr::null(), 1, 0, None), None);
    }

    #[test]
    fn descriptions_have_their_c_length() {
        let text = c"peer";
        for (desc_str, desc_len, expected) in [
            (text.as_ptr(), 4, &b"peer"[..]),
            (text.as_ptr(), 0, b""),
            (text.as_ptr(), -1, b""),
            (ptr::null(), 4, b""),
        ] {
            let info = cufileRDMAInfo_t { version: 7, desc_len, desc_str };
            assert_eq!((RdmaInfo(&info).version(), RdmaInfo(&info).description()), (7, expected));
        }
    }
}
