//! Tests of Zarr arrays: reads and writes, their method, and the text of each refusal.

#![allow(clippy::single_range_in_vec_init, reason = "regions of one axis")]

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use gpufile::formats::Error;
use gpufile::formats::zarr::zarrs::array_subset::ArraySubset;
use gpufile::formats::zarr::zarrs::metadata::ChunkKeySeparator;
use gpufile::formats::zarr::zarrs::storage::{
    ListableStorageTraits, ReadableStorageTraits, StoreKey, StorePrefix, WritableStorageTraits,
};
use gpufile::formats::zarr::{Array, FileStore, ZarrError};
use tempfile::TempDir;

const LITTLE: &str = r#"{"name":"bytes","configuration":{"endian":"little"}}"#;
const BIG: &str = r#"{"name":"bytes","configuration":{"endian":"big"}}"#;
const GZIP: &str = r#"{"name":"gzip","configuration":{"level":1}}"#;
const ZSTD: &str = r#"{"name":"zstd","configuration":{"level":1,"checksum":true}}"#;
const CRC32C: &str = r#"{"name":"crc32c"}"#;
const SLASH: &str = r#"{"name":"default"}"#;

/// Returns a `zarr.json` of 16-bit numbers.
fn v3(shape: &[u64], chunk: &[u64], fill: u16, keys: &str, codecs: &[&str]) -> String {
    format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":{shape:?},"data_type":"uint16",
        "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":{chunk:?}}}}},
        "chunk_key_encoding":{keys},"fill_value":{fill},"codecs":[{}]}}"#,
        codecs.join(",")
    )
}

/// Returns a `.zarray`. `more` is the end of its text, from a comma on.
fn v2(shape: &[u64], chunk: &[u64], dtype: &str, order: &str, compressor: &str, more: &str) -> String {
    format!(
        r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunk:?},"dtype":"{dtype}","order":"{order}",
        "compressor":{compressor},"filters":null,"fill_value":7{more}}}"#
    )
}

fn store_with(name: &str, metadata: &str) -> (TempDir, Arc<FileStore>) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("a")).unwrap();
    fs::write(folder.path().join("a").join(name), metadata).unwrap();
    let store = Arc::new(FileStore::new(folder.path()));
    (folder, store)
}

fn count(len: u64) -> Vec<u8> {
    (0..len).flat_map(|number| (number as u16).to_ne_bytes()).collect()
}

fn part(shape: &[u64], region: &[Range<u64>]) -> Vec<u8> {
    let mut numbers = vec![0];
    for (axis, wanted) in shape.iter().zip(region) {
        numbers =
            numbers.iter().flat_map(|row| wanted.clone().map(move |index| row * axis + index)).collect();
    }
    numbers.into_iter().flat_map(|number| (number as u16).to_ne_bytes()).collect()
}

fn is_zarr(error: &Error, wanted: impl Fn(&ZarrError) -> bool) -> bool {
    matches!(error, Error::Zarr { error, .. } if wanted(error))
}

#[track_caller]
fn assert_regions(array: &Array) {
    let shape = array.shape().to_vec();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % (end + 1)
    };
    for _ in 0..40 {
        let region: Vec<_> = shape
            .iter()
            .map(|&axis| {
                let (a, b) = (below(axis), below(axis));
                a.min(b)..a.max(b)
            })
            .collect();
        let expected = part(&shape, &region);
        let mut found = vec![1; expected.len()];
        array.read_region_into(&region, &mut found).unwrap();
        assert!(found == expected, "{region:?} of {array:?}");
    }
}

#[test]
fn arrays_of_every_codec_round_trip_whole_and_by_region() {
    let sharding = |inner: &str, codec: &str| {
        format!(
            r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":{inner},"codecs":[{codec}],
            "index_codecs":[{LITTLE},{{"name":"crc32c"}}]}}}}"#
        )
    };
    let turned = r#"{"name":"transpose","configuration":{"order":[1,0]}}"#;
    let blosc = r#"{"name":"blosc","configuration":{"cname":"lz4","clevel":1,"shuffle":"shuffle",
        "typesize":2,"blocksize":0}}"#;
    let sharded = sharding("[1,100]", LITTLE);
    let compressed_shards = sharding("[2,50]", &format!("{LITTLE},{GZIP}"));
    let checked_shards = sharding("[2,50]", &format!("{LITTLE},{CRC32C}"));
    for (codecs, is_raw) in [
        (&[LITTLE][..], true),
        (&[BIG], false),
        (&[LITTLE, GZIP], false),
        (&[LITTLE, ZSTD], false),
        (&[BIG, blosc, CRC32C], false),
        (&[turned, LITTLE], false),
        (&[&sharded], false),
        (&[&compressed_shards], false),
        (&[LITTLE, CRC32C], false),
        (&[&checked_shards], false),
        (&[LITTLE, blosc], false),
    ] {
        for (shape, chunk) in [([5, 700], [2, 300]), ([4, 600], [2, 300]), ([3, 1000], [4, 1000])] {
            let (_folder, store) = store_with("zarr.json", &v3(&shape, &chunk, 9, SLASH, codecs));
            let array = Array::open(&store, "/a").unwrap();
            assert_eq!(array.has_raw_chunks(), is_raw, "{codecs:?}");
            let numbers = count(shape[0] * shape[1]);
            assert_eq!(array.len_bytes(), numbers.len() as u64);

            array.write_from(&numbers).unwrap();
            assert!(array.read_to_host().unwrap() == numbers, "{codecs:?}");
            assert_regions(&array);
            let whole = ArraySubset::new_with_shape(shape.to_vec());
            let theirs = array.as_zarrs().retrieve_array_subset(&whole).unwrap().into_fixed().unwrap();
            assert!(*theirs == numbers, "{codecs:?}");

            store.erase_prefix(&StorePrefix::new("a/c/").unwrap()).unwrap();
            array.as_zarrs().store_array_subset(&whole, numbers.clone()).unwrap();
            assert!(array.read_to_host().unwrap() == numbers, "{codecs:?}");
        }
    }
}

#[test]
fn blosc_chunks_of_any_type_size_are_read() {
    let blosc = |type_size: u32| {
        format!(
            r#"{{"name":"blosc","configuration":{{"cname":"lz4","clevel":1,"shuffle":"shuffle",
            "typesize":{type_size},"blocksize":0}}}}"#
        )
    };
    let shards_of = |codec: &str| {
        format!(
            r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[2,50],"codecs":[{codec}],
            "index_codecs":[{LITTLE},{CRC32C}]}}}}"#
        )
    };
    let turned = r#"{"name":"transpose","configuration":{"order":[1,0]}}"#;
    // These divide the bytes of a chunk or not, and of what blosc compresses or not.
    for type_size in [1, 2, 7, 16, 255] {
        let blosc = &blosc(type_size);
        for codecs in [
            &[LITTLE, blosc][..],
            &[turned, LITTLE, blosc],
            &[LITTLE, GZIP, blosc],
            &[&shards_of(&format!("{LITTLE},{blosc}"))],
            &[&shards_of(LITTLE), blosc],
        ] {
            let (_folder, store) = store_with("zarr.json", &v3(&[5, 700], &[2, 300], 9, SLASH, codecs));
            let array = Array::open(&store, "/a").unwrap();
            array.write_from(&count(3500)).unwrap();
            assert!(array.read_to_host().unwrap() == count(3500), "{codecs:?}");
            assert_regions(&array);
        }
    }
}

#[test]
fn arrays_with_any_number_of_axes_are_written_and_read() {
    for (shape, chunk) in [
        (&[][..], &[][..]),
        (&[1], &[1]),
        (&[1000], &[300]),
        (&[1000], &[1]),
        (&[3, 4, 600], &[2, 3, 256]),
        (&[3, 4, 600], &[1, 1, 600]),
        (&[2, 3, 2, 300], &[1, 2, 2, 300]),
        (&[4, 5, 6, 7, 2], &[3, 2, 4, 7, 1]),
    ] {
        let (_folder, store) = store_with("zarr.json", &v3(shape, chunk, 0, SLASH, &[LITTLE]));
        let array = Array::open(&store, "a").unwrap();
        let numbers = count(shape.iter().product());
        array.write_from(&numbers).unwrap();
        assert!(array.read_to_host().unwrap() == numbers, "{shape:?}");
        assert_regions(&array);
    }
}

#[test]
fn raw_chunks_are_padded_with_the_fill_value() {
    for fill in [0, 0x0102] {
        let (folder, store) = store_with("zarr.json", &v3(&[3, 500], &[2, 300], fill, SLASH, &[LITTLE]));
        let array = Array::open(&store, "/a").unwrap();
        array.write_from(&count(1500)).unwrap();
        let mut files: Vec<_> = store.list().unwrap().iter().map(ToString::to_string).collect();
        files.retain(|key| key != "a/zarr.json");
        assert_eq!(files, ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1"]);
        let numbers = |rows: [Option<Range<u16>>; 2], columns: usize| -> Vec<u8> {
            let row = |row: &Option<Range<u16>>| {
                let mut row: Vec<u16> = row.clone().into_iter().flatten().collect();
                row.resize(columns, fill);
                row
            };
            rows.iter().flat_map(row).flat_map(u16::to_le_bytes).collect()
        };
        for (key, rows) in [
            ("c/0/0", [Some(0..300), Some(500..800)]),
            ("c/0/1", [Some(300..500), Some(800..1000)]),
            ("c/1/0", [Some(1000..1300), None]),
            ("c/1/1", [Some(1300..1500), None]),
        ] {
            assert!(fs::read(folder.path().join("a").join(key)).unwrap() == numbers(rows, 300), "{key}");
        }
    }
}

#[test]
fn writes_replace_damaged_chunks_at_the_edge() {
    for codecs in [&[LITTLE, GZIP][..], &[BIG], &[LITTLE]] {
        // Short runs of raw chunks take the way of coded chunks.
        let (folder, store) = store_with("zarr.json", &v3(&[3, 5], &[2, 4], 0x0102, SLASH, codecs));
        let array = Array::open(&store, "/a").unwrap();
        for key in ["c/0/0", "c/0/1", "c/1/0", "c/1/1"] {
            let path = folder.path().join("a").join(key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "damaged").unwrap();
        }
        array.write_from(&count(15)).unwrap();
        assert_eq!(array.read_to_host().unwrap(), count(15));
        let whole = array.as_zarrs().retrieve_chunk(&[1, 1]).unwrap().into_fixed().unwrap();
        let numbers = [14, 0x0102, 0x0102, 0x0102, 0x0102, 0x0102, 0x0102, 0x0102_u16];
        assert_eq!(*whole, numbers.map(u16::to_ne_bytes).concat(), "elements beyond the array");
    }
}

#[test]
fn write_errors_name_the_chunk() {
    let (folder, store) = store_with("zarr.json", &v3(&[4], &[2], 9, SLASH, &[LITTLE, GZIP]));
    let array = Array::open(&store, "/a").unwrap();
    fs::create_dir_all(folder.path().join("a/c/1/folder")).unwrap();
    let error = array.write_from(&count(4)).unwrap_err();
    assert!(matches!(&error, Error::Save { path, .. } if path.ends_with("a/c/1")), "{error}");
}

#[test]
fn missing_chunks_read_as_the_fill_value() {
    for codecs in [&[LITTLE][..], &[LITTLE, GZIP]] {
        let (folder, store) = store_with("zarr.json", &v3(&[5, 700], &[2, 300], 0x0703, SLASH, codecs));
        let array = Array::open(&store, "/a").unwrap();
        let fill: Vec<u8> = (0..3500).flat_map(|_| 0x0703_u16.to_ne_bytes()).collect();
        let mut found = vec![0; 7000];
        array.read_into(&mut found).unwrap();
        assert!(found == fill);

        array.write_from(&count(3500)).unwrap();
        fs::remove_file(folder.path().join("a/c/1/1")).unwrap();
        let mut expected = count(3500);
        for row in 2..4 {
            let range = (row * 700 + 300) * 2..(row * 700 + 600) * 2;
            expected[range.clone()].copy_from_slice(&fill[range]);
        }
        array.read_into(&mut found).unwrap();
        assert!(found == expected);
        let mut corner = vec![0; 4];
        array.read_region_into(&[3..4, 599..601], &mut corner).unwrap();
        assert_eq!(corner, [fill[..2].to_vec(), 2700_u16.to_ne_bytes().to_vec()].concat());
    }
}

#[test]
fn arrays_may_have_more_chunks_than_open_files() {
    let (folder, store) = store_with("zarr.json", &v3(&[3000], &[1], 5, SLASH, &[LITTLE]));
    let array = Array::open(&store, "/a").unwrap();
    let mut numbers = count(3000);
    array.write_from(&numbers).unwrap();
    assert!(array.read_to_host().unwrap() == numbers);
    for chunk in [0, 1777, 2999] {
        fs::remove_file(folder.path().join(format!("a/c/{chunk}"))).unwrap();
        numbers[2 * chunk..2 * chunk + 2].copy_from_slice(&5_u16.to_ne_bytes());
    }
    assert!(array.read_to_host().unwrap() == numbers);
    fs::write(folder.path().join("a/c/2000"), "abc").unwrap();
    let error = array.read_to_host().unwrap_err();
    assert!(
        error.to_string().ends_with(r#"the file of chunk "a/c/2000" has 3 bytes instead of 2"#),
        "{error}"
    );
}

#[test]
fn version_2_chunks_are_found_with_either_separator() {
    let bytes = |numbers: Range<u16>| -> Vec<u8> { numbers.flat_map(u16::to_le_bytes).collect() };
    let write = |folder: &Path, names: [&str; 2]| {
        for (name, numbers) in names.into_iter().zip([0..300, 300..600]) {
            let path = folder.join("a").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes(numbers)).unwrap();
        }
    };
    let dots = v2(&[2, 300], &[1, 300], "<u2", "C", "null", "");
    let slashes = v2(&[2, 300], &[1, 300], "<u2", "C", "null", r#","dimension_separator":"/""#);
    for (metadata, names, separator) in [
        (&dots, ["0.0", "1.0"], None),
        (&dots, ["0.0", "1.0"], Some(ChunkKeySeparator::Dot)),
        (&slashes, ["0/0", "1/0"], None),
        (&slashes, ["0/0", "1/0"], Some(ChunkKeySeparator::Slash)),
        // Old metadata does not name the separator.
        (&dots, ["0/0", "1/0"], Some(ChunkKeySeparator::Slash)),
    ] {
        let (folder, _) = store_with(".zarray", metadata);
        write(folder.path(), names);
        let mut store = FileStore::new(folder.path());
        if let Some(separator) = separator {
            store = store.dimension_separator(separator);
        }
        let array = Array::open(&Arc::new(store), "/a").unwrap();
        assert!(array.has_raw_chunks());
        assert!(array.read_to_host().unwrap() == count(600), "{names:?} {separator:?}");
        // A write goes to the place of the read.
        for name in names {
            fs::remove_file(folder.path().join("a").join(name)).unwrap();
        }
        array.write_from(&count(600)).unwrap();
        assert!(fs::read(folder.path().join("a").join(names[1])).unwrap() == bytes(300..600));
    }
}

#[test]
fn version_3_chunks_are_found_with_any_separator_and_encoding() {
    for (keys, file) in [
        (r#"{"name":"default","configuration":{"separator":"."}}"#, "c.1.0"),
        (r#"{"name":"default","configuration":{"separator":"/"}}"#, "c/1/0"),
        (r#"{"name":"v2"}"#, "1.0"),
        (r#"{"name":"v2","configuration":{"separator":"/"}}"#, "1/0"),
    ] {
        let (folder, store) = store_with("zarr.json", &v3(&[2, 300], &[1, 300], 0, keys, &[LITTLE]));
        let array = Array::open(&store, "/a").unwrap();
        array.write_from(&count(600)).unwrap();
        assert_eq!(fs::read(folder.path().join("a").join(file)).unwrap(), count(600)[600..]);
        assert!(array.read_to_host().unwrap() == count(600));
    }
}

#[test]
fn version_2_byte_order_and_compression_are_undone() {
    let gzip = r#"{"id":"gzip","level":1}"#;
    let zstd = r#"{"id":"zstd","level":1}"#;
    let blosc = r#"{"id":"blosc","cname":"lz4","clevel":1,"shuffle":1,"blocksize":0}"#;
    for (dtype, order, compressor, is_raw) in [
        ("<u2", "C", "null", true),
        (">u2", "C", "null", false),
        ("<u2", "F", "null", false),
        (">u2", "F", gzip, false),
        ("<u2", "C", zstd, false),
        ("<u2", "C", blosc, false),
    ] {
        let (_folder, store) = store_with(".zarray", &v2(&[5, 700], &[2, 300], dtype, order, compressor, ""));
        let array = Array::open(&store, "/a").unwrap();
        assert_eq!(array.has_raw_chunks(), is_raw, "{dtype} {order} {compressor}");
        let fill: Vec<u8> = (0..3500).flat_map(|_| 7_u16.to_ne_bytes()).collect();
        assert!(array.read_to_host().unwrap() == fill);
        array.write_from(&count(3500)).unwrap();
        assert!(array.read_to_host().unwrap() == count(3500), "{dtype} {order} {compressor}");
        assert_regions(&array);
    }
    // A scalar has no order.
    let (_folder, store) = store_with(".zarray", &v2(&[], &[], "<u2", "F", "null", ""));
    let array = Array::open(&store, "/a").unwrap();
    array.write_from(&count(1)).unwrap();
    assert_eq!((array.shape(), array.read_to_host().unwrap()), (&[][..], count(1)));
    // Two columns after each other, their bytes in the other order.
    let (folder, store) = store_with(".zarray", &v2(&[2, 2], &[2, 2], ">u2", "F", "null", ""));
    fs::write(folder.path().join("a/0.0"), [0, 0, 0, 2, 0, 1, 0, 3]).unwrap();
    assert_eq!(Array::open(&store, "/a").unwrap().read_to_host().unwrap(), count(4));
}

#[test]
fn one_byte_elements_are_raw_in_either_byte_order() {
    for (data_type, codec) in
        [("uint8", BIG), ("bool", r#"{"name":"bytes"}"#), ("r16", r#"{"name":"bytes"}"#)]
    {
        let fill =
            ["0", "false", "[0,0]"][["uint8", "bool", "r16"].iter().position(|t| *t == data_type).unwrap()];
        let metadata = v3(&[2], &[1], 0, SLASH, &[codec])
            .replace("uint16", data_type)
            .replace(r#""fill_value":0"#, &format!(r#""fill_value":{fill}"#));
        let (_folder, store) = store_with("zarr.json", &metadata);
        let array = Array::open(&store, "/a").unwrap();
        assert!(array.has_raw_chunks(), "{data_type}");
        let bytes: Vec<u8> = [1, 0, 0, 1][..2 * array.element_bytes()].to_vec();
        array.write_from(&bytes).unwrap();
        assert_eq!(array.read_to_host().unwrap(), bytes);
    }
}

#[test]
fn errors_name_chunks_of_wrong_length_or_content() {
    let (folder, store) = store_with("zarr.json", &v3(&[2, 300], &[1, 300], 0, SLASH, &[LITTLE]));
    let array = Array::open(&store, "/a").unwrap();
    array.write_from(&count(600)).unwrap();
    for len in [0_usize, 599, 601, 6000] {
        fs::write(folder.path().join("a/c/1/0"), vec![0; len]).unwrap();
        let error = array.read_to_host().unwrap_err();
        let is_length = |error: &ZarrError| matches!(error, ZarrError::ChunkLength { found_bytes, .. } if *found_bytes == len as u64);
        assert!(is_zarr(&error, is_length), "{error}");
        let shown = error.to_string();
        assert!(shown.starts_with(&format!("{:?}: ", folder.path().join("a"))), "{shown}");
        assert!(shown.contains(r#"chunk "a/c/1/0" has "#) && shown.ends_with("instead of 600"), "{shown}");
        array.read_region_into(&[0..1, 0..300], &mut vec![0; 600]).unwrap();
    }

    let (folder, store) = store_with("zarr.json", &v3(&[2, 300], &[1, 300], 0, SLASH, &[LITTLE, ZSTD]));
    let array = Array::open(&store, "/a").unwrap();
    array.write_from(&count(600)).unwrap();
    fs::copy(folder.path().join("a/c/0/0"), folder.path().join("a/c/1/0")).unwrap();
    array.read_to_host().unwrap();
    for damage in [&b""[..], b"no zstd"] {
        fs::write(folder.path().join("a/c/1/0"), damage).unwrap();
        let error = array.read_to_host().unwrap_err();
        assert!(
            is_zarr(&error, |error| matches!(error, ZarrError::Chunk { key, .. } if key == "a/c/1/0")),
            "{error}"
        );
    }
}

#[test]
fn checksums_detect_wrong_bytes_in_any_region() {
    let shards = |codec: &str| {
        format!(
            r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[1,2],"codecs":[{codec}],
            "index_codecs":[{LITTLE},{CRC32C}]}}}}"#
        )
    };
    let checked = format!("{LITTLE},{CRC32C}");
    let checked_shards = shards(&checked);
    let shards_in_shards = shards(&checked_shards);
    let checked_as_a_whole = format!("{},{CRC32C}", shards(LITTLE));
    for codecs in [&checked, &checked_shards, &shards_in_shards, &checked_as_a_whole] {
        let (folder, store) = store_with("zarr.json", &v3(&[5, 7], &[2, 4], 0, SLASH, &[codecs]));
        let array = Array::open(&store, "/a").unwrap();
        array.write_from(&count(35)).unwrap();
        let regions = [vec![0..5, 0..7], vec![0..2, 4..7], vec![0..1, 4..5], vec![1..3, 2..6]];
        let path = folder.path().join("a/c/0/1");
        let good = fs::read(&path).unwrap();
        let names_chunk =
            |error: &ZarrError| matches!(error, ZarrError::Chunk { key, .. } if key == "a/c/0/1");
        for wrong in 0..good.len() {
            let mut bytes = good.clone();
            bytes[wrong] ^= 1;
            fs::write(&path, bytes).unwrap();
            for (number, region) in regions.iter().enumerate() {
                let expected = part(&[5, 7], region);
                let mut found = vec![0; expected.len()];
                match array.read_region_into(region, &mut found) {
                    Err(error) => {
                        assert!(is_zarr(&error, names_chunk), "{codecs}, {wrong}, {region:?}: {error}")
                    }
                    // Of shards, only the chunks in the region are read. The first two regions have all.
                    Ok(()) => assert!(number > 1 && found == expected, "{codecs}, {wrong}, {region:?}"),
                }
            }
            array.read_region_into(&[2..5, 0..7], &mut vec![0; 42]).unwrap();
        }
        fs::write(&path, good).unwrap();
        assert_regions(&array);
    }
}

#[test]
fn shard_indexes_with_wild_offsets_are_refused() {
    let shards = format!(
        r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[1],"codecs":[{LITTLE}],
        "index_codecs":[{LITTLE}]}}}}"#
    );
    let (folder, store) = store_with("zarr.json", &v3(&[4], &[2], 0, SLASH, &[&shards]));
    let array = Array::open(&store, "/a").unwrap();
    array.write_from(&count(4)).unwrap();
    for entry in [[u64::MAX - 1, 4], [4, u64::MAX - 1], [35, 2], [0, 1 << 40]] {
        let index = [[0, 2], entry].as_flattened().iter().flat_map(|number| number.to_le_bytes()).collect();
        fs::write(folder.path().join("a/c/1"), [vec![0; 4], index].concat()).unwrap();
        let names_chunk = |error: &ZarrError| matches!(error, ZarrError::Chunk { key, .. } if key == "a/c/1");
        for region in [0..4, 2..4] {
            let len = (region.end - region.start) as usize * 2;
            let error = array.read_region_into(&[region], &mut vec![0; len]).unwrap_err();
            assert!(is_zarr(&error, names_chunk), "{entry:?}: {error}");
        }
        // For a part, zarrs reads only the bytes that it needs. These may be there.
        if let Err(error) = array.read_region_into(&[3..4], &mut vec![0; 2]) {
            assert!(is_zarr(&error, names_chunk), "{entry:?}: {error}");
        }
        array.read_region_into(&[0..2], &mut vec![0; 4]).unwrap();
    }
}

#[test]
fn folders_in_place_of_chunks_count_as_missing() {
    let (folder, store) = store_with("zarr.json", &v3(&[600], &[300], 3, SLASH, &[LITTLE]));
    fs::create_dir_all(folder.path().join("a/c/1")).unwrap();
    let found = Array::open(&store, "/a").unwrap().read_to_host().unwrap();
    assert!(found.chunks(2).all(|number| number == 3_u16.to_ne_bytes()));
}

#[test]
fn regions_and_buffers_that_do_not_fit_are_refused() {
    let (_folder, store) = store_with("zarr.json", &v3(&[4, 6], &[2, 3], 0, SLASH, &[LITTLE]));
    let array = Array::open(&store, "/a").unwrap();
    #[expect(clippy::reversed_empty_ranges)]
    for region in [&[][..], &[0..4], &[0..5, 0..6], &[0..4, 0..6, 0..1], &[3..2, 0..6], &[0..4, 7..7]] {
        let error = array.read_region_into(region, &mut vec![0; 48]).unwrap_err();
        assert!(is_zarr(&error, |error| matches!(error, ZarrError::NoSuchRegion { .. })), "{error}");
        assert!(error.to_string().ends_with("in shape [4, 6]"), "{error}");
    }
    let error = array.read_into(&mut vec![0; 47]).unwrap_err();
    assert!(error.to_string().ends_with(": the buffer for the array has 47 bytes instead of 48"), "{error}");
    let error = array.write_from(&vec![0; 49]).unwrap_err();
    assert!(error.to_string().ends_with(": the buffer for the array has 49 bytes instead of 48"), "{error}");
    let error = array.read_region_into(&[0..1, 2..4], &mut vec![0; 5]).unwrap_err();
    assert!(error.to_string().ends_with(": the buffer for the region has 5 bytes instead of 4"), "{error}");
    array.read_region_into(&[2..2, 1..6], &mut vec![]).unwrap();
}

#[test]
fn arrays_without_elements_are_read_and_written() {
    let (_folder, store) = store_with("zarr.json", &v3(&[0, 6], &[2, 3], 0, SLASH, &[LITTLE]));
    let array = Array::open(&store, "/a").unwrap();
    assert_eq!((array.len_bytes(), array.read_to_host().unwrap()), (0, vec![]));
    array.write_from(&vec![]).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn invalid_or_oversized_metadata_is_refused() {
    let good = v3(&[4, 6], &[2, 3], 0, SLASH, &[LITTLE]);
    let is_open = |error: &ZarrError| matches!(error, ZarrError::Open { .. });
    let is_size = |error: &ZarrError| matches!(error, ZarrError::SizeOverflow { .. });
    let is_unsupported = |error: &ZarrError| matches!(error, ZarrError::Unsupported { .. });
    let shards_of = |inner: &str, codec: &str| {
        format!(
            r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":{inner},"codecs":[{codec}],
            "index_codecs":[{LITTLE}]}}}}"#
        )
    };
    let shards = shards_of("[1, 9223372036854775807]", LITTLE);
    let shards_in_shards = shards_of("[1, 1]", &shards);
    let string = good
        .replace("uint16", "string")
        .replace(r#""fill_value":0"#, r#""fill_value":"""#)
        .replace(LITTLE, r#"{"name":"vlen-utf8"}"#);
    for (metadata, is_expected) in [
        ("", &is_open as &dyn Fn(&ZarrError) -> bool),
        ("{}", &is_open),
        (&good.replace("[4, 6]", "[4]"), &is_open),
        (&good.replace("[2, 3]", "[2, 0]"), &is_open),
        (&good.replace("bytes", "no such codec"), &is_open),
        (&good.replace("\"array\"", "\"group\""), &is_open),
        (&good.replace("\"zarr_format\"", "\"new\":{},\"zarr_format\""), &is_open),
        (&good.replace("[4, 6]", "[4294967296, 4294967296]"), &is_size),
        (&good.replace("[4, 6]", "[0, 9223372036854775807]"), &is_size),
        (&good.replace("[2, 3]", "[16777216, 16777216]"), &is_size),
        (&good.replace(LITTLE, &shards), &is_size),
        (&good.replace(LITTLE, &shards_in_shards), &is_size),
        (&string, &is_open),
        (&string.replace("vlen-utf8", "bytes"), &is_unsupported),
    ] {
        let (folder, store) = store_with("zarr.json", metadata);
        let error = Array::open(&store, "/a").unwrap_err();
        assert!(is_zarr(&error, is_expected), "{metadata}: {error}");
        assert!(error.to_string().starts_with(&format!("{:?}: ", folder.path().join("a"))), "{error}");
    }
    for path in ["/b", "/a/b", "/../a", "/a/../../a", "", "//"] {
        let (_folder, store) = store_with("zarr.json", &good);
        let error = Array::open(&store, path).unwrap_err();
        assert!(is_zarr(&error, is_open), "{path}: {error}");
    }
}

#[test]
fn overlong_metadata_is_not_read() {
    let (folder, store) = store_with("zarr.json", "");
    fs::File::create(folder.path().join("a/zarr.json")).unwrap().set_len(1 << 40).unwrap();
    let error = Array::open(&store, "/a").unwrap_err();
    assert!(error.to_string().contains("over the limit"), "{error}");
}

#[test]
fn file_store_passes_the_store_tests_of_zarrs() {
    use zarrs_storage::store_test::{store_list, store_list_size, store_read, store_write};

    let folder = tempfile::tempdir().unwrap();
    for store in [
        FileStore::new(folder.path().join("new/store")),
        FileStore::new(folder.path())
            .normalize_keys(true)
            .dimension_separator(ChunkKeySeparator::Slash)
            .sync(true),
    ] {
        store_write(&store).unwrap();
        store_read(&store).unwrap();
        store_list(&store).unwrap();
        store_list_size(&store).unwrap();
        store.erase_prefix(&StorePrefix::root()).unwrap();
        assert!(store.list().unwrap().is_empty());
        assert!(store.folder().is_dir());
    }
}

#[test]
fn keys_that_leave_the_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("store");
    fs::create_dir(&inside).unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    let store = FileStore::new(&inside);
    for key in ["../secret", "a/../../secret", "..", ".", "a/.", "", "a\0b"] {
        let key = StoreKey::new(key).unwrap();
        assert!(store.get(&key).is_err(), "{key:?}");
        assert!(store.get_partial(&key, (0..1).into()).is_err(), "{key:?}");
        assert!(store.size_key(&key).is_err(), "{key:?}");
        assert!(store.set(&key, vec![0].into()).is_err(), "{key:?}");
        assert!(store.set_partial(&key, 0, vec![0].into()).is_err(), "{key:?}");
        assert!(store.erase(&key).is_err(), "{key:?}");
    }
    for prefix in ["../", "a/../../", "./"] {
        let prefix = StorePrefix::new(prefix).unwrap();
        assert!(store.list_prefix(&prefix).is_err(), "{prefix:?}");
        assert!(store.list_dir(&prefix).is_err(), "{prefix:?}");
        assert!(store.size_prefix(&prefix).is_err(), "{prefix:?}");
        assert!(store.erase_prefix(&prefix).is_err(), "{prefix:?}");
    }
    assert_eq!(fs::read(folder.path().join("secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
}

#[test]
fn normalized_stores_use_lower_case_keys() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, small) = (FileStore::new(folder.path()), FileStore::new(folder.path()).normalize_keys(true));
    let key = StoreKey::new("Group/Array/C").unwrap();
    small.set(&key, vec![1].into()).unwrap();
    assert_eq!(fs::read(folder.path().join("group/array/c")).unwrap(), [1]);
    assert!(plain.get(&key).unwrap().is_none());
    assert_eq!(small.get(&key).unwrap().unwrap(), [1].as_slice());
    assert_eq!(small.list_prefix(&StorePrefix::new("Group/").unwrap()).unwrap().len(), 1);
}

#[test]
fn listing_follows_links_without_looping() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("store");
    fs::create_dir_all(inside.join("a")).unwrap();
    fs::create_dir(folder.path().join("elsewhere")).unwrap();
    fs::write(folder.path().join("elsewhere/b"), "b").unwrap();
    symlink("../../elsewhere", inside.join("a/link")).unwrap();
    symlink("..", inside.join("a/circle")).unwrap();
    symlink("nowhere", inside.join("a/dangling")).unwrap();
    symlink("itself", inside.join("a/itself")).unwrap();
    symlink("../../elsewhere/b/c", inside.join("a/into_a_file")).unwrap();
    fs::write(inside.join("a/.b.0123456789abcdef.gpufile-tmp"), "unfinished").unwrap();
    let store = FileStore::new(&inside);
    assert_eq!(store.get(&StoreKey::new("a/link/b").unwrap()).unwrap().unwrap(), b"b".as_slice());
    assert_eq!(store.list().unwrap(), [StoreKey::new("a/link/b").unwrap()]);
    assert_eq!(store.size().unwrap(), 1);
    store.erase_prefix(&StorePrefix::root()).unwrap();
    assert!(folder.path().join("elsewhere/b").exists(), "what a link leads to is not the store's");
}

#[test]
fn values_are_replaced_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::new(folder.path());
    let key = StoreKey::new("a/b").unwrap();
    store.set(&key, vec![1; 1000].into()).unwrap();
    let old = fs::File::open(folder.path().join("a/b")).unwrap();
    store.set(&key, vec![2; 10].into()).unwrap();
    assert_eq!(old.metadata().unwrap().len(), 1000, "whoever has the old file open keeps it");
    assert_eq!(store.get(&key).unwrap().unwrap(), [2; 10].as_slice());
    assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 1);
    // A folder has the name.
    assert!(store.set(&StoreKey::new("a").unwrap(), vec![].into()).is_err());
    assert!(store.set(&StoreKey::new("a/b/c").unwrap(), vec![].into()).is_err());
    assert!(store.get(&StoreKey::new("a").unwrap()).unwrap().is_none());
    assert!(store.get(&StoreKey::new("a/b/c").unwrap()).unwrap().is_none());
}

/// Returns the elements of an array without files, whose chunks have these lengths.
fn read_listed_chunks(len: u64, chunks: &[u64]) -> Option<Vec<u8>> {
    let metadata = format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":[{len}],"data_type":"uint8","chunk_grid":{{"name":
        "rectangular","configuration":{{"chunk_shape":[{chunks:?}]}}}},"chunk_key_encoding":{{"name":"default"}},
        "fill_value":65,"codecs":[{{"name":"bytes"}}]}}"#
    );
    let (_folder, store) = store_with("zarr.json", &metadata);
    Some(Array::open(&store, "a").ok()?.read_to_host().unwrap())
}

#[test]
fn chunk_lengths_that_wrap_around_are_refused() {
    assert_eq!(read_listed_chunks(1024, &[512, 100, 412]).unwrap(), [65; 1024]);
    for far in [64, 1 << 16, 1 << 40] {
        // The third chunk begins `far` bytes behind the array. With the fourth, the sum wraps around to the right
        // place.
        let len = 1024 + 20 * 512;
        let second = len - 512 + far;
        let fourth = 1024_u64.wrapping_sub(512 + second + 512);
        let mut chunks = vec![512, second, 512, fourth];
        chunks.extend([512; 20]);
        assert_eq!(read_listed_chunks(len, &chunks), None, "{far}");
    }
}

#[test]
fn writing_a_chunk_beyond_memory_is_an_error() {
    const GZIP: &str = r#"{"name":"bytes"},{"name":"gzip","configuration":{"level":1}}"#;
    const SHARDS: &str = r#"{"name":"sharding_indexed","configuration":{"chunk_shape":[1],"codecs":[{"name":"bytes"}],
        "index_codecs":[{"name":"bytes","configuration":{"endian":"little"}}],"index_location":"end"}}"#;
    const ONE: (&str, &str, &str) = ("[16]", "regular", "[281474976710656]");
    const SECOND: (&str, &str, &str) = ("[65537,1]", "rectangular", "[[1,65536],4294967296]");
    for (codecs, (shape, grid, chunk_shape)) in [(GZIP, ONE), (SHARDS, ONE), (GZIP, SECOND)] {
        let metadata = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":{shape},"data_type":"uint8","chunk_grid":{{"name":"{grid}",
            "configuration":{{"chunk_shape":{chunk_shape}}}}},"chunk_key_encoding":{{"name":"default"}},
            "fill_value":3,"codecs":[{codecs}]}}"#
        );
        let (_folder, store) = store_with("zarr.json", &metadata);
        let array = Array::open(&store, "a").unwrap();
        let error = array.write_from(vec![1_u8; array.len_bytes() as usize].as_slice()).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{grid} {codecs}: {error}");
    }
}

#[test]
fn chunks_beyond_memory_are_refused_by_length() {
    const LEN: u64 = 1 << 47;
    let shards = format!(
        r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[{LEN}],"codecs":[{LITTLE},{CRC32C}],
        "index_codecs":[{LITTLE}]}}}}"#
    );
    let (folder, store) = store_with("zarr.json", &v3(&[16], &[LEN], 3, SLASH, &[&shards]));
    let array = Array::open(&store, "/a").unwrap();
    assert_eq!(array.read_to_host().unwrap(), 3_u16.to_ne_bytes().repeat(16), "without a file");
    fs::create_dir(folder.path().join("a/c")).unwrap();
    let path = folder.path().join("a/c/0");
    fs::write(&path, [0xff; 16]).unwrap();
    assert_eq!(array.read_to_host().unwrap(), 3_u16.to_ne_bytes().repeat(16), "without a chunk in the shard");
    let checksum_of_nothing = [0_u8; 4];
    let entry = [0, 4_u64].map(u64::to_le_bytes).concat();
    fs::write(&path, [&checksum_of_nothing[..], &entry].concat()).unwrap();
    let error = array.read_to_host().unwrap_err();
    assert!(error.to_string().ends_with("0 bytes of elements instead of 281474976710656"), "{error}");
}

#[test]
fn folders_with_a_dot_are_not_taken_for_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::new(folder.path()).dimension_separator(ChunkKeySeparator::Slash);
    let keys = ["2024.01/.zarray", "2024/01/.zarray"].map(|key| StoreKey::new(key).unwrap());
    keys.iter().for_each(|key| store.set(key, vec![1].into()).unwrap());
    let prefix = StorePrefix::new("2024.01/").unwrap();
    assert_eq!(store.list_prefix(&prefix).unwrap(), [keys[0].clone()]);
    store.erase_prefix(&prefix).unwrap();
    assert_eq!(keys.map(|key| store.get(&key).unwrap().is_some()), [false, true]);
}

#[test]
fn codecs_outside_the_list_are_refused_by_name() {
    let offset = r#"{"name":"numcodecs.fixedscaleoffset","configuration":{"offset":0,"scale":1,"dtype":"<u2","astype":"<u2"}}"#;
    let shards = |codec: &str, index: &str| {
        format!(
            r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[1,2],"codecs":[{codec}],"index_codecs":[{index}]}}}}"#
        )
    };
    let squeeze = r#"{"name":"zarrs.squeeze"}"#;
    let unknown = r#"{"name":"new","must_understand":false}"#;
    let deep = (0..5).fold(LITTLE.to_owned(), |codec, _| shards(&codec, LITTLE));
    for (codecs, text) in [
        (&[offset, LITTLE][..], r#"the codec "numcodecs.fixedscaleoffset" is not supported"#),
        (&[squeeze, LITTLE], r#"the codec "zarrs.squeeze" is not supported"#),
        (&[LITTLE, r#"{"name":"numcodecs.shuffle"}"#], r#"the codec "numcodecs.shuffle" is not supported"#),
        (&[r#"{"name":"packbits"}"#], r#"the codec "packbits" is not supported"#),
        (&[LITTLE, unknown], r#"the codec "new" is not supported"#),
        (&[&shards(&format!("{offset},{LITTLE}"), LITTLE)], "fixedscaleoffset"),
        (
            &[&shards(LITTLE, &format!("{LITTLE},{GZIP}"))],
            r#"the "index_codecs" ["bytes", "gzip"] are not supported"#,
        ),
        (&[&deep], "more than 4 levels of shards"),
        (&[GZIP, LITTLE], r#"the codec "gzip" is at the wrong place in "codecs""#),
        (&[LITTLE, LITTLE], r#"the codec "bytes" is at the wrong place in "codecs""#),
        (&[], r#""codecs" has neither "bytes" nor "sharding_indexed""#),
        (&[r#"{"name":"bytes"}"#], r#""endian" of "bytes" is missing or wrong"#),
    ] {
        let (_folder, store) = store_with("zarr.json", &v3(&[4, 6], &[2, 4], 0, SLASH, codecs));
        let error = Array::open(&store, "/a").unwrap_err().to_string();
        assert!(error.contains(text), "{codecs:?}: {error}");
    }
    let good = v2(&[4], &[2], "<u2", "C", "null", "");
    for (from, to, text) in [
        (
            r#""filters":null"#,
            r#""filters":[{"id":"fixedscaleoffset"}]"#,
            r#""filters" has "fixedscaleoffset""#,
        ),
        (
            r#""compressor":null"#,
            r#""compressor":{"id":"lz4"}"#,
            r#"the "compressor" "lz4" is not supported"#,
        ),
        (r#""<u2""#, r#""<U2""#, r#"the "dtype" "<U2" is not supported"#),
        (r#""<u2""#, r#"[["a","<i4"]]"#, r#"the "dtype" [["a","<i4"]] is not supported"#),
        (r#""fill_value":7"#, r#""fill_value":0.5"#, r#""fill_value" is 0.5"#),
        (r#""shape":[4]"#, r#""shape":["4"]"#, "shape[0]: invalid type"),
        (r#""chunks":[2]"#, r#""chunks":2"#, "chunks: invalid type"),
    ] {
        let metadata = good.replace(from, to);
        assert_ne!(metadata, good);
        let (_folder, store) = store_with(".zarray", &metadata);
        let error = Array::open(&store, "/a").unwrap_err().to_string();
        assert!(error.contains(text), "{to}: {error}");
    }
}

#[test]
fn version_2_fill_values_match_zarr_python() {
    let complex = [1.5_f32.to_ne_bytes(), f32::INFINITY.to_ne_bytes()].concat();
    for (dtype, fill, expected) in [
        ("<i4", "1.0", 1_i32.to_ne_bytes().to_vec()),
        ("<i4", "null", vec![0; 4]),
        ("|b1", "1", vec![1]),
        ("|b1", "true", vec![1]),
        ("<c8", r#"[1.5,"Infinity"]"#, complex.clone()),
        (">c8", r#"[1.5,"Infinity"]"#, complex),
        ("<c16", "null", vec![0; 16]),
        ("<f8", r#""-Infinity""#, f64::NEG_INFINITY.to_ne_bytes().to_vec()),
    ] {
        let fill = format!(r#""fill_value":{fill}"#);
        let metadata = v2(&[1], &[1], dtype, "C", "null", "").replace(r#""fill_value":7"#, &fill);
        let (_folder, store) = store_with(".zarray", &metadata);
        assert_eq!(Array::open(&store, "/a").unwrap().read_to_host().unwrap(), expected, "{dtype} {fill}");
    }
}

#[test]
fn parts_of_chunks_without_compression_are_read_alone() {
    // The chunk has a gigabyte, and its file is sparse.
    const LEN: u64 = 1 << 29;
    let (folder, store) = store_with("zarr.json", &v3(&[2, LEN], &[2, LEN], 0, SLASH, &[BIG]));
    let array = Array::open(&store, "/a").unwrap();
    let path = folder.path().join("a/c/0/0");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = fs::File::create(&path).unwrap();
    file.set_len(4 * LEN).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1, 2, 3, 4], 2 * LEN + 2000).unwrap();
    let mut found = vec![9; 8];
    array.read_region_into(&[0..2, 1000..1002], &mut found).unwrap();
    assert_eq!(found, [[0; 4], [2, 1, 4, 3]].concat());
}
