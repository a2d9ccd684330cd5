//! Troubles of the process: contexts, libraries, limits.

use super::super::Entry;
use super::Trouble;

pub const TROUBLES: &[Trouble] = &[
    Trouble {
        title: "A stream-ordered transfer reports -5",
        seen: &["bytes_written_p =-5", "-5", "cuFileReadAsync(\"/data/x\"): Input/output error (os error 5)"],
        marks: &[
            "bytes_written_p",
            "bytes_read_p",
            "-5",
            "bytes_written: -5",
            "bytes_read: -5",
            "cufilereadasync*input/output error",
            "cufilewriteasync*input/output error",
        ],
        entry: Entry {
            meaning: "cuFileReadAsync or cuFileWriteAsync returned success, and the byte count says later that the transfer \
                      failed with errno 5",
            cause: "the buffer is not registered and its offset is not 0: libcufile takes such memory to be as long as the \
                    transfer (measured with 1.16 and 1.20); or the storage failed",
            remedy: "register the whole buffer, or pass its address plus the offset and an offset of 0; keep sizes, offsets and \
                     counts alive until the stream has run",
            proof: "the same transfer with an offset of 0, or with cuFileRead, works",
        },
    },
    Trouble {
        title: "No CUDA context on the thread",
        seen: &[
            "cuFileRead(\"/data/x\"): CU_FILE_CUDA_DRIVER_ERROR (5011), a call to the CUDA driver failed, CUDA_ERROR_INVALID_CONTEXT (201)",
            "CU_FILE_INVALID_CONTEXT_ERROR (5047), the CUDA context is invalid",
            "-12",
        ],
        marks: &["invalid_context", "invalid device context", "no current context", "-12"],
        entry: Entry {
            meaning: "cuFile needs the context of the buffer to be current on the thread that calls it",
            cause: "a thread of a pool never called cudaSetDevice; a stream-ordered transfer then reports a byte count of -12",
            remedy: "call cudaSetDevice (or cuCtxSetCurrent) on each thread; gpufile and cufile do so",
            proof: "cuCtxGetCurrent on that thread returns no context",
        },
    },
    Trouble {
        title: "A crash when the process ends",
        seen: &[
            "Segmentation fault (core dumped)",
            "exited with code 139",
            "cudaErrorCudartUnloading: driver shutting down",
        ],
        marks: &[
            "segmentation fault",
            "driver shutting down",
            "sigsegv",
            "code 139",
            "code: 139",
            "status 139",
        ],
        entry: Entry {
            meaning: "the process crashed; with cuFile, most often while it ends",
            cause: "the driver is closed, or transfers still run, after CUDA's own end: a destructor of a static object, an \
                    atexit function, or Python's end with open files; operations of streams that nobody waited for do it too",
            remedy: "wait for all transfers, then close files, buffers and the driver before `main` returns",
            proof: "`gdb -batch -ex run -ex bt --args PROGRAM`: the frames show exit, libcufile and libcuda",
        },
    },
    Trouble {
        title: "A library is not found",
        seen: &[
            "libcufile.so.0: cannot open shared object file: No such file or directory",
            "libcufile could not be loaded (to choose a file, set CUFILE_LIBRARY to its path)",
            "libcudart.so: cannot open shared object file: No such file or directory",
            "could not find cuFile cuFileDriverOpen symbol",
        ],
        marks: &[
            "cannot open shared object",
            "could not be loaded (to choose a file",
            "could not find cufile",
            "dlopen",
        ],
        entry: Entry {
            meaning: "the dynamic loader finds no such file",
            cause: "CUDA or libcufile is not installed, lies in a folder that the loader does not search (a Python environment, \
                    /usr/local/cuda), or the container has only the driver",
            remedy: "pip install nvidia-cufile nvidia-cuda-runtime, or install nvidia-gds; set CUFILE_LIBRARY, CUDART_LIBRARY \
                     or CUDA_LIBRARY to the file; libcuda comes with the display driver only",
            proof: "`gpufile check --verbose` lists every file that was tried, and why not",
        },
    },
    Trouble {
        title: "A library lacks a function",
        seen: &[
            "undefined symbol: cuFileReadv",
            "symbol lookup error: app: undefined symbol: cuFileGetParameterPosixPoolSlabArray",
        ],
        marks: &["undefined symbol: cu", "undefined symbol cu"],
        entry: Entry {
            meaning: "the program was linked for a newer libcufile, CUDA runtime or driver than the one that was loaded",
            cause: "several versions are installed, and the loader finds an older one first: LD_LIBRARY_PATH, a package of \
                    pip, or the image of a container",
            remedy: "install the newer libcufile, or remove the older one from the loader's path; gpufile and cufile load \
                     functions one by one, and return an error only for those that are missing",
            proof: "`LD_DEBUG=libs PROGRAM 2>&1 | grep cufile`; `gpufile check` shows the version and the file of each library",
        },
    },
    Trouble {
        title: "libcufile misses liburcu",
        seen: &["ERROR  0:140 unable to load,  liburcu-bp.so.6"],
        marks: &["liburcu"],
        entry: Entry {
            meaning: "libcufile looks for the library liburcu-bp in several versions, and did not find this one",
            cause: "the package of liburcu is not installed; a line for one version is harmless if another one is found",
            remedy: "install liburcu (Debian: liburcu8 or liburcu6, Red Hat: userspace-rcu)",
            proof: "`ldconfig -p | grep liburcu`; later lines of cufile.log say whether the driver opened",
        },
    },
    Trouble {
        title: "nvidia-fs, the driver and libcufile drift apart",
        seen: &[
            "cuFileDriverOpen: CU_FILE_DRIVER_VERSION_MISMATCH (5004), the nvidia-fs kernel module does not match this libcufile",
            "Failed to initialize NVML: Driver/library version mismatch",
            "nvidia_fs: disagrees about version of symbol nvidia_p2p_get_pages",
            "NVRM: API mismatch: the client has the version 580.95.05, but this kernel module has the version 570.86.10",
        ],
        marks: &[
            "version mismatch",
            "version_mismatch",
            "driver_mismatch",
            "disagrees about version of symbol",
            "api mismatch",
        ],
        entry: Entry {
            meaning: "parts of NVIDIA's software that belong together are of different versions",
            cause: "an update of the driver without a restart, a container or pip that brings a newer libcufile than the host's \
                    nvidia-fs, or a module that was built for another driver",
            remedy: "restart after updates; keep nvidia-gds, nvidia-fs and the driver of one release on the host; set \
                     CUFILE_LIBRARY to the libcufile of that release",
            proof: "`gpufile check` shows the versions of libcufile, nvidia-fs and the driver; `cat /proc/driver/nvidia/version`",
        },
    },
    Trouble {
        title: "The batch is too large",
        seen: &[
            "cuFileBatchIOSetUp: CU_FILE_INVALID_VALUE (5022), an argument is invalid",
            "cuFileBatchIOSetUp: 512 entries; this driver allows 1 to 128 (its parameter io_batchsize)",
            "cuFileBatchIOSubmit: 9 entries, but the batch has room for only 8 more",
            "Error in setting up Batch",
        ],
        marks: &[
            "error in setting up batch",
            "cufilebatchiosetup",
            "io_batchsize",
            "the batch has room for only",
            "cu_file_batch_full",
        ],
        entry: Entry {
            meaning: "a batch holds 1 to io_batchsize entries: 128 by default, 256 at most; an entry moves at most \
                      max_direct_io_size_kb",
            cause: "more entries than that, or none; from 1.15 on, libcufile refuses with 5022",
            remedy: "split the list into batches, or raise io_batchsize in cufile.json; in gpufile, read_many has no limit",
            proof: "`gpufile check` shows io_batchsize if it differs from the default",
        },
    },
    Trouble {
        title: "The limit of locked memory (memlock)",
        seen: &[
            "ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory",
            "ibv_reg_mr failed: Cannot allocate memory",
            "RDMA transports are disabled because max locked memory limit (64 kbytes) is too low",
        ],
        marks: &["ibv_", "max locked memory", "memlock"],
        entry: Entry {
            meaning: "the process may lock too little memory for RDMA or for pinned buffers",
            cause: "containers and logins have a limit of 64 KiB to 8 MiB by default",
            remedy: "start the container with `--ulimit memlock=-1`; on the host, set memlock in limits.conf, or LimitMEMLOCK \
                     of the service",
            proof: "`ulimit -l` in the same container",
        },
    },
    Trouble {
        title: "Opening the driver never returns",
        seen: &["cuFileDriverOpen hangs and uses a whole core"],
        marks: &["cufiledriveropen hangs", "cufiledriveropen never returns", "driver open hangs"],
        entry: Entry {
            meaning: "libcufile 1.16 to 1.20 spins for ever on a host without libcuda (measured)",
            cause: "the container has libcufile, but no display driver",
            remedy: "start the container with GPUs; cufile and gpufile look for libcuda and a device first",
            proof: "`ldconfig -p | grep libcuda.so.1` prints nothing",
        },
    },
    Trouble {
        title: "The process is killed",
        seen: &["Killed", "Out of memory: Killed process 4711 (python3)", "exited with code 137"],
        marks: &["killed", "code 137", "code: 137", "status 137"],
        entry: Entry {
            meaning: "the kernel ended the process, most often because memory ran out",
            cause: "the container's limit is lower than the bounce buffers, the page cache that is being written, and the \
                    program together",
            remedy: "raise the limit, or set GPUFILE_BOUNCE_MEMORY and GPUFILE_NUM_THREADS lower",
            proof: "`dmesg | grep -i oom`; `cat /sys/fs/cgroup/memory.events`",
        },
    },
    Trouble {
        title: "The display driver does not answer",
        seen: &[
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
            "Failed to initialize NVML: Unknown Error",
            "No devices were found",
        ],
        marks: &[
            "no devices were found",
            "communicate with the nvidia driver",
            "initialize nvml: unknown",
            "initialize nvml: driver not",
        ],
        entry: Entry {
            meaning: "the kernel module of the display driver is not loaded, or this process may not use its devices",
            cause: "the module was not built for a new kernel; in a container that worked before, the devices were taken \
                    away, as `systemctl daemon-reload` does with control groups of systemd",
            remedy: "build the module again (dkms) and restart; start the container again, with its devices by name \
                     (--device /dev/nvidia0) or with cgroupfs",
            proof: "`lsmod | grep nvidia`, and `dmesg | grep NVRM`",
        },
    },
];
