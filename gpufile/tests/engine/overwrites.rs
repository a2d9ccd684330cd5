//! Tests of writes over and behind the bytes of a file: while other programs change or watch the file, and when the disk is
//! full.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use gpufile::{Engine, File, IoRange, OpenOptions, Request, RoutePolicy, page_cache};
use testkit::bed::{Bed, folders, pattern};
use testkit::{alone, in_threads};

const MIB: usize = 1 << 20;
const LONG: usize = 6 * MIB + 4321;

fn engine(bed: &Bed) -> Engine {
    Engine::builder().driver(bed.driver.clone()).policy(RoutePolicy::PosixOnly).threads(4).build()
}

fn open(engine: &Engine, path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).engine(engine).open(path).unwrap()
}

fn other(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

/// Runs a test with writes from device memory and from host memory, each on every file system.
fn each(test: impl Fn(&Path, &dyn Fn(&File, &[u8], u64) -> gpufile::Result<()>, &Engine)) {
    for folder in folders() {
        Bed::each(|bed| {
            let engine = engine(bed);
            let folder = folder.path().join(if bed.is_real() { "real" } else { "emulated" });
            fs::create_dir(&folder).unwrap();
            test(&folder.join("host"), &|file, bytes, offset| file.write_all_at(bytes, offset), &engine);
            let from_device = |file: &File, bytes: &[u8], offset| {
                let mut buffer = bed.device.alloc(bytes.len()).unwrap();
                buffer.copy_from_host(0, bytes).unwrap();
                file.write_all_at(&buffer, offset)
            };
            test(&folder.join("device"), &from_device, &engine);
        });
    }
}

#[test]
fn overwrites_of_a_shrinking_file_match_plain_writes() {
    let (old, new) = (pattern(LONG), other(&pattern(LONG)));
    each(|path, write, engine| {
        fs::write(path, &old).unwrap();
        let file = open(engine, path);
        for round in 0..12 {
            file.set_len(0).unwrap();
            fs::write(path, &old).unwrap();
            let end = 100 + round * 511_111;
            let cut = || {
                thread::sleep(Duration::from_micros(150 * round as u64));
                file.set_len(end as u64).unwrap();
            };
            let write = || write(&file, &new, 0).unwrap();
            thread::scope(|scope| {
                let cut = scope.spawn(cut);
                write();
                cut.join().unwrap();
            });
            // Before the cut everything is written. Behind it lie the bytes that were written after the cut. Earlier
            // ones are gone, and are a hole if later ones lie behind them.
            let found = fs::read(path).unwrap();
            assert!(found.len() == end || found.len() == LONG, "{} bytes, cut off at {end}", found.len());
            assert!(found[..end] == new[..end], "up to {end}");
            for (at, byte) in found.iter().enumerate().skip(end) {
                assert!(*byte == new[at] || *byte == 0, "{at}, behind {end}");
            }
        }
    });
}

#[test]
fn overwriting_keeps_bytes_appended_by_others() {
    let (old, new) = (pattern(LONG), other(&pattern(LONG)));
    each(|path, write, engine| {
        fs::write(path, &old).unwrap();
        let file = open(engine, path);
        for round in 0..5 {
            let plain = fs::File::options().write(true).open(path).unwrap();
            let (bytes, end) = if round % 2 == 0 { (&new, LONG) } else { (&old, LONG + 1000 * round) };
            let appended = AtomicBool::new(false);
            let append = || {
                for at in 0..100 {
                    plain.write_all_at(&[7; 100], (end + 100 * at) as u64).unwrap();
                }
                appended.store(true, Ordering::Release);
            };
            thread::scope(|scope| {
                let append = scope.spawn(append);
                write(&file, bytes, 0).unwrap();
                while !appended.load(Ordering::Acquire) {
                    write(&file, bytes, 0).unwrap();
                }
                append.join().unwrap();
            });
            let found = fs::read(path).unwrap();
            assert!(found[..LONG] == **bytes);
            assert!(found[end..end + 10_000].iter().all(|byte| *byte == 7));
        }
    });
}

#[test]
fn overlapping_writes_of_threads_leave_one_writers_bytes() {
    let (old, new) = (pattern(LONG), other(&pattern(LONG)));
    each(|path, _, engine| {
        fs::write(path, &old).unwrap();
        let file = open(engine, path);
        in_threads((0..4).map(|number| {
            let bytes = if number % 2 == 0 { &new } else { &old };
            let file = &file;
            move || (0..3).for_each(|_| file.write_all_at(bytes, 0).unwrap())
        }));
        let found = fs::read(path).unwrap();
        assert_eq!(found.len(), LONG);
        assert!(found.iter().enumerate().all(|(at, byte)| *byte == old[at] || *byte == new[at]));
    });
}

#[test]
fn writes_into_a_hole_keep_zeros_around() {
    let bytes = pattern(2 * MIB);
    each(|path, write, engine| {
        let file = open(engine, path);
        file.set_len(8 * MIB as u64).unwrap();
        write(&file, &bytes, 3 * MIB as u64 + 5).unwrap();
        let found = fs::read(path).unwrap();
        let start = 3 * MIB + 5;
        assert_eq!(found.len(), 8 * MIB);
        assert!(found[start..start + bytes.len()] == bytes);
        assert!(found[..start].iter().chain(&found[start + bytes.len()..]).all(|byte| *byte == 0));
        let stored = fs::metadata(path).unwrap().blocks() as usize * 512;
        assert!(stored < 4 * MIB, "{stored} bytes are stored");
    });
}

#[test]
fn each_overwrite_moves_the_modification_time() {
    let bytes = pattern(LONG);
    each(|path, write, engine| {
        fs::write(path, other(&bytes)).unwrap();
        let file = open(engine, path);
        // The second time, the engine has mapped and written the pages already.
        for len in [LONG, LONG, 2 * MIB, MIB] {
            let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
            write(&file, &bytes[..len], 0).unwrap();
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            assert!(modified > long_ago + Duration::from_secs(1000), "{len} bytes");
        }
    });
}

/// Reports changes of a file (`inotify`).
fn watch(path: &Path) -> fs::File {
    // SAFETY: the call takes an integer.
    let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the path ends with a NUL.
    let watched = unsafe { libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_MODIFY) };
    assert!(watched >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor was just opened, and nobody else owns it.
    unsafe { fs::File::from_raw_fd(fd) }
}

fn next_event(events: &mut fs::File) -> bool {
    let mut poll = libc::pollfd { fd: events.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry.
    let ready = unsafe { libc::poll(&mut poll, 1, 5000) };
    ready == 1 && events.read(&mut [0; 4096]).is_ok_and(|count| count > 0)
}

#[test]
fn the_last_inotify_event_follows_all_overwritten_bytes() {
    let (old, new) = (pattern(LONG), other(&pattern(LONG)));
    each(|path, write, engine| {
        fs::write(path, &old).unwrap();
        let file = open(engine, path);
        for round in 0..10 {
            let bytes = if round % 2 == 0 { &new } else { &old };
            let mut events = watch(path);
            let watcher = || {
                // A watcher that reads the file at each event must not miss the end.
                while next_event(&mut events) {
                    if fs::read(path).unwrap() == *bytes {
                        return true;
                    }
                }
                false
            };
            thread::scope(|scope| {
                let watcher = scope.spawn(watcher);
                write(&file, bytes, 0).unwrap();
                assert!(watcher.join().unwrap(), "round {round}");
            });
        }
    });
}

#[test]
fn long_writes_to_read_only_files_change_nothing() {
    let bytes = pattern(LONG);
    each(|path, write, engine| {
        fs::write(path, &bytes).unwrap();
        let file = OpenOptions::new().read(true).engine(engine).open(path).unwrap();
        for (len, offset) in [(LONG, 0), (2 * MIB, 7), (2 * MIB, LONG as u64 - 10)] {
            let error = write(&file, &other(&bytes[..len]), offset).unwrap_err();
            assert_eq!((error.raw_os_error(), error.bytes_done()), (Some(libc::EBADF), 0), "{error}");
            assert!(fs::read(path).unwrap() == bytes);
        }
    });
}

/// Checks a file after a failed write. The bytes that the error counts as written are there. Behind those are the new
/// bytes, the old ones, or zeros.
fn check_failed_write(path: &Path, error: &gpufile::Error, before: &[u8], bytes: &[u8], offset: usize) {
    let (done, end) = (error.bytes_done(), offset + bytes.len());
    assert!(done < bytes.len(), "{error}");
    let found = fs::read(path).unwrap();
    let longest = before.len().max(end);
    assert!((before.len().max(offset + done)..=longest).contains(&found.len()), "{}: {error}", found.len());
    assert!(found[offset..offset + done] == bytes[..done], "{error}");
    assert!(found[..offset.min(before.len())] == before[..offset.min(before.len())], "{error}");
    for (at, byte) in found.iter().enumerate().skip(offset + done) {
        let old = before.get(at).copied().unwrap_or(0);
        assert!(*byte == old || at < end && *byte == bytes[at - offset], "{at}: {error}");
    }
}

#[test]
fn writes_beyond_the_file_size_limit_keep_bytes_that_fit() {
    alone(|| {
        const LIMIT: usize = 3 * MIB + 123;
        let limit = libc::rlimit { rlim_cur: LIMIT as libc::rlim_t, rlim_max: libc::RLIM_INFINITY };
        let bytes = pattern(LONG);
        each(|path, write, engine| {
            let file = open(engine, path);
            // SAFETY: ignoring a signal runs nothing. The limit outlives the call, and no other test runs here.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
            }
            let fresh = write(&file, &bytes, 0).unwrap_err();
            check_failed_write(path, &fresh, &[], &bytes, 0);
            let before = fs::read(path).unwrap();
            let longer = write(&file, &bytes, 1000).unwrap_err();
            check_failed_write(path, &longer, &before, &bytes, 1000);
            write(&file, &bytes[..LIMIT - MIB], MIB as u64).unwrap();
            for error in [fresh, longer] {
                assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
            }
            let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, ..limit };
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &unlimited) }, 0);
        });
    });
}

/// Mounts a small tmpfs at `folder` for this thread and those that it starts. Returns false where that is not
/// allowed.
fn mount_small_tmpfs(folder: &Path) -> bool {
    let folder = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the call takes integers, and changes this thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return false;
    }
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: all strings end with a NUL. Later mounts stay private to this thread.
    unsafe {
        libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) == 0
            && libc::mount(
                c"tmpfs".as_ptr(),
                folder.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                c"size=4m".as_ptr().cast(),
            ) == 0
    }
}

#[test]
fn writes_to_a_full_file_system_keep_bytes_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    let test = || {
        if !mount_small_tmpfs(folder.path()) {
            return;
        }
        let bytes = pattern(LONG);
        Bed::each(|bed| {
            let engine = engine(bed);
            let from_device = |file: &File, offset| {
                let mut buffer = bed.device.alloc(LONG).unwrap();
                buffer.copy_from_host(0, &bytes).unwrap();
                file.write_all_at(&buffer, offset)
            };
            let from_host = |file: &File, offset| file.write_all_at(&bytes, offset);
            type Write<'a> = &'a dyn Fn(&File, u64) -> gpufile::Result<()>;
            for write in [&from_host as Write<'_>, &from_device] {
                for is_sparse in [false, true] {
                    let path = folder.path().join("full");
                    let file = open(&engine, &path);
                    if is_sparse {
                        // An overwrite of its holes takes room.
                        file.set_len(LONG as u64).unwrap();
                    }
                    let before = vec![0; if is_sparse { LONG } else { 0 }];
                    let error = write(&file, 0).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                    check_failed_write(&path, &error, &before, &bytes, 0);
                    if !is_sparse {
                        let stored = fs::metadata(&path).unwrap().blocks() * 512;
                        assert!(stored <= error.bytes_done().next_multiple_of(4096) as u64, "{stored}");
                    }
                    fs::remove_file(&path).unwrap();
                }
            }
        });
    };
    in_threads([test]);
}

#[test]
fn synced_files_are_overwritten_correctly() {
    let (old, new) = (pattern(LONG), other(&pattern(LONG)));
    each(|path, write, engine| {
        fs::write(path, &old).unwrap();
        let file = open(engine, path);
        let mut expected = old.clone();
        // The test writes the whole, whose mapping stays, and then parts. The neighbours of both ends stay as they
        // were.
        for (round, part) in [0..LONG, 5..LONG - 7, 4096..3 * MIB, 777..2 * MIB + 778].into_iter().enumerate()
        {
            file.sync_all().unwrap();
            let bytes = if round % 2 == 0 { &new } else { &old };
            write(&file, &bytes[part.clone()], part.start as u64).unwrap();
            expected[part.clone()].copy_from_slice(&bytes[part]);
            assert!(fs::read(path).unwrap() == expected, "round {round}");
            file.sync_all().unwrap();
            gpufile::page_cache::evict(&file, 0..u64::MAX).unwrap();
            assert!(fs::read(path).unwrap() == expected, "round {round}, from the disk");
        }
    });
}

#[test]
fn refused_ranges_do_not_change_the_file() {
    Bed::each(|bed| {
        let file = open(&engine(bed), &bed.path("data"));
        let good = IoRange { file_offset: MIB as u64, buffer_offset: 0, len_bytes: MIB };
        let bad = IoRange { file_offset: 2 * MIB as u64, buffer_offset: 0, len_bytes: 64 * MIB };
        file.set_len(MIB as u64).unwrap();
        let written = fs::metadata(bed.path("data")).unwrap();
        file.write_many(&vec![1; MIB], &[good, bad]).unwrap_err();
        let after = fs::metadata(bed.path("data")).unwrap();
        assert_eq!((after.len(), after.blocks()), (written.len(), written.blocks()));
        assert_eq!(
            (after.ctime(), after.ctime_nsec()),
            (written.ctime(), written.ctime_nsec()),
            "nobody touched it"
        );
    });
}

/// Makes each write to a file wait for the storage, as `chattr +S` does. Returns true if the file system can.
fn sync_by_attribute(file: &fs::File) -> bool {
    const FS_SYNC_FL: libc::c_int = 8;
    let mut attributes: libc::c_int = 0;
    // SAFETY: the kernel writes an `int`.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &mut attributes) } != 0 {
        return false;
    }
    attributes |= FS_SYNC_FL;
    // SAFETY: the kernel reads an `int`.
    unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &attributes) == 0 }
}

#[test]
fn writes_to_files_with_sync_attribute_are_durable() {
    let engine = Engine::builder().policy(RoutePolicy::PosixOnly).threads(2).build();
    let bytes = pattern(8 * MIB);
    for folder in folders() {
        let path = folder.path().join("data");
        fs::write(&path, &bytes).unwrap();
        let plain = fs::File::open(&path).unwrap();
        plain.sync_all().unwrap();
        if !sync_by_attribute(&plain) {
            eprintln!("skipped: {} has no attribute for that", folder.path().display());
            continue;
        }
        open(&engine, &path).write_all_at(&other(&bytes)[..], 0).unwrap();
        let found = page_cache::residency(plain.as_fd(), 0..bytes.len() as u64).unwrap();
        assert_eq!((found.dirty.unwrap_or(0), found.writeback.unwrap_or(0)), (0, 0), "{}", path.display());
        assert!(fs::read(&path).unwrap() == other(&bytes));
    }
}

#[test]
fn writes_by_synchronous_descriptors_are_durable() {
    let engine = Engine::builder().policy(RoutePolicy::PosixOnly).threads(2).build();
    let bytes = pattern(8 * MIB);
    for folder in folders() {
        let path = folder.path().join("data");
        fs::write(&path, &bytes).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        // The bytes that the file system counts as unwritten at the end. In memory, these are all bytes.
        let unwritten = |file: &dyn AsFd| {
            let found = page_cache::residency(file.as_fd(), 0..bytes.len() as u64).unwrap();
            (found.dirty, found.writeback)
        };
        for flags in [libc::O_DSYNC, libc::O_SYNC, libc::O_DSYNC | libc::O_DIRECT] {
            let mut options = fs::File::options();
            let opened = options.read(true).write(true).custom_flags(flags).open(&path);
            // Some file systems lack O_DIRECT.
            let Ok(descriptor) = opened else { continue };
            let before = unwritten(&descriptor);
            let file = File::options().engine(&engine).open_fd(descriptor).unwrap();
            // SAFETY: the call takes integers.
            let kept = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETFL) };
            assert_eq!(kept & libc::O_SYNC, flags & libc::O_SYNC, "{flags:o}");
            file.write_all_at(&other(&bytes)[..], 0).unwrap();
            assert_eq!(unwritten(&file), before, "{flags:o} on {}", path.display());
            assert!(fs::read(&path).unwrap() == other(&bytes));
        }
    }
}

#[test]
fn failed_writes_keep_bytes_written_behind_them() {
    const BEHIND: usize = 64 * MIB;
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let engine = engine(&bed);
    // This is more than is worth allocating in advance.
    let source = bed.device.alloc(32 * MIB).unwrap();
    let bytes = pattern(32 * MIB);
    for folder in folders() {
        let path = folder.path().join("data");
        let (failing, behind) = (open(&engine, &path), open(&engine, &path));
        for round in 0..10 {
            failing.set_len(0).unwrap();
            thread::scope(|scope| {
                let writer = scope.spawn(|| behind.write_all_at(&bytes, BEHIND as u64).unwrap());
                // The thread waits until the file has become longer.
                while failing.len_bytes().unwrap() == 0 {}
                emulator.fault("cudaMemcpyAsync", "err=2 times=all");
                // A file that is cut off never becomes that long.
                while !writer.is_finished()
                    && failing.len_bytes().unwrap() < (BEHIND + bytes.len() / 2) as u64
                {
                    failing.write_all_at(&source, (BEHIND + bytes.len()) as u64).unwrap_err();
                }
            });
            emulator.control("clear");
            let found = fs::read(&path).unwrap();
            assert!(
                found.len() >= BEHIND + bytes.len() && found[BEHIND..][..bytes.len()] == bytes,
                "{round}"
            );
        }
    }
}

#[test]
fn failed_writes_keep_bytes_written_before_them() {
    const OFFSET: u64 = 64 * MIB as u64;
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let engine = engine(&bed);
    let source = bed.device.alloc(4 * MIB).unwrap();
    let bytes = pattern(LONG);
    let ranges = [IoRange { file_offset: OFFSET, buffer_offset: 0, len_bytes: 4 * MIB }];
    type Write<'a> = &'a (dyn Fn(&File) -> gpufile::Error + Sync);
    let ways: [(&str, Write); 4] = [
        ("write_all_at", &|file| file.write_all_at(&source, OFFSET).unwrap_err()),
        ("File::write_many", &|file| file.write_many(&source, &ranges).unwrap_err()),
        ("Engine::write_many", &|file| {
            let request = Request { file, buffer: source.slice(..), offset: OFFSET };
            engine.write_many(&[request]).unwrap_err()
        }),
        ("write_all_at_async", &|file| {
            let source = bed.device.alloc(4 * MIB).unwrap();
            file.write_all_at_async(source, OFFSET).wait().0.unwrap_err()
        }),
    ];
    for folder in folders() {
        for (way, write) in ways {
            let path = folder.path().join("data");
            let file = open(&engine, &path);
            file.set_len(0).unwrap();
            thread::scope(|scope| {
                let held = emulator.hold("cudaMemcpyAsync", "err=2 times=all");
                emulator.fault("cudaMemcpyAsync", "err=2 times=all");
                let failing = scope.spawn(|| write(&file));
                // From now on the file may be longer than the written bytes.
                held.wait_for(1);
                file.write_all_at(&bytes, 0).unwrap();
                held.release();
                assert_eq!(failing.join().unwrap().bytes_done(), 0, "{way}");
            });
            emulator.control("clear");
            let found = fs::read(&path).unwrap();
            assert!(found.len() >= LONG && found[..LONG] == bytes, "{way}: {} bytes", found.len());
            assert!(found.len() <= 68 * MIB && found[LONG..].iter().all(|byte| *byte == 0), "{way}");
        }
    }
}

#[test]
fn failed_writes_never_shorten_the_file() {
    let bed = Bed::emulated();
    let source = bed.device.alloc(4 * MIB).unwrap();
    for folder in folders() {
        let path = folder.path().join("data");
        let file = open(&engine(&bed), &path);
        file.write_all_at([1; 100].as_slice(), 0).unwrap();
        bed.emulator.as_ref().unwrap().fault("cudaMemcpyAsync", "err=2 times=all");
        let ranges = [IoRange { file_offset: 64 * MIB as u64, buffer_offset: 0, len_bytes: 4 * MIB }];
        for round in 0..3 {
            match round {
                0 => drop(file.write_all_at(&source, 64 * MIB as u64).unwrap_err()),
                1 => drop(file.write_many(&source, &ranges).unwrap_err()),
                _ => {
                    let source = bed.device.alloc(4 * MIB).unwrap();
                    drop(file.write_all_at_async(source, 64 * MIB as u64).wait().0.unwrap_err());
                }
            }
            let found = fs::read(&path).unwrap();
            assert!((100..=68 * MIB).contains(&found.len()), "{} bytes", found.len());
            assert!(found.iter().enumerate().all(|(at, byte)| *byte == u8::from(at < 100)));
        }
        bed.emulator.as_ref().unwrap().control("clear");
    }
}

#[test]
fn serial_writes_end_at_their_first_failure() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let source = bed.device.alloc(64 * MIB).unwrap();
    for folder in folders() {
        let file = open(&engine(&bed), &folder.path().join("data"));
        let before = emulator.calls("cudaMemcpyAsync");
        emulator.fault("cudaMemcpyAsync", "err=2 after=3 times=all");
        let error = file.write_all_at(&source, 0).unwrap_err();
        emulator.control("clear");
        let copies = emulator.calls("cudaMemcpyAsync") - before;
        // On file systems with many writers, each worker may have begun a chunk.
        assert!(copies < 12, "{copies} copies: {error}");
        assert!(file.len_bytes().unwrap() >= error.bytes_done() as u64, "{error}");
    }
}

fn mappings_of(path: &Path) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(path.to_str().unwrap())).map(str::to_owned).collect()
}

#[test]
fn files_on_disks_are_never_written_through_a_mapping() {
    each(|path, write, engine| {
        fs::write(path, pattern(LONG)).unwrap();
        let file = open(engine, path);
        write(&file, &other(&pattern(LONG)), 0).unwrap();
        // SAFETY: zeros are valid.
        let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` outlives the call.
        assert_eq!(unsafe { libc::fstatfs(file.as_fd().as_raw_fd(), &mut stat) }, 0);
        if stat.f_type != libc::TMPFS_MAGIC {
            assert_eq!(mappings_of(path), [""; 0]);
        }
    });
}

#[test]
fn memory_files_can_be_sealed_after_writes() {
    let engine = Engine::builder().policy(RoutePolicy::PosixOnly).threads(2).build();
    // SAFETY: the name ends with a NUL.
    let fd = unsafe { libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor was just opened, and nobody else owns it.
    let file = File::options().engine(&engine).open_fd(unsafe { OwnedFd::from_raw_fd(fd) }).unwrap();
    let bytes = pattern(LONG);
    file.write_all_at(&other(&bytes)[..], 0).unwrap();
    file.write_all_at(&bytes[5..], 5).unwrap();
    // SAFETY: the call takes integers.
    let sealed = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    assert_eq!(sealed, 0, "{}", io::Error::last_os_error());
    let error = file.write_all_at(&bytes[..], 0).unwrap_err();
    assert_eq!((error.raw_os_error(), error.bytes_done()), (Some(libc::EPERM), 0), "{error}");
    let mut found = vec![0; LONG];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found[5..] == bytes[5..] && found[..5] == other(&bytes[..5]));
}

#[test]
fn mlockall_does_not_lock_written_files() {
    alone(|| {
        let engine = Engine::builder().policy(RoutePolicy::PosixOnly).threads(2).build();
        let bytes = pattern(2 * MIB);
        let is_locked = |path: &Path| {
            let maps = fs::read_to_string("/proc/self/smaps").unwrap();
            let mut of_file = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
            of_file.find_map(|line| line.strip_prefix("VmFlags:")).is_some_and(|flags| flags.contains(" lo"))
        };
        for folder in folders() {
            let path = folder.path().join("data");
            let file = open(&engine, &path);
            // The workers take memory too.
            file.write_all_at(&bytes, 0).unwrap();
            file.set_len(0).unwrap();
            file.set_len(256 * MIB as u64).unwrap();
            // SAFETY: the call takes an integer.
            if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
                return eprintln!("skipped: memory must not be locked");
            }
            file.write_all_at(&bytes, 100 * MIB as u64).unwrap();
            file.write_all_at(&bytes, 256 * MIB as u64).unwrap();
            let is_locked = is_locked(&path);
            // SAFETY: the call takes no argument.
            assert_eq!(unsafe { libc::munlockall() }, 0);
            let stored = fs::metadata(&path).unwrap().blocks() as usize * 512;
            assert!(stored < 16 * MIB, "{stored} bytes are stored");
            assert!(!is_locked, "{}", path.display());
            let mut found = vec![0; bytes.len()];
            file.read_exact_at(&mut found, 100 * MIB as u64).unwrap();
            assert!(found == bytes);
        }
    });
}
