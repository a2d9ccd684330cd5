//! The test's control of the emulator: the emulated version, faults, and queries about calls and live objects.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use cufile_sys::Functions;

use crate::newer;

/// The changes to one call, which `None` leaves as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The error code that the function returns, in its own type: cuFile's, `cudaError_t` or `CUresult`.
    pub err: Option<i64>,
    /// `cu_err` of a cuFile status.
    pub cu: Option<i64>,
    /// The value that a reading or writing call returns.
    pub ret: Option<i64>,
    /// `errno` with which a reading or writing call returns −1.
    pub errno: Option<i64>,
    pub short: Option<i64>,
    /// The byte count that a stream-ordered operation or batch entry reports without moving any.
    pub bytes: Option<i64>,
    /// The state of a batch entry, or of a stream's capture, or the error of a kernel.
    pub status: Option<i64>,
    /// Microseconds to wait before the call, or before the queued work of the call.
    pub delay: Option<i64>,
    /// The number of releases before the call, which waits for the next one.
    pub hold: Option<u64>,
}

impl Hit {
    pub(crate) fn sleep(&self) {
        if let Some(delay) = self.delay {
            thread::sleep(Duration::from_micros(delay.unsigned_abs()));
        }
        if let Some(before) = self.hold {
            Held::wait(before);
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn limit(&self, size: usize) -> usize {
        self.short.map_or(size, |short| size.min(short.unsigned_abs() as usize))
    }
}

struct Held {
    waiting: usize,
    releases: u64,
}

static HELD: Mutex<Held> = Mutex::new(Held { waiting: 0, releases: 0 });
static RELEASED: Condvar = Condvar::new();
/// A test that hangs ends with an abort.
const LONGEST_HOLD: Duration = Duration::from_secs(300);

impl Held {
    fn wait(before: u64) {
        let mut held = lock(&HELD);
        held.waiting += 1;
        while held.releases == before {
            let waited = RELEASED.wait_timeout(held, LONGEST_HOLD).unwrap_or_else(PoisonError::into_inner);
            held = waited.0;
            if waited.1.timed_out() {
                eprintln!("a call was held, and nothing released it");
                std::process::abort();
            }
        }
        held.waiting -= 1;
    }

    /// Returns the number of those that waited.
    fn release() -> usize {
        let mut control = lock(&CONTROL);
        control.faults.retain(|fault| fault.hit.hold.is_none());
        let mut held = lock(&HELD);
        held.releases += 1;
        RELEASED.notify_all();
        held.waiting
    }
}

struct Fault {
    function: String,
    skip: u64,
    left: u64,
    hit: Hit,
}

/// The properties of nvidia-fs; zeros if the kernel module is not loaded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NvidiaFs {
    pub major: u32,
    pub minor: u32,
    /// The file systems and devices with a direct path, as bits.
    pub status: u32,
}

struct Control {
    version: c_int,
    runtime_version: c_int,
    driver_version: Option<c_int>,
    gpus: c_int,
    peer_group: c_int,
    compute_capability: (c_int, c_int),
    reverse_completions: bool,
    require_context: bool,
    nvidia_fs: NvidiaFs,
    p2pdma: bool,
    concurrent_managed: bool,
    capturing: bool,
    rmw: bool,
    hang_ms: u64,
    faults: Vec<Fault>,
    calls: HashMap<&'static str, u64>,
    notes: Option<File>,
}

/// The execution of one batch entry, which can be counted and made to fail like a C function.
pub(crate) const BATCH_ENTRY: &str = "batch-entry";

const NEWEST: c_int = Functions::RELEASES[Functions::RELEASES.len() - 1].1;

static CONTROL: LazyLock<Mutex<Control>> = LazyLock::new(|| {
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
    let mut control = Control {
        version: NEWEST,
        runtime_version: 13000,
        driver_version: None,
        gpus: 2,
        peer_group: 16,
        compute_capability: (9, 0),
        reverse_completions: false,
        require_context: false,
        nvidia_fs: NvidiaFs::default(),
        p2pdma: false,
        concurrent_managed: true,
        capturing: false,
        rmw: true,
        hang_ms: 20_000,
        faults: Vec::new(),
        calls: HashMap::new(),
        notes: std::env::var_os("CUFILE_EMULATOR_CALLS").map(|path| {
            File::options().append(true).create(true).open(&path).unwrap_or_else(|error| {
                eprintln!("CUFILE_EMULATOR_CALLS: {}: {error}", path.display());
                std::process::abort();
            })
        }),
    };
    for line in std::env::var("CUFILE_EMULATOR").unwrap_or_default().split(';') {
        if !line.trim().is_empty() && control.apply(line).is_none() {
            eprintln!(
                "CUFILE_EMULATOR: unknown command {line:?}; the docs of emulator_control list all commands"
            );
            std::process::abort();
        }
    }
    Mutex::new(control)
});

static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Returns whether this process is the child of one that used the emulator. It lacks the parent's threads, and locks
/// may stay locked for ever, so every call must fail before it takes a lock.
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the emulated cuFile version: 1000 × major + 10 × minor.
pub(crate) fn version() -> c_int {
    lock(&CONTROL).version
}

pub(crate) fn runtime_version() -> c_int {
    lock(&CONTROL).runtime_version
}

pub(crate) fn driver_version() -> c_int {
    let control = lock(&CONTROL);
    control.driver_version.unwrap_or(control.runtime_version)
}

pub(crate) fn gpus() -> c_int {
    lock(&CONTROL).gpus
}

pub(crate) fn are_peers(device: c_int, other: c_int) -> bool {
    let group = lock(&CONTROL).peer_group;
    device != other && device / group == other / group
}

pub(crate) fn compute_capability() -> (c_int, c_int) {
    lock(&CONTROL).compute_capability
}

/// Returns whether the entries of a batch complete from the last to the first.
pub(crate) fn reverse_completions() -> bool {
    lock(&CONTROL).reverse_completions
}

/// Returns whether transfers require the context of the buffer's device.
pub(crate) fn require_context() -> bool {
    lock(&CONTROL).require_context
}

pub(crate) fn nvidia_fs() -> NvidiaFs {
    lock(&CONTROL).nvidia_fs
}

pub(crate) fn p2pdma() -> bool {
    lock(&CONTROL).p2pdma
}

/// Returns whether the host may touch managed memory at any time.
pub(crate) fn concurrent_managed() -> bool {
    lock(&CONTROL).concurrent_managed
}

pub(crate) fn capturing() -> bool {
    lock(&CONTROL).capturing
}

/// Returns the milliseconds after which a call that hangs in libcufile ends the process.
pub(crate) fn hang_ms() -> u64 {
    lock(&CONTROL).hang_ms
}

pub(crate) fn rmw() -> bool {
    lock(&CONTROL).rmw
}

/// Returns `None` if the line is no command that changes the emulator or returns the number of calls.
pub(crate) fn apply(line: &str) -> Option<i64> {
    lock(&CONTROL).apply(line)
}

pub(crate) fn held() -> usize {
    lock(&HELD).waiting
}

/// Removes the faults with `hold`, and returns the number of calls released.
pub(crate) fn release() -> usize {
    Held::release()
}

/// Counts a call of `name` and returns the faults due in it.
pub(crate) fn enter(name: &'static str) -> Hit {
    if forked() {
        return Hit::default();
    }
    let mut control = lock(&CONTROL);
    let calls = control.calls.entry(name).or_default();
    *calls += 1;
    if *calls == 1 {
        control.note(name);
    }
    let mut chosen = None;
    // Every fault counts every call; of several due faults, the oldest applies.
    for fault in control.faults.iter_mut().filter(|fault| fault.function == name && fault.left > 0) {
        if fault.skip > 0 {
            fault.skip -= 1;
        } else if chosen.is_none() {
            fault.left -= 1;
            chosen = Some(fault.hit);
        }
    }
    control.faults.retain(|fault| fault.left > 0);
    let mut hit = chosen.unwrap_or_default();
    hit.hold = hit.hold.map(|_| lock(&HELD).releases);
    hit
}

impl Control {
    /// Makes one write, because other emulators append to the file too.
    fn note(&mut self, name: &str) {
        if let Some(notes) = &mut self.notes
            && let Err(error) = notes.write_all(format!("{name}\n").as_bytes())
        {
            eprintln!("CUFILE_EMULATOR_CALLS: {error}");
            std::process::abort();
        }
    }

    fn apply(&mut self, line: &str) -> Option<i64> {
        let mut words = line.split_whitespace();
        let command = words.next()?;
        let rest: Vec<&str> = words.collect();
        match (command, rest.as_slice()) {
            ("version", [version]) => {
                self.version = version.parse().ok()?;
                newer::pose_as(self.version);
            }
            ("runtime-version", [version]) => self.runtime_version = version.parse().ok()?,
            ("driver-version", [version]) => self.driver_version = Some(version.parse().ok()?),
            ("gpus", [count]) => self.gpus = count.parse().ok().filter(|count| (0..=16).contains(count))?,
            ("peer-group", [count]) => {
                self.peer_group = count.parse().ok().filter(|count| (1..=16).contains(count))?;
            }
            ("compute-capability", [major, minor]) => {
                self.compute_capability = (major.parse().ok()?, minor.parse().ok()?);
            }
            ("reverse-completions", [on]) => self.reverse_completions = flag(on)?,
            ("require-context", [on]) => self.require_context = flag(on)?,
            ("nvidia-fs", [major, minor, status]) => {
                let number = |word: &str| word.parse().ok();
                self.nvidia_fs =
                    NvidiaFs { major: number(major)?, minor: number(minor)?, status: number(status)? };
            }
            ("p2pdma", [on]) => self.p2pdma = flag(on)?,
            ("concurrent-managed", [on]) => self.concurrent_managed = flag(on)?,
            ("capturing", [on]) => self.capturing = flag(on)?,
            ("rmw", [on]) => self.rmw = flag(on)?,
            ("hang-ms", [limit]) => self.hang_ms = limit.parse().ok()?,
            ("fault", [function, settings @ ..]) => self.faults.push(fault(function, settings)?),
            ("clear", []) => self.faults.clear(),
            ("calls", [function]) if is_function(function) => {
                return Some(self.calls.get(function).copied().unwrap_or(0) as i64);
            }
            _ => return None,
        }
        Some(0)
    }
}

fn flag(word: &str) -> Option<bool> {
    match word {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn fault(function: &str, settings: &[&str]) -> Option<Fault> {
    if !is_function(function) {
        return None;
    }
    let mut fault = Fault { function: function.to_owned(), skip: 0, left: 1, hit: Hit::default() };
    for setting in settings {
        let (key, value) = setting.split_once('=')?;
        if (key, value) == ("times", "all") {
            fault.left = u64::MAX;
            continue;
        }
        let number: i64 = value.parse().ok()?;
        match key {
            "after" => fault.skip = number.try_into().ok()?,
            "times" => fault.left = number.try_into().ok()?,
            "err" => fault.hit.err = Some(number),
            "cu" => fault.hit.cu = Some(number),
            "ret" => fault.hit.ret = Some(number),
            "errno" => fault.hit.errno = Some(number),
            "short" => fault.hit.short = Some(number),
            "bytes" => fault.hit.bytes = Some(number),
            "status" => fault.hit.status = Some(number),
            "delay_us" => fault.hit.delay = Some(number),
            "hold" => fault.hit.hold = (number != 0).then_some(0),
            _ => return None,
        }
    }
    Some(fault)
}

const NCCL: [&str; 11] = [
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclAllGather",
    "ncclBroadcast",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclGetErrorString",
];

fn is_function(name: &str) -> bool {
    let tables = [
        cufile_sys::Functions::SYMBOLS,
        cuda_rt_sys::runtime::Functions::SYMBOLS,
        cuda_rt_sys::driver::Functions::SYMBOLS,
    ];
    name == BATCH_ENTRY
        || NCCL.contains(&name)
        || tables.into_iter().flatten().any(|symbol| symbol.name == name)
}
