//! Tests of kernels, file systems and libraries whose answers do not suit: large blocks for `O_DIRECT`, an end before
//! the end of the file, and more bytes than were asked for.
//!
//! The program defines the C library's functions that give these answers. It calls the C library's for the rest.

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpufile::{Cause, DirectIo, Engine, EngineBuilder, Error, File, IoRange, Request, RoutePolicy};
use testkit::bed::{Bed, folders, pattern};

/// The offset alignment that `statx` returns for `O_DIRECT`, in bytes; 0 for the true answer.
static BLOCK_BYTES: AtomicU32 = AtomicU32::new(0);
/// The numbers of direct calls that keep to that alignment, and of others.
static ALIGNED: AtomicUsize = AtomicUsize::new(0);
static UNALIGNED: AtomicUsize = AtomicUsize::new(0);
/// The longest read, in bytes, that [`BEYOND`] does not count; `usize::MAX` counts none. Reads into the memory `OWN` do not
/// count.
static ROOM: AtomicUsize = AtomicUsize::new(usize::MAX);
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static BEYOND: AtomicUsize = AtomicUsize::new(0);
/// The offset at which reads end; `u64::MAX` for the true end.
static END: AtomicU64 = AtomicU64::new(u64::MAX);
/// The number of bytes by which each count exceeds the request; 0 for true counts.
static EXCESS: AtomicUsize = AtomicUsize::new(0);

/// Lets one test at a time give untrue answers, until the result is dropped.
struct Turn(#[expect(dead_code, reason = "held until it is dropped")] MutexGuard<'static, ()>);

fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    Turn(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Drop for Turn {
    fn drop(&mut self) {
        BLOCK_BYTES.store(0, SeqCst);
        END.store(u64::MAX, SeqCst);
        EXCESS.store(0, SeqCst);
        ROOM.store(usize::MAX, SeqCst);
    }
}

fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a string of C.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!found.is_null());
    found
}

/// Changes the answers of `statx`, which has no function of its own in every glibc.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    mask: usize,
    found: usize,
    f: usize,
) -> c_long {
    type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    // SAFETY: the C library passes six words on to the kernel, and the caller has promised what the kernel wants.
    let result = unsafe {
        std::mem::transmute::<*mut c_void, Syscall>(next(c"syscall"))(number, a, b, c, mask, found, f)
    };
    let block_bytes = BLOCK_BYTES.load(SeqCst);
    if number == libc::SYS_statx && result == 0 && block_bytes > 0 {
        // SAFETY: the call has filled it in.
        let found = unsafe { &mut *(found as *mut libc::statx) };
        found.stx_mask |= mask as c_uint & libc::STATX_DIOALIGN;
        (found.stx_dio_mem_align, found.stx_dio_offset_align) = (512, block_bytes);
    }
    result
}

/// Counts a direct call, and returns whether it keeps to the alignment.
fn keeps_to_blocks(fd: c_int, address: usize, len: usize, offset: i64) -> bool {
    let block_bytes = BLOCK_BYTES.load(SeqCst) as usize;
    // SAFETY: the call takes integers.
    let is_direct = || unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_DIRECT != 0;
    if block_bytes == 0 || !is_direct() {
        return true;
    }
    let keeps = (len | offset as usize).is_multiple_of(block_bytes) && address.is_multiple_of(512);
    if keeps { &ALIGNED } else { &UNALIGNED }.fetch_add(1, SeqCst);
    keeps
}

type Moves = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;

#[unsafe(no_mangle)]
unsafe extern "C" fn pread(fd: c_int, memory: *mut c_void, len: usize, offset: i64) -> isize {
    if !keeps_to_blocks(fd, memory.addr(), len, offset) {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    let [start, end] = [0, 1].map(|bound| OWN[bound].load(SeqCst));
    if len > ROOM.load(SeqCst) && !(start..end).contains(&memory.addr()) {
        BEYOND.fetch_add(1, SeqCst);
    }
    let most = END.load(SeqCst).saturating_sub(offset as u64).min(len as u64) as usize;
    // SAFETY: the C library's function has this type. This is a part of what the caller promises.
    let count =
        unsafe { std::mem::transmute::<*mut c_void, Moves>(next(c"pread"))(fd, memory, most, offset) };
    if count > 0 && EXCESS.load(SeqCst) > 0 { (len + EXCESS.load(SeqCst)) as isize } else { count }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, memory: *mut c_void, len: usize, offset: i64) -> isize {
    if !keeps_to_blocks(fd, memory.addr(), len, offset) {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    // SAFETY: the C library's function has this type, and the caller's promise.
    let count =
        unsafe { std::mem::transmute::<*mut c_void, Moves>(next(c"pwrite"))(fd, memory, len, offset) };
    if count > 0 && EXCESS.load(SeqCst) > 0 { (len + EXCESS.load(SeqCst)) as isize } else { count }
}

fn engine(bed: &Bed) -> EngineBuilder {
    Engine::builder().driver(bed.driver.clone())
}

fn open(engine: &Engine, path: &Path, direct: DirectIo) -> File {
    let options = File::options().read(true).write(true).create(true).engine(engine);
    options.policy(RoutePolicy::PosixOnly).direct_read(direct).direct_write(direct).open(path).unwrap()
}

#[test]
fn engines_share_files_with_blocks_beyond_their_buffers() {
    const LEN: usize = (1 << 20) + 77_777;
    let _turn = turn();
    let bed = Bed::emulated();
    let bytes = pattern(LEN);
    let small = engine(&bed).threads(1).bounce_buffer_bytes(4096).chunk_bytes(1 << 20).build();
    let large = engine(&bed).threads(2).build();
    for folder in folders() {
        for block_bytes in [4 << 10, 16 << 10, 64 << 10] {
            BLOCK_BYTES.store(block_bytes, SeqCst);
            let path = folder.path().join("file");
            fs::write(&path, &bytes).unwrap();
            let file = open(&large, &path, DirectIo::Always);
            for (offset, len) in [(1, LEN - 1), (4095, 70_001), (65_537, 1000), (77_777, 1 << 20)] {
                let expected = &bytes[offset..offset + len];
                let (mut host, mut device) = (vec![0; len + 1], bed.device.alloc(len + 3).unwrap());
                // Both engines read into memory at odd addresses.
                for (engine, room_bytes) in [(&small, 6 * 4096), (&large, usize::MAX)] {
                    host.fill(0);
                    let own = host.as_ptr_range();
                    OWN[0].store(own.start.addr(), SeqCst);
                    OWN[1].store(own.end.addr(), SeqCst);
                    ROOM.store(room_bytes, SeqCst);
                    device.fill(0).unwrap();
                    // Chunks of host memory are longer than bounce buffers only in a transfer without a GPU.
                    let of_host = Request { file: &file, buffer: &mut host[1..], offset: offset as u64 };
                    engine.read_many(&mut [of_host]).unwrap();
                    let of_device =
                        Request { file: &file, buffer: device.slice_mut(3..), offset: offset as u64 };
                    engine.read_many(&mut [of_device]).unwrap();
                    ROOM.store(usize::MAX, SeqCst);
                    assert!(host[1..] == *expected, "{len} bytes at {offset}, blocks of {block_bytes}");
                    assert!(device.to_vec().unwrap()[3..] == *expected, "{len} bytes at {offset}");
                    // The same bytes go back to a file of zeros.
                    let copy = open(&large, &folder.path().join("copy"), DirectIo::Always);
                    copy.set_len(0).unwrap();
                    let request = |buffer| Request { file: &copy, buffer, offset: offset as u64 };
                    for buffer in [(&host[1..]).into(), device.slice(3..)] {
                        copy.set_len(0).unwrap();
                        engine.write_many(&[request(buffer)]).unwrap();
                        let written = fs::read(copy.path()).unwrap();
                        assert!(written[offset..] == *expected, "{len} bytes at {offset}");
                        assert!(written[..offset].iter().all(|byte| *byte == 0));
                    }
                }
            }
        }
    }
    assert_eq!(BEYOND.load(SeqCst), 0, "reads beyond a bounce buffer");
    assert_eq!(UNALIGNED.load(SeqCst), 0, "calls that the file system would refuse");
    eprintln!("{} direct calls", ALIGNED.load(SeqCst));
}

/// Returns the number of bytes before the failure, and the place where the read ended, according to the error.
fn early_end(error: &Error) -> (usize, u64, u64) {
    match error.cause() {
        Cause::EndedEarly { at, end } => (error.bytes_done(), *at, *end),
        cause => panic!("{cause}"),
    }
}

#[test]
fn reads_that_end_before_the_file_are_errors() {
    const LEN: usize = 300_000;
    const STOP: u64 = 100_000;
    let _turn = turn();
    let bed = Bed::emulated();
    let bytes = pattern(LEN);
    for folder in folders() {
        let path = folder.path().join("file");
        fs::write(&path, &bytes).unwrap();
        let end = LEN as u64;
        for direct in [DirectIo::Never, DirectIo::Always] {
            let file = open(&engine(&bed).threads(2).build(), &path, direct);
            END.store(STOP, SeqCst);
            let mut host = vec![0; LEN];
            let error = file.read_at(&mut host, 0).unwrap_err();
            assert_eq!(early_end(&error), (STOP as usize, STOP, end), "{direct:?}: {error}");
            assert_eq!(early_end(&file.inline().read_at(&mut host, 5).unwrap_err()), (99_995, STOP, end));
            assert_eq!(early_end(&file.read_at(&mut host[..10], 99_995).unwrap_err()), (5, STOP, end));
            assert_eq!(early_end(&file.read_at(&mut host[..10], STOP).unwrap_err()), (0, STOP, end));
            let mut device = bed.device.alloc(LEN).unwrap();
            let error = file.read_at(&mut device, 0).unwrap_err();
            assert_eq!(early_end(&error), (STOP as usize, STOP, end));
            assert_eq!(
                early_end(&file.read_at(&mut device.slice_mut(..9), STOP).unwrap_err()),
                (0, STOP, end)
            );
            let text = error.to_string();
            assert!(text.contains("100000") && text.contains(path.to_str().unwrap()), "{text}");
            let ranges: Vec<_> = (0..30)
                .map(|part| IoRange {
                    file_offset: part * 10_000,
                    buffer_offset: part as usize * 10_000,
                    len_bytes: 9_999,
                })
                .collect();
            let error = file.read_many(&mut device, &ranges).unwrap_err();
            assert!(matches!(error, Error::Entry { entry: 10, .. }), "{error}");
            assert_eq!(early_end(&error), (0, STOP, end));
            let outcomes = file.read_many_each(&mut host, &ranges).unwrap();
            assert!(outcomes[..10].iter().all(Result::is_ok));
            assert!(outcomes[10..].iter().all(|outcome| early_end(outcome.as_ref().unwrap_err()).2 == end));
            let stream = bed.device.stream().unwrap();
            let (outcome, _) = file.read_at_on_stream(&stream, bed.device.alloc(LEN).unwrap(), 0).wait();
            assert_eq!(early_end(&outcome.unwrap_err()), (STOP as usize, STOP, end));
            let (outcome, _) = file.read_at_async(vec![0; LEN], 0).wait();
            assert_eq!(early_end(&outcome.unwrap_err()), (STOP as usize, STOP, end));
            END.store(u64::MAX, SeqCst);
            // The true end is still no error.
            assert_eq!(file.read_at(&mut host, 1000).unwrap(), LEN - 1000);
            assert_eq!(file.read_at(&mut host, end).unwrap(), 0);
        }
    }
}

#[test]
fn cufile_reads_that_end_before_the_file_are_errors() {
    const LEN: usize = 9_000_001;
    let _turn = turn();
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    bed.file("file", &pattern(LEN));
    let options = File::options().read(true).policy(RoutePolicy::RequireCufile);
    let file = options.engine(&engine(&bed).threads(2).build()).open(bed.path("file")).unwrap();
    let mut device = bed.device.alloc(LEN + 100).unwrap();
    assert_eq!(file.read_at(&mut device, 0).unwrap(), LEN);
    emulator.control("fault cuFileRead times=all ret=0 after=3");
    let error = file.read_at(&mut device, 0).unwrap_err();
    let (done, at, end) = early_end(&error);
    assert_eq!((done as u64, end), (at, LEN as u64), "{error}");
    let error = file.read_at(&mut device, 7).unwrap_err();
    assert_eq!(early_end(&error), (0, 7, LEN as u64));
    let range = IoRange { file_offset: 20, buffer_offset: 0, len_bytes: 1 << 20 };
    assert_eq!(early_end(&file.read_many(&mut device, &[range]).unwrap_err()), (0, 20, LEN as u64));
    let stream = bed.device.stream().unwrap();
    let (outcome, _) = file.read_at_on_stream(&stream, bed.device.alloc(LEN).unwrap(), 0).wait();
    assert_eq!(early_end(&outcome.unwrap_err()), (0, 0, LEN as u64));
    assert_eq!(file.read_at(&mut device, LEN as u64).unwrap(), 0);
    emulator.control("clear");
    assert_eq!(file.read_at(&mut device, 0).unwrap(), LEN);
}

#[test]
fn counts_beyond_the_request_are_eio() {
    const LEN: usize = 100_000;
    let _turn = turn();
    let bed = Bed::emulated();
    bed.file("file", &pattern(LEN));
    let posix = open(&engine(&bed).build(), &bed.path("file"), DirectIo::Never);
    let policy = RoutePolicy::RequireCufile;
    let options = File::options().read(true).write(true).policy(policy);
    let cufile = options.engine(&engine(&bed).build()).open(bed.path("file")).unwrap();
    let mut device = bed.device.alloc(LEN / 2).unwrap();
    let mut host = vec![0; LEN / 2];
    let is_eio = |result: gpufile::Result<()>| {
        let error = result.unwrap_err();
        assert_eq!((error.raw_os_error(), error.bytes_done()), (Some(libc::EIO), 0), "{error}");
    };
    for excess in [1, 999_999_999] {
        EXCESS.store(excess, SeqCst);
        is_eio(posix.read_at(&mut host, 0).map(drop));
        is_eio(posix.read_at(&mut device, 0).map(drop));
        is_eio(posix.write_all_at(&host, 0));
        is_eio(posix.write_all_at(&device, 0));
        EXCESS.store(0, SeqCst);
        let emulator = bed.emulator.as_ref().unwrap();
        for function in ["cuFileRead", "cuFileWrite"] {
            emulator.control(&format!("fault {function} times=all ret={}", LEN + excess));
        }
        is_eio(cufile.read_at(&mut device, 0).map(drop));
        is_eio(cufile.write_all_at(&device, 0));
        emulator.control("clear");
    }
    assert_eq!(posix.read_at(&mut host, 0).unwrap(), LEN / 2);
}
