//! Tests of headers and files with random damage. Nothing panics, and each accepted file keeps the promises of its
//! header.

use std::collections::{BTreeMap, HashSet};
use std::fs;

use gpufile::formats::npy::{self, NpyFile, NpyHeader, Order};
use gpufile::formats::safetensors::{self, Checkpoint, Header, NewTensor, ShardIndex};
use gpufile::formats::{Dtype, Error, FormatError};
use testkit::damage::{assert_both, damage};
use testkit::random::Random;

const ROUNDS: usize = 40_000;
/// The number of rounds for files, which take longer.
const FILES: usize = 4000;

fn assert_explained(error: &FormatError, file_len: u64) {
    assert!(!error.to_string().contains(|c: char| c.is_control()), "{error:?}");
    assert!(error.offset().is_none_or(|offset| offset <= file_len), "{error:?}, {file_len}");
}

fn bits(shape: &[u64], element_bits: u64) -> Option<u128> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(u128::from(element_bits), |bits, &axis| bits.checked_mul(axis.into()))
}

const SAFETENSORS: [&str; 14] =
    ["{", "}", "[", "]", ",", ":", "\"", "\"shape\":", "null", "\"F32\"", "U8", "\\u0000", "\\ud800", " "];

/// Returns the header of a file with 304 bytes of data.
fn safetensors_head() -> Vec<u8> {
    let tensors = [
        NewTensor { name: "model.embed", dtype: Dtype::BF16, shape: &[16, 8] },
        NewTensor { name: "model.norm", dtype: Dtype::F32, shape: &[8] },
        NewTensor { name: "model.packed", dtype: Dtype::F4, shape: &[4, 2] },
        NewTensor { name: "step", dtype: Dtype::I64, shape: &[] },
        NewTensor { name: "none", dtype: Dtype::U8, shape: &[0, 4] },
        NewTensor { name: "é\\", dtype: Dtype::F8E4M3, shape: &[2, 2, 1] },
    ];
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    Header::build(&tensors, metadata).unwrap().1
}

#[test]
fn damaged_safetensors_headers_are_refused_or_consistent() {
    let head = safetensors_head();
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let mut taken = 0;
    for _ in 0..ROUNDS {
        let mut json = head[8..].to_vec();
        damage(&mut random, &mut json, &SAFETENSORS);
        let length =
            if random.below(16) == 0 { random.next_number() >> random.below(64) } else { json.len() as u64 };
        let mut file = length.to_le_bytes().to_vec();
        file.extend_from_slice(&json);
        let data_len = if random.below(4) == 0 { random.next_number() >> random.below(64) } else { 304 };
        let file_len = (file.len() as u64).saturating_add(data_len);

        match Header::parse(&file, file_len) {
            Ok(header) => {
                taken += 1;
                check_safetensors(&header, file_len);
            }
            Err(error) => assert_explained(&error, file_len),
        }
        // `head_len` bytes can be read.
        assert!(
            safetensors::head_len(&file, file_len).is_ok_and(|len| len <= file_len)
                || length != json.len() as u64
        );
    }
    assert_both(taken, ROUNDS);
}

fn check_safetensors(header: &Header, file_len: u64) {
    assert_eq!(header.data_start() + header.data_len_bytes(), file_len);
    let mut covered = 0;
    let mut names = HashSet::new();
    for tensor in header.tensors() {
        assert_eq!(tensor.offsets.start, covered, "a gap or an overlap");
        covered = tensor.offsets.end;
        assert!(tensor.offsets.start <= tensor.offsets.end);
        assert_eq!(
            bits(tensor.shape, tensor.dtype.size_bits().into()),
            Some(u128::from(tensor.len_bytes()) * 8)
        );
        assert!(names.insert(tensor.name.to_owned()));
        assert_eq!(header.get(tensor.name).as_ref(), Some(&tensor));
        if let Some(&rows) = tensor.shape.first() {
            assert_eq!(tensor.slice_rows(0..rows), Ok(tensor.offsets.clone()));
            if let Ok(slice) = tensor.slice_rows(rows / 2..rows) {
                assert!(tensor.offsets.start <= slice.start && slice.end == tensor.offsets.end);
            }
        }
    }
    assert_eq!(covered, header.data_len_bytes());
}

#[test]
fn damaged_npy_headers_are_refused_or_consistent() {
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let words = [
        "{",
        "}",
        "(",
        ")",
        ",",
        ":",
        "'",
        "\"",
        "'shape': ",
        "True",
        "False",
        "L",
        "\n",
        "'|O'",
        "[ns]",
        "\\",
    ];
    let shapes: [&[u64]; 4] = [&[], &[5], &[4, 8], &[3, 0, 2]];
    let mut taken = 0;
    for _ in 0..ROUNDS {
        let descr = random.pick(&["<f4", ">i2", "|b1", "<c16", "|S7", "<U3", "<M8[ns]", "|V5"]);
        let order = if random.below(2) == 0 { Order::Fortran } else { Order::C };
        let (built, head) = NpyHeader::build(descr, order, random.pick(&shapes)).unwrap();
        let mut text = head[10..].to_vec();
        while text.len() > 16 && text.ends_with(b" \n") {
            text.remove(text.len() - 2);
        }
        damage(&mut random, &mut text, &words);
        let mut file = b"\x93NUMPY".to_vec();
        let version =
            if random.below(16) == 0 { random.next_number() as u8 } else { 1 + random.below(3) as u8 };
        file.extend_from_slice(&[version, 0]);
        let length = if random.below(16) == 0 { random.next_number() as usize } else { text.len() };
        match version {
            1 => file.extend_from_slice(&(length as u16).to_le_bytes()),
            _ => file.extend_from_slice(&(length as u32).to_le_bytes()),
        }
        file.extend_from_slice(&text);
        if random.below(16) == 0 {
            damage(&mut random, &mut file, &words);
        }
        let data_len = if random.below(4) == 0 {
            random.next_number() >> random.below(64)
        } else {
            built.data_len_bytes()
        };
        let file_len = (file.len() as u64).saturating_add(data_len);

        match NpyHeader::parse(&file, file_len) {
            Ok(header) => {
                taken += 1;
                assert!(header.data_start() + header.data_len_bytes() <= file_len);
                assert_eq!(header.data_start(), npy::head_len(&file, file_len).unwrap());
                let expected = bits(header.shape(), header.descr().item_bytes() * 8);
                assert_eq!(expected, Some(u128::from(header.data_len_bytes()) * 8));
                let canonical = header.descr().to_string();
                let again = NpyHeader::build(&canonical, header.order(), header.shape()).unwrap().0;
                assert_eq!(
                    (again.descr(), again.data_len_bytes()),
                    (header.descr(), header.data_len_bytes())
                );
            }
            Err(error) => assert_explained(&error, file_len),
        }
    }
    assert_both(taken, ROUNDS);
}

#[test]
fn damaged_indexes_name_no_files_outside_the_folder() {
    let json = br#"{"metadata":{"total_size":128},"weight_map":{"a":"model-1.safetensors","b":"sub/model-2.safetensors"}}"#;
    let words =
        ["{", "}", "\"", ":", ",", "/", "..", "../", "/../", "\\\\", "\\u0000", "weight_map", "\"a\":"];
    let mut random = Random::new(0xd1b5_4a32_d192_ed03);
    let mut taken = 0;
    for _ in 0..ROUNDS {
        let mut bytes = json.to_vec();
        damage(&mut random, &mut bytes, &words);
        match ShardIndex::parse(&bytes) {
            Ok(index) => {
                taken += 1;
                for (tensor, file) in index.tensors() {
                    assert_eq!(index.file_of(tensor), Some(file));
                    assert!(index.files().iter().any(|other| other == file));
                    let parts = std::path::Path::new(file).components();
                    assert!(
                        parts.into_iter().all(|part| matches!(part, std::path::Component::Normal(_))),
                        "{file}"
                    );
                }
            }
            Err(error) => assert_explained(&error, bytes.len() as u64),
        }
    }
    assert_both(taken, ROUNDS);
}

#[test]
fn damaged_safetensors_files_are_refused_or_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.safetensors");
    let head = safetensors_head();
    let mut random = Random::new(0x6a09_e667_f3bc_c908);
    let mut taken = 0;
    for _ in 0..FILES {
        let mut json = head[8..].to_vec();
        damage(&mut random, &mut json, &SAFETENSORS);
        let length = if random.below(32) == 0 { random.next_number() } else { json.len() as u64 };
        let data_len = if random.below(8) == 0 { random.below(1000) } else { 304 };
        let data: Vec<u8> = (0..data_len).map(|index| (index * 3) as u8).collect();
        let file = [&length.to_le_bytes(), &json[..], &data].concat();
        fs::write(&path, &file).unwrap();
        let checkpoint = match Checkpoint::open(&path) {
            Ok(checkpoint) => checkpoint,
            Err(Error::Format { error, .. }) => {
                assert_explained(&error, file.len() as u64);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        taken += 1;
        let loaded = checkpoint.load().to_host().unwrap();
        for tensor in checkpoint.tensors() {
            let range = tensor.offsets.start as usize..tensor.offsets.end as usize;
            assert_eq!(loaded.bytes(tensor.name), Some(&data[range.clone()]));
            let (rows, mut bytes) = (0..random.next_number() % 20, vec![0; random.below(40)]);
            let axis = random.below(3);
            // The read fails most often, for one of two reasons.
            if checkpoint.read_slice_into(tensor.name, axis, rows, &mut bytes).is_ok() && axis == 0 {
                assert_eq!(bytes, data[range][..bytes.len()]);
            }
        }
    }
    assert_both(taken, FILES);
}

#[test]
fn damaged_npy_files_are_refused_or_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.npy");
    let (_, head) = NpyHeader::build("<f4", Order::C, &[3, 4]).unwrap();
    let mut random = Random::new(0xbb67_ae85_84ca_a73b);
    let mut taken = 0;
    for _ in 0..FILES {
        let data: Vec<u8> = (0..48 + random.below(3)).map(|index| (index * 3) as u8).collect();
        let mut file = [&head[..], &data].concat();
        // Damage to the blanks has no effect most often.
        let mut start = file.drain(..60).collect::<Vec<u8>>();
        damage(&mut random, &mut start, &["(", ")", ",", "'", "True", "<i8", "\n"]);
        file.splice(..0, start);
        fs::write(&path, &file).unwrap();
        match NpyFile::open(&path) {
            Ok(array) => {
                taken += 1;
                let bytes = array.read_to_host().unwrap();
                let start = array.header().data_start() as usize;
                assert_eq!(bytes, file[start..start + bytes.len()]);
                let mut rows = vec![0; random.below(40)];
                if array.read_rows_into(0..random.next_number() % 4, &mut rows).is_ok() {
                    assert_eq!(rows, bytes[..rows.len()]);
                }
            }
            Err(Error::Format { error, .. }) => assert_explained(&error, file.len() as u64),
            Err(error) => panic!("{error}"),
        }
    }
    assert_both(taken, FILES);
}

#[test]
fn damaged_indexes_open_only_files_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    for (file, name) in [("1.safetensors", "a"), ("2.safetensors", "b")] {
        let tensor = NewTensor { name, dtype: Dtype::U8, shape: &[] };
        let (_, mut bytes) = Header::build(&[tensor], BTreeMap::new()).unwrap();
        bytes.push(0);
        fs::write(folder.path().join(file), bytes).unwrap();
    }
    let json = br#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#;
    let words = ["1", "2", "a", "b", "c", "\"", ",", "../", "1.safetensors", "\"c\":\"1.safetensors\","];
    let index = folder.path().join("model.safetensors.index.json");
    let mut random = Random::new(0x3c6e_f372_fe94_f82b);
    let mut taken = 0;
    for _ in 0..FILES {
        let mut bytes = json.to_vec();
        damage(&mut random, &mut bytes, &words);
        fs::write(&index, &bytes).unwrap();
        match Checkpoint::open(&index) {
            Ok(checkpoint) => {
                taken += 1;
                for (file, _) in checkpoint.files() {
                    assert_eq!(file.path().parent(), Some(folder.path()));
                }
                assert_eq!(checkpoint.load().to_host().unwrap().iter().len(), checkpoint.tensors().len());
            }
            Err(Error::Format { error, .. }) => assert_explained(&error, bytes.len() as u64),
            Err(Error::NotInShard { .. }) => {}
            Err(Error::Incomplete { missing, .. }) => {
                assert!(missing.iter().all(|path| path.starts_with(folder.path())));
            }
            Err(Error::File(gpufile::Error::Open { path, .. })) => assert!(path.starts_with(folder.path())),
            Err(error) => panic!("{error}"),
        }
    }
    assert_both(taken, FILES);
}
