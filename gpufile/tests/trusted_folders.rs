//! Tests of folders and files that others could have changed: block stores and caches refuse them, and saves pass
//! them by. They change nothing then, inside or outside of the folder.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::kv_blocks::{Block, BlockStore, Region};
use gpufile::remote::{RemoteFile, RemoteOptions};
use tempfile::TempDir;
use testkit::bed::{Bed, pattern};
use testkit::web::Server;

const OTHER: u32 = 4321;
const SECRET: &str = "bytes of the victim";
const OBJECT: usize = 5000;

/// The things that a name may lead to, beside a regular file of this user alone.
const KINDS: [&str; 15] = [
    "link to a file",
    "link to a folder",
    "link to nothing",
    "link to another user's file",
    "hard link",
    "FIFO",
    "socket",
    "device",
    "folder",
    "file of another user",
    "readable file of another user",
    "open file of another user",
    "file that the group may write",
    "file that all may write",
    "FIFO of another user",
];

/// A folder to be used, beside a folder and files that must stay as they are.
struct Place {
    root: TempDir,
    folder: PathBuf,
}

impl Place {
    fn new() -> Self {
        // SAFETY: the call has no conditions.
        assert_eq!(unsafe { libc::geteuid() }, 0, "these tests make files of another user: run them as root");
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("victims")).unwrap();
        for name in ["victims/file", "victims/other"] {
            fs::write(at(name), SECRET).unwrap();
            set_mode(&at(name), 0o600);
        }
        chown(at("victims/other"), Some(OTHER), Some(OTHER)).unwrap();
        let folder = at("folder");
        Self { root, folder }
    }

    fn victim(&self, name: &str) -> PathBuf {
        self.root.path().join("victims").join(name)
    }

    /// Makes the folder, which no other user may open.
    fn make_folder(&self) {
        fs::create_dir(&self.folder).unwrap();
        set_mode(&self.folder, 0o700);
    }

    /// Makes one of the [`KINDS`], which has these bytes if it is a file.
    fn plant(&self, kind: &str, path: &Path, bytes: &[u8]) {
        let file = |owner: u32, mode: u32| {
            fs::write(path, bytes).unwrap();
            set_mode(path, mode);
            chown(path, Some(owner), Some(owner)).unwrap();
        };
        match kind {
            "link to a file" => symlink(self.victim("file"), path).unwrap(),
            "link to a folder" => symlink(self.victim(""), path).unwrap(),
            "link to nothing" => symlink(self.victim("nothing"), path).unwrap(),
            "link to another user's file" => symlink(self.victim("other"), path).unwrap(),
            "hard link" => fs::hard_link(self.victim("file"), path).unwrap(),
            "FIFO" => make_node(path, libc::S_IFIFO, 0),
            "FIFO of another user" => {
                make_node(path, libc::S_IFIFO, 0);
                chown(path, Some(OTHER), Some(OTHER)).unwrap();
            }
            "socket" => drop(UnixListener::bind(path).unwrap()),
            // The null device.
            "device" => make_node(path, libc::S_IFCHR, libc::makedev(1, 3)),
            "folder" => fs::create_dir(path).unwrap(),
            "file of another user" => file(OTHER, 0o600),
            "readable file of another user" => file(OTHER, 0o644),
            "open file of another user" => file(OTHER, 0o666),
            "file that the group may write" => file(0, 0o660),
            "file that all may write" => file(0, 0o606),
            _ => panic!("{kind}"),
        }
    }

    /// Checks that `attempt` fails for a reason that contains `why`, at once, and changes nothing.
    #[track_caller]
    fn refuses(
        &self,
        what: &str,
        why: &[&str],
        attempt: impl FnOnce(PathBuf) -> Result<(), String> + Send + 'static,
    ) {
        let before = state(self.root.path());
        let error = within_limits(&self.folder, attempt).expect_err(what);
        assert!(why.iter().any(|why| error.contains(why)), "{what}: {error}");
        assert!(error.contains("folder"), "the error names the path: {error}");
        assert_eq!(state(self.root.path()), before, "{what}");
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn make_node(path: &Path, kind: libc::mode_t, device: libc::dev_t) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte.
    let made = unsafe { libc::mknod(path.as_ptr(), kind | 0o600, device) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
}

/// Returns all names below a folder, each with the facts that a change would alter.
fn state(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let bytes = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if found.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let times = (found.mtime(), found.mtime_nsec());
        let facts = (found.ino(), found.mode(), found.uid(), found.nlink(), found.len(), times);
        all.insert(path, format!("{facts:?} {}", bytes.escape_ascii()));
    }
    all
}

/// Calls `attempt` with a path, on a thread that may hang.
fn within_limits<T: Send + 'static>(path: &Path, attempt: impl FnOnce(PathBuf) -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    thread::spawn(move || sender.send(attempt(path)));
    receiver.recv_timeout(Duration::from_secs(60)).expect("it ends")
}

fn builder() -> gpufile::kv_blocks::BlockStoreBuilder {
    BlockStore::builder(4096).limit_bytes(4 * 4096).blocks_per_file(2)
}

fn open_store(folder: PathBuf) -> Result<(), String> {
    builder().open(folder).map(drop).map_err(|error| error.to_string())
}

/// Leaves a store with two files of blocks.
fn store(folder: &Path) {
    let store = builder().open(folder).unwrap();
    let region = Region::new(vec![7_u8; 4096]);
    for key in 0..4 {
        let pieces = [region.piece(0, 4096, 0)];
        store.store(&[Block::new(key, &pieces)]).wait().pop().unwrap().unwrap();
    }
    store.close().unwrap();
}

struct Remote {
    _bed: Bed,
    server: Server,
    options: RemoteOptions,
}

impl Remote {
    fn new() -> Self {
        let bed = Bed::emulated();
        let engine = gpufile::Engine::builder().driver(bed.driver.clone()).threads(2).build();
        let options = RemoteFile::options().engine(&engine).repeat_late(false);
        Self { _bed: bed, server: Server::new(pattern(OBJECT)), options }
    }

    /// Returns a function that opens the object with a cache in a folder, and reads it.
    fn open(&self, most_bytes: u64) -> impl FnOnce(PathBuf) -> Result<(), String> + Send + 'static {
        let (options, url) = (self.options.clone(), self.server.url("/object"));
        move |folder| {
            let file = options.cache(folder, most_bytes).open(&url).map_err(|error| error.to_string())?;
            let mut bytes = vec![0; OBJECT];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == pattern(OBJECT), "planted bytes are served");
            Ok(())
        }
    }

    fn name(&self) -> String {
        let folder = tempfile::tempdir().unwrap();
        self.open(1 << 20)(folder.path().to_owned()).unwrap();
        let entry = fs::read_dir(folder.path()).unwrap().next().unwrap();
        entry.unwrap().file_name().into_string().unwrap()
    }
}

#[test]
fn folders_that_others_may_change_are_refused() {
    let remote = Remote::new();
    let owners = [(OTHER, [0o700, 0o755, 0o777, 0o1777, 0o2775]), (0, [0o777, 0o775, 0o707, 0o1777, 0o722])];
    for (owner, modes) in owners {
        for folder_mode in modes {
            let place = Place::new();
            place.make_folder();
            chown(&place.folder, Some(owner), Some(owner)).unwrap();
            set_mode(&place.folder, folder_mode);
            let why = if owner == OTHER { "it belongs to user 4321" } else { "other users may write to it" };
            let what = format!("owner {owner}, mode {folder_mode:o}");
            place.refuses(&what, &[why], open_store);
            place.refuses(&what, &[why], remote.open(1 << 20));
        }
    }
}

#[test]
fn folders_are_no_links_and_no_files() {
    let remote = Remote::new();
    for kind in KINDS {
        for end in ["", "/", "/."] {
            let place = Place::new();
            place.plant(kind, &place.folder, b"");
            if kind == "folder" {
                continue;
            }
            let why = [
                "it is a symbolic link; name the folder",
                "Not a directory",
                "File exists",
                "Permission denied",
            ];
            let named = move |folder: PathBuf| PathBuf::from(format!("{}{end}", folder.display()));
            let what = format!("{kind}{end}");
            place.refuses(&what, &why, move |folder| open_store(named(folder)));
            let open = remote.open(1 << 20);
            place.refuses(&what, &why, move |folder| open(named(folder)));
        }
    }
}

#[test]
fn planted_files_of_a_store_are_refused() {
    for kind in KINDS {
        for name in ["index", "blocks-00000", "blocks-00001", "blocks-00002"] {
            for has_index in [false, true] {
                let place = Place::new();
                place.make_folder();
                if has_index {
                    store(&place.folder);
                }
                let path = place.folder.join(name);
                let bytes = fs::read(&path).unwrap_or_else(|_| vec![0; 8192]);
                let _ = fs::remove_file(&path);
                place.plant(kind, &path, &bytes);
                let why = match has_index || name == "index" {
                    true => &["remove it", "hard link"][..],
                    false => &["no index says that a block store made it"],
                };
                place.refuses(&format!("{kind} {name} {has_index}"), why, open_store);
            }
        }
    }
}

#[test]
fn planted_files_of_a_cache_are_refused() {
    let remote = Remote::new();
    let name = remote.name();
    for kind in KINDS {
        for name in [name.clone(), format!("{name}.part")] {
            // Nothing is written to the file of a whole object.
            if kind == "hard link" && !name.ends_with("part") {
                continue;
            }
            let place = Place::new();
            place.make_folder();
            place.plant(kind, &place.folder.join(&name), &vec![9; OBJECT]);
            place.refuses(&format!("{kind} {name}"), &["remove it", "hard link"], remote.open(1 << 20));
        }
    }
}

#[test]
fn saves_pass_planted_files_by() {
    let save = |folder: PathBuf| {
        let model = folder.join("model.safetensors");
        let tensors = ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[1], [7].as_slice()));
        let saved =
            safetensors::save(&model, &tensors, &SaveOptions::new().sync(false).shard_bytes(1)).unwrap();
        Checkpoint::open(saved.path).unwrap().tensors().count()
    };
    // Of a hard link with a name of a save, that name is the save's own.
    for kind in KINDS.into_iter().filter(|kind| *kind != "hard link") {
        for (folder_mode, owner) in [(0o700, 0), (0o777, 0), (0o1777, 0), (0o777, OTHER), (0o1777, OTHER)] {
            let place = Place::new();
            place.make_folder();
            set_mode(&place.folder, folder_mode);
            chown(&place.folder, Some(owner), Some(owner)).unwrap();
            for name in
                [".model.safetensors.0.gpufile-lock", ".model.safetensors.0123456789abcdef.gpufile-tmp"]
            {
                place.plant(kind, &place.folder.join(name), b"planted");
            }
            let before = state(place.root.path());
            assert_eq!(within_limits(&place.folder, save), 2, "{kind}");
            let mut after = state(place.root.path());
            after.retain(|path, _| before.contains_key(path) && *path != place.folder);
            let mut expected = before;
            expected.remove(&place.folder);
            assert_eq!(after, expected, "{kind} in a folder of {owner}, mode {folder_mode:o}");
        }
    }
}

#[test]
fn files_of_other_programs_stay() {
    let remote = Remote::new();
    let hash = |byte: char| byte.to_string().repeat(64);
    let others =
        [hash('a'), hash('b'), format!("{}.part", hash('c')), "notes".to_owned(), "blocks".to_owned()];
    for folder_mode in [0o700, 0o755, 0o711] {
        let place = Place::new();
        place.make_folder();
        for name in &others {
            fs::write(place.folder.join(name), vec![1; OBJECT]).unwrap();
        }
        set_mode(&place.folder, folder_mode);
        // There is room for the object alone.
        let open = || remote.open(OBJECT as u64);
        if folder_mode != 0o700 {
            place.refuses("others may look into it", &["it has other files"], open());
            place.refuses("others may look into it", &["it has other files"], open_store);
            continue;
        }
        let before = state(place.root.path());
        within_limits(&place.folder, open()).unwrap();
        within_limits(&place.folder, open_store).unwrap();
        let after = state(place.root.path());
        assert!(others.iter().all(|name| {
            let path = place.folder.join(name);
            before[&path] == after[&path]
        }));
        assert_eq!(after.len() - before.len(), 2, "an object and an index");
    }
    // Files without an index, and an index of another program, are not cut.
    let place = Place::new();
    place.make_folder();
    fs::write(place.folder.join("blocks-00007"), vec![1; 100_000]).unwrap();
    place.refuses("blocks", &["blocks-00007", "no index says"], open_store);
    fs::write(place.folder.join("index"), []).unwrap();
    place.refuses("blocks and an empty index", &["no index says"], open_store);
    fs::remove_file(place.folder.join("blocks-00007")).unwrap();
    fs::write(place.folder.join("index"), vec![0; 100_000]).unwrap();
    place.refuses("zeros", &["is not the index of a block store"], open_store);
}

#[test]
fn contents_are_private() {
    let private = |folder: &Path| {
        let modes: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| mode(&entry.unwrap().path())).collect();
        assert!(
            mode(folder) == 0o700 && !modes.is_empty() && modes.iter().all(|mode| *mode == 0o600),
            "{modes:?}"
        );
    };
    let remote = Remote::new();
    // Missing folders are made, and empty ones are closed to others.
    for folder_mode in [None, Some(0o700), Some(0o755)] {
        let (one, two) = (Place::new(), Place::new());
        for place in [&one, &two] {
            if let Some(folder_mode) = folder_mode {
                place.make_folder();
                set_mode(&place.folder, folder_mode);
            }
        }
        store(&one.folder);
        remote.open(1 << 20)(two.folder.clone()).unwrap();
        private(&one.folder);
        private(&two.folder);
        // A store as earlier versions made it.
        set_mode(&one.folder, 0o755);
        for name in ["index", "blocks-00000", "blocks-00001"] {
            set_mode(&one.folder.join(name), 0o644);
        }
        let again = builder().open(&one.folder).unwrap();
        assert_eq!((again.len(), again.recovery().whole), (4, 4));
        private(&one.folder);
    }
    let folders = Place::new();
    let error = builder().open(folders.folder.join("a/b")).unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
    remote.open(1 << 20)(folders.folder.join("a/b")).unwrap();
    assert_eq!((mode(&folders.folder), mode(&folders.folder.join("a"))), (0o700, 0o700));
}
