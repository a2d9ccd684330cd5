//! The words for each cause: what is wrong, and what would change that.

use super::cause::{CannotOpen, Cause};
use super::codes;
use super::container::Container;
use super::cufile_json::Change;
use super::target::ReadOnly;
use crate::units::Time;

impl Cause {
    /// Returns what is wrong, as a clause without a full stop.
    pub fn problem(&self) -> String {
        match self {
            Cause::WrongVariable(error) | Cause::CudaFails(error) | Cause::Other(error) => error.clone(),
            Cause::CannotOpen(CannotOpen::Missing) => "there is no such path".to_owned(),
            Cause::CannotOpen(CannotOpen::Refused(error)) => error.clone(),
            Cause::CannotOpen(CannotOpen::NoFile) => "the path is neither a file nor a folder".to_owned(),
            Cause::CannotOpen(CannotOpen::NoAnswer(limit)) => {
                format!("the path did not answer within {}", Time(*limit))
            }
            Cause::CannotOpen(_) => "the path cannot be opened for reading".to_owned(),
            Cause::Unusable(name, _, file) => format!("{name} is at {}, but does not load: {}", file.path, file.reason),
            Cause::UnknownVariable(name, _) => format!("gpufile does not know the variable {name}"),
            Cause::BrokenConfiguration { file, error, .. } => {
                format!("libcufile's configuration {file} cannot be used: {error}")
            }
            Cause::NoLibcuda(Some(named), _) => misnamed("libcuda", named),
            Cause::NoLibcudart(Some(named)) => misnamed("libcudart", named),
            Cause::NoLibcufile(Some(named)) => misnamed("libcufile", named),
            Cause::NoLibcuda(None, _) => {
                "libcuda, the library of NVIDIA's display driver, is not found".to_owned()
            }
            Cause::NoLibcudart(None) => "libcudart, CUDA's runtime, is not found".to_owned(),
            Cause::NoDevice(0, _) => "CUDA works, but there is no GPU".to_owned(),
            Cause::NoDevice(count, _) => format!("the PCI bus has {count} NVIDIA GPUs, but CUDA shows none"),
            Cause::NoLibcufile(None) => "libcufile is not found".to_owned(),
            Cause::CompatByVariable(name, value) => format!("{name}={value} excludes cuFile"),
            Cause::CompatByCufile(Change { key, value, from, .. }, is_variable) => match is_variable {
                true => format!("{from} turns cuFile's direct paths off"),
                false => format!("{key} is {value} in {from}, which turns cuFile's direct paths off"),
            },
            Cause::Denied(Change { key, from, .. }) => format!("{key} in {from} excludes this path"),
            Cause::DriverFails(error) => format!("the cuFile driver does not open: {error}"),
            Cause::NoNvidiaFs(..) => "the kernel module nvidia-fs is not loaded".to_owned(),
            Cause::NoP2pDma { kernel_lacks: true, .. } => {
                "this kernel is built without PCI P2PDMA".to_owned()
            }
            Cause::NoP2pDma { .. } => "no GPU offers its memory for PCI P2PDMA".to_owned(),
            Cause::FileSystem(storage) => storage.problem(),
            Cause::NotRegular(kind) => format!("it is a {kind}, but cuFile takes only regular files"),
            Cause::Journal => {
                "ext4 is mounted with data=journal, which writes all data twice through host memory"
                    .to_owned()
            }
            Cause::Lvm(volume) => format!("the file system is on the LVM volume {volume}"),
            Cause::Mapper(name, sort) if sort == "crypt" => {
                format!(
                    "the file system is on the encrypted device {name}, so the processor must see every byte"
                )
            }
            Cause::Mapper(name, _) => format!("the file system is on {name}, a device of the device mapper"),
            Cause::Md(name, level) => format!("the file system is on {name}, a software RAID ({level})"),
            Cause::Loop(name) => format!("the file system is in a file, through the loop device {name}"),
            Cause::Disk(name, sort) => format!("{name} is a {sort} disk, which cannot write into a GPU"),
            Cause::NoUdevRecord(path, _) => {
                format!("udev does not describe the block device: {path} names no file system")
            }
            Cause::NoDirectIo(file_system) => format!("{file_system} does not support O_DIRECT for the file"),
            Cause::OpenFlags(flags) => {
                format!("the file is open with {}, which cuFile refuses", flags.join(" and "))
            }
            Cause::AppendOnly => "the file can only be appended to, and cuFile refuses O_APPEND".to_owned(),
            Cause::ReadOnly(ReadOnly::Mount) => {
                "the file system is mounted read-only, so writes fail".to_owned()
            }
            Cause::ReadOnly(ReadOnly::Immutable) => "the file is immutable, so writes fail".to_owned(),
            Cause::ReadOnly(ReadOnly::Permissions) => "this user may not write here".to_owned(),
            Cause::NoFile => "no file was found here, so the route is that of the folder".to_owned(),
            Cause::LogRefused(path) => format!("libcufile cannot write its log {path}, so it logs nothing"),
            Cause::OldLibcufile { version: (major, minor), calls, first, since } => {
                format!(
                    "libcufile {major}.{minor} lacks {calls} calls, such as {first} of {}.{}",
                    since.0, since.1
                )
            }
            Cause::WekaWrites => "WekaFS writes pass through host memory".to_owned(),
            Cause::Iommu => {
                "the IOMMU translates addresses, so transfers between devices pass through the CPU's root ports"
                    .to_owned()
            }
            Cause::Acs(bridges) => format!(
                "ACS on {} of the PCIe bridges ({}) sends transfers between devices up to the CPU",
                bridges.len(),
                shortened(bridges)
            ),
            Cause::SmallBar { gpu, bar_bytes, memory_bytes } => {
                format!("BAR1 of {gpu} has {} MiB for {} MiB of memory", bar_bytes >> 20, memory_bytes >> 20)
            }
            Cause::NarrowLink(name, link) => {
                format!("the link of {name} has {} of its {} lanes", link.lanes, link.max_lanes)
            }
            Cause::Far { from, gpus, distance } => format!("{from} and {}: {distance}", shortened(gpus)),
            Cause::CountersStill(shown) => format!("the bytes of the attempt took another way: the route is {shown}"),
            Cause::Module(cause) => cause.problem(),
            Cause::Network(cause) => cause.problem(),
            Cause::Setting(cause) => cause.problem(),
            Cause::Value(cause) => cause.problem(),
            Cause::Gpu(cause) => cause.problem(),
        }
    }

    pub fn remedy(&self) -> String {
        let text = match self {
            Cause::CannotOpen(cause) => return cannot_open(cause).to_owned(),
            Cause::Unusable(_, variable, file) => return file.remedy(variable),
            Cause::WrongVariable(_) => "set it to an accepted value, or unset it",
            Cause::UnknownVariable(_, Some(nearest)) => {
                return format!("the most similar one that it knows is {nearest}");
            }
            Cause::UnknownVariable(_, None) => "unset it; docs/settings.md lists the variables",
            Cause::BrokenConfiguration { is_named_by_variable: true, .. } => {
                "fix it, or unset CUFILE_ENV_PATH_JSON; its values are ignored here"
            }
            Cause::BrokenConfiguration { .. } => "fix or remove it; its values are ignored here",
            Cause::NoLibcuda(Some((variable, _)), _)
            | Cause::NoLibcudart(Some((variable, _)))
            | Cause::NoLibcufile(Some((variable, _))) => {
                return format!(
                    "set {variable} to the library, or unset it; while it is set, no other file is tried"
                );
            }
            Cause::NoLibcuda(None, Some(Container::Kubernetes)) => {
                "request a GPU for the pod (resources.limits: nvidia.com/gpu: 1), on a node with NVIDIA's device plugin or GPU \
                 Operator; where it is not the default, also set runtimeClassName: nvidia"
            }
            Cause::NoLibcuda(None, Some(Container::Other)) => {
                "start the container with GPUs (docker run --gpus all, podman run --device nvidia.com/gpu=all; needs the NVIDIA \
                 Container Toolkit)"
            }
            Cause::NoLibcuda(None, None) => {
                "install NVIDIA's display driver, or set CUDA_LIBRARY to the file; host memory works without it"
            }
            Cause::NoLibcudart(None) => {
                "install CUDA's runtime (pip install nvidia-cuda-runtime), or set CUDART_LIBRARY to the file"
            }
            Cause::NoDevice(_, Some(Container::Kubernetes)) => {
                "request a GPU for the pod (resources.limits: nvidia.com/gpu: 1), and leave NVIDIA_VISIBLE_DEVICES to the \
                 device plugin; `nvidia-smi -L` lists the GPUs"
            }
            Cause::NoDevice(..) => {
                "unset CUDA_VISIBLE_DEVICES, and give the container its GPUs; `nvidia-smi -L` lists them"
            }
            Cause::CudaFails(error) => codes::remedy(error).unwrap_or(
                "run `nvidia-smi`, and look for Xid and NVRM in `dmesg`: the code above is in CUDA's list of errors",
            ),
            Cause::NoLibcufile(None) => {
                "install it (pip install nvidia-cufile, or the package nvidia-gds), or set CUFILE_LIBRARY to the file"
            }
            Cause::CompatByVariable(name, _) => return format!("unset {name}, or set it to auto"),
            Cause::CompatByCufile(Change { from, .. }, true) => return format!("unset {from}"),
            Cause::CompatByCufile(..) => {
                "set it to false there, or name another file in CUFILE_ENV_PATH_JSON"
            }
            Cause::Denied(_) => "remove the entry from the list",
            Cause::DriverFails(error) => codes::remedy(error).unwrap_or(
                "read libcufile's log file (cufile.log), or set CUFILE_LOGGING_LEVEL=TRACE and try again",
            ),
            Cause::CountersStill(_) => {
                "set CUFILE_LOGGING_LEVEL=TRACE, repeat it, and read cufile.log: it names the transfers that passed through host \
                 memory; with properties.allow_compat_mode=false they fail instead. Counters of nvidia-fs need its parameter \
                 rw_stats_enabled=1"
            }
            Cause::NoNvidiaFs(true, _) => "NVIDIA provides none for WSL; run Linux without Windows",
            Cause::NoNvidiaFs(false, Some(Container::Kubernetes)) => {
                "turn GPUDirect Storage on in NVIDIA's GPU Operator (gds.enabled=true), or load nvidia_fs on the node"
            }
            Cause::NoNvidiaFs(false, _) => {
                "install the package nvidia-gds on the host and run `modprobe nvidia_fs`; containers use the host's"
            }
            Cause::NoP2pDma { kernel_lacks: true, .. } => {
                "use Linux 6.2 or newer with CONFIG_PCI_P2PDMA, or nvidia-fs"
            }
            Cause::NoP2pDma { nvme_multipath: true, .. } => {
                "boot with nvme_core.multipath=N, load the open nvidia module with static BAR1, and set \
                 properties.use_pci_p2pdma in cufile.json; nvidia-fs does not need this"
            }
            Cause::NoP2pDma { .. } => {
                "load the open nvidia module with NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\", \
                 and set properties.use_pci_p2pdma in cufile.json; nvidia-fs does not need this"
            }
            Cause::FileSystem(storage) => storage.remedy(),
            Cause::NotRegular(_) => "name a file, or the folder with the files",
            Cause::Journal => "mount it with data=ordered",
            Cause::Lvm(_) | Cause::Loop(_) => {
                "put the file system on an NVMe disk, on a partition of one, or on md raid0"
            }
            Cause::Mapper(..) => {
                "put the file system on the disk itself; self-encrypting disks need no dm-crypt"
            }
            Cause::Md(_, level) if ["raid0", "raid1", "raid10"].contains(&level.as_str()) => {
                "let udev describe the array (a rule with IMPORT{program}=\"mdadm --detail --export $devnode\"); \
                 P2PDMA also needs block.raid.use_pci_p2pdma in cufile.json"
            }
            Cause::Md(..) => "use raid0, raid1 or raid10: the processor computes the parity of other levels",
            Cause::Disk(..) => "use an NVMe disk; in a virtual machine, the disk must be passed through",
            Cause::NoUdevRecord(_, Some(Container::Kubernetes)) => {
                "mount /run/udev of the node into the pod (a hostPath volume, read-only)"
            }
            Cause::NoUdevRecord(..) => {
                "mount /run/udev of the host into the container (-v /run/udev:/run/udev:ro), or run udevd"
            }
            Cause::NoDirectIo(_) => {
                "turn off data journaling, inline data, encryption and compression of the file, or use xfs"
            }
            Cause::OpenFlags(_) => "open the file without them; every transfer names its offset anyway",
            Cause::AppendOnly => "remove the attribute with `chattr -a`, or write a new file and rename it",
            Cause::ReadOnly(ReadOnly::Mount) => "`mount -o remount,rw` permits writes; reads already work",
            Cause::ReadOnly(ReadOnly::Immutable) => "`chattr -i` permits writes; reads already work",
            Cause::ReadOnly(ReadOnly::Permissions) => {
                "change the permissions to permit writes; reads already work"
            }
            Cause::NoFile => "name a file, or a folder with files",
            Cause::LogRefused(_) => "name a file that this user may write in CUFILE_LOGFILE_PATH, or a folder in logging.dir",
            Cause::Other(_) => "`gpufile check --verbose` lists the facts that the route depends on",
            Cause::OldLibcufile { .. } => {
                "install a newer one (pip install -U nvidia-cufile), and set CUFILE_LIBRARY to it"
            }
            Cause::WekaWrites => "set fs.weka.rdma_write_support in cufile.json, if the cluster supports it",
            Cause::Iommu => {
                "turn it off in the firmware, or boot with intel_iommu=off or amd_iommu=off; if it must stay on, boot with iommu=pt"
            }
            Cause::Acs(_) => "turn ACS off in the firmware, or at boot: setpci -s BRIDGE ECAP_ACS+6.w=0000",
            Cause::SmallBar { .. } => {
                "turn on Resizable BAR and Above 4G Decoding in the firmware; until then, do not register large buffers"
            }
            Cause::NarrowLink(..) => "reseat the card, or move it to a slot with all lanes",
            Cause::Far { .. } => "put both under one PCIe switch, or use a nearer GPU",
            Cause::Module(cause) => return cause.remedy(),
            Cause::Network(cause) => return cause.remedy(),
            Cause::Setting(cause) => return cause.remedy(),
            Cause::Value(cause) => return cause.remedy(),
            Cause::Gpu(cause) => return cause.remedy(),
        };
        text.to_owned()
    }
}

fn cannot_open(cause: &CannotOpen) -> &'static str {
    match cause {
        CannotOpen::Missing => {
            "name a file or folder that exists; a container shows only what is mounted into it"
        }
        CannotOpen::Denied => "run as a user who may read it",
        CannotOpen::NoFile => "name a file or a folder: pipes and sockets have no route",
        CannotOpen::Refused(error) => codes::remedy(error).unwrap_or(
            "remedy the causes below, or permit POSIX reads and writes: unset GPUFILE_COMPAT_MODE and KVIKIO_COMPAT_MODE",
        ),
        CannotOpen::NoAnswer(_) => {
            "look for its server or its FUSE process, and at `dmesg`; `umount -l` releases programs that wait for it; --timeout sets the limit"
        }
        CannotOpen::Other(_) => {
            "the error above is of the file system: look at its mount and at `dmesg`, and try `cat` on the file"
        }
    }
}

fn misnamed(library: &str, (variable, path): &(&'static str, String)) -> String {
    format!("{variable} is {path:?}, but {library} does not load from there")
}

fn shortened(names: &[String]) -> String {
    match names {
        [first, second, third, _, ..] => format!("{first}, {second}, {third} and {} more", names.len() - 3),
        few => few.join(", "),
    }
}
