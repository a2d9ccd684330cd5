//! NVIDIA cuFile (GPUDirect Storage) in safe Rust: one item for each C entry point.
//!
//! libcufile moves bytes between files and GPU memory. This crate loads it at run time, so a program builds and
//! starts on any machine. Every libcufile from 1.11 on works. Functions missing from the loaded version return
//! [`Error::Unsupported`].
//!
//! The package is `libcufile`; the registry's `cufile` is another crate:
//!
//! ```toml
//! [dependencies]
//! libcufile = "0.1"
//! ```
//!
//! libcufile exists for Linux alone. On macOS and Windows the crate compiles without `cfg`, and each load returns
//! [`LoadError::Unsupported`] with the reason. Only functions with borrowed descriptors differ: these are handles on
//! Windows.
//!
//! ```no_run
//! use cufile::{Driver, FileHandle};
//!
//! let driver = Driver::open()?;
//! let device = driver.cuda().device(0)?;
//! let mut buffer = device.alloc(1 << 20)?;
//! let file = FileHandle::register(&driver, std::fs::File::open("data.bin")?)?;
//! let bytes = file.read_at(&mut buffer, 0)?;
//! println!("{bytes} bytes are on the GPU");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An overview:
//! - [`Driver`]: opens and closes the driver, and reports its properties;
//! - [`params`] and [`stats`]: libcufile's settings and counters;
//! - [`FileHandle`]: a registered file;
//! - [`IoBuf`] and [`IoBufMut`]: memory for transfers, and parts of it; [`RegisteredBuffer`]: memory registered once
//!   and used often;
//! - [`RegisteredStream`]: reads and writes in a CUDA stream; [`Batch`]: many of them in one call; [`OwnedPart`]: one
//!   buffer shared by many of them; [`scope`]: streams and batches with borrowed buffers;
//! - [`cuda`]: device memory and streams, for programs that use no other CUDA crate; with the feature `cudarc`, that
//!   crate's memory and streams;
//! - [`Error`]: a failed call, with cuFile's code, errno or CUDA's code; [`Failed`]: an error that returns the call's
//!   arguments;
//! - [`Library`]: a loaded libcufile, its version and its features.
//!
//! These crates have types in public functions. A version that takes an incompatible version of one of them is a breaking
//! version: before 1.0 the second number rises, then the first.
//!
//! | crate | version | feature | also at |
//! |---|---|---|---|
//! | `cufile_sys`, `cuda_rt_sys` | equal to this crate's | | [`sys`] |
//! | `libc` | 0.2 | | |
//! | `cudarc` | 0.19 | `cudarc` | `cudarc::cudarc` |
//! | `bytemuck` | 1 | `cudarc` | |
//!
//! This crate adds no threads and no policy. The crate `gpufile`, which uses it, takes another route where
//! cuFile does not work, and splits and stages transfers.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
// In tests, forked children use no locks of their parent.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod batch;
mod buffer;
mod builder;
mod callback;
mod context;
pub mod cuda;
#[cfg(feature = "cudarc")]
pub mod cudarc;
mod driver;
mod error;
mod failed;
mod file_info;
pub mod fork;
mod handle;
mod library;
mod memory;
mod opened;
mod owned_part;
mod p2p;
pub mod params;
mod patience;
pub mod porting {
    #![doc = include_str!("../PORTING.md")]
    #[allow(unused_imports, reason = "the page names items without their modules")]
    use crate::{cuda::*, params::*, stats::*, *};
}
mod properties;
mod scope;
mod slice;
pub mod stats;
mod stream;
mod system;
mod topology;
mod userspace_fs;
#[cfg(test)]
mod values;
mod vectored;
mod version;

/// The types and functions of cuFile, for codes and raw handles.
pub use cufile_sys as sys;

// rustdoc drops the alias of an item that a private module defines, unless the re-export has it.

#[doc(alias = "CUfileBatchHandle_t")]
#[doc(alias = "BatchHandle")]
pub use batch::Batch;
#[doc(alias = "CUfileIOEvents_t")]
#[doc(alias = "CUfileIOEvents")]
#[doc(alias = "IOEvents")]
#[doc(alias = "BatchEvent")]
pub use batch::Completion;
#[doc(alias = "CUfileIOParams_t")]
#[doc(alias = "CUfileIOParams")]
#[doc(alias = "CUFILE_BATCH")]
#[doc(alias = "CUfileBatchMode_t")]
#[doc(alias = "cufileBatchMode")]
#[doc(alias = "CUfileOpcode")]
#[doc(alias = "CUfileOpcode_t")]
#[doc(alias = "Opcode")]
#[doc(alias = "BatchMode")]
#[doc(alias = "IOParams")]
#[doc(alias = "BatchOp")]
#[doc(alias = "BatchOpcode")]
#[doc(alias = "IoOp")]
#[doc(alias = "opcode")]
#[doc(alias = "dev_ptr")]
pub use batch::Entry;
#[doc(alias = "CUfileStatus_t")]
#[doc(alias = "BatchEventStatus")]
pub use batch::Status;
#[doc(alias = "CU_FILE_BUF_REGISTER_FLAGS_READ_ONLY")]
#[doc(alias = "CU_FILE_BUF_REGISTER_FLAGS_WRITE_ONLY")]
pub use buffer::RegisterFlags;
pub use buffer::RegisteredBuffer;
#[doc(alias = "config_path")]
pub use builder::DriverBuilder;
#[doc(alias = "DriverInitializer")]
pub use driver::Driver;
#[doc(alias = "CUfileError_t")]
#[doc(alias = "CUfileError")]
#[doc(alias = "cuFileError")]
#[doc(alias = "check_status")]
#[doc(alias = "CUfileException")]
pub use error::Error;
#[doc(alias = "CUfileOpError")]
#[doc(alias = "CUFILEOP_BASE_ERR")]
#[doc(alias = "CU_FILE_IO_MAX_ERROR")]
pub use error::OpError;
#[doc(alias = "CU_FILE_SUCCESS")]
#[doc(alias = "CU_FILE_OP_SUCCESS")]
pub use error::Result;
pub use error::{ErrorKind, LoadError};
pub use failed::Failed;
#[doc(alias = "get_page_size")]
#[doc(alias = "page_size")]
#[doc(alias = "align_up")]
#[doc(alias = "align_down")]
#[doc(alias = "is_aligned")]
#[doc(alias = "align_up_ptr")]
#[doc(alias = "align_down_ptr")]
#[doc(alias = "is_aligned_ptr")]
pub use file_info::DirectIoAlignment;
pub use file_info::{FileProperties, FileType};
pub use handle::BorrowedHandle;
#[doc(alias = "CUfileDescr_t")]
#[doc(alias = "CUfileDescr")]
#[doc(alias = "CUfileFileHandleType")]
#[doc(alias = "FileHandleType")]
#[doc(alias = "Descr")]
#[doc(alias = "CUFileHandleWrapper")]
#[doc(alias = "registered")]
pub use handle::FileHandle;
pub use library::{Feature, Library};
#[doc(alias = "is_host_memory")]
pub use memory::Location;
pub use memory::{IoBuf, IoBufMut};
pub use owned_part::OwnedPart;
#[doc(alias = "CU_FILE_MAX_TARGET_TYPES")]
pub use p2p::FileSystem;
#[doc(alias = "CUfileP2PFlags")]
#[doc(alias = "CUfileP2PFlags_t")]
pub use p2p::P2pFlags;
#[doc(alias = "CUfileDriverControlFlags")]
#[doc(alias = "CUfileDriverControlFlags_t")]
#[doc(alias = "DriverControlFlags")]
pub use properties::Controls;
#[doc(alias = "CUfileDrvProps_t")]
#[doc(alias = "CUfileDrvProps")]
#[doc(alias = "DrvProps")]
pub use properties::DriverProperties;
#[doc(alias = "CUfileFeatureFlags")]
#[doc(alias = "CUfileFeatureFlags_t")]
#[doc(alias = "FeatureFlags")]
pub use properties::Features;
#[doc(alias = "CUfileDriverStatusFlags")]
#[doc(alias = "CUfileDriverStatusFlags_t")]
#[doc(alias = "DriverStatusFlags")]
#[doc(alias = "CU_FILE_FEATURE_GDS_SUPPORTED")]
pub use properties::FileSystems;
pub use scope::{Scope, scope};
pub use slice::{BufSlice, BufSliceMut};
pub use stream::{Kept, LateBound, Operation, RegisteredStream, StreamFlags};
#[doc(alias = "cufileRDMAInfo")]
#[doc(alias = "cufileRDMAInfo_t")]
#[doc(alias = "CU_FILE_RDMA_SUCCESS")]
#[doc(alias = "CU_FILE_RDMA_ERR_BASE")]
#[doc(alias = "CU_FILE_RDMA_RESET_TOKEN")]
#[doc(alias = "CU_FILE_RDMA_RESET_TOKEN_FAILED")]
pub use userspace_fs::RdmaInfo;
#[doc(alias = "CUfileFSOps")]
#[doc(alias = "sockaddr_t")]
#[doc(alias = "CUfileFSOps_t")]
#[doc(alias = "CU_FILE_HANDLE_TYPE_USERSPACE_FS")]
#[doc(alias = "FSOps")]
pub use userspace_fs::UserspaceFs;
pub use version::Version;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
