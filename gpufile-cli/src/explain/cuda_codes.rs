//! The codes of the CUDA driver and runtime, whose numbers mean the same in both. Codes that files and their transfers
//! do not cause are grouped.

use cuda_rt_sys::driver::CUresult;
use cuda_rt_sys::runtime::cudaError_t;

use super::{CHECK, Entry, SMI, TRY};

/// The codes, and what is known about them.
type Row = (&'static [u32], Entry);

/// Returns the entry of a code.
pub fn of(code: u32) -> Option<&'static Entry> {
    TABLE.iter().find(|(codes, _)| codes.contains(&code)).map(|(_, entry)| entry)
}

/// Returns what a code is called: the name of the driver, that of the runtime, and the number.
pub fn title(code: u32) -> String {
    let names = [CUresult::from_raw(code).name(), cudaError_t::from_raw(code).name()];
    let names: Vec<&str> = names.into_iter().flatten().collect();
    format!("{} (CUDA {code})", names.join(", "))
}

/// Returns the code of a name, of the driver or the runtime.
pub fn named(name: &str) -> Option<u32> {
    let is_it = |found: Option<&str>| found.is_some_and(|found| found.eq_ignore_ascii_case(name));
    if !name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("cuda")) {
        return None;
    }
    numbers()
        .find(|code| is_it(CUresult::from_raw(*code).name()) || is_it(cudaError_t::from_raw(*code).name()))
}

/// Returns every number that has a name.
pub fn numbers() -> impl Iterator<Item = u32> {
    let has_name = |code: &u32| {
        CUresult::from_raw(*code).name().is_some() || cudaError_t::from_raw(*code).name().is_some()
    };
    // Numbers from 10,000 on are the runtime's base for other libraries.
    (0..1_500).chain(10_000..10_050).filter(has_name)
}

const fn row(
    codes: &'static [u32],
    meaning: &'static str,
    cause: &'static str,
    remedy: &'static str,
    proof: &'static str,
) -> Row {
    (codes, Entry { meaning, cause, remedy, proof })
}

const SANITIZER: &str = "`compute-sanitizer PROGRAM` names the kernel and the access";
const XID: &str = "`dmesg | grep Xid` shows what the GPU reported";

pub const TABLE: &[Row] = &[
    row(&[0], "the call succeeded", "nothing went wrong", "nothing", TRY),
    row(
        &[1],
        "an argument is invalid",
        "an address is not from CUDA, a size is 0 or too large, or the GPU does not have the feature",
        "check the arguments of the call that the message names",
        "`compute-sanitizer PROGRAM` names the call",
    ),
    row(
        &[2],
        "memory ran out: of the GPU, or pinned memory of the host",
        "another process holds the memory of the GPU; or pinned memory is limited by the container's memory or by memlock",
        "free memory or allocate less; a smaller GPUFILE_BOUNCE_MEMORY pins less; raise the limits of the container",
        "`nvidia-smi` shows the memory of the GPU and who holds it; `ulimit -l` the memory that may be locked",
    ),
    row(
        &[3],
        "CUDA is not initialised in this process",
        "the process is a fork of one that had used CUDA, where CUDA cannot work; or cuInit was not called",
        "use CUDA first in the child (multiprocessing: the method spawn), or call exec",
        "the same program without the fork works",
    ),
    row(
        &[4],
        "the CUDA library is shutting down",
        "a destructor or an atexit function uses CUDA while the process ends",
        "close files, buffers and the driver before `main` returns",
        "a backtrace of the call shows exit or a destructor",
    ),
    row(
        &[34],
        "a stub took the place of libcuda",
        "the search of libraries found the toolkit's lib64/stubs/libcuda.so, which is only for linking",
        "remove the folder of stubs from LD_LIBRARY_PATH, or set CUDA_LIBRARY to libcuda.so.1 of the display driver",
        "`gpufile check` shows the file of libcuda that it loaded",
    ),
    row(
        &[35],
        "the display driver is older than the CUDA runtime, or missing",
        "libcudart came with pip or the container, and the host's driver is older; or there is no driver",
        "update the display driver, or set CUDART_LIBRARY to an older libcudart",
        "`gpufile check` shows the versions of libcuda and libcudart",
    ),
    row(
        &[36],
        "the call needs a newer display driver",
        "the display driver is older than the call",
        "update the display driver",
        "`gpufile check` shows the version of libcuda",
    ),
    row(
        &[46],
        "the GPU is taken or unavailable",
        "another process has the GPU in the exclusive mode, or the GPU waits for a reset or is in the wrong MIG mode",
        "end the other process, or set the compute mode to the default (`nvidia-smi -c 0`); give the process a MIG slice",
        "`nvidia-smi -q -d COMPUTE` shows the mode, `nvidia-smi` the processes",
    ),
    row(
        &[100],
        "no GPU is visible",
        "CUDA_VISIBLE_DEVICES is empty, the container was started without GPUs, or the kernel module did not find the GPU",
        "unset CUDA_VISIBLE_DEVICES, start the container with `--gpus all`, or look for the GPU with nvidia-smi",
        "`nvidia-smi -L` lists the GPUs; `gpufile check` says how many are on the PCI bus",
    ),
    row(
        &[101],
        "there is no GPU of that number",
        "the number counts from 0 and follows CUDA_VISIBLE_DEVICES; or MIG slices are named wrongly",
        "use a number below the count of visible GPUs",
        "`gpufile check` lists the GPUs with their numbers",
    ),
    row(
        &[102, 103],
        "the GPU has no licence or no valid software",
        "a virtual GPU did not get its licence",
        "let the virtual machine reach the licence server",
        "`nvidia-smi -q` shows the licence",
    ),
    row(
        &[127, 304],
        "CUDA could not start, or a call of the operating system failed in it",
        "the devices /dev/nvidia* are missing or forbidden, a limit of the process is reached, or the kernel module and the \
         library differ",
        "compare the versions, and give the container all devices (the NVIDIA Container Toolkit does)",
        SMI,
    ),
    row(
        &[200, 209, 218, 221, 222, 223, 300, 301, 302, 303],
        "a kernel's code cannot be loaded",
        "it is not built for this GPU, needs a newer driver or its compiler, or a file or a symbol is missing",
        "update the display driver, or build the kernel for this GPU; gpufile then copies scattered ranges without kernels",
        "`gpufile check` shows whether the kernels of gpufile load",
    ),
    row(
        &[201],
        "the thread has no valid CUDA context",
        "no context is current on the calling thread, or it was destroyed",
        "call cudaSetDevice (or cuCtxSetCurrent) on each thread that uses CUDA or cuFile",
        "cuCtxGetCurrent returns no context on that thread",
    ),
    row(
        &[709, 708],
        "the context is destroyed, or already active",
        "other code reset the device or destroyed the context while it was in use",
        "do not call cudaDeviceReset while files are open; make a new engine afterwards",
        "a breakpoint on cudaDeviceReset and cuDevicePrimaryCtxReset",
    ),
    row(
        &[202, 216, 401],
        "the context or the handle is in a state that does not allow the call",
        "the context is in use by another thread, or the call came in the wrong order",
        "order the calls",
        "`compute-sanitizer PROGRAM` names the call",
    ),
    row(
        &[205, 206, 207, 208, 210, 211, 212, 213],
        "memory could not be mapped or unmapped",
        "it is mapped already or not at all, or BAR1 is full",
        "unmap first; register less memory",
        "`nvidia-smi -q -d MEMORY` shows how much of BAR1 is used",
    ),
    row(
        &[214, 220, 226],
        "the GPU or NVLink reported an error of the hardware",
        "memory of the GPU or a link is faulty",
        "reset the GPU, and replace it if the error comes back",
        XID,
    ),
    row(
        &[215, 224, 225, 227, 801, 811, 812],
        "the GPU, the driver or the platform does not support the call",
        "the feature is missing: for cuFile over P2PDMA, the open kernel module with static BAR1; in WSL and virtual \
         machines, memory pools and GPUDirect",
        "nothing, if another route works; otherwise a newer driver, the open kernel module, or another GPU",
        CHECK,
    ),
    row(
        &[217, 704, 705, 711],
        "the GPUs cannot use each other's memory, or that is switched on already",
        "they are on different root ports or virtual; or too many GPUs are connected",
        "nothing: gpufile then copies between GPUs through the host",
        "`nvidia-smi topo -p2p r` shows which pairs can",
    ),
    row(
        &[400],
        "a handle is invalid",
        "a stream or an event was destroyed, or belongs to another context",
        "keep streams and events until everything that uses them is done",
        "`compute-sanitizer PROGRAM` names the call",
    ),
    row(
        &[500],
        "a name was not found",
        "the library or the kernel has no symbol of this name: it is too old",
        "update the display driver",
        "`gpufile check` shows the versions",
    ),
    row(
        &[402, 600],
        "the work is not done yet",
        "an event or a stream was asked while it still works; that is an answer, not a failure",
        "wait for it",
        "cudaStreamSynchronize succeeds",
    ),
    row(
        &[700, 714, 715, 716, 717, 718, 719, 710, 721],
        "a kernel or a copy failed on the GPU; the context cannot be used any more",
        "a wild address, freed memory, or an assertion in a kernel, often of an earlier call: the error shows up later",
        "end the process; look for the first failing kernel with CUDA_LAUNCH_BLOCKING=1",
        SANITIZER,
    ),
    row(
        &[701, 702, 720, 912],
        "a kernel needs more than the GPU has, or took too long",
        "too many threads or registers for this GPU, or a screen's watchdog",
        "launch fewer threads; run on a GPU without a screen",
        SANITIZER,
    ),
    row(
        &[712],
        "the host memory is pinned already",
        "the same pages were registered twice, perhaps by another library",
        "register each range once",
        "a breakpoint on cudaHostRegister",
    ),
    row(
        &[713],
        "the host memory is not pinned",
        "memory was unpinned that CUDA did not pin, or twice",
        "unpin each range once, with the address with which it was pinned",
        "a breakpoint on cudaHostUnregister",
    ),
    row(
        &[800],
        "the call is not permitted",
        "it was made in a callback of a stream, while a stream is captured, or in a slice or a container that forbids it",
        "call it outside of callbacks and captures",
        "a backtrace of the call",
    ),
    row(
        &[802],
        "the GPUs are there, but the system is not ready",
        "on machines with NVSwitch (HGX, DGX), the fabric manager does not run, or it is of another version than the driver",
        "`systemctl start nvidia-fabricmanager`, in the version of the display driver",
        "`nvidia-smi -q | grep -A2 Fabric` shows the state; `systemctl status nvidia-fabricmanager`",
    ),
    row(
        &[803],
        "the display driver's library and its kernel module differ in version",
        "the driver was updated without a restart, or the container has its own libcuda",
        "restart the machine (or load the modules again); remove libcuda from the container's image",
        "`nvidia-smi` fails too; `cat /proc/driver/nvidia/version` shows the module's version",
    ),
    row(
        &[804],
        "the package for forward compatibility does not work with this GPU",
        "cuda-compat of the container is used on a GPU that is not for data centres",
        "remove cuda-compat from LD_LIBRARY_PATH, or update the host's driver",
        "`gpufile check` shows the file of libcuda: it is in a folder compat",
    ),
    row(
        &[805, 806, 807, 808, 809, 810],
        "the Multi-Process Service (MPS) failed",
        "its server does not run, has no place for another client, or ended with a client's error",
        "start nvidia-cuda-mps-control again, or unset CUDA_MPS_PIPE_DIRECTORY",
        "`echo get_server_list | nvidia-cuda-mps-control`; its log is in CUDA_MPS_LOG_DIRECTORY",
    ),
    row(
        &[900, 901, 902, 903, 904, 905, 906, 907, 908, 910, 913, 914, 915, 917, 918],
        "work could not be captured into a graph",
        "a transfer was made in a stream that is being captured, which neither cuFile nor gpufile supports",
        "move files outside of the capture",
        "the same call without the capture works",
    ),
    row(
        &[909, 911, 916, 919, 47],
        "another device or the fabric of the GPUs did not answer",
        "the fabric manager, a confidential machine's keys, or a device outside of CUDA is not ready",
        "look at the services of the machine, then try again",
        XID,
    ),
    row(
        &[999],
        "CUDA failed and does not say of what",
        "the GPU fell off the bus, nvidia-uvm is not loaded or its device is missing, or the machine slept",
        "load the modules again (`modprobe nvidia-uvm`) or restart the machine; give the container /dev/nvidia-uvm",
        "`nvidia-smi`, and `dmesg | grep -e NVRM -e Xid`",
    ),
    row(
        &[5, 6, 7, 8],
        "the profiler of CUDA is off, or was started or stopped twice",
        "old calls of the profiler",
        "remove them; current tools do not need them",
        "the program runs without them",
    ),
    row(
        &[219],
        "the graphics context is invalid",
        "the GPU does not draw the screen from which memory is shared",
        "use the GPU of the screen",
        SMI,
    ),
    row(
        &[
            9, 10, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 37, 43, 44, 45, 49,
            52, 53, 65, 66, 67, 68, 69, 98, 703, 10_000,
        ],
        "a call of the CUDA runtime was wrong",
        "a launch, a symbol, a texture or a copy has arguments that do not fit; transfers of files do not return it",
        "check the arguments of the call that the message names",
        SANITIZER,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_of_driver_and_runtime_has_one_entry() {
        let mut found = 0;
        for code in numbers() {
            let rows = TABLE.iter().filter(|(codes, _)| codes.contains(&code)).count();
            assert_eq!(rows, 1, "{}", title(code));
            found += 1;
        }
        assert!(found > 140, "{found}");
        let listed: usize = TABLE.iter().map(|(codes, _)| codes.len()).sum();
        assert_eq!(listed, found, "a row lists a number that has no name");
    }

    /// Codes that cuInit, opening a device and the runtime's first call return on machines that are not set up.
    #[test]
    fn codes_at_start_have_entries_of_their_own() {
        for code in [2, 3, 34, 35, 36, 46, 100, 101, 802, 803, 804, 999] {
            let row = TABLE.iter().find(|(codes, _)| codes.contains(&code)).unwrap();
            assert_eq!(row.0, [code]);
        }
    }

    #[test]
    fn names_lead_to_numbers() {
        assert_eq!(named("CUDA_ERROR_SYSTEM_NOT_READY"), Some(802));
        assert_eq!(named("cudaErrorSystemNotReady"), Some(802));
        assert_eq!(named("cudaErrorNothing"), None);
        assert_eq!(title(802), "CUDA_ERROR_SYSTEM_NOT_READY, cudaErrorSystemNotReady (CUDA 802)");
    }
}
