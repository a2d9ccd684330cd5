//! Mapped files that become shorter: zeros in the place of the pages that are gone, and an error for the program.
//!
//! The kernel sends `SIGBUS` to a thread that uses a mapped page which the file no longer has, and by default that ends
//! the process. The handler of this module maps zeros there, so that the thread goes on, and Python's main thread raises an
//! `OSError`. Faults anywhere else go to the handler that was there before.
//!
//! The signal is synchronous: the thread uses a byte of a mapping at that moment, and nothing in this module or in Python
//! does that while it holds a lock. So the handler may use what Python permits to any thread without its lock, and threads
//! may take [turns](Turn) in it.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::os_error_with;

/// A mapping whose lost pages become zeros, until this is dropped.
pub struct Watched {
    entry: &'static Entry,
    /// The entry points to it. An open descriptor for each mapped file would be many.
    _path: CString,
}

struct Entry {
    /// True from the time that a mapping takes the place until it leaves.
    is_taken: AtomicBool,
    /// Odd while the fields below change.
    version: AtomicUsize,
    address: AtomicUsize,
    /// 0 without a mapping.
    len_bytes: AtomicUsize,
    /// The start of the zeros that took the place of the end of the file; the length if none did. A thread changes it in its
    /// turn.
    zeros_from: AtomicUsize,
    path: AtomicPtr<c_char>,
    /// The numbers of the file's device and of the file, which another file at the path does not have.
    device: AtomicU64,
    inode: AtomicU64,
    next: AtomicPtr<Entry>,
}

#[derive(Clone, Copy)]
struct Found {
    address: usize,
    len_bytes: usize,
    path: *mut c_char,
    device: u64,
    inode: u64,
}

/// No lock is around the list, because a forked child could find it locked.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// The handler before this one. Leaked, and null until this one is installed.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
static HAS_TURN: AtomicBool = AtomicBool::new(false);
/// Set while Python has a call to come that raises the error.
static WILL_RAISE: AtomicBool = AtomicBool::new(false);
/// The path for the error, which ends with a zero. Only the thread that sets `WILL_RAISE` writes it.
static LOST_PATH: [AtomicU8; libc::PATH_MAX as usize] = [const { AtomicU8::new(0) }; libc::PATH_MAX as usize];

impl Watched {
    /// Watches a private mapping of the start of a file.
    ///
    /// # Safety
    /// The mapping must be private, cover these whole pages, and stay until the value is dropped.
    ///
    /// # Errors
    /// The error of `sigaction`, and `EINVAL` for a path with a null character.
    pub unsafe fn new(
        address: usize,
        len_bytes: usize,
        path: &Path,
        status: &libc::stat,
    ) -> io::Result<Self> {
        install()?;
        let path = CString::new(path.as_os_str().as_bytes())?;
        let entry = Entry::take();
        let (device, inode) = (status.st_dev, status.st_ino);
        entry.set(Found { address, len_bytes, path: path.as_ptr().cast_mut(), device, inode });
        Ok(Self { entry, _path: path })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.entry.set(Found { address: 0, len_bytes: 0, path: ptr::null_mut(), device: 0, inode: 0 });
        self.entry.is_taken.store(false, SeqCst);
    }
}

impl Entry {
    fn take() -> &'static Self {
        let is_free = |entry: &&Self| entry.is_taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
        if let Some(entry) = Self::all().find(is_free) {
            return entry;
        }
        let entry: &'static Self = Box::leak(Box::new(Self {
            is_taken: AtomicBool::new(true),
            version: AtomicUsize::new(0),
            address: AtomicUsize::new(0),
            len_bytes: AtomicUsize::new(0),
            zeros_from: AtomicUsize::new(0),
            path: AtomicPtr::new(ptr::null_mut()),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let _ = ENTRIES.fetch_update(SeqCst, SeqCst, |first| {
            entry.next.store(first, SeqCst);
            Some(ptr::from_ref(entry).cast_mut())
        });
        entry
    }

    fn all() -> impl Iterator<Item = &'static Self> {
        // SAFETY: null or leaked by `take`.
        let at = |pointer: &AtomicPtr<Self>| unsafe { pointer.load(SeqCst).as_ref() };
        std::iter::successors(at(&ENTRIES), move |entry| at(&entry.next))
    }

    fn set(&self, found: Found) {
        self.version.fetch_add(1, SeqCst);
        self.address.store(found.address, SeqCst);
        self.len_bytes.store(found.len_bytes, SeqCst);
        self.zeros_from.store(found.len_bytes, SeqCst);
        self.path.store(found.path, SeqCst);
        self.device.store(found.device, SeqCst);
        self.inode.store(found.inode, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    /// Returns the mapping. `None` while it changes: it is then no mapping that a thread uses.
    fn get(&self) -> Option<Found> {
        let version = self.version.load(SeqCst);
        let found = Found {
            address: self.address.load(SeqCst),
            len_bytes: self.len_bytes.load(SeqCst),
            path: self.path.load(SeqCst),
            device: self.device.load(SeqCst),
            inode: self.inode.load(SeqCst),
        };
        (version.is_multiple_of(2) && version == self.version.load(SeqCst)).then_some(found)
    }
}

/// The time in which one thread maps zeros. A second thread that lost the same pages would map zeros over what the first has
/// written to them since.
struct Turn(());

impl Turn {
    /// Waits for the turns of others, which take some microseconds unless the mount does not answer.
    fn take() -> Self {
        while HAS_TURN.swap(true, SeqCst) {
            // SAFETY: takes nothing.
            unsafe { libc::sched_yield() };
        }
        Self(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HAS_TURN.store(false, SeqCst);
    }
}

/// Ends what threads of the parent had begun in the handler: a child has none of them.
extern "C" fn forget_threads() {
    HAS_TURN.store(false, SeqCst);
    // A call that is on Python's list comes in the child, too.
    WILL_RAISE.store(false, SeqCst);
}

/// Installs the handler, for the first mapping and after the program has removed it.
fn install() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
    // SAFETY: zeros are valid for this structure: no flags, an empty mask, the default handler.
    let (mut action, mut current): (libc::sigaction, libc::sigaction) = unsafe { mem::zeroed() };
    // SAFETY: `current` outlives the call.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut current) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let is_first = PREVIOUS.load(SeqCst).is_null();
    // A handler that came after this one may pass faults on to it, and so must get none from it.
    if current.sa_sigaction == handler as usize || !is_first && current.sa_sigaction != libc::SIG_DFL {
        return Ok(());
    }
    if is_first {
        // Two threads may get here at once, which does no harm.
        // SAFETY: the function only changes atomics.
        let error = unsafe { libc::pthread_atfork(None, None, Some(forget_threads)) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
    }
    PREVIOUS.store(Box::into_raw(Box::new(current)), SeqCst);
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the structure outlives the call, and the handler is a function of this module, which stays loaded.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own variable.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: the kernel passes the structure. Faults have an address in it.
    let is_ours = unsafe { (*info).si_code == libc::BUS_ADRERR && replace((*info).si_addr().addr()) };
    // SAFETY: as above.
    unsafe { *errno = before };
    if !is_ours {
        // SAFETY: these are the arguments of the kernel.
        unsafe { pass_on(signal, info, context) };
    }
}

/// Maps zeros where a mapping has lost the page of an address. Returns false if no mapping has the address.
fn replace(address: usize) -> bool {
    let holds = |found: &Found| address.checked_sub(found.address).is_some_and(|at| at < found.len_bytes);
    let found = Entry::all().find_map(|entry| Some((entry, entry.get().filter(holds)?)));
    let Some((entry, mapping)) = found else { return false };
    let page_bytes = page_bytes();
    let page = (address - mapping.address) / page_bytes * page_bytes;
    let _turn = Turn::take();
    let zeros_from = entry.zeros_from.load(SeqCst);
    if page >= zeros_from || is_readable(address) {
        // Another thread had the turn before, or the file has become longer.
        return true;
    }
    let kept = bytes_of(&mapping).map(|bytes| bytes.next_multiple_of(page_bytes));
    // Where the file has the page and the storage failed, only that page is lost. So it is where the file is at no path.
    let lost = match kept {
        Some(kept) if kept <= page => kept..zeros_from,
        _ => page..page + page_bytes,
    };
    // SAFETY: the pages are those of a private mapping, which stays as long as a thread may use it. The file has no bytes
    // for them.
    let mapped = unsafe {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let start = ptr::with_exposed_provenance_mut(mapping.address + lost.start);
        libc::mmap(start, lost.len(), libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0)
    };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    if lost.end == zeros_from {
        entry.zeros_from.store(lost.start, SeqCst);
    }
    // SAFETY: both functions may be called by any thread at any time, without Python's lock. The path lives as long as the
    // mapping, which this thread uses.
    unsafe {
        if ffi::Py_IsInitialized() != 0 && !WILL_RAISE.swap(true, SeqCst) {
            let path = CStr::from_ptr(mapping.path).to_bytes_with_nul();
            for (to, byte) in LOST_PATH.iter().zip(path) {
                to.store(*byte, SeqCst);
            }
            // Python refuses the call while too many others wait. The next lost page tries again. Otherwise the main thread may
            // have raised the error by now, and has cleared this itself.
            if ffi::Py_AddPendingCall(Some(raise_error), ptr::null_mut()) != 0 {
                WILL_RAISE.store(false, SeqCst);
            }
        }
    }
    true
}

/// Returns the length of a mapped file. `None` if it is no longer at its path, or the kernel does not say it.
fn bytes_of(mapping: &Found) -> Option<usize> {
    // SAFETY: zeros are valid for a structure of integers.
    let mut status: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: the path lives as long as the mapping, which a thread uses now. `status` outlives the call.
    let result = unsafe { libc::stat(mapping.path, &mut status) };
    let is_it = result == 0 && (status.st_dev, status.st_ino) == (mapping.device, mapping.inode);
    usize::try_from(status.st_size).ok().filter(|_| is_it)
}

/// Returns whether the kernel can read a byte of this process. False if the process may not ask.
fn is_readable(address: usize) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address), iov_len: 1 };
    // SAFETY: `byte` outlives the call, which fails where the address has no page.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == 1 }
}

/// Raises the error on Python's main thread.
extern "C" fn raise_error(_: *mut c_void) -> c_int {
    let path = LOST_PATH.iter().map(|byte| byte.load(SeqCst)).take_while(|byte| *byte != 0);
    let path: Vec<u8> = path.collect();
    WILL_RAISE.store(false, SeqCst);
    // SAFETY: Python calls this on a thread that has its lock.
    let raised = Python::try_attach(|py| {
        let text = "the file became shorter, or could not be read, while its tensors were mapped: zeros took the place of the lost bytes";
        let path = PathBuf::from(OsStr::from_bytes(&path));
        os_error_with(Some(libc::EIO), text.to_owned(), &path).restore(py);
    });
    // Python looks for an exception where a call says that it raised one.
    if raised.is_some() { -1 } else { 0 }
}

/// Does what the handler before this one would have done.
///
/// # Safety
/// The arguments must be those that the kernel passed.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: null or leaked by `install`.
    match unsafe { PREVIOUS.load(SeqCst).as_ref() } {
        Some(previous) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&previous.sa_sigaction) => {
            // SAFETY: the flags say which kind of function it is.
            unsafe {
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        mem::transmute(previous.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(c_int) = mem::transmute(previous.sa_sigaction);
                    handler(signal);
                }
            }
        }
        // A signal that a process sent, and the kernel found no fault.
        // SAFETY: the argument is valid.
        Some(previous) if previous.sa_sigaction == libc::SIG_IGN && unsafe { (*info).si_code } <= 0 => {}
        // The kernel ignores no fault, whatever the process asked for: it comes again, and ends the process. So does the
        // signal that is raised here, when the handler has returned.
        // SAFETY: take integers.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        },
    }
}

pub fn page_bytes() -> usize {
    // SAFETY: takes an integer.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}
