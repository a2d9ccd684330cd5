//! Facts about the functions of cuFile: the release that brought them, units, and the hazards that `docs/libcufile.md`
//! measured. `cargo xtask conformance` compares the releases with the headers and the real libraries.

/// Each function with the release that brought it, or nothing if every supported one has it, and its description.
/// `cufile/PORTING.md` names its safe counterparts and its test.
pub const FUNCTIONS: &[(&str, &str, &str)] = &[
    // files and memory
    (
        "cuFileHandleRegister",
        "",
        "Registers the file of `descr`, and writes its handle to `fh`. Clear `descr` first, as `Default` does. The \
         descriptor must stay open until the handle is deregistered. Opens the driver if it is not open: in 1.16 to \
         1.20 this never returns on a host without libcuda and `/proc/modules`. See *Registering files* in docs/libcufile.md.",
    ),
    ("cuFileHandleDeregister", "", "Deregisters a handle. The program closes its descriptor afterwards."),
    (
        "cuFileBufRegister",
        "",
        "Registers `length` bytes at `bufPtr_base`, of a GPU or of the host. `flags` is 0, or \
         `CU_FILE_RDMA_REGISTER` and `CU_FILE_RDMA_RELAXED_ORDERING`. Opens the driver if it is not open, as \
         `cuFileHandleRegister` does. Deregister memory before freeing it: otherwise the process can deadlock \
         where nvidia-fs is loaded; elsewhere, libcufile does not notice. See *Reads, writes and their results* in \
         docs/libcufile.md.",
    ),
    (
        "cuFileBufDeregister",
        "",
        "Deregisters the memory that was registered at `bufPtr_base`. An unknown address returns 5024.",
    ),
    (
        "cuFileRead",
        "",
        "Reads up to `size` bytes from byte `file_offset` of the file to `bufPtr_base + bufPtr_offset`; the offset \
         in memory is in bytes too. The memory's context must be current on the calling thread. The call is not \
         ordered with any stream. A short read into device memory also overwrites bytes after the count, within \
         `size`. See *Reads, writes and their results* in docs/libcufile.md.",
    ),
    (
        "cuFileWrite",
        "",
        "Writes up to `size` bytes from `bufPtr_base + bufPtr_offset` to byte `file_offset` of the file; the offset \
         in memory is in bytes too. The memory's context must be current on the calling thread. The call is not \
         ordered with any stream. On the GPUDirect path it writes whole blocks of 4 KiB, so other writes to the same \
         block can be lost. Beyond the process's limit of file sizes, `errno` is `EPERM`. See *Reads, writes and \
         their results* in docs/libcufile.md.",
    ),
    (
        "cuFileReadv",
        "1.19",
        "Reads from byte `file_offset` of the file into the `iovcnt` parts of `iov`, one after the other; their \
         lengths are bytes. `flags` is 0. An empty part among others, or a null one, aborts the process. With 40 or \
         more parts the call, or closing the driver, can hang. See *Reads, writes and their results* in \
         docs/libcufile.md.",
    ),
    (
        "cuFileWritev",
        "1.19",
        "Writes the `iovcnt` parts of `iov`, one after the other, from byte `file_offset` of the file on; their \
         lengths are bytes. `flags` is 0. An empty part among others, or a null one, aborts the process. With 40 or \
         more parts the call, or closing the driver, can hang. See *Reads, writes and their results* in \
         docs/libcufile.md.",
    ),
    // driver
    (
        "cuFileDriverOpen",
        "",
        "Opens the driver, or counts one more opening. On a host without `/proc/modules` it never \
         returns, in 1.16 to 1.20 also without libcuda: try `cuInit` and count the devices first. It must not run at the same time as calls that open, close, or \
         use parameters or properties: that corrupts the heap. If the path of the log file was set as a parameter, \
         it calls `setenv`. See *Loading and opening* in docs/libcufile.md.",
    ),
    (
        "cuFileDriverClose_v2",
        "",
        "Undoes one opening. The last call closes the driver, and libcufile forgets the parameters that the program \
         has set. One call too many returns 5001. It must not run at the same time as calls that open, close, or use \
         parameters or properties. `cufile.h` maps the name `cuFileDriverClose` to this symbol, as \
         `Functions::cuFileDriverClose` does. See *Loading and opening* in docs/libcufile.md.",
    ),
    ("cuFileUseCount", "", "Returns the number of openings that were not closed. It works before opening."),
    (
        "cuFileGetVersion",
        "",
        "Writes 1000 × major + 10 × minor to `version`, for example 1200 for 1.20. It works before opening.",
    ),
    (
        "cuFileDriverGetProperties",
        "",
        "Fills `props`. Its sizes are KiB, and its flags are masks of the positions that their enumerations name. Up to \
         1.16, libcufile then forgets the parameters that the program has set. Up to 1.15, the call can end the process \
         (`SIGFPE`) during a transfer. See *Loading and opening* in docs/libcufile.md.",
    ),
    (
        "cuFileDriverSetPollMode",
        "",
        "Turns polling on or off for transfers of up to `poll_threshold_size` KiB. It has an effect from 1.17 on, and \
         only before opening; otherwise it succeeds without one. Up to 1.15, the call can end the process (`SIGFPE`) \
         during a transfer. See *Loading and opening* in docs/libcufile.md.",
    ),
    (
        "cuFileDriverSetMaxDirectIOSize",
        "",
        "Sets the largest transfer that libcufile makes in one piece, in KiB: a multiple of 64. It has an effect from \
         1.17 on, and only before opening; otherwise it succeeds without one. Up to 1.15, the call can end the process \
         (`SIGFPE`) during a transfer. See *Loading and opening* in docs/libcufile.md.",
    ),
    (
        "cuFileDriverSetMaxCacheSize",
        "",
        "Sets the size of the GPU memory that libcufile keeps for bounce buffers, in KiB. It has an effect from 1.17 on, \
         and only before opening; otherwise it succeeds without one. Up to 1.15, the call can end the process (`SIGFPE`) \
         during a transfer. See *Loading and opening* in docs/libcufile.md.",
    ),
    (
        "cuFileDriverSetMaxPinnedMemSize",
        "",
        "Sets the limit of registered GPU memory, in KiB. It has an effect from 1.15 on before opening, and in 1.14 on an \
         open driver. Up to 1.15, the call can end the process (`SIGFPE`) during a transfer. See *Loading and opening* in \
         docs/libcufile.md.",
    ),
    (
        "cuFileDriverGetP2PFlags",
        "1.16",
        "Writes to `p2p_flags` the peer-to-peer modes that are set for a file system, as a mask of `CU_FILE_P2P_FLAG_*` \
         constants, not of the positions in `CUfileP2PFlags_t`. See *Statistics and peer-to-peer* in docs/libcufile.md.",
    ),
    (
        "cuFileDriverSetP2PFlags",
        "1.16",
        "Sets the peer-to-peer modes of a file system. `p2p_flags` is a mask of `CU_FILE_P2P_FLAG_*` constants, not a \
         position in `CUfileP2PFlags_t`. On x86-64, only `CU_FILE_P2P_FLAG_PCI_P2PDMA` can be set; others return \
         5022. See *Statistics and peer-to-peer* in docs/libcufile.md.",
    ),
    (
        "cuFileGetBARSizeInKB",
        "1.15",
        "Writes to `barSize` the size of the BAR of the GPU number `gpuIndex`, in KiB. In 1.16 it never returns on a host \
         without libcuda.",
    ),
    (
        "cuFileExportPCIeTopology",
        "1.17",
        "Writes what libcufile knows about the PCIe topology to the file `filename`, a NUL-terminated path. It never \
         returns on a host without libcuda.",
    ),
    // batches
    (
        "cuFileBatchIOSetUp",
        "",
        "Creates a batch for `nr` entries at a time, and writes it to `batch_idp`. `nr` is at least 1, and at most the \
         parameter `io_batchsize`, which is 128 by default.",
    ),
    (
        "cuFileBatchIOSubmit",
        "",
        "Submits the `nr` entries of `iocbp`, which the call copies. Sizes and offsets are bytes; `flags` is 0. An entry \
         longer than `max_direct_io_size` moves only part of its bytes, and reports no error. Unregistered host memory corrupts the heap \
         except in one pattern. See *Batches* in docs/libcufile.md.",
    ),
    (
        "cuFileBatchIOGetStatus",
        "",
        "Waits for `min_nr` completions, or for `timeout` if that is not null, and writes up to `*nr` events to `iocbp` and \
         their number to `nr`. The field `ret` of an event is a number of bytes, or a negative code. After \
         `cuFileBatchIOCancel` no event comes. See *Batches* in docs/libcufile.md.",
    ),
    (
        "cuFileBatchIOCancel",
        "",
        "Cancels the entries that are in flight. Afterwards, the batch reports nothing and can only be destroyed. See \
         *Batches* in docs/libcufile.md.",
    ),
    ("cuFileBatchIODestroy", "", "Waits for the transfers of a batch, and frees it."),
    // streams
    (
        "cuFileReadAsync",
        "",
        "Submits a read in `stream`. `*size_p`, `*file_offset_p` and `*bufPtr_offset_p` are bytes. libcufile reads \
         them when the read runs, except those that the flags of `cuFileStreamRegister` fix. The value of `*size_p` \
         at submission is its maximum. All pointers, the memory and the handle must live until the read has run. \
         Then `*bytes_read_p` is a number of bytes, −1, or a negative code, and `errno` is not set. Threads that \
         submit to one stream at the same time abort the process. See *Stream-ordered operations* in \
         docs/libcufile.md.",
    ),
    (
        "cuFileWriteAsync",
        "",
        "Submits a write in `stream`. `*size_p`, `*file_offset_p` and `*bufPtr_offset_p` are bytes. libcufile reads \
         them when the write runs, except those that the flags of `cuFileStreamRegister` fix. The value of `*size_p` \
         at submission is its maximum. All pointers, the memory and the handle must live until the write has run. \
         Then `*bytes_written_p` is a number of bytes, −1, or a negative code, and `errno` is not set. Threads that \
         submit to one stream at the same time abort the process. See *Stream-ordered operations* in \
         docs/libcufile.md.",
    ),
    (
        "cuFileStreamRegister",
        "",
        "Registers a stream. `flags` is a mask of `CU_FILE_STREAM_*` constants, which promise what stays fixed or aligned. \
         Registering a stream again returns 5022. libcufile identifies streams by their handles, so the default \
         streams of two devices are one to it. See *Stream-ordered operations* in docs/libcufile.md.",
    ),
    (
        "cuFileStreamDeregister",
        "",
        "Deregisters a stream. If the stream has done I/O, that corrupts later operations of other registered \
         streams that have done I/O. See *Stream-ordered operations* in docs/libcufile.md.",
    ),
    // parameters
    (
        "cuFileGetParameterSizeT",
        "1.14",
        "Writes a parameter to `value`: KiB or milliseconds where its name ends in `_KB` or `_MS`. Most defaults \
         read as 0 before opening. It must not run at the same time as calls that open, close, or set parameters. \
         See *Parameters* in docs/libcufile.md.",
    ),
    (
        "cuFileGetParameterBool",
        "1.14",
        "Writes a parameter to `value`. It must not run at the same time as calls that open, close, or set \
         parameters. See *Parameters* in docs/libcufile.md.",
    ),
    (
        "cuFileGetParameterString",
        "1.14",
        "Writes a parameter to the `len` bytes at `desc_str`, with a NUL; with too few bytes it returns 5022. It \
         must not run at the same time as calls that open, close, or set parameters. See *Parameters* in \
         docs/libcufile.md.",
    ),
    (
        "cuFileGetParameterMinMaxValue",
        "1.15",
        "Writes the limits of a parameter, in its unit. Without a device, the limits of the device cache and of \
         pinned memory stay unwritten. In 1.16, asking for these two never returns on a host without libcuda and `/proc/modules`. See \
         *Parameters* in docs/libcufile.md.",
    ),
    (
        "cuFileSetParameterSizeT",
        "1.14",
        "Sets a parameter: KiB or milliseconds where its name ends in `_KB` or `_MS`. It works only before opening, \
         without a check of the limits; afterwards it returns 5026. It must not run at the same time as calls that \
         open, close, or use parameters or properties: that corrupts the heap. See *Parameters* in \
         docs/libcufile.md.",
    ),
    (
        "cuFileSetParameterBool",
        "1.14",
        "Sets a parameter. It works only before opening; afterwards it returns 5026. It must not run at the same \
         time as calls that open, close, or use parameters or properties: that corrupts the heap. See *Parameters* \
         in docs/libcufile.md.",
    ),
    (
        "cuFileSetParameterString",
        "1.14",
        "Sets a parameter to a NUL-terminated text, which must not be empty. It works only before opening; \
         afterwards it returns 5026. It must not run at the same time as calls that open, close, or use parameters \
         or properties: that corrupts the heap. After the path of the log file was set, opening calls `setenv`. See \
         *Parameters* in docs/libcufile.md.",
    ),
    (
        "cuFileSetParameterPosixPoolSlabArray",
        "1.15",
        "Sets the slabs of host bounce buffers: `len` sizes in KiB, and the same number of counts. It works only \
         before opening. It must not run at the same time as calls that open, close, or use parameters or \
         properties. See *Parameters* in docs/libcufile.md.",
    ),
    (
        "cuFileGetParameterPosixPoolSlabArray",
        "1.15",
        "Writes the slabs of host bounce buffers: `len` sizes in KiB, and the same number of counts. `len` must be \
         the number that was set last. Before opening, if none were set, every `len` returns 5022. See *Parameters* \
         in docs/libcufile.md.",
    ),
    (
        "cuFileSetParameterGpuBounceBufferSlabArray",
        "1.17",
        "Sets the slabs of GPU bounce buffers: `len` sizes in KiB, and the same number of counts. It works only \
         before opening. It must not run at the same time as calls that open, close, or use parameters or \
         properties. See *Parameters* in docs/libcufile.md.",
    ),
    (
        "cuFileGetParameterGpuBounceBufferSlabArray",
        "1.17",
        "Writes the slabs of GPU bounce buffers: `len` sizes in KiB, and the same number of counts. `len` must be \
         the number that was set last. Before opening, if none were set, every `len` returns 5022. See *Parameters* \
         in docs/libcufile.md.",
    ),
    // statistics
    (
        "cuFileSetStatsLevel",
        "1.15",
        "Sets the level of statistics, 0 to 3. A level above 0 counts at once; 0 keeps the counters and counts nothing. \
         See *Statistics and peer-to-peer* in docs/libcufile.md.",
    ),
    (
        "cuFileGetStatsLevel",
        "1.15",
        "Writes the level of statistics to `level`, 0 to 3. It works before opening.",
    ),
    (
        "cuFileStatsStart",
        "1.15",
        "Sets the counters to 0. At level 0 it returns 5030, and before opening 5001. See *Statistics and \
         peer-to-peer* in docs/libcufile.md.",
    ),
    (
        "cuFileStatsStop",
        "1.15",
        "Sets level and counters to 0. Reading them then returns 5022 until a level is set. See *Statistics and \
         peer-to-peer* in docs/libcufile.md.",
    ),
    ("cuFileStatsReset", "1.15", "Sets the counters to 0. Before opening it returns 5001."),
    (
        "cuFileGetStatsL1",
        "1.15",
        "Fills `stats` with sums: bytes, bytes per second, microseconds and numbers of calls. The struct grew from \
         512 to 624 bytes in 1.19, so a library of 1.19 overflows the struct of an older header. See *ABI* in \
         docs/libcufile.md.",
    ),
    (
        "cuFileGetStatsL2",
        "1.15",
        "Fills `stats` with sums and with histograms of sizes, whose first element counts transfers below 4 KiB. \
         Clear `stats` first, as `Default` does: libcufile leaves parts unwritten. Before 1.19, fields after the \
         first level lie 112 bytes earlier. See *ABI* in docs/libcufile.md.",
    ),
    (
        "cuFileGetStatsL3",
        "1.15",
        "Fills `stats` with sums, histograms, and counters for each GPU, which stay 0 in 1.18 to 1.20. Clear `stats` \
         first, as `Default` does: libcufile leaves parts unwritten. Before 1.19, fields after the first level lie \
         112 bytes earlier. See *ABI* in docs/libcufile.md.",
    ),
];
