//! Batches.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_uint;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cufile_sys::{
    CUfileBatchHandle_t, CUfileBatchMode_t, CUfileError_t, CUfileIOEvents_t, CUfileIOParams_t,
    CUfileOpcode_t, CUfileStatus_t, timespec,
};

use super::handle;
use super::io::Request;
use super::params::{self, Number};
use super::{driver, stats};
use crate::c::{self, Carried};
use crate::control::{self, BATCH_ENTRY, Hit, lock};
use crate::queue::Queue;
use crate::status::{self, INVALID, failed};
use crate::{stream, trace};

#[derive(Default)]
struct Progress {
    /// Entries submitted and not reported.
    outstanding: usize,
    done: VecDeque<Carried<CUfileIOEvents_t>>,
    cancelled: bool,
}

struct Batch {
    capacity: usize,
    queue: Arc<Queue>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

static BATCHES: Mutex<Option<HashMap<usize, Arc<Batch>>>> = Mutex::new(None);

pub(crate) fn live_batches() -> usize {
    lock(&BATCHES).get_or_insert_default().len()
}

fn find(batch: CUfileBatchHandle_t) -> Result<Arc<Batch>, CUfileError_t> {
    lock(&BATCHES).get_or_insert_default().get(&batch.addr()).cloned().ok_or(INVALID)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOSetUp(
    batch_idp: *mut CUfileBatchHandle_t,
    nr: c_uint,
) -> CUfileError_t {
    status::call("cuFileBatchIOSetUp", || {
        driver::open_for_use()?;
        driver::need_gpu()?;
        let capacity = nr as usize;
        if !(1..=params::number(Number::BatchSize)).contains(&capacity) {
            return Err(if control::version() < 1150 { failed(5030) } else { INVALID });
        }
        let handle = stream::fresh_handle();
        c::put(batch_idp, ptr::without_provenance_mut(handle)).ok_or(INVALID)?;
        // As libcufile's own thread pool fails.
        let queue = Queue::start("emulated-batch").map_err(|_| failed(5030))?;
        let batch = Batch { capacity, queue, progress: Mutex::default(), changed: Condvar::new() };
        trace::call("cuFileBatchIOSetUp", |names| format!("{} nr={nr}", names.of("batch", handle)));
        lock(&BATCHES).get_or_insert_default().insert(handle, Arc::new(batch));
        stats::count(|basic| &mut basic.batch_setup_ops, true);
        Ok(())
    })
}

/// Returns `None` if the emulator cannot try it.
fn request(entry: &CUfileIOParams_t) -> Option<Request> {
    let write = match entry.opcode {
        CUfileOpcode_t::CUFILE_READ => false,
        CUfileOpcode_t::CUFILE_WRITE => true,
        _ => return None,
    };
    if entry.mode != CUfileBatchMode_t::CUFILE_BATCH {
        return None;
    }
    handle::find(entry.fh)?;
    // SAFETY: the union has one member, and the mode says that it is set.
    let batch = unsafe { entry.u.batch };
    Some(Request {
        handle: entry.fh,
        base: batch.devPtr_base,
        size: batch.size,
        file_offset: batch.file_offset,
        buffer_offset: batch.devPtr_offset,
        write,
    })
}

fn perform(request: Request, submitted: Hit) -> (CUfileStatus_t, usize) {
    let mut hit = control::enter(BATCH_ENTRY);
    if hit.is_none() {
        hit = submitted;
    }
    let _transfer = status::Transfer::begin();
    hit.sleep();
    // libcufile reports a longer entry short, but complete.
    let limit = hit.limit(params::number(Number::MaxDirectIo) << 10);
    let moved = match (hit.errno.or(hit.err), hit.bytes) {
        (Some(code), _) => Err(code as i32),
        (None, Some(bytes)) => usize::try_from(bytes).map_err(|_| -bytes as i32),
        (None, None) => request.perform(limit),
    };
    let (state, bytes) = match moved {
        Ok(bytes) => (CUfileStatus_t::CUFILE_COMPLETE, bytes),
        Err(code) => (CUfileStatus_t::CUFILE_FAILED, (code as isize).wrapping_neg() as usize),
    };
    (hit.status.map_or(state, |status| CUfileStatus_t::from_raw(status as u32)), bytes)
}

fn submit(
    batch: &Arc<Batch>,
    nr: usize,
    entries: Vec<CUfileIOParams_t>,
    hit: Hit,
) -> Result<(), CUfileError_t> {
    let mut jobs = Vec::new();
    for entry in &entries {
        jobs.push((request(entry).ok_or(INVALID)?, Carried(entry.cookie)));
    }
    let mut progress = lock(&batch.progress);
    if progress.cancelled {
        return Err(failed(5030));
    }
    if progress.outstanding + nr > batch.capacity {
        return Err(failed(5037));
    }
    progress.outstanding += nr;
    drop(progress);
    if control::reverse_completions() {
        jobs.reverse();
    }
    for (request, cookie) in jobs {
        let batch_of_job = Arc::clone(batch);
        batch.queue.push(move || {
            let (state, bytes) = perform(request, hit);
            let ok = state == CUfileStatus_t::CUFILE_COMPLETE;
            stats::count(|basic| &mut basic.batch_processed_ops, ok);
            let event = CUfileIOEvents_t { cookie: cookie.get(), status: state, ret: bytes };
            lock(&batch_of_job.progress).done.push_back(Carried(event));
            batch_of_job.changed.notify_all();
        });
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOSubmit(
    batch_idp: CUfileBatchHandle_t,
    nr: c_uint,
    iocbp: *mut CUfileIOParams_t,
    flags: c_uint,
) -> CUfileError_t {
    status::queued("cuFileBatchIOSubmit", |hit| {
        let batch = find(batch_idp)?;
        let nr = nr as usize;
        let entries = c::array(iocbp, nr).filter(|_| (1..=batch.capacity).contains(&nr)).ok_or(INVALID)?;
        trace::call("cuFileBatchIOSubmit", |names| {
            format!("{} nr={nr} flags={flags}", names.of("batch", batch_idp.addr()))
        });
        for (entry, request) in entries.iter().map(|entry| (entry, request(entry))) {
            trace::call("entry", |names| {
                let what = if entry.opcode == CUfileOpcode_t::CUFILE_WRITE { "write" } else { "read" };
                format!("{what} {}", request.map_or("invalid".to_owned(), |request| request.described(names)))
            });
        }
        let submitted = submit(&batch, nr, entries, hit);
        stats::count(|basic| &mut basic.batch_submit_ops, submitted.is_ok());
        submitted
    })
}

/// Waits for `least` events, or all outstanding ones, at most until `deadline`.
fn reap(batch: &Batch, least: usize, most: usize, deadline: Option<Instant>) -> Vec<CUfileIOEvents_t> {
    let mut progress = lock(&batch.progress);
    while progress.done.len() < least.min(progress.outstanding) {
        let left =
            deadline.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            break;
        }
        let waited = batch.changed.wait_timeout(progress, left);
        progress = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    let taken = most.min(progress.done.len());
    progress.outstanding -= taken;
    progress.done.drain(..taken).map(|event| event.get()).collect()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOGetStatus(
    batch_idp: CUfileBatchHandle_t,
    min_nr: c_uint,
    nr: *mut c_uint,
    iocbp: *mut CUfileIOEvents_t,
    timeout: *mut timespec,
) -> CUfileError_t {
    status::call("cuFileBatchIOGetStatus", || {
        let batch = find(batch_idp)?;
        let most = c::get(nr).ok_or(INVALID)?;
        trace::call("cuFileBatchIOGetStatus", |names| {
            let timeout = if timeout.is_null() { "none" } else { "some" };
            format!("{} min_nr={min_nr} nr={most} timeout={timeout}", names.of("batch", batch_idp.addr()))
        });
        if min_nr > most || iocbp.is_null() {
            return Err(INVALID);
        }
        let deadline = match c::get(timeout) {
            None => None,
            Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => {
                return Err(INVALID);
            }
            Some(time) => Instant::now().checked_add(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        };
        let events = reap(&batch, min_nr as usize, most as usize, deadline);
        for _ in &events {
            stats::count(|basic| &mut basic.batch_complete_ops, true);
        }
        c::put_array(iocbp, &events).ok_or(INVALID)?;
        c::put(nr, events.len() as c_uint).ok_or(INVALID)
    })
}

/// Drops entries that have not begun, waits for running ones, and forgets finished ones.
fn cancel(batch: &Batch) {
    batch.queue.drain();
    let mut progress = lock(&batch.progress);
    *progress = Progress { cancelled: true, ..Progress::default() };
    drop(progress);
    batch.changed.notify_all();
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIOCancel(batch_idp: CUfileBatchHandle_t) -> CUfileError_t {
    trace::call("cuFileBatchIOCancel", |names| names.of("batch", batch_idp.addr()));
    status::call("cuFileBatchIOCancel", || {
        cancel(&*find(batch_idp)?);
        stats::count(|basic| &mut basic.batch_cancel_ops, true);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileBatchIODestroy(batch_idp: CUfileBatchHandle_t) {
    if control::forked() {
        return;
    }
    trace::call("cuFileBatchIODestroy", |names| {
        let name = names.of("batch", batch_idp.addr());
        names.forget("batch", batch_idp.addr());
        name
    });
    control::enter("cuFileBatchIODestroy").sleep();
    let removed = lock(&BATCHES).get_or_insert_default().remove(&batch_idp.addr());
    if let Some(batch) = &removed {
        cancel(batch);
        batch.queue.close();
    }
    stats::count(|basic| &mut basic.batch_destroy_ops, removed.is_some());
}

declared! {
    cufile_sys::Functions:
    cuFileBatchIOSetUp cuFileBatchIOSubmit cuFileBatchIOGetStatus cuFileBatchIOCancel cuFileBatchIODestroy
}
