//! Tests of metadata of Zarr arrays with random damage. Nothing panics, and each accepted array keeps its promises.

use std::fs;
use std::sync::Arc;

use gpufile::formats::Error;
use gpufile::formats::zarr::{Array, FileStore};
use tempfile::TempDir;
use testkit::damage::{assert_both, damage};
use testkit::random::Random;

const DOCUMENTS: usize = 10_000;
/// The number of rounds for each coding.
const CHUNKS: usize = 2000;

const WORDS: [&str; 20] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "\"bytes\"",
    "\"gzip\"",
    "little",
    "big",
    "uint8",
    "float64",
    "r24",
    "[1]",
    "{\"name\":\"crc32c\"}",
    "0.5",
    "\\u0000",
];

const BYTES: &str = r#"{"name":"bytes","configuration":{"endian":"little"}}"#;

fn v3(codecs: &str) -> String {
    format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":[5,7],"data_type":"uint16","chunk_grid":{{"name":
        "regular","configuration":{{"chunk_shape":[2,4]}}}},"chunk_key_encoding":{{"name":"default","configuration":
        {{"separator":"/"}}}},"fill_value":3,"codecs":[{codecs}],"attributes":{{"a":1}}}}"#
    )
}

/// Makes a folder, in memory where that is possible. The tests write thousands of files.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Opens and reads arrays with damaged metadata. `document` is the sound metadata, and its chunks are there.
fn damaged(name: &str, document: &str, seed: u64) {
    let folder = folder();
    let path = folder.path().join(name);
    let store = Arc::new(FileStore::new(folder.path()));
    fs::write(&path, document).unwrap();
    let numbers: Vec<u8> = (0..70).collect();
    let array = Array::open(&store, "/").unwrap();
    array.write_from(&numbers).unwrap();
    assert_eq!(array.read_to_host().unwrap(), numbers);

    let mut random = Random::new(seed);
    let mut taken = 0;
    for _ in 0..DOCUMENTS {
        let mut bytes = document.as_bytes().to_vec();
        damage(&mut random, &mut bytes, &WORDS);
        fs::write(&path, &bytes).unwrap();
        match Array::open(&store, "/") {
            Ok(array) => {
                taken += 1;
                read(&array);
            }
            Err(error) => assert_explained(&error),
        }
    }
    assert_both(taken, DOCUMENTS);
}

/// Reads all of an array if it is small, and both of its ends.
fn read(array: &Array) {
    const SMALL_BYTES: u64 = 1 << 16;
    if array.len_bytes() <= SMALL_BYTES {
        match array.read_to_host() {
            Ok(bytes) => assert_eq!(bytes.len() as u64, array.len_bytes()),
            Err(error) => assert_explained(&error),
        }
    }
    if array.len_bytes() > 0 && array.element_bytes() as u64 <= SMALL_BYTES {
        for last in [false, true] {
            let at = |&axis: &u64| if last { axis - 1..axis } else { 0..1 };
            let region: Vec<_> = array.shape().iter().map(at).collect();
            if let Err(error) = array.read_region_into(&region, &mut vec![0; array.element_bytes()]) {
                assert_explained(&error);
            }
        }
    }
}

fn assert_explained(error: &Error) {
    // Memory runs out if metadata claims a longer chunk than there is memory. A chunk with a checksum is read whole.
    assert!(matches!(error, Error::Zarr { .. } | Error::Memory { .. }), "{error:?}");
    let shown = error.to_string();
    assert!(!shown.contains(char::is_control) && shown.len() < 4096, "{shown:?}");
}

fn compressed() -> [String; 2] {
    let gzip = format!(
        r#"{{"name":"transpose","configuration":{{"order":[1,0]}}}},{BYTES},{{"name":"gzip","configuration":
        {{"level":1}}}},{{"name":"crc32c"}}"#
    );
    let zstd = format!(
        r#"{BYTES},{{"name":"blosc","configuration":{{"cname":"zstd","clevel":1,"shuffle":"shuffle","typesize":2,
        "blocksize":0}}}},{{"name":"zstd","configuration":{{"level":1,"checksum":true}}}}"#
    );
    [gzip, zstd]
}

fn sharded() -> String {
    format!(
        r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[1,2],"codecs":[{BYTES},{{"name":"gzip",
        "configuration":{{"level":1}}}}],"index_codecs":[{BYTES}],"index_location":"end"}}}}"#
    )
}

#[test]
fn damaged_metadata_of_raw_arrays_is_refused_or_read() {
    damaged("zarr.json", &v3(BYTES), 0x9e37_79b9_7f4a_7c15);
}

#[test]
fn damaged_metadata_of_compressed_arrays_is_refused_or_read() {
    for (codecs, seed) in compressed().iter().zip([0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb]) {
        damaged("zarr.json", &v3(codecs), seed);
    }
}

#[test]
fn damaged_metadata_of_sharded_arrays_is_refused_or_read() {
    damaged("zarr.json", &v3(&sharded()), 0x2545_f491_4f6c_dd1d);
}

#[test]
fn damaged_metadata_of_version_2_is_refused_or_read() {
    let document = r#"{"zarr_format":2,"shape":[5,7],"chunks":[2,4],"dtype":">u2","order":"F","compressor":
        {"id":"gzip","level":1},"filters":null,"fill_value":3,"dimension_separator":"/"}"#;
    damaged(".zarray", document, 0x3c6e_f372_fe94_f82b);
}

#[test]
fn damaged_chunks_are_refused_or_read() {
    let [gzip, zstd] = compressed();
    let blosc = format!(
        r#"{BYTES},{{"name":"blosc","configuration":{{"cname":"lz4","clevel":1,"shuffle":"noshuffle","blocksize":0}}}}"#
    );
    let mut random = Random::new(0x1f83_d9ab_fb41_bd6b);
    for codecs in [BYTES.to_owned(), gzip, zstd, blosc, sharded()] {
        let folder = folder();
        let store = Arc::new(FileStore::new(folder.path()));
        fs::write(folder.path().join("zarr.json"), v3(&codecs)).unwrap();
        let array = Array::open(&store, "/").unwrap();
        array.write_from(&(0..70).collect::<Vec<u8>>()).unwrap();
        let path = folder.path().join("c/1/0");
        let chunk = fs::read(&path).unwrap();
        for _ in 0..CHUNKS {
            let mut bytes = chunk.clone();
            damage(&mut random, &mut bytes, &["\0", "\0\0\0\0", "\x7f", "\u{10ffff}"]);
            fs::write(&path, &bytes).unwrap();
            read(&array);
        }
    }
}
