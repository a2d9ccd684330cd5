//! The kinds of file systems that the advice distinguishes.

use super::mounts::Mount;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// ext4 and xfs, which cuFile reaches on local disks.
    Local,
    Tmpfs,
    Overlay,
    /// NFS, and true if it is mounted over RDMA.
    Nfs(bool),
    Lustre,
    Weka,
    BeeGfs,
    Gpfs,
    ScateFs,
    PanFs,
    VirtioFs,
    CopyOnWrite(String),
    /// A file system that a process serves.
    Fuse(String),
    Other(String),
    Unknown,
}

impl Storage {
    pub fn of(file_system: &str, mount: Option<&Mount>) -> Self {
        match file_system {
            "ext4" | "xfs" => Storage::Local,
            "tmpfs" | "ramfs" | "devtmpfs" => Storage::Tmpfs,
            "overlay" | "overlayfs" | "aufs" => Storage::Overlay,
            "nfs" | "nfs4" => Storage::Nfs(mount.and_then(|mount| mount.value("proto")) == Some("rdma")),
            "lustre" => Storage::Lustre,
            "wekafs" => Storage::Weka,
            "beegfs" | "beegfs_nodev" => Storage::BeeGfs,
            "gpfs" => Storage::Gpfs,
            "scatefs" => Storage::ScateFs,
            "panfs" => Storage::PanFs,
            "virtiofs" => Storage::VirtioFs,
            "btrfs" | "zfs" | "bcachefs" => Storage::CopyOnWrite(file_system.to_owned()),
            fuse if fuse == "fuseblk" || fuse == "fuse" || fuse.starts_with("fuse.") => {
                Storage::Fuse(file_system.to_owned())
            }
            "unknown" => Storage::Unknown,
            other => Storage::Other(other.to_owned()),
        }
    }

    /// Returns whether the bytes come by RDMA, if they bypass host memory.
    pub fn is_remote(&self) -> bool {
        matches!(
            self,
            Storage::Nfs(_)
                | Storage::Lustre
                | Storage::Weka
                | Storage::BeeGfs
                | Storage::Gpfs
                | Storage::ScateFs
                | Storage::PanFs
        )
    }

    pub fn is_known_to_cufile(&self) -> bool {
        *self == Storage::Local || *self == Storage::VirtioFs || self.is_remote()
    }

    pub fn key(&self) -> &'static str {
        match self {
            Storage::Local => "local",
            Storage::Tmpfs => "tmpfs",
            Storage::Overlay => "overlay",
            Storage::Nfs(_) => "nfs",
            Storage::Lustre => "lustre",
            Storage::Weka => "weka",
            Storage::BeeGfs => "beegfs",
            Storage::Gpfs => "gpfs",
            Storage::ScateFs => "scatefs",
            Storage::PanFs => "panfs",
            Storage::VirtioFs => "virtiofs",
            Storage::CopyOnWrite(_) => "copy-on-write",
            Storage::Fuse(_) => "fuse",
            Storage::Other(_) => "other-file-system",
            Storage::Unknown => "unknown-file-system",
        }
    }

    pub fn problem(&self) -> String {
        match self {
            Storage::Local => {
                "the file system is ext4 or xfs, but libcufile has no direct path to its disk".to_owned()
            }
            Storage::Tmpfs => {
                "tmpfs and ramfs keep their files in host memory, so all their bytes pass through it"
                    .to_owned()
            }
            Storage::Overlay => {
                "overlay is the layered file system of a container; cuFile has no direct path to it"
                    .to_owned()
            }
            Storage::Nfs(false) => "NFS is mounted over TCP; the direct path needs NFS over RDMA".to_owned(),
            Storage::Nfs(true) => {
                "NFS is mounted over RDMA, but libcufile reports no direct path to NFS".to_owned()
            }
            Storage::Lustre => "libcufile reports no direct path to Lustre".to_owned(),
            Storage::Weka => "libcufile reports no direct path to WekaFS".to_owned(),
            Storage::BeeGfs => "libcufile reports no direct path to BeeGFS".to_owned(),
            Storage::Gpfs => "libcufile reports no direct path to Spectrum Scale (GPFS)".to_owned(),
            Storage::ScateFs => "libcufile reports no direct path to ScaTeFS".to_owned(),
            Storage::PanFs => "libcufile reports no direct path to PanFS".to_owned(),
            Storage::VirtioFs => "libcufile reports no direct path to virtiofs".to_owned(),
            Storage::CopyOnWrite(name) => format!("cuFile has no direct path to {name}"),
            Storage::Fuse(name) => {
                format!("a process in user space serves {name}, and the bytes pass through it")
            }
            Storage::Other(name) => format!("cuFile has no direct path to {name}"),
            Storage::Unknown => {
                "the file system is unknown, because /proc/self/mountinfo is missing".to_owned()
            }
        }
    }

    pub fn remedy(&self) -> &'static str {
        match self {
            Storage::Local => "put the file system on an NVMe disk, or on a partition of one",
            Storage::Tmpfs => {
                "tmpfs is as fast as memory; for a direct path, use ext4 or xfs on an NVMe disk"
            }
            Storage::Overlay => {
                "mount a folder of the host that is on ext4 or xfs into the container (docker run -v /data:/data; a \
                 hostPath or local volume in Kubernetes), and use it"
            }
            Storage::Nfs(false) => {
                "mount with proto=rdma,port=20049 from a server that supports it, and install the RDMA client of MOFED or DOCA"
            }
            Storage::Nfs(true) => {
                "install MOFED or DOCA with NFS over RDMA, load nvidia-fs after it, and name the network cards in \
                 rdma_dev_addr_list of cufile.json"
            }
            Storage::Lustre => {
                "use the EXAScaler client with GPUDirect over an o2ib network, and load nvidia-fs after it; then raise \
                 osc.*.max_pages_per_rpc to 16M and osc.*.max_rpcs_in_flight to 32, and turn osc.*.checksums off"
            }
            Storage::Weka => {
                "name the RDMA addresses of the network cards in properties.rdma_dev_addr_list of cufile.json; for reads of X \
                 GB/s from N backend hosts, each of them needs 2X/N of network bandwidth, and ports on different cards"
            }
            Storage::BeeGfs => {
                "use a BeeGFS client that is built for GPUDirect Storage, with RDMA, and load nvidia-fs after it"
            }
            Storage::Gpfs => {
                "turn GPUDirect Storage on in Spectrum Scale (verbsGPUDirectStorage), with RDMA, and load nvidia-fs"
            }
            Storage::ScateFs => {
                "use libcufile 1.14 or newer and a ScaTeFS client that is built for GPUDirect Storage, with RDMA, and load nvidia-fs"
            }
            Storage::PanFs => {
                "use libcufile 1.19 or newer and a PanFS client that is built for GPUDirect Storage, with RDMA, and load nvidia-fs"
            }
            Storage::VirtioFs => {
                "use libcufile 1.16 or newer, and a virtual machine whose virtiofs offers GPUDirect Storage; otherwise give \
                 the machine an NVMe disk or function, or a network card"
            }
            Storage::CopyOnWrite(_) => "use xfs, or ext4 with data=ordered, on an NVMe disk",
            Storage::Fuse(name) if name == "fuse.rclone" => {
                "copy the files to ext4 or xfs on an NVMe disk; programs that write need --vfs-cache-mode writes or full of \
                 rclone mount"
            }
            Storage::Fuse(_) => {
                "use the storage's kernel client, or copy the files to ext4 or xfs on an NVMe disk"
            }
            Storage::Unknown => "mount /proc; cuFile needs it, too",
            Storage::Other(_) => {
                "use ext4, xfs, or a network file system with RDMA that cuFile knows: Lustre, WekaFS, NFS, BeeGFS, Spectrum \
                 Scale, ScaTeFS, PanFS"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_mounts_give_the_kind() {
        let over = |protocol: &str| Mount { options: vec![format!("proto={protocol}")], ..Mount::default() };
        for (name, mount, expected) in [
            ("ext4", None, "local"),
            ("nfs4", Some(over("tcp")), "nfs"),
            ("lustre", None, "lustre"),
            ("wekafs", None, "weka"),
            ("beegfs_nodev", None, "beegfs"),
            ("gpfs", None, "gpfs"),
            ("scatefs", None, "scatefs"),
            ("panfs", None, "panfs"),
            ("virtiofs", None, "virtiofs"),
            ("btrfs", None, "copy-on-write"),
            ("fuse.sshfs", None, "fuse"),
            ("fuseblk", None, "fuse"),
            ("fusectl", None, "other-file-system"),
            ("overlay", None, "overlay"),
            ("9p", None, "other-file-system"),
            ("unknown", None, "unknown-file-system"),
        ] {
            assert_eq!(Storage::of(name, mount.as_ref()).key(), expected, "{name}");
        }
        assert_eq!(Storage::of("nfs", Some(&over("rdma"))), Storage::Nfs(true));
        assert_eq!(
            [over("tcp"), over("rdma6")].map(|mount| Storage::of("nfs", Some(&mount))),
            [Storage::Nfs(false), Storage::Nfs(false)]
        );
    }

    #[test]
    fn network_file_systems_name_what_their_direct_path_needs() {
        for (storage, words) in [
            (Storage::Nfs(false), &["proto=rdma", "MOFED or DOCA"][..]),
            (Storage::Nfs(true), &["rdma_dev_addr_list", "load nvidia-fs after it"]),
            (
                Storage::Lustre,
                &[
                    "EXAScaler",
                    "o2ib",
                    "max_pages_per_rpc to 16M",
                    "max_rpcs_in_flight to 32",
                    "checksums off",
                ],
            ),
            (Storage::BeeGfs, &["built for GPUDirect Storage", "RDMA"]),
            (Storage::Gpfs, &["verbsGPUDirectStorage", "RDMA"]),
            (Storage::ScateFs, &["libcufile 1.14", "ScaTeFS client", "RDMA"]),
            (Storage::PanFs, &["libcufile 1.19", "PanFS client", "RDMA"]),
            (Storage::VirtioFs, &["libcufile 1.16", "NVMe"]),
            (Storage::Fuse("fuse.rclone".to_owned()), &["--vfs-cache-mode writes", "NVMe"]),
        ] {
            for word in words {
                assert!(storage.remedy().contains(word), "{word}: {}", storage.remedy());
            }
        }
    }
}
