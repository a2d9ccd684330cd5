//! When a stream is registered and deregistered, so that libcufile does not mix streams up.

use std::collections::HashMap;
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use cufile_sys::CUstream;

use super::StreamFlags;
use crate::cuda::Stream;
use crate::driver::Driver;
use crate::error::{Error, Result, check};

pub(super) struct Registered {
    pub(super) registration: Arc<Registration>,
    /// Whether an operation was submitted.
    used: AtomicBool,
    /// Whether `release` has done its work.
    released: bool,
    /// Taken to submit, because libcufile aborts if two threads submit to one stream at a time.
    pub(super) turn: Arc<Mutex<()>>,
}

/// What libcufile knows of a stream.
pub(super) struct Registration {
    // Not dropped in a forked child, where it would call CUDA.
    pub(super) stream: ManuallyDrop<Arc<Stream>>,
    pub(super) flags: StreamFlags,
    registered: AtomicBool,
    pub(super) driver: Driver,
}

/// The streams of one libcufile that have done I/O.
#[derive(Default)]
struct Used {
    /// How many of them live.
    live: usize,
    /// Those that nobody has any more, still registered.
    parked: Vec<Arc<Registration>>,
}

/// The streams that have done I/O, by libcufile.
fn used() -> MutexGuard<'static, HashMap<usize, Used>> {
    static USED: LazyLock<Mutex<HashMap<usize, Used>>> = LazyLock::new(Mutex::default);
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`used`] knows a libcufile by.
fn key(driver: &Driver) -> usize {
    driver.library().functions().cuFileStreamDeregister as usize
}

/// What tells streams apart: device and handle.
type Identity = (u32, usize);

fn identity(stream: &Stream) -> Identity {
    let handle = match stream.as_raw().addr() {
        // `cudaStreamLegacy` is the null stream.
        0 | 1 => 0,
        other => other,
    };
    (stream.device().ordinal(), handle)
}

/// The turns of a CUDA stream, the same for all its registrations: the default stream, and streams made elsewhere, can
/// have several.
fn turn(stream: &Stream) -> Arc<Mutex<()>> {
    static TURNS: LazyLock<Mutex<HashMap<Identity, Weak<Mutex<()>>>>> = LazyLock::new(Mutex::default);
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.retain(|_, turn| turn.strong_count() > 0);
    let entry = turns.entry(identity(stream)).or_default();
    entry.upgrade().unwrap_or_else(|| {
        let new = Arc::default();
        *entry = Arc::downgrade(&new);
        new
    })
}

impl Registered {
    /// Registers the stream, unless it still is.
    pub(super) fn new(driver: &Driver, stream: Arc<Stream>, flags: StreamFlags) -> Result<Self> {
        const OPERATION: &str = "cuFileStreamRegister";
        driver.check_alive()?;
        let device = stream.device();
        let (ours, theirs) = (driver.cuda().runtime(), device.cuda().runtime());
        if !ptr::fn_addr_eq(ours.cudaEventRecord, theirs.cudaEventRecord) {
            return Err(Error::invalid(
                OPERATION,
                "the stream belongs to another libcudart than the driver's",
            ));
        }
        let entered = device.enter()?;
        let turn = turn(&stream);
        if let Some(registration) = used().entry(key(driver)).or_default().take(&stream, flags)? {
            return Ok(Self { registration, used: AtomicBool::new(true), released: false, turn });
        }
        // SAFETY: the stream stays alive until it is deregistered, because `Registration` holds both.
        check(OPERATION, unsafe {
            (driver.library().functions().cuFileStreamRegister)(raw(&stream), flags.bits())
        })?;
        drop(entered);
        let registration = Arc::new(Registration {
            stream: ManuallyDrop::new(stream),
            flags,
            registered: AtomicBool::new(true),
            driver: driver.clone(),
        });
        Ok(Self { registration, used: AtomicBool::new(false), released: false, turn })
    }

    /// Notes that the stream does I/O.
    pub(super) fn mark_used(&self) {
        if !self.used.load(Ordering::Acquire) {
            let mut all = used();
            if !self.used.swap(true, Ordering::AcqRel) {
                all.entry(key(&self.registration.driver)).or_default().live += 1;
            }
        }
    }

    /// Deregisters the stream, or parks it until that is safe. Nothing is left to do then when it is dropped.
    pub(super) fn release(&mut self) -> Result<()> {
        let driver = self.registration.driver.clone();
        // Before the lock, which may be held for ever in a forked child.
        driver.check_alive()?;
        if !self.used.load(Ordering::Acquire) {
            self.registration.deregister()?;
            self.released = true;
            return Ok(());
        }
        // Deregistering waits, but others should not have to. A failure comes again.
        let _ = self.registration.stream.synchronize();
        let mut all = used();
        let used = all.entry(key(&driver)).or_default();
        if used.live > 1 {
            used.parked.push(Arc::clone(&self.registration));
        } else {
            self.registration.deregister()?;
        }
        self.released = true;
        let parked = used.leave();
        // What is freed here may take a while.
        drop(all);
        drop(parked);
        Ok(())
    }
}

impl Used {
    /// The registration of a parked stream, which lives again.
    fn take(&mut self, stream: &Stream, flags: StreamFlags) -> Result<Option<Arc<Registration>>> {
        let same = |parked: &Arc<Registration>| identity(&parked.stream) == identity(stream);
        let Some(index) = self.parked.iter().position(same) else { return Ok(None) };
        if self.parked[index].flags != flags {
            let what = "an earlier registration of the stream, with other flags,";
            return Err(Error::InUse { what, users: self.live });
        }
        self.live += 1;
        Ok(Some(self.parked.swap_remove(index)))
    }

    /// One stream less; with the last, all that were parked are deregistered, and can be freed.
    fn leave(&mut self) -> Vec<Arc<Registration>> {
        self.live -= 1;
        if self.live > 0 {
            return Vec::new();
        }
        for registration in &self.parked {
            // There is nobody to tell.
            let _ = registration.deregister();
        }
        mem::take(&mut self.parked)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // `RegisteredStream::deregister` is for those who want the error.
        let alive = self.registration.driver.is_alive();
        if !self.released && alive && self.release().is_err() && *self.used.get_mut() {
            let parked = used().entry(key(&self.registration.driver)).or_default().leave();
            drop(parked);
        }
    }
}

impl Registration {
    fn deregister(&self) -> Result<()> {
        if !self.registered.load(Ordering::Acquire) {
            return Ok(());
        }
        let _entered = self.stream.device().enter()?;
        // SAFETY: registered in `Registered::new`, deregistered once, and the stream is still alive.
        check("cuFileStreamDeregister", unsafe {
            (self.driver.library().functions().cuFileStreamDeregister)(raw(&self.stream))
        })?;
        self.registered.store(false, Ordering::Release);
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.driver.is_alive() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.stream) };
        }
    }
}

/// The stream as cuFile's header has it: the runtime's and the driver's streams are the same.
pub(super) fn raw(stream: &Stream) -> CUstream {
    stream.as_raw().cast()
}
