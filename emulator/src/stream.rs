//! CUDA streams: queues of work on a device, and the order among them.
//!
//! The null stream (the handles 0 and 1) begins work after the earlier work of the device's other streams, except those
//! created as non-blocking. They begin work after the null stream's earlier work. Each thread has a blocking stream of its
//! own behind the handle 2. It ends with the thread, and its work is still done.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::process::abort;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cuda_rt_sys::driver::CUresult;
use cuda_rt_sys::runtime::cudaStreamNonBlocking;

use crate::control::{self, lock};
use crate::device;
use crate::queue::Queue;

/// The handle of each thread's own stream.
const PER_THREAD: usize = 2;

pub(crate) struct Stream {
    queue: Arc<Queue>,
    pub device: c_int,
    pub flags: u32,
    is_null: bool,
    host_functions: Arc<AtomicUsize>,
    is_prepared: AtomicBool,
    is_submitting: AtomicBool,
}

/// A call that submits a transfer, until it is dropped.
pub(crate) struct Submission<'a>(&'a Stream);

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        self.0.is_submitting.store(false, Ordering::SeqCst);
    }
}

static STREAMS: Mutex<Option<HashMap<usize, Arc<Stream>>>> = Mutex::new(None);
static NULL: Mutex<Option<HashMap<c_int, Arc<Stream>>>> = Mutex::new(None);
/// The streams of all threads, and destroyed ones, until their work is done.
static UNNAMED: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());
/// Locked while a blocking stream takes work, so that blocking streams keep the order of the calls.
static ORDER: Mutex<()> = Mutex::new(());
static NEXT: AtomicUsize = AtomicUsize::new(1);

struct OfThisThread(RefCell<HashMap<c_int, Arc<Stream>>>);

thread_local! {
    static OF_THIS_THREAD: OfThisThread = OfThisThread(RefCell::default());
}

impl Drop for OfThisThread {
    fn drop(&mut self) {
        // The queues of a fork's parent may stay locked for ever.
        if !control::forked() {
            self.0.get_mut().values().for_each(|stream| stream.queue.close());
        }
    }
}

impl Stream {
    /// # Errors
    /// `CUDA_ERROR_OPERATING_SYSTEM` if no thread can be started.
    fn start(device: c_int, flags: u32, is_null: bool) -> Result<Arc<Self>, CUresult> {
        let queue = Queue::start("emulated-stream").map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        let (host_functions, is_prepared, is_submitting) = Default::default();
        let stream = Self { queue, device, flags, is_null, host_functions, is_prepared, is_submitting };
        Ok(Arc::new(stream))
    }

    fn is_blocking(&self) -> bool {
        self.flags & cudaStreamNonBlocking == 0
    }

    pub(crate) fn push(&self, work: impl FnOnce() + Send + 'static) {
        if !self.is_blocking() {
            return self.queue.push(work);
        }
        let _order = lock(&ORDER);
        let before: Vec<_> = all(self.device)
            .into_iter()
            .filter(|other| other.is_blocking() && other.is_null != self.is_null && !other.queue.is_idle())
            .map(|other| (Arc::clone(&other.queue), other.queue.pushed()))
            .collect();
        self.queue.push(move || {
            before.iter().for_each(|(queue, count)| queue.wait_for(*count));
            work();
        });
    }

    pub(crate) fn push_host_function(&self, work: impl FnOnce() + Send + 'static) {
        let pending = Arc::clone(&self.host_functions);
        pending.fetch_add(1, Ordering::SeqCst);
        self.push(move || {
            work();
            pending.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Aborts if another thread is submitting a transfer to this stream, as libcufile does.
    pub(crate) fn begin_submission(&self) -> Submission<'_> {
        if self.is_submitting.swap(true, Ordering::SeqCst) {
            eprintln!(
                "cufile-emulator: aborting: two threads submit transfers to one stream at once, which aborts in libcufile; use a lock"
            );
            abort();
        }
        Submission(self)
    }

    /// Waits for pending functions of the host before the first transfer of device memory, as libcufile does when it prepares.
    /// Aborts if they stay pending.
    pub(crate) fn prepare(&self) {
        if self.is_prepared.swap(true, Ordering::SeqCst) {
            return;
        }
        let start = Instant::now();
        while self.host_functions.load(Ordering::SeqCst) > 0 {
            if start.elapsed() > Duration::from_millis(control::hang_ms()) {
                eprintln!(
                    "cufile-emulator: aborting: the first transfer of device memory in a stream returns after its pending host functions, and one of them does not end; libcufile hangs here"
                );
                abort();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn wait(&self) {
        self.queue.wait();
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }
}

/// Returns an address without a mapping, which is never reused.
pub(crate) fn fresh_handle() -> usize {
    0xE0_0000_0000 + 0x100 * NEXT.fetch_add(1, Ordering::Relaxed)
}

/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` if no thread can be started.
pub(crate) fn create(device: c_int, flags: u32) -> Result<usize, CUresult> {
    let (handle, stream) = (fresh_handle(), Stream::start(device, flags, false)?);
    lock(&STREAMS).get_or_insert_default().insert(handle, stream);
    Ok(handle)
}

/// Returns the stream: 0 and 1 are the null stream of the current device, and 2 is this thread's own.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`; or as [`create`], as the null stream and that of a thread start when first used.
pub(crate) fn find(handle: usize) -> Result<Arc<Stream>, CUresult> {
    let device = device::peek();
    let none = CUresult::CUDA_ERROR_INVALID_HANDLE;
    match handle {
        0 | 1 => started(lock(&NULL).get_or_insert_default(), device, || Stream::start(device, 0, true)),
        PER_THREAD => OF_THIS_THREAD.try_with(|streams| streams.get(device)).unwrap_or(Err(none)),
        _ => lock(&STREAMS).get_or_insert_default().get(&handle).cloned().ok_or(none),
    }
}

fn started(
    streams: &mut HashMap<c_int, Arc<Stream>>,
    device: c_int,
    start: impl FnOnce() -> Result<Arc<Stream>, CUresult>,
) -> Result<Arc<Stream>, CUresult> {
    match streams.entry(device) {
        Entry::Occupied(stream) => Ok(stream.get().clone()),
        Entry::Vacant(place) => Ok(place.insert(start()?).clone()),
    }
}

impl OfThisThread {
    fn get(&self, device: c_int) -> Result<Arc<Stream>, CUresult> {
        let start = || Stream::start(device, 0, false).inspect(keep_until_over);
        started(&mut self.0.borrow_mut(), device, start)
    }
}

fn keep_until_over(stream: &Arc<Stream>) {
    let mut streams = lock(&UNNAMED);
    streams.retain(|stream| !stream.queue.is_over());
    streams.push(Arc::clone(stream));
}

/// Forgets the handle; the stream's work still finishes.
pub(crate) fn destroy(handle: usize) -> bool {
    let removed = lock(&STREAMS).get_or_insert_default().remove(&handle);
    removed.is_some_and(|stream| {
        stream.queue.close();
        keep_until_over(&stream);
        true
    })
}

fn all(device: c_int) -> Vec<Arc<Stream>> {
    let mut streams: Vec<_> = lock(&STREAMS).get_or_insert_default().values().cloned().collect();
    streams.extend(lock(&NULL).get_or_insert_default().values().cloned());
    streams.extend(lock(&UNNAMED).iter().cloned());
    streams.retain(|stream| stream.device == device);
    streams
}

pub(crate) fn synchronise(device: c_int) {
    all(device).iter().for_each(|stream| stream.wait());
}

pub(crate) fn live() -> usize {
    lock(&STREAMS).get_or_insert_default().len()
}
