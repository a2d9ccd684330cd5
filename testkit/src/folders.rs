//! Folders with files of every kind, and what a save may change in them.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

/// A model in one file.
pub const MODEL: &str = "model.safetensors";
/// A model's index.
pub const INDEX: &str = "model.safetensors.index.json";

/// A folder before a save.
pub struct Folder {
    /// The words for its contents.
    pub kind: &'static str,
    /// Makes what is in it.
    pub make: fn(&Path),
    /// The shards of the older model, which a save removes if it is asked to.
    pub shards: &'static [&'static str],
}

const fn folder(kind: &'static str, make: fn(&Path)) -> Folder {
    Folder { kind, make, shards: &[] }
}

const fn with_shards(kind: &'static str, make: fn(&Path), shards: &'static [&'static str]) -> Folder {
    Folder { kind, make, shards }
}

const TWO: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
const THREE: [&str; 3] = [
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
];
const OURS: [&str; 2] = [
    "model-0123456789abcdef-00001-of-00002.safetensors",
    "model-0123456789abcdef-00002-of-00002.safetensors",
];

/// Folders, by what is in them.
pub const FOLDERS: [Folder; 36] = [
    folder("empty", |_| ()),
    folder("single", |folder| write(folder, &[MODEL])),
    folder("single of mode 0600", |folder| {
        write(folder, &[MODEL]);
        set_mode(&folder.join(MODEL), 0o600);
    }),
    with_shards("indexed", |folder| indexed(folder, &TWO), &TWO),
    with_shards("indexed, three", |folder| indexed(folder, &THREE), &THREE),
    with_shards(
        "single and indexed",
        |folder| {
            write(folder, &[MODEL]);
            indexed(folder, &TWO);
        },
        &TWO,
    ),
    folder("index of the single file", |folder| indexed(folder, &[MODEL])),
    folder("shards without index", |folder| write(folder, &TWO)),
    folder("index without shards", |folder| index(folder, INDEX, &TWO)),
    folder("damaged index", |folder| {
        write(folder, &TWO);
        fs::write(folder.join(INDEX), "{").unwrap();
    }),
    folder("index of other files", |folder| indexed(folder, &["config.json", "notes.txt"])),
    folder("index of a folder below", |folder| indexed(folder, &["below/model-00001-of-00001.safetensors"])),
    folder("index of a folder above", |folder| {
        index(folder, INDEX, &["../model-00001-of-00001.safetensors"]);
    }),
    with_shards("two sets of shards", |folder| (write(folder, &THREE), indexed(folder, &TWO)).1, &TWO),
    folder("variant", |folder| {
        let shards = ["model.fp16-00001-of-00002.safetensors", "model.fp16-00002-of-00002.safetensors"];
        write(folder, &shards);
        index(folder, "model.fp16.safetensors.index.json", &shards);
    }),
    with_shards(
        "variant of the index",
        |folder| {
            indexed(folder, &TWO);
            index(folder, "model.safetensors.index.fp16.json", &TWO);
        },
        &TWO,
    ),
    folder("other models", |folder| {
        let shards = ["adapter_model-00001-of-00001.safetensors", "vae.safetensors"];
        write(folder, &shards);
        index(folder, "adapter_model.safetensors.index.json", &shards);
    }),
    with_shards("shards of gpufile", |folder| indexed(folder, &OURS), &OURS),
    folder("shards of gpufile without index", |folder| write(folder, &OURS)),
    folder("hub cache", |folder| snapshot(folder, &[MODEL])),
    with_shards(
        "hub cache with an index",
        |folder| {
            snapshot(folder, &TWO);
            index(folder, INDEX, &TWO);
        },
        &TWO,
    ),
    folder("links to nowhere", |folder| {
        symlink("nowhere", folder.join("gone.safetensors")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
    }),
    folder("links to folders", |folder| {
        write(folder, &["checkpoint-1/model.safetensors", "checkpoint-1/c/0"]);
        symlink("checkpoint-1", folder.join("latest")).unwrap();
        symlink("checkpoint-1", folder.join("old")).unwrap();
    }),
    folder("hard link", |folder| {
        write(folder, &[MODEL]);
        fs::hard_link(folder.join(MODEL), folder.join("backup.safetensors")).unwrap();
    }),
    folder("hidden files", |folder| {
        write(folder, &[".gitattributes", ".model.safetensors.swp", ".cache/x", "._model.safetensors"]);
    }),
    folder("parts of others", |folder| {
        write(folder, &["model.safetensors.part", "model.safetensors.tmp", ".tmp1234", "model.incomplete"]);
    }),
    folder("names like temporary ones", |folder| {
        write(
            folder,
            &[".a.0123456789abcdef.tmp", "a.0123456789abcdef.gpufile-tmp", ".gpufile-tmp", ".a.gpufile-old"],
        );
    }),
    folder("gguf", |folder| {
        write(
            folder,
            &["other.gguf", "model-00001-of-00003.gguf", "model-00002-of-00003.gguf", "model.gguf.part"],
        );
    }),
    folder("torch", |folder| {
        write(folder, &["pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt"])
    }),
    folder("distributed checkpoint", |folder| write(folder, &[".metadata", "__0_0.distcp", "__1_0.distcp"])),
    folder("folders below", |folder| {
        write(folder, &["old/x", "old.d/y", "older/z", "checkpoint-1/optimizer.pt", "model/c/0"]);
    }),
    with_shards(
        "read-only entries",
        |folder| {
            indexed(folder, &TWO);
            TWO.iter().chain([&INDEX]).for_each(|name| set_mode(&folder.join(name), 0o444));
        },
        &TWO,
    ),
    folder("FIFO", |folder| {
        let path = CString::new(folder.join("fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }),
    folder("files of another user", |folder| {
        let names = ["theirs.safetensors", ".model.safetensors.0123456789abcdef.gpufile-tmp"];
        write(folder, &names);
        for name in names {
            // Only root may give files away. Other users keep a file that others could have written.
            set_mode(&folder.join(name), 0o666);
            let _ = chown(folder.join(name), Some(65534), Some(65534));
        }
    }),
    folder("names like those of caches", |folder| {
        let hash = "0123456789abcdef".repeat(4);
        write(folder, &[&hash, "blocks", "blocks-x", "index.json", "README"]);
    }),
    folder("odd names", |folder| {
        write(folder, &["model.safetensors ", "model.safetensors\n", "MODEL.SAFETENSORS", "é.safetensors"]);
    }),
];

fn write(folder: &Path, names: &[&str]) {
    for name in names {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("content of {name}")).unwrap();
    }
}

fn indexed(folder: &Path, names: &[&str]) {
    write(folder, names);
    index(folder, INDEX, names);
}

fn index(folder: &Path, name: &str, files: &[&str]) {
    let entries: Vec<_> = (0..).zip(files).map(|(tensor, file)| format!(r#""{tensor}": "{file}""#)).collect();
    fs::write(folder.join(name), format!(r#"{{"weight_map": {{{}}}}}"#, entries.join(", "))).unwrap();
}

/// Makes a snapshot as in a Hugging Face cache: links to blobs.
fn snapshot(folder: &Path, names: &[&str]) {
    for (number, name) in names.iter().enumerate() {
        let blob = format!("blobs/{number}{}", "0".repeat(63));
        write(folder, &[&blob]);
        symlink(blob, folder.join(name)).unwrap();
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Facts of an entry of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The inode's number.
    pub inode: u64,
    mode: u32,
    owner: (u32, u32),
    /// Times of changes of bytes and inode; `None` if a new or removed name changes them, too.
    times: Option<[i64; 4]>,
    content: Vec<u8>,
}

impl Entry {
    fn of(path: &Path) -> Self {
        let status = fs::symlink_metadata(path).unwrap();
        let kind = status.file_type();
        let content = match () {
            () if kind.is_symlink() => fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec(),
            () if kind.is_file() => fs::read(path).unwrap(),
            () => Vec::new(),
        };
        let times = [status.mtime(), status.mtime_nsec(), status.ctime(), status.ctime_nsec()];
        Self {
            inode: status.ino(),
            mode: status.mode(),
            owner: (status.uid(), status.gid()),
            times: (kind.is_dir() || status.nlink() == 1).then_some(times),
            content,
        }
    }
}

/// Returns everything below a folder.
pub fn entries(folder: &Path) -> BTreeMap<String, Entry> {
    fn add(root: &Path, folder: &Path, found: &mut BTreeMap<String, Entry>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                add(root, &path, found);
            }
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.insert(name, Entry::of(&path));
        }
    }
    let mut found = BTreeMap::new();
    add(folder, folder, &mut found);
    found
}

/// Checks that a call changed only the entries that it named, and made no others.
#[track_caller]
pub fn assert_untouched(
    what: &str,
    before: &BTreeMap<String, Entry>,
    after: &BTreeMap<String, Entry>,
    names: impl Fn(&str) -> bool,
) {
    for (name, entry) in before.iter().filter(|(name, _)| !names(name)) {
        match after.get(name) {
            Some(found) if found.times.is_none() || entry.times.is_none() => {
                assert_eq!(Entry { times: None, ..found.clone() }, Entry { times: None, ..entry.clone() });
            }
            found => assert_eq!(found, Some(entry), "{what}: {name:?}"),
        }
    }
    let made: Vec<_> = after.keys().filter(|name| !before.contains_key(*name) && !names(name)).collect();
    assert!(made.is_empty(), "{what}: {made:?}");
}
