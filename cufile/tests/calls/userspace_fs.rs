//! Tests of cufile's user-space file systems, on a libcufile that only calls their functions.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::{ptr, slice};

use cufile::{BufSliceMut, Driver, Error, ErrorKind, FileHandle, OpError, RdmaInfo, UserspaceFs};
use cufile_sys::{
    CUfileDescr_t, CUfileError_t, CUfileFSOps_t, CUfileFileHandleType, CUfileHandle_t, CUfileOpError,
    CUresult, Functions, cufileRDMAInfo_t, off_t, sockaddr_t,
};
use testkit::Emulator;
use testkit::bed::open_with;

/// The files that are registered: the handle and the functions, as addresses.
static FILES: Mutex<Option<HashMap<usize, (usize, usize)>>> = Mutex::new(None);

fn status(code: u32) -> CUfileError_t {
    CUfileError_t { err: CUfileOpError::from_raw(code), cu_err: CUresult::CUDA_SUCCESS }
}

unsafe extern "C" fn register(handle: *mut CUfileHandle_t, descriptor: *mut CUfileDescr_t) -> CUfileError_t {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    // SAFETY: `cufile` passes a descriptor.
    let descriptor = unsafe { *descriptor };
    assert_eq!(descriptor.type_, CUfileFileHandleType::CU_FILE_HANDLE_TYPE_USERSPACE_FS);
    // SAFETY: the type of the descriptor says that the union has a handle.
    let file = unsafe { descriptor.handle.handle };
    // SAFETY: the table is alive.
    let name = unsafe { CStr::from_ptr((*descriptor.fs_ops).fs_type.unwrap()(file)) };
    if name == c"refused" {
        return status(5027);
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let places = (file.expose_provenance(), descriptor.fs_ops.expose_provenance());
    FILES.lock().unwrap().get_or_insert_default().insert(number, places);
    // SAFETY: `cufile` passes a place for the handle.
    unsafe { handle.write(ptr::without_provenance_mut(number)) };
    status(0)
}

unsafe extern "C" fn deregister(handle: CUfileHandle_t) {
    let (file, functions) = places(handle);
    // Both must still be alive.
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr((*functions).fs_type.unwrap()(file)) };
    assert_eq!(name, c"memory");
    FILES.lock().unwrap().get_or_insert_default().remove(&handle.addr());
}

fn places(handle: CUfileHandle_t) -> (*const c_void, *const CUfileFSOps_t) {
    let files = FILES.lock().unwrap();
    let (file, functions) = files.as_ref().unwrap()[&handle.addr()];
    (ptr::with_exposed_provenance(file), ptr::with_exposed_provenance(functions))
}

fn description() -> cufileRDMAInfo_t {
    cufileRDMAInfo_t { version: 3, desc_len: 4, desc_str: c"key!".as_ptr() }
}

unsafe extern "C" fn read(
    handle: CUfileHandle_t,
    base: *mut c_void,
    size: usize,
    file_offset: off_t,
    buffer_offset: off_t,
) -> isize {
    let (file, functions) = places(handle);
    let buffer = base.wrapping_byte_offset(buffer_offset as isize).cast();
    // SAFETY: the file is registered, and the buffer is the caller's.
    unsafe { (*functions).read.unwrap()(file, buffer, size, file_offset, &description()) }
}

unsafe extern "C" fn write(
    handle: CUfileHandle_t,
    base: *const c_void,
    size: usize,
    file_offset: off_t,
    buffer_offset: off_t,
) -> isize {
    let (file, functions) = places(handle);
    let buffer = base.wrapping_byte_offset(buffer_offset as isize).cast();
    // SAFETY: as above.
    unsafe { (*functions).write.unwrap()(file, buffer, size, file_offset, ptr::null()) }
}

fn open() -> (Emulator, Driver) {
    let emulator = Emulator::start();
    let replace = |functions: &mut Functions| {
        functions.cuFileHandleRegister = register;
        functions.cuFileHandleDeregister = deregister;
        functions.cuFileRead = read;
        functions.cuFileWrite = write;
    };
    // SAFETY: these functions keep the contract of the ones that they replace.
    let driver = unsafe { open_with(&emulator, replace) };
    (emulator, driver)
}

struct Memory {
    name: &'static CStr,
    bytes: Mutex<Vec<u8>>,
    alive: Arc<()>,
    addresses: Vec<sockaddr_t>,
}

fn memory(bytes: &[u8]) -> (Memory, Arc<()>) {
    let alive = Arc::new(());
    let address = sockaddr_t { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: [7; 14] };
    let bytes = Mutex::new(bytes.to_vec());
    (Memory { name: c"memory", bytes, alive: alive.clone(), addresses: vec![address; 2] }, alive)
}

impl UserspaceFs for Memory {
    fn fs_type(&self) -> &CStr {
        assert!(Arc::strong_count(&self.alive) > 0);
        self.name
    }

    fn rdma_device_list(&self) -> &[sockaddr_t] {
        &self.addresses
    }

    fn rdma_device_priority(
        &self,
        _: *const u8,
        len_bytes: usize,
        file_offset: u64,
        address: Option<&sockaddr_t>,
    ) -> Option<u32> {
        Some(len_bytes as u32 + file_offset as u32 + address?.sa_data[0] as u32)
    }

    unsafe fn read(
        &self,
        buffer: *mut u8,
        len_bytes: usize,
        file_offset: u64,
        rdma: Option<RdmaInfo<'_>>,
    ) -> io::Result<usize> {
        let rdma = rdma.expect("this libcufile always gives one");
        assert_eq!((rdma.version(), rdma.description()), (3, &b"key!"[..]));
        let bytes = self.bytes.lock().unwrap();
        let rest = bytes.get(file_offset as usize..).ok_or(io::Error::from_raw_os_error(libc::ESPIPE))?;
        let len = rest.len().min(len_bytes);
        // SAFETY: the caller's buffer is host memory in this test, and long enough.
        unsafe { ptr::copy_nonoverlapping(rest.as_ptr(), buffer, len) };
        Ok(len)
    }

    unsafe fn write(
        &self,
        buffer: *const u8,
        len_bytes: usize,
        file_offset: u64,
        rdma: Option<RdmaInfo<'_>>,
    ) -> io::Result<usize> {
        assert!(rdma.is_none() && file_offset < 1000, "a panic in a callback");
        let mut bytes = self.bytes.lock().unwrap();
        let end = file_offset as usize + len_bytes;
        let len = bytes.len().max(end);
        bytes.resize(len, 0);
        // SAFETY: as in `read`.
        bytes[file_offset as usize..end].copy_from_slice(unsafe { slice::from_raw_parts(buffer, len_bytes) });
        Ok(len_bytes)
    }
}

fn registered(driver: &Driver, file: Memory) -> cufile::Result<FileHandle> {
    // SAFETY: the library of this test keeps the contract of the functions.
    unsafe { Ok(FileHandle::register_userspace(driver, file)?) }
}

#[test]
fn reads_and_writes_go_to_the_implementation() {
    let (_emulator, driver) = open();
    let (file, _) = memory(b"0123456789");
    let file = registered(&driver, file).unwrap();
    let mut buffer = vec![0u8; 8];
    assert_eq!(file.read_at(&mut BufSliceMut::new(&mut buffer, 2..8), 5).unwrap(), 5);
    assert_eq!(buffer, *b"\0\x0056789\0");
    assert_eq!(file.write_at(b"abc".as_slice(), 8).unwrap(), 3);
    assert_eq!(file.read_at(&mut buffer, 4).unwrap(), 7);
    assert_eq!(buffer[..7], *b"4567abc");
}

#[test]
fn implementation_errors_and_panics_reach_callers_as_errno() {
    let (_emulator, driver) = open();
    let (file, _) = memory(b"0123456789");
    let file = registered(&driver, file).unwrap();
    let errno = |result: cufile::Result<usize>| match result.unwrap_err() {
        Error::Io { source, .. } => source.raw_os_error(),
        other => panic!("{other}"),
    };
    assert_eq!(errno(file.read_at(&mut vec![0u8; 1], 11)), Some(libc::ESPIPE));
    assert_eq!(errno(file.write_at(&vec![0u8; 1], 5000)), Some(libc::EIO));
    assert_eq!(file.read_at(&mut vec![0u8; 1], 0).unwrap(), 1);
}

#[test]
fn libcufile_receives_network_devices_and_priorities() {
    let (_emulator, driver) = open();
    let (file, _) = memory(b"");
    let file = registered(&driver, file).unwrap();
    let (handle, functions) = places(file.as_raw());
    let mut list = ptr::null_mut();
    // SAFETY: the file is registered, and the list has as many addresses as the call says.
    unsafe {
        assert_eq!((*functions).getRDMADeviceList.unwrap()(handle, &mut list), 2);
        assert_eq!((*list.add(1)).sa_data, [7; 14]);
        let priority = (*functions).getRDMADevicePriority.unwrap();
        assert_eq!(priority(handle, ptr::null_mut(), 100, 20, list), 127);
        assert_eq!(priority(handle, ptr::null_mut(), 100, 20, ptr::null()), -1);
        assert_eq!(priority(handle, ptr::null_mut(), 100, -20, list), -1);
    }
}

#[test]
fn the_implementation_is_dropped_at_deregistration() {
    let (_emulator, driver) = open();
    let (file, alive) = memory(b"0123456789");
    let file = registered(&driver, file).unwrap();
    // Moving the handle moves neither the functions nor the implementation.
    let file = Box::new(file);
    assert_eq!(file.read_at(&mut vec![0u8; 10], 0).unwrap(), 10);
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(file);
    assert_eq!(Arc::strong_count(&alive), 1);

    let (file, alive) = memory(b"");
    assert!(registered(&driver, file).unwrap().deregister().is_none());
    assert_eq!(Arc::strong_count(&alive), 1);

    let (mut file, alive) = memory(b"");
    file.name = c"refused";
    let error = registered(&driver, file).unwrap_err();
    assert_eq!(error.op_error(), Some(OpError::HANDLE_NOT_REGISTERED));
    assert!(error.to_string().contains("a userspace file system"), "{error}");
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn userspace_files_have_no_descriptor() {
    let (_emulator, driver) = open();
    let file = registered(&driver, memory(b"").0).unwrap();
    assert!(file.descriptor().is_none());
    assert_eq!(file.properties().unwrap_err().kind(), ErrorKind::InvalidInput);
}
