//! The mount that a path is on, from `/proc/self/mountinfo`.

use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mount {
    pub point: PathBuf,
    pub file_system: String,
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
    pub device: (u32, u32),
}

impl Mount {
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|set| set == option)
    }

    /// Returns the value of `name=value`.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Returns the mount that an absolute path without links is on: the last of those with the longest mount point.
pub fn of_path(mountinfo: &str, path: &Path) -> Option<Mount> {
    let over = mountinfo.lines().filter_map(parse).filter(|mount| path.starts_with(&mount.point));
    over.max_by_key(|mount| mount.point.components().count())
}

/// File systems that hold no files of users, or those of another mount.
const WITHOUT_FILES: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fuse.gvfsd-fuse",
    "fuse.lxcfs",
    "fuse.portal",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "squashfs",
    "sysfs",
    "tracefs",
];

/// Returns the mount points of all file systems that hold files, each file system once, with its shortest mount point.
/// A tmpfs counts at /dev/shm and /tmp only. Asks no file system: one may not answer.
pub fn with_files(mountinfo: &str) -> Vec<PathBuf> {
    let mut found: Vec<Mount> = mountinfo.lines().filter_map(parse).collect();
    found.retain(|mount| {
        let is_shared = ["/dev/shm", "/tmp"].iter().any(|point| mount.point == Path::new(point));
        !WITHOUT_FILES.contains(&mount.file_system.as_str()) && (mount.file_system != "tmpfs" || is_shared)
    });
    found.sort_by_key(|mount| (mount.device, mount.point.as_os_str().len()));
    found.dedup_by_key(|mount| mount.device);
    let mut points: Vec<PathBuf> = found.into_iter().map(|mount| mount.point).collect();
    points.sort();
    // The last mount on a point covers the others.
    points.dedup();
    points
}

/// Parses ID, parent, device, root, mount point, options, optional fields, a dash, type, source, options.
fn parse(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let front: Vec<&str> = front.split(' ').collect();
    let back: Vec<&str> = back.split(' ').collect();
    let (major, minor) = front.get(2)?.split_once(':')?;
    let mut options: Vec<String> = front.get(5)?.split(',').map(str::to_owned).collect();
    for option in back.get(2)?.split(',') {
        if !options.iter().any(|known| known == option) {
            options.push(option.to_owned());
        }
    }
    // A bind mount may be read-only on a file system that is not.
    if options.iter().any(|option| option == "ro") {
        options.retain(|option| option != "rw");
    }
    Some(Mount {
        point: PathBuf::from(unescape(front.get(4)?)),
        file_system: (*back.first()?).to_owned(),
        source: unescape(back.get(1)?),
        options,
        device: (major.parse().ok()?, minor.parse().ok()?),
    })
}

fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
41 27 0:40 / /data rw,noatime shared:5 master:2 - nfs4 server:/export rw,vers=4.2,proto=rdma,port=20049
42 41 253:3 / /data/my\\040disk ro - xfs /dev/mapper/vg-my\\040disk rw,noquota
43 41 0:50 / /data/my\\040disk rw - tmpfs tmpfs rw,size=1024k";

    fn of(path: &str) -> Mount {
        of_path(MOUNTS, Path::new(path)).unwrap()
    }

    #[test]
    fn longest_and_last_mount_point_wins() {
        assert_eq!((of("/").file_system, of("/database/file").device), ("ext4".to_owned(), (254, 0)));
        assert_eq!(of("/data").source, "server:/export");
        assert_eq!(of("/data/my disk/file").file_system, "tmpfs");
        let without_last = MOUNTS.rsplit_once('\n').unwrap().0;
        let disk = of_path(without_last, Path::new("/data/my disk/file")).unwrap();
        assert_eq!((disk.source.as_str(), disk.device), ("/dev/mapper/vg-my disk", (253, 3)));
    }

    #[test]
    fn mounts_with_files_come_once() {
        let more = "\n44 27 254:0 /etc/hosts /etc/hosts rw - ext4 /dev/vda rw\n45 27 0:60 / /dev/shm rw - tmpfs shm rw\n\
                    46 27 0:61 / /sys rw - sysfs sysfs rw\n47 45 0:62 / /dev/shm rw - tmpfs other rw";
        let points = ["/", "/data", "/data/my disk", "/dev/shm"].map(PathBuf::from);
        assert_eq!(with_files(&format!("{MOUNTS}{more}")), points);
        assert!(with_files("").is_empty());
    }

    #[test]
    fn options_of_mount_and_file_system_are_joined() {
        let nfs = of("/data/x");
        assert_eq!(nfs.value("proto"), Some("rdma"));
        assert!(nfs.has("noatime") && !nfs.has("proto") && !nfs.has("ro"));
        assert_eq!(nfs.options.iter().filter(|option| *option == "rw").count(), 1);
        let bind = parse("43 27 254:0 /usr /ro ro,relatime - ext4 /dev/vda rw,discard").unwrap();
        assert_eq!(bind.options, ["ro", "relatime", "discard"]);
    }

    #[test]
    fn broken_lines_are_skipped() {
        assert_eq!(of_path("", Path::new("/")), None);
        assert_eq!(of_path("27 1 254:0 / / rw\n1 2 x:y / / rw - ext4 a rw\n1 - 2", Path::new("/")), None);
        assert_eq!(unescape("a\\b\\134\\04"), "a\\b\\\\04");
    }
}
