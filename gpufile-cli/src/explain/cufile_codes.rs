//! cuFile's codes: the usual cause of each, what to do, and the check that proves it.

use cufile::sys::CUfileOpError as Code;

use super::{CHECK, Entry, KERNEL_LOG, LOG, TRY};

/// Returns the entry of a code, positive or negative.
pub fn of(code: i32) -> Option<&'static Entry> {
    let code = code.unsigned_abs();
    TABLE.iter().find(|(known, _)| known.as_raw() == code).map(|(_, entry)| entry)
}

/// Returns what a code is called, positive or negative.
pub fn title(code: i32) -> String {
    let code = Code::from_raw(code.unsigned_abs());
    format!("{} ({})", code.name().unwrap_or("code"), code.as_raw())
}

const fn row(code: Code, cause: &'static str, remedy: &'static str, proof: &'static str) -> (Code, Entry) {
    (code, Entry { meaning: code.sentence(), cause, remedy, proof })
}

/// Every code, in the order of the numbers.
pub const TABLE: &[(Code, Entry)] = &[
    row(Code::CU_FILE_SUCCESS, "nothing went wrong", "nothing", TRY),
    row(
        Code::CU_FILE_DRIVER_NOT_INITIALIZED,
        "the driver did not open, most often because nvidia-fs is not loaded and allow_compat_mode is false; or a call \
         that needs an open driver came before it was opened or after its last close",
        "load nvidia-fs (`modprobe nvidia_fs` on the host), or set allow_compat_mode to true in cufile.json; open the \
         driver before you read statistics or close",
        CHECK,
    ),
    row(
        Code::CU_FILE_DRIVER_INVALID_PROPS,
        "cufile.json or a setter has a value that libcufile does not accept, or the file is no valid JSON",
        "correct the value in cufile.json, or leave it out, which gives the default",
        "`gpufile check` shows the file in force and the values that differ from the defaults",
    ),
    row(
        Code::CU_FILE_DRIVER_UNSUPPORTED_LIMIT,
        "a size or a count is outside its limits, or max_direct_io_size_kb is no multiple of 64",
        "ask for the limits of the parameter, and stay within them",
        "`gpufile check` shows the values that differ from the defaults",
    ),
    row(
        Code::CU_FILE_DRIVER_VERSION_MISMATCH,
        "nvidia-fs and libcufile are of different releases: a container or pip brought a newer libcufile than the host's \
         module, or the module was updated and not loaded again",
        "install nvidia-gds of the release of libcufile on the host and load the module again; or set CUFILE_LIBRARY to \
         the libcufile of the host's release",
        "`gpufile check` shows both versions; `cat /proc/driver/nvidia-fs/version` shows the module's",
    ),
    row(
        Code::CU_FILE_DRIVER_VERSION_READ_ERROR,
        "nvidia-fs is not loaded, or the container does not show /proc/driver/nvidia-fs",
        "load nvidia-fs on the host, and start the container again",
        "`cat /proc/driver/nvidia-fs/version`",
    ),
    row(
        Code::CU_FILE_DRIVER_CLOSING,
        "a thread uses cuFile while another one closes the driver; a buffer that is deregistered without an open driver \
         returns it too",
        "close the driver after the last transfer and the last deregistration",
        "a backtrace of all threads, taken in the call that fails",
    ),
    row(
        Code::CU_FILE_PLATFORM_NOT_SUPPORTED,
        "the processor, the kernel or the virtual machine (for example WSL) has no GPUDirect Storage",
        "allow the compatibility mode (allow_compat_mode in cufile.json), or use gpufile, which then reads without cuFile",
        CHECK,
    ),
    row(
        Code::CU_FILE_IO_NOT_SUPPORTED,
        "the file system, its mount options or its block device has no direct path, and the compatibility mode is off; \
         a user-space file system without RDMA returns it for device memory",
        "allow the compatibility mode (allow_compat_mode in cufile.json), or move the file to ext4 (data=ordered) or xfs \
         on an NVMe disk",
        CHECK,
    ),
    row(
        Code::CU_FILE_DEVICE_NOT_SUPPORTED,
        "the GPU has no GPUDirect: it is older than Pascal, a GeForce card, a slice that does not allow it, or not NVIDIA's",
        "allow the compatibility mode (allow_compat_mode in cufile.json), or use a data centre or RTX professional GPU",
        "`gpufile check` lists the GPUs; `nvidia-smi -L` names them",
    ),
    row(
        Code::CU_FILE_NVFS_DRIVER_ERROR,
        "a call into nvidia-fs failed: mapping GPU memory, or a transfer; the closed display driver with a newer nvidia-fs \
         does that too",
        "read the kernel's log; use the open NVIDIA kernel module with nvidia-fs 2.17.5 or newer; register less memory \
         than BAR1 has",
        KERNEL_LOG,
    ),
    row(
        Code::CU_FILE_CUDA_DRIVER_ERROR,
        "CUDA failed inside of libcufile; the error of CUDA stands beside this code. 3 means that the process is a fork of \
         one that used CUDA, 100 that there is no device, 201 that the thread has no current context",
        "look up the CUDA error with `gpufile explain`; make the context of the buffer current on the thread",
        "`nvidia-smi`, and `gpufile check --try PATH`",
    ),
    row(
        Code::CU_FILE_CUDA_POINTER_INVALID,
        "the pointer is not from CUDA, or its memory was freed",
        "pass the address of an allocation that still lives",
        "cuPointerGetAttribute for the pointer fails too",
    ),
    row(
        Code::CU_FILE_CUDA_MEMORY_TYPE_INVALID,
        "managed memory (cudaMallocManaged), an array or a texture was registered",
        "use managed memory without registering it, or allocate with cudaMalloc",
        "cudaPointerGetAttributes shows the kind of the memory",
    ),
    row(
        Code::CU_FILE_CUDA_POINTER_RANGE_ERROR,
        "the offset and the length go beyond the allocation",
        "register and transfer ranges within one allocation",
        "cuMemGetAddressRange shows where the allocation begins and ends",
    ),
    row(
        Code::CU_FILE_CUDA_CONTEXT_MISMATCH,
        "the current context of the thread is not that of the memory",
        "make the buffer's context current on the calling thread: cudaSetDevice, or cuCtxSetCurrent",
        "cuPointerGetAttribute with CU_POINTER_ATTRIBUTE_CONTEXT, compared with cuCtxGetCurrent",
    ),
    row(
        Code::CU_FILE_INVALID_MAPPING_SIZE,
        "more memory is accessed than the registration pinned",
        "register the whole range, or do not register it",
        LOG,
    ),
    row(
        Code::CU_FILE_INVALID_MAPPING_RANGE,
        "a transfer goes beyond the length that was registered",
        "register the whole range, or transfer less",
        LOG,
    ),
    row(
        Code::CU_FILE_INVALID_FILE_TYPE,
        "the descriptor is a folder, a device, a pipe or a socket",
        "open a regular file",
        "`stat FILE`; `gpufile check FILE` says what it is",
    ),
    row(
        Code::CU_FILE_INVALID_FILE_OPEN_FLAG,
        "the file is open with O_APPEND, O_NOFOLLOW or O_NONBLOCK, or for the other direction: a write to a file that is \
         open for reading",
        "open it for this direction, without these flags",
        "`gpufile check /proc/PID/fd/N` names the flags with which a program opened it",
    ),
    row(
        Code::CU_FILE_DIO_NOT_SET,
        "the direct path needs O_DIRECT, and the file was opened without it",
        "open the file with O_DIRECT, or use gpufile, which does",
        "`grep flags /proc/PID/fdinfo/N`: O_DIRECT is the octal digit 040000 on x86-64",
    ),
    row(
        Code::CU_FILE_INVALID_VALUE,
        "an argument is wrong: a negative offset, no bytes, no pointer, a descriptor of -1, a batch of 0 or of more entries \
         than io_batchsize, a stream that is registered twice, statistics at level 0",
        "check the arguments of the call that the message names",
        LOG,
    ),
    row(
        Code::CU_FILE_MEMORY_ALREADY_REGISTERED,
        "the address is registered already, by this program or a library in it",
        "register each buffer once, and deregister it before it is freed",
        LOG,
    ),
    row(
        Code::CU_FILE_MEMORY_NOT_REGISTERED,
        "the buffer was never registered, or is deregistered already; a user-space file system without RDMA returns it \
         for host memory",
        "register the buffer, or transfer without a registration",
        LOG,
    ),
    row(
        Code::CU_FILE_PERMISSION_DENIED,
        "this user may not open the devices of nvidia-fs (/dev/nvidia-fs*), or the file",
        "give the container the devices, and the user the permissions of the file",
        "`ls -l /dev/nvidia-fs*`, and `gpufile check FILE`",
    ),
    row(
        Code::CU_FILE_DRIVER_ALREADY_OPEN,
        "a parameter was set after the driver had opened, which the first registration or transfer does too",
        "set parameters before the first other call of cuFile",
        "a call of cuFileUseCount before the setter is not 0",
    ),
    row(
        Code::CU_FILE_HANDLE_NOT_REGISTERED,
        "libcufile from 1.15 on cannot learn the file system of the block device: /run/udev is not mounted into the \
         container, or there is no udev; up to 1.15 also tmpfs; or the handle was deregistered",
        "mount /run/udev of the host into the container (-v /run/udev:/run/udev:ro), or use ext4 or xfs on a local disk",
        "`gpufile check PATH` shows whether the block device has a udev record",
    ),
    row(
        Code::CU_FILE_HANDLE_ALREADY_REGISTERED,
        "the same file descriptor is registered already",
        "duplicate the descriptor, or use the handle that is there",
        LOG,
    ),
    row(
        Code::CU_FILE_DEVICE_NOT_FOUND,
        "no GPU is visible to the process",
        "unset CUDA_VISIBLE_DEVICES, and start the container with GPUs (--gpus all)",
        "`nvidia-smi -L` lists the GPUs",
    ),
    row(
        Code::CU_FILE_INTERNAL_ERROR,
        "libcufile up to 1.14 cannot learn the file system of the block device, as in a container without /run/udev, or \
         on tmpfs; starting statistics at level 0 returns it too",
        "mount /run/udev of the host into the container (-v /run/udev:/run/udev:ro); otherwise read libcufile's log",
        "`gpufile check PATH` shows whether the block device has a udev record; cufile.log has the reason",
    ),
    row(
        Code::CU_FILE_GETNEWFD_FAILED,
        "the process has as many open files as it may have",
        "raise the limit (`ulimit -n`), or close files",
        "`ls /proc/PID/fd | wc -l`, compared with `ulimit -n`",
    ),
    row(
        Code::CU_FILE_NVFS_SETUP_ERROR,
        "nvidia-fs is not loaded or does not answer; libcufile 1.11 to 1.15 returns it on a host without libcuda too",
        "load nvidia-fs on the host (`modprobe nvidia_fs`), or allow the compatibility mode",
        CHECK,
    ),
    row(
        Code::CU_FILE_IO_DISABLED,
        "the denylist of cufile.json has the file's folder, file system, mount or driver",
        "remove the entry from the list, or name another file in CUFILE_ENV_PATH_JSON",
        CHECK,
    ),
    row(
        Code::CU_FILE_BATCH_SUBMIT_FAILED,
        "an entry of the batch cannot be begun: its file is unlinked (measured), or a buffer or an offset is wrong",
        "submit only files that have a name, and check each entry",
        LOG,
    ),
    row(
        Code::CU_FILE_GPU_MEMORY_PINNING_FAILED,
        "the memory to register is more than BAR1 or max_device_pinned_mem_size_kb allows",
        "register less at a time, raise the limit in cufile.json, or turn on Resizable BAR in the firmware",
        "`nvidia-smi -q -d MEMORY` shows how much of BAR1 is used; `gpufile check` shows its size",
    ),
    row(
        Code::CU_FILE_BATCH_FULL,
        "the batch holds as many entries as it was made for",
        "reap completions before you submit more, or make a larger batch (at most 256 entries)",
        "the number of submitted entries that were not reaped",
    ),
    row(
        Code::CU_FILE_ASYNC_NOT_SUPPORTED,
        "stream-ordered transfers are not possible here: an old libcufile, an old driver, or another platform",
        "use libcufile 1.7 or newer and a newer display driver, or plain reads and writes",
        "`gpufile check` shows the versions",
    ),
    row(
        Code::CU_FILE_INTERNAL_BATCH_SETUP_ERROR,
        "libcufile has no resources for another batch (in libcufile up to 1.14, this number only ends the list of codes)",
        "destroy batches that are done, and try again",
        LOG,
    ),
    row(
        Code::CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR,
        "libcufile could not queue the entries",
        "submit fewer at a time, and try again",
        LOG,
    ),
    row(
        Code::CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR,
        "libcufile could not ask for the state of the batch",
        "try again; if it goes on, destroy the batch",
        LOG,
    ),
    row(
        Code::CU_FILE_INTERNAL_BATCH_CANCEL_ERROR,
        "libcufile could not cancel the batch",
        "wait for it, or destroy it, which waits",
        LOG,
    ),
    row(
        Code::CU_FILE_NOMEM_ERROR,
        "host memory ran out, or the limit of the container or of locked memory is reached",
        "give the process more memory (`ulimit -l unlimited`, the limits of the container), or use smaller bounce buffers",
        "`ulimit -l`, and `memory.events` of the control group",
    ),
    row(
        Code::CU_FILE_IO_ERROR,
        "the storage failed the transfer, or the file is open only for the other direction",
        "read the kernel's log for errors of the disk or the network; read the file without cuFile to compare",
        "`gpufile bench FILE -I read -x posix` reads the same bytes without cuFile",
    ),
    row(
        Code::CU_FILE_INTERNAL_BUF_REGISTER_ERROR,
        "libcufile could not keep a record of the buffer",
        "deregister buffers that are no longer used, or transfer without a registration",
        LOG,
    ),
    row(
        Code::CU_FILE_HASH_OPR_ERROR,
        "libcufile's own table of files or buffers failed, for example because a handle was freed twice",
        "deregister each handle and each buffer once",
        LOG,
    ),
    row(
        Code::CU_FILE_INVALID_CONTEXT_ERROR,
        "the thread has no current CUDA context, or the context was destroyed",
        "make the buffer's context current on the calling thread: cudaSetDevice, or cuCtxSetCurrent",
        "cuCtxGetCurrent returns no context on that thread",
    ),
    row(
        Code::CU_FILE_NVFS_INTERNAL_DRIVER_ERROR,
        "nvidia-fs failed inside",
        "read the kernel's log, and load the module again when no process uses it",
        KERNEL_LOG,
    ),
    row(
        Code::CU_FILE_BATCH_NOCOMPAT_ERROR,
        "an entry of the batch has no direct path, and the compatibility mode is off",
        "allow the compatibility mode (allow_compat_mode in cufile.json), or move the file",
        CHECK,
    ),
    row(
        Code::CU_FILE_IO_MAX_ERROR,
        "a program printed the end of the list of codes; it is never returned",
        "print the code that the call returned",
        LOG,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_of_the_bindings_has_an_entry() {
        let named: Vec<Code> = (0..10_000).map(Code::from_raw).filter(|code| code.name().is_some()).collect();
        let listed: Vec<Code> = TABLE.iter().map(|(code, _)| *code).collect();
        assert_eq!(listed, named);
        assert!(named.len() >= 49);
    }
}
