//! libcuda.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cuda_rt_sys::driver::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st_anon_1, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocation_st_anon_1, CUmemLocationType, CUpointer_attribute, CUresult, CUstream,
    CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUuuid, cuuint32_t, cuuint64_t,
};
use cuda_rt_sys::runtime::{cudaError_t, cudaMemcpyKind};

use super::runtime_copy::{self, Copy};
use super::stats;
use crate::control::{self, Hit};
use crate::device::{self, CAPACITY};
use crate::memory::{self, Kind, Place};
use crate::{c, stream, virtual_memory};

pub(super) const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

pub(super) fn call(name: &'static str, body: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    queued(name, |hit| {
        hit.sleep();
        body()
    })
}

pub(super) fn queued(name: &'static str, body: impl FnOnce(Hit) -> Result<(), CUresult>) -> CUresult {
    if control::forked() {
        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
    }
    let hit = control::enter(name);
    match hit.err {
        Some(code) => {
            hit.sleep();
            CUresult::from_raw(code as u32)
        }
        None => body(hit).err().unwrap_or(CUresult::CUDA_SUCCESS),
    }
}

pub(super) fn put<T>(pointer: *mut T, value: T) -> Result<(), CUresult> {
    c::put(pointer, value).ok_or(INVALID)
}

/// Returns the number, which means the same in both APIs for all failures of copies.
fn translated(error: cudaError_t) -> CUresult {
    CUresult::from_raw(error.as_raw())
}

fn checked(device: CUdevice) -> Result<CUdevice, CUresult> {
    device::initialised()?;
    if device::exists(device) { Ok(device) } else { Err(CUresult::CUDA_ERROR_INVALID_DEVICE) }
}

fn name_into(error: CUresult, target: *mut *const c_char, prefix: &str) -> Result<(), CUresult> {
    let text = error.name().map(|name| c::lasting(&format!("{prefix}{name}")));
    put(target, text.unwrap_or(ptr::null()))?;
    text.map(|_| ()).ok_or(INVALID)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, pStr: *mut *const c_char) -> CUresult {
    call("cuGetErrorName", || name_into(error, pStr, ""))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) -> CUresult {
    call("cuGetErrorString", || name_into(error, pStr, "emulated "))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(Flags: c_uint) -> CUresult {
    call("cuInit", || if Flags == 0 { device::initialise() } else { Err(INVALID) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(driverVersion: *mut c_int) -> CUresult {
    call("cuDriverGetVersion", || put(driverVersion, control::driver_version()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    call("cuDeviceGet", || put(device, checked(ordinal)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    call("cuDeviceGetCount", || {
        device::initialised()?;
        put(count, control::gpus())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) -> CUresult {
    call("cuDeviceGetName", || {
        checked(dev)?;
        c::put_text(name, len, "Emulated GPU").ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) -> CUresult {
    call("cuDeviceGetUuid_v2", || put(uuid, CUuuid { bytes: stats::uuid(checked(dev)?) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> CUresult {
    call("cuDeviceTotalMem_v2", || {
        checked(dev)?;
        put(bytes, CAPACITY)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    pi: *mut c_int,
    attrib: CUdevice_attribute,
    dev: CUdevice,
) -> CUresult {
    call("cuDeviceGetAttribute", || {
        let device = checked(dev)?;
        put(pi, device::attribute(attrib.as_raw(), device).ok_or(INVALID)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(pciBusId: *mut c_char, len: c_int, dev: CUdevice) -> CUresult {
    call("cuDeviceGetPCIBusId", || {
        c::put_text(pciBusId, len, &device::pci_bus_id(checked(dev)?)).ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    call("cuDevicePrimaryCtxRetain", || {
        let device = checked(dev)?;
        if pctx.is_null() {
            return Err(INVALID);
        }
        put(pctx, device::retain(device))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult {
    call("cuDevicePrimaryCtxRelease_v2", || device::release(checked(dev)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    dev: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> CUresult {
    call("cuDevicePrimaryCtxGetState", || {
        let device = checked(dev)?;
        put(flags, device::flags(device))?;
        put(active, c_int::from(device::active(device)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CUresult {
    call("cuCtxPushCurrent_v2", || {
        device::initialised()?;
        device::push(ctx)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> CUresult {
    call("cuCtxPopCurrent_v2", || {
        device::initialised()?;
        let context = device::pop()?;
        // The caller may pass null.
        c::put(pctx, context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult {
    call("cuCtxSetCurrent", || {
        device::initialised()?;
        device::set_current(ctx)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(pctx: *mut CUcontext) -> CUresult {
    call("cuCtxGetCurrent", || {
        device::initialised()?;
        put(pctx, device::current_context().map_or(ptr::null_mut(), device::handle))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    call("cuCtxGetDevice", || {
        device::initialised()?;
        put(device, device::current_context().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    call("cuCtxSynchronize", || {
        let device = device::context()?;
        stream::synchronise(device);
        device::failure(device).map_or(Ok(()), |code| Err(CUresult::from_raw(code)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult {
    call("cuMemAlloc_v2", || {
        let device = device::context()?;
        if bytesize == 0 || dptr.is_null() {
            return Err(INVALID);
        }
        let address = memory::allocate(Kind::Device, bytesize, device, 0);
        put(dptr, address.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)? as CUdeviceptr)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult {
    call("cuMemFree_v2", || {
        let device = device::context()?;
        stream::synchronise(device);
        if memory::release(dptr as usize, &[Kind::Device, Kind::Managed]) { Ok(()) } else { Err(INVALID) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    pbase: *mut CUdeviceptr,
    psize: *mut usize,
    dptr: CUdeviceptr,
) -> CUresult {
    call("cuMemGetAddressRange_v2", || {
        device::context()?;
        let found = memory::find(dptr as usize).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        // Either may be null.
        c::put(pbase, found.base as CUdeviceptr);
        c::put(psize, found.length);
        Ok(())
    })
}

fn copy(to: usize, from: usize, count: usize, kind: cudaMemcpyKind, hit: Hit) -> Result<(), CUresult> {
    device::context()?;
    let to = ptr::with_exposed_provenance_mut(to);
    Copy::line(to, ptr::with_exposed_provenance(from), count, kind)
        .and_then(|copy| Copy::submit(copy, ptr::null_mut(), true, hit))
        .map_err(translated)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(
    dstDevice: CUdeviceptr,
    srcHost: *const c_void,
    ByteCount: usize,
) -> CUresult {
    queued("cuMemcpyHtoD_v2", |hit| {
        let from = srcHost.expose_provenance();
        copy(dstDevice as usize, from, ByteCount, cudaMemcpyKind::cudaMemcpyHostToDevice, hit)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(
    dstHost: *mut c_void,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
) -> CUresult {
    queued("cuMemcpyDtoH_v2", |hit| {
        let to = dstHost.expose_provenance();
        copy(to, srcDevice as usize, ByteCount, cudaMemcpyKind::cudaMemcpyDeviceToHost, hit)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(dstDevice: CUdeviceptr, uc: c_uchar, N: usize) -> CUresult {
    queued("cuMemsetD8_v2", |hit| {
        let device = device::context()?;
        let target = ptr::with_exposed_provenance_mut(dstDevice as usize);
        runtime_copy::fill(target, uc, N, ptr::null_mut(), hit).map_err(translated)?;
        stream::synchronise(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    _addr: CUdeviceptr,
    flags: c_ulonglong,
) -> CUresult {
    call("cuMemAddressReserve", || {
        device::initialised()?;
        if ptr.is_null() || flags != 0 {
            return Err(INVALID);
        }
        put(ptr, virtual_memory::reserve(size, alignment)? as CUdeviceptr)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CUresult {
    call("cuMemAddressFree", || virtual_memory::free(ptr as usize, size))
}

fn device_of(prop: *const CUmemAllocationProp) -> Result<CUdevice, CUresult> {
    let prop = c::get(prop).ok_or(INVALID)?;
    if prop.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(INVALID);
    }
    device_at(&prop.location)
}

fn device_at(location: &CUmemLocation) -> Result<CUdevice, CUresult> {
    if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(INVALID);
    }
    // SAFETY: the type says that the union holds a device.
    checked(unsafe { location.anon_1.id })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> CUresult {
    call("cuMemCreate", || {
        let device = device_of(prop)?;
        if handle.is_null() || flags != 0 {
            return Err(INVALID);
        }
        let is_for_rdma = c::get(prop).is_some_and(|prop| prop.allocFlags.gpuDirectRDMACapable != 0);
        put(handle, virtual_memory::create(size, device, is_for_rdma)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    call("cuMemRelease", || virtual_memory::release(handle))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    call("cuMemMap", || match flags {
        0 => virtual_memory::map(ptr as usize, size, offset, handle),
        _ => Err(INVALID),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult {
    call("cuMemUnmap", || virtual_memory::unmap(ptr as usize, size))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    call("cuMemSetAccess", || {
        let rights = c::array(desc, count).filter(|rights| !rights.is_empty()).ok_or(INVALID)?;
        for right in rights {
            device_at(&right.location)?;
            let accessible = right.flags != CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
            virtual_memory::set_access(ptr as usize, size, accessible)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const CUmemLocation,
    ptr: CUdeviceptr,
) -> CUresult {
    call("cuMemGetAccess", || {
        device_at(&c::get(location).ok_or(INVALID)?)?;
        let found = memory::find(ptr as usize).filter(|found| found.physical.is_some()).ok_or(INVALID)?;
        put(flags, if found.accessible { 3 } else { 0 })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const CUmemAllocationProp,
    _option: CUmemAllocationGranularity_flags,
) -> CUresult {
    call("cuMemGetAllocationGranularity", || {
        device_of(prop)?;
        put(granularity, virtual_memory::GRANULARITY)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> CUresult {
    call("cuMemGetAllocationPropertiesFromHandle", || {
        let (id, is_for_rdma) = virtual_memory::properties_of(handle)?;
        let value = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                anon_1: CUmemLocation_st_anon_1 { id },
            },
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st_anon_1 {
                compressionType: 0,
                gpuDirectRDMACapable: is_for_rdma.into(),
                usage: 0,
                reserved: [0; 4],
            },
        };
        put(prop, value)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> CUresult {
    call("cuMemRetainAllocationHandle", || {
        if handle.is_null() {
            return Err(INVALID);
        }
        put(handle, virtual_memory::retain(addr.addr())?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> CUresult {
    use CUpointer_attribute as Attribute;
    call("cuPointerGetAttribute", || {
        device::initialised()?;
        let found = memory::find(ptr as usize).ok_or(INVALID)?;
        let host = matches!(found.kind, Kind::Pinned | Kind::Registered);
        let flag = |on: bool| put(data.cast::<c_uint>(), c_uint::from(on));
        match attribute {
            Attribute::CU_POINTER_ATTRIBUTE_CONTEXT => put(data.cast(), device::handle(found.device)),
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                put(data.cast::<c_uint>(), if host { 1 } else { 2 })
            }
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => put(data.cast(), ptr),
            Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER => match found.kind {
                Kind::Device => Err(INVALID),
                _ => put(data.cast(), ptr),
            },
            Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID => put(data.cast(), found.id),
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED => flag(found.kind == Kind::Managed),
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(data.cast(), found.device),
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put(data.cast(), found.base as CUdeviceptr),
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => put(data.cast(), found.length),
            Attribute::CU_POINTER_ATTRIBUTE_MAPPED => flag(found.accessible),
            Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => flag(false),
            Attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => flag(found.kind == Kind::Device),
            _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    })
}

fn word(address: CUdeviceptr, size: usize) -> Result<Place, CUresult> {
    let place = memory::place(address as usize, size).map_err(|_| INVALID)?;
    let usable = place.kind.is_some() && (address as usize).is_multiple_of(size);
    if usable { Ok(place) } else { Err(INVALID) }
}

fn comparison(flags: c_uint) -> Result<fn(u64, u64, u64) -> bool, CUresult> {
    const FLUSH: c_uint = 1 << 30;
    match flags & !FLUSH {
        // Greater or equal is cyclic: the difference, as a signed number of the word's width, is not negative.
        0 => Ok(|found, value, mask| found.wrapping_sub(value) & mask <= mask >> 1),
        1 => Ok(|found, value, _| found == value),
        2 => Ok(|found, value, _| found & value != 0),
        3 => Ok(|found, value, mask| !(found | value) & mask != 0),
        _ => Err(INVALID),
    }
}

const POLL: Duration = Duration::from_micros(20);

fn wait(
    stream: CUstream,
    (place, load): (Place, fn(*mut u8) -> u64),
    (value, mask): (u64, u64),
    flags: c_uint,
    hit: Hit,
) -> Result<(), CUresult> {
    device::context()?;
    let holds = comparison(flags)?;
    let stream = stream::find(stream.addr())?;
    stream.push(move || {
        hit.sleep();
        let place = place;
        while !holds(load(place.pointer), value, mask) {
            thread::sleep(POLL);
        }
    });
    Ok(())
}

fn write(
    stream: CUstream,
    (place, store): (Place, fn(*mut u8, u64)),
    value: u64,
    flags: c_uint,
    hit: Hit,
) -> Result<(), CUresult> {
    device::context()?;
    if flags > 1 {
        return Err(INVALID);
    }
    let stream = stream::find(stream.addr())?;
    stream.push(move || {
        hit.sleep();
        let place = place;
        store(place.pointer, value);
    });
    Ok(())
}

fn load_32(pointer: *mut u8) -> u64 {
    // SAFETY: `word` checked range and alignment, and the place keeps the memory.
    unsafe { AtomicU32::from_ptr(pointer.cast()) }.load(Ordering::Acquire).into()
}

fn load_64(pointer: *mut u8) -> u64 {
    // SAFETY: as for `load_32`.
    unsafe { AtomicU64::from_ptr(pointer.cast()) }.load(Ordering::Acquire)
}

fn store_32(pointer: *mut u8, value: u64) {
    // SAFETY: as for `load_32`.
    unsafe { AtomicU32::from_ptr(pointer.cast()) }.store(value as u32, Ordering::Release);
}

fn store_64(pointer: *mut u8, value: u64) {
    // SAFETY: as for `load_32`.
    unsafe { AtomicU64::from_ptr(pointer.cast()) }.store(value, Ordering::Release);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitValue32_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> CUresult {
    queued("cuStreamWaitValue32_v2", |hit| {
        wait(stream, (word(addr, 4)?, load_32), (value.into(), u32::MAX.into()), flags, hit)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitValue64_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: cuuint64_t,
    flags: c_uint,
) -> CUresult {
    queued("cuStreamWaitValue64_v2", |hit| {
        wait(stream, (word(addr, 8)?, load_64), (value, u64::MAX), flags, hit)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWriteValue32_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> CUresult {
    queued("cuStreamWriteValue32_v2", |hit| {
        write(stream, (word(addr, 4)?, store_32), value.into(), flags, hit)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWriteValue64_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: cuuint64_t,
    flags: c_uint,
) -> CUresult {
    queued("cuStreamWriteValue64_v2", |hit| write(stream, (word(addr, 8)?, store_64), value, flags, hit))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: c_uint,
    operations: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
) -> CUresult {
    queued("cuStreamBatchMemOp_v2", |hit| {
        if flags != 0 || operations.is_null() || count >= 256 {
            return Err(INVALID);
        }
        for index in 0..count as usize {
            // SAFETY: the caller gives this many.
            let operation = unsafe { *operations.add(index) };
            let (word, value) = (word(operation.address, 4)?, operation.value64 & u64::from(u32::MAX));
            match operation.operation {
                CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32 => {
                    wait(stream, (word, load_32), (value, u32::MAX.into()), operation.flags, hit)?;
                }
                CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32 => {
                    write(stream, (word, store_32), value, operation.flags, hit)?;
                }
                _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            }
        }
        Ok(())
    })
}

declared! {
    cuda_rt_sys::driver::Functions:
    cuGetErrorName cuGetErrorString cuInit cuDriverGetVersion cuDeviceGet cuDeviceGetCount cuDeviceGetName
    cuDeviceGetUuid_v2 cuDeviceTotalMem_v2 cuDeviceGetAttribute cuDeviceGetPCIBusId cuDevicePrimaryCtxRetain
    cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxGetState cuCtxPushCurrent_v2 cuCtxPopCurrent_v2
    cuCtxSetCurrent cuCtxGetCurrent cuCtxGetDevice cuCtxSynchronize cuMemAlloc_v2 cuMemFree_v2
    cuMemGetAddressRange_v2 cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemsetD8_v2 cuMemAddressReserve
    cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemGetAccess
    cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemRetainAllocationHandle
    cuPointerGetAttribute cuStreamWaitValue32_v2 cuStreamWaitValue64_v2 cuStreamWriteValue32_v2
    cuStreamWriteValue64_v2 cuStreamBatchMemOp_v2
}
