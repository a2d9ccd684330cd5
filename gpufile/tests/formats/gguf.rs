//! Tests of GGUF files on the host: reading, writing, split models, and the text of each refusal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gpufile::formats::gguf::{
    self, Array, GgmlType, Header, MAX_HEADER_LEN, Metadata, Model, NewTensor, Strings, TensorData, Value,
};
use gpufile::formats::{Error, FormatError, InPlace, SaveOptions};

fn metadata() -> Metadata {
    let arrays = [
        ("u8s", Array::U8(vec![1, 255])),
        ("i8s", Array::I8(vec![-1, 127])),
        ("u16s", Array::U16(vec![65535])),
        ("i16s", Array::I16(vec![-2; 3])),
        ("u32s", Array::U32(vec![])),
        ("i32s", Array::I32(vec![-3, 4])),
        ("u64s", Array::U64(vec![u64::MAX])),
        ("i64s", Array::I64(vec![i64::MIN])),
        ("f32s", Array::F32(vec![0.5, -1e30])),
        ("f64s", Array::F64(vec![1e300])),
        ("bools", Array::Bool(vec![true, false, true])),
        ("strings", Array::Strings(Strings::from_iter(["<s>", "", "模型"]))),
    ];
    let values = [
        ("general.architecture", Value::from("llama")),
        ("u8", 200_u8.into()),
        ("i8", (-100_i8).into()),
        ("u16", 60_000_u16.into()),
        ("i16", (-30_000_i16).into()),
        ("u32", 4_000_000_000_u32.into()),
        ("i32", (-2_000_000_000_i32).into()),
        ("u64", u64::MAX.into()),
        ("i64", i64::MIN.into()),
        ("f32", 1.5_f32.into()),
        ("f64", (-2.25_f64).into()),
        ("bool", true.into()),
    ];
    values.into_iter().chain(arrays.map(|(key, array)| (key, array.into()))).collect()
}

const TENSORS: [NewTensor<'_>; 5] = [
    NewTensor { name: "embed", ggml_type: GgmlType::Q4K, shape: &[3, 512] },
    NewTensor { name: "norm", ggml_type: GgmlType::F32, shape: &[5] },
    NewTensor { name: "scale", ggml_type: GgmlType::F64, shape: &[] },
    NewTensor { name: "none", ggml_type: GgmlType::Q8_0, shape: &[0, 32] },
    NewTensor { name: "模型.weight", ggml_type: GgmlType::BF16, shape: &[2, 1, 3, 7] },
];

/// Returns the bytes of each tensor, which differ from all others.
fn contents(header: &Header) -> Vec<Vec<u8>> {
    let bytes = |tensor: gguf::TensorInfo<'_>| {
        (tensor.range.start..tensor.range.end).map(|at| (at * 7 % 251) as u8).collect()
    };
    TENSORS.iter().map(|tensor| bytes(header.get(tensor.name).unwrap())).collect()
}

fn data<'a>(new: &[NewTensor<'a>], contents: &'a [Vec<u8>]) -> Vec<TensorData<'a>> {
    let one = |(new, bytes): (&NewTensor<'a>, &'a Vec<u8>)| {
        TensorData::new(new.name, new.ggml_type, new.shape, bytes)
    };
    new.iter().zip(contents).map(one).collect()
}

fn save_all(path: &Path, metadata: &Metadata) -> Vec<Vec<u8>> {
    let contents = contents(&Header::build(metadata.clone(), &TENSORS).unwrap().0);
    let len = gguf::save(path, metadata, &data(&TENSORS, &contents), &SaveOptions::new()).unwrap();
    assert_eq!(fs::metadata(path).unwrap().len(), len);
    contents
}

#[test]
fn saved_files_are_read_whole_in_part_and_by_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for alignment in [None, Some(1), Some(8), Some(64), Some(1 << 16)] {
        let mut metadata = metadata();
        alignment.map(|alignment: u32| metadata.insert("general.alignment", alignment));
        let contents = save_all(&path, &metadata);
        let model = Model::open(&path).unwrap();
        assert_eq!(model.metadata(), &metadata);
        let found: Vec<_> =
            model.tensors().map(|tensor| (tensor.name, tensor.ggml_type, tensor.shape)).collect();
        assert_eq!(found, TENSORS.map(|tensor| (tensor.name, tensor.ggml_type, tensor.shape)));

        let loaded = model.load().to_host().unwrap();
        let some = model.load().only(["scale", "embed", "scale"]).unwrap().to_host().unwrap();
        let each = model.load().to_each(|info| Ok::<_, Error>(vec![0; info.len_bytes() as usize])).unwrap();
        let mut buffer = vec![0xee; model.load().len_bytes().unwrap() + 9];
        let in_buffer = model.load().to_buffer(&mut buffer[..]).unwrap();
        for (number, (NewTensor { name, .. }, bytes)) in TENSORS.iter().zip(&contents).enumerate() {
            let is_some = ["embed", "scale"].contains(name);
            assert_eq!(loaded.bytes(name), Some(&bytes[..]), "{name}");
            assert_eq!(some.bytes(name), is_some.then_some(&bytes[..]), "{name}");
            assert_eq!(in_buffer.bytes(name), Some(&bytes[..]), "{name}");
            assert_eq!(&model.read_tensor(name).unwrap(), bytes, "{name}");
            assert_eq!((each[number].0.name, &each[number].1), (*name, bytes));
            let view = loaded.tensor(name).unwrap();
            let address = loaded.buffer().as_ptr().addr() + view.range.start;
            let aligned = alignment.unwrap_or(32).clamp(16, 64) as usize;
            assert!(
                bytes.is_empty() || address.is_multiple_of(aligned),
                "{name} at {address}, {alignment:?}"
            );
        }
        let mut rows = vec![0; 2 * 288];
        model.read_rows_into("embed", 1..3, &mut rows).unwrap();
        assert_eq!(rows, contents[0][288..]);
    }
}

#[test]
fn loaded_tensors_are_saved_again_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("1.gguf"), folder.path().join("2.gguf"));
    save_all(&one, &metadata());
    let model = Model::open(&one).unwrap();
    let loaded = model.load().to_host().unwrap();
    let tensors: Vec<_> = loaded.iter().map(TensorData::from).collect();
    gguf::save(&two, model.metadata(), &tensors, &SaveOptions::new()).unwrap();
    assert!(fs::read(one).unwrap() == fs::read(two).unwrap());
}

#[test]
fn version_2_and_files_without_padding_are_read() {
    let (header, mut file) = Header::build(metadata(), &TENSORS).unwrap();
    file[4] = 2;
    let end = header.tensors().last().unwrap().range.end;
    assert!(end < header.file_len_bytes());
    let found = Header::parse(&file, end).unwrap();
    assert_eq!((found.version(), header.version()), (2, 3));
    assert!(found.tensors().eq(header.tensors()));
    // A vocabulary has no tensors, and may end without padding.
    let (header, file) = Header::build(metadata(), &[]).unwrap();
    let end = (1..file.len()).find(|len| Header::parse(&file[..*len], *len as u64).is_ok()).unwrap();
    assert!(end < file.len() && header.data_start() == file.len() as u64);
    assert_eq!(Header::parse(&file[..end], end as u64).unwrap().metadata(), &metadata());
}

#[test]
fn long_headers_are_read_in_several_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocabulary.gguf");
    let tokens: Strings = (0..700_000).map(|number| format!("token {number}")).collect();
    let metadata = Metadata::from_iter([("tokens", Array::Strings(tokens))]);
    let bytes = [1_u8, 2, 3];
    let tensor = TensorData::new("w", GgmlType::I8, &[3], &bytes[..]);
    gguf::save(&path, &metadata, &[tensor], &SaveOptions::new()).unwrap();
    let model = Model::open(&path).unwrap();
    assert!(model.file_of("w").unwrap().1.data_start() > 5 << 20);
    let tokens = model.metadata().get("tokens").and_then(Value::as_array).and_then(Array::as_strings);
    assert_eq!(tokens.unwrap().get(699_999), Some("token 699999"));
    assert_eq!(model.read_tensor("w").unwrap(), bytes);
}

#[test]
fn failed_saves_keep_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    save_all(&path, &metadata());
    let before = fs::read(&path).unwrap();
    let save = |tensors: &[TensorData<'_>]| gguf::save(&path, &Metadata::new(), tensors, &SaveOptions::new());
    let w = |bytes| TensorData::new("w", GgmlType::F32, &[2], bytes);
    let error = save(&[w(&[0_u8; 7][..])]).unwrap_err();
    assert!(matches!(error, Error::BufferSize { needed_bytes: 8, buffer_bytes: 7, .. }), "{error}");
    let eight = &[0_u8; 8][..];
    let error = save(&[w(eight), w(eight)]).unwrap_err();
    assert!(matches!(error, Error::Format { error: FormatError::DuplicateTensor { .. }, .. }), "{error}");
    let missing = folder.path().join("no/model.gguf");
    let error = gguf::save(missing, &Metadata::new(), &[w(eight)], &SaveOptions::new()).unwrap_err();
    assert!(matches!(error, Error::Save { in_place: InPlace::Old, .. }), "{error}");
    assert!(fs::read(&path).unwrap() == before && fs::read_dir(folder.path()).unwrap().count() == 1);
}

fn refused(head: &[u8]) -> FormatError {
    Header::parse(head, head.len() as u64).unwrap_err()
}

fn head(tensors: u64, entries: u64, parts: &[&[u8]]) -> Vec<u8> {
    let mut head = b"GGUF\x03\0\0\0".to_vec();
    head.extend(tensors.to_le_bytes());
    head.extend(entries.to_le_bytes());
    parts.iter().for_each(|part| head.extend(*part));
    head
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn tensor(name: &[u8], axes: &[u64], number: u32, offset: u64) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((axes.len() as u32).to_le_bytes());
    bytes.extend(axes.iter().flat_map(|axis| axis.to_le_bytes()));
    bytes.extend(number.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key.as_bytes())[..], &kind.to_le_bytes(), value].concat()
}

#[test]
fn starts_of_other_files_are_refused() {
    assert_eq!(refused(b"\x93NUMPY").to_string(), "not GGUF data: it does not start with GGUF");
    for (version, text) in [
        (1, "version 1 is not supported, only versions 2 and 3"),
        (4, "version 4 is not supported, only versions 2 and 3"),
        (0, "version 0 is not supported, only versions 2 and 3"),
        (3 << 24, "the file is big-endian, which is not supported; convert it to little-endian"),
    ] {
        let mut file = head(0, 0, &[]);
        file[4..8].copy_from_slice(&u32::to_le_bytes(version));
        assert_eq!(refused(&file).to_string(), format!("at byte 4 of the GGUF file: {text}"));
    }
    for len in 0..24 {
        let error = refused(&head(0, 0, &[])[..len]);
        assert!(matches!(error, FormatError::Truncated { .. }), "{len}: {error}");
    }
    assert!(Header::parse(&head(0, 0, &[]), 24).is_ok());
}

#[test]
fn hostile_lengths_and_counts_are_refused() {
    const HUGE: [u64; 4] = [u64::MAX, 1 << 63, 1 << 40, 1000];
    for huge in HUGE {
        let length = huge.to_le_bytes();
        let array = |item: u32| entry("k", 9, &[&item.to_le_bytes()[..], &length].concat());
        for file in [
            head(huge, 0, &[]),
            head(0, huge, &[]),
            head(0, 1, &[&length, &[0; 16]]),
            head(0, 1, &[&entry("k", 8, &length)]),
            head(0, 1, &[&array(0)]),
            head(0, 1, &[&array(8)]),
            head(0, 1, &[&array(12)]),
            head(1, 0, &[&length, &[0; 24]]),
        ] {
            let error = refused(&file);
            assert!(matches!(error, FormatError::Truncated { .. }), "{huge}: {error}");
            let error = Header::parse(&file, u64::MAX).unwrap_err();
            let is_long = matches!(error, FormatError::HeaderTooLarge { limit_bytes: MAX_HEADER_LEN, .. });
            assert!(is_long || huge == 1000, "{huge}: {error}");
        }
    }
}

#[test]
fn hostile_metadata_is_refused() {
    let nested = |depth: usize| {
        let array = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
        let last = [&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
        head(0, 1, &[&entry("k", 9, &[&array.repeat(depth - 1)[..], &last].concat())])
    };
    assert!(Header::parse(&nested(1), 4096).is_ok());
    let alignment = |kind, value: &[u8]| entry("general.alignment", kind, value);
    for (file, text) in [
        (nested(2), "at byte 37 of the GGUF file: an array has arrays as elements, which ggml refuses"),
        (nested(100_000), "at byte 37 of the GGUF file: an array has arrays as elements, which ggml refuses"),
        (
            head(0, 1, &[&entry("k", 13, &[0; 8])]),
            "at byte 33 of the GGUF file: 13 is not the type of a value",
        ),
        (
            head(0, 1, &[&entry("k", 9, &[&99_u32.to_le_bytes()[..], &[0; 8]].concat())]),
            "at byte 37 of the GGUF file: 99 is not the type of a value",
        ),
        (
            head(0, 1, &[&entry("k", 7, &[2])]),
            "at byte 37 of the GGUF file: a truth value is 2 instead of 0 or 1",
        ),
        (head(0, 1, &[&entry("", 7, &[1])]), "at byte 24 of the GGUF file: a key of the metadata is empty"),
        (
            head(0, 1, &[&entry("k", 8, &string(b"a\xff"))]),
            "at byte 46 of the GGUF file: a string is not UTF-8",
        ),
        (head(0, 1, &[&string(b"\xc3"), &[0; 5]]), "at byte 32 of the GGUF file: a string is not UTF-8"),
        (head(0, 2, &[&entry("k", 7, &[1]), &entry("k", 7, &[1])]), "\"k\" occurs twice"),
        (
            head(0, 1, &[&alignment(4, &0_u32.to_le_bytes())]),
            "at byte 0 of the GGUF file: general.alignment must be a power of two of 32 bits, but is 0",
        ),
        (
            head(0, 1, &[&alignment(4, &24_u32.to_le_bytes())]),
            "at byte 0 of the GGUF file: general.alignment must be a power of two of 32 bits, but is 24",
        ),
        (
            head(0, 1, &[&alignment(8, &string(b"32"))]),
            "at byte 0 of the GGUF file: general.alignment must be a power of two of 32 bits, but is not such a number",
        ),
    ] {
        assert_eq!(refused(&file).to_string(), text);
    }
}

#[test]
fn hostile_tensors_are_refused_by_name() {
    let one = |tensor: &[u8]| head(1, 0, &[tensor, &[0; 256]]);
    let two = |a: &[u8], b: &[u8]| head(2, 0, &[a, b, &[0; 256]]);
    for (file, text) in [
        (
            one(&tensor(b"w", &[4], 77, 0)),
            r#"tensor "w": the element type "77" is unknown, at byte 45 of the file"#,
        ),
        (
            one(&tensor(b"w", &[4], 31, 0)),
            r#"tensor "w": the element type "Q4_0_4_4 (31)" was removed from the format; convert the model again, at byte 45 of the file"#,
        ),
        (
            one(&tensor(b"w", &[33], 2, 0)),
            r#"tensor "w": elements 0 to 33 are not whole blocks of Q4_0, which have 32 elements"#,
        ),
        (
            one(&tensor(b"w", &[1; 5], 0, 0)),
            r#"tensor "w": at byte 33 of the GGUF file: 5 axes are more than 4"#,
        ),
        (
            one(&tensor(b"w", &[u64::MAX, u64::MAX], 0, 0)),
            r#"tensor "w": shape times element size is more than 2^64 - 1 bytes, with zeros in the shape counted as 1"#,
        ),
        (
            one(&tensor(b"w", &[2], 0, 4)),
            r#"tensor "w": at byte 57 of the GGUF file: the tensor's offset 4 is not a multiple of the alignment 32"#,
        ),
        (
            one(&tensor(b"w", &[64], 0, 32)),
            r#"tensor "w": it ends at byte 288 of the data, but the file has only 249 bytes of data; the file may be incomplete"#,
        ),
        (
            one(&tensor(b"w", &[64], 0, u64::MAX - 31)),
            r#"tensor "w": it ends at byte 18446744073709551615 of the data, but the file has only 249 bytes of data; the file may be incomplete"#,
        ),
        (
            two(&tensor(b"b", &[9], 0, 0), &tensor(b"a", &[1], 0, 32)),
            r#"tensor "a": it starts at byte 128 of the file, inside tensor "b""#,
        ),
        (two(&tensor(b"b", &[1], 0, 0), &tensor(b"b", &[1], 0, 32)), r#"tensor "b" occurs twice"#),
        (one(&tensor(b"\xff", &[1], 0, 0)), "at byte 32 of the GGUF file: a string is not UTF-8"),
    ] {
        assert_eq!(refused(&file).to_string(), text);
    }
    // Gaps and another order are accepted.
    let file = two(&tensor(b"b", &[1], 0, 96), &tensor(b"a", &[1], 0, 0));
    let header = Header::parse(&file, file.len() as u64).unwrap();
    assert!(header.tensors().map(|tensor| tensor.name).eq(["a", "b"]));
}

#[test]
fn unwritable_files_are_refused() {
    let new = |name, shape| NewTensor { name, ggml_type: GgmlType::F32, shape };
    let build = |tensors: &[NewTensor<'_>]| Header::build(Metadata::new(), tensors).unwrap_err();
    assert!(matches!(build(&[new("w", &[1; 5])]), FormatError::Syntax { tensor: Some(_), .. }));
    let half: &[u64] = &[1 << 61];
    let error = build(&[new("a", half), new("b", half)]);
    assert!(matches!(&error, FormatError::FileOverflow { tensor, .. } if tensor == "b"), "{error}");
    for (key, value) in [("", Value::Bool(true)), ("general.alignment", 3_u32.into())] {
        let error = Header::build(Metadata::from_iter([(key, value)]), &[]).unwrap_err();
        assert!(matches!(error, FormatError::Syntax { .. }), "{key}: {error}");
    }
}

#[test]
fn names_longer_than_those_of_ggml_are_refused() {
    // Bytes count, not characters.
    for (name, is_short) in [("n".repeat(63), true), ("n".repeat(64), false), ("模".repeat(21) + "n", false)]
    {
        let new = NewTensor { name: &name, ggml_type: GgmlType::F32, shape: &[1] };
        let file = head(1, 0, &[&tensor(name.as_bytes(), &[1], 0, 0), &[0; 64]]);
        let found =
            [Header::build(Metadata::new(), &[new]).err(), Header::parse(&file, file.len() as u64).err()];
        let text = format!(
            "tensor {name:?}: at byte 24 of the GGUF file: its name has 64 bytes, but ggml reads at most 63"
        );
        for error in found {
            assert_eq!(error.map(|error| error.to_string()), (!is_short).then(|| text.clone()));
        }
    }
}

#[test]
fn rows_are_whole_blocks() {
    let (header, _) = Header::build(
        Metadata::new(),
        &[
            NewTensor { name: "flat", ggml_type: GgmlType::Q4_0, shape: &[96] },
            NewTensor { name: "rows", ggml_type: GgmlType::Q4_0, shape: &[5, 2, 32] },
            NewTensor { name: "scalar", ggml_type: GgmlType::F32, shape: &[] },
        ],
    )
    .unwrap();
    let slice = |name, rows| {
        let tensor = header.get(name).unwrap();
        tensor.slice_rows(rows).map(|range| range.start - tensor.range.start..range.end - tensor.range.start)
    };
    assert_eq!(slice("flat", 32..96), Ok(18..54));
    assert_eq!(slice("rows", 1..4), Ok(36..144));
    assert_eq!(slice("rows", 2..2), Ok(72..72));
    let text = r#"tensor "flat": elements 32 to 95 are not whole blocks of Q4_0, which have 32 elements"#;
    assert_eq!(slice("flat", 32..95).unwrap_err().to_string(), text);
    for (name, rows) in [("rows", 1..6), ("rows", u64::MAX..u64::MAX), ("scalar", 0..0)] {
        assert!(matches!(slice(name, rows), Err(FormatError::NoSuchSlice { .. })), "{name}");
    }
}

/// Saves a model of three files, each with one tensor.
fn split(folder: &Path, change: impl Fn(u16, &mut Metadata)) -> Vec<PathBuf> {
    let save = |number: u16| {
        let path = folder.join(format!("m-{:05}-of-00003.gguf", number + 1));
        let mut metadata = Metadata::from_iter([("split.no", number), ("split.count", 3)]);
        metadata.insert("split.tensors.count", 3_i32);
        change(number, &mut metadata);
        let (name, bytes) = (format!("blk.{number}"), [number as u8; 5]);
        let tensors = [TensorData::new(&name, GgmlType::I8, &[5], &bytes[..])];
        gguf::save(&path, &metadata, &tensors, &SaveOptions::new()).unwrap();
        path
    };
    (0..3).map(save).collect()
}

#[test]
fn split_models_open_by_any_of_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = split(folder.path(), |number, metadata| {
        (number == 0).then(|| metadata.insert("general.architecture", "llama"));
    });
    for path in &files {
        let model = Model::open(path).unwrap();
        assert_eq!(model.metadata().get("general.architecture").and_then(Value::as_str), Some("llama"));
        assert!(model.files().map(|(file, _)| file.path()).eq(&files));
        let loaded = model.load().to_host().unwrap();
        for number in 0..3_u8 {
            assert_eq!(loaded.bytes(&format!("blk.{number}")), Some(&[number; 5][..]));
        }
        assert_eq!(model.len_bytes(), 15);
        let error = model.read_tensor("blk.3").unwrap_err();
        assert!(matches!(error, Error::NoSuchTensor { others: 2, .. }), "{error}");
    }
}

#[test]
fn split_models_name_what_is_missing_or_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let text = |path: &Path| Model::open(path).unwrap_err().to_string();
    let files = split(folder.path(), |number, metadata| {
        (number == 2).then(|| metadata.insert("split.no", 1_u16));
    });
    assert!(text(&files[0]).ends_with("it is file 2 of 3, by split.no and split.count"));
    fs::remove_file(&files[1]).unwrap();
    fs::remove_file(&files[2]).unwrap();
    let error = Model::open(&files[0]).unwrap_err();
    let Error::Incomplete { missing, count, files: 3, .. } = error else { panic!("{error}") };
    assert_eq!((missing, count), (files[1..].to_vec(), 2));

    let files = split(folder.path(), |_, metadata| drop(metadata.insert("split.tensors.count", 4_i32)));
    assert!(text(&files[1]).ends_with("its files have 3 tensors, but split.tensors.count is 4"));
    let renamed = folder.path().join("m.gguf");
    fs::rename(&files[0], &renamed).unwrap();
    assert!(text(&renamed).ends_with(r#"its name must end in "-00001-of-00003.gguf""#), "{}", text(&renamed));
    for (key, value, wanted) in [
        ("split.no", Value::U16(3), "split.no is 3 and split.count is 3"),
        ("split.count", Value::U64(1 << 40), "split.no is 0 and split.count is 1099511627776"),
        ("split.count", Value::from("3"), "split.count is no number"),
    ] {
        let files = split(folder.path(), |_, metadata| drop(metadata.insert(key, value.clone())));
        assert!(text(&files[0]).ends_with(wanted), "{}", text(&files[0]));
    }
    let files = split(folder.path(), |_, metadata| drop(metadata.insert("split.count", 0_u16)));
    assert!(text(&files[1]).contains("its name says that it is file 2 of 3"), "{}", text(&files[1]));
    let files = split(folder.path(), |_, _| {});
    let model = Model::open(&files[0]).unwrap();
    let same = model.load().to_host().unwrap();
    let metadata = Metadata::from_iter([("split.no", 1_u16), ("split.count", 3)]);
    let first = TensorData::from(same.tensor("blk.0").unwrap());
    gguf::save(&files[1], &metadata, &[first], &SaveOptions::new()).unwrap();
    let error = Model::open(&files[0]).unwrap_err();
    assert!(matches!(error, Error::DuplicateTensor { .. }), "{error}");
}

#[test]
fn models_are_saved_to_files_within_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut metadata = metadata();
    metadata.insert("general.alignment", 64_u32);
    let contents = contents(&Header::build(metadata.clone(), &TENSORS).unwrap().0);
    let data = data(&TENSORS, &contents);
    let options = SaveOptions::new().shard_bytes(100);
    let saved = gguf::save_split(&path, &metadata, &data, &options).unwrap();
    // 864 bytes, 20 and 8 with none, 84.
    let files = [1, 2, 3].map(|number| folder.path().join(format!("m-{number:05}-of-00003.gguf")));
    assert_eq!(saved.path, files[0]);
    assert_eq!(saved.len_bytes, files.iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    for file in &files {
        let model = Model::open(file).unwrap();
        let counts: Vec<_> = model.files().map(|(_, header)| header.tensors().len()).collect();
        assert_eq!(counts, [1, 3, 1]);
        assert!(model.files().all(|(_, header)| header.alignment() == 64));
        let loaded = model.load().to_host().unwrap();
        for (new, bytes) in TENSORS.iter().zip(&contents) {
            assert_eq!(loaded.bytes(new.name), Some(&bytes[..]));
        }
        for (key, value) in metadata.iter() {
            assert_eq!(model.metadata().get(key), Some(value));
        }
        assert_eq!(model.metadata().get("split.tensors.count"), Some(&Value::I32(5)));
    }
    // A second save replaces the files, and one file is enough without a limit.
    assert_eq!(gguf::save_split(&path, &metadata, &data, &options).unwrap(), saved);
    assert_eq!(gguf::save_split(&path, &metadata, &data, &SaveOptions::new()).unwrap().path, path);
    assert_eq!(Model::open(&path).unwrap().files().len(), 1);
}

#[test]
fn refused_saves_of_several_files_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let bytes = [0; 8];
    let new = |name| TensorData::new(name, GgmlType::F32, &[2], &bytes[..]);
    let options = SaveOptions::new().shard_bytes(8);
    let save = |metadata: &Metadata, data: &[TensorData<'_>]| {
        gguf::save_split(&path, metadata, data, &options).unwrap_err().to_string()
    };
    assert!(save(&Metadata::new(), &[new("a"), new("b"), new("a")]).contains(r#""a" occurs twice"#));
    let split = Metadata::from_iter([("split.count", 2_u16)]);
    assert!(save(&split, &[new("a"), new("b")]).contains("split.count"));
    let wrong = TensorData::new("c", GgmlType::F32, &[3], &bytes[..]);
    assert!(save(&Metadata::new(), &[new("a"), wrong]).contains(r#""c""#));
    let names: Vec<_> = (0..65_536).map(|number| number.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| new(name)).collect();
    assert!(save(&Metadata::new(), &many).contains("65536 files"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // Something else at the name of the last file fails the save before any file is replaced.
    fs::create_dir(folder.path().join("m-00002-of-00002.gguf")).unwrap();
    let error = gguf::save_split(&path, &Metadata::new(), &[new("a"), new("b")], &options).unwrap_err();
    assert!(matches!(error, Error::Save { in_place: InPlace::Old, .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn split_models_open_whose_names_are_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(OsStr::from_bytes(b"m\xff.gguf"));
    let bytes = [1; 8];
    let data = ["a", "b"].map(|name| TensorData::new(name, GgmlType::F32, &[2], &bytes[..]));
    let options = SaveOptions::new().shard_bytes(8);
    let saved = gguf::save_split(&path, &Metadata::new(), &data, &options).unwrap();
    assert_eq!(Model::open(&saved.path).unwrap().read_tensor("b").unwrap(), bytes);
}
