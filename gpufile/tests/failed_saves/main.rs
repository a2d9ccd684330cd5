//! Walks over the steps of each save, and lets each fail in turn. docs/saves.md has the outcomes, as a table. Then takes each
//! call away in turn, as on a mount that lacks it. `refusing` does so by a mount.
//!
//! Functions of this file replace the C library's. With `GPUFILE_TEST_TABLES=FILE` the test writes the tables.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

mod refusing;

use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, Error, InPlace, SaveOptions, gguf, npy};
use testkit::in_flight::soon;
use testkit::this_test;

const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00002.gguf";

/// The calls that change a folder, and the call that fails.
struct Plan {
    folder: PathBuf,
    old: BTreeSet<OsString>,
    steps: Vec<String>,
    fails: Fails,
    /// Set when a write has failed. The engine tries again otherwise.
    is_full: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Fails {
    Nothing,
    Once(usize),
    /// The step of this number, and all after it.
    From(usize),
}

static PLAN: Mutex<Option<Plan>> = Mutex::new(None);

fn plan() -> MutexGuard<'static, Option<Plan>> {
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path_of(fd: c_int) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

impl Plan {
    fn kind(&self, name: &OsStr) -> &'static str {
        let is_old = self.old.contains(name);
        match name.as_bytes() {
            name if name.ends_with(b".gpufile-tmp") => "a temporary file",
            name if name.ends_with(b".gpufile-lock") => "the lock",
            name if name.ends_with(b".gpufile-old") => "an old file",
            name if name == FIRST.as_bytes() => "the first file",
            name if name.ends_with(b".gguf") => "the other file",
            name if name == INDEX.as_bytes() => "the index",
            name if name.starts_with(b"model-") && is_old => "an old shard",
            name if name.starts_with(b"model-") => "a shard",
            _ => "the file",
        }
    }

    /// Notes a step. Returns the errno if it fails.
    fn note(&mut self, step: String) -> Option<c_int> {
        let number = self.steps.len();
        self.steps.push(step);
        let writes = self.steps[number].starts_with("write");
        match self.fails {
            Fails::Once(failing) if failing == number => {
                self.is_full = writes;
                Some(libc::EIO)
            }
            _ if writes && self.is_full => Some(libc::EIO),
            Fails::From(failing) if failing <= number => Some(libc::EROFS),
            _ => None,
        }
    }
}

/// Notes a step on a name in a folder. Returns true if it fails.
fn fails(folder: c_int, name: *const c_char, verb: &str) -> bool {
    // SAFETY: the caller's string, as for the C library's function.
    let name = OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    let mut plan = plan();
    let Some(plan) = plan.as_mut().filter(|plan| plan.folder == path_of(folder)) else { return false };
    set_errno(plan.note(format!("{verb} {}", plan.kind(name))))
}

/// Notes a step on an open file, or on the folder. Returns true if it fails.
fn fails_on_file(fd: c_int, verb: &str) -> bool {
    let mut plan = plan();
    let Some(plan) = plan.as_mut() else { return false };
    let path = path_of(fd);
    let name = path.file_name().unwrap_or_default();
    let errno = match () {
        () if path == plan.folder => plan.note(format!("{verb} the folder")),
        () if path.parent() == Some(&plan.folder) => plan.note(format!("{verb} {}", plan.kind(name))),
        () => None,
    };
    set_errno(errno)
}

/// The call that all folders of this process lack, and its errno.
static MISSING: OnceLock<Option<(String, c_int)>> = OnceLock::new();
static WRITES: AtomicUsize = AtomicUsize::new(0);

/// Returns true if this process has no such call for descriptors, with the errno set.
fn is_missing(call: &str) -> bool {
    let missing = MISSING.get().and_then(Option::as_ref).filter(|(missing, _)| missing == call);
    set_errno(missing.map(|(_, errno)| *errno))
}

fn set_errno(errno: Option<c_int>) -> bool {
    if let Some(errno) = errno {
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = errno };
    }
    errno.is_some()
}

#[unsafe(no_mangle)]
extern "C" fn openat(folder: c_int, name: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    if flags & libc::O_CREAT != 0 && fails(folder, name, "create") {
        return -1;
    }
    // SAFETY: the C library's function does the same, with the same contract.
    unsafe { libc::syscall(libc::SYS_openat, folder, name, flags, mode) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn renameat(old: c_int, from: *const c_char, new: c_int, to: *const c_char) -> c_int {
    if is_missing("rename") || fails(new, to, "rename to") {
        return -1;
    }
    // SAFETY: the C library's function does the same, with the same contract.
    unsafe { libc::syscall(libc::SYS_renameat2, old, from, new, to, 0) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn unlinkat(folder: c_int, name: *const c_char, flags: c_int) -> c_int {
    if is_missing("removal") || fails(folder, name, "remove") {
        return -1;
    }
    // SAFETY: the C library's function does the same, with the same contract.
    unsafe { libc::syscall(libc::SYS_unlinkat, folder, name, flags) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    let is_folder = fs::metadata(format!("/proc/self/fd/{fd}")).is_ok_and(|status| status.is_dir());
    if is_missing(if is_folder { "fsync of folders" } else { "fsync" }) || fails_on_file(fd, "sync") {
        return -1;
    }
    // SAFETY: the C library's function does the same, with the same contract.
    unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn pwrite(fd: c_int, bytes: *const c_void, len: usize, offset: i64) -> isize {
    WRITES.fetch_add(1, Ordering::Relaxed);
    if fails_on_file(fd, "write") {
        return -1;
    }
    // SAFETY: the C library's function does the same, with the same contract.
    unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes, len, offset) as isize }
}

#[unsafe(no_mangle)]
extern "C" fn pwritev(fd: c_int, list: *const libc::iovec, count: c_int, offset: i64) -> isize {
    WRITES.fetch_add(1, Ordering::Relaxed);
    if fails_on_file(fd, "write") {
        return -1;
    }
    // SAFETY: the C library's function does the same, with the same contract.
    unsafe { libc::syscall(libc::SYS_pwritev, fd, list, count, offset, 0) as isize }
}

/// Defines functions of the C library that a mount can lack.
macro_rules! can_be_missing {
    ($($call:literal: $name:ident($($argument:ident: $type:ty),*) = $number:ident;)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> c_int {
            if is_missing($call) {
                return -1;
            }
            // SAFETY: the C library's function does the same, with the same contract.
            unsafe { libc::syscall(libc::$number, $($argument),*) as c_int }
        })*
    };
}

can_be_missing! {
    "flock": flock(fd: c_int, operation: c_int) = SYS_flock;
    "ftruncate": ftruncate64(fd: c_int, len: i64) = SYS_ftruncate;
    "fallocate": fallocate64(fd: c_int, mode: c_int, offset: i64, len: i64) = SYS_fallocate;
    "chmod": fchmod(fd: c_int, mode: libc::mode_t) = SYS_fchmod;
    "chown": fchown(fd: c_int, user: u32, group: u32) = SYS_fchown;
    "link": linkat(old: c_int, from: *const c_char, new: c_int, to: *const c_char, flags: c_int) = SYS_linkat;
    "attributes": fremovexattr(fd: c_int, name: *const c_char) = SYS_fremovexattr;
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Array,
    Model,
    /// A GGUF model, split if it has several files.
    Split,
}

/// A save: the numbers of files before and after it. No files before are no model; an array has one.
#[derive(Debug, Clone, Copy)]
struct Case {
    title: &'static str,
    old: usize,
    new: usize,
    kind: Kind,
    removes: bool,
}

const CASES: [Case; 9] = [
    Case { title: "One file (npy, Zarr, GGUF, model)", old: 1, new: 1, kind: Kind::Array, removes: false },
    Case { title: "One file (npy, Zarr, GGUF, model)", old: 1, new: 1, kind: Kind::Model, removes: false },
    Case { title: "Two files, the first or over two", old: 0, new: 2, kind: Kind::Model, removes: false },
    Case { title: "Two files, the first or over two", old: 2, new: 2, kind: Kind::Model, removes: false },
    Case { title: "Two files over two, removing these", old: 2, new: 2, kind: Kind::Model, removes: true },
    Case { title: "Two files, removing one", old: 1, new: 2, kind: Kind::Model, removes: true },
    Case { title: "One file, removing two", old: 2, new: 1, kind: Kind::Model, removes: true },
    Case {
        title: "A split GGUF model of two files, the first",
        old: 0,
        new: 2,
        kind: Kind::Split,
        removes: false,
    },
    Case { title: "A split GGUF model over another", old: 2, new: 2, kind: Kind::Split, removes: false },
];

impl Case {
    fn path(self, folder: &Path) -> PathBuf {
        folder.join(match self.kind {
            Kind::Array => "array.npy",
            Kind::Model => MODEL,
            Kind::Split => FIRST,
        })
    }

    fn opened(self, folder: &Path, files: usize) -> PathBuf {
        if self.kind == Kind::Model && files > 1 { folder.join(INDEX) } else { self.path(folder) }
    }

    fn save(self, folder: &Path, byte: u8) -> Result<(), Error> {
        let path = self.path(folder);
        let count = if byte == b'o' { self.old } else { self.new };
        let names: Vec<_> = (0..count).map(|number| format!("{number}")).collect();
        let bytes = [byte];
        let options = SaveOptions::new().shard_bytes(1).remove_old_model(self.removes);
        match self.kind {
            Kind::Array => npy::write(path, "|u1", &[1], bytes.as_slice(), &SaveOptions::new()).map(drop),
            Kind::Model => {
                let tensor = |name| TensorData::new(name, Dtype::U8, &[1], bytes.as_slice());
                let tensors: Vec<_> = names.iter().map(|name| tensor(name)).collect();
                safetensors::save(path, &tensors, &options).map(drop)
            }
            Kind::Split => {
                let tensor = |name| gguf::TensorData::new(name, gguf::GgmlType::I8, &[1], bytes.as_slice());
                let tensors: Vec<_> = names.iter().map(|name| tensor(name)).collect();
                let path = folder.join("model.gguf");
                gguf::save_split(path, &gguf::Metadata::new(), &tensors, &options).map(drop)
            }
        }
    }

    /// Makes a folder with the old data. Returns the path that opens it too.
    fn prepared(self) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        if self.old > 0 {
            self.save(folder.path(), b'o').unwrap();
        }
        let opened = self.opened(folder.path(), self.old);
        (folder, opened)
    }

    /// Returns the byte of which all data at a path is; `None` if there is no file.
    fn found(self, path: &Path) -> Option<u8> {
        if !path.exists() {
            return None;
        }
        let bytes: Vec<u8> = match self.kind {
            Kind::Array => npy::NpyFile::open(path).unwrap().read_to_host().unwrap(),
            Kind::Model => {
                let model = Checkpoint::open(path).unwrap();
                model.tensors().flat_map(|tensor| model.read_tensor(tensor.name).unwrap()).collect()
            }
            Kind::Split => {
                let model = gguf::Model::open(path).unwrap();
                model.tensors().flat_map(|tensor| model.read_tensor(tensor.name).unwrap()).collect()
            }
        };
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "bytes of both");
        Some(bytes[0])
    }

    /// Saves while a step fails. Returns the steps, the outcome in words, and the words for what was left.
    fn outcome(self, fails: Fails) -> (Vec<String>, String) {
        let (place, opened) = self.prepared();
        let folder = place.path().canonicalize().unwrap();
        let old = names(&folder);
        *plan() =
            Some(Plan { folder: folder.clone(), old: old.clone(), steps: Vec::new(), fails, is_full: false });
        let saved = self.save(place.path(), b'n');
        let done = plan().take().unwrap();
        let now = names(&folder);
        let path = self.path(place.path());
        let mut text = String::new();
        match &saved {
            Ok(()) => {
                assert_eq!(self.found(&self.opened(place.path(), self.new)), Some(b'n'));
                let opens = self.kind != Kind::Model || self.found(place.path()) == Some(b'n');
                assert!(opens, "the folder opens too");
                text += "saved";
            }
            Err(Error::Save { path: named, error, in_place, left, .. }) => {
                assert_eq!(*named, path);
                let shown = saved.as_ref().unwrap_err().to_string();
                assert!(!error.to_string().contains(".gpufile-tmp"), "{error}");
                let (at, expected, word) = match in_place {
                    InPlace::Old => (&opened, Some(b'o').filter(|_| self.old > 0), "old"),
                    InPlace::New(at) => (at, Some(b'n'), "new"),
                    InPlace::Neither => (&opened, None, "neither"),
                    other => panic!("{other:?}"),
                };
                assert_eq!(self.found(at), expected, "{shown}");
                text += word;
                let left: BTreeSet<_> =
                    left.iter().map(|path| path.file_name().unwrap().to_owned()).collect();
                let mut expected: BTreeSet<_> = now.difference(&old).cloned().collect();
                for name in in_use(at).into_iter().filter(|_| *in_place != InPlace::Neither) {
                    if !left.contains(&name) {
                        expected.remove(&name);
                    }
                }
                if *in_place == InPlace::Neither {
                    // The old files are whole, under the names that the error lists.
                    let is_old = |name: &&OsString| self.old_name(name).is_some();
                    for name in now.iter().filter(is_old) {
                        let path = folder.join(self.old_name(name).unwrap());
                        assert!(left.contains(name) && shown.contains("gpufile-old"), "{shown}");
                        fs::copy(folder.join(name), path).unwrap();
                    }
                    assert_eq!(self.found(&opened), Some(b'o'), "{shown}");
                }
                expected.retain(|name| done.kind(name) != "the lock");
                assert!(left.is_superset(&expected), "{shown}: {left:?}, {expected:?}");
                let mut kinds: Vec<_> = left.iter().map(|name| done.kind(name)).collect();
                kinds.sort();
                kinds.dedup();
                if !kinds.is_empty() {
                    write!(text, "; left {}", kinds.join(", ")).unwrap();
                }
            }
            Err(error) => panic!("{error}"),
        }
        // The next save succeeds, and removes the temporary files. A process that another test starts has their locks for a moment.
        let is_ours = |name: &OsString| name.as_bytes().starts_with(b".") && self.old_name(name).is_none();
        soon("no temporary file is left", || {
            self.save(place.path(), b'n').unwrap();
            !names(&folder).iter().any(is_ours)
        });
        let after = names(&folder);
        assert!(self.removes || after.is_superset(&old), "after {text}: {after:?}");
        (done.steps, text)
    }

    /// Returns the name that an old file had; `None` for names of other files.
    fn old_name(self, name: &OsStr) -> Option<String> {
        let aside = name.to_str().unwrap().strip_prefix('.')?.strip_suffix(".gpufile-old")?;
        Some(aside[..aside.len() - ".0123456789abcdef".len()].to_owned())
    }

    fn table(self) -> String {
        let (steps, text) = self.outcome(Fails::Nothing);
        assert_eq!(text, "saved");
        let mut table = format!(
            "### {}\n\n| step | it fails | it and all later steps fail |\n|---|---|---|\n",
            self.title
        );
        let mut rows: Vec<(Vec<String>, [String; 2])> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let outcomes = [Fails::Once(number), Fails::From(number)].map(|fails| self.outcome(fails).1);
            match rows.last_mut() {
                Some((steps, last)) if *last == outcomes && steps.contains(&step) => {}
                Some((steps, last)) if *last == outcomes => steps.push(step),
                _ => rows.push((vec![step], outcomes)),
            }
        }
        for (steps, [once, from]) in rows {
            writeln!(table, "| {} | {once} | {from} |", steps.join(", ")).unwrap();
        }
        table
    }
}

fn in_use(at: &Path) -> BTreeSet<OsString> {
    let mut names = BTreeSet::from([at.file_name().unwrap().to_owned()]);
    if at.ends_with(FIRST) {
        let model = gguf::Model::open(at);
        let files = model.iter().flat_map(|model| model.files());
        names.extend(files.map(|(file, _)| file.path().file_name().unwrap().to_owned()));
    }
    if at.ends_with(INDEX) {
        let model = Checkpoint::open(at).unwrap();
        names.extend(model.files().map(|(file, _)| file.path().file_name().unwrap().to_owned()));
    }
    names
}

fn names(folder: &Path) -> BTreeSet<OsString> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn failed_saves_leave_what_the_table_says() {
    let tables: Vec<_> = CASES.iter().map(|case| case.table()).collect();
    if let Some(file) = std::env::var_os("GPUFILE_TEST_TABLES") {
        fs::write(file, tables.join("\n")).unwrap();
    }
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/saves.md");
    let document = fs::read_to_string(document).unwrap();
    for table in tables {
        assert!(document.contains(&table), "docs/saves.md lacks this table:\n{table}");
    }
}

/// The variable that takes a call away from this process.
const LACKS: &str = "GPUFILE_TEST_LACKS";

/// The calls that a mount can lack, and whether saves need them.
const CALLS: [(&str, bool); 10] = [
    ("rename", true),
    ("ftruncate", false),
    ("fallocate", false),
    ("flock", false),
    ("fsync", false),
    ("fsync of folders", false),
    ("chmod", false),
    ("chown", false),
    ("link", false),
    ("attributes", false),
];

const PATHS: [&str; 6] = [
    "a.npy",
    "one.safetensors",
    INDEX,
    "both.safetensors.index.json",
    "one.gguf",
    "split-00001-of-00002.gguf",
];

/// Saves data of this byte in each way. Returns the outcome of each, with its path.
fn save_each(folder: &Path, byte: u8, removes: bool) -> Vec<(PathBuf, Result<(), Error>)> {
    let bytes = [byte; 3000];
    let options = SaveOptions::new().remove_old_model(removes);
    let tensors = ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[3000], &bytes[..]));
    let ggufs = ["a", "b"].map(|name| gguf::TensorData::new(name, gguf::GgmlType::I8, &[3000], &bytes[..]));
    let [several, both, split] =
        ["model.safetensors", "both.safetensors", "split.gguf"].map(|name| folder.join(name));
    let [array, one, index, both_index, single, first] = PATHS.map(|name| folder.join(name));
    let shards = options.clone().shard_bytes(3000);
    let metadata = gguf::Metadata::new();
    let parts = [&tensors[..1], &tensors[1..]];
    vec![
        (array.clone(), npy::write(&array, "|u1", &[3000], &bytes[..], &options).map(drop)),
        (one.clone(), safetensors::save(&one, &tensors, &options).map(drop)),
        (index, safetensors::save(&several, &tensors, &shards).map(drop)),
        (both_index, safetensors::save_shards(&both, &parts, &options).map(drop)),
        (single.clone(), gguf::save(&single, &metadata, &ggufs, &options).map(drop)),
        (first, gguf::save_split(&split, &metadata, &ggufs, &shards).map(drop)),
    ]
}

fn byte_at(path: &Path) -> Option<u8> {
    if !path.exists() {
        return None;
    }
    let bytes: Vec<u8> = match path.extension().and_then(OsStr::to_str).unwrap() {
        "npy" => npy::NpyFile::open(path).unwrap().read_to_host().unwrap(),
        "gguf" => {
            let model = gguf::Model::open(path).unwrap();
            ["a", "b"].iter().flat_map(|name| model.read_tensor(name).unwrap()).collect()
        }
        _ => {
            let model = Checkpoint::open(path).unwrap();
            ["a", "b"].iter().flat_map(|name| model.read_tensor(name).unwrap()).collect()
        }
    };
    assert!(bytes.len() >= 3000 && bytes.iter().all(|byte| *byte == bytes[0]), "bytes of both");
    Some(bytes[0])
}

#[test]
fn mounts_without_a_call_keep_old_or_new_files() {
    if let Ok(lacks) = std::env::var(LACKS) {
        let mut words = lacks.split('/');
        let (call, errno) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        let folder = PathBuf::from(words.map(|part| format!("/{part}")).collect::<String>());
        let is_needed = CALLS.iter().any(|(known, is_needed)| *known == call && *is_needed);
        MISSING.set(Some((call.to_owned(), errno))).unwrap();
        for (round, removes) in [(b'n', false), (b'm', true)] {
            let before: Vec<_> = names(&folder).into_iter().collect();
            WRITES.store(0, Ordering::Relaxed);
            for (path, saved) in save_each(&folder, round, removes) {
                match saved {
                    Ok(()) => assert_eq!(byte_at(&path), Some(round), "{call}: {path:?}"),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(
                            is_needed && (call != "rename" || text.contains("renames no files")),
                            "{call}: {text}"
                        );
                        assert!(text.contains("nothing was replaced"), "{text}");
                        assert_ne!(byte_at(&path), Some(round), "{call}: {path:?}");
                    }
                }
            }
            if is_needed {
                assert_eq!(WRITES.load(Ordering::Relaxed), 0, "the save fails before it writes");
                assert_eq!(names(&folder).into_iter().collect::<Vec<_>>(), before);
            }
            let left = names(&folder).into_iter().find(|name| name.as_bytes().ends_with(b"-tmp"));
            assert_eq!(left, None, "{call}");
        }
        return;
    }
    for (call, is_needed) in CALLS {
        for (errno, has_old) in [(libc::ENOSYS, false), (libc::EOPNOTSUPP, true), (libc::EPERM, true)] {
            // This is no answer of a mount without syncs.
            if errno == libc::EPERM && call.starts_with("fsync") {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let old = if has_old { Some(b'o') } else { None };
            if has_old {
                save_each(folder.path(), b'o', false).into_iter().for_each(|(_, saved)| saved.unwrap());
            }
            let mut program = this_test();
            program.env(LACKS, format!("{call}/{errno}{}", folder.path().display()));
            let output = program.output().unwrap();
            assert!(output.status.success(), "{call} {errno}: {}", String::from_utf8_lossy(&output.stderr));
            for path in PATHS {
                let found = byte_at(&folder.path().join(path));
                let expected = if is_needed { old } else { Some(b'm') };
                assert_eq!(found, expected, "{call} {errno}: {path}");
            }
        }
    }
}
