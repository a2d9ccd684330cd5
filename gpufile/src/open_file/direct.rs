//! `O_DIRECT`: reads and writes that pass the page cache by, and the alignment that they need.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use cufile::FileProperties;

/// A file opened with `O_DIRECT`.
#[derive(Debug)]
pub(crate) struct Direct {
    file: fs::File,
    /// What offsets, lengths and addresses must be multiples of: the larger of what `statx` says.
    alignment: usize,
    /// Cleared when the file system refuses after all.
    works: AtomicBool,
}

impl Direct {
    /// Opens the same file again; `None` where the file system offers no `O_DIRECT` for it.
    pub fn of(file: &fs::File) -> Option<Self> {
        let alignment = FileProperties::of(file).ok()?.direct_io?;
        let alignment = alignment.memory_bytes.max(alignment.offset_bytes).max(512) as usize;
        if !alignment.is_power_of_two() {
            return None;
        }
        let file = reopen(file, libc::O_DIRECT).ok()?;
        Some(Self { file, alignment, works: AtomicBool::new(true) })
    }

    pub fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    /// The next multiple of the alignment.
    pub fn align(&self, position: usize) -> usize {
        position.next_multiple_of(self.alignment)
    }

    /// Whether address, offset and length are all aligned.
    pub fn is_aligned(&self, address: *const u8, offset: u64, len_bytes: usize) -> bool {
        (address.addr() as u64 | offset | len_bytes as u64).is_multiple_of(self.alignment as u64)
    }

    /// How many bytes lie between `offset` and the next aligned one.
    pub fn until_aligned(&self, offset: u64) -> usize {
        (offset.next_multiple_of(self.alignment as u64) - offset) as usize
    }

    /// The largest multiple of the alignment in `len_bytes`.
    pub fn aligned_part(&self, len_bytes: usize) -> usize {
        len_bytes & !(self.alignment - 1)
    }

    /// The smallest aligned range around another: how many bytes before it that begins, and how long it is.
    pub fn enclosing(&self, offset: u64, len_bytes: usize) -> (usize, usize) {
        let head = (offset % self.alignment as u64) as usize;
        (head, self.align(head + len_bytes))
    }

    /// Reads the smallest aligned range around another, so that the bytes of that come to lie at `target`. Returns how
    /// many of them were read: all, or fewer at the end of the file and where the kernel refuses.
    ///
    /// # Safety
    /// The memory around `target` that the enclosing range takes must be aligned and valid for writes.
    pub unsafe fn read_enclosing(&self, target: *mut u8, len_bytes: usize, offset: u64) -> usize {
        let (head, whole) = self.enclosing(offset, len_bytes);
        // SAFETY: the caller's promise.
        let count = self.retry(|| unsafe {
            let at = (offset - head as u64) as libc::off_t;
            libc::pread(self.file.as_raw_fd(), target.sub(head).cast(), whole, at)
        });
        count.saturating_sub(head).min(len_bytes)
    }

    /// Writes an aligned range; returns how many bytes were written.
    pub fn write(&self, source: &[u8], offset: u64) -> usize {
        // SAFETY: a slice.
        self.retry(|| unsafe {
            libc::pwrite(self.file.as_raw_fd(), source.as_ptr().cast(), source.len(), offset as libc::off_t)
        })
    }

    /// Calls once more if it was interrupted. What fails is left to the page cache's way, which says why.
    fn retry(&self, call: impl Fn() -> isize) -> usize {
        loop {
            let count = call();
            if let Ok(count) = usize::try_from(count) {
                return count;
            }
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => {
                    if error.raw_os_error() == Some(libc::EINVAL) {
                        self.works.store(false, Ordering::Relaxed);
                    }
                    return 0;
                }
            }
        }
    }
}

pub(crate) fn has_o_direct(file: &fs::File) -> io::Result<bool> {
    Ok(open_flags(file)? & libc::O_DIRECT != 0)
}

/// Opens the same file again with the same access and these flags. It goes through /proc, so that a file that was
/// renamed or removed meanwhile is still the same one.
pub(crate) fn reopen(file: &fs::File, flags: libc::c_int) -> io::Result<fs::File> {
    let access = open_flags(file)? & libc::O_ACCMODE;
    fs::OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(flags)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

pub(crate) fn open_flags(file: &fs::File) -> io::Result<libc::c_int> {
    // SAFETY: takes integers.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) } {
        flags if flags >= 0 => Ok(flags),
        _ => Err(io::Error::last_os_error()),
    }
}
