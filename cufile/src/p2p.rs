//! Peer-to-peer flags: the routes of a file system's data to the GPU.

use cufile_sys::{CUfileDriverStatusFlags as Status, CUfileP2PFlags_t as Position};

use crate::driver::Driver;
use crate::error::{OpError, Result, check};
use crate::library::newer;

/// A file system or block device to which cuFile may have a direct path.
///
/// C's end marker is `CU_FILE_MAX_TARGET_TYPES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileSystem {
    /// DDN Lustre (EXAScaler).
    Lustre,
    /// WekaFS.
    WekaFs,
    /// NFS over RDMA.
    Nfs,
    /// IBM Spectrum Scale.
    Gpfs,
    /// NVMe.
    Nvme,
    /// NVMe over Fabrics.
    NvmeOf,
    /// SCSI.
    Scsi,
    /// ScaleFlux computational storage.
    ScaleFluxCsd,
    /// NVMesh block devices.
    NvMesh,
    /// BeeGFS.
    BeeGfs,
    /// NVMe through P2PDMA.
    NvmeP2p,
    /// ScateFS.
    ScateFs,
    /// VirtioFS.
    VirtioFs,
    /// PanFS. Since cuFile 1.19.
    PanFs,
}

impl FileSystem {
    const fn as_raw(self) -> Status {
        match self {
            FileSystem::Lustre => Status::CU_FILE_LUSTRE_SUPPORTED,
            FileSystem::WekaFs => Status::CU_FILE_WEKAFS_SUPPORTED,
            FileSystem::Nfs => Status::CU_FILE_NFS_SUPPORTED,
            FileSystem::Gpfs => Status::CU_FILE_GPFS_SUPPORTED,
            FileSystem::Nvme => Status::CU_FILE_NVME_SUPPORTED,
            FileSystem::NvmeOf => Status::CU_FILE_NVMEOF_SUPPORTED,
            FileSystem::Scsi => Status::CU_FILE_SCSI_SUPPORTED,
            FileSystem::ScaleFluxCsd => Status::CU_FILE_SCALEFLUX_CSD_SUPPORTED,
            FileSystem::NvMesh => Status::CU_FILE_NVMESH_SUPPORTED,
            FileSystem::BeeGfs => Status::CU_FILE_BEEGFS_SUPPORTED,
            FileSystem::NvmeP2p => Status::CU_FILE_NVME_P2P_SUPPORTED,
            FileSystem::ScateFs => Status::CU_FILE_SCATEFS_SUPPORTED,
            FileSystem::VirtioFs => Status::CU_FILE_VIRTIOFS_SUPPORTED,
            FileSystem::PanFs => Status::CU_FILE_PANFS_SUPPORTED,
        }
    }
}

bitflags::bitflags! {
    /// Routes between a file system and the GPU (`CUfileP2PFlags_t`).
    ///
    /// Names elsewhere: `CUfileP2PFlags` (C).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct P2pFlags: u32 {
        /// The kernel's PCI peer-to-peer transfers.
        ///
        /// Names elsewhere: `CU_FILE_P2P_FLAG_PCI_P2PDMA`, `CUFILE_P2PDMA` (C).
        #[doc(alias = "CU_FILE_P2P_FLAG_PCI_P2PDMA")]
        #[doc(alias = "CUFILE_P2PDMA")]
        const PCI_P2PDMA = Position::CUFILE_P2PDMA.mask().as_raw();
        /// The nvidia-fs kernel module.
        ///
        /// Names elsewhere: `CU_FILE_P2P_FLAG_NVFS`, `CUFILE_NVFS` (C).
        #[doc(alias = "CU_FILE_P2P_FLAG_NVFS")]
        #[doc(alias = "CUFILE_NVFS")]
        const NVIDIA_FS = Position::CUFILE_NVFS.mask().as_raw();
        /// GPU memory exported as a DMA-BUF.
        ///
        /// Names elsewhere: `CU_FILE_P2P_FLAG_DMABUF`, `CUFILE_DMABUF` (C).
        #[doc(alias = "CU_FILE_P2P_FLAG_DMABUF")]
        #[doc(alias = "CUFILE_DMABUF")]
        const DMABUF = Position::CUFILE_DMABUF.mask().as_raw();
        /// The coherent link between CPU and GPU.
        ///
        /// Names elsewhere: `CU_FILE_P2P_FLAG_C2C`, `CUFILE_C2C` (C).
        #[doc(alias = "CU_FILE_P2P_FLAG_C2C")]
        #[doc(alias = "CUFILE_C2C")]
        const C2C = Position::CUFILE_C2C.mask().as_raw();
        /// The nvidia-peermem kernel module (`CUFILE_NVIDIA_PEERMEM`).
        #[doc(alias = "CUFILE_NVIDIA_PEERMEM")]
        const NVIDIA_PEERMEM = Position::CUFILE_NVIDIA_PEERMEM.mask().as_raw();
        /// Newer libraries may set bits without a name here.
        const _ = !0;
    }
}

impl Driver {
    /// Returns the routes over which a file system's data may reach the GPU (`cuFileDriverGetP2PFlags`). Since cuFile
    /// 1.16.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or libcufile's code.
    #[doc(alias = "cuFileDriverGetP2PFlags")]
    pub fn p2p_flags(&self, file_system: FileSystem) -> Result<P2pFlags> {
        self.check_alive()?;
        let call = newer!(self.library(), cuFileDriverGetP2PFlags)?;
        let mut flags = Position::from_raw(0);
        // SAFETY: `flags` outlives the call.
        let status = unsafe { call(file_system.as_raw(), &mut flags) };
        check("cuFileDriverGetP2PFlags", status)
            .map_err(|error| error.about(&format_args!("{file_system:?}")))?;
        Ok(P2pFlags::from_bits_retain(flags.as_raw()))
    }

    /// Permits routes over which a file system's data may reach the GPU (`cuFileDriverSetP2PFlags`). Since cuFile
    /// 1.16.
    ///
    /// Adds to the flags already set, and clears none. libcufile accepts [`PCI_P2PDMA`](P2pFlags::PCI_P2PDMA) on
    /// x86-64 and [`C2C`](P2pFlags::C2C) on Arm; it manages the others itself.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or libcufile's code.
    #[doc(alias = "cuFileDriverSetP2PFlags")]
    pub fn set_p2p_flags(&self, file_system: FileSystem, flags: P2pFlags) -> Result<()> {
        self.check_alive()?;
        let call = newer!(self.library(), cuFileDriverSetP2PFlags)?;
        // SAFETY: takes numbers.
        let status = unsafe { call(file_system.as_raw(), Position::from_raw(flags.bits())) };
        check("cuFileDriverSetP2PFlags", status).map_err(|error| {
            let settable = if cfg!(target_arch = "x86_64") { P2pFlags::PCI_P2PDMA } else { P2pFlags::C2C };
            let advice = match error.op_error() {
                Some(OpError::INVALID_VALUE) if !settable.contains(flags) => {
                    format!("libcufile can set only {settable:?} here")
                }
                _ => String::new(),
            };
            error.about(&format_args!("{file_system:?}, {flags:?}")).advise(advice)
        })
    }
}
