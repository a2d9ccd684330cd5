//! libcudart: devices, streams, events and memory. Copies are in `runtime_copy`.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex};

use cuda_rt_sys::driver::CUresult;
use cuda_rt_sys::runtime::{
    cudaDeviceAttr, cudaError_t, cudaEvent_t, cudaEventDisableTiming, cudaHostFn_t, cudaMemPool_t,
    cudaMemPoolAttr, cudaMemoryType, cudaPointerAttributes, cudaPointerAttributes_anon_1, cudaStream_t,
    cudaStreamCaptureMode, cudaStreamCaptureStatus,
};

use crate::c::{self, Carried};
use crate::control::{self, Hit, lock};
use crate::device::{self, CAPACITY};
use crate::event::{self, Event};
use crate::kernels;
use crate::memory::{self, Kind};
use crate::stream::{self, Stream};

pub(super) const INVALID: cudaError_t = cudaError_t::cudaErrorInvalidValue;

thread_local! {
    static LAST: Cell<cudaError_t> = const { Cell::new(cudaError_t::cudaSuccess) };
    static CAPTURE_MODE: Cell<cudaStreamCaptureMode> =
        const { Cell::new(cudaStreamCaptureMode::cudaStreamCaptureModeGlobal) };
}

const UNSAFE_BESIDE_CAPTURES: [&str; 9] = [
    "cudaMalloc",
    "cudaMallocManaged",
    "cudaHostAlloc",
    "cudaFree",
    "cudaFreeHost",
    "cudaStreamSynchronize",
    "cudaStreamQuery",
    "cudaEventSynchronize",
    "cudaEventQuery",
];

pub(super) fn call(name: &'static str, body: impl FnOnce() -> Result<(), cudaError_t>) -> cudaError_t {
    queued(name, |hit| {
        hit.sleep();
        body()
    })
}

/// Delays the queued work rather than the call.
pub(super) fn queued(name: &'static str, body: impl FnOnce(Hit) -> Result<(), cudaError_t>) -> cudaError_t {
    if control::forked() {
        return cudaError_t::cudaErrorInitializationError;
    }
    let hit = control::enter(name);
    let is_refused = UNSAFE_BESIDE_CAPTURES.contains(&name) && beside_captures().is_err()
        || name == "cudaDeviceSynchronize" && control::capturing();
    let outcome = match hit.err {
        Some(code) => {
            hit.sleep();
            Err(cudaError_t::from_raw(code as u32))
        }
        None if is_refused => Err(cudaError_t::cudaErrorStreamCaptureUnsupported),
        // A kernel may have failed while the call waited.
        None => body(hit).and_then(|()| device::alive()),
    };
    match outcome {
        Ok(()) => cudaError_t::cudaSuccess,
        Err(cudaError_t::cudaErrorNotReady) => cudaError_t::cudaErrorNotReady,
        Err(error) => {
            LAST.set(error);
            error
        }
    }
}

/// Lets a thread that has changed its mode pass.
pub(super) fn beside_captures() -> Result<(), CUresult> {
    let is_relaxed = CAPTURE_MODE.get() == cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
    match control::capturing() && !is_relaxed {
        true => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        false => Ok(()),
    }
}

fn put<T>(pointer: *mut T, value: T) -> Result<(), cudaError_t> {
    c::put(pointer, value).ok_or(INVALID)
}

fn checked(device: c_int) -> Result<c_int, cudaError_t> {
    device::initialise().map_err(|_| cudaError_t::cudaErrorNoDevice)?;
    if device::exists(device) { Ok(device) } else { Err(cudaError_t::cudaErrorInvalidDevice) }
}

/// Returns the runtime's error; errors of streams have the same number in both.
fn of_driver(error: CUresult) -> cudaError_t {
    cudaError_t::from_raw(error.as_raw())
}

pub(super) fn find_stream(stream: cudaStream_t) -> Result<Arc<Stream>, cudaError_t> {
    device::current()?;
    stream::find(stream.addr()).map_err(of_driver)
}

fn find_event(event: cudaEvent_t) -> Result<Arc<Event>, cudaError_t> {
    device::current()?;
    event::find(event.addr()).ok_or(cudaError_t::cudaErrorInvalidResourceHandle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceReset() -> cudaError_t {
    call("cudaDeviceReset", || {
        let device = device::current()?;
        stream::synchronise(device);
        memory::release_all(device);
        kernels::unload_all(device);
        device::reset(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceSynchronize() -> cudaError_t {
    call("cudaDeviceSynchronize", || {
        stream::synchronise(device::current()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetStreamPriorityRange(
    leastPriority: *mut c_int,
    greatestPriority: *mut c_int,
) -> cudaError_t {
    call("cudaDeviceGetStreamPriorityRange", || {
        device::current()?;
        // Either may be null.
        c::put(leastPriority, 0);
        c::put(greatestPriority, -5);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetByPCIBusId(device: *mut c_int, pciBusId: *const c_char) -> cudaError_t {
    call("cudaDeviceGetByPCIBusId", || {
        let wanted = c::text(pciBusId).ok_or(INVALID)?;
        let found = (0..control::gpus()).find(|gpu| device::pci_bus_id(*gpu).eq_ignore_ascii_case(&wanted));
        put(device, found.ok_or(cudaError_t::cudaErrorInvalidDevice)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetPCIBusId(
    pciBusId: *mut c_char,
    len: c_int,
    device: c_int,
) -> cudaError_t {
    call("cudaDeviceGetPCIBusId", || {
        c::put_text(pciBusId, len, &device::pci_bus_id(checked(device)?)).ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetLastError() -> cudaError_t {
    control::enter("cudaGetLastError").sleep();
    LAST.replace(cudaError_t::cudaSuccess)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaPeekAtLastError() -> cudaError_t {
    control::enter("cudaPeekAtLastError").sleep();
    LAST.get()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetErrorName(error: cudaError_t) -> *const c_char {
    control::enter("cudaGetErrorName");
    c::lasting(error.name().unwrap_or("unrecognized error code"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetErrorString(error: cudaError_t) -> *const c_char {
    control::enter("cudaGetErrorString");
    match error.name() {
        Some(name) => c::lasting(&format!("emulated {name}")),
        None => c::lasting("unrecognized error code"),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> cudaError_t {
    call("cudaGetDeviceCount", || {
        put(count, control::gpus())?;
        device::initialise().map_err(|_| cudaError_t::cudaErrorNoDevice)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetAttribute(
    value: *mut c_int,
    attr: cudaDeviceAttr,
    device: c_int,
) -> cudaError_t {
    call("cudaDeviceGetAttribute", || {
        let device = checked(device)?;
        put(value, device::attribute(attr.as_raw(), device).ok_or(INVALID)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaSetDevice(device: c_int) -> cudaError_t {
    call("cudaSetDevice", || device::choose(device))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDevice(device: *mut c_int) -> cudaError_t {
    call("cudaGetDevice", || put(device, checked(device::peek())?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaSetDeviceFlags(flags: c_uint) -> cudaError_t {
    call("cudaSetDeviceFlags", || {
        device::set_flags(checked(device::peek())?, flags);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaGetDeviceFlags(flags: *mut c_uint) -> cudaError_t {
    call("cudaGetDeviceFlags", || put(flags, device::flags(checked(device::peek())?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceCanAccessPeer(
    canAccessPeer: *mut c_int,
    device: c_int,
    peerDevice: c_int,
) -> cudaError_t {
    call("cudaDeviceCanAccessPeer", || {
        let are_peers = control::are_peers(checked(device)?, checked(peerDevice)?);
        put(canAccessPeer, c_int::from(are_peers))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceEnablePeerAccess(peerDevice: c_int, flags: c_uint) -> cudaError_t {
    call("cudaDeviceEnablePeerAccess", || {
        let (device, peer) = (device::current()?, checked(peerDevice)?);
        if flags != 0 {
            return Err(INVALID);
        }
        if device == peer {
            return Err(cudaError_t::cudaErrorInvalidDevice);
        }
        if !control::are_peers(device, peer) {
            return Err(cudaError_t::cudaErrorPeerAccessUnsupported);
        }
        let fresh = device::enable_peer(device, peer);
        if fresh { Ok(()) } else { Err(cudaError_t::cudaErrorPeerAccessAlreadyEnabled) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDriverGetVersion(driverVersion: *mut c_int) -> cudaError_t {
    call("cudaDriverGetVersion", || put(driverVersion, control::driver_version()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaRuntimeGetVersion(runtimeVersion: *mut c_int) -> cudaError_t {
    call("cudaRuntimeGetVersion", || put(runtimeVersion, control::runtime_version()))
}

fn create_stream(pointer: *mut cudaStream_t, flags: c_uint) -> Result<(), cudaError_t> {
    let device = device::current()?;
    if flags > 1 || pointer.is_null() {
        return Err(INVALID);
    }
    let stream = stream::create(device, flags).map_err(of_driver)?;
    put(pointer, ptr::without_provenance_mut(stream))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamCreate(pStream: *mut cudaStream_t) -> cudaError_t {
    call("cudaStreamCreate", || create_stream(pStream, 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamCreateWithFlags(pStream: *mut cudaStream_t, flags: c_uint) -> cudaError_t {
    call("cudaStreamCreateWithFlags", || create_stream(pStream, flags))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamCreateWithPriority(
    pStream: *mut cudaStream_t,
    flags: c_uint,
    _priority: c_int,
) -> cudaError_t {
    call("cudaStreamCreateWithPriority", || create_stream(pStream, flags))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamGetFlags(hStream: cudaStream_t, flags: *mut c_uint) -> cudaError_t {
    call("cudaStreamGetFlags", || put(flags, find_stream(hStream)?.flags))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamDestroy(stream: cudaStream_t) -> cudaError_t {
    call("cudaStreamDestroy", || {
        let destroyed = stream::destroy(stream.addr());
        if destroyed { Ok(()) } else { Err(cudaError_t::cudaErrorInvalidResourceHandle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamWaitEvent(
    stream: cudaStream_t,
    event: cudaEvent_t,
    _flags: c_uint,
) -> cudaError_t {
    call("cudaStreamWaitEvent", || {
        let (stream, event) = (find_stream(stream)?, find_event(event)?);
        let number = event.asked();
        stream.push(move || event.wait(number));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamSynchronize(stream: cudaStream_t) -> cudaError_t {
    call("cudaStreamSynchronize", || {
        find_stream(stream)?.wait();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamQuery(stream: cudaStream_t) -> cudaError_t {
    call("cudaStreamQuery", || {
        let idle = find_stream(stream)?.is_idle();
        if idle { Ok(()) } else { Err(cudaError_t::cudaErrorNotReady) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaStreamIsCapturing(
    stream: cudaStream_t,
    pCaptureStatus: *mut cudaStreamCaptureStatus,
) -> cudaError_t {
    queued("cudaStreamIsCapturing", |hit| {
        hit.sleep();
        find_stream(stream)?;
        put(pCaptureStatus, cudaStreamCaptureStatus(hit.status.unwrap_or(0) as c_uint))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaThreadExchangeStreamCaptureMode(
    mode: *mut cudaStreamCaptureMode,
) -> cudaError_t {
    call("cudaThreadExchangeStreamCaptureMode", || {
        // SAFETY: the caller's pointer, which may be null.
        let mode = unsafe { mode.as_mut() }.ok_or(INVALID)?;
        if *mode > cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed {
            return Err(INVALID);
        }
        *mode = CAPTURE_MODE.replace(*mode);
        Ok(())
    })
}

fn create_event(pointer: *mut cudaEvent_t, flags: c_uint) -> Result<(), cudaError_t> {
    device::current()?;
    if flags > 7 || pointer.is_null() {
        return Err(INVALID);
    }
    let event = event::create(flags & cudaEventDisableTiming == 0);
    put(pointer, ptr::without_provenance_mut(event))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaEventCreate(event: *mut cudaEvent_t) -> cudaError_t {
    call("cudaEventCreate", || create_event(event, 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaEventCreateWithFlags(event: *mut cudaEvent_t, flags: c_uint) -> cudaError_t {
    call("cudaEventCreateWithFlags", || create_event(event, flags))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaEventRecord(event: cudaEvent_t, stream: cudaStream_t) -> cudaError_t {
    call("cudaEventRecord", || {
        let stream = find_stream(stream)?;
        find_event(event)?.record(&stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaEventQuery(event: cudaEvent_t) -> cudaError_t {
    call("cudaEventQuery", || {
        let reached = find_event(event)?.is_reached();
        if reached { Ok(()) } else { Err(cudaError_t::cudaErrorNotReady) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaEventSynchronize(event: cudaEvent_t) -> cudaError_t {
    call("cudaEventSynchronize", || {
        let event = find_event(event)?;
        event.wait(event.asked());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaEventDestroy(event: cudaEvent_t) -> cudaError_t {
    call("cudaEventDestroy", || {
        find_event(event)?;
        let destroyed = event::destroy(event.addr());
        if destroyed { Ok(()) } else { Err(cudaError_t::cudaErrorInvalidResourceHandle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaEventElapsedTime(
    ms: *mut f32,
    start: cudaEvent_t,
    end: cudaEvent_t,
) -> cudaError_t {
    call("cudaEventElapsedTime", || {
        let (start, end) = (find_event(start)?, find_event(end)?);
        let recorded = |event: &Event| event.timed && event.asked() > 0;
        if !recorded(&start) || !recorded(&end) {
            return Err(cudaError_t::cudaErrorInvalidResourceHandle);
        }
        if !start.is_reached() || !end.is_reached() {
            return Err(cudaError_t::cudaErrorNotReady);
        }
        let (Some(from), Some(to)) = (start.reached_at(), end.reached_at()) else { return Err(INVALID) };
        let forward = to.saturating_duration_since(from).as_secs_f32();
        let backward = from.saturating_duration_since(to).as_secs_f32();
        put(ms, 1000.0 * (forward - backward))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaLaunchHostFunc(
    stream: cudaStream_t,
    fn_: cudaHostFn_t,
    userData: *mut c_void,
) -> cudaError_t {
    queued("cudaLaunchHostFunc", |hit| {
        let stream = find_stream(stream)?;
        let function = fn_.ok_or(INVALID)?;
        let data = Carried(userData);
        stream.push_host_function(move || {
            hit.sleep();
            // SAFETY: function and data are valid until the function has run, by the C caller's promise.
            unsafe { function(data.get()) };
        });
        Ok(())
    })
}

fn allocate(pointer: *mut *mut c_void, kind: Kind, size: usize, flags: c_uint) -> Result<(), cudaError_t> {
    let device = device::current()?;
    if pointer.is_null() {
        return Err(INVALID);
    }
    let address = match size {
        0 => 0,
        _ => memory::allocate(kind, size, device, flags).ok_or(cudaError_t::cudaErrorMemoryAllocation)?,
    };
    put(pointer, ptr::with_exposed_provenance_mut(address))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMalloc(devPtr: *mut *mut c_void, size: usize) -> cudaError_t {
    call("cudaMalloc", || allocate(devPtr, Kind::Device, size, 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocManaged(
    devPtr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> cudaError_t {
    call("cudaMallocManaged", || {
        if size == 0 || !(1..=2).contains(&flags) {
            return Err(INVALID);
        }
        allocate(devPtr, Kind::Managed, size, flags)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocHost(ptr: *mut *mut c_void, size: usize) -> cudaError_t {
    call("cudaMallocHost", || allocate(ptr, Kind::Pinned, size, 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostAlloc(pHost: *mut *mut c_void, size: usize, flags: c_uint) -> cudaError_t {
    call("cudaHostAlloc", || match flags {
        0..=7 => allocate(pHost, Kind::Pinned, size, flags),
        _ => Err(INVALID),
    })
}

/// Frees after all work of the device, as CUDA does.
fn free(pointer: *mut c_void, kinds: &[Kind]) -> Result<(), cudaError_t> {
    device::current()?;
    if pointer.is_null() {
        return Ok(());
    }
    if let Some(found) = memory::find(pointer.addr()) {
        stream::synchronise(found.device);
    }
    if memory::release(pointer.addr(), kinds) { Ok(()) } else { Err(INVALID) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaFree(devPtr: *mut c_void) -> cudaError_t {
    call("cudaFree", || free(devPtr, &[Kind::Device, Kind::Managed]))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaFreeHost(ptr: *mut c_void) -> cudaError_t {
    call("cudaFreeHost", || free(ptr, &[Kind::Pinned]))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostRegister(ptr: *mut c_void, size: usize, flags: c_uint) -> cudaError_t {
    call("cudaHostRegister", || {
        let device = device::current()?;
        let end = ptr.addr().checked_add(size);
        if ptr.is_null() || size == 0 || flags > 15 || end.is_none() {
            return Err(INVALID);
        }
        let fresh = memory::register(ptr.expose_provenance(), size, device, flags);
        if fresh { Ok(()) } else { Err(cudaError_t::cudaErrorHostMemoryAlreadyRegistered) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostUnregister(ptr: *mut c_void) -> cudaError_t {
    call("cudaHostUnregister", || {
        device::current()?;
        let known = memory::release(ptr.addr(), &[Kind::Registered]);
        if known { Ok(()) } else { Err(cudaError_t::cudaErrorHostMemoryNotRegistered) }
    })
}

fn host_memory(pointer: *mut c_void) -> Result<memory::Allocation, cudaError_t> {
    device::current()?;
    let host = |found: &memory::Allocation| matches!(found.kind, Kind::Pinned | Kind::Registered);
    memory::find(pointer.addr()).filter(host).ok_or(INVALID)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostGetDevicePointer(
    pDevice: *mut *mut c_void,
    pHost: *mut c_void,
    _flags: c_uint,
) -> cudaError_t {
    call("cudaHostGetDevicePointer", || {
        host_memory(pHost)?;
        put(pDevice, pHost)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostGetFlags(pFlags: *mut c_uint, pHost: *mut c_void) -> cudaError_t {
    call("cudaHostGetFlags", || put(pFlags, host_memory(pHost)?.flags))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> cudaError_t {
    call("cudaMemGetInfo", || {
        let device = device::current()?;
        put(free, CAPACITY - memory::used(device))?;
        put(total, CAPACITY)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaPointerGetAttributes(
    attributes: *mut cudaPointerAttributes,
    ptr: *const c_void,
) -> cudaError_t {
    call("cudaPointerGetAttributes", || {
        device::current()?;
        let pointer = ptr.cast_mut();
        let nothing = ptr::null_mut();
        let found = memory::find(ptr.addr());
        let (type_, device_pointer, host_pointer) = match found.as_ref().map(|found| found.kind) {
            None => (cudaMemoryType::cudaMemoryTypeUnregistered, nothing, nothing),
            Some(Kind::Device) => (cudaMemoryType::cudaMemoryTypeDevice, pointer, nothing),
            Some(Kind::Managed) => (cudaMemoryType::cudaMemoryTypeManaged, pointer, pointer),
            Some(_) => (cudaMemoryType::cudaMemoryTypeHost, pointer, pointer),
        };
        let value = cudaPointerAttributes {
            type_,
            device: found.map_or(-2, |found| found.device),
            devicePointer: device_pointer,
            hostPointer: host_pointer,
            anon_1: cudaPointerAttributes_anon_1 { unused: 0 },
            reserved: [0; 7],
        };
        if control::runtime_version() >= 13000 {
            return put(attributes, value);
        }
        // Before 13.0 the struct ends after the two pointers.
        let old = offset_of!(cudaPointerAttributes, anon_1);
        // SAFETY: any value may be read as bytes up to its first union.
        let bytes = unsafe { std::slice::from_raw_parts(ptr::from_ref(&value).cast::<u8>(), old) };
        c::put_array(attributes.cast(), bytes).ok_or(INVALID)
    })
}

const POOLS: usize = 0xD0_0000_0000;
static RELEASE_THRESHOLDS: Mutex<[u64; 16]> = Mutex::new([0; 16]);

fn pool_device(pool: cudaMemPool_t) -> Result<c_int, cudaError_t> {
    let offset =
        pool.addr().checked_sub(POOLS).filter(|offset| offset.is_multiple_of(0x100)).ok_or(INVALID)?;
    c_int::try_from(offset / 0x100).ok().filter(|device| device::exists(*device)).ok_or(INVALID)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaDeviceGetDefaultMemPool(
    memPool: *mut cudaMemPool_t,
    device: c_int,
) -> cudaError_t {
    call("cudaDeviceGetDefaultMemPool", || {
        put(memPool, ptr::without_provenance_mut(POOLS + 0x100 * checked(device)? as usize))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemPoolTrimTo(memPool: cudaMemPool_t, _minBytesToKeep: usize) -> cudaError_t {
    call("cudaMemPoolTrimTo", || pool_device(memPool).map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemPoolSetAttribute(
    memPool: cudaMemPool_t,
    attr: cudaMemPoolAttr,
    value: *mut c_void,
) -> cudaError_t {
    call("cudaMemPoolSetAttribute", || {
        let device = pool_device(memPool)?;
        match attr {
            cudaMemPoolAttr::cudaMemPoolAttrReleaseThreshold => {
                lock(&RELEASE_THRESHOLDS)[device as usize] = c::get(value.cast::<u64>()).ok_or(INVALID)?;
            }
            cudaMemPoolAttr::cudaMemPoolReuseFollowEventDependencies
            | cudaMemPoolAttr::cudaMemPoolReuseAllowOpportunistic
            | cudaMemPoolAttr::cudaMemPoolReuseAllowInternalDependencies => {}
            _ => return Err(INVALID),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemPoolGetAttribute(
    memPool: cudaMemPool_t,
    attr: cudaMemPoolAttr,
    value: *mut c_void,
) -> cudaError_t {
    call("cudaMemPoolGetAttribute", || {
        let device = pool_device(memPool)?;
        match attr.as_raw() {
            1..=3 => put(value.cast::<c_int>(), 1),
            4 => put(value.cast::<u64>(), lock(&RELEASE_THRESHOLDS)[device as usize]),
            5..=8 => put(value.cast::<u64>(), memory::used(device) as u64),
            _ => Err(INVALID),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocAsync(
    devPtr: *mut *mut c_void,
    size: usize,
    hStream: cudaStream_t,
) -> cudaError_t {
    call("cudaMallocAsync", || {
        find_stream(hStream)?;
        allocate(devPtr, Kind::Device, size, 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocFromPoolAsync(
    ptr: *mut *mut c_void,
    size: usize,
    memPool: cudaMemPool_t,
    stream: cudaStream_t,
) -> cudaError_t {
    call("cudaMallocFromPoolAsync", || {
        find_stream(stream)?;
        pool_device(memPool)?;
        allocate(ptr, Kind::Device, size, 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaFreeAsync(devPtr: *mut c_void, hStream: cudaStream_t) -> cudaError_t {
    queued("cudaFreeAsync", |hit| {
        let stream = find_stream(hStream)?;
        let base = devPtr.addr();
        if base == 0 {
            return Ok(());
        }
        memory::find(base)
            .filter(|found| found.base == base && found.kind == Kind::Device && found.physical.is_none())
            .ok_or(INVALID)?;
        stream.push(move || {
            hit.sleep();
            memory::release(base, &[Kind::Device]);
        });
        Ok(())
    })
}

declared! {
    cuda_rt_sys::runtime::Functions:
    cudaDeviceReset cudaDeviceSynchronize cudaDeviceGetStreamPriorityRange cudaDeviceGetByPCIBusId
    cudaDeviceGetPCIBusId cudaGetLastError cudaPeekAtLastError cudaGetErrorName cudaGetErrorString
    cudaGetDeviceCount cudaDeviceGetAttribute cudaSetDevice cudaGetDevice cudaSetDeviceFlags
    cudaGetDeviceFlags cudaDeviceCanAccessPeer cudaDeviceEnablePeerAccess cudaDriverGetVersion
    cudaRuntimeGetVersion cudaStreamCreate cudaStreamCreateWithFlags cudaStreamCreateWithPriority
    cudaStreamGetFlags cudaStreamDestroy cudaStreamWaitEvent cudaStreamSynchronize cudaStreamQuery
    cudaStreamIsCapturing cudaThreadExchangeStreamCaptureMode cudaEventCreate cudaEventCreateWithFlags
    cudaEventRecord cudaEventQuery cudaEventSynchronize cudaEventDestroy cudaEventElapsedTime
    cudaLaunchHostFunc cudaMalloc cudaMallocManaged cudaMallocHost cudaHostAlloc cudaFree cudaFreeHost
    cudaHostRegister cudaHostUnregister cudaHostGetDevicePointer cudaHostGetFlags cudaMemGetInfo
    cudaPointerGetAttributes cudaDeviceGetDefaultMemPool cudaMemPoolTrimTo cudaMemPoolSetAttribute
    cudaMemPoolGetAttribute cudaMallocAsync cudaMallocFromPoolAsync cudaFreeAsync
}
