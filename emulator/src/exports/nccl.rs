//! libnccl: communicators without blocking calls, broadcasts and gathers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_rt_sys::runtime::cudaStream_t;

use super::runtime::find_stream;
use crate::c;
use crate::control::{self, Hit, lock};
use crate::memory;
use crate::ranks::{Comm, Step};
use crate::stream::{self, Stream};

const SUCCESS: c_uint = 0;
const UNHANDLED_CUDA_ERROR: c_uint = 1;
const SYSTEM_ERROR: c_uint = 2;
const INVALID_ARGUMENT: c_uint = 4;
const INVALID_USAGE: c_uint = 5;
const IN_PROGRESS: c_uint = 7;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclUniqueId([u8; 128]);

/// The start of `ncclConfig_t`, the same in all versions.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

static COMMS: Mutex<Option<HashMap<usize, Arc<Comm>>>> = Mutex::new(None);

thread_local! {
    static GROUP: RefCell<Group> = const { RefCell::new(Group { depth: 0, work: Vec::new() }) };
}

/// The work of a group of calls, not submitted yet.
struct Group {
    depth: usize,
    work: Vec<(Arc<Comm>, Arc<Stream>, Vec<Step>)>,
}

fn call(name: &'static str, body: impl FnOnce(Hit) -> Result<c_uint, c_uint>) -> c_uint {
    let hit = control::enter(name);
    if let Some(code) = hit.err {
        return code as c_uint;
    }
    body(hit).unwrap_or_else(|code| code)
}

fn find(comm: *mut c_void) -> Result<Arc<Comm>, c_uint> {
    lock(&COMMS).get_or_insert_default().get(&comm.addr()).cloned().ok_or(INVALID_ARGUMENT)
}

fn forget(comm: *mut c_void) -> Result<Arc<Comm>, c_uint> {
    lock(&COMMS).get_or_insert_default().remove(&comm.addr()).ok_or(INVALID_ARGUMENT)
}

pub(crate) fn live_comms() -> usize {
    lock(&COMMS).get_or_insert_default().len()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> c_uint {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    call("ncclGetUniqueId", |_| {
        let mut id = [0; 128];
        id[..8].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
        id[8..16].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        // Emulators of one process have statics of their own, at other addresses.
        id[16..24].copy_from_slice(&(&raw const NEXT).addr().to_le_bytes());
        c::put(uniqueId, ncclUniqueId(id)).map(|()| SUCCESS).ok_or(INVALID_ARGUMENT)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut *mut c_void,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *const ncclConfig,
) -> c_uint {
    call("ncclCommInitRankConfig", |hit| {
        hit.sleep();
        let ncclConfig { size, magic, version, blocking } = c::get(config).ok_or(INVALID_ARGUMENT)?;
        let is_config = size >= size_of::<ncclConfig>() && magic == 0xcafe_beef && version >= 21400;
        if !is_config || !(0..nranks).contains(&rank) {
            return Err(INVALID_ARGUMENT);
        }
        if blocking != 0 {
            return Err(INVALID_USAGE);
        }
        let handle = stream::fresh_handle();
        let made = Comm::join(&commId.0[..24], rank as usize, nranks as usize).map_err(|_| SYSTEM_ERROR)?;
        lock(&COMMS).get_or_insert_default().insert(handle, made);
        c::put(comm, std::ptr::without_provenance_mut(handle)).ok_or(INVALID_ARGUMENT)?;
        Ok(IN_PROGRESS)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut c_void, asyncError: *mut c_uint) -> c_uint {
    call("ncclCommGetAsyncError", |hit| {
        let comm = find(comm)?;
        let state = match hit.status {
            Some(code) => code as c_uint,
            None if comm.is_at_work() => IN_PROGRESS,
            None => SUCCESS,
        };
        c::put(asyncError, state).map(|()| SUCCESS).ok_or(INVALID_ARGUMENT)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: *mut c_void) -> c_uint {
    call("ncclCommFinalize", |_| find(comm).map(|_| SUCCESS))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut c_void) -> c_uint {
    call("ncclCommDestroy", |_| forget(comm).map(|_| SUCCESS))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *mut c_void) -> c_uint {
    call("ncclCommAbort", |_| {
        forget(comm)?.abort();
        Ok(SUCCESS)
    })
}

fn collective(
    comm: *mut c_void,
    stream: cudaStream_t,
    datatype: c_uint,
    steps: impl FnOnce(&Comm) -> Option<Vec<Step>>,
) -> Result<c_uint, c_uint> {
    // Signed and unsigned bytes.
    if datatype > 1 {
        return Err(INVALID_ARGUMENT);
    }
    let comm = find(comm)?;
    let stream = find_stream(stream).map_err(|_| UNHANDLED_CUDA_ERROR)?;
    let steps = steps(&comm).ok_or(INVALID_ARGUMENT)?;
    GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(INVALID_USAGE),
        _ => {
            group.work.push((comm, stream, steps));
            Ok(SUCCESS)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: c_uint,
    comm: *mut c_void,
    stream: cudaStream_t,
) -> c_uint {
    call("ncclAllGather", |_| {
        collective(comm, stream, datatype, |comm| {
            let step = |root| {
                let to = recvbuff.expose_provenance() + root * sendcount;
                let from = if root == comm.rank { sendbuff.expose_provenance() } else { to };
                step(root, from, to, sendcount)
            };
            (0..comm.ranks).map(step).collect()
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_uint,
    root: c_int,
    comm: *mut c_void,
    stream: cudaStream_t,
) -> c_uint {
    call("ncclBroadcast", |_| {
        collective(comm, stream, datatype, |comm| {
            let root = usize::try_from(root).ok().filter(|root| *root < comm.ranks)?;
            let to = recvbuff.expose_provenance();
            let from = if root == comm.rank { sendbuff.expose_provenance() } else { to };
            Some(vec![step(root, from, to, count)?])
        })
    })
}

fn step(root: usize, from: usize, to: usize, len_bytes: usize) -> Option<Step> {
    let place = |address| {
        let place = memory::place(address, len_bytes).ok()?;
        (place.kind == Some(memory::Kind::Device)).then_some(place)
    };
    Some(Step { root, from: place(from)?, to: place(to)?, len_bytes })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> c_uint {
    call("ncclGroupStart", |_| {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> c_uint {
    call("ncclGroupEnd", |hit| {
        let work = GROUP.with_borrow_mut(|group| {
            group.depth = group.depth.checked_sub(1).ok_or(INVALID_USAGE)?;
            Ok::<_, c_uint>(if group.depth == 0 { mem::take(&mut group.work) } else { Vec::new() })
        })?;
        if work.is_empty() {
            return Ok(SUCCESS);
        }
        for (comm, stream, steps) in work {
            comm.submit(stream, hit, steps);
        }
        Ok(IN_PROGRESS)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(code: c_uint) -> *const c_char {
    control::enter("ncclGetErrorString");
    let text = match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}
