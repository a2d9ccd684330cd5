//! Tests of the choice of `O_DIRECT`, and of a file system that offers it and then refuses it, or fails.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;

use cufile::FileProperties;
use gpufile::{DirectIo, Engine, File, page_cache};
use testkit::bed::{folders, pattern};

const LEN: usize = (1 << 20) + 777;

fn direct_descriptor(path: &Path) -> Option<libc::c_int> {
    descriptor(path, true)
}

fn descriptor(path: &Path, is_direct: bool) -> Option<libc::c_int> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    let of_file = entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == path));
    let mut numbers = of_file.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap());
    // SAFETY: the call takes integers.
    let flags = |fd| unsafe { libc::fcntl(fd, libc::F_GETFL) };
    numbers.find(|fd| flags(*fd) >= 0 && (flags(*fd) & libc::O_DIRECT != 0) == is_direct)
}

fn has_no_o_direct(path: &Path) {
    let properties = FileProperties::of(fs::File::open(path).unwrap()).unwrap();
    assert_eq!(properties.direct_io, None, "{} could be read by O_DIRECT", path.display());
    eprintln!("skipped: {} has no O_DIRECT", path.display());
}

/// Makes a system call fail in this thread when its first argument is this descriptor.
fn fail(call: libc::c_long, fd: libc::c_int, errno: libc::c_int) -> io::Result<()> {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let load = |offset| statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, offset);
    let unless = |k, jf| libc::sock_filter {
        jf,
        ..statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, k)
    };
    let answer = |k| statement((libc::BPF_RET | libc::BPF_K) as u16, k);
    // The filter's data begins with the number of the call. Its first argument comes 16 bytes later.
    let first_argument = 16 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut filter = [
        load(0),
        unless(call as u32, 3),
        load(first_argument),
        unless(fd as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | errno as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let check = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the call takes integers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the program and its filter outlive the call, and the kernel copies them.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
}

#[test]
fn refused_direct_reads_use_the_page_cache_from_then_on() {
    let bytes = pattern(LEN);
    for folder in folders() {
        let path = folder.path().join("file");
        fs::write(&path, &bytes).unwrap();
        let options = File::options().read(true).direct_read(DirectIo::Always);
        let file = options.engine(&Engine::builder().build()).open(&path).unwrap();
        let cached = || page_cache::residency(&file, 0..LEN as u64).unwrap().cached;
        let read = || {
            let mut read = vec![0; LEN - 5];
            file.inline().read_at(&mut read, 5).unwrap();
            assert!(read == bytes[5..]);
        };
        page_cache::evict(&file, 0..LEN as u64).unwrap();
        let can_drop = cached() == 0;
        read();
        let Some(direct) = direct_descriptor(&path) else {
            has_no_o_direct(&path);
            continue;
        };
        if can_drop {
            assert_eq!(cached(), 0, "O_DIRECT passes the page cache by");
        }
        let in_thread = || {
            fail(libc::SYS_pread64, direct, libc::EINVAL).inspect(|()| {
                read();
                // SAFETY: the call reads nothing.
                assert_eq!(unsafe { libc::pread(direct, std::ptr::null_mut(), 0, 0) }, -1);
                assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
                page_cache::evict(&file, 0..LEN as u64).unwrap();
            })
        };
        if let Err(error) = thread::scope(|scope| scope.spawn(in_thread).join().unwrap()) {
            eprintln!("skipped: no filter: {error}");
            return;
        }
        read();
        assert!(!can_drop || cached() > 0, "O_DIRECT is not tried again");
    }
}

/// Writes a whole file while writes by `O_DIRECT` fail with `errno`. Returns the result and the bytes of the file.
/// Returns `None` without `O_DIRECT` or the filter.
fn write_that_fails(folder: &Path, errno: libc::c_int) -> Option<(gpufile::Result<()>, Vec<u8>, bool)> {
    let path = folder.join(format!("file-{errno}"));
    let options = File::options().read(true).write(true).create(true).direct_write(DirectIo::Always);
    let file = options.engine(&Engine::builder().build()).open(&path).unwrap();
    // The engine opens the descriptor with O_DIRECT when it first needs it.
    file.inline().write_all_at(&vec![1; LEN], 0).unwrap();
    let Some(direct) = direct_descriptor(&path) else {
        has_no_o_direct(&path);
        return None;
    };
    let write =
        || fail(libc::SYS_pwrite64, direct, errno).map(|()| file.inline().write_all_at(&pattern(LEN), 0));
    let outcome = thread::scope(|scope| scope.spawn(write).join().unwrap());
    let outcome = outcome.inspect_err(|error| eprintln!("skipped: no filter: {error}")).ok()?;
    // This thread has no filter. Only the other thread has one.
    file.inline().write_all_at(&vec![7; 4096], 0).unwrap();
    let is_cached = page_cache::residency(&file, 0..4096).unwrap().cached > 0;
    Some((outcome, fs::read(&path).unwrap(), is_cached))
}

#[test]
fn failed_direct_writes_fail_the_write() {
    for folder in folders() {
        for errno in [libc::ENOSPC, libc::EIO, libc::EDQUOT] {
            let Some((outcome, found, _)) = write_that_fails(folder.path(), errno) else { continue };
            let error = outcome.unwrap_err();
            assert_eq!((error.raw_os_error(), error.bytes_done()), (Some(errno), 0), "{error}");
            assert!(found[4096..] == [1; LEN - 4096], "nothing was written past the error");
        }
    }
}

#[test]
fn errors_count_the_bytes_before_an_unaligned_end() {
    for folder in folders() {
        // The write has one chunk, which ends in the middle of a block.
        const LEN: usize = 600_777;
        let path = folder.path().join("end");
        let options = File::options().read(true).write(true).create(true).direct_write(DirectIo::Always);
        let file = options.engine(&Engine::builder().build()).open(&path).unwrap();
        // The engine opens the descriptor with O_DIRECT when it first needs it.
        file.inline().write_all_at(&vec![1; LEN], 0).unwrap();
        if direct_descriptor(&path).is_none() {
            has_no_o_direct(&path);
            continue;
        }
        let plain = descriptor(&path, false).unwrap();
        let write = || {
            fail(libc::SYS_pwrite64, plain, libc::EIO).map(|()| file.inline().write_all_at(&pattern(LEN), 0))
        };
        let error = match thread::scope(|scope| scope.spawn(write).join().unwrap()) {
            Err(error) => return eprintln!("skipped: no filter: {error}"),
            Ok(outcome) => outcome.unwrap_err(),
        };
        let done = error.bytes_done() as usize;
        assert!(error.raw_os_error() == Some(libc::EIO) && (LEN - 4096..LEN).contains(&done), "{error}");
        let found = fs::read(&path).unwrap();
        assert!(found[..done] == pattern(LEN)[..done] && found[done..] == vec![1; LEN - done]);
    }
}

#[test]
fn refused_direct_writes_go_through_the_page_cache() {
    for folder in folders() {
        for errno in [libc::EINVAL, libc::EOPNOTSUPP] {
            let Some((outcome, found, is_cached)) = write_that_fails(folder.path(), errno) else { continue };
            outcome.unwrap();
            assert!(found[4096..] == pattern(LEN)[4096..]);
            assert!(is_cached, "O_DIRECT is not tried again");
        }
    }
}

#[test]
fn only_files_too_long_for_memory_bypass_the_page_cache() {
    let bytes = pattern(LEN);
    for folder in folders() {
        let path = folder.path().join("long");
        fs::write(&path, &bytes).unwrap();
        let engine = Engine::builder().build();
        let residency = |file: &File| page_cache::residency(file, 0..LEN as u64).unwrap();
        // The test opens the file anew each time, as another process would.
        let read = |direct| {
            let file = File::options().read(true).direct_read(direct).engine(&engine).open(&path).unwrap();
            page_cache::evict(&file, 0..LEN as u64).unwrap();
            let can_drop = residency(&file).cached == 0;
            let mut read = vec![0; LEN];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read == bytes);
            (file, can_drop)
        };
        let (file, _) = read(DirectIo::Auto);
        assert!(residency(&file).fraction() == 1.0, "{}: {:?}", path.display(), residency(&file));
        assert_eq!(direct_descriptor(&path), None);
        drop(file);
        // The hole is longer than any memory.
        if fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 43).is_err() {
            eprintln!("skipped: {} has no long files", folder.path().display());
            continue;
        }
        let (file, can_drop) = read(DirectIo::Auto);
        let is_direct = direct_descriptor(&path).is_some();
        assert!(!can_drop || !is_direct || residency(&file).cached == 0, "{}", path.display());
        drop(file);
        let (_file, _) = read(DirectIo::Always);
        assert!(!can_drop || is_direct == direct_descriptor(&path).is_some(), "{}", path.display());
    }
}
