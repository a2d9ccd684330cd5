//! The registration of streams, which ends only when libcufile does not mix streams up.

use std::collections::{BTreeMap, HashMap};
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use crate::fork::Mutex;
use cufile_sys::CUstream;

use super::StreamFlags;
use crate::cuda::Stream;
use crate::driver::Driver;
use crate::error::{Error, Result, check};
use crate::patience::{PATIENCE, wait_until};

pub(super) struct Registered {
    pub(super) registration: Arc<Registration>,
    released: bool,
}

pub(super) struct Registration {
    // Not dropped in a forked child, where it would call CUDA.
    pub(super) stream: ManuallyDrop<Arc<Stream>>,
    pub(super) flags: StreamFlags,
    /// The number of shares. Changes only while the [`streams`] are locked.
    shares: AtomicUsize,
    used: AtomicBool,
    registered: AtomicBool,
    /// Locked for a submission, because libcufile aborts if two threads submit to one stream at once.
    pub(super) turn: Mutex<()>,
    pub(super) driver: Driver,
}

#[derive(Default)]
struct Streams {
    /// libcufile identifies a stream by its handle alone, not by its device or the code that registered it.
    registered: HashMap<usize, Weak<Registration>>,
    /// The number of streams that have done I/O and have a share.
    live: usize,
    /// Streams without a share that are still registered: another stream that has done I/O lives, or libcufile failed
    /// to deregister them. A registered stream must not be destroyed.
    parked: Vec<Arc<Registration>>,
}

fn streams() -> MutexGuard<'static, BTreeMap<usize, Streams>> {
    static STREAMS: Mutex<BTreeMap<usize, Streams>> = Mutex::of_static(BTreeMap::new());
    STREAMS.lock()
}

fn key(driver: &Driver) -> usize {
    driver.library().functions().cuFileStreamDeregister as usize
}

/// Returns one handle for the null stream, which has several in CUDA.
fn handle(stream: &Stream) -> usize {
    stream.as_raw().addr()
}

impl Registered {
    pub(super) fn new(driver: &Driver, stream: &Arc<Stream>, flags: StreamFlags) -> Result<Self> {
        const OPERATION: &str = "cuFileStreamRegister";
        driver.check_alive()?;
        let device = stream.device();
        let (ours, theirs) = (driver.cuda().runtime(), device.cuda().runtime());
        if !ptr::fn_addr_eq(ours.cudaEventRecord, theirs.cudaEventRecord) {
            return Err(Error::invalid(
                OPERATION,
                "the stream belongs to another libcudart than the driver's; create it with Driver::cuda",
            ));
        }
        let entered = device.enter()?;
        // Registering waits; other threads should not wait for the lock. A failure shows again below.
        let _ = stream.synchronize();
        let mut all = streams();
        let streams = all.entry(key(driver)).or_default();
        if let Some(registration) = streams.share(stream, flags)? {
            return Ok(Self { registration, released: false });
        }
        // SAFETY: the stream stays alive until it is deregistered, because `Registration` holds both.
        check(OPERATION, unsafe {
            (driver.library().functions().cuFileStreamRegister)(raw(stream), flags.bits())
        })?;
        drop(entered);
        let handle = handle(stream);
        let registration = Arc::new(Registration {
            stream: ManuallyDrop::new(Arc::clone(stream)),
            flags,
            shares: AtomicUsize::new(1),
            used: AtomicBool::new(false),
            registered: AtomicBool::new(true),
            turn: Mutex::default(),
            driver: driver.clone(),
        });
        streams.registered.retain(|_, registration| registration.strong_count() > 0);
        streams.registered.insert(handle, Arc::downgrade(&registration));
        Ok(Self { registration, released: false })
    }

    pub(super) fn mark_used(&self) {
        let Registration { used, driver, .. } = &*self.registration;
        if !used.load(Ordering::Acquire) {
            let mut all = streams();
            if !used.swap(true, Ordering::AcqRel) {
                all.entry(key(driver)).or_default().live += 1;
            }
        }
    }

    /// Gives the share back. The last one deregisters the stream, or parks it until that is safe. Dropping the
    /// share then has no effect.
    pub(super) fn release(&mut self) -> Result<()> {
        let Registration { stream, shares, used, driver, .. } = &*self.registration;
        // Before the lock, which may stay locked for ever in a forked child.
        driver.check_alive()?;
        // Deregistering waits; other threads should not wait for the lock. A failure shows again below.
        let _ = stream.synchronize();
        let mut all = streams();
        let streams = all.entry(key(driver)).or_default();
        // Where it is not safe yet, `give_back` parks it.
        let is_safe = !used.load(Ordering::Relaxed) || streams.live == 1;
        if shares.load(Ordering::Relaxed) == 1 && is_safe {
            self.registration.deregister()?;
        }
        let freed = streams.give_back(&self.registration);
        self.released = true;
        // That may take a while.
        drop(all);
        drop(freed);
        Ok(())
    }
}

impl Streams {
    fn share(&mut self, stream: &Stream, flags: StreamFlags) -> Result<Option<Arc<Registration>>> {
        let found = self.registered.get(&handle(stream)).and_then(Weak::upgrade);
        let Some(found) = found.filter(|found| found.registered.load(Ordering::Acquire)) else {
            return Ok(None);
        };
        let shares = found.shares.load(Ordering::Relaxed);
        if found.flags != flags || found.stream.device().ordinal() != stream.device().ordinal() {
            let what = "an earlier registration of the stream, with other flags or for another device,";
            // Other live streams, or libcufile, keep a parked one.
            let users = if shares > 0 { shares } else { self.live.max(1) };
            return Err(Error::InUse { what, users });
        }
        if shares == 0 {
            self.live += usize::from(found.used.load(Ordering::Relaxed));
            self.parked.retain(|parked| !Arc::ptr_eq(parked, &found));
        }
        found.shares.store(shares + 1, Ordering::Relaxed);
        Ok(Some(found))
    }

    /// Takes one share off. When no stream that has done I/O has a share left, deregisters the parked ones and
    /// returns them, so that the caller frees them. What libcufile fails to deregister stays parked.
    fn give_back(&mut self, registration: &Arc<Registration>) -> Vec<Arc<Registration>> {
        let others = registration.shares.fetch_sub(1, Ordering::Relaxed) - 1;
        if others > 0 {
            return Vec::new();
        }
        if registration.registered.load(Ordering::Relaxed) {
            self.parked.push(Arc::clone(registration));
        }
        self.live -= usize::from(registration.used.load(Ordering::Relaxed));
        if self.live > 0 {
            return Vec::new();
        }
        // Deregistering waits for the stream.
        let stays = |parked: &Arc<Registration>| {
            parked.stream.is_idle().is_ok_and(|is_idle| !is_idle) || parked.deregister().is_err()
        };
        let (stay, free) = mem::take(&mut self.parked).into_iter().partition(stays);
        self.parked = stay;
        free
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Ignored here; `RegisteredStream::deregister` returns the error. A stream that stays registered is
        // parked.
        let alive = self.registration.driver.is_alive();
        if self.released || !alive {
            return;
        }
        let idle = wait_until(PATIENCE, || self.registration.stream.is_idle());
        let is_busy = idle.is_ok_and(|is_idle| !is_idle);
        if is_busy || self.release().is_err() {
            let freed =
                streams().entry(key(&self.registration.driver)).or_default().give_back(&self.registration);
            drop(freed);
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
        // Parked registrations are never dropped, so a dropped one was deregistered.
        if self.driver.is_alive() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.stream) };
        }
    }
}

/// Returns the stream in the type of cuFile's header: the runtime's and the driver's streams are the same.
pub(super) fn raw(stream: &Stream) -> CUstream {
    stream.as_raw().cast()
}
