//! The causes that keep a path from the fast route, and the effect of each. `words` has their texts.

use super::cufile_json::Change;
use super::pci::{Distance, Link};
use super::storage::Storage;
use super::target::ReadOnly;

/// The effect of a cause, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The check fails.
    Fails,
    /// No bytes reach a GPU.
    Stops,
    /// The bytes pass through host memory.
    Stages,
    /// Some calls fail.
    Limits,
    /// The route is slower than it could be.
    Slows,
}

impl Effect {
    /// Returns the word for the effect in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Effect::Fails => "fails",
            Effect::Stops => "stops",
            Effect::Stages => "stages",
            Effect::Limits => "limits",
            Effect::Slows => "slows",
        }
    }
}

/// The variable that names the file of a library, and that file, from which the library does not load.
pub type Misnamed = Option<(&'static str, String)>;

/// A cause.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// The path cannot be opened. True if it is missing.
    CannotOpen(bool),
    /// A variable has a value that gpufile refuses.
    WrongVariable(String),
    /// A variable that gpufile does not read, and the nearest that it reads.
    UnknownVariable(String, Option<&'static str>),
    /// The `cufile.json` in force cannot be read or parsed.
    BrokenConfiguration {
        file: String,
        error: String,
        is_named_by_variable: bool,
    },
    /// libcuda does not load. True in a container.
    NoLibcuda(Misnamed, bool),
    /// libcudart does not load.
    NoLibcudart(Misnamed),
    /// CUDA has no device. The number of NVIDIA's GPUs on the PCI bus.
    NoDevice(usize),
    /// CUDA fails with this error.
    CudaFails(String),
    NoLibcufile(Misnamed),
    /// A variable of gpufile excludes cuFile.
    CompatByVariable(String, String),
    /// A variable or a value of `cufile.json` turns the direct path off. True if it is a variable.
    CompatByCufile(Change, bool),
    /// A list of `cufile.json` excludes the path.
    Denied(Change),
    /// The cuFile driver does not open.
    DriverFails(String),
    /// nvidia-fs is not loaded. True for WSL.
    NoNvidiaFs(bool),
    /// P2PDMA is not available: whether the kernel lacks it, and whether NVMe multipath is on.
    NoP2pDma {
        kernel_lacks: bool,
        nvme_multipath: bool,
    },
    FileSystem(Storage),
    /// The path is a device or the like, by the words for its type.
    NotRegular(String),
    /// ext4 writes file data to its journal.
    Journal,
    Lvm(String),
    /// A device of the device mapper, and its sort.
    Mapper(String, String),
    /// A software RAID, and its level.
    Md(String, String),
    Loop(String),
    /// A disk that no direct route reaches, and its sort.
    Disk(String, &'static str),
    /// The block device has no udev record at this path.
    NoUdevRecord(String),
    NoDirectIo(String),
    /// The open flags that cuFile refuses.
    OpenFlags(Vec<&'static str>),
    AppendOnly,
    ReadOnly(ReadOnly),
    /// The folder cannot be written, and holds no file that could be opened.
    NoFile,
    /// A reason that only the library knows.
    Other(String),
    /// An old libcufile: its version, the number of calls that it lacks, the first of them, and its version.
    OldLibcufile {
        version: (u32, u32),
        calls: usize,
        first: &'static str,
        since: (u32, u32),
    },
    /// WekaFS writes pass through host memory.
    WekaWrites,
    Iommu,
    /// The bridges that redirect transfers between peers.
    Acs(Vec<String>),
    /// A GPU whose BAR 1 is smaller than its memory, both in bytes.
    SmallBar {
        gpu: String,
        bar_bytes: u64,
        memory_bytes: u64,
    },
    /// A GPU or disk whose link has fewer lanes than it could have.
    NarrowLink(String, Link),
    /// A disk or network card, a GPU, and the distance between them.
    Far {
        from: String,
        gpu: String,
        distance: Distance,
    },
    /// A network file system, but no network card with RDMA.
    NoRdmaCard,
}

impl Cause {
    /// Returns the effect.
    pub fn effect(&self) -> Effect {
        match self {
            Cause::CannotOpen(_) | Cause::WrongVariable(_) => Effect::Fails,
            Cause::NoLibcuda(..) | Cause::NoLibcudart(_) | Cause::NoDevice(_) | Cause::CudaFails(_) => {
                Effect::Stops
            }
            Cause::UnknownVariable(..)
            | Cause::BrokenConfiguration { .. }
            | Cause::AppendOnly
            | Cause::ReadOnly(_)
            | Cause::NoFile
            | Cause::OldLibcufile { .. }
            | Cause::WekaWrites => Effect::Limits,
            Cause::Iommu
            | Cause::Acs(_)
            | Cause::SmallBar { .. }
            | Cause::NarrowLink(..)
            | Cause::Far { .. } => Effect::Slows,
            _ => Effect::Stages,
        }
    }

    /// Returns the word for the cause in JSON.
    pub fn key(&self) -> &'static str {
        match self {
            Cause::CannotOpen(_) => "cannot-open",
            Cause::WrongVariable(_) => "wrong-variable",
            Cause::UnknownVariable(..) => "unknown-variable",
            Cause::BrokenConfiguration { .. } => "broken-cufile-json",
            Cause::NoLibcuda(..) => "no-libcuda",
            Cause::NoLibcudart(_) => "no-libcudart",
            Cause::NoDevice(_) => "no-device",
            Cause::CudaFails(_) => "cuda-fails",
            Cause::NoLibcufile(_) => "no-libcufile",
            Cause::CompatByVariable(..) | Cause::CompatByCufile(_, true) => "compat-mode-by-environment",
            Cause::CompatByCufile(_, false) => "compat-mode-by-cufile-json",
            Cause::Denied(_) => "denied-by-cufile-json",
            Cause::DriverFails(_) => "driver-fails",
            Cause::NoNvidiaFs(_) => "no-nvidia-fs",
            Cause::NoP2pDma { .. } => "no-p2pdma",
            Cause::FileSystem(storage) => storage.key(),
            Cause::NotRegular(_) => "not-regular",
            Cause::Journal => "ext4-journal",
            Cause::Lvm(_) => "lvm",
            Cause::Mapper(..) => "device-mapper",
            Cause::Md(..) => "md",
            Cause::Loop(_) => "loop",
            Cause::Disk(..) => "disk",
            Cause::NoUdevRecord(_) => "no-udev-record",
            Cause::NoDirectIo(_) => "no-o-direct",
            Cause::OpenFlags(_) => "open-flags",
            Cause::AppendOnly => "append-only",
            Cause::ReadOnly(_) => "read-only",
            Cause::NoFile => "no-file",
            Cause::Other(_) => "other",
            Cause::OldLibcufile { .. } => "old-libcufile",
            Cause::WekaWrites => "weka-writes",
            Cause::Iommu => "iommu",
            Cause::Acs(_) => "acs",
            Cause::SmallBar { .. } => "small-bar",
            Cause::NarrowLink(..) => "narrow-link",
            Cause::Far { .. } => "far",
            Cause::NoRdmaCard => "no-rdma-card",
        }
    }
}
