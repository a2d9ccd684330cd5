//! Copies by the program `gpufile` that could lose bytes, files or secrets, and limits of its process.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::program::{command, file, names};
use testkit::folders::{FOLDERS, MODEL, assert_untouched, entries};
use testkit::refusing::{CALLS, ERRORS, RefusingMount};

fn copy(source: &Path, target: &Path) -> Command {
    command([Path::new("cp"), source, target])
}

fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

fn limited(mut command: Command, resource: libc::__rlimit_resource_t, most: u64) -> Command {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    let set = move || {
        // SAFETY: `limit` outlives the call.
        match unsafe { libc::setrlimit(resource, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `set` only makes a call that a child of a fork may make.
    unsafe { command.pre_exec(set) };
    command
}

#[test]
fn copies_have_bytes_beyond_the_stated_length() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (Path::new("/proc/version"), folder.path().join("target"));
    assert_eq!(fs::metadata(source).unwrap().len(), 0);
    for through in ["--buffer=1m", "--gpu=0"] {
        let (status, text) = run(copy(source, &target).args([through, "--verify", "--json"]));
        assert_eq!(status, Some(0), "{text}");
        let bytes = fs::read(source).unwrap();
        assert_eq!(fs::read(&target).unwrap(), bytes);
        assert!(text.contains(&format!("\"bytes\": {},", bytes.len())), "{text}");
    }
}

#[test]
fn copies_touch_only_their_target() {
    let place = tempfile::tempdir().unwrap();
    let source = file(place.path(), "source", 10_000);
    for kind in &FOLDERS {
        let folder = tempfile::tempdir().unwrap();
        (kind.make)(folder.path());
        let (before, target) = (entries(folder.path()), folder.path().join(MODEL));
        // A copy replaces the file that a link leads to, which changes the time of its folder.
        let leads_to = fs::canonicalize(&target).unwrap_or(target.clone());
        let leads_to =
            leads_to.strip_prefix(folder.path().canonicalize().unwrap()).unwrap_or(Path::new(MODEL));
        let is_named = |name: &str| leads_to.starts_with(name);
        for _ in 0..2 {
            let (status, text) = run(&mut copy(&source, &target));
            assert_eq!(status, Some(0), "{}: {text}", kind.kind);
            assert_untouched(kind.kind, &before, &entries(folder.path()), is_named);
            assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap());
        }
    }
}

#[test]
fn commands_without_threads_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let source = file(folder.path(), "source", 10_000);
    fs::set_permissions(&source, fs::Permissions::from_mode(0o666)).unwrap();
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    let model = folder.path().join("model.safetensors");
    fs::write(&model, b"\x08\0\0\0\0\0\0\0{}      ").unwrap();
    let no_thread = "cannot start a thread";
    for (command, status, expected) in [
        (copy(&source, &folder.path().join("target")), 1, no_thread),
        (command([Path::new("load"), Path::new("--host"), &model]), 1, no_thread),
    ] {
        let mut command = limited(command, libc::RLIMIT_NPROC, 1);
        if is_root {
            // The limit does not hold for root.
            command.uid(65534).gid(65534);
        }
        let output = match command.output() {
            // The program may be in a folder of root's alone, or the other user not be known in a namespace.
            Err(_) if is_root => return,
            output => output.unwrap(),
        };
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.code() == Some(status) && text.contains(expected), "{}: {text}", output.status);
    }
}

#[test]
fn sources_named_like_leftovers_stay() {
    // On other file systems there may be no locks.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = |name: &str| folder.path().join(name);
    let (left, other) = (".m.0123456789abcdef.gpufile-tmp", ".n.0123456789abcdef.gpufile-tmp");
    let index = ".m.safetensors.index.json.0123456789abcdef.gpufile-tmp";
    let shard = "m-0123456789abcdef-00001-of-00001.safetensors";
    fs::write(path(index), format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#)).unwrap();
    for source in [left, shard] {
        fs::write(path(source), "precious").unwrap();
        fs::write(path(other), "").unwrap();
        let (status, text) = run(&mut copy(&path(source), &path("rescued")));
        assert_eq!(status, Some(0), "{text}");
        assert!(path(source).exists() && !path(other).exists(), "{:?}", names(folder.path()));
        assert_eq!(fs::read(path("rescued")).unwrap(), b"precious");
        fs::write(path(index), format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#)).unwrap();
    }
}

/// Sets entries of a tag, permissions and a user. Returns whether there can be ACLs.
fn set_acl(path: &Path, name: &str, entries: &[(u16, u16, u32)]) -> bool {
    let (path, name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, user) in entries {
        acl.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        acl.extend(user.to_le_bytes());
    }
    // SAFETY: the names end with a zero byte, and `acl` has as many bytes as the call gets.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), acl.as_ptr().cast(), acl.len(), 0) == 0 }
}

/// Returns `None` if the file has only a mode.
fn acl(path: &Path) -> Option<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let (name, mut acl) = (c"system.posix_acl_access", vec![0_u8; 1000]);
    // SAFETY: the names end with a zero byte, and `acl` has as many bytes as the call gets.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), acl.as_mut_ptr().cast(), acl.len()) };
    acl.truncate(usize::try_from(len).ok()?);
    Some(acl)
}

#[test]
fn copies_let_the_same_users_in() {
    const NONE: u32 = u32::MAX;
    let folder = tempfile::tempdir().unwrap();
    let [source, into] = [file(folder.path(), "source", 1000), folder.path().join("into")];
    fs::create_dir(&into).unwrap();
    let target = into.join("target");
    // New files in the folder let another user in. The group of the source may not read it, although its mode is 670.
    let open = [(1, 7, NONE), (2, 7, 65534), (4, 7, NONE), (0x10, 7, NONE), (0x20, 0, NONE)];
    let private = [(1, 6, NONE), (2, 7, 65534), (4, 0, NONE), (0x10, 7, NONE), (0x20, 0, NONE)];
    if !set_acl(&into, "system.posix_acl_default", &open) {
        return;
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(&source, fs::Permissions::from_mode(0o640)).unwrap();
    for expected in [0o640, 0o670] {
        let (status, text) = run(&mut copy(&source, &target));
        assert_eq!(status, Some(0), "{text}");
        assert_eq!((mode(&target), acl(&target)), (expected, acl(&source)));
        assert!(set_acl(&source, "system.posix_acl_access", &private));
        // The mode of an existing target would limit the ACL.
        fs::remove_file(&target).unwrap();
    }
}

#[test]
fn copies_are_private_and_remembered_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "source", 1_000_000);
    let mut command = copy(&source, &folder.path().join("target"));
    // Opening the copy, the second file, takes a while. After that the copy takes minutes.
    command.env("GPUFILE_COMPAT_MODE", "off").args(["--gpu", "0", "--buffer", "1"]);
    command.env("CUFILE_EMULATOR", "fault cuFileHandleRegister after=1 delay_us=200000");
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // A file that only tries what the mount can do goes at once.
    let mode = loop {
        let created = names(folder.path()).into_iter().find(|name| name != "source");
        thread::sleep(Duration::from_millis(30));
        if let Some(metadata) = created.and_then(|name| fs::metadata(folder.path().join(name)).ok()) {
            break metadata.permissions().mode();
        }
    };
    // SAFETY: takes integers. The child has not been waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) }, 0);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.signal() == Some(libc::SIGTERM) && text.contains("removed the unfinished"),
        "{text}"
    );
    assert_eq!(names(folder.path()), ["source"]);
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn writes_beyond_the_size_limit_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "source", 3_000_000);
    let place = folder.path().to_str().unwrap();
    for command in [copy(&source, &folder.path().join("target")), command(["bench", place, "-s", "64m"])] {
        let (status, text) = run(&mut limited(command, libc::RLIMIT_FSIZE, 1 << 20));
        assert!(status == Some(1) && text.contains("File too large"), "{status:?}: {text}");
        assert_eq!(names(folder.path()), ["source"]);
    }
}

#[test]
fn links_to_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [source, link] = [file(folder.path(), "source", 1000), folder.path().join("link")];
    symlink("nothing", &link).unwrap();
    let (status, text) = run(&mut copy(&source, &link));
    assert!(status == Some(1) && text.contains("a symbolic link to a missing file"), "{text}");
    assert!(link.is_symlink());
    let (status, text) = run(&mut command(["bench", link.to_str().unwrap(), "-s", "1m", "-I", "write"]));
    assert!(status == Some(1) && text.contains("a symbolic link to a missing file"), "{text}");
    assert_eq!(names(folder.path()), ["link", "source"]);
    // A link to itself leads to no place, missing or not.
    fs::remove_file(&link).unwrap();
    symlink("link", &link).unwrap();
    let (status, text) = run(&mut copy(&source, &link));
    assert!(status == Some(1) && text.contains("Too many levels of symbolic links"), "{text}");
}

/// Returns a library whose functions replace those of the C library, and fail like a mount that lacks them.
/// Returns `None` without a C compiler.
fn without(folder: &Path, calls: &str, errno: &str) -> Option<std::path::PathBuf> {
    let (source, library) = (folder.join(format!("{errno}.c")), folder.join(format!("{errno}.so")));
    let text =
        format!("#include <errno.h>\n#define NO(name) int name() {{ errno = {errno}; return -1; }}\n{calls}");
    fs::write(&source, text).unwrap();
    let compiled =
        Command::new("cc").args(["-w", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    compiled.is_ok_and(|status| status.success()).then_some(library)
}

#[test]
fn copies_work_on_mounts_that_lack_calls() {
    for (calls, is_needed) in [
        ("NO(rename) NO(renameat) NO(renameat2)", true),
        ("NO(ftruncate) NO(ftruncate64)", false),
        ("NO(flock)", false),
        ("NO(fsync)", false),
        ("NO(fallocate) NO(fallocate64)", false),
        ("NO(linkat) NO(fchown)", false),
        ("NO(fgetxattr) NO(fsetxattr) NO(fremovexattr)", false),
    ] {
        for errno in ["ENOSYS", "EOPNOTSUPP"] {
            let folder = tempfile::tempdir().unwrap();
            let Some(library) = without(folder.path(), calls, errno) else {
                return eprintln!("skipped: no cc");
            };
            let (source, place) = (folder.path().join("source"), folder.path().join("place"));
            fs::create_dir(&place).unwrap();
            let data = fs::File::create(&source).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&data, &[7; 100_000], 5_000).unwrap();
            // The file ends with a hole.
            data.set_len(5_000_001).unwrap();
            let target = place.join("target");
            fs::write(&target, "old").unwrap();
            let (status, text) = run(copy(&source, &target).env("LD_PRELOAD", &library));
            assert_eq!(names(&place), ["target"], "{calls}: {text}");
            if is_needed {
                assert_eq!(status, Some(1), "{text}");
                assert!(text.contains("this mount renames no files"), "{text}");
                assert_eq!(fs::read(&target).unwrap(), b"old");
            } else {
                assert_eq!(status, Some(0), "{calls} {errno}: {text}");
                assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap(), "{calls}");
            }
        }
    }
}

#[test]
fn copies_on_mounts_that_refuse_calls_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "source", 300_000);
    // With a hole, and another one at its end.
    let sparse = fs::File::options().write(true).open(&source).unwrap();
    sparse.set_len(1_000_000).unwrap();
    sparse.write_all_at(b"data", 700_000).unwrap();
    let bytes = fs::read(&source).unwrap();
    for call in CALLS {
        let Some(mut mount) = RefusingMount::new() else { return };
        let there = mount.path.join("there");
        fs::copy(&source, &there).unwrap();
        for (number, errno) in ERRORS.into_iter().enumerate() {
            let target = mount.path.join(format!("{errno}"));
            let old = (number % 2 == 0).then(|| b"old".to_vec());
            if let Some(old) = &old {
                fs::write(&target, old).unwrap();
            }
            let through = if number == 1 { "--gpu=0" } else { "--buffer=64k" };
            mount.refuse(call, errno);
            let (status, text) = run(copy(&source, &target).arg(through));
            let counts = mount.refuse_nothing();
            let context = format!("{call} {errno}: {text}");
            let fails = match call {
                "rename" | "create" => true,
                // Folders then open, and only their names are unknown.
                "list" => errno != libc::ENOSYS,
                "fsync" | "fsync of folders" | "ftruncate" => errno == libc::EPERM,
                "writes out of order" => true,
                _ => false,
            };
            assert_eq!(status, Some(i32::from(fails)), "{context}");
            assert!(!fails || counts.written_bytes == 0, "{context}");
            assert!(call != "rename" || text.contains("renames no files"), "{context}");
            let found = fs::read(&target).ok();
            assert!(found == if fails { old } else { Some(bytes.clone()) }, "{context}");
            let left = names(&mount.path).into_iter().find(|name| name.ends_with("-tmp"));
            assert_eq!(left, None, "{context}");
            // From the mount.
            let here = folder.path().join("here");
            mount.refuse(call, errno);
            let (status, text) = run(&mut copy(&there, &here));
            assert_eq!(status, Some(0), "{call} {errno}: {text}");
            mount.refuse_nothing();
            assert!(fs::read(&here).unwrap() == bytes, "{call} {errno}");
            fs::remove_file(&here).unwrap();
        }
    }
}
