//! Registered files and registered buffers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::{Arc, Mutex};

use cufile_sys::{CUfileDescr_t, CUfileError_t, CUfileFileHandleType, CUfileHandle_t};

use super::{driver, stats};
use crate::control::{self, lock};
use crate::memory::{self, Kind};
use crate::status::{self, INVALID, failed};
use crate::{c, stream, trace};

const SYSFS_MAGIC: i64 = 0x6265_6572;

pub(super) struct Handle {
    fd: RawFd,
    access: c_int,
    /// The file without `O_DIRECT`, because libcufile bounces unaligned transfers and any transfer here may be
    /// unaligned.
    buffered: Option<File>,
    is_userspace: bool,
}

impl Handle {
    pub(super) fn descriptor(&self) -> RawFd {
        self.buffered.as_ref().map_or(self.fd, AsRawFd::as_raw_fd)
    }

    /// Returns whether the descriptor has `O_DIRECT`, with which libcufile writes whole blocks.
    pub(super) fn is_direct(&self) -> bool {
        self.buffered.is_some()
    }

    /// Returns whether the file moves no bytes without RDMA.
    pub(super) fn is_userspace(&self) -> bool {
        self.is_userspace
    }

    pub(super) fn allows(&self, write: bool) -> bool {
        self.access == libc::O_RDWR || self.access == if write { libc::O_WRONLY } else { libc::O_RDONLY }
    }
}

static HANDLES: Mutex<Option<HashMap<usize, Arc<Handle>>>> = Mutex::new(None);
/// Lengths by address.
static BUFFERS: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

pub(crate) fn live_handles() -> usize {
    lock(&HANDLES).get_or_insert_default().len()
}

pub(crate) fn live_direct_handles() -> usize {
    lock(&HANDLES).get_or_insert_default().values().filter(|handle| handle.is_direct()).count()
}

pub(crate) fn live_buffers() -> usize {
    lock(&BUFFERS).get_or_insert_default().len()
}

pub(super) fn registered_length(base: usize) -> Option<usize> {
    lock(&BUFFERS).get_or_insert_default().get(&base).copied()
}

pub(super) fn find(handle: CUfileHandle_t) -> Option<Arc<Handle>> {
    lock(&HANDLES).get_or_insert_default().get(&handle.addr()).cloned()
}

fn register(descr: CUfileDescr_t) -> Result<usize, CUfileError_t> {
    if is_userspace(descr) && !descr.fs_ops.is_null() && control::version() >= 1160 {
        let handle = stream::fresh_handle();
        let file = Handle { fd: -1, access: libc::O_RDWR, buffered: None, is_userspace: true };
        lock(&HANDLES).get_or_insert_default().insert(handle, Arc::new(file));
        return Ok(handle);
    }
    if descr.type_ != CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD {
        return Err(INVALID);
    }
    // SAFETY: the type says that the union holds a descriptor.
    let fd = unsafe { descr.handle.fd };
    // SAFETY: the call looks at the descriptor only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(INVALID);
    }
    // SAFETY: zeros are a valid `stat`, and it outlives the call.
    let file = unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut file) != 0 {
            return Err(INVALID);
        }
        file
    };
    if !matches!(file.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK) {
        return Err(failed(5018));
    }
    if flags & (libc::O_APPEND | libc::O_NOFOLLOW | libc::O_NONBLOCK) != 0 {
        return Err(failed(5019));
    }
    if is_of_the_kernel(fd) {
        return Err(failed(if control::version() < 1150 { 5030 } else { 5027 }));
    }
    let access = flags & libc::O_ACCMODE;
    let mut handles = lock(&HANDLES);
    let handles = handles.get_or_insert_default();
    if handles.values().any(|handle| handle.fd == fd) {
        return Err(failed(5028));
    }
    let buffered = (flags & libc::O_DIRECT != 0).then(|| reopen(fd, access)).transpose();
    let buffered = buffered.map_err(|_| failed(5031))?;
    let handle = stream::fresh_handle();
    handles.insert(handle, Arc::new(Handle { fd, access, buffered, is_userspace: false }));
    Ok(handle)
}

fn is_userspace(descr: CUfileDescr_t) -> bool {
    descr.type_ == CUfileFileHandleType::CU_FILE_HANDLE_TYPE_USERSPACE_FS
}

/// Returns true for a file that is on no disk that libcufile could look for.
fn is_of_the_kernel(fd: RawFd) -> bool {
    // SAFETY: zeros are a valid `statfs`, and it outlives the call.
    let system = unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        libc::fstatfs(fd, &mut system);
        system
    };
    matches!(system.f_type, libc::PROC_SUPER_MAGIC | SYSFS_MAGIC)
}

/// Opens always for reading too: an unaligned write reads its first and last block.
fn reopen(fd: RawFd, access: c_int) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(access != libc::O_RDONLY)
        .custom_flags(libc::O_CLOEXEC)
        .open(format!("/proc/self/fd/{fd}"))
}

fn trace_file(descr: CUfileDescr_t, handle: Option<usize>) {
    trace::call("cuFileHandleRegister", |names| {
        let handle = handle.map_or("failed".to_owned(), |handle| names.of("file", handle));
        if is_userspace(descr) {
            return format!("{handle} userspace");
        }
        // SAFETY: the call looks at the descriptor only, and fails for values of other types.
        let flags = unsafe { libc::fcntl(descr.handle.fd, libc::F_GETFL) };
        let access = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => "O_RDONLY",
            libc::O_WRONLY => "O_WRONLY",
            _ => "O_RDWR",
        };
        let direct = if flags & libc::O_DIRECT == 0 { "" } else { " O_DIRECT" };
        format!("{handle} {access}{direct}")
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileHandleRegister(
    fh: *mut CUfileHandle_t,
    descr: *mut CUfileDescr_t,
) -> CUfileError_t {
    status::call("cuFileHandleRegister", || {
        driver::open_for_use()?;
        driver::need_gpu()?;
        let descr = c::get(descr).filter(|_| !fh.is_null()).ok_or(INVALID)?;
        let registered = register(descr);
        trace_file(descr, registered.ok());
        stats::count(|basic| &mut basic.hdl_register_ops, registered.is_ok());
        c::put(fh, ptr::without_provenance_mut(registered?)).ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileHandleDeregister(fh: CUfileHandle_t) {
    if control::forked() {
        return;
    }
    trace::call("cuFileHandleDeregister", |names| {
        let name = names.of("file", fh.addr());
        names.forget("file", fh.addr());
        name
    });
    control::enter("cuFileHandleDeregister").sleep();
    let removed = lock(&HANDLES).get_or_insert_default().remove(&fh.addr());
    stats::count(|basic| &mut basic.hdl_deregister_ops, removed.is_some());
}

fn register_buffer(base: usize, length: usize) -> Result<(), CUfileError_t> {
    if base == 0 || length == 0 {
        return Err(INVALID);
    }
    if memory::find(base).is_some_and(|found| found.kind == Kind::Managed) {
        return Err(failed(5013));
    }
    memory::registrable(base, length).map_err(|_| failed(5014))?;
    match lock(&BUFFERS).get_or_insert_default().entry(base) {
        Entry::Occupied(_) => return Err(failed(5023)),
        Entry::Vacant(entry) => entry.insert(length),
    };
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBufRegister(
    bufPtr_base: *const c_void,
    length: usize,
    flags: c_int,
) -> CUfileError_t {
    trace::call("cuFileBufRegister", |names| {
        format!("{} length={length} flags={flags}", names.memory(bufPtr_base.addr()))
    });
    status::call("cuFileBufRegister", || {
        driver::open_for_use()?;
        driver::need_gpu()?;
        let registered = register_buffer(bufPtr_base.addr(), length);
        stats::count(|basic| &mut basic.buf_register_ops, registered.is_ok());
        registered
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBufDeregister(bufPtr_base: *const c_void) -> CUfileError_t {
    trace::call("cuFileBufDeregister", |names| {
        let name = names.memory(bufPtr_base.addr());
        names.forget("host", bufPtr_base.addr());
        name
    });
    status::call("cuFileBufDeregister", || {
        let removed = lock(&BUFFERS).get_or_insert_default().remove(&bufPtr_base.addr()).is_some();
        stats::count(|basic| &mut basic.buf_deregister_ops, removed);
        if removed { Ok(()) } else { Err(failed(5024)) }
    })
}

declared! {
    cufile_sys::Functions:
    cuFileHandleRegister cuFileHandleDeregister cuFileBufRegister cuFileBufDeregister
}
