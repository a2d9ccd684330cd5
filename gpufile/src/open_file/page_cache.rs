//! The kernel's page cache: which pages of a file it holds, and calls that empty and fill it.
//!
//! A read of cached pages is a copy in memory. Any other read waits for storage, and is no slower if it bypasses the
//! cache. [`residency`] helps to choose, [`evict`] removes pages, and [`prefetch`] does the opposite.
//!
//! All three take any open regular file, and a range in bytes. The part of the range after the end of the file is
//! ignored. They allocate nothing.
//!
//! ```
//! use gpufile::{File, page_cache};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("gpufile-page-cache-doc-{}", std::process::id()));
//! let file = File::create(&path)?;
//! file.write_all_at(vec![7_u8; 100_000].as_slice(), 0)?;
//! page_cache::evict(&file, 0..100_000)?;
//! println!("{:.0} % are still cached", 100.0 * page_cache::residency(&file, 0..100_000)?.fraction());
//! # std::fs::remove_file(path).ok();
//! # Ok(())
//! # }
//! ```

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

/// The number of the system call on every architecture of CUDA. libc does not name it on all of them.
const SYS_CACHESTAT: libc::c_long = 451;

/// The part of a range that the page cache holds, in pages of the system's page size. A page counts as a whole,
/// however little of it the range covers.
///
/// # Staleness
/// The kernel evicts, reads and writes back pages at any moment, so the answer may be out of date. Use it to choose a
/// method, never for correctness.
///
/// ```
/// use gpufile::{File, page_cache};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, [7; 10_000])?;
/// let file = File::open(&path)?;
/// let residency = page_cache::residency(&file, 0..10_000)?;
/// println!("{} of {} pages are cached", residency.cached, residency.pages);
/// if residency.cached < residency.pages {
///     page_cache::prefetch(&file, 0..10_000)?;
/// }
/// # assert!(residency.fraction() <= 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Residency {
    /// The number of pages of the range.
    pub pages: u64,
    /// The number of cached pages. With `cachestat`, they include pages that the kernel is still reading.
    pub cached: u64,
    /// The number of cached pages that are not yet written to storage; `None` where the kernel does not report it.
    /// Always 0 on tmpfs, whose pages have no storage.
    pub dirty: Option<u64>,
    /// The number of pages that the kernel is writing to the storage; `None` where the kernel does not report it.
    pub writeback: Option<u64>,
}

impl Residency {
    /// Returns the cached share, from 0 to 1; 1 for an empty range.
    pub fn fraction(&self) -> f64 {
        if self.pages == 0 { 1.0 } else { self.cached as f64 / self.pages as f64 }
    }
}

/// Returns the cached part of a range of the file.
///
/// The function calls `cachestat(2)`, which takes about a microsecond and two more for each cached MiB. That call may
/// be missing (Linux before 6.5), filtered out, or blind (on overlayfs it sees no pages). The function then maps the
/// range in steps and calls `mincore(2)`. This takes several times as long, needs a descriptor open for reading, and
/// does not count dirty pages.
///
/// Names elsewhere: `get_page_cache_info` (KvikIO).
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if the file is not regular.
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if the kernel refuses to answer. It may answer only
/// processes that own the file or may write to it.
#[doc(alias = "get_page_cache_info")]
pub fn residency(fd: impl AsFd, range: Range<u64>) -> io::Result<Residency> {
    let fd = fd.as_fd();
    let range = clip(fd, range)?;
    if range.is_empty() {
        return Ok(Residency { pages: 0, cached: 0, dirty: Some(0), writeback: Some(0) });
    }
    match by_cachestat(fd, &range) {
        Err(error) if is_no_answer(&error) => by_mincore(fd, &range),
        Ok(found) if found.cached == 0 && is_overlay(fd)? => by_mincore(fd, &range),
        result => result,
    }
}

/// Drops a range of the file from the page cache, as far as possible. Pages that are only partly in the range stay,
/// except the last page of the file. Pages that a process has mapped, or that the kernel is reading or writing, stay
/// too. [`residency`] returns the rest. On tmpfs all pages stay, because there the cache is the storage.
///
/// The kernel drops only clean pages, so `fdatasync` first makes all writes to the file durable: `sync_file_range` does
/// nothing on overlayfs, and leaves NFS with pages that it holds until a commit.
///
/// Names elsewhere: `drop_file_page_cache` (KvikIO). KvikIO's `drop_system_page_cache` and `clear_page_cache` have no
/// counterpart: they empty the cache of the whole system, as root.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if the file is not regular, and the errors of `fdatasync`. After
/// such an error, written bytes did not reach storage, and a later `sync` of the same descriptor may succeed all the
/// same.
#[doc(alias = "drop_file_page_cache")]
#[doc(alias = "drop_system_page_cache")]
#[doc(alias = "clear_page_cache")]
pub fn evict(fd: impl AsFd, range: Range<u64>) -> io::Result<()> {
    let fd = fd.as_fd();
    let range = clip(fd, range)?;
    if range.is_empty() {
        return Ok(());
    }
    // SAFETY: takes an integer.
    while unsafe { libc::fdatasync(fd.as_raw_fd()) } != 0 {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // A regular file without writes to make durable: squashfs and others that are only read have no fsync.
            Some(libc::EINVAL | libc::EROFS) => break,
            _ => return Err(error),
        }
    }
    advise(fd, &range, libc::POSIX_FADV_DONTNEED)
}

/// Starts to read a range of the file into the page cache. The call does not wait for the data, but for a place in the
/// storage's queue. The kernel may leave pages out, or soon evict them.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if the file is not regular.
pub fn prefetch(fd: impl AsFd, range: Range<u64>) -> io::Result<()> {
    let fd = fd.as_fd();
    let range = clip(fd, range)?;
    steps(range).try_for_each(|step| advise(fd, &step, libc::POSIX_FADV_WILLNEED))
}

/// Returns the steps of a range, each for one call, for which the kernel reads no more than the storage's readahead. A
/// step is as long as the usual readahead.
fn steps(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    const STEP: u64 = 128 << 10;
    let end = range.end;
    range.step_by(STEP as usize).map(move |at| at..end.min(at + STEP))
}

fn advise(fd: BorrowedFd<'_>, range: &Range<u64>, advice: libc::c_int) -> io::Result<()> {
    let (start, len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
    // SAFETY: takes integers.
    match unsafe { libc::posix_fadvise(fd.as_raw_fd(), start, len, advice) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Returns the part of the range before the end of the file. Its bounds fit an `off_t`.
fn clip(fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Range<u64>> {
    let status = status(fd)?;
    if status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "only regular files have a page cache"));
    }
    let end = range.end.min(status.st_size as u64);
    Ok(range.start.min(end)..end)
}

fn status(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    let mut status = MaybeUninit::uninit();
    // SAFETY: `status` has room for what the call writes.
    check(unsafe { libc::fstat(fd.as_raw_fd(), status.as_mut_ptr()) })?;
    // SAFETY: the call has succeeded, so it has written all of it.
    Ok(unsafe { status.assume_init() })
}

/// Returns whether cachestat gave no answer. Some sandboxes refuse unknown system calls with EPERM. If the kernel
/// itself returned EPERM, mincore fails too.
fn is_no_answer(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EPERM))
}

fn is_overlay(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const OVERLAYFS_SUPER_MAGIC: u64 = 0x794c_7630;
    Ok(file_system_type(fd)? == OVERLAYFS_SUPER_MAGIC)
}

fn file_system_type(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut status = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `status` has room for what the call writes.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), status.as_mut_ptr()) })?;
    // SAFETY: the call has succeeded, so it has written all of it.
    Ok(unsafe { status.assume_init() }.f_type as u64)
}

pub(crate) fn page_bytes() -> u64 {
    // SAFETY: takes an integer.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// Returns the number of pages that a range, which is not empty, touches.
fn pages(range: &Range<u64>) -> u64 {
    range.end.div_ceil(page_bytes()) - range.start / page_bytes()
}

/// The range must not be empty.
fn by_cachestat(fd: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<Residency> {
    // `struct cachestat_range`: offset and length, of which 0 would mean all to the end of the file; and
    // `struct cachestat`: cached, dirty, in writeback, evicted, recently evicted.
    let asked = [range.start, range.end - range.start];
    let (mut told, flags) = ([0_u64; 5], 0 as libc::c_uint);
    // SAFETY: the arrays are the call's structs, of which it writes the second.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), asked.as_ptr(), told.as_mut_ptr(), flags) };
    check(result as libc::c_int)?;
    let [cached, dirty, writeback, ..] = told;
    Ok(Residency { pages: pages(range), cached, dirty: Some(dirty), writeback: Some(writeback) })
}

/// As [`by_cachestat`].
fn by_mincore(fd: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<Residency> {
    // A byte for each page that is asked for at once: 16 MiB of the file where pages have 4 KiB.
    let mut vector = [0_u8; 4096];
    let page = page_bytes();
    let mut found = Residency { pages: pages(range), cached: 0, dirty: None, writeback: None };
    if !may_observe(fd)? {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let first = range.start / page;
    for at in (0..found.pages).step_by(vector.len()) {
        let left = usize::try_from(found.pages - at).unwrap_or(usize::MAX);
        let count = left.min(vector.len());
        in_core(fd, (first + at) * page, &mut vector[..count])?;
        found.cached += vector[..count].iter().filter(|&&page| page & 1 == 1).count() as u64;
    }
    Ok(found)
}

/// Sets a byte for each page from the page boundary `at` on. The lowest bit of a byte is 1 if the page is cached.
fn in_core(fd: BorrowedFd<'_>, at: u64, vector: &mut [u8]) -> io::Result<()> {
    let len = vector.len() * page_bytes() as usize;
    // Without access, so that even a process that locks all that it maps does not read the file by this.
    // SAFETY: a new mapping, where the kernel wants it.
    let mapping = unsafe {
        libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_SHARED, fd.as_raw_fd(), at as libc::off_t)
    };
    if mapping == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range is mapped, and the vector has a byte for each of its pages. The file may have become shorter,
    // but nothing touches the pages.
    let result = check(unsafe { libc::mincore(mapping, len, vector.as_mut_ptr()) });
    // SAFETY: the mapping from above, which nothing refers to.
    unsafe { libc::munmap(mapping, len) };
    result
}

/// Returns whether mincore's answers are true. For processes that neither own the file nor may write it, every page
/// counts as cached.
fn may_observe(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: takes nothing.
    if status(fd)?.st_uid == unsafe { libc::geteuid() } {
        return Ok(true);
    }
    // The system call itself, because older C libraries refuse the flags.
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: the path is a C string.
    let result =
        unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), libc::W_OK, flags) };
    Ok(result == 0)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};
    use std::{env, thread};

    use super::*;

    const MIB: u64 = 1 << 20;
    const STEP: u64 = 64 << 10;
    const TMPFS_MAGIC: u64 = 0x0102_1994;

    /// Returns the folder of all tests, from `CUFILE_TEST_DIR`.
    fn folder() -> PathBuf {
        env::var_os("CUFILE_TEST_DIR").map_or_else(env::temp_dir, PathBuf::from)
    }

    /// Creates an unnamed file of `len` bytes by short writes, so that the kernel keeps no larger folios.
    fn written(folder: &Path, len: u64) -> File {
        let file = tempfile::tempfile_in(folder).unwrap();
        for at in (0..len).step_by(STEP as usize) {
            let step = vec![(at / STEP) as u8; STEP.min(len - at) as usize];
            file.write_all_at(&step, at).unwrap();
        }
        file
    }

    fn assert_content(file: &File) {
        let len = file.metadata().unwrap().len();
        for at in (0..len).step_by(STEP as usize) {
            let mut step = vec![0; STEP.min(len - at) as usize];
            file.read_exact_at(&mut step, at).unwrap();
            assert!(step.iter().all(|&byte| byte == (at / STEP) as u8), "at {at}");
        }
    }

    /// Returns whether the file system drops clean pages: ext2 to 4, XFS, Btrfs, and overlayfs on them.
    fn can_drop(file: &File) -> bool {
        [0xef53, 0x5846_5342, 0x9123_683e, 0x794c_7630].contains(&file_system_type(file.as_fd()).unwrap())
    }

    #[test]
    fn written_pages_stay_cached_until_dropped() {
        let len = 3 * MIB + 100;
        let file = written(&folder(), len);
        let fresh = residency(&file, 0..len).unwrap();
        assert_eq!(fresh.pages, len.div_ceil(page_bytes()));
        assert!(fresh.fraction() == 1.0, "{fresh:?}");
        assert_eq!(fresh.fraction(), 1.0);

        evict(&file, 0..len).unwrap();
        let left = residency(&file, 0..len).unwrap();
        assert_eq!(left.pages, fresh.pages);
        // On every file system, `evict` has written all dirty pages.
        assert!(left.dirty.is_none_or(|dirty| dirty == 0), "{left:?}");
        if can_drop(&file) {
            assert_eq!(left.cached, 0, "{left:?}");
            assert_eq!(left.fraction(), 0.0);
            assert!(left.fraction() < 1.0);
        }
        // The kernel may take some back at once, where memory is short.
        let is_cached_when_read = || {
            assert_content(&file);
            residency(&file, 0..len).unwrap().fraction() == 1.0
        };
        assert!((0..20).any(|_| is_cached_when_read()));
    }

    #[test]
    fn cachestat_counts_dirty_pages() {
        let file = written(&folder(), MIB);
        let Ok(fresh) = by_cachestat(file.as_fd(), &(0..MIB)) else { return };
        let not_durable = fresh.dirty.unwrap() + fresh.writeback.unwrap();
        if can_drop(&file) && !is_overlay(file.as_fd()).unwrap() {
            assert!(not_durable > 0, "{fresh:?}");
        }
        assert!(
            fresh.dirty.unwrap() <= fresh.cached && fresh.writeback.unwrap() <= fresh.cached,
            "{fresh:?}"
        );
        file.sync_data().unwrap();
        assert_eq!(by_cachestat(file.as_fd(), &(0..MIB)).unwrap().dirty, Some(0));
    }

    #[test]
    fn dropping_a_part_keeps_the_rest_cached() {
        let file = written(&folder(), 8 * MIB);
        let dropped = 2 * MIB..4 * MIB;
        evict(&file, dropped.clone()).unwrap();
        let cached = |range| residency(&file, range).unwrap().cached;
        let pages = |bytes: u64| bytes / page_bytes();
        assert_eq!(cached(0..2 * MIB), pages(2 * MIB));
        assert_eq!(cached(4 * MIB..8 * MIB), pages(4 * MIB));
        let left = if can_drop(&file) { 0 } else { cached(dropped.clone()) };
        assert_eq!(cached(dropped), left);
        assert_eq!(cached(0..8 * MIB), pages(6 * MIB) + left);
    }

    #[test]
    fn evicting_keeps_pages_partly_in_the_range() {
        let file = written(&folder(), 4 * MIB);
        evict(&file, MIB + 1..3 * MIB - 1).unwrap();
        let cached = |range| residency(&file, range).unwrap().cached;
        assert_eq!(cached(MIB..MIB + 1), 1);
        assert_eq!(cached(3 * MIB - 1..3 * MIB), 1);
        if can_drop(&file) {
            // With them, all that the kernel keeps in one folio with them.
            let inner = cached(MIB + STEP..3 * MIB - STEP);
            assert_eq!(inner, 0);
        }
    }

    #[test]
    fn pages_on_tmpfs_stay_cached() {
        let shm = Path::new("/dev/shm");
        if !shm.is_dir() {
            eprintln!("skipped: no /dev/shm");
            return;
        }
        let file = written(shm, 2 * MIB + 1);
        assert_eq!(file_system_type(file.as_fd()).unwrap(), TMPFS_MAGIC);
        evict(&file, 0..u64::MAX).unwrap();
        prefetch(&file, 0..u64::MAX).unwrap();
        let left = residency(&file, 0..u64::MAX).unwrap();
        assert_eq!(left.pages, (2 * MIB + 1).div_ceil(page_bytes()));
        assert!(left.fraction() == 1.0, "{left:?}");
        assert_eq!(by_mincore(file.as_fd(), &(0..2 * MIB + 1)).unwrap().cached, left.cached);
        assert_content(&file);
    }

    #[test]
    fn ranges_end_at_the_end_of_file() {
        let file = written(&folder(), 5000);
        for (range, expected) in [
            (0..5000, 0..5000),
            (0..u64::MAX, 0..5000),
            (4999..1 << 40, 4999..5000),
            (5000..6000, 5000..5000),
            (6000..7000, 5000..5000),
            (u64::MAX - 1..u64::MAX, 5000..5000),
            (70..70, 70..70),
            (Range { start: 80, end: 70 }, 70..70),
        ] {
            assert_eq!(clip(file.as_fd(), range.clone()).unwrap(), expected, "{range:?}");
            let found = residency(&file, range.clone()).unwrap();
            let pages = if expected.is_empty() { 0 } else { pages(&expected) };
            assert_eq!(found.pages, pages, "{range:?}");
            assert_eq!(found.cached, pages, "{range:?}: {found:?}");
            assert_eq!(found.fraction(), 1.0, "{range:?}");
        }
        evict(&file, 6000..7000).unwrap();
        evict(&file, 70..70).unwrap();
        prefetch(&file, 6000..7000).unwrap();
        assert!(residency(&file, 0..5000).unwrap().fraction() == 1.0, "an empty range dropped the file");
        assert_eq!(residency(tempfile::tempfile().unwrap(), 0..1).unwrap().pages, 0);
    }

    #[test]
    fn partial_pages_count_as_whole_pages() {
        let page = page_bytes();
        assert_eq!(pages(&(0..1)), 1);
        assert_eq!(pages(&(page - 1..page + 1)), 2);
        assert_eq!(pages(&(page..2 * page)), 1);
        let half = Residency { pages: 4, cached: 2, dirty: None, writeback: None };
        assert_eq!(half.fraction(), 0.5);
    }

    #[test]
    fn cachestat_and_mincore_agree_on_sparse_files() {
        let file = tempfile::tempfile_in(folder()).unwrap();
        let len = 40 * MIB + 123;
        file.set_len(len).unwrap();
        // The second page is in another step of mincore's, the third is the last one before a step ends.
        let written = [0, 20 * MIB, 32 * MIB - page_bytes(), 40 * MIB];
        for at in written {
            file.write_all_at(&[1; 64], at).unwrap();
        }
        let ranges = [
            0..len,
            1..len,
            20 * MIB - 1..len,
            20 * MIB + 4000..32 * MIB,
            32 * MIB..len,
            7..8,
            // The cached pages lie right behind.
            MIB..20 * MIB,
            17 * MIB..20 * MIB,
        ];
        for range in ranges {
            let expected = written.iter().filter(|&&at| at < range.end && at + page_bytes() > range.start);
            let slow = by_mincore(file.as_fd(), &range).unwrap();
            assert_eq!(slow.cached, expected.count() as u64, "{range:?}");
            assert_eq!(slow.pages, pages(&range), "{range:?}");
            let found = residency(&file, range.clone()).unwrap();
            assert_eq!((found.pages, found.cached), (slow.pages, slow.cached), "{range:?}");
            match by_cachestat(file.as_fd(), &range) {
                Ok(fast) if !is_overlay(file.as_fd()).unwrap() => assert_eq!(fast, found, "{range:?}"),
                Ok(blind) => assert_eq!(blind.cached, 0, "{range:?}"),
                Err(error) => assert!(is_no_answer(&error), "{error}"),
            }
        }
    }

    #[test]
    fn prefetch_reads_more_than_one_readahead() {
        let len = 24 * MIB + 5;
        let file = written(&folder(), len);
        evict(&file, 0..len).unwrap();
        prefetch(&file, 0..len).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let found = residency(&file, 0..len).unwrap();
            // Some the kernel may have left out; a readahead is 128 KiB, or 8 MiB where it is set high.
            if found.fraction() > 0.9 {
                break;
            }
            assert!(Instant::now() < deadline, "{found:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn residency_needs_a_regular_file() {
        let (pipe, _end) = io::pipe().unwrap();
        let folder = File::open("/").unwrap();
        for fd in [pipe.as_fd(), folder.as_fd()] {
            for result in [residency(fd, 0..1).map(|_| ()), evict(fd, 0..1), prefetch(fd, 0..1)] {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            }
        }
    }

    #[test]
    fn prefetching_covers_the_range_in_steps() {
        const STEP: u64 = 128 << 10;
        let found = |range| steps(range).map(|step| (step.start, step.end)).collect::<Vec<_>>();
        assert_eq!(found(5..5), []);
        assert_eq!(found(5..6), [(5, 6)]);
        assert_eq!(found(0..STEP), [(0, STEP)]);
        let (second, third, end) = (7 + STEP, 7 + 2 * STEP, 2 * STEP + 8);
        assert_eq!(found(7..end), [(7, second), (second, third), (third, end)]);
    }

    /// Makes a system call fail in this thread, as cachestat does on older kernels and in some sandboxes; or says that
    /// it cannot.
    fn without(call: libc::c_long, errno: libc::c_int) -> io::Result<()> {
        let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
        let mut filter = [
            // The number is what the filter's data begins with.
            statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0),
            libc::sock_filter {
                jf: 1,
                ..statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, call as u32)
            },
            statement((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ERRNO | errno as u32),
            statement((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: takes integers.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        // SAFETY: the program and its filter are whole, and the kernel copies them.
        check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
    }

    #[test]
    fn mincore_replaces_a_missing_cachestat() {
        let file = written(&folder(), MIB);
        for errno in [libc::ENOSYS, libc::EOPNOTSUPP, libc::EPERM] {
            thread::scope(|scope| {
                scope.spawn(|| {
                    if let Err(error) = without(SYS_CACHESTAT, errno) {
                        return eprintln!("skipped: no filter: {error}");
                    }
                    let error = by_cachestat(file.as_fd(), &(0..MIB)).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(errno));
                    let found = residency(&file, 0..MIB).unwrap();
                    assert_eq!((found.pages, found.cached), (MIB / page_bytes(), MIB / page_bytes()));
                    assert_eq!((found.dirty, found.writeback), (None, None));
                });
            });
        }
    }

    #[test]
    fn other_failures_are_returned_without_fallback() {
        let file = written(&folder(), MIB);
        thread::scope(|scope| {
            scope.spawn(|| {
                if let Err(error) = without(SYS_CACHESTAT, libc::EIO) {
                    return eprintln!("skipped: no filter: {error}");
                }
                assert_eq!(residency(&file, 0..MIB).unwrap_err().raw_os_error(), Some(libc::EIO));
                without(libc::SYS_fdatasync, libc::EIO).unwrap();
                assert_eq!(evict(&file, 0..MIB).unwrap_err().raw_os_error(), Some(libc::EIO));
            });
        });
    }

    /// Mounts an overlay of this folder for this thread alone. Returns a folder on it, or why there is none.
    fn overlay_on(folder: &Path) -> io::Result<PathBuf> {
        let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| folder.join(name));
        for folder in [&lower, &upper, &work, &merged] {
            std::fs::create_dir(folder)?;
        }
        // SAFETY: takes integers; from now on the thread has mounts of its own.
        check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        let (root, private) = (c"/".as_ptr(), libc::MS_REC | libc::MS_PRIVATE);
        // SAFETY: the strings outlive the call, as below.
        check(unsafe { libc::mount(ptr::null(), root, ptr::null(), private, ptr::null()) })?;
        let [lowerdir, upperdir, workdir] = [&lower, &upper, &work].map(|path| path.display());
        let options = format!("lowerdir={lowerdir},upperdir={upperdir},workdir={workdir}");
        let (options, target) = (path(Path::new(&options)), path(&merged));
        let kind = c"overlay".as_ptr();
        // SAFETY: as above.
        check(unsafe { libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()) })?;
        Ok(merged)
    }

    #[test]
    fn residency_finds_cached_pages_on_overlayfs() {
        let lies_in = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let merged = match overlay_on(lies_in.path()) {
                    Ok(merged) => merged,
                    Err(error) => return eprintln!("skipped: no overlay: {error}"),
                };
                let file = written(&merged, MIB);
                assert!(is_overlay(file.as_fd()).unwrap());
                let found = residency(&file, 0..MIB).unwrap();
                assert_eq!((found.pages, found.cached), (MIB / page_bytes(), MIB / page_bytes()));
                file.set_len(2 * MIB).unwrap();
                assert_eq!(residency(&file, MIB..2 * MIB).unwrap().cached, 0);
            });
        });
    }

    #[test]
    fn unprivileged_users_get_an_error_without_cachestat() {
        // A sparse file of root's: none of its pages are cached, and mincore would say that all are.
        let file = tempfile::tempfile_in(folder()).unwrap();
        file.set_len(MIB).unwrap();
        let found = residency(&file, 0..MIB).unwrap();
        assert_eq!(found.cached, 0);
        if by_cachestat(file.as_fd(), &(0..MIB)).is_ok() && !is_overlay(file.as_fd()).unwrap() {
            assert_eq!((found.dirty, found.writeback), (Some(0), Some(0)), "mincore need not be asked");
        }
        // Another that everyone may write.
        let open = tempfile::tempfile_in(folder()).unwrap();
        open.set_len(MIB).unwrap();
        open.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: only root can become another user");
            return;
        }
        thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let nobody = 65_534;
                // SAFETY: takes integers; the system call itself changes only this thread.
                if unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) } != 0 {
                    return None;
                }
                assert_eq!(by_mincore(open.as_fd(), &(0..MIB)).unwrap().cached, 0);
                Some((by_mincore(file.as_fd(), &(0..MIB)), residency(&file, 0..MIB)))
            });
            let Some((slow, found)) = asked.join().unwrap() else {
                eprintln!("skipped: the user namespace, as of a rootless container, has no other user");
                return;
            };
            assert_eq!(slow.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            match found {
                // Kernels from 6.5 told everyone at first.
                Ok(found) => assert_eq!(found.cached, 0),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
            }
        });
    }
}
