//! Tests of GGUF headers and files with random damage. Nothing panics, memory stays in proportion to the file, and each
//! accepted file keeps the promises of its header.

use std::collections::HashSet;
use std::fs;

use gpufile::formats::gguf::{Array, GgmlType, Header, Metadata, Model, NewTensor, Strings};
use gpufile::formats::{Error, FormatError};
use testkit::alone;
use testkit::counting::peak;
use testkit::random::Random;

const HEADERS: usize = 10_000;
/// The number of rounds for files, which take longer.
const FILES: usize = 1000;

fn file() -> Vec<u8> {
    let mut metadata = Metadata::from_iter([("general.architecture", "llama"), ("general.name", "é")]);
    metadata.insert("general.alignment", 32_u32);
    metadata.insert("llama.block_count", 2_u64);
    metadata.insert("tokens", Array::Strings(Strings::from_iter(["<s>", "a", "", "模型"])));
    metadata.insert("scores", Array::F32(vec![0.5; 4]));
    let flags = Array::Bool(vec![true, false]);
    metadata.insert("flags", flags);
    let tensors = [
        NewTensor { name: "token_embd.weight", ggml_type: GgmlType::Q4K, shape: &[2, 256] },
        NewTensor { name: "blk.0.norm", ggml_type: GgmlType::F32, shape: &[5] },
        NewTensor { name: "blk.0.none", ggml_type: GgmlType::F16, shape: &[0, 4] },
        NewTensor { name: "blk.1.scale", ggml_type: GgmlType::F64, shape: &[] },
        NewTensor { name: "blk.1.w", ggml_type: GgmlType::Q8_0, shape: &[2, 1, 32] },
    ];
    let (header, mut file) = Header::build(metadata, &tensors).unwrap();
    let start = file.len();
    file.resize(header.file_len_bytes() as usize, 0);
    file[start..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 3) as u8);
    file
}

/// Damages one to three places: bits, numbers, and parts that are cut out or copied.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    const WIDE: [u64; 9] = [0, 1, 2, 9, 32, 1 << 31, 1 << 40, 1 << 63, u64::MAX];
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len() + 1);
        let near = (at + random.below(12)).min(bytes.len());
        let put: Vec<u8> = match random.below(8) {
            0 | 1 => bytes[at..near].iter().map(|byte| byte ^ (1 << random.below(8))).collect(),
            2 => random.pick(&WIDE).to_le_bytes().into(),
            3 => (random.pick(&WIDE) as u32).to_le_bytes().into(),
            4 => vec![random.next_number() as u8],
            5 => bytes[at..near].repeat(2),
            6 => bytes[random.below(at + 1)..at].to_vec(),
            _ => Vec::new(),
        };
        let end = if random.one_in(2) { (at + put.len()).min(bytes.len()) } else { near };
        bytes.splice(at..end, put);
    }
    if random.one_in(10) {
        bytes.truncate(random.below(bytes.len() + 1));
    }
}

fn assert_explained(error: &FormatError, file_len: u64) {
    let text = error.to_string();
    assert!(!text.contains(char::is_control) && text.len() < 4096, "{text:?}");
    assert!(error.offset().is_none_or(|offset| offset <= file_len), "{error:?}, {file_len}");
}

fn check(header: &Header, file_len: u64) {
    let mut names = HashSet::new();
    let mut covered = header.data_start();
    for tensor in header.tensors() {
        assert!(covered <= tensor.range.start && tensor.range.end <= file_len.max(covered), "{tensor:?}");
        covered = tensor.range.end;
        assert!((tensor.range.start - header.data_start()).is_multiple_of(header.alignment()));
        let blocks = tensor.elements() / tensor.ggml_type.block_elements();
        assert_eq!(tensor.len_bytes(), blocks * tensor.ggml_type.block_bytes());
        assert!(names.insert(tensor.name));
        assert_eq!(header.get(tensor.name).as_ref(), Some(&tensor));
        if let Some(&rows) = tensor.shape.first() {
            assert_eq!(tensor.slice_rows(0..rows), Ok(tensor.range.clone()));
        }
    }
    assert!(header.metadata().iter().all(|(key, value)| header.metadata().get(key).is_some_and(|found| {
        // No number equals NaN.
        found == value || format!("{value:?}").contains("NaN")
    })));
}

#[test]
fn damaged_files_are_refused_or_consistent_within_memory() {
    alone(|| {
        damaged_headers_are_refused_or_consistent();
        counts_and_lengths_take_no_memory();
        damaged_files_are_refused_or_loaded();
    });
}

/// Fails if parsing takes much more memory than the header has bytes.
fn assert_frugal(head: &[u8], file_len: u64) {
    let used = peak(|| Header::parse(head, file_len));
    assert!(used < 16 * head.len() + 4096, "{used} bytes for a header of {}", head.len());
}

fn damaged_headers_are_refused_or_consistent() {
    let whole = file();
    let head_len = Header::parse(&whole, whole.len() as u64).unwrap().data_start() as usize;
    let data_len = (whole.len() - head_len) as u64;
    let mut random = Random::new(0x9e37_79b9);
    let mut taken = 0;
    for _ in 0..HEADERS {
        let mut head = whole[..head_len].to_vec();
        damage(&mut random, &mut head);
        let data_len = if random.one_in(4) { random.next_number() >> random.below(64) } else { data_len };
        let file_len = (head.len() as u64).saturating_add(data_len);
        match Header::parse(&head, file_len) {
            Ok(header) => {
                taken += 1;
                check(&header, file_len);
            }
            Err(error) => assert_explained(&error, file_len),
        }
        assert_frugal(&head, file_len);
    }
    assert!(taken > HEADERS / 50 && taken < HEADERS * 9 / 10, "{taken} of {HEADERS} were taken");
}

fn counts_and_lengths_take_no_memory() {
    let many = |entries: u64, entry: &dyn Fn(u64) -> Vec<u8>| {
        let mut head = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        head.extend(entries.to_le_bytes());
        (0..entries).for_each(|number| head.extend(entry(number)));
        head
    };
    let array = |item: u32, len: u64, bytes: &[u8]| {
        let start = b"\x01\0\0\0\0\0\0\0k\x09\0\0\0";
        many(1, &|_| [&start[..], &item.to_le_bytes(), &len.to_le_bytes(), bytes].concat())
    };
    let truth =
        |number: u64| [&8_u64.to_le_bytes()[..], &number.to_le_bytes(), &7_u32.to_le_bytes(), &[1]].concat();
    let empty_array = [&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
    for head in [
        many(20_000, &|number| truth(number & 0x7f7f)),
        many(100, &truth),
        array(7, 100_000, &[1; 100_000]),
        array(8, 100_000, &[0; 800_000]),
        array(9, 100_000, &empty_array.repeat(100_000)),
        array(9, u64::MAX / 12, &empty_array.repeat(1000)),
        array(12, 1 << 60, &[0; 100_000]),
    ] {
        assert_frugal(&head, head.len() as u64);
        assert_frugal(&head, u64::MAX);
    }
    // The file is as long as it says, but has holes only.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    fs::write(&path, array(0, 200 << 30, &[])).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(300 << 30).unwrap();
    let used = peak(|| match Model::open(&path) {
        Err(Error::Format { error, .. }) => {
            assert!(matches!(error, FormatError::HeaderTooLarge { .. }), "{error}")
        }
        other => panic!("{other:?}"),
    });
    assert!(used < 64 << 20, "{used} bytes");
}

fn damaged_files_are_refused_or_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.gguf");
    let whole = file();
    let mut random = Random::new(0x6a09_e667);
    let mut taken = 0;
    for _ in 0..FILES {
        let mut bytes = whole.clone();
        damage(&mut random, &mut bytes);
        fs::write(&path, &bytes).unwrap();
        let model = match Model::open(&path) {
            Ok(model) => model,
            Err(Error::Format { error, .. }) => {
                assert_explained(&error, bytes.len() as u64);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        taken += 1;
        let loaded = model.load().to_host().unwrap();
        for tensor in model.tensors() {
            let range = tensor.range.start as usize..tensor.range.end as usize;
            let expected = bytes.get(range).unwrap_or_default();
            assert_eq!(loaded.bytes(tensor.name), Some(expected));
            assert_eq!(model.read_tensor(tensor.name).unwrap(), expected);
        }
    }
    assert!(taken > FILES / 50 && taken < FILES * 9 / 10, "{taken} of {FILES} were taken");
}
