//! The commands of tests.

use std::ffi::{c_char, c_longlong};

use crate::{c, control, device, event, exports, kernels, memory, stream, virtual_memory};

/// Runs one command, and returns −1 for anything else. The emulator runs the commands in `CUFILE_EMULATOR`, separated
/// by `;`, at its first use. At the first call of each function, it appends the function's name to the file that
/// `CUFILE_EMULATOR_CALLS` names.
///
/// | command | |
/// |---|---|
/// | `version 1140` | the emulated cuFile version; 1200 by default. Functions that it lacks are not found from then on |
/// | `runtime-version 12080` | the version that libcudart and libcuda report; 13000 by default |
/// | `driver-version 12080` | the CUDA version that the display driver supports; the runtime's by default |
/// | `gpus N` | the number of GPUs, 0 to 16; 2 by default |
/// | `peer-group N` | GPUs can use each other's memory within groups of N by ordinal; 1 to 16, 16 by default |
/// | `compute-capability MAJOR MINOR` | that of the GPUs, which decides which cubins they take; 9 0 by default |
/// | `reverse-completions 0\|1` | whether a batch runs its entries from the last to the first |
/// | `require-context 0\|1` | whether cuFile refuses device memory (5047) unless its device's context is current |
/// | `nvidia-fs MAJOR MINOR STATUS` | the version of the kernel module, and the file systems and devices for which it has a direct path (`dstatusflags`). The bytes move in the same way. 0 0 0, which means no module, by default |
/// | `p2pdma 0\|1` | whether the driver reports PCI P2PDMA; the bytes move in the same way |
/// | `concurrent-managed 0\|1` | whether the host may touch managed memory while the GPU works. With 0, touching memory allocated from then on faults, as if the GPU always worked |
/// | `capturing 0\|1` | whether another stream is captured for a graph in the default (global) mode. Allocating, waiting, querying and loading modules then fail (900) on threads that have not changed their mode |
/// | `rmw 0\|1` | whether a write to a descriptor with `O_DIRECT` reads, changes and writes whole blocks of 4 KiB if its file offset or length is not a multiple of 4096 bytes. libcufile does so on a direct path, and concurrent writes to one block lose bytes; 1 by default |
/// | `hang-ms N` | after how many milliseconds a call that never returns from libcufile ends the process; 20000 by default |
/// | `fault FUNCTION SETTING…` | changes the next call of a function, or of `batch-entry` |
/// | `clear` | removes the faults |
/// | `held` | returns the number of calls and queued operations that wait because of `hold` |
/// | `release` | lets them go on, and removes the faults with `hold`; returns their number |
/// | `calls FUNCTION` | returns the number of calls of the function |
/// | `live WHAT` | returns the number of live `allocations`, `device-bytes`, `pinned-bytes` (with those of registrations), `host-registrations`, `reservations`, `physical`, `streams`, `events`, `modules`, `contexts`, `handles`, `direct-handles` (with `O_DIRECT`), `buffers`, `batches`, `communicators`, `stream-registrations`, or the `use-count`. `peak-gpu-bytes` is the most bytes of memory that one GPU ever had at a time |
///
/// Settings of a fault:
///
/// | setting | |
/// |---|---|
/// | `after=N` | skips the next N calls, even those changed by other faults |
/// | `times=M`, `times=all` | applies to M calls, or to all, rather than to one |
/// | `err=CODE` | the code that the function returns; a reading or writing call returns −1 with it |
/// | `cu=CODE` | the CUDA error in a cuFile status; without `err`, the status is 5011 |
/// | `ret=N` | the return value of a reading or writing call |
/// | `errno=E` | a reading or writing call returns −1 with this errno |
/// | `short=BYTES` | a reading or writing call moves at most so many bytes |
/// | `bytes=N` | a stream-ordered operation or a batch entry reports this count and moves no bytes |
/// | `status=S` | the state of a batch entry, or of a stream's capture for `cudaStreamIsCapturing`. The state that `ncclCommGetAsyncError` reports. The error with which the kernel of `cuLaunchKernel` fails in its turn: it copies nothing, and from then on CUDA's calls on that GPU return the error |
/// | `delay_us=T` | waits T microseconds before the call, or before its queued work |
/// | `hold=1` | waits there until `release` |
///
/// A fault on `cuFileBatchIOSubmit` without `err` applies to each submitted entry.
///
/// # Safety
/// `command` must be null or end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn emulator_control(command: *const c_char) -> c_longlong {
    let Some(line) = c::text(command) else { return -1 };
    let mut words = line.split_whitespace();
    let answer = match (words.next(), words.next(), words.next()) {
        // The objects have their own locks, and some take that of the settings while they hold theirs.
        (Some("live"), Some(what), None) => live(what),
        (Some("held"), None, None) => Some(control::held() as i64),
        (Some("release"), None, None) => Some(control::release() as i64),
        _ => control::apply(&line),
    };
    answer.unwrap_or(-1)
}

fn live(what: &str) -> Option<i64> {
    Some(match what {
        "allocations" => memory::live_allocations(),
        "device-bytes" => (0..control::gpus()).map(memory::used).sum(),
        "peak-gpu-bytes" => memory::peak(),
        "pinned-bytes" => memory::pinned_bytes(),
        "host-registrations" => memory::live_registrations(),
        "reservations" => virtual_memory::live_reservations(),
        "physical" => virtual_memory::live_physical(),
        "streams" => stream::live(),
        "events" => event::live(),
        "modules" => kernels::live_modules(),
        "contexts" => device::live_contexts(),
        "handles" => exports::live_handles(),
        "direct-handles" => exports::live_direct_handles(),
        "buffers" => exports::live_buffers(),
        "communicators" => exports::live_comms(),
        "batches" => exports::live_batches(),
        "stream-registrations" => exports::live_stream_registrations(),
        "use-count" => exports::use_count(),
        _ => return None,
    } as i64)
}
