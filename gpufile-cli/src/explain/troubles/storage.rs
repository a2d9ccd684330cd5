//! Troubles of files, disks and the kernel's modules.

use super::super::{CHECK, Entry};
use super::Trouble;

const UDEV: &str =
    "`gpufile check PATH` shows whether the block device has a udev record; `ls /run/udev/data`";

pub const TROUBLES: &[Trouble] = &[
    Trouble {
        title: "Everything works, but the bytes pass through host memory",
        seen: &[
            "NOTICE  cufio-drv:720 running in compatible mode",
            "NOTICE  cufio:293 cuFileHandleRegister GDS not supported or disabled by config, using cuFile posix read/write with compat mode enabled",
            "/data: FALLBACK: the bytes pass through host memory (cuFile in its compatibility mode)",
            "WARNING - cuFile compat mode, GDS not enabled",
        ],
        marks: &[
            "running in compatible mode",
            "using cufile posix read/write",
            "the bytes pass through host memory",
            "cufile compat mode",
            "n/a (compatibility mode)",
            "gds not enabled",
        ],
        entry: Entry {
            meaning: "cuFile reads and writes with POSIX calls and host memory, without an error",
            cause: "nvidia-fs is not loaded and there is no P2PDMA, a setting turns the direct path off, or the file system \
                    or its disk has none",
            remedy: "follow the list of `gpufile check PATH`; GPUFILE_COMPAT_MODE=off, or allow_compat_mode set to false in \
                     cufile.json, turns the fallback into an error",
            proof: "`gpufile check --try PATH` shows the route and what nvidia-fs counted",
        },
    },
    Trouble {
        title: "The NVMe driver is not registered with nvidia-fs",
        seen: &["ERROR  cufio-fs:199 NVMe Driver not registered with nvidia-fs!!!"],
        marks: &["driver not registered with nvidia-fs"],
        entry: Entry {
            meaning: "nvidia-fs is loaded, but the kernel's driver of the disk does not know it, so the disk has no direct \
                      path",
            cause: "the nvme module is the kernel's own, without the functions for nvidia-fs; or nvidia-fs was loaded after \
                    a nvme module of MOFED or DOCA had changed, or the initial RAM disk still has the old one",
            remedy: "install an NVMe driver for nvidia-fs (package mlnx-nvme of DOCA or MLNX_OFED, installed with --with-nvmf \
                     and --enable-gds), build the initial RAM disk again and restart; or use P2PDMA, which needs no such \
                     driver: Linux 6.2 or newer, the open NVIDIA module, use_pci_p2pdma in cufile.json",
            proof: "`grep nvfs /proc/kallsyms` names functions of the nvme module only if it can register; `gpufile check` \
                    shows what is registered",
        },
    },
    Trouble {
        title: "nvidia-fs is not loaded",
        seen: &[
            "ERROR  cufio-drv:716 nvidia-fs.ko driver not loaded",
            "WARN   failed to open /proc/driver/nvidia-fs/devcount",
        ],
        marks: &[
            "nvidia-fs.ko driver not loaded",
            "failed to open /proc/driver/nvidia-fs",
            "nvidia-fs is not loaded",
        ],
        entry: Entry {
            meaning: "the kernel module of GPUDirect Storage is not there",
            cause: "it is not installed, not built for this kernel, not loaded, or not visible in the container",
            remedy: "install nvidia-gds on the host, and run `modprobe nvidia_fs`; containers use the host's. P2PDMA works \
                     without it",
            proof: "`lsmod | grep nvidia_fs`, and `cat /proc/driver/nvidia-fs/version`",
        },
    },
    Trouble {
        title: "nvidia-fs does not load",
        seen: &[
            "nvidia_fs: module using GPL-only symbols uses symbols from proprietary module nvidia.",
            "nvidia_fs: Unknown symbol nvidia_p2p_get_pages (err -2)",
            "modprobe: FATAL: Module nvidia_fs not found in directory /lib/modules/6.8.0-31-generic",
            "modprobe: ERROR: could not insert 'nvidia_fs': Operation not permitted",
            "modprobe: ERROR: could not insert 'nvidia_fs': Key was rejected by service",
            "insmod: ERROR: could not insert module nvidia-fs.ko: Required key not available",
        ],
        marks: &[
            "symbols from proprietary module nvidia",
            "from proprietary module nvidia",
            "unknown symbol nvidia_p2p",
            "module nvidia_fs not found",
            "module nvidia-fs not found",
            "could not insert*nvidia_fs",
            "could not insert*nvidia-fs",
        ],
        entry: Entry {
            meaning: "the kernel refuses the module nvidia-fs, or has none for its version",
            cause: "GPL-only and unknown symbols: the nvidia module is the closed one, or is not loaded; not found: the module \
                    was not built for this kernel; a key: Secure Boot admits only signed modules; not permitted: only root \
                    of the host may load modules, not a container",
            remedy: "install the open NVIDIA kernel modules (package nvidia-open), load nvidia before nvidia_fs, build \
                     nvidia-fs for the running kernel (dkms, with the kernel's headers), and sign it or enrol its key",
            proof: "`dmesg | grep nvidia_fs`; `gpufile check` shows an open or closed module; `mokutil --sb-state`; \
                    `dkms status`",
        },
    },
    Trouble {
        title: "Code 5030 or \"internal error\" in a container",
        seen: &[
            "ERROR  cufio:340 cuFileHandleRegister error: internal error",
            "RuntimeError: cuFile error at: file_handle.cpp:117: internal error",
            "cuFileHandleRegister(\"/data/x\"): CU_FILE_INTERNAL_ERROR (5030), libcufile failed internally; see libcufile's log file",
        ],
        marks: &[
            "cufilehandleregister error: internal error",
            "cufile error at*internal error",
            "cufilehandleregister(*internal_error",
        ],
        entry: Entry {
            meaning: "a file cannot be registered: libcufile up to 1.14 returns 5030 for it, newer ones 5027",
            cause: "the container lacks /run/udev, from which libcufile learns the file system of the block device; the \
                    compatibility mode needs it too",
            remedy: "start the container with `-v /run/udev:/run/udev:ro`; in Kubernetes, mount it as a hostPath",
            proof: UDEV,
        },
    },
    Trouble {
        title: "udev does not describe the disk",
        seen: &[
            "ERROR  cufio-udev:67 udev property not found: ID_FS_USAGE nvme0n1p2",
            "ERROR  cufio-fs:759 error getting volume attributes error for device: dev_no: 259:6",
            "ERROR  cufio-fs:328 error creating udev_device for block device dev_no: 0:53",
            "ERROR  cufio-obj:242 unable to get volume attributes for fd 56",
        ],
        marks: &[
            "udev property not found",
            "getting volume attributes",
            "creating udev_device",
            "get volume attributes",
        ],
        entry: Entry {
            meaning: "libcufile finds no udev record, or no file system in it, for the device of the file",
            cause: "/run/udev is not mounted into the container, udevd does not run, the record is older than the file \
                    system, or the file system has no block device at all (device numbers that begin with 0: overlay, \
                    tmpfs, btrfs, NFS)",
            remedy: "mount /run/udev into the container (-v /run/udev:/run/udev:ro); on the host, run `udevadm trigger \
                     --subsystem-match=block`; use a folder on ext4 or xfs",
            proof: UDEV,
        },
    },
    Trouble {
        title: "Code 5027: the file cannot be registered",
        seen: &[
            "cuFileHandleRegister(\"/data/x\"): CU_FILE_HANDLE_NOT_REGISTERED (5027), the file is not registered, or cannot be",
        ],
        marks: &["cu_file_handle_not_registered"],
        entry: Entry {
            meaning: "libcufile 1.15 or newer does not take the file",
            cause: "the block device has no udev record, as in containers; or the file system has no block device that \
                    libcufile knows (overlay, FUSE, btrfs)",
            remedy: "mount /run/udev into the container, or mount a folder of the host that is on ext4 or xfs (-v /data:/data)",
            proof: UDEV,
        },
    },
    Trouble {
        title: "The file system is on LVM or another device of the device mapper",
        seen: &[
            "ERROR  cufio-fs:268 Unsupported block device: /dev/dm-0",
            "ERROR  cufio-fs:68 mount options not specified for device in mount table /dev/dm-0",
            "ERROR  cufio-udev:67 udev property not found: ID_FS_USAGE dm-0",
        ],
        marks: &["/dev/dm-", " dm-", "/dev/mapper/"],
        entry: Entry {
            meaning: "the disk is reached through the device mapper (LVM, dm-crypt, dm-raid, multipath), which has no direct \
                      path",
            cause: "the installer of the system put the file system on LVM, or the disk is encrypted",
            remedy: "put the data on a partition of an NVMe disk, or on md raid0, with ext4 or xfs; self-encrypting disks need \
                     no dm-crypt",
            proof: "`lsblk -s -o NAME,TYPE,FSTYPE,MOUNTPOINT`; `gpufile check PATH` names each layer",
        },
    },
    Trouble {
        title: "The file system is on a software RAID",
        seen: &[
            "ERROR  cufio-fs:268 Unsupported block device: /dev/md0",
            "ERROR  cufio-udev:67 udev property not found: MD_LEVEL md127",
        ],
        marks: &["/dev/md", " md0", " md1", "md_level"],
        entry: Entry {
            meaning: "libcufile takes md arrays of the levels 0, 1 and 10 only, and only if udev describes them",
            cause: "the level needs parity, or udev has no MD_ properties of the array, as in containers",
            remedy: "use raid0, raid1 or raid10; let a udev rule import `mdadm --detail --export`; for P2PDMA, also set \
                     use_pci_p2pdma below block.raid in cufile.json",
            proof: "`cat /proc/mdstat`; `udevadm info /dev/md0 | grep MD_`; `gpufile check PATH`",
        },
    },
    Trouble {
        title: "The file is not supported, and the compatibility mode is off",
        seen: &[
            "ERROR  cufio:339 cuFileHandleRegister error: GPUDirect Storage not supported on current file",
        ],
        marks: &["gpudirect storage not supported on current file", "file checks failed"],
        entry: Entry {
            meaning: "the file has no direct path, and nothing may take its place (code 5008)",
            cause: "the lines above it in cufile.log name the reason: the NVMe driver, the device mapper, a mount option",
            remedy: "cure that reason, or allow the compatibility mode (allow_compat_mode in cufile.json)",
            proof: CHECK,
        },
    },
    Trouble {
        title: "ext4's mount options lack the journal's mode",
        seen: &["ERROR  cufio-fs:79 mount option not found in mount table data device: /dev/nvme0n1"],
        marks: &["mount option not found in mount table"],
        entry: Entry {
            meaning: "libcufile looks for data=ordered among the mount options and does not see it",
            cause: "data=ordered is the default, which the kernel may leave out of the list; data=journal has no direct path",
            remedy: "mount with data=ordered by name",
            proof: "`findmnt -no OPTIONS -T PATH`; `gpufile check PATH` reports data=journal",
        },
    },
    Trouble {
        title: "BAR1 is too small",
        seen: &[
            "ERROR  0:1072 Inc-bar-usage failed: size 524288000 remaining bytes 281018368",
            "ERROR  cufio-obj:156 error allocating nvfs handle, size: 2097152",
            "ERROR  0:522 nvidia-fs MAP ioctl failed : ioctl_return: -22 ioctl_ret: -1",
            "BAR1 of GPU 0 has 256 MiB for 24564 MiB of memory",
        ],
        marks: &[
            "inc-bar-usage",
            "error allocating nvfs handle",
            "map ioctl failed",
            "bar1 of",
            "cufilebufregister error, object",
        ],
        entry: Entry {
            meaning: "GPU memory could not be mapped for the disks",
            cause: "BAR1, the window through which other devices reach the GPU's memory, is smaller than what was \
                    registered: 256 MiB on many cards without Resizable BAR; or the driver of the GPU refuses the mapping, \
                    as modified or closed ones do",
            remedy: "turn on Resizable BAR and Above 4G Decoding in the firmware; until then, register less, or nothing: \
                     libcufile then uses its own small buffers",
            proof: "`nvidia-smi -q -d MEMORY` shows BAR1; `gpufile check` compares it with the memory; `dmesg | grep nvidia-fs`",
        },
    },
    Trouble {
        title: "P2PDMA is not supported",
        seen: &["cufio-drv:138  pci_p2pdma not supported errornum: 801 CUDA_ERROR_NOT_SUPPORTED"],
        marks: &["p2pdma not supported", "support pcip2pdma", "p2p flags to 0"],
        entry: Entry {
            meaning: "cuFile has no route over the kernel's own P2PDMA",
            cause: "the NVIDIA module is not the open one or does not map BAR1 statically, the kernel is older than 6.2, or \
                    use_pci_p2pdma is not set, for the disks in block.nvme too",
            remedy: "load the open nvidia module with NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\", \
                     and set use_pci_p2pdma in cufile.json; nvidia-fs does not need this",
            proof: "`ls /sys/bus/pci/devices/*/p2pmem`; `gpufile check` shows P2PDMA for the kernel and each GPU",
        },
    },
    Trouble {
        title: "No network card for a network file system",
        seen: &[
            "ERROR  cufio-dr:229 No matching pair for network device to closest GPU found in the platform",
            "NOTICE  cufio-rdma:175 nvidia_peermem.ko is not loaded. Disabling UserSpace RDMA access.",
        ],
        marks: &["no matching pair for network device", "nvidia_peermem.ko is not loaded", "no rdma devices"],
        entry: Entry {
            meaning: "libcufile found no RDMA card near a GPU, or no nvidia_peermem; local disks do not need either",
            cause: "no card with RDMA, rdma_dev_addr_list is empty, or `nvidia_peermem` is not loaded",
            remedy: "nothing for NVMe; for WekaFS and other user-space RDMA, run `modprobe nvidia_peermem` and list the cards' \
                     addresses in cufile.json",
            proof: "`gpufile check` lists the cards with RDMA and their distance to each GPU",
        },
    },
    Trouble {
        title: "A device is missing from the PCI topology",
        seen: &[
            "ERROR  cufio-topo-nvfs:78 pci device not present in topology device attribute table: 0001:10:00.0",
        ],
        marks: &["not present in topology"],
        entry: Entry {
            meaning: "libcufile or nvidia-fs does not find the disk or the card among the machine's PCI devices",
            cause: "the device is emulated, hot-plugged after the module was loaded, or in a virtual machine that hides the \
                    bridges",
            remedy: "load nvidia-fs again after the device appeared; pass real devices through to the virtual machine",
            proof: "`lspci -tv`; `gpufile check --verbose` lists the distances of disks and GPUs",
        },
    },
];
