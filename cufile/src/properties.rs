//! The abilities and settings of the open driver.

use std::time::Duration;

use cufile_sys::{
    CUfileDriverControlFlags as Control, CUfileDriverStatusFlags as Status, CUfileDrvProps_t,
    CUfileFeatureFlags as Feature,
};

use crate::error::{Result, check};
use crate::library::Library;
use crate::memory::filled;

/// The abilities and settings of the open driver (`CUfileDrvProps_t`). Sizes are in bytes.
///
/// Names elsewhere: `CUfileDrvProps` (C); `DrvProps` (Python).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverProperties {
    /// Major and minor version of the nvidia-fs kernel module; `None` if it is not loaded.
    ///
    /// Names elsewhere: `get_nvfs_major_version`, `get_nvfs_minor_version` (KvikIO).
    #[doc(alias = "get_nvfs_major_version")]
    #[doc(alias = "get_nvfs_minor_version")]
    pub nvidia_fs: Option<(u32, u32)>,
    /// Largest transfer that polling mode polls for.
    ///
    /// Names elsewhere: `get_nvfs_poll_thresh_size` (KvikIO).
    #[doc(alias = "get_nvfs_poll_thresh_size")]
    pub poll_threshold_bytes: u64,
    /// Longest part of a direct transfer; libcufile splits longer ones.
    pub max_direct_io_bytes: u64,
    /// File systems and block devices with a direct path here.
    pub file_systems: FileSystems,
    /// Modes that are on.
    ///
    /// Names elsewhere: `get_nvfs_statusflags` (KvikIO).
    #[doc(alias = "get_nvfs_statusflags")]
    pub controls: Controls,
    /// Abilities of the library on this machine.
    pub features: Features,
    /// GPU memory that the driver may reserve for its bounce buffers, for each GPU.
    ///
    /// Names elsewhere: `get_max_device_cache_size` (KvikIO).
    #[doc(alias = "get_max_device_cache_size")]
    pub max_device_cache_bytes: u64,
    /// The size of one bounce buffer.
    ///
    /// Names elsewhere: `get_per_buffer_cache_size` (KvikIO).
    #[doc(alias = "get_per_buffer_cache_size")]
    pub per_buffer_cache_bytes: u64,
    /// GPU memory that may be pinned.
    ///
    /// Names elsewhere: `get_max_pinned_memory_size` (KvikIO).
    #[doc(alias = "get_max_pinned_memory_size")]
    pub max_device_pinned_bytes: u64,
    /// The most entries of a batch.
    ///
    /// Names elsewhere: `get_max_batch_io_size` (KvikIO).
    #[doc(alias = "get_max_batch_io_size")]
    pub max_batch_entries: u32,
    /// The longest time that a batch waits.
    pub max_batch_timeout: Duration,
}

const fn bit(position: u32) -> u32 {
    1 << position
}

bitflags::bitflags! {
    /// File systems and block devices with a direct path (`CUfileDriverStatusFlags`).
    ///
    /// Names elsewhere: `CUfileDriverStatusFlags_t`, `CU_FILE_FEATURE_GDS_SUPPORTED` (C); `DriverStatusFlags` (Python).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct FileSystems: u32 {
        /// DDN Lustre (EXAScaler).
        ///
        /// Names elsewhere: `CU_FILE_LUSTRE_SUPPORTED` (C).
        #[doc(alias = "CU_FILE_LUSTRE_SUPPORTED")]
        const LUSTRE = bit(Status::CU_FILE_LUSTRE_SUPPORTED.as_raw());
        /// WekaFS (`CU_FILE_WEKAFS_SUPPORTED`).
        #[doc(alias = "CU_FILE_WEKAFS_SUPPORTED")]
        const WEKAFS = bit(Status::CU_FILE_WEKAFS_SUPPORTED.as_raw());
        /// NFS over RDMA (`CU_FILE_NFS_SUPPORTED`).
        #[doc(alias = "CU_FILE_NFS_SUPPORTED")]
        const NFS = bit(Status::CU_FILE_NFS_SUPPORTED.as_raw());
        /// IBM Spectrum Scale (`CU_FILE_GPFS_SUPPORTED`).
        #[doc(alias = "CU_FILE_GPFS_SUPPORTED")]
        const GPFS = bit(Status::CU_FILE_GPFS_SUPPORTED.as_raw());
        /// NVMe (`CU_FILE_NVME_SUPPORTED`).
        #[doc(alias = "CU_FILE_NVME_SUPPORTED")]
        const NVME = bit(Status::CU_FILE_NVME_SUPPORTED.as_raw());
        /// NVMe over Fabrics (`CU_FILE_NVMEOF_SUPPORTED`).
        #[doc(alias = "CU_FILE_NVMEOF_SUPPORTED")]
        const NVMEOF = bit(Status::CU_FILE_NVMEOF_SUPPORTED.as_raw());
        /// SCSI (`CU_FILE_SCSI_SUPPORTED`).
        #[doc(alias = "CU_FILE_SCSI_SUPPORTED")]
        const SCSI = bit(Status::CU_FILE_SCSI_SUPPORTED.as_raw());
        /// ScaleFlux computational storage (`CU_FILE_SCALEFLUX_CSD_SUPPORTED`).
        #[doc(alias = "CU_FILE_SCALEFLUX_CSD_SUPPORTED")]
        const SCALEFLUX_CSD = bit(Status::CU_FILE_SCALEFLUX_CSD_SUPPORTED.as_raw());
        /// NVMesh block devices (`CU_FILE_NVMESH_SUPPORTED`).
        #[doc(alias = "CU_FILE_NVMESH_SUPPORTED")]
        const NVMESH = bit(Status::CU_FILE_NVMESH_SUPPORTED.as_raw());
        /// BeeGFS (`CU_FILE_BEEGFS_SUPPORTED`).
        #[doc(alias = "CU_FILE_BEEGFS_SUPPORTED")]
        const BEEGFS = bit(Status::CU_FILE_BEEGFS_SUPPORTED.as_raw());
        /// NVMe through P2PDMA; no longer set by newer libraries. Since cuFile 1.13.
        ///
        /// Names elsewhere: `CU_FILE_NVME_P2P_SUPPORTED` (C).
        #[doc(alias = "CU_FILE_NVME_P2P_SUPPORTED")]
        const NVME_P2P = bit(Status::CU_FILE_NVME_P2P_SUPPORTED.as_raw());
        /// ScateFS. Since cuFile 1.14.
        ///
        /// Names elsewhere: `CU_FILE_SCATEFS_SUPPORTED` (C).
        #[doc(alias = "CU_FILE_SCATEFS_SUPPORTED")]
        const SCATEFS = bit(Status::CU_FILE_SCATEFS_SUPPORTED.as_raw());
        /// VirtioFS. Since cuFile 1.16.
        ///
        /// Names elsewhere: `CU_FILE_VIRTIOFS_SUPPORTED` (C).
        #[doc(alias = "CU_FILE_VIRTIOFS_SUPPORTED")]
        const VIRTIOFS = bit(Status::CU_FILE_VIRTIOFS_SUPPORTED.as_raw());
        /// PanFS. Since cuFile 1.19.
        ///
        /// Names elsewhere: `CU_FILE_PANFS_SUPPORTED` (C).
        #[doc(alias = "CU_FILE_PANFS_SUPPORTED")]
        const PANFS = bit(Status::CU_FILE_PANFS_SUPPORTED.as_raw());
        /// Newer libraries may set bits without a name here.
        const _ = !0;
    }

    /// Modes of the driver (`CUfileDriverControlFlags`).
    ///
    /// Names elsewhere: `CUfileDriverControlFlags_t` (C); `DriverControlFlags` (Python).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Controls: u32 {
        /// libcufile polls for small transfers.
        ///
        /// Names elsewhere: `CU_FILE_USE_POLL_MODE` (C); `get_nvfs_poll_mode` (KvikIO).
        #[doc(alias = "CU_FILE_USE_POLL_MODE")]
        #[doc(alias = "get_nvfs_poll_mode")]
        const POLL_MODE = bit(Control::CU_FILE_USE_POLL_MODE.as_raw());
        /// cuFile reads and writes with POSIX calls where there is no direct path.
        ///
        /// Names elsewhere: `CU_FILE_ALLOW_COMPAT_MODE` (C); `get_nvfs_allow_compat_mode` (KvikIO).
        #[doc(alias = "CU_FILE_ALLOW_COMPAT_MODE")]
        #[doc(alias = "get_nvfs_allow_compat_mode")]
        const COMPAT_MODE = bit(Control::CU_FILE_ALLOW_COMPAT_MODE.as_raw());
        /// cuFile uses only POSIX calls.
        ///
        /// Names elsewhere: `CU_FILE_VANILLA_POSIX_IO_MODE`, `CU_FILE_POSIX_IO_MODE` (C).
        #[doc(alias = "CU_FILE_VANILLA_POSIX_IO_MODE")]
        #[doc(alias = "CU_FILE_POSIX_IO_MODE")]
        const POSIX_IO_MODE = bit(Control::CU_FILE_VANILLA_POSIX_IO_MODE.as_raw());
        /// cuFile repeats a failed direct transfer with POSIX calls (`CU_FILE_FALLBACK_IO_MODE`).
        #[doc(alias = "CU_FILE_FALLBACK_IO_MODE")]
        const FALLBACK_IO_MODE = bit(Control::CU_FILE_FALLBACK_IO_MODE.as_raw());
        /// Newer libraries may set bits without a name here.
        const _ = !0;
    }

    /// Abilities of the library on this machine (`CUfileFeatureFlags`).
    ///
    /// Names elsewhere: `CUfileFeatureFlags_t` (C); `FeatureFlags` (Python).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Features: u32 {
        /// libcufile may route transfers through another GPU (`CU_FILE_DYN_ROUTING_SUPPORTED`).
        #[doc(alias = "CU_FILE_DYN_ROUTING_SUPPORTED")]
        const DYNAMIC_ROUTING = bit(Feature::CU_FILE_DYN_ROUTING_SUPPORTED.as_raw());
        /// Batches.
        ///
        /// Names elsewhere: `CU_FILE_FEATURE_BATCH_IO_SUPPORTED`, `CU_FILE_BATCH_IO_SUPPORTED` (C).
        #[doc(alias = "CU_FILE_FEATURE_BATCH_IO_SUPPORTED")]
        #[doc(alias = "CU_FILE_BATCH_IO_SUPPORTED")]
        const BATCH_IO = bit(Feature::CU_FILE_BATCH_IO_SUPPORTED.as_raw());
        /// Stream-ordered transfers.
        ///
        /// Names elsewhere: `CU_FILE_FEATURE_ASYNC_IO_SUPPORTED`, `CU_FILE_STREAMS_SUPPORTED` (C).
        #[doc(alias = "CU_FILE_FEATURE_ASYNC_IO_SUPPORTED")]
        #[doc(alias = "CU_FILE_STREAMS_SUPPORTED")]
        const STREAMS = bit(Feature::CU_FILE_STREAMS_SUPPORTED.as_raw());
        /// libcufile splits large transfers among threads (`CU_FILE_PARALLEL_IO_SUPPORTED`).
        #[doc(alias = "CU_FILE_PARALLEL_IO_SUPPORTED")]
        const PARALLEL_IO = bit(Feature::CU_FILE_PARALLEL_IO_SUPPORTED.as_raw());
        /// PCI P2PDMA. Since cuFile 1.16.
        ///
        /// Names elsewhere: `CU_FILE_P2P_SUPPORTED` (C).
        #[doc(alias = "CU_FILE_P2P_SUPPORTED")]
        const P2P = bit(Feature::CU_FILE_P2P_SUPPORTED.as_raw());
        /// Newer libraries may set bits without a name here.
        const _ = !0;
    }
}

impl DriverProperties {
    /// Asks libcufile; the caller holds [the lock](crate::library::one_at_a_time).
    pub(crate) fn ask(library: &Library) -> Result<Self> {
        let get = library.functions().cuFileDriverGetProperties;
        // SAFETY: a struct of integers; the pointer outlives the call.
        let raw: CUfileDrvProps_t = unsafe { filled(|raw| check("cuFileDriverGetProperties", get(raw))) }?;
        Ok(Self::of(&raw))
    }

    fn of(raw: &CUfileDrvProps_t) -> Self {
        let kib = |value: u32| u64::from(value) * 1024;
        let module = (raw.nvfs.major_version, raw.nvfs.minor_version);
        Self {
            nvidia_fs: (module != (0, 0)).then_some(module),
            poll_threshold_bytes: (raw.nvfs.poll_thresh_size as u64).saturating_mul(1024),
            max_direct_io_bytes: (raw.nvfs.max_direct_io_size as u64).saturating_mul(1024),
            file_systems: FileSystems::from_bits_retain(raw.nvfs.dstatusflags),
            controls: Controls::from_bits_retain(raw.nvfs.dcontrolflags),
            features: Features::from_bits_retain(raw.fflags),
            max_device_cache_bytes: kib(raw.max_device_cache_size),
            per_buffer_cache_bytes: kib(raw.per_buffer_cache_size),
            max_device_pinned_bytes: kib(raw.max_device_pinned_mem_size),
            max_batch_entries: raw.max_batch_io_size,
            max_batch_timeout: Duration::from_millis(raw.max_batch_io_timeout_msecs.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(set: impl FnOnce(&mut CUfileDrvProps_t)) -> DriverProperties {
        // SAFETY: a struct of integers, of which zeros are valid.
        let mut raw = unsafe { std::mem::zeroed() };
        set(&mut raw);
        DriverProperties::of(&raw)
    }

    #[test]
    fn each_c_bit_sets_one_named_flag() {
        let file_systems = [
            (0, "LUSTRE"),
            (1, "WEKAFS"),
            (2, "NFS"),
            (3, "GPFS"),
            (4, "NVME"),
            (5, "NVMEOF"),
            (6, "SCSI"),
            (7, "SCALEFLUX_CSD"),
            (8, "NVMESH"),
            (9, "BEEGFS"),
            (11, "NVME_P2P"),
            (12, "SCATEFS"),
            (13, "VIRTIOFS"),
            (14, "PANFS"),
        ];
        for (position, name) in file_systems {
            let properties = told(|raw| raw.nvfs.dstatusflags = 1 << position);
            assert!(properties.file_systems.iter_names().map(|(name, _)| name).eq([name]), "{position}");
            assert!(properties.controls.is_empty() && properties.features.is_empty(), "{name}");
        }
        let controls = [(0, "POLL_MODE"), (1, "COMPAT_MODE"), (2, "POSIX_IO_MODE"), (4, "FALLBACK_IO_MODE")];
        for (position, name) in controls {
            let properties = told(|raw| raw.nvfs.dcontrolflags = 1 << position);
            assert!(properties.controls.iter_names().map(|(name, _)| name).eq([name]), "{position}");
            assert!(properties.file_systems.is_empty() && properties.features.is_empty(), "{name}");
        }
        let features = ["DYNAMIC_ROUTING", "BATCH_IO", "STREAMS", "PARALLEL_IO", "P2P"];
        for (position, name) in features.into_iter().enumerate() {
            let properties = told(|raw| raw.fflags = 1 << position);
            assert!(properties.features.iter_names().map(|(name, _)| name).eq([name]), "{position}");
            assert!(properties.file_systems.is_empty() && properties.controls.is_empty(), "{name}");
        }
    }

    #[test]
    fn unnamed_bits_are_kept() {
        let properties = told(|raw| (raw.nvfs.dstatusflags, raw.fflags) = (1 << 31 | 1 << 4, 1 << 30));
        assert!(properties.file_systems.contains(FileSystems::NVME));
        assert_eq!((properties.file_systems.bits(), properties.features.bits()), (1 << 31 | 1 << 4, 1 << 30));
    }

    #[test]
    fn sizes_are_in_bytes() {
        let properties = told(|raw| {
            raw.nvfs.poll_thresh_size = 4;
            raw.nvfs.max_direct_io_size = 16384;
            raw.max_device_cache_size = 131_072;
            raw.per_buffer_cache_size = 1024;
            raw.max_device_pinned_mem_size = u32::MAX;
        });
        assert_eq!(properties.poll_threshold_bytes, 4096);
        assert_eq!(properties.max_direct_io_bytes, 16 << 20);
        assert_eq!(properties.max_device_cache_bytes, 128 << 20);
        assert_eq!(properties.per_buffer_cache_bytes, 1 << 20);
        assert_eq!(properties.max_device_pinned_bytes, u64::from(u32::MAX) * 1024);
        assert_eq!(properties.nvidia_fs, None);
        assert_eq!(told(|raw| raw.nvfs.minor_version = 7).nvidia_fs, Some((0, 7)));
    }
}
