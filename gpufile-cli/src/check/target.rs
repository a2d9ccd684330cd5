//! The facts about a path: file system, mount, block devices, access and route.

use std::collections::VecDeque;
use std::ffi::CString;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, process, thread};

use cufile::{FileProperties, FileType};
use gpufile::{Engine, File, RouteKind, page_cache};

use super::block::{self, Kind, Layer};
use super::mounts::{self, Mount};
use super::root::{self, Root};
use crate::interrupt::Unfinished;

#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub path: PathBuf,
    /// The regular file that stands for the path: the path itself, or one found in a folder that cannot be written.
    pub sample: Option<PathBuf>,
    /// The type of what was opened: a directory, if no file in it could be opened.
    pub file_type: FileType,
    pub file_system: String,
    pub mount: Option<Mount>,
    /// Major and minor number of the block device; major 0 without one.
    pub device: (u32, u32),
    /// The block devices, top first.
    pub layers: Vec<Layer>,
    /// True if udev describes the block device; `None` without a block device.
    pub udev_record: Option<bool>,
    /// Alignments of memory and of offsets, in bytes; `None` without `O_DIRECT`.
    pub alignment: Option<(u32, u32)>,
    /// Flags of the descriptor, if the path is one in `/proc/PID/fd`.
    pub open_flags: i32,
    pub is_append_only: bool,
    pub read_only: Option<ReadOnly>,
    pub route: RouteKind,
    pub why_not: Vec<(RouteKind, String)>,
    /// The share of the file in the page cache, from 0 to 1; `None` for folders.
    pub cached: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    Mount,
    Immutable,
    Permissions,
}

impl Target {
    pub fn of(root: &Root, path: &Path, engine: &Engine) -> Result<Self, String> {
        let real = path.canonicalize().map_err(|error| format!("cannot open {path:?}: {error}"))?;
        let kind = fs::metadata(&real).map_err(|error| format!("cannot open {path:?}: {error}"))?.file_type();
        // Opening a pipe would wait for a writer.
        if kind.is_fifo() || kind.is_socket() {
            return Err(format!("{path:?} is not a file or a folder, so it has no route"));
        }
        let (file, sample) = open(path, &real, engine)?;
        let properties = FileProperties::of(&*file).map_err(|error| error.to_string())?;
        let mountinfo = root.text("/proc/self/mountinfo").unwrap_or_default();
        let mount = mounts::of_path(&mountinfo, &real);
        let attributes = attributes(&real);
        let route = file.route();
        let is_file = real.is_file();
        Ok(Self {
            layers: layers(root, properties.device, mount.as_ref()),
            read_only: read_only(&real, mount.as_ref(), attributes),
            is_append_only: attributes & libc::STATX_ATTR_APPEND as u64 != 0,
            mount,
            device: properties.device,
            udev_record: properties.udev_record,
            alignment: properties.direct_io.map(|needs| (needs.memory_bytes, needs.offset_bytes)),
            file_system: properties.file_system,
            open_flags: flags_of_descriptor(path).unwrap_or(0),
            route: route.kind(),
            why_not: route.why_not().map(|(kind, reason)| (kind, reason.to_owned())).collect(),
            cached: is_file
                .then(|| page_cache::residency(&*file, 0..u64::MAX).ok())
                .flatten()
                .map(|found| found.fraction()),
            file_type: properties.file_type,
            path: path.to_owned(),
            sample,
        })
    }

    pub fn disks(&self) -> impl Iterator<Item = (&str, &block::Disk)> {
        self.layers.iter().filter_map(|layer| match &layer.kind {
            Kind::Disk(disk) => Some((layer.name.as_str(), disk)),
            _ => None,
        })
    }

    pub fn is_direct(&self) -> bool {
        matches!(self.route, RouteKind::Gds | RouteKind::P2pDma)
    }
}

/// Opens a file for reading, or a file without a name in a folder. Also returns the path of a file that
/// existed.
fn open(path: &Path, real: &Path, engine: &Engine) -> Result<(Opened, Option<PathBuf>), String> {
    let options = || File::options().read(true).engine(engine);
    if !real.is_dir() {
        let file = options().open(path).map_err(|error| error.to_string())?;
        return Ok((file.into(), real.is_file().then(|| real.to_owned())));
    }
    let unnamed = options().write(true).custom_flags(libc::O_TMPFILE).open(real);
    match unnamed {
        // A registration may fail because the file has no name.
        Ok(file) if !is_refused(&file) => Ok((file.into(), None)),
        _ => match named(real, engine) {
            Ok(file) => Ok((file, None)),
            Err(error) => existing(real, engine).map(|(file, sample)| (file.into(), sample)).ok_or(error),
        },
    }
}

fn is_refused(file: &File) -> bool {
    let route = file.route();
    route.kind() == RouteKind::Posix && route.why_not().map(|(kind, _)| kind).eq([RouteKind::CufileCompat])
}

/// An open file, and the path to remove when it is closed. Fields are dropped in this order.
pub struct Opened {
    file: File,
    _path: Option<RemovedAgain>,
    _unfinished: Option<Unfinished>,
}

impl Deref for Opened {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl From<File> for Opened {
    fn from(file: File) -> Self {
        Self { file, _path: None, _unfinished: None }
    }
}

/// The path of a file that was removed while it was open. Some FUSE file systems, such as rclone's, write the file to
/// the store when it is closed, and so bring it back. The kernel does not wait for them after the last close, so the
/// drop removes the file again and again for a while.
struct RemovedAgain(PathBuf);

impl Drop for RemovedAgain {
    fn drop(&mut self) {
        for _ in 0..10 {
            let _ = fs::remove_file(&self.0);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Makes a file in the folder, and removes it at once.
pub fn named(folder: &Path, engine: &Engine) -> Result<Opened, String> {
    let path = own_path(folder);
    let options = File::options().read(true).write(true).create_new(true).engine(engine);
    let created = Unfinished::create(|| options.open(&path).map(|file| (file, path.clone())));
    // The user knows the folder, and not the name in it.
    let named =
        |error: gpufile::Error| error.to_string().replace(&format!("{path:?}"), &format!("{folder:?}"));
    let (file, unfinished) = created.map_err(named)?;
    fs::remove_file(&path).map_err(|error| format!("cannot remove {path:?}: {error}"))?;
    let is_fuse = FileProperties::of(&file).is_ok_and(|found| found.file_system.starts_with("fuse"));
    Ok(Opened { file, _path: is_fuse.then_some(RemovedAgain(path)), _unfinished: Some(unfinished) })
}

fn own_path(folder: &Path) -> PathBuf {
    folder.join(format!(".gpufile-check-{}", process::id()))
}

const MOST_ENTRIES: usize = 4096;

fn existing(folder: &Path, engine: &Engine) -> Option<(File, Option<PathBuf>)> {
    let options = File::options().read(true).engine(engine);
    let (mut folders, mut seen, mut empty) = (VecDeque::from([folder.to_owned()]), 0, None);
    while let Some(next) = folders.pop_front() {
        for path in root::list(&next) {
            let Ok(metadata) = path.symlink_metadata() else { continue };
            seen += 1;
            if metadata.is_dir() && seen < MOST_ENTRIES {
                folders.push_back(path);
            } else if metadata.is_file()
                && let Ok(file) = options.open(&path)
            {
                // A read proves more from a file that holds something.
                if metadata.len() > 0 {
                    return Some((file, Some(path)));
                }
                empty.get_or_insert((file, None));
            }
        }
    }
    empty.or_else(|| options.open(folder).ok().map(|file| (file, None)))
}

/// Returns the layers; a file system such as btrfs names its device only as the source of the mount.
fn layers(root: &Root, device: (u32, u32), mount: Option<&Mount>) -> Vec<Layer> {
    let layers = block::stack(root, device);
    let source = mount.filter(|_| layers.is_empty()).and_then(|mount| mount.source.strip_prefix("/dev/"));
    // `/dev/mapper/vg-data` is a link to `/dev/dm-0`.
    let name = source.map(|name| {
        let real = root.at("/dev").join(name).canonicalize().unwrap_or_default();
        real.file_name().map_or_else(|| name.to_owned(), |name| name.to_string_lossy().into_owned())
    });
    name.map_or(layers, |name| block::stack_of_name(root, &name))
}

/// Returns attributes such as immutable and append-only.
fn attributes(path: &Path) -> u64 {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return 0 };
    // SAFETY: zeros are valid for this struct of integers.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (path, mask) = (path.as_ptr(), libc::STATX_BASIC_STATS);
    // By its number: the function is in glibc 2.28 and newer only.
    // SAFETY: the path is terminated, and both outlive the call.
    let code = unsafe { libc::syscall(libc::SYS_statx, libc::AT_FDCWD, path, 0, mask, &raw mut stat) };
    if code == 0 { stat.stx_attributes } else { 0 }
}

fn read_only(path: &Path, mount: Option<&Mount>, attributes: u64) -> Option<ReadOnly> {
    if mount.is_some_and(|mount| mount.has("ro")) {
        return Some(ReadOnly::Mount);
    }
    if attributes & libc::STATX_ATTR_IMMUTABLE as u64 != 0 {
        return Some(ReadOnly::Immutable);
    }
    let text = CString::new(path.as_os_str().as_bytes()).ok()?;
    // A new file in a folder needs both rights.
    let rights = if path.is_dir() { libc::W_OK | libc::X_OK } else { libc::W_OK };
    // SAFETY: the path is terminated and outlives the call.
    let is_refused = unsafe { libc::access(text.as_ptr(), rights) } != 0;
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EROFS) if is_refused => Some(ReadOnly::Mount),
        _ => is_refused.then_some(ReadOnly::Permissions),
    }
}

/// Returns the open flags of the descriptor that a path such as `/proc/1234/fd/5` or `/dev/fd/5` names.
fn flags_of_descriptor(path: &Path) -> Option<i32> {
    let (folder, number) = (path.parent()?, path.file_name()?.to_str()?);
    let process = match folder.to_str()? {
        "/dev/fd" => "/proc/self",
        folder => folder.strip_suffix("/fd").filter(|folder| folder.starts_with("/proc/"))?,
    };
    parse_flags(&fs::read_to_string(format!("{process}/fdinfo/{number}")).ok()?)
}

/// Parses `flags: 0102001`, an octal number.
fn parse_flags(fdinfo: &str) -> Option<i32> {
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}

#[cfg(test)]
pub mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    use super::super::block::{Bus, Disk};
    use super::super::root::tests::Fake;
    use super::*;

    /// Returns a file on ext4 on an NVMe disk.
    pub fn good() -> Target {
        let disk = Disk { bus: Bus::NvmePcie, pci: vec!["0000:19:00.0".to_owned()] };
        Target {
            path: PathBuf::from("/data"),
            sample: None,
            file_type: FileType::Regular,
            file_system: "ext4".to_owned(),
            mount: Some(Mount {
                point: PathBuf::from("/data"),
                file_system: "ext4".to_owned(),
                ..Mount::default()
            }),
            device: (259, 0),
            layers: vec![Layer { name: "nvme0n1".to_owned(), kind: Kind::Disk(disk) }],
            udev_record: Some(true),
            alignment: Some((4, 512)),
            open_flags: 0,
            is_append_only: false,
            read_only: None,
            route: RouteKind::Gds,
            why_not: vec![],
            cached: None,
        }
    }

    fn of(path: &Path) -> Result<Target, String> {
        Target::of(&Root::of_machine(), path, &Engine::builder().build())
    }

    #[test]
    fn folders_keep_their_contents_and_files_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let found = of(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!((found.cached, found.read_only, found.is_append_only), (None, None, false));
        let path = folder.path().join("file");
        fs::write(&path, "precious").unwrap();
        let file = of(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert!(file.cached.is_some());
        assert_eq!(file.file_system, FileProperties::of(fs::File::open(&path).unwrap()).unwrap().file_system);
        assert_eq!(file.mount.unwrap().file_system, found.file_system);
    }

    #[test]
    fn search_for_a_file_goes_below_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::builder().build();
        let is_folder = || {
            let (file, path) = existing(folder.path(), &engine).unwrap();
            assert_eq!(path, None);
            FileProperties::of(&file).unwrap().file_type == FileType::Directory
        };
        assert!(is_folder());
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/empty"), "").unwrap();
        assert!(!is_folder());
        fs::write(folder.path().join("a/b/file"), "x").unwrap();
        let (_, found) = existing(folder.path(), &engine).unwrap();
        assert_eq!(found, Some(folder.path().join("a/b/file")));
    }

    #[test]
    fn missing_paths_are_errors_with_their_name() {
        let error = of(Path::new("/nonexistent/file")).unwrap_err();
        assert!(error.contains("\"/nonexistent/file\"") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn open_flags_of_descriptors_are_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut options = fs::OpenOptions::new();
        let append =
            options.write(true).custom_flags(libc::O_APPEND | libc::O_NONBLOCK).open(file.path()).unwrap();
        for folder in ["/dev/fd", "/proc/self/fd", &format!("/proc/{}/fd", process::id())] {
            let flags = flags_of_descriptor(Path::new(&format!("{folder}/{}", append.as_raw_fd()))).unwrap();
            assert_eq!(
                flags & (libc::O_APPEND | libc::O_NONBLOCK),
                libc::O_APPEND | libc::O_NONBLOCK,
                "{folder}"
            );
        }
        assert_eq!(flags_of_descriptor(file.path()), None);
        assert_eq!(parse_flags("pos:\t0\nflags:\t02102001\n"), Some(0o2_102_001));
        assert_eq!((parse_flags("pos: 0"), parse_flags("flags: 9")), (None, None));
    }

    #[test]
    fn read_only_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let mount = |options: &[&str]| Mount {
            options: options.iter().map(|&option| option.to_owned()).collect(),
            ..Mount::default()
        };
        let path = folder.path();
        assert_eq!(read_only(path, Some(&mount(&["rw", "relatime"])), 0), None);
        assert_eq!(read_only(path, Some(&mount(&["ro"])), 0), Some(ReadOnly::Mount));
        assert_eq!(read_only(path, None, libc::STATX_ATTR_IMMUTABLE as u64), Some(ReadOnly::Immutable));
        assert_eq!(read_only(&path.join("none"), None, 0), Some(ReadOnly::Permissions));
    }

    #[test]
    fn source_of_the_mount_stands_for_a_missing_device() {
        let fake = Fake::new();
        fake.link("/sys/class/block/nvme0n1", "/sys/devices/virtual/block/nvme0n1");
        fake.folder("/sys/devices/virtual/block/nvme0n1").file("/dev/nvme0n1", "");
        fake.link("/dev/mapper/vg-data", "/dev/nvme0n1");
        let names = |source: &str| {
            let mount = Mount { source: source.to_owned(), ..Mount::default() };
            layers(&fake.root(), (0, 43), Some(&mount))
                .into_iter()
                .map(|layer| layer.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("/dev/nvme0n1"), ["nvme0n1"]);
        assert_eq!(names("/dev/mapper/vg-data"), ["nvme0n1"]);
        assert!(names("server:/export").is_empty() && names("/dev/none").is_empty());
    }
}
