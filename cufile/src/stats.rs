//! Statistics that libcufile keeps for the process: counters, sizes and latencies.
//!
//! ```no_run
//! use cufile::Driver;
//! use cufile::stats::Level;
//!
//! let driver = Driver::open()?;
//! let statistics = driver.statistics();
//! statistics.set_level(Level::Basic)?;
//! statistics.start()?;
//! // reads and writes
//! let stats = statistics.basic()?;
//! println!("{} bytes read in {} calls", stats.read.bytes, stats.read.operations.ok);
//! # Ok::<(), cufile::Error>(())
//! ```

use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::ptr;
use std::time::Duration;

use cufile_sys::{
    CUfileError_t, CUfileOpCounter_t, CUfilePerGpuStats_t, CUfileStatsLevel1_t, CUfileStatsLevel2_t,
    CUfileStatsLevel3_t,
};

use crate::driver::Driver;
use crate::error::{OpError, Result, check};
use crate::library::newer;
use crate::version::Version;

/// A level of libcufile's statistics. Each level counts what the lower levels count, and more, and takes more time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// No counting.
    Off = 0,
    /// The counters of [`Stats`].
    Basic = 1,
    /// Also the sizes of transfers: [`DetailedStats`].
    Detailed = 2,
    /// Also what each GPU did: [`PerGpuStats`].
    PerGpu = 3,
}

/// Counters of one kind of operation.
///
/// Names elsewhere: `CUfileOpCounter`, `CUfileOpCounter_t` (C); `OpCounter` (Python).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[doc(alias = "CUfileOpCounter")]
#[doc(alias = "CUfileOpCounter_t")]
#[doc(alias = "OpCounter")]
pub struct Operations {
    /// The number that succeeded.
    pub ok: u64,
    /// The number that failed.
    pub failed: u64,
}

/// Reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Transfers {
    /// The calls.
    pub operations: Operations,
    /// The number of bytes moved.
    pub bytes: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Calls per second.
    pub operations_per_second: u64,
    /// The mean time of a call.
    pub average_latency: Duration,
    /// The time of all calls together.
    pub total_latency: Duration,
}

/// Vectored reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct VectoredStats {
    /// `cuFileReadv`.
    pub read: Transfers,
    /// `cuFileWritev`.
    pub write: Transfers,
}

/// Counters of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct BatchStats {
    /// Batches set up.
    pub setups: Operations,
    /// Submissions of entries.
    pub submissions: Operations,
    /// Completions of entries.
    pub completions: Operations,
    /// Cancellations of batches.
    pub cancellations: Operations,
    /// Batches destroyed.
    pub destructions: Operations,
    /// Entries queued.
    pub enqueued: Operations,
    /// Entries queued for POSIX calls.
    pub posix_enqueued: Operations,
    /// Entries processed.
    pub processed: Operations,
    /// Entries processed with POSIX calls.
    pub posix_processed: Operations,
    /// Submissions to nvidia-fs.
    pub nvidia_fs_submissions: Operations,
    /// Submissions over P2PDMA.
    pub p2p_submissions: Operations,
    /// Submissions to Linux AIO.
    pub aio_submissions: Operations,
    /// Submissions to io_uring.
    pub io_uring_submissions: Operations,
    /// Submissions of mixed reads and writes.
    pub mixed_submissions: Operations,
    /// Submissions of all kinds.
    pub total_submissions: Operations,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes read per second.
    pub read_bytes_per_second: u64,
    /// Bytes written per second.
    pub write_bytes_per_second: u64,
    /// The mean time of a submission.
    pub average_submission_latency: Duration,
    /// The mean time to completion.
    pub average_completion_latency: Duration,
    /// Submissions per second.
    pub submissions_per_second: u64,
    /// Completions per second.
    pub completions_per_second: u64,
    /// The time of all submissions together.
    pub total_submission_latency: Duration,
    /// The time to completion of all submissions together.
    pub total_completion_latency: Duration,
    /// Bytes read by the last batch.
    pub last_read_bytes: u64,
    /// Bytes written by the last batch.
    pub last_write_bytes: u64,
}

/// Statistics of level 1 (`CUfileStatsLevel1_t`).
///
/// Names elsewhere: `CUfileStatsLevel1` (C); `StatsLevel1` (Python).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[doc(alias = "CUfileStatsLevel1")]
#[doc(alias = "CUfileStatsLevel1_t")]
#[doc(alias = "StatsLevel1")]
pub struct Stats {
    /// Reads.
    pub read: Transfers,
    /// Writes.
    pub write: Transfers,
    /// Vectored reads and writes; `None` where the loaded version does not count them. Since cuFile 1.19.
    pub vectored: Option<VectoredStats>,
    /// Counters of batches.
    pub batch: BatchStats,
    /// Registrations of files.
    pub handle_registrations: Operations,
    /// Deregistrations of files.
    pub handle_deregistrations: Operations,
    /// Registrations of buffers.
    pub buffer_registrations: Operations,
    /// Deregistrations of buffers.
    pub buffer_deregistrations: Operations,
}

/// Statistics of level 2 (`CUfileStatsLevel2_t`).
///
/// Names elsewhere: `CUfileStatsLevel2` (C); `StatsLevel2` (Python).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[doc(alias = "CUfileStatsLevel2")]
#[doc(alias = "CUfileStatsLevel2_t")]
#[doc(alias = "StatsLevel2")]
pub struct DetailedStats {
    /// The statistics of level 1.
    pub basic: Stats,
    /// The number of reads of each size: those below 4 KiB in the first element, then those from 4, 8, 16 KiB
    /// and so on.
    pub read_size_histogram: [u64; 32],
    /// The number of writes of each size.
    pub write_size_histogram: [u64; 32],
}

/// Statistics of level 3 (`CUfileStatsLevel3_t`).
///
/// Names elsewhere: `CUfileStatsLevel3` (C); `StatsLevel3` (Python).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[doc(alias = "CUfileStatsLevel3")]
#[doc(alias = "CUfileStatsLevel3_t")]
#[doc(alias = "StatsLevel3")]
pub struct PerGpuStats {
    /// The statistics of level 2.
    pub detailed: DetailedStats,
    /// The GPUs, 16 at most.
    pub gpus: Vec<GpuStats>,
}

/// Reads into or writes from one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct GpuTransfers {
    /// The number of transfers.
    pub operations: u64,
    /// The number of transfers that failed.
    pub failed: u64,
    /// The number of bytes moved.
    pub bytes: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// The share of time spent in transfers, in percent.
    pub utilization_percent: u64,
    /// The time of all transfers together.
    pub duration: Duration,
    /// The number of transfers that used P2PDMA.
    pub p2p: u64,
    /// The number of transfers that used nvidia-fs.
    pub nvidia_fs: u64,
    /// The number of transfers that used POSIX calls.
    pub posix: u64,
    /// The number of transfers that were not aligned.
    pub unaligned: u64,
    /// The number of transfers that were routed through another GPU.
    pub dynamically_routed: u64,
}

/// The activity of one GPU (`CUfilePerGpuStats_t`). Newer versions count nothing here in compatibility mode.
///
/// Names elsewhere: `CUfilePerGpuStats`, `CUFILE_GPU_UUID_LEN` (C).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[doc(alias = "CUfilePerGpuStats")]
#[doc(alias = "CUfilePerGpuStats_t")]
#[doc(alias = "CUFILE_GPU_UUID_LEN")]
pub struct GpuStats {
    /// The GPU's UUID, as CUDA reports it.
    pub uuid: [u8; 16],
    /// Reads.
    pub read: GpuTransfers,
    /// Writes.
    pub write: GpuTransfers,
    /// Holes in files that reads met.
    pub sparse_regions: u64,
    /// Extents met by reads whose data the file system keeps inside the file's metadata.
    pub inline_regions: u64,
    /// Registrations of buffers. Attempts that count neither as succeeded nor as failed are in progress.
    pub buffer_registrations: Operations,
    /// Attempts to register a buffer.
    pub buffer_registration_attempts: u64,
    /// Deregistrations of buffers.
    pub buffer_deregistrations: u64,
    /// Bytes registered.
    pub registered_bytes: u64,
}

/// The statistics of the process; see [`Driver::statistics`].
#[derive(Debug, Clone, Copy)]
pub struct Statistics<'a>(&'a Driver);

impl Driver {
    /// Returns the statistics that libcufile keeps for the process. Since cuFile 1.15.
    pub fn statistics(&self) -> Statistics<'_> {
        Statistics(self)
    }
}

impl Statistics<'_> {
    /// Returns the level of the statistics (`cuFileGetStatsLevel`). Returns [`Level::PerGpu`] for levels unknown to
    /// this crate.
    ///
    /// Names elsewhere: `get_stats_level` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or libcufile's code.
    #[doc(alias = "cuFileGetStatsLevel")]
    #[doc(alias = "get_stats_level")]
    pub fn level(&self) -> Result<Level> {
        self.0.check_alive()?;
        let call = newer!(self.0.library(), cuFileGetStatsLevel)?;
        let mut level = 0;
        // SAFETY: `level` outlives the call.
        check("cuFileGetStatsLevel", unsafe { call(&mut level) })?;
        Ok(match level {
            ..=0 => Level::Off,
            1 => Level::Basic,
            2 => Level::Detailed,
            3.. => Level::PerGpu,
        })
    }

    /// Sets the level of the statistics that libcufile counts, and that can be read (`cuFileSetStatsLevel`). Above
    /// [`Level::Off`] libcufile counts at once, without [`start`](Self::start), and keeps the counters.
    ///
    /// [`Param::STATS_LEVEL`](crate::params::Param::STATS_LEVEL) sets it before the driver opens.
    ///
    /// Names elsewhere: `set_stats_level` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or libcufile's code.
    #[doc(alias = "cuFileSetStatsLevel")]
    #[doc(alias = "set_stats_level")]
    pub fn set_level(&self, level: Level) -> Result<()> {
        self.0.check_alive()?;
        let call = newer!(self.0.library(), cuFileSetStatsLevel)?;
        // SAFETY: takes a number.
        check("cuFileSetStatsLevel", unsafe { call(level as c_int) })
            .map_err(|error| error.about(&format_args!("{level:?}")))
    }

    /// Restarts counting with all counters at 0 (`cuFileStatsStart`). Set a level before.
    ///
    /// Names elsewhere: `stats_start` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or libcufile's code: [`OpError::INTERNAL_ERROR`] at
    /// [`Level::Off`].
    #[doc(alias = "cuFileStatsStart")]
    #[doc(alias = "stats_start")]
    pub fn start(&self) -> Result<()> {
        self.0.check_alive()?;
        let call = newer!(self.0.library(), cuFileStatsStart)?;
        // SAFETY: takes nothing.
        check("cuFileStatsStart", unsafe { call() }).map_err(|error| match error.op_error() {
            Some(OpError::INTERNAL_ERROR) => error.advise("set the level of the statistics first".into()),
            _ => error,
        })
    }

    /// Stops counting (`cuFileStatsStop`).
    ///
    /// Afterwards the level is [`Level::Off`], at which no statistics can be read, and the counters are 0: read
    /// them before.
    ///
    /// Names elsewhere: `stats_stop` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or libcufile's code.
    #[doc(alias = "cuFileStatsStop")]
    #[doc(alias = "stats_stop")]
    pub fn stop(&self) -> Result<()> {
        self.0.check_alive()?;
        let call = newer!(self.0.library(), cuFileStatsStop)?;
        // SAFETY: takes nothing.
        check("cuFileStatsStop", unsafe { call() })
    }

    /// Sets all counters to 0 (`cuFileStatsReset`).
    ///
    /// Names elsewhere: `stats_reset` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or libcufile's code.
    #[doc(alias = "cuFileStatsReset")]
    #[doc(alias = "stats_reset")]
    pub fn reset(&self) -> Result<()> {
        self.0.check_alive()?;
        let call = newer!(self.0.library(), cuFileStatsReset)?;
        // SAFETY: takes nothing.
        check("cuFileStatsReset", unsafe { call() })
    }

    /// Returns the statistics of level 1 (`cuFileGetStatsL1`).
    ///
    /// Names elsewhere: `get_stats_l1` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or libcufile's code: [`OpError::INVALID_VALUE`] if the level
    /// is lower.
    #[doc(alias = "cuFileGetStatsL1")]
    #[doc(alias = "get_stats_l1")]
    pub fn basic(&self) -> Result<Stats> {
        self.0.check_alive()?;
        let call = newer!(self.0.library(), cuFileGetStatsL1)?;
        let layout = Layout::of(self.0.library().version());
        // SAFETY: the buffer for `call` has room for the struct of any version.
        let raw = read("cuFileGetStatsL1", layout, |buffer| unsafe { call(buffer.cast()) })?;
        Ok(stats(&raw.detailed.basic, layout))
    }

    /// Returns the statistics of level 2 (`cuFileGetStatsL2`).
    ///
    /// Names elsewhere: `get_stats_l2` (Python).
    ///
    /// # Errors
    /// As [`basic`](Self::basic).
    #[doc(alias = "cuFileGetStatsL2")]
    #[doc(alias = "get_stats_l2")]
    pub fn detailed(&self) -> Result<DetailedStats> {
        self.0.check_alive()?;
        let call = newer!(self.0.library(), cuFileGetStatsL2)?;
        let layout = Layout::of(self.0.library().version());
        // SAFETY: the buffer for `call` has room for the struct of any version.
        let raw = read("cuFileGetStatsL2", layout, |buffer| unsafe { call(buffer.cast()) })?;
        Ok(detailed(&raw.detailed, layout))
    }

    /// Returns the statistics of level 3 (`cuFileGetStatsL3`).
    ///
    /// Names elsewhere: `get_stats_l3` (Python).
    ///
    /// # Errors
    /// As [`basic`](Self::basic).
    #[doc(alias = "cuFileGetStatsL3")]
    #[doc(alias = "get_stats_l3")]
    pub fn per_gpu(&self) -> Result<PerGpuStats> {
        self.0.check_alive()?;
        let call = newer!(self.0.library(), cuFileGetStatsL3)?;
        let layout = Layout::of(self.0.library().version());
        // SAFETY: the buffer for `call` has room for the struct of any version.
        let raw = read("cuFileGetStatsL3", layout, |buffer| unsafe { call(buffer.cast()) })?;
        Ok(per_gpu(&raw, layout))
    }
}

/// The length of the loaded version's level-1 struct, with which those of the other levels begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Up to 1.18: without the counters of vectored calls.
    Short,
    /// From 1.19 on; also assumed for versions newer than this crate.
    Long,
}

impl Layout {
    fn of(version: Version) -> Self {
        if version < Version::from_raw(1190) { Layout::Short } else { Layout::Long }
    }

    fn basic_bytes(self) -> usize {
        match self {
            Layout::Short => offset_of!(CUfileStatsLevel1_t, readv_ops),
            Layout::Long => size_of::<CUfileStatsLevel1_t>(),
        }
    }
}

/// libcufile writes the struct of its version, regardless of the caller's size, and a later version's will be
/// larger.
const BUFFER_BYTES: usize = 8 * size_of::<CUfileStatsLevel3_t>();

/// Calls C with a zeroed buffer, because C may leave parts unwritten, and converts the result to the newest layout.
fn read(
    operation: &'static str,
    layout: Layout,
    call: impl FnOnce(*mut u8) -> CUfileError_t,
) -> Result<Box<CUfileStatsLevel3_t>> {
    let mut buffer = vec![0u64; BUFFER_BYTES / size_of::<u64>()];
    check(operation, call(buffer.as_mut_ptr().cast())).map_err(|error| match error.op_error() {
        Some(OpError::INVALID_VALUE) => {
            error.advise("set the level of the statistics to this one or a higher one".into())
        }
        _ => error,
    })?;
    // SAFETY: all-zero is a valid value of this struct of integers.
    let mut raw: Box<CUfileStatsLevel3_t> = Box::new(unsafe { std::mem::zeroed() });
    let (from, to) = (buffer.as_ptr().cast::<u8>(), (&raw mut *raw).cast::<u8>());
    let (begin, end) = (layout.basic_bytes(), size_of::<CUfileStatsLevel1_t>());
    // SAFETY: both ranges lie in the buffer, which is larger, and in the struct, for which any bytes are valid.
    unsafe {
        ptr::copy_nonoverlapping(from, to, begin);
        ptr::copy_nonoverlapping(from.add(begin), to.add(end), size_of::<CUfileStatsLevel3_t>() - end);
    }
    Ok(raw)
}

fn operations(counter: &CUfileOpCounter_t) -> Operations {
    Operations { ok: counter.ok, failed: counter.err }
}

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

fn stats(raw: &CUfileStatsLevel1_t, layout: Layout) -> Stats {
    Stats {
        read: Transfers {
            operations: operations(&raw.read_ops),
            bytes: raw.read_bytes,
            bytes_per_second: raw.read_bw_bytes_per_sec,
            operations_per_second: raw.read_ops_per_sec,
            average_latency: micros(raw.read_lat_avg_us),
            total_latency: micros(raw.read_lat_sum_us),
        },
        write: Transfers {
            operations: operations(&raw.write_ops),
            bytes: raw.write_bytes,
            bytes_per_second: raw.write_bw_bytes_per_sec,
            operations_per_second: raw.write_ops_per_sec,
            average_latency: micros(raw.write_lat_avg_us),
            total_latency: micros(raw.write_lat_sum_us),
        },
        vectored: (layout == Layout::Long).then(|| vectored(raw)),
        batch: batch(raw),
        handle_registrations: operations(&raw.hdl_register_ops),
        handle_deregistrations: operations(&raw.hdl_deregister_ops),
        buffer_registrations: operations(&raw.buf_register_ops),
        buffer_deregistrations: operations(&raw.buf_deregister_ops),
    }
}

fn vectored(raw: &CUfileStatsLevel1_t) -> VectoredStats {
    VectoredStats {
        read: Transfers {
            operations: operations(&raw.readv_ops),
            bytes: raw.readv_bytes,
            bytes_per_second: raw.readv_bw_bytes_per_sec,
            operations_per_second: raw.readv_ops_per_sec,
            average_latency: micros(raw.readv_lat_avg_us),
            total_latency: micros(raw.readv_lat_sum_us),
        },
        write: Transfers {
            operations: operations(&raw.writev_ops),
            bytes: raw.writev_bytes,
            bytes_per_second: raw.writev_bw_bytes_per_sec,
            operations_per_second: raw.writev_ops_per_sec,
            average_latency: micros(raw.writev_lat_avg_us),
            total_latency: micros(raw.writev_lat_sum_us),
        },
    }
}

fn batch(raw: &CUfileStatsLevel1_t) -> BatchStats {
    BatchStats {
        setups: operations(&raw.batch_setup_ops),
        submissions: operations(&raw.batch_submit_ops),
        completions: operations(&raw.batch_complete_ops),
        cancellations: operations(&raw.batch_cancel_ops),
        destructions: operations(&raw.batch_destroy_ops),
        enqueued: operations(&raw.batch_enqueued_ops),
        posix_enqueued: operations(&raw.batch_posix_enqueued_ops),
        processed: operations(&raw.batch_processed_ops),
        posix_processed: operations(&raw.batch_posix_processed_ops),
        nvidia_fs_submissions: operations(&raw.batch_nvfs_submit_ops),
        p2p_submissions: operations(&raw.batch_p2p_submit_ops),
        aio_submissions: operations(&raw.batch_aio_submit_ops),
        io_uring_submissions: operations(&raw.batch_iouring_submit_ops),
        mixed_submissions: operations(&raw.batch_mixed_io_submit_ops),
        total_submissions: operations(&raw.batch_total_submit_ops),
        read_bytes: raw.batch_read_bytes,
        write_bytes: raw.batch_write_bytes,
        read_bytes_per_second: raw.batch_read_bw_bytes,
        write_bytes_per_second: raw.batch_write_bw_bytes,
        average_submission_latency: micros(raw.batch_submit_lat_avg_us),
        average_completion_latency: micros(raw.batch_completion_lat_avg_us),
        submissions_per_second: raw.batch_submit_ops_per_sec,
        completions_per_second: raw.batch_complete_ops_per_sec,
        total_submission_latency: micros(raw.batch_submit_lat_sum_us),
        total_completion_latency: micros(raw.batch_completion_lat_sum_us),
        last_read_bytes: raw.last_batch_read_bytes,
        last_write_bytes: raw.last_batch_write_bytes,
    }
}

fn detailed(raw: &CUfileStatsLevel2_t, layout: Layout) -> DetailedStats {
    DetailedStats {
        basic: stats(&raw.basic, layout),
        read_size_histogram: raw.read_size_kb_hist,
        write_size_histogram: raw.write_size_kb_hist,
    }
}

fn per_gpu(raw: &CUfileStatsLevel3_t, layout: Layout) -> PerGpuStats {
    // The number is data from C: the array may have fewer elements.
    let gpus = raw.per_gpu_stats.iter().take(raw.num_gpus as usize).map(gpu).collect();
    PerGpuStats { detailed: detailed(&raw.detailed, layout), gpus }
}

fn gpu(raw: &CUfilePerGpuStats_t) -> GpuStats {
    GpuStats {
        uuid: raw.uuid.map(|byte| byte as u8),
        read: GpuTransfers {
            operations: raw.n_total_reads,
            failed: raw.n_reads_err,
            bytes: raw.read_bytes,
            bytes_per_second: raw.read_bw_bytes_per_sec,
            utilization_percent: raw.read_utilization,
            duration: micros(raw.read_duration_us),
            p2p: raw.n_p2p_reads,
            nvidia_fs: raw.n_nvfs_reads,
            posix: raw.n_posix_reads,
            unaligned: raw.n_unaligned_reads,
            dynamically_routed: raw.n_dr_reads,
        },
        write: GpuTransfers {
            operations: raw.n_total_writes,
            failed: raw.n_writes_err,
            bytes: raw.writes_bytes,
            bytes_per_second: raw.write_bw_bytes_per_sec,
            utilization_percent: raw.write_utilization,
            duration: micros(raw.write_duration_us),
            p2p: raw.n_p2p_writes,
            nvidia_fs: raw.n_nvfs_writes,
            posix: raw.n_posix_writes,
            unaligned: raw.n_unaligned_writes,
            dynamically_routed: raw.n_dr_writes,
        },
        sparse_regions: raw.n_sparse_regions,
        inline_regions: raw.n_inline_regions,
        buffer_registrations: Operations { ok: raw.n_mmap_ok, failed: raw.n_mmap_err },
        buffer_registration_attempts: raw.n_mmap,
        buffer_deregistrations: raw.n_mmap_free,
        registered_bytes: raw.reg_bytes,
    }
}

#[cfg(test)]
mod tests {
    use cufile_sys::CUfileOpError;

    use super::*;

    /// Returns the words of a library whose level-1 struct has `basic` words; `tail` words follow those that
    /// this crate knows. Each word except the GPU count and the tail holds its index in the newest layout.
    fn written(basic: usize, gpus: u32, tail: usize) -> Vec<u64> {
        let known = size_of::<CUfileStatsLevel3_t>() / 8;
        let newest = size_of::<CUfileStatsLevel1_t>() / 8;
        let mut words: Vec<u64> = (0..basic).chain(newest..known).map(|word| word as u64).collect();
        let count = offset_of!(CUfileStatsLevel3_t, num_gpus) / 8 - newest + basic;
        words[count] = u64::from(gpus);
        words.resize(words.len() + tail, u64::MAX);
        words
    }

    fn read_from(words: &[u64], layout: Layout) -> Box<CUfileStatsLevel3_t> {
        let result = read("cuFileGetStatsL3", layout, |buffer| {
            // SAFETY: as libcufile would, this relies on the buffer's size.
            unsafe { buffer.cast::<u64>().copy_from_nonoverlapping(words.as_ptr(), words.len()) };
            CUfileError_t { err: CUfileOpError::CU_FILE_SUCCESS, cu_err: cufile_sys::CUresult::from_raw(0) }
        });
        result.expect("success")
    }

    fn word(offset: usize) -> u64 {
        offset as u64 / 8
    }

    #[test]
    fn versions_up_to_1_18_have_the_short_layout() {
        assert_eq!(Layout::of(Version::from_raw(1150)), Layout::Short);
        assert_eq!(Layout::of(Version::from_raw(1180)), Layout::Short);
        assert_eq!(Layout::of(Version::from_raw(1190)), Layout::Long);
        assert_eq!(Layout::of(Version::from_raw(2000)), Layout::Long);
        assert_eq!((Layout::Short.basic_bytes(), Layout::Long.basic_bytes()), (512, 624));
    }

    #[test]
    fn every_layout_is_decoded_to_the_same_fields() {
        for (layout, basic) in [(Layout::Short, 64), (Layout::Long, 78)] {
            let raw = read_from(&written(basic, 2, 0), layout);
            let stats = stats(&raw.detailed.basic, layout);
            assert_eq!(stats.read.operations, Operations { ok: 0, failed: 1 });
            assert_eq!(
                stats.batch.last_write_bytes,
                word(offset_of!(CUfileStatsLevel1_t, last_batch_write_bytes))
            );
            let detailed = detailed(&raw.detailed, layout);
            assert_eq!(
                detailed.read_size_histogram[0],
                word(offset_of!(CUfileStatsLevel2_t, read_size_kb_hist))
            );
            assert_eq!(detailed.write_size_histogram[31], word(size_of::<CUfileStatsLevel2_t>()) - 1);
            assert_eq!(raw.num_gpus, 2);
            let first = word(offset_of!(CUfileStatsLevel3_t, per_gpu_stats));
            assert_eq!(gpu(&raw.per_gpu_stats[0]).read.bytes, first + 2);
            assert_eq!(
                gpu(&raw.per_gpu_stats[15]).registered_bytes,
                word(size_of::<CUfileStatsLevel3_t>()) - 1
            );
        }
    }

    #[test]
    fn short_layouts_have_no_vectored_counters() {
        let raw = read_from(&written(64, 0, 0), Layout::Short);
        assert_eq!(stats(&raw.detailed.basic, Layout::Short).vectored, None);
        assert_eq!(raw.detailed.basic.readv_ops.ok, 0, "the words behind must not be read as these counters");
        let raw = read_from(&written(78, 0, 0), Layout::Long);
        let vectored = stats(&raw.detailed.basic, Layout::Long).vectored.expect("counted");
        assert_eq!(vectored.read.operations, Operations { ok: 64, failed: 65 });
        assert_eq!(vectored.write.total_latency, Duration::from_micros(77));
    }

    #[test]
    fn gpu_count_is_limited_to_the_struct() {
        for (count, expected) in [(0, 0), (2, 2), (16, 16), (17, 16), (u32::MAX, 16)] {
            for (layout, basic) in [(Layout::Short, 64), (Layout::Long, 78)] {
                let raw = read_from(&written(basic, count, 0), layout);
                assert_eq!(per_gpu(&raw, layout).gpus.len(), expected);
            }
        }
    }

    #[test]
    fn buffer_has_room_for_a_later_struct() {
        let more = 2 * size_of::<CUfileStatsLevel3_t>() / 8;
        let words = written(78, 1, more);
        assert!(words.len() * 8 < BUFFER_BYTES);
        assert_eq!(read_from(&words, Layout::Long).num_gpus, 1);
    }

    #[test]
    fn error_for_an_uncollected_level_gives_advice() {
        let refuse = |_| CUfileError_t {
            err: CUfileOpError::CU_FILE_INVALID_VALUE,
            cu_err: cufile_sys::CUresult::from_raw(0),
        };
        let error = read("cuFileGetStatsL3", Layout::Long, refuse).expect_err("refused");
        assert_eq!(error.op_error(), Some(OpError::INVALID_VALUE));
        assert!(error.to_string().contains("level"), "{error}");
    }
}
