//! The words for causes, which `gpufile check` prints with `--json` and `--prometheus`.

use super::Entry;

const fn row(word: &'static str, meaning: &'static str) -> (&'static str, Entry) {
    let entry = Entry {
        meaning,
        cause: "`gpufile check` found it on this machine; the effect of the cause stands beside the word",
        remedy: "what `gpufile check PATH` says on the machine, where it names the device, the file or the value",
        proof: "the report of `gpufile check --verbose PATH` has the facts",
    };
    (word, entry)
}

/// Every word, as docs/schema/check.json has it.
pub const TABLE: &[(&str, Entry)] = &[
    row("cannot-open", "the path is missing or cannot be opened"),
    row("no-answer", "the path did not answer within --timeout"),
    row("wrong-variable", "a variable has a value that gpufile refuses"),
    row("unknown-variable", "a variable is misspelt"),
    row("broken-cufile-json", "the cufile.json in force cannot be read or parsed"),
    row("unknown-key", "cufile.json has a key that libcufile does not know"),
    row("wrong-type", "a value of cufile.json has the wrong type"),
    row("out-of-range", "a value of cufile.json is outside its limits"),
    row("unusable-library", "a library is there and does not load"),
    row("no-libcuda", "libcuda is not found"),
    row("no-libcudart", "libcudart is not found"),
    row("no-device", "CUDA shows no GPU"),
    row("cuda-fails", "CUDA fails"),
    row("no-libcufile", "libcufile is not found"),
    row("compat-mode-by-environment", "a variable turns the direct path off"),
    row("compat-mode-by-cufile-json", "cufile.json turns the direct path off"),
    row(
        "compat-mode-forbidden",
        "cufile.json forbids the compatibility mode, so transfers without a direct path fail",
    ),
    row("denied-by-cufile-json", "a denylist of cufile.json has the path"),
    row("small-direct-transfers", "max_direct_io_size_kb is small"),
    row("driver-fails", "the cuFile driver does not open"),
    row("no-nvidia-fs", "nvidia-fs is not loaded"),
    row("driver-not-registered", "the driver of the storage is not registered with nvidia-fs"),
    row("closed-kernel-module", "nvidia-fs needs the open NVIDIA kernel module"),
    row("old-nvidia-fs", "nvidia-fs is older than libcufile needs"),
    row("no-nvidia-fs-device", "the devices of nvidia-fs are missing"),
    row("no-p2pdma", "P2PDMA is not available"),
    row("no-nvidia-peermem", "nvidia_peermem is not loaded"),
    row("no-libcufile-rdma", "libcufile_rdma is not found"),
    row("no-gpudirect", "the GPU has no GPUDirect"),
    row("mig", "the GPU is divided into slices"),
    row("local", "libcufile has no direct path to the disk of ext4 or xfs"),
    row("tmpfs", "the file system is tmpfs"),
    row("overlay", "the file system is overlay"),
    row("nfs", "the file system is NFS"),
    row("lustre", "the file system is Lustre"),
    row("lustre-values", "values of Lustre differ from the wanted ones"),
    row("lustre-modules", "parameters of Lustre's modules differ from the wanted ones"),
    row("weka", "the file system is WekaFS"),
    row("weka-mount-mode", "the mount mode of WekaFS"),
    row("weka-writes", "writes to WekaFS pass through host memory"),
    row("beegfs", "the file system is BeeGFS"),
    row("gpfs", "the file system is IBM Storage Scale"),
    row("scatefs", "the file system is ScaTeFS"),
    row("panfs", "the file system is PanFS"),
    row("virtiofs", "the file system is virtiofs"),
    row("copy-on-write", "the file system is btrfs, ZFS or bcachefs"),
    row("fuse", "the file system is FUSE"),
    row("other-file-system", "another file system"),
    row("unknown-file-system", "an unknown file system"),
    row("not-regular", "the path is a device or the like"),
    row("ext4-journal", "ext4 writes data to its journal"),
    row("lvm", "the file system is on LVM"),
    row("device-mapper", "the file system is on a device of the device mapper"),
    row("md", "the file system is on a software RAID"),
    row("loop", "the file system is in a file"),
    row("disk", "no direct route reaches the disk"),
    row("no-udev-record", "udev does not describe the block device"),
    row("no-o-direct", "the file has no O_DIRECT"),
    row("open-flags", "the file is open with flags that cuFile refuses"),
    row("append-only", "the file can only be appended to"),
    row("read-only", "nothing can be written"),
    row("no-file", "no file was found here"),
    row("other", "a reason that only the library knows"),
    row("old-libcufile", "libcufile lacks calls"),
    row("iommu", "the IOMMU translates addresses"),
    row("acs", "ACS sends transfers between devices to the CPU"),
    row("small-bar", "BAR1 is smaller than the GPU's memory"),
    row("narrow-link", "a link has fewer lanes than it could have"),
    row("far", "a disk or card is far from a GPU"),
    row("counters-still", "the counters of the direct route do not move"),
    row("no-rdma-card", "there is no network card with RDMA"),
    row("rdma-ports-down", "no port of the RDMA cards is up"),
    row("old-network-driver", "the driver of the network cards is old"),
    row("no-rdma-addresses", "cufile.json lists no addresses of RDMA cards"),
    row("foreign-rdma-addresses", "cufile.json lists addresses of other hosts"),
    row("one-rdma-card", "the listed addresses are all of one card"),
    row("ethernet-mode", "a card is in Ethernet mode"),
];

/// Returns the words in a text in lower case: the whole text is one, or it is a line of JSON or of metrics with one.
pub fn of(text: &str) -> impl Iterator<Item = &'static (&'static str, Entry)> {
    TABLE.iter().filter(move |(word, _)| {
        let is_in = |before: &str| text.contains(&format!("{before}\"{word}\""));
        text == *word || is_in("cause=") || is_in("\"cause\": ") || is_in("\"cause\":")
    })
}
