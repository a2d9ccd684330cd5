//! GPUs, their primary contexts, and each thread's current context.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_rt_sys::driver::{CUcontext, CUresult};
use cuda_rt_sys::runtime::cudaError_t;

use crate::control;

/// The memory of one GPU in bytes.
pub(crate) const CAPACITY: usize = 16 << 30;

const CONTEXTS: usize = 0xC0_0000_0000;

#[derive(Clone, Copy, Default)]
struct Primary {
    retained: u32,
    runtime: bool,
    flags: u32,
    peers: u32,
    /// The error of a kernel that failed, after which the context is of no use.
    failed: Option<u32>,
}

static PRIMARY: Mutex<[Primary; 16]> =
    Mutex::new([Primary { retained: 0, runtime: false, flags: 0, peers: 0, failed: None }; 16]);
static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The devices whose contexts are on this thread's stack; the last is current.
    static STACK: RefCell<Vec<c_int>> = const { RefCell::new(Vec::new()) };
    /// The device that the runtime uses when the stack is empty.
    static CHOSEN: Cell<c_int> = const { Cell::new(0) };
}

pub(crate) fn exists(device: c_int) -> bool {
    (0..control::gpus()).contains(&device)
}

/// `cuInit`: the rest of libcuda fails before it, or before a runtime call that needs a device.
pub(crate) fn initialise() -> Result<(), CUresult> {
    if control::gpus() == 0 {
        return Err(CUresult::CUDA_ERROR_NO_DEVICE);
    }
    INITIALISED.store(true, Ordering::Release);
    Ok(())
}

pub(crate) fn initialised() -> Result<(), CUresult> {
    match INITIALISED.load(Ordering::Acquire) {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// Makes the primary context current if no context is.
pub(crate) fn current() -> Result<c_int, cudaError_t> {
    initialise().map_err(|_| cudaError_t::cudaErrorNoDevice)?;
    let device = peek();
    STACK.with_borrow_mut(|stack| {
        if stack.is_empty() {
            stack.push(device);
        }
    });
    control::lock(&PRIMARY)[device as usize].runtime = true;
    alive().map(|()| device)
}

pub(crate) fn peek() -> c_int {
    STACK.with_borrow(|stack| stack.last().copied()).unwrap_or_else(|| CHOSEN.get())
}

pub(crate) fn choose(device: c_int) -> Result<(), cudaError_t> {
    initialise().map_err(|_| cudaError_t::cudaErrorNoDevice)?;
    if !exists(device) {
        return Err(cudaError_t::cudaErrorInvalidDevice);
    }
    CHOSEN.set(device);
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.push(device);
    });
    control::lock(&PRIMARY)[device as usize].runtime = true;
    Ok(())
}

/// Returns the device of the context that a call of libcuda is for.
pub(crate) fn context() -> Result<c_int, CUresult> {
    initialised()?;
    let device = current_context().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    match failure(device) {
        Some(code) => Err(CUresult::from_raw(code)),
        None => Ok(device),
    }
}

pub(crate) fn fail(device: c_int, code: u32) {
    control::lock(&PRIMARY)[device as usize].failed.get_or_insert(code);
}

pub(crate) fn failure(device: c_int) -> Option<u32> {
    control::lock(&PRIMARY)[device as usize].failed
}

pub(crate) fn alive() -> Result<(), cudaError_t> {
    failure(peek()).map_or(Ok(()), |code| Err(cudaError_t::from_raw(code)))
}

pub(crate) fn current_context() -> Option<c_int> {
    STACK.with_borrow(|stack| stack.last().copied())
}

pub(crate) fn handle(device: c_int) -> CUcontext {
    std::ptr::without_provenance_mut(CONTEXTS + 0x1000 * device as usize)
}

fn device_of(context: CUcontext) -> Option<c_int> {
    let offset = context.addr().checked_sub(CONTEXTS)?;
    let device = c_int::try_from(offset / 0x1000).ok()?;
    (offset % 0x1000 == 0 && exists(device) && active(device)).then_some(device)
}

pub(crate) fn push(context: CUcontext) -> Result<(), CUresult> {
    let device = device_of(context).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    STACK.with_borrow_mut(|stack| stack.push(device));
    Ok(())
}

pub(crate) fn pop() -> Result<CUcontext, CUresult> {
    STACK.with_borrow_mut(Vec::pop).map(handle).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Replaces the current context; null takes it away.
pub(crate) fn set_current(context: CUcontext) -> Result<(), CUresult> {
    let next = match context.is_null() {
        true => None,
        false => Some(device_of(context).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?),
    };
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(next);
    });
    Ok(())
}

pub(crate) fn retain(device: c_int) -> CUcontext {
    control::lock(&PRIMARY)[device as usize].retained += 1;
    handle(device)
}

pub(crate) fn release(device: c_int) -> Result<(), CUresult> {
    let mut primary = control::lock(&PRIMARY);
    let retained = &mut primary[device as usize].retained;
    *retained = retained.checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    Ok(())
}

pub(crate) fn active(device: c_int) -> bool {
    let primary = control::lock(&PRIMARY)[device as usize];
    primary.retained > 0 || primary.runtime
}

pub(crate) fn flags(device: c_int) -> u32 {
    control::lock(&PRIMARY)[device as usize].flags
}

pub(crate) fn set_flags(device: c_int, flags: u32) {
    control::lock(&PRIMARY)[device as usize].flags = flags;
}

pub(crate) fn reset(device: c_int) {
    let primary = &mut control::lock(&PRIMARY)[device as usize];
    *primary = Primary { retained: primary.retained, ..Primary::default() };
}

/// Returns false if it may already.
pub(crate) fn enable_peer(device: c_int, peer: c_int) -> bool {
    let primary = &mut control::lock(&PRIMARY)[device as usize];
    let fresh = primary.peers & 1 << peer == 0;
    primary.peers |= 1 << peer;
    fresh
}

/// Returns whether kernels of `device` can use the memory of `owner`.
pub(crate) fn can_use(device: c_int, owner: c_int) -> bool {
    device == owner || control::lock(&PRIMARY)[device as usize].peers & 1 << owner != 0
}

/// Returns the number of references that `cuDevicePrimaryCtxRetain` took.
pub(crate) fn live_contexts() -> usize {
    control::lock(&PRIMARY).iter().map(|primary| primary.retained as usize).sum()
}

pub(crate) fn pci_bus_id(device: c_int) -> String {
    format!("0000:{:02X}:00.0", device + 1)
}

/// Returns an attribute, whose number both APIs share; those without a value here are 0.
pub(crate) fn attribute(number: u32, device: c_int) -> Option<c_int> {
    Some(match number {
        1..=3 => 1024,
        4 => 64,
        8 => 49152,
        10 => 32,
        11 => c_int::MAX,
        13 => 1_980_000,
        14 => 512,
        16 => 132,
        33 => device + 1,
        39 => 2048,
        40 => 3,
        75 => control::compute_capability().0,
        76 => control::compute_capability().1,
        // Overlap, mapping host memory, concurrent kernels, unified addressing, stream priorities, managed memory.
        15 | 19 | 31 | 41 | 78 | 83 => 1,
        // Concurrent managed access.
        89 => control::concurrent_managed().into(),
        // Host pointers of registered memory, host registration, virtual memory.
        90 | 91 | 99 | 102 | 103 => 1,
        // Memory pools, GPUDirect RDMA and its use with virtual memory, memory operations in streams.
        110 | 113 | 115 | 116 | 122 | 123 => 1,
        0 | 162.. => return None,
        _ => 0,
    })
}
