//! Faults: the function that fails, the calls that fail, and the effect.

use std::fmt;

use testkit::Emulator;
use testkit::random::Random;

use crate::interpose::{self, Effect, Function};
use crate::plan::{Op, Plan};

#[derive(Clone)]
pub struct Fault {
    target: Target,
    /// Calls that succeed before.
    skip: u64,
    times: u64,
}

#[derive(Clone)]
enum Target {
    C { function: Function, effect: Effect },
    Emulator { function: &'static str, setting: String },
}

/// The functions that move bytes come first in either table, and fail more often than the others.
const MOVING: usize = 4;

const C: &[(Function, &[i32])] = &[
    (interpose::PREAD, &[libc::EIO, libc::EINTR, libc::EINVAL]),
    (interpose::PWRITE, &[libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EINTR, libc::EINVAL]),
    (interpose::PREADV, &[libc::EIO, libc::EINTR, libc::EINVAL]),
    (interpose::PWRITEV, &[libc::EIO, libc::ENOSPC, libc::EINTR, libc::EINVAL]),
    (interpose::PROCESS_VM_READV, &[libc::EFAULT, libc::EPERM, libc::ENOSYS]),
    (interpose::PROCESS_VM_WRITEV, &[libc::EFAULT, libc::EPERM, libc::ENOSYS]),
    (interpose::FALLOCATE, &[libc::ENOSPC, libc::EOPNOTSUPP, libc::EINTR, libc::EIO]),
    (interpose::FTRUNCATE, &[libc::EIO, libc::EINTR]),
    (interpose::MMAP, &[libc::ENOMEM, libc::ENODEV, libc::EACCES]),
    (interpose::MADVISE, &[libc::ENOMEM, libc::EINVAL]),
    (interpose::MINCORE, &[libc::ENOMEM, libc::EAGAIN]),
    (interpose::CACHESTAT, &[libc::ENOSYS, libc::EOPNOTSUPP]),
    (interpose::FSYNC, &[libc::EIO, libc::ENOSPC]),
    (interpose::FDATASYNC, &[libc::EIO]),
    (interpose::OPEN, &[libc::EMFILE, libc::ENFILE, libc::EINTR, libc::EACCES, libc::EINVAL]),
    (interpose::OPENAT, &[libc::EMFILE, libc::EINTR, libc::EACCES, libc::ENOSPC]),
    (interpose::CLOSE, &[libc::EIO, libc::EINTR]),
    (interpose::FCNTL, &[libc::EMFILE, libc::EINVAL]),
    (interpose::FSTATFS, &[libc::EIO, libc::EINTR]),
    (interpose::FSTAT, &[libc::EIO]),
    (interpose::STATX, &[libc::EIO, libc::ENOMEM]),
    (interpose::RENAME, &[libc::EIO, libc::ENOSPC]),
    (interpose::UNLINK, &[libc::EIO, libc::EACCES]),
    (interpose::PTHREAD_CREATE, &[libc::EAGAIN]),
    (interpose::FADVISE, &[libc::EINVAL]),
];

/// Settings of `cufile_emulator::emulator_control`.
const EMULATED: &[(&str, &[&str])] = &[
    ("cuFileRead", &["errno=5", "errno=4", "err=5011", "err=5030", "short=1", "short=4096", "short=70000"]),
    ("cuFileWrite", &["errno=5", "errno=28", "errno=4", "err=5011", "short=1", "short=4096", "short=70000"]),
    ("cudaMemcpyAsync", &["err=1", "err=700", "err=-1", "delay_us=500"]),
    ("cuLaunchKernel", &["err=1", "err=700", "err=701", "delay_us=500"]),
    ("cuPointerGetAttribute", &["err=999"]),
    ("cuFileHandleRegister", &["err=5026", "err=5008", "cu=2"]),
    ("cuFileBufDeregister", &["err=5008"]),
    ("cuFileDriverGetProperties", &["err=5001"]),
    ("cuFileGetParameterBool", &["err=5001"]),
    ("cudaMalloc", &["err=2"]),
    ("cudaMemset", &["err=1", "err=700"]),
    ("cudaHostAlloc", &["err=2", "err=1"]),
    ("cudaHostRegister", &["err=2", "err=1"]),
    ("cudaFree", &["err=1", "err=700"]),
    ("cudaFreeHost", &["err=1", "err=700"]),
    ("cudaHostUnregister", &["err=1", "err=700"]),
    ("cudaGetLastError", &["err=2"]),
    ("cudaEventCreateWithFlags", &["err=2", "err=999"]),
    ("cudaEventDestroy", &["err=999"]),
    ("cudaEventQuery", &["err=600", "err=700", "err=999"]),
    ("cudaEventRecord", &["err=1", "err=700"]),
    ("cudaEventSynchronize", &["err=1", "err=700"]),
    ("cudaStreamCreateWithFlags", &["err=2", "err=999"]),
    ("cudaStreamDestroy", &["err=999"]),
    ("cudaStreamIsCapturing", &["err=1"]),
    ("cudaStreamSynchronize", &["err=1", "err=700"]),
    ("cudaStreamWaitEvent", &["err=1", "err=999"]),
    ("cudaLaunchHostFunc", &["err=1", "err=2", "delay_us=500"]),
    ("cudaThreadExchangeStreamCaptureMode", &["err=1"]),
    ("cuCtxGetCurrent", &["err=3"]),
    ("cuCtxGetDevice", &["err=201"]),
    ("cuCtxPopCurrent_v2", &["err=201"]),
    ("cuCtxPushCurrent_v2", &["err=201"]),
    ("cuDeviceGetPCIBusId", &["err=999"]),
    ("cuDevicePrimaryCtxRetain", &["err=2"]),
    ("cuModuleGetFunction", &["err=2", "err=500"]),
    ("cuModuleLoadData", &["err=2", "err=209", "err=222", "err=801"]),
    ("cuModuleUnload", &["err=1"]),
    ("cuStreamBatchMemOp_v2", &["err=801", "err=1"]),
];

const TOLD_OF_C: &[Function] = &[interpose::PWRITE, interpose::FSYNC, interpose::RENAME];
const TOLD: &[&str] = &["cuFileRead", "cuFileWrite"];

/// Functions whose caller cannot go on without them, or that have no result.
pub const SPARED: &[&str] = &[
    "cuDeviceGet",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuFileBufRegister",
    "cuFileDriverClose_v2",
    "cuFileDriverOpen",
    "cuFileGetVersion",
    "cuFileHandleDeregister",
    "cuInit",
    "cudaMallocManaged",
    "cudaMemcpy",
    "cudaRuntimeGetVersion",
    // A failure of it tells that the stream is dead, so what the stream uses stays.
    "cudaStreamQuery",
];

pub fn forgotten(emulator: &Emulator) -> Vec<&'static str> {
    let symbols = [
        cufile_sys::Functions::SYMBOLS,
        cuda_rt_sys::runtime::Functions::SYMBOLS,
        cuda_rt_sys::driver::Functions::SYMBOLS,
    ];
    let is_known = |name: &str| SPARED.contains(&name) || EMULATED.iter().any(|(known, _)| *known == name);
    let names = symbols.into_iter().flatten().map(|symbol| symbol.name);
    names.filter(|name| !is_known(name) && emulator.calls(name) > 0).collect()
}

/// Resources that may be left after a failed call that frees.
pub const MAY_LEAVE: &[(&str, &[&str])] = &[
    ("cudaFree", &["allocations", "device-bytes"]),
    ("cudaFreeHost", &["allocations", "pinned-bytes"]),
    ("cudaHostUnregister", &["allocations", "pinned-bytes", "host-registrations"]),
    ("cudaEventDestroy", &["events"]),
    ("cuModuleUnload", &["modules"]),
    // Resources that libcufile may still use stay.
    ("cuFileBufDeregister", &["buffers", "allocations", "device-bytes"]),
    // An emulated stream is a thread.
    ("cudaStreamDestroy", &["streams", "threads"]),
    // Without its context nothing can be freed.
    ("cuCtxGetCurrent", ALL),
    ("cuCtxPushCurrent_v2", ALL),
    ("cuCtxPopCurrent_v2", ALL),
    ("cudaThreadExchangeStreamCaptureMode", ALL),
];

const ALL: &[&str] = &[
    "allocations",
    "buffers",
    "device-bytes",
    "events",
    "host-registrations",
    "modules",
    "pinned-bytes",
    "streams",
    "threads",
];

impl Fault {
    pub fn random(random: &mut Random) -> Self {
        let most = random.pick(&[1, 1, 4, 16, 64]);
        let skip = random.below(most) as u64;
        let times = random.pick(&[1, 1, 1, 2, 5, u64::MAX]);
        let target = if random.one_in(2) {
            let (function, codes) = if random.one_in(2) { random.pick(&C[..MOVING]) } else { random.pick(C) };
            let effect = match random.below(8) {
                0 => Effect::Delay(200),
                1 | 2 if function <= interpose::PROCESS_VM_WRITEV => {
                    Effect::Short(random.pick(&[1, 511, 4096, 5000, 100_000]))
                }
                _ => Effect::Errno(random.pick(codes)),
            };
            Target::C { function, effect }
        } else {
            let moving = random.one_in(2);
            let (function, settings) = random.pick(if moving { &EMULATED[..MOVING] } else { EMULATED });
            Target::Emulator { function, setting: random.pick(settings).to_owned() }
        };
        // Effects that slow each byte or each call down, or ask for another call, would take long or for ever.
        let is_slow = match &target {
            Target::C { effect, .. } => {
                matches!(effect, Effect::Short(_) | Effect::Delay(_) | Effect::Errno(libc::EINTR))
            }
            Target::Emulator { setting, .. } => {
                ["short", "delay", "errno=4", "err=600"].iter().any(|start| setting.starts_with(start))
            }
        };
        Self { target, skip, times: if is_slow { times.min(5) } else { times } }
    }

    /// Returns faults that strike together, of a device that fails or has no space.
    pub fn of_storage(random: &mut Random) -> Vec<Self> {
        let code = random.pick(&[libc::EIO, libc::ENOSPC]);
        let most = random.pick(&[1, 4, 16]);
        let skip = random.below(most) as u64;
        let times = random.pick(&[1, 2, 5, u64::MAX]);
        vec![
            Self::of_c(interpose::PWRITE, Effect::Errno(code), skip, times),
            Self::of_c(interpose::PWRITEV, Effect::Errno(code), skip, times),
            // This is the call that writes to mappings.
            Self::of_c(interpose::PROCESS_VM_READV, Effect::Errno(libc::EFAULT), skip, times),
        ]
    }

    /// Returns the fault without which another can never strike.
    pub fn needed_beside(faults: &[Self]) -> Option<Self> {
        let is_mincore =
            |fault: &Self| matches!(fault.target, Target::C { function: interpose::MINCORE, .. });
        let no_cachestat = || Self::of_c(interpose::CACHESTAT, Effect::Errno(libc::ENOSYS), 0, u64::MAX);
        faults.iter().any(is_mincore).then(no_cachestat)
    }

    /// Returns a fault that [`random`](Self::random) does not make.
    pub fn of_c(function: Function, effect: Effect, skip: u64, times: u64) -> Self {
        Self { target: Target::C { function, effect }, skip, times }
    }

    /// Counts the strikes that must have been reported, because the engine can neither work around them nor call again.
    /// A save on a full file system removes a temporary file that was left, and begins again. If the engine `repeats`
    /// calls of CUDA and cuFile, none of their failures counts.
    fn to_be_told(&self, calls: u64, plan: &Plan, is_file_left: bool, repeats: bool) -> u64 {
        // On a direct route cuFile writes in several steps. If a later one fails, it returns the bytes that it wrote,
        // and the engine writes the rest by another call. On each route cuFile writes by `pwrite`.
        let is_made_up_for = |function| (plan.gds || repeats) && function == interpose::PWRITE;
        let is_told = match &self.target {
            Target::C { effect: Effect::Errno(libc::EINTR | libc::EINVAL | libc::EOPNOTSUPP), .. } => false,
            Target::C { effect: Effect::Errno(libc::ENOSPC | libc::EDQUOT), .. } if is_file_left => false,
            Target::C { function, effect: Effect::Errno(_) } => {
                TOLD_OF_C.contains(function) && !is_made_up_for(*function)
            }
            Target::C { .. } => false,
            Target::Emulator { function, setting } => {
                let is_failure = setting.starts_with("err") && !setting.starts_with("errno=4");
                !repeats && is_failure && TOLD.contains(function)
            }
        };
        if is_told { calls.saturating_sub(self.skip).min(self.times) } else { 0 }
    }

    fn function(&self) -> &'static str {
        match self.target {
            Target::C { function, .. } => interpose::NAMES[function],
            Target::Emulator { function, .. } => function,
        }
    }

    pub fn plan(&self, emulator: &Emulator) {
        match &self.target {
            Target::C { function, effect } => interpose::plan(*function, self.skip, self.times, *effect),
            Target::Emulator { function, setting } => {
                let times = if self.times == u64::MAX { "all".to_owned() } else { self.times.to_string() };
                emulator.fault(function, &format!("after={} times={times} {setting}", self.skip));
            }
        }
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::C { function, effect } => write!(f, "{}: {effect:?}", interpose::NAMES[*function]),
            Target::Emulator { function, setting } => write!(f, "{function}: {setting}"),
        }?;
        write!(f, " after {} calls, {} times", self.skip, self.times)
    }
}

/// The numbers of calls of each function, and of those with a fault.
#[derive(Debug, Default, Clone)]
pub struct Counts(pub Vec<(&'static str, u64, u64)>);

impl Counts {
    /// Takes the counts so far; the strikes of the emulator follow from the planned faults.
    pub fn now(emulator: &Emulator) -> Self {
        let of_c = interpose::NAMES.iter().zip(interpose::counts());
        let emulated = EMULATED.iter().map(|(name, _)| (*name, emulator.calls(name) as u64, 0));
        Self(of_c.map(|(name, (calls, struck))| (*name, calls, struck)).chain(emulated).collect())
    }

    pub fn since(&self, before: &Self, faults: &[Fault]) -> Self {
        let mut counts = Vec::new();
        for (now, before) in self.0.iter().zip(&before.0) {
            let (name, calls) = (now.0, now.1 - before.1);
            let emulated = faults.iter().filter(|fault| {
                matches!(&fault.target, Target::Emulator { function, setting }
                    if *function == name && !setting.starts_with("delay"))
            });
            let struck = emulated.map(|fault| calls.saturating_sub(fault.skip).min(fault.times)).sum::<u64>();
            counts.push((name, calls, (now.2 - before.2 + struck).min(calls)));
        }
        Self(counts)
    }

    pub fn add(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0 = other.0.iter().map(|(name, ..)| (*name, 0, 0)).collect();
        }
        for (sum, one) in self.0.iter_mut().zip(&other.0) {
            sum.1 += one.1;
            sum.2 += one.2;
        }
    }

    /// Counts the strikes that must have been reported. Leaves out functions that several faults strike.
    pub fn to_be_told(&self, plan: &Plan) -> u64 {
        let faults = &plan.faults;
        let calls =
            |fault: &Fault| self.0.iter().find(|one| one.0 == fault.function()).map_or(0, |one| one.1);
        let is_alone =
            |fault: &&Fault| faults.iter().filter(|other| other.function() == fault.function()).count() == 1;
        let is_file_left = self.is_struck(interpose::NAMES[interpose::UNLINK]);
        let repeats = plan.threads.iter().flat_map(|thread| &thread.ops).any(Op::repeats);
        let told = |fault: &Fault| fault.to_be_told(calls(fault), plan, is_file_left, repeats);
        faults.iter().filter(is_alone).map(told).sum()
    }

    pub fn struck(&self) -> u64 {
        self.0.iter().map(|(.., struck)| struck).sum()
    }

    pub fn is_struck(&self, name: &str) -> bool {
        self.0.iter().any(|(function, _, struck)| *function == name && *struck > 0)
    }
}
