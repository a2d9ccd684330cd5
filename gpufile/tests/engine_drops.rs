//! Tests of engines whose last reference is dropped: by a thread that holds a lock, or before a stream has come to a
//! transfer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cufile::cuda::DeviceBuffer;
use cufile::{IoBuf, IoBufMut, Location};
use gpufile::{Engine, File, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::in_flight::Gate;

const MIB: usize = 1 << 20;
/// A length of more than one turn of all slots.
const LONG: usize = (35 << 20) + 4321;

/// True while pauses of this process end at once, so that a wait for 30 seconds takes no time.
static IS_HURRIED: AtomicBool = AtomicBool::new(false);

/// Takes the place of the C library's function, which `std::thread::sleep` calls.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: libc::clockid_t,
    flags: libc::c_int,
    request: *const libc::timespec,
    rest: *mut libc::timespec,
) -> libc::c_int {
    if IS_HURRIED.load(Ordering::Relaxed) {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, request, rest) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL),
    }
}

/// Memory that can be freed only with a lock, as Python's.
struct Locked {
    memory: DeviceBuffer,
    lock: Arc<Mutex<()>>,
    is_dropping: Arc<AtomicBool>,
    is_dropped: Arc<AtomicBool>,
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.is_dropping.store(true, Ordering::SeqCst);
        drop(self.lock.lock().unwrap());
        self.is_dropped.store(true, Ordering::SeqCst);
    }
}

// SAFETY: the memory inside keeps the promise.
unsafe impl IoBuf for Locked {
    fn as_ptr(&self) -> *const u8 {
        IoBuf::as_ptr(&self.memory)
    }

    fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    fn location(&self) -> Location {
        IoBuf::location(&self.memory)
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Locked {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        IoBufMut::as_mut_ptr(&mut self.memory)
    }
}

fn soon(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::yield_now();
    }
}

fn open(bed: &Bed) -> File {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(2).build();
    File::options().read(true).engine(&engine).policy(RoutePolicy::PosixOnly).open(bed.path("data")).unwrap()
}

#[test]
fn dropping_an_engine_waits_for_no_foreign_lock() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(8 * MIB));
    let lock = Arc::new(Mutex::new(()));
    let [is_dropping, is_dropped] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let file = open(&bed);
    let engine = file.engine().clone();
    // A worker has the transfer when it is dropped.
    let copies = bed.emulator.as_ref().unwrap().hold("cudaEventQuery", "times=all");
    let held = lock.lock().unwrap();
    let future = file.read_at_async(
        Locked {
            memory: bed.device.alloc(8 * MIB).unwrap(),
            lock: lock.clone(),
            is_dropping: is_dropping.clone(),
            is_dropped: is_dropped.clone(),
        },
        0,
    );
    copies.wait_for(1);
    drop((future, file));
    copies.release();
    soon("a worker drops the buffer", || is_dropping.load(Ordering::SeqCst));
    // A failure is told from a thread of its own, because this one would wait for ever.
    let ended = Arc::new(AtomicBool::new(false));
    let dropping = {
        let ended = ended.clone();
        thread::spawn(move || {
            drop(engine);
            ended.store(true, Ordering::SeqCst);
        })
    };
    soon("the engine is dropped", || ended.load(Ordering::SeqCst));
    dropping.join().unwrap();
    assert!(!is_dropped.load(Ordering::SeqCst));
    drop(held);
    soon("the buffer is dropped", || is_dropped.load(Ordering::SeqCst));
}

#[test]
fn the_thread_that_drops_an_engine_frees_its_memory() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("data", &pattern(8 * MIB));
    let live =
        || ["pinned-bytes", "device-bytes", "streams", "events", "use-count"].map(|what| emulator.live(what));
    let mut buffer = bed.device.alloc(8 * MIB).unwrap();
    let stream = bed.device.stream().unwrap();
    let before = live();
    for _ in 0..20 {
        let file = open(&bed);
        file.read_exact_at(&mut buffer, 0).unwrap();
        file.read_at_on_stream(&stream, vec![0; MIB], 0).wait().0.unwrap();
        drop(file);
        assert_eq!(live(), before);
    }
}

#[test]
fn transfers_given_up_serve_their_stream() {
    let bed = Bed::emulated();
    let bytes = pattern(LONG);
    bed.file("data", &bytes);
    for on_host in [false, true] {
        let stream = bed.device.stream().unwrap();
        let file = open(&bed);
        let gate = Gate::close(&stream);
        let mut found = bed.device.alloc_pinned(LONG).unwrap();
        let read = |found: &mut [u8], source| {
            // SAFETY: both live until the stream has been waited for: the buffer is leaked.
            unsafe { stream.copy_from_device(found, source) }.unwrap();
        };
        // The last references to the file and its engine are those of the transfer.
        IS_HURRIED.store(true, Ordering::Relaxed);
        if on_host {
            let io = file.read_at_on_stream(&stream, vec![0; LONG], 0);
            let at = io.buffer_ptr().expose_provenance();
            drop(file);
            drop(io);
            IS_HURRIED.store(false, Ordering::Relaxed);
            gate.open();
            stream.synchronize().unwrap();
            // SAFETY: the buffer is leaked, and the transfer has ended.
            let leaked =
                unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(at), LONG) };
            assert!(*leaked == *bytes);
        } else {
            let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
            read(&mut found, io.buffer_ptr());
            drop(file);
            drop(io);
            IS_HURRIED.store(false, Ordering::Relaxed);
            gate.open();
            stream.synchronize().unwrap();
            assert!(*found == *bytes);
        }
    }
}
