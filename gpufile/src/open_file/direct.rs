//! `O_DIRECT`: reads and writes that bypass the page cache.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cufile::FileProperties;

use super::alignment::Alignment;
use super::repeat::impossible_count;
use crate::gpu::bounce::Bounce;

/// A descriptor of a file with `O_DIRECT`.
#[derive(Debug)]
pub(crate) struct Direct {
    file: fs::File,
    /// The larger of the two alignments that `statx` returns, and at least 512 bytes.
    pub alignment: Alignment,
    /// Cleared when the file system refuses `O_DIRECT` after all.
    works: AtomicBool,
    /// The requests for the device at a time, if its number of queues is known.
    pub at_once: Option<usize>,
}

impl Direct {
    /// Opens the same file again with `O_DIRECT`. Returns `None` where the file system does not offer it, or bounce
    /// buffers are not aligned enough.
    pub fn of(file: &fs::File) -> Option<Self> {
        let alignment = FileProperties::of(file).ok()?.direct_io?;
        let alignment = alignment_of(alignment.memory_bytes as usize, alignment.offset_bytes as usize)?;
        /// With more requests, devices with a single queue were slower.
        const REQUESTS_PER_QUEUE: usize = 4;
        let at_once = hardware_queues(file).map(|queues| queues * REQUESTS_PER_QUEUE);
        let file = reopen(file, libc::O_DIRECT).ok()?;
        Some(Self { file, alignment, works: AtomicBool::new(true), at_once })
    }

    pub fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    /// Reads the smallest aligned range around a range, whose bytes go to `target`. Returns how many of these were
    /// read: fewer at the end of the file and after a failure.
    ///
    /// After a failure, the caller reads the missing bytes through the page cache, because here the failed byte may lie
    /// outside the range.
    ///
    /// # Safety
    /// The memory around `target` that the enclosing range takes must be aligned and valid for writes.
    pub unsafe fn read_enclosing(&self, target: *mut u8, len_bytes: usize, offset: u64) -> usize {
        let (head, whole) = self.alignment.enclosing(offset, len_bytes);
        // SAFETY: the caller's promise.
        let count = self.retry(whole, || unsafe {
            let at = (offset - head as u64) as libc::off_t;
            libc::pread(self.file.as_raw_fd(), target.sub(head).cast(), whole, at)
        });
        count.unwrap_or(0).saturating_sub(head).min(len_bytes)
    }

    /// Writes an aligned range. Returns how many bytes were written. The rest must go through the page cache, if the
    /// file system refuses after all, or the kernel stopped at an unaligned place.
    ///
    /// Also returns the error of a failed write, which the caller must report. The page cache might accept
    /// the bytes that the storage refused, and lose them later.
    pub fn write(&self, source: &[u8], offset: u64) -> (usize, Option<io::Error>) {
        let mut done = 0;
        while done < source.len() && done.is_multiple_of(self.alignment.0) {
            let rest = &source[done..];
            let at = (offset + done as u64) as libc::off_t;
            // SAFETY: the bytes belong to a slice.
            let count = self.retry(rest.len(), || unsafe {
                libc::pwrite(self.file.as_raw_fd(), rest.as_ptr().cast(), rest.len(), at)
            });
            match count {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if is_refusal(&error) => break,
                Err(error) => return (done, Some(error)),
            }
        }
        (done, None)
    }

    /// Repeats a call that a signal interrupted. Records a refusal of `O_DIRECT`. A count of more than `most` bytes is
    /// an error.
    fn retry(&self, most: usize, call: impl Fn() -> isize) -> io::Result<usize> {
        loop {
            if let Ok(count) = usize::try_from(call()) {
                return if count <= most { Ok(count) } else { Err(impossible_count()) };
            }
            let error = io::Error::last_os_error();
            if is_refusal(&error) {
                self.works.store(false, Ordering::Relaxed);
            }
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Returns the alignment for both memory and offsets. Returns `None` if bounce buffers do not have that of memory.
fn alignment_of(memory_bytes: usize, offset_bytes: usize) -> Option<Alignment> {
    let bytes = memory_bytes.max(offset_bytes).max(512);
    (bytes.is_power_of_two() && memory_bytes <= Bounce::ALIGNMENT).then_some(Alignment(bytes))
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Returns the number of queues of a file's block device. Returns `None` if there is none, or it stands for others
/// (device mapper, RAID).
fn hardware_queues(file: &fs::File) -> Option<usize> {
    let device = file.metadata().ok()?.dev();
    let entry = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // The folder of a partition lies in the folder of its disk.
    queues_of(Path::new(&entry)).or_else(|| queues_of(&Path::new(&entry).join("..")))
}

/// Counts the queues of a device by its folder in sysfs.
fn queues_of(device: &Path) -> Option<usize> {
    Some(fs::read_dir(device.join("mq")).ok()?.count()).filter(|count| *count > 0)
}

/// Opens the same file again with the same access and these flags. Goes through /proc, so it finds the file even after
/// a rename or removal.
pub(crate) fn reopen(file: &fs::File, flags: libc::c_int) -> io::Result<fs::File> {
    let before = open_flags(file)?;
    let (access, kept) = (before & libc::O_ACCMODE, before & (libc::O_SYNC | libc::O_DSYNC));
    fs::OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(flags | kept)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

pub(crate) fn open_flags(file: &fs::File) -> io::Result<libc::c_int> {
    // SAFETY: takes integers.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) } {
        flags if flags >= 0 => Ok(flags),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind::InvalidInput;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Returns a `Direct` on an ordinary descriptor, which every file system offers.
    fn of_file(file: fs::File) -> Direct {
        Direct { file, alignment: Alignment(512), works: AtomicBool::new(true), at_once: Some(8) }
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn direct_io_needs_memory_alignment_of_bounce_buffers() {
        for (memory_bytes, offset_bytes, expected) in [
            (0, 0, Some(512)),
            (4, 512, Some(512)),
            (512, 4096, Some(4096)),
            (4096, 512, Some(4096)),
            (512, 64 << 10, Some(64 << 10)),
            (8192, 8192, None),
            (512, 3000, None),
        ] {
            let found = alignment_of(memory_bytes, offset_bytes);
            assert_eq!(found, expected.map(Alignment), "{memory_bytes}, {offset_bytes}");
        }
        // The folder of the build is often on a disk.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        if let Some(direct) = Direct::of(&file) {
            assert!(direct.works() && direct.alignment.0 >= 512);
            let flag = |file| open_flags(file).unwrap() & libc::O_DIRECT;
            assert!(flag(&direct.file) != 0 && flag(&file) == 0);
            assert_eq!(direct.at_once, hardware_queues(&file).map(|queues| 4 * queues));
        }
    }

    #[test]
    fn counts_beyond_the_request_are_failures() {
        let direct = of_file(tempfile::tempfile().unwrap());
        assert_eq!(direct.retry(10, || 10).unwrap(), 10);
        assert_eq!(direct.retry(10, || 11).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(direct.works());
    }

    #[test]
    fn hardware_queues_are_counted_if_the_device_has_any() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(queues_of(folder.path()), None);
        fs::create_dir(folder.path().join("mq")).unwrap();
        assert_eq!(queues_of(folder.path()), None);
        for queues in 1..4 {
            fs::create_dir(folder.path().join(format!("mq/{queues}"))).unwrap();
            assert_eq!(queues_of(folder.path()), Some(queues));
        }
        // The folder of the build is often on a disk.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let device = file.metadata().unwrap().dev();
        let entry = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
        let found = ["mq", "../mq"].iter().find_map(|name| fs::read_dir(format!("{entry}/{name}")).ok());
        assert_eq!(hardware_queues(&file), found.map(Iterator::count).filter(|count| *count > 0));
    }

    #[test]
    fn direct_reads_return_the_requested_bytes() {
        let bytes = pattern(5000);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let direct = of_file(file);
        for (offset, len_bytes) in
            [(0, 512), (700, 1000), (4500, 500), (4500, 2000), (5000, 10), (6000, 10), (1, 0)]
        {
            let mut room = vec![0; 8192];
            let head = offset % 512;
            // SAFETY: the room holds all of the enclosing range, and its descriptor needs no aligned memory.
            let count =
                unsafe { direct.read_enclosing(room.as_mut_ptr().add(512 + head), len_bytes, offset as u64) };
            let expected = &bytes[offset.min(5000)..(offset + len_bytes).min(5000).max(offset.min(5000))];
            assert_eq!(count, expected.len(), "{len_bytes} bytes at {offset}");
            assert!(room[512 + head..][..count] == *expected);
            assert!(room[..512].iter().all(|byte| *byte == 0), "nothing before the enclosing range");
        }
    }

    #[test]
    fn direct_writes_distinguish_refusals_from_failures() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let written = of_file(fs::File::options().write(true).open(path.path()).unwrap());
        assert!(matches!(written.write(&pattern(1024), 512), (1024, None)));
        assert!(fs::read(path.path()).unwrap()[512..] == pattern(1024));
        // The kernel has no offsets as large as this.
        assert!(matches!(written.write(&pattern(1024), 1 << 63), (0, None)));
        assert!(!written.works());

        let readable = of_file(fs::File::open(path.path()).unwrap());
        let (done, error) = readable.write(&pattern(1024), 0);
        assert_eq!((done, error.unwrap().raw_os_error()), (0, Some(libc::EBADF)));
        let mut room = [0; 512];
        // SAFETY: the room has 512 bytes.
        assert_eq!(unsafe { written.read_enclosing(room.as_mut_ptr(), 512, 0) }, 0);
        assert!(readable.works());
        assert!(fs::read(path.path()).unwrap()[512..] == pattern(1024));
    }

    #[test]
    fn only_einval_and_eopnotsupp_are_refusals() {
        for (errno, expected) in
            [(libc::EINVAL, true), (libc::EOPNOTSUPP, true), (libc::EIO, false), (libc::ENOSPC, false)]
        {
            assert_eq!(is_refusal(&io::Error::from_raw_os_error(errno)), expected);
        }
        assert!(!is_refusal(&io::Error::from(InvalidInput)));
    }

    #[test]
    fn files_are_opened_again_with_the_same_access() {
        let path = tempfile::NamedTempFile::new().unwrap();
        for (read, write, access) in
            [(true, false, libc::O_RDONLY), (false, true, libc::O_WRONLY), (true, true, libc::O_RDWR)]
        {
            for sync in [0, libc::O_DSYNC, libc::O_SYNC] {
                let mut options = fs::File::options();
                let file = options.read(read).write(write).custom_flags(sync).open(path.path()).unwrap();
                let again = open_flags(&reopen(&file, libc::O_NOATIME).unwrap()).unwrap();
                assert_eq!(again & libc::O_ACCMODE, access);
                assert_eq!((again & libc::O_SYNC, again & libc::O_NOATIME), (sync, libc::O_NOATIME));
            }
        }
    }
}
