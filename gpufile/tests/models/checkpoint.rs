//! Tests of models in safetensors files: they are loaded to the host, whole and in part, from one file and several.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gpufile::formats::safetensors::{self, Checkpoint, Header, NewTensor, Progress, TensorData, TensorInfo};
use gpufile::formats::{Dtype, Error, FormatError, SaveOptions, npy};
use gpufile::{Cause, IoBuf};
use tempfile::{TempDir, tempdir};

type Model = Vec<(&'static str, Dtype, Vec<u64>, Vec<u8>)>;

/// Returns bytes that differ from tensor to tensor and from place to place.
fn pattern(seed: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|index| (index * 7 + index / 251 + seed * 31) as u8).collect()
}

fn model(tensors: &[(&'static str, Dtype, &[u64])]) -> Model {
    let one = |(seed, &(name, dtype, shape)): (usize, &(&'static str, Dtype, &[u64]))| {
        let bits = shape.iter().product::<u64>() * u64::from(dtype.size_bits());
        (name, dtype, shape.to_vec(), pattern(seed, (bits / 8) as usize))
    };
    tensors.iter().enumerate().map(one).collect()
}

fn save(path: &Path, model: &Model) {
    let tensors: Vec<_> =
        model.iter().map(|(name, dtype, shape, bytes)| TensorData::new(name, *dtype, shape, bytes)).collect();
    safetensors::save(path, &tensors, &SaveOptions::new()).unwrap();
}

fn mixed() -> Model {
    model(&[
        ("embed", Dtype::BF16, &[1000, 33]),
        ("norm", Dtype::F32, &[33]),
        ("packed", Dtype::F4, &[6, 2]),
        ("none", Dtype::F64, &[0, 4]),
        ("step", Dtype::I64, &[]),
        ("mask", Dtype::Bool, &[5]),
    ])
}

/// Writes a file as no library does. The header has an odd length, and the tensors follow in the given order,
/// unaligned.
fn misaligned(path: &Path, model: &Model) {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in model {
        let start = data.len();
        data.extend_from_slice(bytes);
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{}]}}"#,
            data.len()
        ));
    }
    let mut json = format!("{{{}}}", entries.join(","));
    if json.len() % 2 == 0 {
        json.push(' ');
    }
    let file = [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &data].concat();
    fs::write(path, file).unwrap();
}

fn assert_loaded(checkpoint: &Checkpoint, model: &Model) {
    let loaded = checkpoint.load().to_host().unwrap();
    assert_eq!((loaded.iter().len(), checkpoint.tensors().len()), (model.len(), model.len()));
    for (name, dtype, shape, bytes) in model {
        let view = loaded.tensor(name).unwrap();
        assert_eq!((view.info.name, view.info.dtype, view.info.shape), (*name, *dtype, &shape[..]));
        assert_eq!(view.bytes.len_bytes(), bytes.len());
        assert_eq!(view.bytes.as_ptr(), loaded.buffer()[view.range.clone()].as_ptr());
        let element = dtype.size_bits().div_ceil(8) as usize;
        let alignment = if bytes.len() < 16 { element } else { 16 };
        assert_eq!(view.bytes.as_ptr().addr() % alignment, 0, "{name}");
        assert!(loaded.bytes(name).unwrap() == bytes, "{name}");
        assert!(checkpoint.read_tensor(name).unwrap() == *bytes, "{name}, alone");
    }
    assert!(loaded.iter().map(|tensor| tensor.info.name).eq(checkpoint.tensors().map(|tensor| tensor.name)));
    assert!(loaded.tensor("no such").is_none() && loaded.bytes("no such").is_none());
}

#[test]
fn every_tensor_is_loaded_aligned() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&path, &mixed());
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_loaded(&checkpoint, &mixed());
    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["step", "none", "norm", "embed", "packed", "mask"]);
    // Before norm and embed.
    assert_eq!(checkpoint.load().len_bytes().unwrap() as u64, checkpoint.len_bytes() + 8 + 12);
    let step = checkpoint.tensor("step").unwrap();
    assert_eq!((step.shape, step.len_bytes()), (&[][..], 8));
    let (file, header) = checkpoint.file_of("step").unwrap();
    assert_eq!((file.path(), header.tensors().len()), (&*path, 6));
    assert!(checkpoint.file_of("no such").is_none());

    let loaded = checkpoint.load().to_host().unwrap();
    let first = loaded.iter().next().unwrap();
    assert_eq!(first.bytes.as_ptr().addr() % 64, 0);
    let range = loaded.tensor("embed").unwrap().range;
    assert!(loaded.into_buffer()[range] == mixed()[0].3);
}

#[test]
fn tensors_misaligned_in_the_file_are_aligned_in_memory() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("odd.safetensors");
    let odd = model(&[
        ("a", Dtype::U8, &[3]),
        ("b", Dtype::F64, &[2]),
        ("c", Dtype::F64, &[1]),
        ("empty", Dtype::F64, &[0]),
        ("d", Dtype::BF16, &[1]),
        ("e", Dtype::U8, &[1]),
        ("f", Dtype::C64, &[4096]),
        ("g", Dtype::F32, &[3]),
        ("h", Dtype::I64, &[]),
    ]);
    misaligned(&path, &odd);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_loaded(&checkpoint, &odd);
    let gaps = checkpoint.load().len_bytes().unwrap() as u64 - checkpoint.len_bytes();
    // Before b, f and h.
    assert_eq!(gaps, 13 + 5 + 4);
}

#[test]
fn an_empty_file_loads_nothing() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("empty.safetensors");
    save(&path, &Model::new());
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(checkpoint.tensors().next().is_none() && checkpoint.len_bytes() == 0);
    let mut steps = Vec::new();
    let loaded = checkpoint.load().progress(|progress| steps.push(progress.total_bytes)).to_host().unwrap();
    assert!(loaded.iter().len() == 0 && loaded.iter().next().is_none());
    drop(loaded);
    assert_eq!(steps, [0]);
    assert!(
        Checkpoint::open_with([""; 0], &gpufile::OpenOptions::new())
            .unwrap()
            .load()
            .to_host()
            .unwrap()
            .iter()
            .next()
            .is_none()
    );
}

#[test]
fn only_the_chosen_tensors_are_loaded() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&path, &mixed());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let load = checkpoint.load().only(["mask", "norm", "mask", "embed"]).unwrap();
    // A gap makes the start of embed a multiple of 16.
    assert_eq!(load.len_bytes().unwrap(), 33 * 4 + 12 + 66_000 + 5);
    let loaded = load.to_host().unwrap();
    let names: Vec<_> = loaded.iter().map(|tensor| tensor.info.name).collect();
    assert_eq!(names, ["norm", "embed", "mask"]);
    for (name, _, _, bytes) in mixed() {
        let found = loaded.bytes(name);
        match names.contains(&name) {
            true => assert!(found == Some(&bytes[..]), "{name}"),
            false => assert!(found.is_none(), "{name}"),
        }
    }
    let error = checkpoint.load().only(["norm", "x"]).unwrap_err();
    assert!(matches!(&error, Error::NoSuchTensor { tensor, .. } if tensor == "x"), "{error}");
    assert!(checkpoint.load().only([""; 0]).unwrap().to_host().unwrap().iter().next().is_none());
}

#[test]
fn loading_into_a_caller_buffer_starts_at_zero() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&path, &mixed());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let len_bytes = checkpoint.load().len_bytes().unwrap();
    let mut memory = vec![0xee; len_bytes + 1];
    let loaded = checkpoint.load().to_buffer(&mut memory[..]).unwrap();
    assert_eq!(loaded.bytes("mask"), Some(&mixed()[5].3[..]));
    assert_eq!(loaded.tensor("step").unwrap().range, 0..8);
    assert_eq!(memory[len_bytes], 0xee);

    let error = checkpoint.load().to_buffer(&mut memory[..len_bytes - 1]).unwrap_err();
    let is_short =
        |needed_bytes, buffer_bytes| (needed_bytes, buffer_bytes) == (len_bytes as u64, len_bytes - 1);
    assert!(
        matches!(error, Error::BufferSize { needed_bytes, buffer_bytes, .. } if is_short(needed_bytes, buffer_bytes))
    );
}

#[test]
fn slices_of_a_tensor_are_read() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&path, &mixed());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut rows = vec![0; 3 * 66];
    checkpoint.read_slice_into("embed", 0, 997..1000, &mut rows).unwrap();
    assert!(rows == mixed()[0].3[997 * 66..]);
    checkpoint.read_slice_into("embed", 0, 5..5, &mut rows[..0]).unwrap();
    let mut columns = vec![0; 1000 * 4];
    checkpoint.read_slice_into("embed", 1, 7..9, &mut columns).unwrap();
    let expected: Vec<_> = mixed()[0].3.chunks(66).flat_map(|row| row[14..18].to_vec()).collect();
    assert!(columns == expected);

    let error = checkpoint.read_slice_into("embed", 0, 998..1001, &mut rows).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("model.safetensors") && text.contains("998 to 1001 of axis 0, which has 1000 indices"),
        "{text}"
    );
    for (name, axis) in [("step", 0), ("embed", 2)] {
        let error = checkpoint.read_slice_into(name, axis, 0..0, &mut rows[..0]).unwrap_err();
        assert!(matches!(error, Error::Format { error: FormatError::NoSuchSlice { .. }, .. }), "{error}");
    }
    let error = checkpoint.read_slice_into("embed", 0, 0..2, &mut rows).unwrap_err();
    let text = format!(
        r#"{path:?}: the buffer for 0 to 2 of axis 0 of tensor "embed" has 198 bytes instead of 132"#
    );
    assert_eq!(error.to_string(), text);
    let error = checkpoint.read_tensor_into("norm", &mut rows).unwrap_err();
    let text = format!(r#"{path:?}: the buffer for tensor "norm" has 198 bytes instead of 132"#);
    assert_eq!(error.to_string(), text);
    for error in [
        checkpoint.read_slice_into("x", 0, 0..1, &mut rows).unwrap_err(),
        checkpoint.read_tensor("x").unwrap_err(),
    ] {
        assert_eq!(error.to_string(), format!(r#"there is no tensor "x" in {path:?}"#));
    }
}

#[test]
fn tensors_load_into_buffers_of_the_caller() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&path, &mixed());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let zeros = |len_bytes: u64| Ok::<_, Infallible>(vec![0_u8; len_bytes as usize]);

    let loaded = checkpoint.load().to_each(|info| zeros(info.len_bytes())).unwrap();
    assert!(loaded.iter().map(|(info, _)| info.name).eq(checkpoint.tensors().map(|tensor| tensor.name)));
    for (name, _, _, bytes) in mixed() {
        let (_, buffer) = loaded.iter().find(|(info, _)| info.name == name).unwrap();
        assert!(*buffer == bytes, "{name}");
    }
    let two =
        checkpoint.load().only(["step", "mask"]).unwrap().to_each(|info| zeros(info.len_bytes())).unwrap();
    assert_eq!(two.len(), 2);

    let error = checkpoint.load().to_each(|info| zeros(info.len_bytes().max(1))).unwrap_err();
    let text = format!(r#"{path:?}: the buffer for tensor "none" has 1 bytes instead of 0"#);
    assert_eq!(error.to_string(), text);
    let error = checkpoint.load().to_each(|_| Err::<Vec<u8>, _>("no room")).unwrap_err();
    assert_eq!(error.to_string(), r#"cannot create a buffer for tensor "step": no room"#);
}

#[test]
fn failed_reads_name_the_tensor() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&path, &mixed());
    let checkpoint = Checkpoint::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1500).unwrap();
    let mut columns = vec![0; 1000 * 2];
    let zeros = |info: &TensorInfo<'_>| Ok::<_, Infallible>(vec![0_u8; info.len_bytes() as usize]);
    for error in [
        checkpoint.read_tensor("embed").unwrap_err(),
        checkpoint.read_slice_into("embed", 1, 5..6, &mut columns).unwrap_err(),
        checkpoint.load().only(["embed"]).unwrap().to_each(zeros).unwrap_err(),
        checkpoint.load().only(["embed", "mask", "step"]).unwrap().to_each(zeros).unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Tensor { tensor, .. } if tensor == "embed"), "{error}");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        let text = error.to_string();
        assert!(
            text.starts_with(r#"tensor "embed": cannot read "#) && text.contains("model.safetensors"),
            "{text}"
        );
    }
}

fn sharded(folder: &TempDir) -> (Vec<PathBuf>, PathBuf, Model) {
    let all = mixed();
    let (one, two) = all.split_at(2);
    let paths: Vec<_> = ["1", "2"].map(|n| folder.path().join(format!("{n}.safetensors"))).into();
    save(&paths[0], &one.to_vec());
    save(&paths[1], &two.to_vec());
    let index = folder.path().join("model.safetensors.index.json");
    let json = r#"{"metadata":{},"weight_map":{"norm":"1.safetensors","embed":"1.safetensors",
        "step":"2.safetensors","packed":"2.safetensors","none":"2.safetensors",
        "mask":"2.safetensors"}}"#;
    fs::write(&index, json).unwrap();
    (paths, index, all)
}

#[test]
fn several_files_open_as_one_model() {
    let folder = tempdir().unwrap();
    let (paths, index, all) = sharded(&folder);
    for checkpoint in [
        Checkpoint::open(&index).unwrap(),
        Checkpoint::open_with(&paths, &gpufile::OpenOptions::new()).unwrap(),
    ] {
        assert_loaded(&checkpoint, &all);
        let (file, _) = checkpoint.file_of("mask").unwrap();
        assert_eq!(file.path(), paths[1]);
        assert_eq!(checkpoint.files().len(), 2);
        let loaded = checkpoint.load().only(["mask", "norm"]).unwrap().to_host().unwrap();
        let found: Vec<_> = loaded.iter().map(|tensor| (tensor.info.name, tensor.range.start % 64)).collect();
        // The part of the vector behind its first bytes is aligned.
        let start = found[0].1;
        assert_eq!(found, [("norm", start), ("mask", start)]);
        assert_eq!(loaded.bytes("mask"), Some(&all[5].3[..]));
    }
    let without = |checkpoint: Checkpoint| checkpoint.read_tensor("x").unwrap_err().to_string();
    assert_eq!(without(Checkpoint::open(&index).unwrap()), format!(r#"there is no tensor "x" in {index:?}"#));
    let text = format!(r#"there is no tensor "x" in {:?} or the other file"#, paths[0]);
    assert_eq!(without(Checkpoint::open_with(&paths, &gpufile::OpenOptions::new()).unwrap()), text);

    let order = Checkpoint::open_with([&paths[1], &paths[0]], &gpufile::OpenOptions::new()).unwrap();
    assert_loaded(&order, &all);
    assert_eq!(order.tensors().next().map(|tensor| tensor.name), Some("step"));
}

#[test]
fn duplicate_tensor_error_names_both_files() {
    let folder = tempdir().unwrap();
    let (paths, ..) = sharded(&folder);
    let third = folder.path().join("3.safetensors");
    save(&third, &model(&[("x", Dtype::U8, &[1]), ("embed", Dtype::U8, &[1])]));
    let error =
        Checkpoint::open_with([&paths[1], &paths[0], &third], &gpufile::OpenOptions::new()).unwrap_err();
    let Error::DuplicateTensor { tensor, files, .. } = &error else { panic!("{error}") };
    assert_eq!((tensor.as_str(), &files[0], &files[1]), ("embed", &paths[0], &third));
    let text = error.to_string();
    assert!(text.contains("1.safetensors") && text.contains("3.safetensors"), "{text}");
}

#[test]
fn wrong_index_error_names_the_tensor() {
    let folder = tempdir().unwrap();
    let (_, index, _) = sharded(&folder);
    for (map, tensor) in [
        (r#""norm":"1.safetensors","gone":"2.safetensors""#, "gone"),
        (r#""norm":"2.safetensors","embed":"1.safetensors""#, "norm"),
    ] {
        fs::write(&index, format!(r#"{{"weight_map":{{{map}}}}}"#)).unwrap();
        let error = Checkpoint::open(&index).unwrap_err();
        let Error::NotInShard { tensor: found, file, .. } = &error else { panic!("{error}") };
        assert_eq!((found.as_str(), file), (tensor, &folder.path().join("2.safetensors")));
        assert!(error.to_string().contains("model.safetensors.index.json"), "{error}");
    }
    fs::write(&index, r#"{"weight_map":{"a":"9.safetensors"}}"#).unwrap();
    let error = Checkpoint::open(&index).unwrap_err();
    assert!(matches!(error, Error::Incomplete { count: 1, files: 1, .. }), "{error}");
    assert!(error.to_string().contains("9.safetensors"), "{error}");
    fs::write(&index, "[]").unwrap();
    let error = Checkpoint::open(&index).unwrap_err();
    assert!(matches!(&error, Error::Format { path, .. } if *path == index), "{error}");
}

#[test]
fn open_errors_name_the_file() {
    let folder = tempdir().unwrap();
    for name in ["gone.safetensors", "gone.json"] {
        let error = Checkpoint::open(folder.path().join(name)).unwrap_err();
        assert!(matches!(error, Error::File(gpufile::Error::Open { .. })), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let path = folder.path().join("short.safetensors");
    for contents in [&b""[..], b"\x01234567", &[8, 0, 0, 0, 0, 0, 0, 0, b'{']] {
        fs::write(&path, contents).unwrap();
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(matches!(error, Error::Format { error: FormatError::Truncated { .. }, .. }), "{error}");
        assert!(error.to_string().contains("short.safetensors"), "{error}");
    }
    let empty = tempdir().unwrap();
    let error = Checkpoint::open(empty.path()).unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn errors_quote_and_escape_the_file_name() {
    let folder = tempdir().unwrap();
    // An escape sequence of terminals, a line break, and a byte that is no character.
    let name = OsStr::from_bytes(b"\x1b[31m\n\xff");
    let (model, array) = (folder.path().join(name), folder.path().join(name).with_extension("npy"));
    save(&model, &mixed());
    npy::write(&array, "|u1", &[3], &[1, 2, 3][..], &SaveOptions::new()).unwrap();
    let (checkpoint, file) = (Checkpoint::open(&model).unwrap(), npy::NpyFile::open(&array).unwrap());
    let damaged = folder.path().join(name).with_extension("damaged");
    fs::write(&damaged, "damaged by somebody").unwrap();
    let mut short = [0; 2];
    let errors = [
        checkpoint.read_tensor("x").unwrap_err(),
        checkpoint.load().only(["x"]).unwrap_err(),
        checkpoint.load().to_buffer(&mut short[..]).unwrap_err(),
        checkpoint.read_slice_into("norm", 0, 40..41, &mut short[..]).unwrap_err(),
        checkpoint.read_tensor_into("norm", &mut short[..]).unwrap_err(),
        Checkpoint::open_with([&model, &model], &gpufile::OpenOptions::new()).unwrap_err(),
        Checkpoint::open(&damaged).unwrap_err(),
        Checkpoint::open(folder.path().join(name).join("gone")).unwrap_err(),
        file.read_into(&mut short[..]).unwrap_err(),
        file.read_rows_into(0..3, &mut short[..]).unwrap_err(),
        file.read_rows_into(0..4, &mut short[..]).unwrap_err(),
        npy::NpyFile::open(&damaged).unwrap_err(),
        npy::write(&array, "|u1", &[3], &short[..], &SaveOptions::new()).unwrap_err(),
        npy::write(model.join("gone"), "|u1", &[2], &short[..], &SaveOptions::new()).unwrap_err(),
        safetensors::save(&model, &[TensorData::new("x", Dtype::U8, &[3], &short[..])], &SaveOptions::new())
            .unwrap_err(),
    ];
    let escaped = format!("{name:?}");
    for error in errors {
        let text = error.to_string();
        assert!(text.contains(escaped.trim_matches('"')), "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn opening_a_folder_opens_its_model() {
    let folder = tempdir().unwrap();
    let tensor = |name| [TensorData::new(name, Dtype::U8, &[1], [7_u8].as_slice())];
    safetensors::save(folder.path().join("model.safetensors"), &tensor("one"), &SaveOptions::new()).unwrap();
    assert!(Checkpoint::open(folder.path()).unwrap().tensor("one").is_some());
    safetensors::save(folder.path().join("part.safetensors"), &tensor("two"), &SaveOptions::new()).unwrap();
    let index = r#"{"weight_map": {"two": "part.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    let Error::SeveralModels { models, .. } = &error else { panic!("{error}") };
    let [index, file] = &models[..] else { panic!("{error}") };
    assert!(Checkpoint::open(index).unwrap().tensor("two").is_some());
    assert!(Checkpoint::open(file).unwrap().tensor("one").is_some());
    fs::remove_file(file).unwrap();
    assert!(Checkpoint::open(folder.path()).unwrap().tensor("two").is_some());
}

/// Makes a pipe that nobody writes to.
fn pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends in a zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn pipes_are_refused_without_waiting() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let index = folder.path().join("model.safetensors.index.json");
    pipe(&path);
    pipe(&folder.path().join("pipe.json"));
    fs::write(folder.path().join("shard.json"), r#"{"weight_map": {"a": "model.safetensors"}}"#).unwrap();
    let (send, receive) = mpsc::channel();
    let paths = ["", "model.safetensors", "pipe.json", "shard.json"].map(|name| folder.path().join(name));
    let saving = thread::spawn(move || {
        for path in paths {
            send.send(Checkpoint::open(path).map(drop)).unwrap();
        }
        send.send(npy::NpyFile::open(&path).map(drop)).unwrap();
        // A save neither waits for a pipe nor replaces it.
        send.send(safetensors::save(&path, &[], &SaveOptions::new()).map(drop)).unwrap();
        // It leaves one beside its file alone.
        pipe(&index);
        fs::remove_file(&path).unwrap();
        safetensors::save(&path, &[], &SaveOptions::new()).unwrap();
        assert!(fs::symlink_metadata(&index).unwrap().file_type().is_fifo() && path.exists());
        drop(send);
    });
    for _ in 0..6 {
        let error = receive.recv_timeout(Duration::from_secs(60)).unwrap().unwrap_err();
        assert!(error.to_string().contains("it is not a regular file"), "{error}");
    }
    // The last save has ended without a panic.
    assert!(receive.recv().is_err() && saving.join().is_ok());
}

#[test]
fn open_waits_for_a_file_lease() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&path, &mixed());
    let holder = fs::File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: the call takes integers.
    let lease =
        |command, argument: libc::c_int| unsafe { libc::fcntl(holder.as_raw_fd(), command, argument) };
    /// `F_SETSIG`, which `libc` lacks. It chooses the signal that asks for a lease back, here one that ends no
    /// process.
    const F_SETSIG: libc::c_int = 10;
    assert_eq!(lease(F_SETSIG, libc::SIGURG), 0);
    if lease(libc::F_SETLEASE, libc::F_WRLCK) != 0 {
        // Some file systems have no leases, and some users may not take them.
        return;
    }
    let opening = thread::spawn(move || Checkpoint::open(path).unwrap().tensors().len());
    while lease(libc::F_GETLEASE, 0) == libc::F_WRLCK {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!opening.is_finished());
    assert_eq!(lease(libc::F_SETLEASE, libc::F_UNLCK), 0);
    assert_eq!(opening.join().unwrap(), mixed().len());
}

#[test]
fn truncation_after_open_is_an_error() {
    let folder = tempdir().unwrap();
    let (paths, index, _) = sharded(&folder);
    let checkpoint = Checkpoint::open(&index).unwrap();
    let len_bytes = fs::metadata(&paths[1]).unwrap().len();
    fs::File::options().write(true).open(&paths[1]).unwrap().set_len(len_bytes - 1).unwrap();
    for error in [
        checkpoint.load().to_host().unwrap_err(),
        checkpoint.load().only(["mask"]).unwrap().to_host().unwrap_err(),
        checkpoint.load().progress(drop).to_host().unwrap_err(),
        checkpoint.read_tensor("mask").unwrap_err(),
    ] {
        let cause = match &error {
            Error::File(error) => error.cause(),
            Error::Tensor { error, .. } => error.cause(),
            _ => panic!("{error}"),
        };
        assert!(matches!(cause, Cause::EndOfFile { at } if *at == len_bytes - 1), "{error}");
        assert!(error.to_string().contains("2.safetensors"), "{error}");
        assert!(!error.to_string().contains("entry"), "{error}");
    }
    assert!(checkpoint.read_tensor("norm").is_ok());
}

#[test]
fn files_larger_than_memory_are_an_error() {
    // Other file systems have no files of that length.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = folder.path().join("huge.safetensors");
    let tensors = [NewTensor { name: "huge", dtype: Dtype::U8, shape: &[1 << 61] }];
    let (header, head) = Header::build(&tensors, BTreeMap::new()).unwrap();
    fs::write(&path, head).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(header.file_len_bytes()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for error in [checkpoint.load().to_host().unwrap_err(), checkpoint.read_tensor("huge").unwrap_err()] {
        assert!(matches!(error, Error::Memory { len_bytes, .. } if len_bytes >= 1 << 61), "{error}");
        assert!(error.to_string().contains("huge.safetensors"), "{error}");
    }
}

#[test]
fn progress_comes_in_large_steps_and_changes_no_bytes() {
    const STEP: u64 = 256 << 20;
    let folder = tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    let shapes = [[100 << 20], [200 << 20], [1 << 20]];
    let tensors: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .zip(&shapes)
        .map(|(name, shape)| NewTensor { name, dtype: Dtype::U8, shape })
        .collect();
    let (header, head) = Header::build(&tensors, BTreeMap::new()).unwrap();
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&head, 0).unwrap();
    file.set_len(header.file_len_bytes()).unwrap();
    // The lengths lie around the cut in b, and at the ends of the tensors.
    for at in [0, (100 << 20) - 1, 100 << 20, STEP - 1, STEP, (300 << 20) - 1, 300 << 20, (301 << 20) - 1] {
        file.write_all_at(&[(at % 253 + 1) as u8], header.data_start() + at).unwrap();
    }

    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut steps = Vec::new();
    let loaded = checkpoint.load().progress(|progress| steps.push(progress)).to_host().unwrap();
    let seen: Vec<_> =
        steps.iter().map(|Progress { done_bytes, total_bytes, .. }| (*done_bytes, *total_bytes)).collect();
    assert_eq!(seen, [(STEP, 301 << 20), (301 << 20, 301 << 20)]);
    let mut found = Vec::new();
    for tensor in loaded.iter() {
        let start = header.get(tensor.info.name).unwrap().offsets.start;
        let bytes = loaded.buffer()[tensor.range].iter().enumerate();
        found.extend(bytes.filter(|(_, byte)| **byte != 0).map(|(at, byte)| (start + at as u64, *byte)));
    }
    assert_eq!(found.len(), 8);
    for (at, byte) in found {
        assert_eq!(byte, (at % 253 + 1) as u8, "{at}");
    }
}

#[test]
fn all_of_many_tensors_are_found() {
    let names: Vec<String> = (0..65_536).map(|index| format!("layers.{index}")).collect();
    let numbers: Vec<[u8; 4]> = (0..65_536_u32).map(u32::to_le_bytes).collect();
    let tensors: Vec<_> = names
        .iter()
        .zip(&numbers)
        .map(|(name, number)| TensorData::new(name, Dtype::U32, &[], number.as_slice()))
        .collect();
    let folder = tempdir().unwrap();
    let path = folder.path().join("tiny.safetensors");
    safetensors::save(&path, &tensors, &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let loaded = checkpoint.load().to_host().unwrap();
    assert_eq!(loaded.iter().len(), 65_536);
    for (name, number) in names.iter().zip(&numbers) {
        assert_eq!(loaded.bytes(name), Some(&number[..]));
    }
    let every_other: Vec<_> = names.iter().step_by(2).collect();
    let loaded = checkpoint.load().only(&every_other).unwrap().to_host().unwrap();
    assert_eq!(loaded.iter().len(), 32_768);
    for (index, (name, number)) in names.iter().zip(&numbers).enumerate() {
        assert_eq!(loaded.bytes(name), (index % 2 == 0).then_some(&number[..]));
    }
}
