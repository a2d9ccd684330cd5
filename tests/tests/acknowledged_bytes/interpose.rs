//! The C library's functions that the engine calls, defined here so that the n-th call can fail.
//!
//! The crates of this program are linked to these functions, and the emulator's calls find them as well. Each
//! function calls the C library's, which comes next in the dynamic loader's order.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{ptr, thread};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Errno(c_int),
    /// It moves at most this number of bytes.
    Short(usize),
    /// It waits for this number of microseconds first.
    Delay(u64),
    /// It returns the full count, and leaves out the last byte. No kernel does so, but an engine that overlooks a
    /// short count would show the same.
    LeavesOutTheLast,
    /// It reports success, and does nothing.
    DoesNothing,
}

/// A function, by its place in [`NAMES`].
pub type Function = usize;

macro_rules! functions {
    ($($constant:ident = $name:literal;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "each is a function's name")]
        enum Number { $($constant,)* }
        $(pub const $constant: Function = Number::$constant as usize;)*
        pub const NAMES: &[&str] = &[$($name),*];
    };
}

functions! {
    PREAD = "pread"; PWRITE = "pwrite"; PREADV = "preadv"; PWRITEV = "pwritev";
    PROCESS_VM_READV = "process_vm_readv"; PROCESS_VM_WRITEV = "process_vm_writev"; FALLOCATE = "fallocate";
    FTRUNCATE = "ftruncate64"; MMAP = "mmap"; MADVISE = "madvise"; MINCORE = "mincore"; CACHESTAT = "cachestat";
    FSYNC = "fsync"; FDATASYNC = "fdatasync"; OPEN = "open64"; OPENAT = "openat"; CLOSE = "close"; FCNTL = "fcntl";
    FSTATFS = "fstatfs64"; FSTAT = "fstat"; STATX = "statx"; RENAME = "renameat";
    UNLINK = "unlinkat"; PTHREAD_CREATE = "pthread_create"; FADVISE = "posix_fadvise";
}

struct Planned {
    function: Function,
    skip: u64,
    left: u64,
    effect: Effect,
}

static ARMED: AtomicBool = AtomicBool::new(false);
static PLANNED: Mutex<Vec<Planned>> = Mutex::new(Vec::new());
static CALLS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static STRUCK: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

thread_local! {
    static SPARED: Cell<bool> = const { Cell::new(false) };
}

fn planned() -> MutexGuard<'static, Vec<Planned>> {
    PLANNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spares the calls of this thread from now on.
pub fn spare_this_thread() {
    SPARED.set(true);
}

pub fn plan(function: Function, skip: u64, times: u64, effect: Effect) {
    planned().push(Planned { function, skip, left: times, effect });
}

pub fn arm() {
    ARMED.store(true, Ordering::SeqCst);
}

pub fn disarm() {
    ARMED.store(false, Ordering::SeqCst);
    planned().clear();
}

/// Returns the number of calls of each function while armed, and of those with an effect, since the start of the
/// program.
pub fn counts() -> Vec<(u64, u64)> {
    let load = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    CALLS.iter().zip(&STRUCK).map(|(calls, struck)| (load(calls), load(struck))).collect()
}

/// Counts a call, and waits if that is its effect.
fn strike(function: Function) -> Option<Effect> {
    if !ARMED.load(Ordering::Relaxed) || SPARED.get() {
        return None;
    }
    CALLS[function].fetch_add(1, Ordering::Relaxed);
    let mut chosen = None;
    // Every fault sees every call. Of several due faults, the oldest strikes.
    for fault in planned().iter_mut().filter(|fault| fault.function == function && fault.left > 0) {
        if fault.skip > 0 {
            fault.skip -= 1;
        } else if chosen.is_none() {
            fault.left -= 1;
            chosen = Some(fault.effect);
        }
    }
    let effect = chosen?;
    STRUCK[function].fetch_add(1, Ordering::Relaxed);
    if let Effect::Delay(microseconds) = effect {
        thread::sleep(Duration::from_micros(microseconds));
        return None;
    }
    Some(effect)
}

fn set_errno(code: c_int) {
    // SAFETY: the location is this thread's.
    unsafe { *libc::__errno_location() = code };
}

/// Returns the C library's function, or the sanitizer's before it.
fn next(cache: &AtomicUsize, name: &CStr) -> usize {
    let find = |handle, name: &CStr| {
        // SAFETY: a name, and where to look.
        unsafe { libc::dlsym(handle, name.as_ptr()) }.expose_provenance()
    };
    let mut address = cache.load(Ordering::Relaxed);
    if address == 0 {
        // The text is on the stack, because an allocator may need one of these functions.
        let mut wrapper = *b"__interceptor_\0                  ";
        let (start, len) = (b"__interceptor_".len(), name.count_bytes() + 1);
        wrapper[start..start + len].copy_from_slice(name.to_bytes_with_nul());
        address = CStr::from_bytes_until_nul(&wrapper).map_or(0, |name| find(libc::RTLD_DEFAULT, name));
        if address == 0 {
            address = find(libc::RTLD_NEXT, name);
        }
        if address == 0 {
            std::process::abort();
        }
        cache.store(address, Ordering::Relaxed);
    }
    address
}

/// Defines functions that fail with −1 and an errno.
macro_rules! interpose {
    ($($name:ident as $function:expr => ($($argument:ident: $type:ty),*) -> $result:ty
        $(, when $when:expr)? $(, fails with $failed:expr)?;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            type Next = unsafe extern "C" fn($($type),*) -> $result;
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).unwrap();
            let address = ptr::with_exposed_provenance::<c_void>(next(&NEXT, name));
            // SAFETY: the C library's function has this type.
            let next = unsafe { std::mem::transmute::<*const c_void, Next>(address) };
            let is_meant = true $(&& $when)?;
            match is_meant.then(|| strike($function)).flatten() {
                Some(Effect::Errno(code)) => {
                    #[allow(unused_variables, reason = "most say it by −1 and errno")]
                    let failed = -1;
                    $(let failed = $failed(code);)?
                    set_errno(code);
                    return failed as $result;
                }
                Some(Effect::DoesNothing) => {
                    let done = 0usize;
                    return done as $result;
                }
                _ => {}
            }
            // SAFETY: the caller keeps the promise.
            unsafe { next($($argument),*) }
        }
    )*};
}

const CACHESTAT_NUMBER: c_long = 451;

interpose! {
    fallocate as FALLOCATE => (fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int;
    ftruncate64 as FTRUNCATE => (fd: c_int, len: i64) -> c_int;
    // The emulator's memory has no file.
    mmap as MMAP => (at: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64)
        -> *mut c_void, when fd >= 0;
    madvise as MADVISE => (at: *mut c_void, len: usize, advice: c_int) -> c_int;
    mincore as MINCORE => (at: *mut c_void, len: usize, pages: *mut u8) -> c_int;
    fsync as FSYNC => (fd: c_int) -> c_int;
    fdatasync as FDATASYNC => (fd: c_int) -> c_int;
    open64 as OPEN => (path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fcntl as FCNTL => (fd: c_int, command: c_int, argument: usize) -> c_int;
    fstatfs64 as FSTATFS => (fd: c_int, status: *mut c_void) -> c_int;
    fstat as FSTAT => (fd: c_int, status: *mut c_void) -> c_int;
    statx as STATX => (at: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut c_void) -> c_int;
    openat as OPENAT => (folder: c_int, name: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    renameat as RENAME => (old: c_int, from: *const c_char, new: c_int, to: *const c_char) -> c_int;
    unlinkat as UNLINK => (folder: c_int, name: *const c_char, flags: c_int) -> c_int;
    posix_fadvise as FADVISE => (fd: c_int, offset: i64, len: i64, advice: c_int) -> c_int,
        fails with |code| code;
    // The emulator's threads stand for CUDA's, which do not begin in this program.
    pthread_create as PTHREAD_CREATE =>
        (thread: *mut c_ulong, attributes: *const c_void, start: *const c_void, argument: *mut c_void) -> c_int,
        when is_of_this_program(start), fails with |code| code;
    // The standard library's locks are system calls of this kind too.
    syscall as CACHESTAT =>
        (number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long,
        when number == CACHESTAT_NUMBER;
}

/// Defines functions that move bytes between memory and a file.
macro_rules! interpose_transfers {
    ($($name:ident as $function:expr => $pointer:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int, memory: $pointer, len: usize, offset: i64) -> isize {
            type Next = unsafe extern "C" fn(c_int, $pointer, usize, i64) -> isize;
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).unwrap();
            let address = ptr::with_exposed_provenance::<c_void>(next(&NEXT, name));
            // SAFETY: the C library's function has this type.
            let next = unsafe { std::mem::transmute::<*const c_void, Next>(address) };
            let part = match strike($function) {
                Some(Effect::Errno(code)) => {
                    set_errno(code);
                    return -1;
                }
                Some(Effect::Short(most)) => len.min(most.max(1)),
                Some(Effect::LeavesOutTheLast) => {
                    // SAFETY: a part of what the caller promises.
                    let moved = unsafe { next(fd, memory, len.saturating_sub(1), offset) };
                    return if moved + 1 == len as isize { len as isize } else { moved };
                }
                _ => len,
            };
            // SAFETY: all or a part of what the caller promises.
            unsafe { next(fd, memory, part, offset) }
        }
    )*};
}

interpose_transfers! {
    pread as PREAD => *mut c_void;
    pwrite as PWRITE => *const c_void;
}

/// Closes the descriptor even if it fails, as Linux does.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let address = ptr::with_exposed_provenance::<c_void>(next(&NEXT, c"close"));
    let effect = strike(CLOSE);
    if effect == Some(Effect::DoesNothing) {
        return 0;
    }
    // SAFETY: the C library's function has this type, and the caller's promise.
    let closed =
        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(c_int) -> c_int>(address)(fd) };
    match effect {
        Some(Effect::Errno(code)) => {
            set_errno(code);
            -1
        }
        _ => closed,
    }
}

/// Defines functions for lists, of which a short one moves a part of the first range.
macro_rules! interpose_lists {
    ($($name:ident as $function:expr => (
        $($before:ident: $before_type:ty,)* [$list:ident, $count:ident: $count_type:ty] $(, $after:ident: $after_type:ty)*
    );)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)* $list: *const libc::iovec, $count: $count_type $(, $after: $after_type)*
        ) -> isize {
            type Next = unsafe extern "C" fn(
                $($before_type,)* *const libc::iovec, $count_type $(, $after_type)*
            ) -> isize;
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).unwrap();
            let address = ptr::with_exposed_provenance::<c_void>(next(&NEXT, name));
            // SAFETY: the C library's function has this type.
            let next = unsafe { std::mem::transmute::<*const c_void, Next>(address) };
            match strike($function) {
                Some(Effect::Errno(code)) => {
                    set_errno(code);
                    return -1;
                }
                Some(Effect::Short(most)) if $count > 0 => {
                    // SAFETY: there is one.
                    let mut part = unsafe { *$list };
                    part.iov_len = part.iov_len.min(most.max(1));
                    // SAFETY: a part of what the caller promises.
                    return unsafe { next($($before,)* &part, 1 $(, $after)*) };
                }
                _ => {}
            }
            // SAFETY: the caller keeps the promise.
            unsafe { next($($before,)* $list, $count $(, $after)*) }
        }
    )*};
}

interpose_lists! {
    preadv as PREADV => (fd: c_int, [list, count: c_int], offset: i64);
    pwritev as PWRITEV => (fd: c_int, [list, count: c_int], offset: i64);
    process_vm_readv as PROCESS_VM_READV => (
        process: c_int, [local, local_count: c_ulong], remote: *const libc::iovec, remote_count: c_ulong, flags: c_ulong
    );
    process_vm_writev as PROCESS_VM_WRITEV => (
        process: c_int, [local, local_count: c_ulong], remote: *const libc::iovec, remote_count: c_ulong, flags: c_ulong
    );
}

fn is_of_this_program(address: *const c_void) -> bool {
    unsafe extern "C" {
        static __executable_start: u8;
        static etext: u8;
    }
    (&raw const __executable_start..&raw const etext).contains(&address.cast())
}
