//! Tests of opening gpufile's files: by path and options, by descriptor, and by environment variables.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use gpufile::{Cause, Engine, Error, File, FileProperties, IoRange, RoutePolicy};
use testkit::bed::{Bed, folders, pattern};
use testkit::in_flight::soon;
use testkit::{Emulator, alone, bed};

const LEN: usize = 100_001;

/// Sets variables of the process, which must have no other thread.
fn set(variables: &[(&str, &str)]) {
    for (name, value) in variables {
        // SAFETY: the only test of its process, which has started no thread.
        unsafe { std::env::set_var(name, value) };
    }
}

#[test]
fn only_regular_files_are_mapped() {
    let file = File::open("/dev/null").unwrap();
    let error = file.map().map(drop).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn descriptors_keep_their_access() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let engine = Engine::builder().driver(bed.driver.clone()).build();
        let options = File::options().engine(&engine);

        let file = options.open_fd(bed.file("data", &bytes)).unwrap();
        assert_eq!(file.path(), bed.path("data"));
        let mut buffer = bed.device.alloc(LEN).unwrap();
        file.read_exact_at(&mut buffer, 0).unwrap();
        assert!(buffer.to_vec().unwrap() == bytes);
        file.write_all_at(&buffer, 1).unwrap();
        assert!(fs::read(bed.path("data")).unwrap()[1..] == bytes);

        let only_read = options.open_fd(fs::File::open(bed.path("data")).unwrap()).unwrap();
        let error = only_read.write_all_at(&bytes, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        assert!(error.to_string().contains("without write access"), "{error}");
        let flags = FileProperties::of(&only_read).unwrap().open_flags;
        assert_eq!(flags & libc::O_ACCMODE, libc::O_RDONLY);
    });
}

#[test]
fn borrowed_descriptors_stay_open_and_keep_their_position() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let engine = Engine::builder().driver(bed.driver.clone()).build();
        let mut lent = bed.file("data", &bytes);
        lent.seek(io::SeekFrom::Start(7)).unwrap();
        let file = File::options().engine(&engine).open_borrowed_fd(lent.as_fd()).unwrap();
        assert_eq!(file.path(), bed.path("data"));
        assert_ne!(file.as_fd().as_raw_fd(), lent.as_raw_fd());
        let mut buffer = bed.device.alloc(LEN).unwrap();
        file.read_exact_at(&mut buffer, 0).unwrap();
        let range = |at: usize| IoRange { file_offset: 2 * at as u64, buffer_offset: at, len_bytes: 999 };
        file.write_many(&buffer, &[range(5000), range(0)]).unwrap();
        let (outcome, buffer) = file.read_at_async(buffer, 0).wait();
        assert_eq!(outcome.unwrap(), LEN);
        drop(file);
        assert_eq!(lent.stream_position().unwrap(), 7);
        let mut rest = Vec::new();
        lent.read_to_end(&mut rest).unwrap();
        assert!(rest[..992] == bytes[7..999] && rest[9993..10_992] == bytes[5000..5999]);
        assert!(buffer.to_vec().unwrap()[7..] == rest);

        // The duplicate outlives the descriptor.
        let file = File::options().engine(&engine).open_borrowed_fd(&lent).unwrap();
        drop(lent);
        let future = file.read_at_async(vec![0; LEN], 0);
        drop(file);
        assert!(future.wait().1[7..] == rest);

        let only_read = fs::File::open(bed.path("data")).unwrap();
        let file = File::options().engine(&engine).open_borrowed_fd(&only_read).unwrap();
        assert_eq!(file.write_all_at(&bytes, 0).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let appending = fs::File::options().append(true).open(bed.path("data")).unwrap();
        let error = File::options().open_borrowed_fd(&appending).unwrap_err();
        assert!(error.to_string().contains("O_APPEND"), "{error}");
        assert!((&appending).write(b"more").is_ok());
    });
}

#[test]
fn o_direct_descriptors_transfer_at_any_alignment() {
    for folder in folders() {
        let path = folder.path().join("direct");
        let bytes = pattern(LEN);
        fs::write(&path, &bytes).unwrap();
        let direct = fs::File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
        let Ok(direct) = direct else {
            eprintln!("skipped: {} has no O_DIRECT", folder.path().display());
            continue;
        };
        let file = File::options().open_fd(direct).unwrap();
        let mut read = vec![0; 12_345];
        file.read_exact_at(&mut read, 77).unwrap();
        assert!(read == bytes[77..][..12_345]);
        file.write_all_at(&read[..99], 3).unwrap();
        assert!(fs::read(&path).unwrap()[3..102] == read[..99]);
        assert!(!FileProperties::of(&file).unwrap().is_direct(), "transfers decide for themselves");
    }
}

#[test]
fn descriptors_with_o_append_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let appending = fs::File::options().append(true).create(true).open(&path).unwrap();
    let error = File::options().open_fd(appending).unwrap_err();
    assert!(error.to_string().contains("O_APPEND") && error.to_string().contains("log"), "{error}");
}

#[test]
fn files_are_created_or_truncated_only_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let new = || File::options().write(true).create_new(true).open(&path);
    new().unwrap().write_all_at(b"contents".as_slice(), 0).unwrap();
    assert_eq!(new().unwrap_err().kind(), io::ErrorKind::AlreadyExists);

    let file = File::options().read(true).write(true).create(true).open(&path).unwrap();
    assert_eq!(file.len_bytes().unwrap(), 8);
    let flags = FileProperties::of(&file).unwrap().open_flags;
    assert_eq!(flags & libc::O_ACCMODE, libc::O_RDWR);
    let error = File::options().read(true).truncate(true).open(&path).unwrap_err();
    assert_eq!((error.kind(), fs::read(&path).unwrap().len()), (io::ErrorKind::InvalidInput, 8));
    assert_eq!(File::options().write(true).truncate(true).open(&path).unwrap().len_bytes().unwrap(), 0);
    File::create("/dev/null").unwrap();
}

#[test]
fn open_fails_and_names_a_wrong_variable() {
    alone(|| {
        set(&[("KVIKIO_TASK_SIZE", "4MB")]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"contents").unwrap();
        File::create(&path).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        let error = File::open(&path).unwrap_err();
        assert!(matches!(error, Error::Open { cause: Cause::Invalid(_), .. }), "{error:?}");
        for part in ["KVIKIO_TASK_SIZE", "\"4MB\"", "65536, 64KiB or 4M"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        // An engine that the caller builds ignores the environment.
        File::options().read(true).engine(&Engine::builder().build()).open(&path).unwrap();
    });
}

#[test]
fn only_cufile_only_files_fail_without_libcufile() {
    alone(|| {
        set(&[("CUFILE_LIBRARY", "/nonexistent/libcufile.so"), ("KVIKIO_COMPAT_MODE", "off")]);
        let emulator = Emulator::start();
        let (_, cuda) = bed::libraries(&emulator);
        let settings = gpufile::Settings::from_env().unwrap();
        let engine = Engine::builder().cuda(cuda.clone()).settings(settings).build();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes = pattern(LEN);
        fs::write(&path, &bytes).unwrap();

        let options = File::options().read(true).engine(&engine);
        let error = options.open(&path).unwrap_err();
        assert!(matches!(error.cause(), Cause::NoCufile(_)), "{error:?}");
        assert!(error.to_string().contains("/nonexistent/libcufile.so"), "{error}");
        options.clone().write(true).create(true).truncate(true).open(&path).unwrap_err();
        assert!(fs::read(&path).unwrap() == bytes, "what is refused is not emptied");
        let failed = engine.register(vec![7; LEN]).unwrap_err();
        assert!(failed.to_string().contains("/nonexistent/libcufile.so"), "{failed}");
        assert_eq!(failed.into_value(), [7; LEN]);
        let register = || -> gpufile::Result<_> { Ok(engine.register(Vec::new())?) };
        assert!(matches!(register().unwrap_err().cause(), Cause::NoCufile(_)));

        // These are the meanings of KVIKIO_COMPAT_MODE=auto and on.
        for policy in [RoutePolicy::Auto, RoutePolicy::PosixOnly] {
            let file = options.clone().policy(policy).open(&path).unwrap();
            let mut buffer = cuda.device(0).unwrap().alloc(LEN).unwrap();
            file.read_exact_at(&mut buffer, 0).unwrap();
            assert!(buffer.to_vec().unwrap() == bytes);
            assert!(file.route().why_not_gds().is_some_and(|reason| !reason.is_empty()), "{policy:?}");
        }
    });
}

fn workers() -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("gpufile-")).count()
}

#[test]
fn each_engine_has_separate_workers() {
    alone(|| {
        let bytes = pattern(9 << 20);
        let mut engines = Vec::new();
        for folder in folders() {
            let engine = Engine::builder().threads(3).build();
            // The engine has two files, which share workers.
            for name in ["one", "two"] {
                let options = File::options().read(true).write(true).create(true).engine(&engine);
                let file = options.open(folder.path().join(name)).unwrap();
                file.write_all_at(&bytes, 0).unwrap();
                let mut read = vec![0; bytes.len()];
                file.read_exact_at(&mut read, 0).unwrap();
                assert!(read == bytes);
            }
            engines.push(engine);
            let expected = 3 * engines.len();
            soon("the workers have their names", || workers() == expected);
        }
    });
}

#[test]
fn another_engine_takes_over_an_open_file() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = pattern(100_000);
    fs::write(folder.path().join("data"), &bytes).unwrap();
    let options = File::options().read(true).write(true);
    let file = options.open(folder.path().join("data")).unwrap();
    fs::rename(folder.path().join("data"), folder.path().join("moved")).unwrap();
    let engine = Engine::builder().threads(2).build();
    let other = file.with_engine(&engine).unwrap();
    assert_eq!((other.path(), other.engine().settings().threads), (file.path(), 2));
    let mut read = vec![0; bytes.len()];
    other.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes);
    assert_eq!(engine.stats().host.read_bytes, bytes.len() as u64);
    other.write_all_at(b"changed".as_slice(), 5).unwrap();
    assert_eq!(&fs::read(folder.path().join("moved")).unwrap()[5..12], b"changed");
    // A mapping stays one.
    let mapped = file.map().unwrap().with_engine(&engine).unwrap();
    mapped.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read[5..12], b"changed");
}

#[test]
fn options_set_mode_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("data"), folder.path().join("link"));
    let writing = || File::options().write(true).create(true);
    writing().mode(0o600).open(&path).unwrap().write_all_at(b"bytes".as_slice(), 0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let reading = || File::options().read(true);
    let error = reading().custom_flags(libc::O_NOFOLLOW).open(&link).unwrap_err();
    assert!(
        matches!(&error, Error::Open { cause: Cause::Io(error), .. }
        if error.raw_os_error() == Some(libc::ELOOP)),
        "{error}"
    );
    let mut read = [0; 5];
    // Nothing is aligned, and the transfers succeed.
    let direct = reading().custom_flags(libc::O_DIRECT).open(&link).unwrap();
    direct.read_exact_at(&mut read[..4], 1).unwrap();
    assert_eq!(&read[..4], b"ytes");
    let error = writing().custom_flags(libc::O_APPEND | libc::O_TRUNC).open(&path).unwrap_err();
    assert!(error.to_string().contains("O_APPEND"), "{error}");
    reading().open(&path).unwrap().read_exact_at(&mut read[..], 0).unwrap();
    assert_eq!(&read, b"bytes", "a refused file keeps what it has");
}
