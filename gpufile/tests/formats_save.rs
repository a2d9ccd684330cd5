//! Saved files are complete or not there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gpufile::OpenOptions;
use gpufile::formats::safetensors::{self, Checkpoint, Header, NewTensor, TensorData};
use gpufile::formats::{Dtype, Error, FormatError, SaveOptions, npy};
use tempfile::tempdir;

fn quick() -> SaveOptions {
    SaveOptions::new().sync(false)
}

/// The names in a folder.
fn listed(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_saved_file_is_its_header_and_the_tensors_where_it_says() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let (a, b, c) = (vec![1; 6], vec![2; 16], Vec::new());
    let tensors = [
        TensorData::new("a", Dtype::U8, &[2, 3], &a),
        TensorData::new("c", Dtype::F32, &[0], &c),
        TensorData::new("b", Dtype::F64, &[2], &b),
    ];
    let len_bytes = safetensors::save(&path, &tensors, metadata.clone()).unwrap();

    let new: Vec<_> = tensors
        .iter()
        .map(|tensor| NewTensor { name: tensor.name, dtype: tensor.dtype, shape: tensor.shape })
        .collect();
    let (header, head) = Header::build(&new, metadata).unwrap();
    let file = fs::read(&path).unwrap();
    assert_eq!((file.len() as u64, header.file_len()), (len_bytes, len_bytes));
    assert_eq!(file, [&head[..], &b, &a].concat());
    assert_eq!(listed(folder.path()), ["model.safetensors"]);
}

#[test]
fn a_new_file_has_the_permissions_of_any_new_file() {
    let folder = tempdir().unwrap();
    let (path, other) = (folder.path().join("model.safetensors"), folder.path().join("other"));
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    safetensors::save_with(&path, &[], BTreeMap::new(), &quick()).unwrap();
    fs::write(&other, "").unwrap();
    let (new, other) = (fs::metadata(&path).unwrap(), fs::metadata(&other).unwrap());
    assert_eq!(new.mode(), other.mode());
    assert_ne!(new.ino(), inode, "another file took its place");
}

#[test]
fn a_symbolic_link_is_replaced_and_not_what_it_leads_to() {
    let folder = tempdir().unwrap();
    let (link, target) = (folder.path().join("link.npy"), folder.path().join("target"));
    fs::write(&target, "untouched").unwrap();
    symlink(&target, &link).unwrap();
    npy::write_with(&link, "|u1", false, &[3], &vec![1, 2, 3], &quick()).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"untouched");
    assert!(fs::symlink_metadata(&link).unwrap().is_file());
}

#[test]
fn a_save_that_is_refused_leaves_the_old_file_and_nothing_else() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, "old").unwrap();
    let bytes = vec![0; 8];
    let cases: [(&[TensorData<'_>], &str); 4] = [
        (&[TensorData::new("a", Dtype::F32, &[3], &bytes)], r#"tensor "a": 12 bytes, and the buffer has 8"#),
        (&[TensorData::new("a", Dtype::C128, &[], &bytes)], "not in safetensors"),
        (&[TensorData::new("__metadata__", Dtype::U64, &[], &bytes)], "cannot be called"),
        (
            &[TensorData::new("a", Dtype::U64, &[], &bytes), TensorData::new("a", Dtype::U8, &[8], &bytes)],
            "twice",
        ),
    ];
    for (tensors, reason) in cases {
        let error = safetensors::save(&path, tensors, BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let error = npy::write(&path, "<f4", &[3], &bytes).unwrap_err();
    assert!(matches!(error, Error::BufferSize { needed_bytes: 12, buffer_bytes: 8, .. }), "{error}");
    assert!(matches!(npy::write(&path, "O", &[1], &bytes).unwrap_err(), Error::Format { .. }));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(listed(folder.path()), ["model.safetensors"]);
}

#[test]
fn a_path_where_no_file_can_be_is_an_error_that_names_it() {
    let folder = tempdir().unwrap();
    let missing = folder.path().join("no folder").join("model.safetensors");
    let error = safetensors::save(&missing, &[], BTreeMap::new()).unwrap_err();
    assert!(error.to_string().contains("no folder/"), "{error}");
    for path in ["/", "..", ""] {
        let error = safetensors::save(path, &[], BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("does not name a file"), "{path}: {error}");
        let both = [0; 2];
        let tensors = ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[1], &both[..1]));
        assert!(safetensors::save_sharded(path, &tensors, BTreeMap::new(), 1, &quick()).is_err());
    }
    // Found out only when everything has been written.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let error = safetensors::save(&taken, &[], BTreeMap::new()).unwrap_err();
    assert!(error.to_string().contains("cannot replace"), "{error}");
    assert_eq!(listed(folder.path()), ["taken"]);
}

#[test]
fn a_file_is_named_in_the_current_folder_too_and_however_long_its_name() {
    let folder = tempdir().unwrap();
    let long = folder.path().join("é".repeat(127));
    safetensors::save_with(&long, &[], BTreeMap::new(), &quick()).unwrap();
    assert_eq!(Checkpoint::open(&long).unwrap().len(), 0);

    let name = format!("gpufile-{}.safetensors", std::process::id());
    safetensors::save(&name, &[], BTreeMap::new()).unwrap();
    fs::remove_file(&name).unwrap();
}

#[test]
fn who_opens_a_path_while_it_is_saved_finds_one_of_both_files() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let models: [(&str, Vec<u8>); 2] = [("zeros", vec![0; 100_000]), ("ones", vec![1; 300_000])];
    let save = |(name, bytes): &(&str, Vec<u8>)| {
        let shape = [bytes.len() as u64];
        let tensors = [TensorData::new(name, Dtype::U8, &shape, bytes)];
        safetensors::save_with(&path, &tensors, BTreeMap::new(), &quick()).unwrap();
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
            let name = checkpoint.names().next().unwrap();
            let (_, expected) = models.iter().find(|(known, _)| *known == name).unwrap();
            assert!(checkpoint.read_tensor(name).unwrap() == *expected);
        }
    });
    assert_eq!(listed(folder.path()).len(), 1);
}

#[test]
fn what_was_loaded_can_be_saved_again() {
    let folder = tempdir().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let bytes: Vec<u8> = (0..=255).collect();
    let tensors = [
        TensorData::new("x", Dtype::I16, &[100], &bytes[..200]),
        TensorData::new("y", Dtype::F32, &[7], &bytes[200..228]),
    ];
    safetensors::save_with(&one, &tensors, BTreeMap::new(), &quick()).unwrap();
    let loaded = Checkpoint::open(&one).unwrap().load_to_host().unwrap();
    let tensors: Vec<TensorData<'_>> = loaded.iter().map(Into::into).collect();
    safetensors::save_with(&two, &tensors, BTreeMap::new(), &quick()).unwrap();
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
    let index = safetensors::save_sharded(&path, &tensors, metadata.clone(), 100, &quick()).unwrap();
    assert_eq!(index, folder.path().join("model.safetensors.index.json"));
    assert_eq!(
        listed(folder.path()),
        [
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
            "model.safetensors.index.json",
        ]
    );
    assert!(fs::read_to_string(&index).unwrap().contains(r#""total_size": 450"#));
    let checkpoint = Checkpoint::open(&index).unwrap();
    let sizes: Vec<_> = checkpoint.files().map(|(_, header)| header.data_len()).collect();
    assert_eq!(sizes, [100, 250, 100]);
    assert!(checkpoint.files().all(|(_, header)| header.metadata() == &metadata));
    let loaded = checkpoint.load_to_host().unwrap();
    for (name, bytes) in names.iter().zip(&bytes) {
        assert_eq!(loaded.bytes(name), Some(&bytes[..]));
    }

    // A tensor that is too long for a shard, the first one too, has one to itself, and no shard is empty.
    let index = safetensors::save_sharded(&path, &tensors, BTreeMap::new(), 30, &quick()).unwrap();
    let checkpoint = Checkpoint::open(&index).unwrap();
    let sizes: Vec<_> = checkpoint.files().map(|(_, header)| header.data_len()).collect();
    assert_eq!(sizes, [40, 60, 250, 100]);
    let (first, _) = checkpoint.files().next().unwrap();
    assert!(first.path().ends_with("model-00001-of-00004.safetensors"));

    let one = safetensors::save_sharded(&path, &tensors, BTreeMap::new(), 450, &quick()).unwrap();
    assert_eq!(one, path);
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 5);
}

#[test]
fn shards_that_no_index_could_name_are_refused_before_any_is_written() {
    let folder = tempdir().unwrap();
    let bytes = vec![0; 8];
    let tensor = |name| TensorData::new(name, Dtype::U64, &[], &bytes);
    let save = |file: &str, tensors: &[TensorData<'_>]| {
        let path = folder.path().join(file);
        safetensors::save_sharded(path, tensors, BTreeMap::new(), 8, &quick()).unwrap_err()
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
fn files_are_opened_as_the_options_say() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("array.npy");
    fs::write(&path, "old").unwrap();
    // Options that say no access, or to open what is there: what they say about that does not count.
    for options in [OpenOptions::new(), OpenOptions::new().write(true).create(true).truncate(true)] {
        let save = quick().files(&options);
        npy::write_with(&path, "<u2", true, &[2, 3], &vec![7; 12], &save).unwrap();
        let file = npy::NpyFile::open_with(&path, &options).unwrap();
        assert!(file.header().fortran_order());
        assert_eq!(file.read_to_host().unwrap(), [7; 12]);
    }
}
