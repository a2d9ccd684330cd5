//! The causes that keep a path from the fast route, and the effect of each. `words` has their texts.

use std::path::Path;
use std::time::Duration;

use super::causes::gpus::GpuCause;
use super::causes::modules::ModuleCause;
use super::causes::network::NetworkCause;
use super::causes::settings::SettingCause;
use super::causes::values::ValueCause;
use super::container::Container;
use super::cufile_json::Change;
use super::effect::Effect;
use super::pci::{Distance, Link};
use super::storage::Storage;
use super::target::ReadOnly;
use super::unusable::Unusable;

/// A variable that names the file of a library, and that file, which does not load.
pub type Misnamed = Option<(&'static str, String)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CannotOpen {
    Missing,
    /// This user may not open it.
    Denied,
    /// A pipe, a socket or the like.
    NoFile,
    /// cuFile is required, and refuses the file with this error.
    Refused(String),
    /// The file system did not answer within this time.
    NoAnswer(Duration),
    Other(String),
}

impl CannotOpen {
    pub fn of(path: &Path, error: &str) -> Self {
        let errno = |number: i32| error.ends_with(&format!("(os error {number})"));
        if error.contains("cuFile is required") {
            Self::Refused(error.to_owned())
        } else if path.try_exists().is_ok_and(|exists| !exists) {
            Self::Missing
        } else if errno(libc::EACCES) || errno(libc::EPERM) {
            Self::Denied
        } else if error.contains("not a file or a folder") {
            Self::NoFile
        } else {
            Self::Other(error.to_owned())
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    CannotOpen(CannotOpen),
    /// A variable has a value that gpufile refuses.
    WrongVariable(String),
    /// A variable that gpufile does not read, and the nearest that it reads.
    UnknownVariable(String, Option<&'static str>),
    BrokenConfiguration {
        file: String,
        error: String,
        is_named_by_variable: bool,
    },
    /// A library that does not load: its name, the variable that chooses its file, and the file.
    Unusable(&'static str, &'static str, Unusable),
    /// libcuda does not load, in this container.
    NoLibcuda(Misnamed, Option<Container>),
    NoLibcudart(Misnamed),
    /// CUDA has no device. The number of NVIDIA's GPUs on the PCI bus, and the container.
    NoDevice(usize, Option<Container>),
    CudaFails(String),
    NoLibcufile(Misnamed),
    /// A variable of gpufile excludes cuFile.
    CompatByVariable(String, String),
    /// A variable or a value of `cufile.json` turns the direct path off. True if it is a variable.
    CompatByCufile(Change, bool),
    /// A list of `cufile.json` excludes the path.
    Denied(Change),
    DriverFails(String),
    /// nvidia-fs is not loaded. True for WSL. The container.
    NoNvidiaFs(bool, Option<Container>),
    /// P2PDMA is not available: whether the kernel lacks it, and whether NVMe multipath is on.
    NoP2pDma {
        kernel_lacks: bool,
        nvme_multipath: bool,
    },
    FileSystem(Storage),
    /// A device or the like, by the words for its type.
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
    /// The block device has no udev record at this path. The container.
    NoUdevRecord(String, Option<Container>),
    NoDirectIo(String),
    OpenFlags(Vec<&'static str>),
    AppendOnly,
    ReadOnly(ReadOnly),
    /// libcufile cannot write its log file.
    LogRefused(String),
    /// The folder cannot be written, and holds no usable file.
    NoFile,
    /// A reason that only the library knows.
    Other(String),
    /// The version, the number of calls that it lacks, the first of them, and its version.
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
    /// The link has fewer lanes than it could have.
    NarrowLink(String, Link),
    /// A disk or network card, the GPUs that are far from it, and the distance.
    Far {
        from: String,
        gpus: Vec<String>,
        distance: Distance,
    },
    /// Counters of a direct route that did not move in the attempt: the route that they show.
    CountersStill(String),
    Module(ModuleCause),
    Network(NetworkCause),
    Setting(SettingCause),
    Value(ValueCause),
    Gpu(GpuCause),
}

impl Cause {
    pub fn effect(&self) -> Effect {
        match self {
            Cause::CannotOpen(_) | Cause::WrongVariable(_) => Effect::Fails,
            Cause::NoLibcuda(..) | Cause::NoLibcudart(_) | Cause::NoDevice(..) | Cause::CudaFails(_) => {
                Effect::Stops
            }
            // The others need no libcufile.
            Cause::Unusable(name, ..) if *name != "libcufile" => Effect::Stops,
            Cause::Module(cause) => cause.effect(),
            Cause::Network(cause) => cause.effect(),
            Cause::Setting(cause) => cause.effect(),
            Cause::Value(cause) => cause.effect(),
            Cause::Gpu(cause) => cause.effect(),
            Cause::UnknownVariable(..)
            | Cause::BrokenConfiguration { .. }
            | Cause::AppendOnly
            | Cause::ReadOnly(_)
            | Cause::NoFile
            | Cause::LogRefused(_)
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
            Cause::CannotOpen(CannotOpen::NoAnswer(_)) => "no-answer",
            Cause::CannotOpen(_) => "cannot-open",
            Cause::WrongVariable(_) => "wrong-variable",
            Cause::UnknownVariable(..) => "unknown-variable",
            Cause::BrokenConfiguration { .. } => "broken-cufile-json",
            Cause::Unusable(..) => "unusable-library",
            Cause::NoLibcuda(..) => "no-libcuda",
            Cause::NoLibcudart(_) => "no-libcudart",
            Cause::NoDevice(..) => "no-device",
            Cause::CudaFails(_) => "cuda-fails",
            Cause::NoLibcufile(_) => "no-libcufile",
            Cause::CompatByVariable(..) | Cause::CompatByCufile(_, true) => "compat-mode-by-environment",
            Cause::CompatByCufile(_, false) => "compat-mode-by-cufile-json",
            Cause::Denied(_) => "denied-by-cufile-json",
            Cause::DriverFails(_) => "driver-fails",
            Cause::NoNvidiaFs(..) => "no-nvidia-fs",
            Cause::NoP2pDma { .. } => "no-p2pdma",
            Cause::FileSystem(storage) => storage.key(),
            Cause::NotRegular(_) => "not-regular",
            Cause::Journal => "ext4-journal",
            Cause::Lvm(_) => "lvm",
            Cause::Mapper(..) => "device-mapper",
            Cause::Md(..) => "md",
            Cause::Loop(_) => "loop",
            Cause::Disk(..) => "disk",
            Cause::NoUdevRecord(..) => "no-udev-record",
            Cause::NoDirectIo(_) => "no-o-direct",
            Cause::OpenFlags(_) => "open-flags",
            Cause::AppendOnly => "append-only",
            Cause::ReadOnly(_) => "read-only",
            Cause::NoFile => "no-file",
            Cause::LogRefused(_) => "log-refused",
            Cause::Other(_) => "other",
            Cause::OldLibcufile { .. } => "old-libcufile",
            Cause::WekaWrites => "weka-writes",
            Cause::Iommu => "iommu",
            Cause::Acs(_) => "acs",
            Cause::SmallBar { .. } => "small-bar",
            Cause::NarrowLink(..) => "narrow-link",
            Cause::Far { .. } => "far",
            Cause::CountersStill(_) => "counters-still",
            Cause::Module(cause) => cause.key(),
            Cause::Network(cause) => cause.key(),
            Cause::Setting(cause) => cause.key(),
            Cause::Value(cause) => cause.key(),
            Cause::Gpu(cause) => cause.key(),
        }
    }
}
