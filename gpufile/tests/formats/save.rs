//! Tests that saved files are complete or not there.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gpufile::OpenOptions;
use gpufile::formats::safetensors::{self, Checkpoint, Header, NewTensor, TensorData};
use gpufile::formats::{
    Dtype, Error, FormatError, SaveOptions, gguf,
    npy::{self, Order},
};
use tempfile::tempdir;

fn quick() -> SaveOptions {
    SaveOptions::new().sync(false)
}

fn replacing() -> SaveOptions {
    quick().remove_old_model(true)
}

fn listed(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn saved_files_have_tensors_at_their_offsets() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let (a, b, c) = (vec![1; 6], vec![2; 16], Vec::new());
    let tensors = [
        TensorData::new("a", Dtype::U8, &[2, 3], &a),
        TensorData::new("c", Dtype::F32, &[0], &c),
        TensorData::new("b", Dtype::F64, &[2], &b),
    ];
    let saved = safetensors::save(&path, &tensors, &quick().metadata(metadata.clone())).unwrap();

    let new: Vec<_> = tensors
        .iter()
        .map(|tensor| NewTensor { name: tensor.name, dtype: tensor.dtype, shape: tensor.shape })
        .collect();
    let (header, head) = Header::build(&new, metadata).unwrap();
    let file = fs::read(&path).unwrap();
    assert_eq!((&saved.path, saved.len_bytes), (&path, header.file_len_bytes()));
    assert_eq!(file, [&head[..], &b, &a].concat());
    assert_eq!(listed(folder.path()), ["model.safetensors"]);
}

#[test]
fn new_files_have_default_permissions() {
    let folder = tempdir().unwrap();
    let (path, other) = (folder.path().join("model.safetensors"), folder.path().join("other"));
    safetensors::save(&path, &[], &quick()).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    fs::write(&other, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode();
    assert_eq!(mode(&path), mode(&other));
    safetensors::save(&path, &[], &quick()).unwrap();
    assert_eq!(mode(&path), mode(&other));
    assert_ne!(fs::metadata(&path).unwrap().ino(), inode, "another file took its place");
}

#[test]
fn saves_replace_a_symlink_and_not_its_target() {
    let folder = tempdir().unwrap();
    let (link, target) = (folder.path().join("link.npy"), folder.path().join("target"));
    fs::write(&target, "untouched").unwrap();
    symlink(&target, &link).unwrap();
    npy::write(&link, "|u1", &[3], &vec![1, 2, 3], &quick()).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"untouched");
    assert!(fs::symlink_metadata(&link).unwrap().is_file());
}

#[test]
fn refused_saves_keep_only_the_old_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, "old").unwrap();
    let bytes = vec![0; 8];
    let cases: [(&[TensorData<'_>], &str); 4] = [
        (
            &[TensorData::new("a", Dtype::F32, &[3], &bytes)],
            r#"buffer for tensor "a" has 8 bytes instead of 12"#,
        ),
        (&[TensorData::new("a", Dtype::C128, &[], &bytes)], "not in safetensors"),
        (&[TensorData::new("__metadata__", Dtype::U64, &[], &bytes)], "cannot be called"),
        (
            &[TensorData::new("a", Dtype::U64, &[], &bytes), TensorData::new("a", Dtype::U8, &[8], &bytes)],
            "twice",
        ),
    ];
    for (tensors, reason) in cases {
        let error = safetensors::save(&path, tensors, &SaveOptions::new()).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let error = npy::write(&path, "<f4", &[3], &bytes, &SaveOptions::new()).unwrap_err();
    assert!(matches!(error, Error::BufferSize { needed_bytes: 12, buffer_bytes: 8, .. }), "{error}");
    assert!(matches!(
        npy::write(&path, "O", &[1], &bytes, &SaveOptions::new()).unwrap_err(),
        Error::Format { .. }
    ));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(listed(folder.path()), ["model.safetensors"]);
}

#[test]
fn save_errors_name_an_impossible_path() {
    let folder = tempdir().unwrap();
    let missing = folder.path().join("no folder").join("model.safetensors");
    let error = safetensors::save(&missing, &[], &SaveOptions::new()).unwrap_err();
    assert!(error.to_string().contains("no folder/"), "{error}");
    for path in ["/", "..", "", "x/", "x/."] {
        let error = safetensors::save(path, &[], &SaveOptions::new()).unwrap_err();
        assert!(error.to_string().contains("does not name a file"), "{path}: {error}");
        let both = [0; 2];
        let tensors = ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[1], &both[..1]));
        assert!(safetensors::save(path, &tensors, &quick().shard_bytes(1)).is_err());
    }
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let error = safetensors::save(&taken, &[], &SaveOptions::new()).unwrap_err();
    assert!(error.to_string().contains("cannot replace"), "{error}");
    assert_eq!(listed(folder.path()), ["taken"]);
}

#[test]
fn saves_accept_bare_and_very_long_names() {
    let folder = tempdir().unwrap();
    let long = folder.path().join("é".repeat(127));
    safetensors::save(&long, &[], &quick()).unwrap();
    assert_eq!(Checkpoint::open(&long).unwrap().tensors().len(), 0);

    let name = format!("gpufile-{}.safetensors", std::process::id());
    safetensors::save(&name, &[], &SaveOptions::new()).unwrap();
    fs::remove_file(&name).unwrap();
}

/// Takes the lock of a file, as a process that saves does.
fn locked(path: &Path) -> fs::File {
    let file = fs::File::create(path).unwrap();
    // SAFETY: the call takes integers.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }, 0);
    file
}

#[test]
fn saves_remove_only_files_of_killed_saves() {
    // On other file systems the locks may not show a living process.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = |name: &str| folder.path().join(name);
    let (index, shard) = (r#"{"weight_map": {"#, "-0123456789abcdef-00001-of-00002.safetensors");
    let index_of = |names: &[&str]| {
        let entries: Vec<_> = names.iter().map(|name| format!(r#""{name}": "{name}""#)).collect();
        format!("{index}{}}}}}", entries.join(", "))
    };
    let (named, unnamed) = (format!("model{shard}"), format!("model{}", shard.replace("00001", "00002")));
    let (others, foreign) = (format!("other{shard}"), "model-00001-of-00002.safetensors");
    for name in
        [&named, &unnamed, &others, foreign, ".a.0123456789abcdef.tmp", "a.0123456789abcdef.gpufile-tmp"]
    {
        fs::write(path(name), "").unwrap();
    }
    fs::write(path("model.safetensors.index.json"), index_of(&[&named])).unwrap();
    // A process that was killed left this file.
    fs::write(path(".a.0123456789abcdef.gpufile-tmp"), "").unwrap();
    let left = index_of(&[&named, &unnamed, &others, foreign]);
    fs::write(path(".model.safetensors.index.json.0123456789abcdef.gpufile-tmp"), left).unwrap();
    // A process that lives has this file.
    let _lock = locked(&path(".b.0123456789abcdef.gpufile-tmp"));
    let abroad = tempdir().unwrap();
    fs::write(abroad.path().join("precious"), "").unwrap();
    symlink(abroad.path().join("precious"), path(".c.0123456789abcdef.gpufile-tmp")).unwrap();
    fs::create_dir(path(".d.0123456789abcdef.gpufile-tmp")).unwrap();

    npy::write(path("a"), "|u1", &[1], &vec![1], &quick()).unwrap();
    let mut expected = vec![
        ".a.0123456789abcdef.tmp",
        ".b.0123456789abcdef.gpufile-tmp",
        ".c.0123456789abcdef.gpufile-tmp",
        ".d.0123456789abcdef.gpufile-tmp",
        "a",
        "a.0123456789abcdef.gpufile-tmp",
        foreign,
        &named,
        &unnamed,
        &others,
        "model.safetensors.index.json",
    ];
    expected.sort();
    assert_eq!(listed(folder.path()), expected);
    assert!(abroad.path().join("precious").exists());
}

#[test]
fn opening_during_a_save_finds_the_old_or_new_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let models: [(&str, Vec<u8>); 2] = [("zeros", vec![0; 100_000]), ("ones", vec![1; 300_000])];
    let save = |(name, bytes): &(&str, Vec<u8>)| {
        let shape = [bytes.len() as u64];
        let tensors = [TensorData::new(name, Dtype::U8, &shape, bytes)];
        safetensors::save(&path, &tensors, &quick()).unwrap();
    };
    save(&models[0]);
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            for round in 0..100 {
                save(&models[round % 2]);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let checkpoint = Checkpoint::open(&path).unwrap();
            let name = checkpoint.tensors().map(|tensor| tensor.name).next().unwrap();
            let (_, expected) = models.iter().find(|(known, _)| *known == name).unwrap();
            assert!(checkpoint.read_tensor(name).unwrap() == *expected);
        }
    });
    assert_eq!(listed(folder.path()).len(), 1);
}

#[test]
fn loaded_models_can_be_saved_again() {
    let folder = tempdir().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let bytes: Vec<u8> = (0..=255).collect();
    let tensors = [
        TensorData::new("x", Dtype::I16, &[100], &bytes[..200]),
        TensorData::new("y", Dtype::F32, &[7], &bytes[200..228]),
    ];
    safetensors::save(&one, &tensors, &quick()).unwrap();
    let loaded = Checkpoint::open(&one).unwrap().load().to_host().unwrap();
    let tensors: Vec<TensorData<'_>> = loaded.iter().map(Into::into).collect();
    safetensors::save(&two, &tensors, &quick()).unwrap();
    assert!(fs::read(one).unwrap() == fs::read(two).unwrap());
}

#[test]
fn a_model_is_saved_in_shards_with_an_index() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let names: Vec<String> = (0..5).map(|number| format!("layers.{number}")).collect();
    let bytes: Vec<Vec<u8>> = [40, 60, 250, 0, 100].map(|len| vec![len as u8; len]).into();
    let shapes: Vec<[u64; 1]> = bytes.iter().map(|bytes| [bytes.len() as u64]).collect();
    let tensors: Vec<_> = (0..5)
        .map(|number| TensorData::new(&names[number], Dtype::U8, &shapes[number], &bytes[number]))
        .collect();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let options = quick().metadata(metadata.clone()).shard_bytes(100);
    let safetensors::Saved { path: index, len_bytes, .. } =
        safetensors::save(&path, &tensors, &options).unwrap();
    assert_eq!(index, folder.path().join("model.safetensors.index.json"));
    let names_found = listed(folder.path());
    let ends = ["-00001-of-00003.safetensors", "-00002-of-00003.safetensors", "-00003-of-00003.safetensors"];
    for (name, end) in names_found.iter().zip(ends) {
        assert!(name.starts_with("model-") && name.ends_with(end), "{name}");
    }
    assert_eq!(names_found[3..], ["model.safetensors.index.json"]);
    assert!(fs::read_to_string(&index).unwrap().contains(r#""total_size": 450"#));
    let checkpoint = Checkpoint::open(&index).unwrap();
    let sizes: Vec<_> = checkpoint.files().map(|(_, header)| header.data_len_bytes()).collect();
    assert_eq!(sizes, [100, 250, 100]);
    assert_eq!(len_bytes, checkpoint.files().map(|(_, header)| header.file_len_bytes()).sum::<u64>());
    assert!(checkpoint.files().all(|(_, header)| header.metadata() == &metadata));
    let loaded = checkpoint.load().to_host().unwrap();
    for (name, bytes) in names.iter().zip(&bytes) {
        assert_eq!(loaded.bytes(name), Some(&bytes[..]));
    }

    // A tensor that is too long for a shard has one to itself, even the first tensor. No shard is empty.
    let index = safetensors::save(&path, &tensors, &replacing().shard_bytes(30)).unwrap().path;
    let checkpoint = Checkpoint::open(&index).unwrap();
    let sizes: Vec<_> = checkpoint.files().map(|(_, header)| header.data_len_bytes()).collect();
    assert_eq!(sizes, [40, 60, 250, 100]);
    let (first, _) = checkpoint.files().next().unwrap();
    assert!(first.path().to_str().unwrap().ends_with("-00001-of-00004.safetensors"));
    assert_eq!(listed(folder.path()).len(), 5, "the older shards are gone");
}

#[test]
fn lists_of_tensors_are_cut_at_the_limit() {
    let folder = tempdir().unwrap();
    let bytes = vec![7; 60];
    let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[60], &bytes));
    let lists = [&tensors[..2], &tensors[2..]];
    let path = folder.path().join("model.safetensors");
    for (limit, files) in [(60, 3), (120, 2), (180, 2)] {
        let saved = safetensors::save_shards(&path, &lists, &quick().shard_bytes(limit)).unwrap();
        assert_eq!(Checkpoint::open(&saved.path).unwrap().files().len(), files, "{limit}");
    }
}

/// Saves a model whose only tensors, `NAME.0` and so on, have a byte each.
fn save_bytes(path: &Path, name: &str, count: usize, shard_bytes: u64) -> PathBuf {
    let names: Vec<String> = (0..count).map(|number| format!("{name}.{number}")).collect();
    let byte = [7];
    let tensors: Vec<_> =
        names.iter().map(|name| TensorData::new(name, Dtype::U8, &[1], byte.as_slice())).collect();
    safetensors::save(path, &tensors, &replacing().shard_bytes(shard_bytes)).unwrap().path
}

#[test]
fn saves_that_replace_leave_only_the_last_model() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let mut old = 0;
    // Every number of files follows every other.
    for count in [1, 2, 1, 3, 2, 3, 1, 1, 2, 2] {
        let name = format!("saved{old}_then{count}");
        let opened = save_bytes(&path, &name, count, 1);
        let files = if count == 1 { 1 } else { count + 1 };
        assert_eq!(listed(folder.path()).len(), files + 1, "{:?}", listed(folder.path()));
        for path in [&opened, folder.path()] {
            let checkpoint = Checkpoint::open(path).unwrap();
            let names: Vec<_> = checkpoint
                .tensors()
                .map(|tensor| tensor.name)
                .map(|name| name.split('.').next().unwrap())
                .collect();
            assert_eq!(names, vec![name.as_str(); count]);
        }
        old = count;
    }
    assert!(folder.path().join("config.json").exists());
}

#[test]
fn saving_one_file_replaces_a_sharded_model() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    // Other libraries name shards like this. The index names one of them by chance.
    for name in ["model-00001-of-00002.safetensors", "config.json", "other-00001-of-00002.safetensors"] {
        safetensors::save(folder.path().join(name), &[], &quick()).unwrap();
    }
    let index = folder.path().join("model.safetensors.index.json");
    let json = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "config.json",
        "c": "other-00001-of-00002.safetensors"}}"#;
    fs::write(&index, json).unwrap();
    save_bytes(&path, "new", 1, 1);
    assert_eq!(
        listed(folder.path()),
        ["config.json", "model.safetensors", "other-00001-of-00002.safetensors"]
    );

    // The old index may be any of these.
    for json in ["", "[]", r#"{"weight_map": {"a": "../up"}}"#, r#"{"weight_map": {"a": "gone"}}"#] {
        fs::write(&index, json).unwrap();
        save_bytes(&path, "newer", 1, 1);
        assert!(!index.exists());
        fs::write(&index, json).unwrap();
        save_bytes(&path, "newest", 2, 1);
        assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), 2);
        assert!(!path.exists());
    }
    fs::remove_file(&index).unwrap();
    fs::create_dir(&index).unwrap();
    let error = safetensors::save(&path, &[], &replacing()).unwrap_err();
    assert!(error.to_string().contains("model.safetensors.index.json"), "{error}");
    assert!(!path.exists(), "a folder in the place of the index is found out in time");

    fs::remove_dir(&index).unwrap();
    save_bytes(&path, "old", 2, 1);
    fs::create_dir(&path).unwrap();
    let before = listed(folder.path());
    let error = safetensors::save(&path, &[], &quick()).unwrap_err();
    assert!(matches!(&error, Error::Save { path: named, .. } if *named == path), "{error}");
    assert_eq!(listed(folder.path()), before);
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), 2);
}

#[test]
fn saving_shards_replaces_the_file_at_the_path() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, "damaged").unwrap();
    save_bytes(&path, "new", 2, 1);
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), 2);
    assert!(!path.exists());

    // Some libraries write an index beside a single file, of that file.
    let index = save_bytes(&path, "newer", 1, 1).with_extension("safetensors.index.json");
    fs::write(&index, r#"{"weight_map": {"newer.0": "model.safetensors"}}"#).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), 1);
    save_bytes(&path, "newest", 3, 1);
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), 3);
    assert_eq!(listed(folder.path()).len(), 4);
}

#[test]
fn opening_during_replacement_finds_one_whole_model() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save_bytes(&path, "m", 1, 1);
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            for round in 0..60 {
                save_bytes(&path, &format!("m{round}"), [3, 1, 2, 2][round % 4], 1);
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut last = -1;
        while !done.load(Ordering::Relaxed) {
            let checkpoint = match Checkpoint::open(folder.path()) {
                // The new model is in place, and the old one is about to go.
                Err(Error::SeveralModels { .. }) => continue,
                opened => opened.unwrap(),
            };
            let mut rounds = checkpoint
                .tensors()
                .map(|tensor| tensor.name)
                .map(|name| name[1..].split('.').next().unwrap());
            let first = rounds.next().unwrap();
            assert!(rounds.all(|round| round == first), "{checkpoint:?}");
            let round = first.parse().unwrap_or(-1);
            assert!(round >= last, "an older model came back");
            last = round;
        }
    });
}

#[test]
fn opening_during_replacement_finds_one_split_model() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let names = ["a", "b", "c", "d"];
    let save = |round: u8| {
        let bytes = [round];
        let tensors = names.map(|name| gguf::TensorData::new(name, gguf::GgmlType::I8, &[1], &bytes[..]));
        gguf::save_split(&path, &gguf::Metadata::new(), &tensors, &quick().shard_bytes(1)).unwrap().path
    };
    let first = save(0);
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            (1..200).for_each(|round| drop(save(round)));
            done.store(true, Ordering::Relaxed);
        });
        let mut last = 0;
        while !done.load(Ordering::Relaxed) {
            let model = match gguf::Model::open(&first) {
                // The old files have other names for a moment.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(Error::Incomplete { .. }) => continue,
                opened => opened.unwrap(),
            };
            let rounds = names.map(|name| model.read_tensor(name).unwrap()[0]);
            assert!(rounds.iter().all(|round| *round == rounds[0]), "tensors of several models: {rounds:?}");
            assert!(rounds[0] >= last, "an older model came back");
            last = rounds[0];
        }
    });
    assert_eq!(gguf::Model::open(&first).unwrap().read_tensor("d").unwrap(), [199]);
    assert_eq!(listed(folder.path()).len(), names.len());
}

#[test]
fn folders_open_while_the_old_file_is_removed() {
    let folder = tempdir().unwrap();
    let (file, shard) = (folder.path().join("model.safetensors"), folder.path().join("shard"));
    save_bytes(&shard, "m", 1, 1);
    fs::write(folder.path().join("model.safetensors.index.json"), r#"{"weight_map": {"m.0": "shard"}}"#)
        .unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            // A save of shards removes the old file while the index names a link to it.
            while !done.load(Ordering::Relaxed) {
                fs::hard_link(&shard, &file).unwrap();
                fs::remove_file(&file).unwrap();
            }
        });
        let failed = (0..20_000).find_map(|_| Checkpoint::open(folder.path()).err());
        done.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{}", failed.unwrap());
    });
}

#[test]
fn concurrent_saves_leave_one_whole_model() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    thread::scope(|threads| {
        for saver in 0..4 {
            let path = &path;
            threads.spawn(move || {
                for round in 0..10 {
                    save_bytes(path, &format!("saver{saver}"), 1 + (round + saver) % 3, 1);
                }
            });
        }
    });
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let files = if path.exists() { 1 } else { checkpoint.tensors().len() + 1 };
    assert_eq!(listed(folder.path()).len(), files, "{:?}", listed(folder.path()));
}

#[test]
fn invalid_shards_are_refused_before_writing() {
    let folder = tempdir().unwrap();
    let bytes = vec![0; 8];
    let tensor = |name| TensorData::new(name, Dtype::U64, &[], &bytes);
    let save = |file: &str, tensors: &[TensorData<'_>]| {
        let path = folder.path().join(file);
        safetensors::save(path, tensors, &quick().shard_bytes(8)).unwrap_err()
    };
    let error = save("m.safetensors", &[tensor("a"), tensor("b"), tensor("a")]);
    assert!(matches!(error, Error::Format { error: FormatError::DuplicateTensor { .. }, .. }), "{error}");
    let error = save(r"m\n.safetensors", &[tensor("a"), tensor("b")]);
    assert!(matches!(error, Error::Format { error: FormatError::FileName { .. }, .. }), "{error}");
    let error = save("m.safetensors", &[tensor("a"), TensorData::new("b", Dtype::U8, &[9], &bytes)]);
    assert!(matches!(error, Error::BufferSize { .. }), "{error}");
    assert!(listed(folder.path()).is_empty());
}

#[test]
fn shards_of_unfit_names_are_refused_before_writing() {
    let folder = tempdir().unwrap();
    let byte = vec![0];
    let tensors = ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[1], &byte));
    let save = |name: &OsStr| {
        let path = folder.path().join(name);
        safetensors::save(path, &tensors, &quick().shard_bytes(1)).map_err(|error| error.to_string())
    };
    let long = |len: usize| format!("{}.safetensors", "n".repeat(len - ".safetensors".len()));
    for (name, cause) in [
        (OsStr::from_bytes(b"m\xff.safetensors"), "its name is not UTF-8"),
        (OsStr::new(&long(215)), "its name has more than 214 bytes"),
        (OsStr::new(&long(255)), "its name has more than 214 bytes"),
    ] {
        let error = save(name).unwrap_err();
        let cause = format!("{cause}; nothing was replaced");
        assert!(error.contains("cannot name shards of") && error.ends_with(&cause), "{error}");
        assert!(listed(folder.path()).is_empty());
        // One file is enough.
        safetensors::save(folder.path().join(name), &tensors, &quick()).unwrap();
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert_eq!(Checkpoint::open(save(OsStr::new(&long(214))).unwrap().path).unwrap().tensors().len(), 2);
}

#[test]
fn saves_ignore_access_and_creation_options() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("array.npy");
    fs::write(&path, "old").unwrap();
    // Saving ignores the access and the creation that options ask for.
    for options in [OpenOptions::new(), OpenOptions::new().write(true).create(true).truncate(true)] {
        let save = quick().files(&options);
        npy::write(&path, "<u2", &[2, 3], &vec![7; 12], &save.clone().order(Order::Fortran)).unwrap();
        let file = npy::NpyFile::open_with(&path, &options).unwrap();
        assert_eq!(file.header().order(), Order::Fortran);
        assert_eq!(file.read_to_host().unwrap(), [7; 12]);
    }
}

#[test]
fn saves_change_only_the_names_they_are_given() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    // A model of another library, its variant, and one of this crate, all beside the target.
    for name in
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.fp16.safetensors"]
    {
        safetensors::save(folder.path().join(name), &[], &quick()).unwrap();
    }
    let index = folder.path().join("model.safetensors.index.json");
    let json = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    fs::write(&index, json).unwrap();
    let byte = [7];
    let tensors = ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[1], byte.as_slice()));
    let state = |name: &String| {
        let metadata = fs::symlink_metadata(folder.path().join(name)).unwrap();
        let times = (metadata.mtime(), metadata.mtime_nsec());
        (name.clone(), metadata.ino(), metadata.mode(), times, fs::read(folder.path().join(name)).unwrap())
    };
    // The first save makes the file, and the second one two shards: the index was there before.
    for (options, new) in
        [(quick(), 1), (quick().shard_bytes(1), 2), (quick(), 0), (quick().shard_bytes(1), 2)]
    {
        let before: Vec<_> = listed(folder.path()).iter().map(state).collect();
        let at = safetensors::save(&path, &tensors, &options).unwrap().path;
        assert_eq!(listed(folder.path()).len(), before.len() + new);
        let named = at.file_name().unwrap().to_str().unwrap();
        for old in before.iter().filter(|old| old.0 != named) {
            assert_eq!(state(&old.0), *old);
        }
    }
    // Both models open by their paths.
    for at in [&path, &index] {
        assert_eq!(Checkpoint::open(at).unwrap().tensors().len(), 2);
    }
    assert!(matches!(Checkpoint::open(folder.path()), Err(Error::SeveralModels { .. })));
}
