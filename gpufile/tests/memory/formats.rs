//! Tests of allocations. Parsing a header allocates in proportion to its bytes, for any numbers in it. Loading does
//! not allocate for each tensor.

use std::collections::BTreeMap;

use gpufile::formats::Dtype;
use gpufile::formats::npy::NpyHeader;
use gpufile::formats::safetensors::{Checkpoint, Header, NewTensor, ShardIndex};
use testkit::alone;
use testkit::counting::{allocations_in, peak};

fn safetensors(json: &str) -> Vec<u8> {
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json.as_bytes());
    file
}

fn npy(text: &str) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x02\0".to_vec();
    file.extend_from_slice(&(text.len() as u32).to_le_bytes());
    file.extend_from_slice(text.as_bytes());
    file
}

// One test, because the counters are of the whole process.
#[test]
fn memory_grows_with_the_header_without_allocations_per_tensor() {
    alone(|| {
        loading_allocates_a_few_times();
        headers_take_memory_in_proportion();
    });
}

fn loading_allocates_a_few_times() {
    let names: Vec<String> = (0..20_000).map(|index| format!("layers.{index}.weight")).collect();
    let tensors: Vec<_> =
        names.iter().map(|name| NewTensor { name, dtype: Dtype::I16, shape: &[8] }).collect();
    let (header, mut model) = Header::build(&tensors, BTreeMap::new()).unwrap();
    model.resize(header.file_len_bytes() as usize, 7);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, model).unwrap();

    let calls = allocations_in(|| {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let loaded = checkpoint.load().to_host().unwrap();
        assert!(loaded.iter().all(|tensor| tensor.range.len() == 16));
        assert!(names.iter().all(|name| loaded.tensor(name).is_some()));
    });
    assert!(calls < 500, "{calls} allocations for 20,000 tensors");
}

fn headers_take_memory_in_proportion() {
    let names: Vec<String> = (0..20_000).map(|index| format!("layers.{index}.weight")).collect();
    let tensors: Vec<_> =
        names.iter().map(|name| NewTensor { name, dtype: Dtype::BF16, shape: &[64, 64] }).collect();
    let (header, model) = Header::build(&tensors, BTreeMap::new()).unwrap();
    let used = peak(|| Header::parse(&model, header.file_len_bytes()));
    assert!(used < 2 * model.len(), "{used} bytes for a usual header of {}", model.len());

    let many = |entry: &dyn Fn(usize) -> String| (0..20_000).map(entry).collect::<Vec<_>>().join(",");
    let hostile = [
        format!("{{{}}}", many(&|i| format!(r#""{i}":{{"dtype":"F4","shape":[],"data_offsets":[0,0]}}"#))),
        format!(r#"{{"a":{{"shape":[{}]}}}}"#, many(&|_| "0".to_owned())),
        format!(r#"{{"a":{{"x":{}"#, "[".repeat(100_000)),
        format!(r#"{{"{}":1}}"#, "n".repeat(100_000)),
        format!(r#"{{"a":{{"dtype":"{}"}}}}"#, "d".repeat(100_000)),
        format!(r#"{{"a":{{"shape":"{}"}}}}"#, "s".repeat(100_000)),
        format!(r#"{{"__metadata__":{{{}}}}}"#, many(&|i| format!(r#""{i}":"""#))),
        r#"{"a":{"dtype":"U64","shape":[2305843009213693951],"data_offsets":[0,18446744073709551608]}}"#
            .to_owned(),
    ];
    for json in &hostile {
        let file = safetensors(json);
        let used = peak(|| Header::parse(&file, u64::MAX));
        assert!(used < 16 * file.len() + 4096, "{used} bytes for {}: {:.60}", file.len(), json);
        let used = peak(|| ShardIndex::parse(json.as_bytes()));
        assert!(used < 16 * json.len() + 4096, "{used} bytes for the index {json:.60}");
    }
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, many(&|i| format!(r#""{i}":"{i}""#)));
    let used = peak(|| ShardIndex::parse(index.as_bytes()));
    assert!(used < 16 * index.len(), "{used} bytes for an index of {}", index.len());

    for text in [
        format!("{{'shape':({})", many(&|_| "0".to_owned())),
        format!("{{'descr':'{}'", "f".repeat(100_000)),
        format!("{{'{}'", "k".repeat(100_000)),
        "{'descr':'<f8','fortran_order':False,'shape':(2305843009213693951,)}".to_owned(),
        "{'descr':'|S18446744073709551615','fortran_order':False,'shape':(1,)}".to_owned(),
    ] {
        let file = npy(&text);
        let used = peak(|| NpyHeader::parse(&file, u64::MAX));
        assert!(used < 16 * file.len() + 4096, "{used} bytes for {}: {text:.60}", file.len());
    }

    for length in [100, 100_000_000, u64::MAX] {
        let used = peak(|| Header::parse(&u64::to_le_bytes(length), u64::MAX));
        assert!(used < 4096, "{used} bytes for a length of {length} and no header");
    }
    let used = peak(|| NpyHeader::parse(b"\x93NUMPY\x02\0\xff\xff\x0f\0", u64::MAX));
    assert!(used < 4096, "{used} bytes for a length and no header");
}
