//! Tests of the place of a save: what may be replaced, its permissions, its folder, and files of others there.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, Error, InPlace, SaveOptions, npy};
use tempfile::{TempDir, tempdir};
use testkit::this_test;

const NOBODY: u32 = 65534;

fn quick() -> SaveOptions {
    SaveOptions::new().sync(false)
}

/// Saves a model of `count` files of a byte each, and removes the older one.
fn save(path: &Path, count: usize) -> Result<PathBuf, Error> {
    let names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    let tensors: Vec<_> =
        names.iter().map(|name| TensorData::new(name, Dtype::U8, &[1], [7].as_slice())).collect();
    let options = quick().shard_bytes(1).remove_old_model(true);
    safetensors::save(path, &tensors, &options).map(|saved| saved.path)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes a FIFO, or a character device that nothing can open; returns whether that is allowed here.
fn make_node(path: &Path, kind: libc::mode_t) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte. Character device 0 is no device of any driver.
    unsafe { libc::mknod(path.as_ptr(), kind | 0o666, 0) == 0 }
}

/// Makes a folder in which any user can create files and remove only those.
fn sticky() -> TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempdir()).unwrap();
    set_mode(folder.path(), 0o1777);
    folder
}

/// Gives a file to another user; returns whether that is allowed, as it is to root.
fn give_away(path: &Path) -> bool {
    chown(path, Some(NOBODY), Some(NOBODY)).is_ok()
}

#[test]
fn saves_refuse_all_but_regular_files() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert!(make_node(&path("fifo"), libc::S_IFIFO));
    let _socket = UnixListener::bind(path("socket")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    let mut kinds = vec![("fifo", "a FIFO"), ("socket", "a socket"), ("folder", "Is a directory")];
    if make_node(&path("device"), libc::S_IFCHR) {
        kinds.push(("device", "a character device"));
    }
    for (name, kind) in kinds {
        let before = fs::symlink_metadata(path(name)).unwrap();
        let link = path(&format!("link to {name}"));
        symlink(name, &link).unwrap();
        let all = names(folder.path());
        let index = path("model.safetensors.index.json");
        for target in [&path(name), &link] {
            let saves: [&dyn Fn() -> Result<(), Error>; 4] = [
                &|| npy::write(target, "|u1", &[1], [7].as_slice(), &quick()).map(drop),
                &|| save(target, 1).map(drop),
                &|| save(target, 2).map(drop),
                &|| {
                    symlink(target, &index).unwrap();
                    let saved = save(&path("model.safetensors"), 2).map(drop);
                    fs::remove_file(&index).unwrap();
                    saved
                },
            ];
            for save in saves {
                let error = save().unwrap_err();
                let Error::Save { in_place, left, .. } = &error else { panic!("{error}") };
                assert_eq!((in_place, left.len()), (&InPlace::Old, 0), "{error}");
                assert!(error.to_string().contains(kind), "{error}");
                assert_eq!(names(folder.path()), all);
            }
        }
        let after = fs::symlink_metadata(path(name)).unwrap();
        assert_eq!((after.file_type(), after.ino()), (before.file_type(), before.ino()));
    }
}

#[test]
fn stores_refuse_all_but_regular_files() {
    use gpufile::formats::zarr::FileStore;
    use gpufile::formats::zarr::zarrs::storage::{StoreKey, WritableStorageTraits};

    let folder = tempdir().unwrap();
    assert!(make_node(&folder.path().join("c"), libc::S_IFIFO));
    let error = FileStore::new(folder.path()).set(&StoreKey::new("c").unwrap(), vec![1].into()).unwrap_err();
    assert!(error.to_string().contains("a FIFO"), "{error}");
    assert_eq!(names(folder.path()), ["c"]);
}

#[test]
fn saves_keep_the_mode_of_the_old_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for kept in [0o600, 0o640, 0o400, 0o666, 0o604] {
        save(&path, 1).unwrap();
        set_mode(&path, kept);
        save(&path, 1).unwrap();
        assert_eq!(mode(&path), kept);
        // The shards have the bytes of the old file.
        let index = save(&path, 2).unwrap();
        for name in names(folder.path()) {
            assert_eq!(mode(&folder.path().join(&name)), kept, "{name}");
        }
        set_mode(&index, 0o644);
        save(&path, 2).unwrap();
        assert_eq!(mode(&index), 0o644);
        for name in names(folder.path()).iter().filter(|name| name.contains("-of-")) {
            assert_eq!(mode(&folder.path().join(name)), kept, "{name}");
        }
        save(&path, 1).unwrap();
        assert_eq!(mode(&path), kept);
        fs::remove_file(&path).unwrap();
    }
    // Bits that let a program run as the owner of its file are not kept.
    save(&path, 1).unwrap();
    set_mode(&path, 0o4750);
    save(&path, 1).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o750);
    // The permissions of the file behind a link are kept, and the file itself.
    let link = folder.path().join("latest");
    symlink(&path, &link).unwrap();
    save(&link, 1).unwrap();
    assert_eq!((mode(&link), link.is_symlink(), mode(&path)), (0o750, false, 0o750));
}

#[test]
fn saves_keep_owners_where_they_may() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("array.npy");
    let write = || npy::write(&path, "|u1", &[1], [7].as_slice(), &quick()).unwrap();
    write();
    if !give_away(&path) {
        return;
    }
    write();
    let kept = fs::metadata(&path).unwrap();
    assert_eq!((kept.uid(), kept.gid()), (NOBODY, NOBODY));
    // A file that another user puts into a sticky folder gives nothing to the new one.
    set_mode(folder.path(), 0o1777);
    set_mode(&path, 0o666);
    write();
    let new = fs::metadata(&path).unwrap();
    assert_eq!(new.mode() & 0o022, 0);
    assert_ne!(new.uid(), NOBODY);
}

#[test]
fn folders_may_be_renamed_during_a_save() {
    for (old, new) in [(0, 1), (1, 2), (2, 1), (2, 2)] {
        let place = tempdir().unwrap();
        let [named, moved, link] =
            ["tmp-checkpoint", "checkpoint", "latest"].map(|name| place.path().join(name));
        fs::create_dir(&named).unwrap();
        symlink("tmp-checkpoint", &link).unwrap();
        let target = link.join("model.safetensors");
        if old > 0 {
            save(&target, old).unwrap();
        }
        // The lock is taken before the model is written. Its end shows that the save has opened the folder.
        let lock = hold_lock(&named, "model.safetensors");
        let started = Instant::now();
        std::thread::scope(|threads| {
            let saving = threads.spawn(|| save(&target, new));
            while !has_open(&named) {
                assert!(started.elapsed() < Duration::from_secs(60), "the save never opens its folder");
                std::thread::yield_now();
            }
            fs::rename(&named, &moved).unwrap();
            fs::create_dir(place.path().join("elsewhere")).unwrap();
            fs::remove_file(&link).unwrap();
            symlink("elsewhere", &link).unwrap();
            drop(lock);
            saving.join().unwrap().unwrap();
        });
        assert_eq!(names(&place.path().join("elsewhere")), [""; 0]);
        assert_eq!(Checkpoint::open(&moved).unwrap().tensors().len(), new);
        assert_eq!(names(&moved).len(), if new == 1 { 1 } else { new + 1 });
    }
}

fn lock_of(folder: &Path, model: &str) -> PathBuf {
    // SAFETY: takes nothing.
    folder.join(format!(".{model}.{}.gpufile-lock", unsafe { libc::geteuid() }))
}

/// Holds the lock of a model, as another save of the same user does.
fn hold_lock(folder: &Path, model: &str) -> fs::File {
    let path = lock_of(folder, model);
    let file = fs::File::create(&path).unwrap();
    set_mode(&path, 0o600);
    lock(&file);
    file
}

fn lock(file: &fs::File) {
    // SAFETY: takes integers.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }, 0);
}

fn has_open(folder: &Path) -> bool {
    let folder = folder.canonicalize().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path == folder)
}

#[test]
fn locks_of_the_folder_never_delay_a_save() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    // Any user that may read the folder can do this.
    let held = fs::File::open(folder.path()).unwrap();
    lock(&held);
    let start = Instant::now();
    for count in [1, 2, 1] {
        save(&path, count).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(names(folder.path()), ["model.safetensors"]);
}

#[test]
fn planted_locks_never_stop_a_save() {
    let folder = sticky();
    let path = folder.path().join("model.safetensors");
    let planted = lock_of(folder.path(), "model.safetensors");
    let file = fs::File::create(&planted).unwrap();
    if !give_away(&planted) {
        // A file of this user that others can open is not trusted either.
        set_mode(&planted, 0o666);
    }
    lock(&file);
    for count in [1, 2, 1] {
        save(&path, count).unwrap();
    }
    assert_eq!(names(folder.path()).len(), 2, "{:?}", names(folder.path()));
}

/// Makes a sticky folder with a model of two shards, whose index has another name. Returns the shards' names.
fn renamed_model() -> (TempDir, [String; 2]) {
    let folder = sticky();
    let shards = [1, 2].map(|number| format!("m-0123456789abcdef-{number:05}-of-00002.safetensors"));
    for shard in &shards {
        fs::write(folder.path().join(shard), "precious").unwrap();
    }
    fs::write(folder.path().join("final.index.json"), index_of(&shards)).unwrap();
    (folder, shards)
}

fn index_of(shards: &[String; 2]) -> String {
    format!(r#"{{"weight_map": {{"a": "{}", "b": "{}"}}}}"#, shards[0], shards[1])
}

#[test]
fn leftovers_of_others_are_never_removed() {
    let folder = sticky();
    let left = folder.path().join(".m.safetensors.aaaaaaaaaaaaaaaa.gpufile-tmp");
    for (mode, is_given) in [(0o666, true), (0o622, false)] {
        fs::write(&left, "").unwrap();
        set_mode(&left, mode);
        if !is_given || give_away(&left) {
            save(&folder.path().join("m.safetensors"), 1).unwrap();
            assert!(left.exists(), "{mode:o}");
        }
        fs::remove_file(&left).unwrap();
    }
}

#[test]
fn indexes_of_others_have_no_shards_removed() {
    let (folder, shards) = renamed_model();
    let index = folder.path().join("m.safetensors.index.json");
    fs::write(&index, index_of(&shards)).unwrap();
    if !give_away(&index) {
        return;
    }
    save(&folder.path().join("m.safetensors"), 1).unwrap();
    for shard in shards {
        assert_eq!(fs::read(folder.path().join(shard)).unwrap(), b"precious");
    }
}

#[test]
fn each_save_looks_for_leftovers() {
    let folder = sticky();
    let path = folder.path().join("m.safetensors");
    for _ in 0..3 {
        save(&path, 1).unwrap();
        fs::write(folder.path().join(".m.safetensors.0123456789abcdef.gpufile-tmp"), "left").unwrap();
    }
    save(&path, 1).unwrap();
    assert_eq!(names(folder.path()), ["m.safetensors"]);
}

/// The variable that makes this program save in a folder again and again.
const SAVING: &str = "GPUFILE_TEST_SAVING";

#[test]
fn two_processes_take_turns() {
    if let Some(folder) = std::env::var_os(SAVING) {
        for count in [1, 2, 3, 1, 2] {
            save(&Path::new(&folder).join("model.safetensors"), count).unwrap();
        }
        return;
    }
    let folder = sticky();
    let mut program = this_test();
    program.env(SAVING, folder.path()).stdout(Stdio::null());
    let savers: Vec<_> = (0..3).map(|_| program.spawn().unwrap()).collect();
    for mut saver in savers {
        assert!(saver.wait().unwrap().success());
    }
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), 2);
    assert_eq!(names(folder.path()).len(), 3, "{:?}", names(folder.path()));
}

mod addresses {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use gpufile::formats::safetensors::{Verify, planning};
    use gpufile::formats::zarr::FileStore;
    use gpufile::formats::zarr::zarrs::storage::{ListableStorageTraits, StoreKey, WritableStorageTraits};
    use gpufile::formats::{gguf, save_copy};
    use gpufile::kv_blocks::BlockStore;
    use gpufile::remote::RemoteOptions;
    use gpufile::trusted::{PrivateFolder, open_unblocked};
    use gpufile::{File, OpenOptions};

    use super::*;

    /// A call with an address in the place of a path. Returns the text of the error.
    type Call = fn(&str) -> String;

    fn failed<T, E: ToString>(result: Result<T, E>) -> String {
        result.err().expect("an address is no path").to_string()
    }

    /// Each public function that takes a path, except the folder of a cache.
    const TAKE_PATHS: [(&str, Call); 27] = [
        ("pub fn gpufile::check_path", |path| failed(gpufile::check_path(Path::new(path)))),
        ("PrivateFolder::open", |path| failed(PrivateFolder::open(Path::new(path), true, |_| false))),
        ("trusted::open_unblocked", |path| failed(open_unblocked(Path::new(path)))),
        ("formats::save_copy", |path| failed(save_copy(None, Path::new(path), &quick(), |_, _| Ok(())))),
        ("planning::save_appended", |path| {
            failed(planning::save_appended(Path::new(path), &[], &quick(), |_| Ok(())))
        }),
        ("File::open", |path| failed(File::open(path))),
        ("File::create", |path| failed(File::create(path))),
        ("OpenOptions::open", |path| failed(OpenOptions::new().write(true).create(true).open(path))),
        ("NpyFile::open", |path| failed(npy::NpyFile::open(path))),
        ("NpyFile::open_with", |path| failed(npy::NpyFile::open_with(path, &OpenOptions::new()))),
        ("npy::write", |path| failed(npy::write(path, "|u1", &[1], [7].as_slice(), &quick()))),
        ("Model::open", |path| failed(gguf::Model::open(path))),
        ("Model::open_with", |path| failed(gguf::Model::open_with(path, &OpenOptions::new()))),
        ("gguf::save", |path| failed(gguf::save(path, &gguf::Metadata::new(), &[], &quick()))),
        ("gguf::save_split", |path| {
            let tensors =
                ["a", "b"].map(|name| gguf::TensorData::new(name, gguf::GgmlType::I8, &[1], &[7_u8][..]));
            failed(gguf::save_split(path, &gguf::Metadata::new(), &tensors, &quick().shard_bytes(1)))
        }),
        ("Checkpoint::open", |path| failed(Checkpoint::open(path))),
        ("Checkpoint::open_with", |path| failed(Checkpoint::open_with([path, "x"], &OpenOptions::new()))),
        ("safetensors::save", |path| failed(save(Path::new(path), 1))),
        ("safetensors::save_shards", |path| failed(save(Path::new(path), 2))),
        ("Verify::hash_list", |path| failed(Verify::new().hash_list(path))),
        ("Verify::run", |path| Verify::new().run([path]).problems[0].to_string()),
        ("FileStore::new", |path| {
            let store = Arc::new(FileStore::new(path));
            let (listed, erased) = (store.list().err(), store.erase(&StoreKey::new("a").unwrap()).err());
            assert!(listed.is_some() && erased.is_some(), "{listed:?} {erased:?}");
            failed(store.set(&StoreKey::new("a").unwrap(), vec![1].into()))
        }),
        ("BlockStoreBuilder::open", |path| failed(BlockStore::builder(4096).open(path))),
        ("BlockStoreBuilder::open_striped", |path| failed(BlockStore::builder(4096).open_striped([path]))),
        ("BlockStoreBuilder::open_reader", |path| failed(BlockStore::builder(4096).open_reader([path]))),
        ("Checkpoint::compress", |path| failed(model().compress(path, &quick()))),
        ("Checkpoint::decompress", |path| failed(model().decompress(path, &quick()))),
    ];

    fn model() -> Checkpoint {
        Checkpoint::from_files([]).unwrap()
    }

    #[test]
    fn every_function_refuses_an_address_for_a_path() {
        let folder = tempdir().unwrap();
        let here = std::env::current_dir().unwrap();
        for address in ["s3://key:secret@bucket/x?token=secret", "file:///x", "gcs://b/x", "s3:/bucket/x"] {
            for (name, call) in TAKE_PATHS {
                let text = call(address);
                assert!(text.contains("address") && !text.contains("secret"), "{name}: {text}");
            }
            let options = RemoteOptions::new().cache(address, 1);
            let text = failed(options.open("http://127.0.0.1:1/"));
            assert!(text.contains("lost a slash") || text.contains("is an address"), "{text}");
        }
        let made = ["s3:", "file:", "gcs:"].map(|name| here.join(name).exists());
        assert_eq!(made, [false; 3]);
        // Paths that only look odd stay paths.
        for name in ["a:b.npy", "s3:x.npy", "a:/b.npy"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            npy::write(&path, "|u1", &[1], [7].as_slice(), &quick()).unwrap();
        }
        // A function that is new and takes a path has no row here.
        let public = Path::new(env!("CARGO_MANIFEST_DIR")).join("public-api.txt");
        let public = fs::read_to_string(public).unwrap();
        let takes_path = |line: &&str| {
            let arguments = line.split(") ->").next().filter(|line| line.contains(" fn "));
            arguments.is_some_and(|arguments| arguments.contains("std::path::Path"))
        };
        let of = |line: &str| {
            let name = line.split(['(', '<']).next().unwrap_or_default();
            let mut parts = name.rsplit("::");
            let last = parts.next().unwrap_or_default();
            format!("{}::{last}", parts.next().unwrap_or_default())
        };
        let found: BTreeSet<_> = public.lines().filter(takes_path).map(of).collect();
        let mut known: BTreeSet<_> = TAKE_PATHS.iter().map(|(name, _)| (*name).to_owned()).collect();
        known.insert("RemoteOptions::cache".to_owned());
        assert_eq!(found, known);
    }
}

mod ways {
    use std::sync::Arc;

    use gpufile::File;
    use gpufile::formats::gguf::{self, GgmlType, Metadata};
    use gpufile::formats::zarr::zarrs::storage::{StoreKey, StorePrefix, WritableStorageTraits};
    use gpufile::formats::zarr::{Array, FileStore};
    use gpufile::kv_blocks::{Block, BlockStore, Region};
    use gpufile::remote::RemoteOptions;
    use testkit::web::Server;

    use super::*;
    use testkit::folders::{FOLDERS, Folder, INDEX, MODEL, assert_untouched, entries};

    /// A call that writes files.
    struct Way {
        name: &'static str,
        call: fn(&Path),
        /// Returns whether the call names an entry, which it makes, replaces or removes.
        names: fn(&str) -> bool,
        /// Returns whether the call asks for the removal of a file of the older model.
        removes: fn(&Folder, &str) -> bool,
    }

    const BYTES: [u8; 4] = [1, 2, 3, 4];
    const SPLIT: [&str; 2] = ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"];

    fn tensors() -> [TensorData<'static>; 2] {
        ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[4], &BYTES[..]))
    }

    fn ggufs() -> [gguf::TensorData<'static>; 2] {
        ["a", "b"].map(|name| gguf::TensorData::new(name, GgmlType::I8, &[4], &BYTES[..]))
    }

    fn save_with(folder: &Path, options: &SaveOptions) {
        safetensors::save(folder.join(MODEL), &tensors(), options).unwrap();
    }

    fn is_index_or_new_shard(name: &str) -> bool {
        let shard = |count: &str| {
            let random = name.strip_prefix("model-").and_then(|name| name.strip_suffix(count));
            random.is_some_and(|random| random.len() == 16 && random != "0123456789abcdef")
        };
        name == INDEX || shard("-00001-of-00002.safetensors") || shard("-00002-of-00002.safetensors")
    }

    fn is_old_model(folder: &Folder, name: &str) -> bool {
        name == MODEL || name == INDEX || folder.shards.contains(&name)
    }

    fn write_array(folder: &Path) {
        let metadata = br#"{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"uint8","chunk_grid":
            {"name":"regular","configuration":{"chunk_shape":[2]}},"chunk_key_encoding":{"name":"default"},
            "fill_value":0,"codecs":[{"name":"bytes"}]}"#;
        let store = Arc::new(FileStore::new(folder));
        store.set(&StoreKey::new("zarr.json").unwrap(), metadata.to_vec().into()).unwrap();
        Array::open(&store, "/").unwrap().write_from(&BYTES[..]).unwrap();
    }

    /// Opens three objects, of which the folder has room for one.
    fn cache(folder: &Path) {
        let server = Server::new(vec![7; 100_000]);
        let options = RemoteOptions::new().cache(folder, 150_000);
        for name in ["/a", "/b", "/c"] {
            let file = options.open(&server.url(name)).unwrap();
            let mut found = vec![0; 100_000];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == [7; 100_000]);
        }
    }

    fn is_cached(name: &str) -> bool {
        name.strip_prefix("gpufile-").is_some_and(|hash| hash.len() == 64)
    }

    /// Stores three blocks, of which the store has room for two.
    fn store_blocks(folder: &Path) {
        let store = BlockStore::builder(4096).limit_bytes(2 * 4096).blocks_per_file(1).open(folder).unwrap();
        let region = Region::new(vec![7_u8; 4096]);
        for key in 1..=3 {
            let pieces = [region.piece(0, 4096, 0)];
            store.store(&[Block::new(key, &pieces)]).wait().pop().unwrap().unwrap();
        }
        store.close().unwrap();
    }

    fn is_of_a_store(name: &str) -> bool {
        ["index", "blocks-00000", "blocks-00001"].contains(&name)
    }

    const fn way(name: &'static str, call: fn(&Path), names: fn(&str) -> bool) -> Way {
        Way { name, call, names, removes: |_, _| false }
    }

    const WAYS: [Way; 15] = [
        way("safetensors::save", |folder| save_with(folder, &SaveOptions::new()), |name| name == MODEL),
        way("save, unsynced", |folder| save_with(folder, &quick()), |name| name == MODEL),
        way("save, in shards", |folder| save_with(folder, &quick().shard_bytes(4)), is_index_or_new_shard),
        Way {
            name: "save, removing",
            call: |folder| save_with(folder, &quick().remove_old_model(true)),
            names: |name| name == MODEL,
            removes: is_old_model,
        },
        Way {
            name: "save, in shards, removing",
            call: |folder| save_with(folder, &quick().shard_bytes(4).remove_old_model(true)),
            names: is_index_or_new_shard,
            removes: is_old_model,
        },
        way(
            "safetensors::save_shards",
            |folder| {
                let [a, b] = tensors();
                safetensors::save_shards(folder.join(MODEL), &[&[a], &[b]], &quick()).unwrap();
            },
            is_index_or_new_shard,
        ),
        way(
            "gguf::save",
            |folder| {
                gguf::save(folder.join(MODEL), &Metadata::new(), &ggufs(), &quick()).unwrap();
            },
            |name| name == MODEL,
        ),
        way(
            "gguf::save_split",
            |folder| {
                let options = quick().shard_bytes(4);
                gguf::save_split(folder.join("model.gguf"), &Metadata::new(), &ggufs(), &options).unwrap();
            },
            |name| SPLIT.contains(&name),
        ),
        way(
            "npy::write",
            |folder| {
                npy::write(folder.join(MODEL), "|u1", &[4], &BYTES[..], &quick()).unwrap();
            },
            |name| name == MODEL,
        ),
        way("zarr::Array::write_from", write_array, |name| ["zarr.json", "c", "c/0", "c/1"].contains(&name)),
        way(
            "zarr::FileStore::set",
            |folder| {
                let key = StoreKey::new(MODEL).unwrap();
                FileStore::new(folder).set(&key, BYTES.to_vec().into()).unwrap();
            },
            |name| name == MODEL,
        ),
        way(
            "zarr::FileStore::erase_prefix",
            |folder| {
                FileStore::new(folder).erase_prefix(&StorePrefix::new("old/").unwrap()).unwrap();
            },
            |name| name == "old" || name.starts_with("old/"),
        ),
        way(
            "File::create",
            |folder| File::create(folder.join(MODEL)).unwrap().write_all_at(&BYTES[..], 0).unwrap(),
            |name| name == MODEL,
        ),
        way("RemoteOptions::cache", cache, is_cached),
        way("BlockStore::store", store_blocks, is_of_a_store),
    ];

    #[test]
    fn every_way_to_save_touches_only_its_own_names() {
        for way in &WAYS {
            for kind in &FOLDERS {
                let folder = tempdir().unwrap();
                // Caches and stores of blocks take no folder that others may open.
                set_mode(folder.path(), 0o700);
                (kind.make)(folder.path());
                let before = entries(folder.path());
                let is_named = |name: &str| (way.names)(name) || (way.removes)(kind, name);
                // `File::create` writes to the file that the name leads to, by whatever name.
                let leads_to = fs::metadata(folder.path().join(MODEL)).ok().map(|status| status.ino());
                let in_place = |name: &str| {
                    way.name == "File::create" && before.get(name).map(|entry| entry.inode) == leads_to
                };
                let what = format!("{} in {:?}", way.name, kind.kind);
                // The second call replaces what the first one made.
                for _ in 0..2 {
                    (way.call)(folder.path());
                    let after = entries(folder.path());
                    assert_untouched(&what, &before, &after, |name| is_named(name) || in_place(name));
                    let made = after.keys().any(|name| (way.names)(name));
                    assert!(made || way.name.ends_with("erase_prefix"), "{what}");
                    for name in before.keys().filter(|name| !(way.names)(name)) {
                        assert_eq!(after.contains_key(name), !(way.removes)(kind, name), "{what}: {name}");
                    }
                }
            }
        }
    }
}
