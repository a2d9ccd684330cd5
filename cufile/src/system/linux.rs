//! Linux's own parts: its description of files, errno and advice about pages.

use std::ffi::{CStr, c_int, c_void};
use std::{fs, io, mem, ptr};

use super::{Advice, Description, RawFd};

pub use libc::O_DIRECT;

pub const REFUSED_FLAGS: [(c_int, &str); 3] =
    [(libc::O_APPEND, "O_APPEND"), (libc::O_NONBLOCK, "O_NONBLOCK"), (libc::O_NOFOLLOW, "O_NOFOLLOW")];

pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub fn set_errno(errno: i32) {
    // SAFETY: the location is the calling thread's, and valid for as long as it lives.
    unsafe { *libc::__errno_location() = errno };
}

/// Names the calling thread by the first 15 bytes.
pub fn name_this_thread(name: &CStr) {
    // SAFETY: the name ends with a zero byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// # Errors
/// The name of the call that failed, and its error.
pub fn describe(file: RawFd) -> Result<Description, (&'static str, io::Error)> {
    let stat = statx(file).map_err(|error| ("statx", error))?;
    // SAFETY: takes integers.
    let open_flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
    if open_flags < 0 {
        return Err(("fcntl", io::Error::last_os_error()));
    }
    Ok(Description {
        mode: stat.stx_mode,
        open_flags,
        direct_io: alignment(&stat),
        file_system: file_system(stat.stx_mnt_id),
        device: (stat.stx_dev_major, stat.stx_dev_minor),
    })
}

fn statx(fd: c_int) -> io::Result<libc::statx> {
    let mask = libc::STATX_BASIC_STATS | libc::STATX_DIOALIGN | libc::STATX_MNT_ID;
    // SAFETY: all-zero is a valid value of this struct of integers.
    let mut stat: libc::statx = unsafe { mem::zeroed() };
    let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
    // By its number: the function is in glibc 2.28 and newer only.
    // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor itself; `stat` outlives the call.
    match unsafe { libc::syscall(libc::SYS_statx, fd, path, flags, mask, &raw mut stat) } {
        0 => Ok(stat),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns `None` if the kernel reports no alignment, or no `O_DIRECT`.
fn alignment(stat: &libc::statx) -> Option<(u32, u32)> {
    let (memory_bytes, offset_bytes) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    let is_told = stat.stx_mask & libc::STATX_DIOALIGN != 0 && offset_bytes != 0;
    is_told.then_some((memory_bytes, offset_bytes))
}

fn file_system(mount: u64) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&mount.to_string()))?;
    // Optional fields end in a lone dash; the type follows it.
    line.split(" - ").nth(1)?.split(' ').next().map(str::to_owned)
}

/// Addresses of this process, with private memory that is zeroed.
pub struct Mapping {
    start: *mut c_void,
    len_bytes: usize,
}

impl Mapping {
    pub fn new(len_bytes: usize) -> Option<Self> {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a mapping at a new address replaces none.
        let start = unsafe { libc::mmap(ptr::null_mut(), len_bytes, access, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Self { start, len_bytes })
    }

    pub fn start(&self) -> *mut c_void {
        self.start
    }

    /// Returns whether the kernel took the advice.
    ///
    /// # Safety
    /// The range must lie in the mapping. For [`Advice::Discard`], nothing may use its bytes.
    pub unsafe fn advise(&self, start: *mut u8, len_bytes: usize, advice: Advice) -> bool {
        let advice = match advice {
            Advice::WipeOnFork => libc::MADV_WIPEONFORK,
            Advice::HugePages => libc::MADV_HUGEPAGE,
            Advice::Populate => libc::MADV_POPULATE_WRITE,
            Advice::Discard => libc::MADV_DONTNEED,
        };
        // SAFETY: the caller's promise.
        unsafe { libc::madvise(start.cast(), len_bytes, advice) == 0 }
    }

    /// # Safety
    /// Nothing may use the memory, now or later.
    pub unsafe fn unmap(&self) {
        // SAFETY: `new` made the mapping; the caller's promise.
        unsafe { libc::munmap(self.start, self.len_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_io_needs_a_reported_nonzero_alignment() {
        let stat = |mask, offset_bytes| {
            // SAFETY: all-zero is a valid value of this struct of integers.
            let mut stat: libc::statx = unsafe { std::mem::zeroed() };
            (stat.stx_mask, stat.stx_dio_mem_align, stat.stx_dio_offset_align) = (mask, 4, offset_bytes);
            stat
        };
        let told = libc::STATX_BASIC_STATS | libc::STATX_DIOALIGN;
        assert_eq!(alignment(&stat(told, 512)), Some((4, 512)));
        assert_eq!(alignment(&stat(told, 0)), None);
        assert_eq!(alignment(&stat(libc::STATX_BASIC_STATS, 512)), None);
    }
}
