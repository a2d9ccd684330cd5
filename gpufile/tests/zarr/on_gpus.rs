use std::fs;
use std::path::Path;
use std::sync::Arc;

use cufile::BufSliceMut;
use gpufile::cuda::DeviceBuffer;
use gpufile::formats::Error;
use gpufile::formats::zarr::{Array, FileStore, ZarrError};
use gpufile::{Engine, OpenOptions, RoutePolicy};
use testkit::bed::{Bed, pattern};

const POLICIES: [RoutePolicy; 2] = [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly];

const RAW: &str = r#"{"name":"bytes","configuration":{"endian":"little"}}"#;
const BIG: &str = r#"{"name":"bytes","configuration":{"endian":"big"}}"#;
const GZIP: &str = r#"{"name":"bytes","configuration":{"endian":"little"}},
    {"name":"gzip","configuration":{"level":1}}"#;

/// The shape and chunks of arrays of 32-bit numbers. They have one row, edges on both axes, and runs of chunks. There
/// are more chunks than open files at a time, and chunks larger than bounce buffers.
const SHAPES: [(&[u64], &[u64]); 4] = [
    (&[70_001], &[9_000]),
    (&[7, 1100], &[3, 300]),
    (&[6, 20, 256], &[1, 1, 256]),
    (&[6_000_000], &[5_000_000]),
];

fn store(bed: &Bed, folder: &Path, policy: RoutePolicy) -> Arc<FileStore> {
    let engine = Engine::builder().driver(bed.driver.clone()).build();
    Arc::new(FileStore::new(folder).files(&OpenOptions::new().engine(&engine).policy(policy)))
}

/// Makes an array without chunks, in a new folder.
fn array(bed: &Bed, policy: RoutePolicy, (shape, chunk): (&[u64], &[u64]), codecs: &str) -> Array {
    let folder = bed.path(&format!("{policy:?}-{shape:?}-{}", codecs.len()));
    fs::create_dir_all(&folder).unwrap();
    let metadata = format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":{shape:?},"data_type":"uint32","chunk_grid":{{"name":
        "regular","configuration":{{"chunk_shape":{chunk:?}}}}},"chunk_key_encoding":{{"name":"default"}},
        "fill_value":84281096,"codecs":[{codecs}]}}"#
    );
    fs::write(folder.join("zarr.json"), metadata).unwrap();
    Array::open(&store(bed, &folder, policy), "/").unwrap()
}

const FILL: [u8; 4] = [8, 7, 6, 5];

fn chunk_path(array: &Array, chunk: &str) -> std::path::PathBuf {
    array.as_zarrs().storage().folder().join("c").join(chunk)
}

fn on_device(bed: &Bed, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = bed.device.alloc(bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

#[test]
fn zarr_arrays_round_trip_from_the_gpu() {
    Bed::each(|bed| {
        for shape in SHAPES {
            for (policy, codecs) in
                [(POLICIES[0], RAW), (POLICIES[1], RAW), (POLICIES[1], BIG), (POLICIES[1], GZIP)]
            {
                let array = array(bed, policy, shape, codecs);
                assert_eq!(array.has_raw_chunks(), codecs == RAW);
                let expected = pattern(array.len_bytes() as usize);
                array.write_from(&on_device(bed, &expected)).unwrap();
                assert!(array.read_to_host().unwrap() == expected, "{array:?}");
                let found = array.read_to_device(&bed.device).unwrap();
                assert!(found.to_vec().unwrap() == expected, "{array:?}");
                fs::remove_dir_all(array.as_zarrs().storage().folder()).unwrap();
            }
        }
    });
}

#[test]
fn regions_are_read_into_parts_of_a_buffer() {
    Bed::each(|bed| {
        for (policy, codecs) in [(POLICIES[0], RAW), (POLICIES[1], RAW), (POLICIES[1], GZIP)] {
            let array = array(bed, policy, SHAPES[1], codecs);
            let whole = pattern(array.len_bytes() as usize);
            array.write_from(&whole).unwrap();
            let expected: Vec<u8> = (2..6)
                .flat_map(|row| &whole[(row * 1100 + 150) * 4..(row * 1100 + 1050) * 4])
                .copied()
                .collect();
            let mut buffer = on_device(bed, &vec![1; expected.len() + 200]);
            let mut part = BufSliceMut::new(&mut buffer, 100..100 + expected.len());
            array.read_region_into(&[2..6, 150..1050], &mut part).unwrap();
            let found = buffer.to_vec().unwrap();
            assert!(found[100..100 + expected.len()] == expected, "{array:?}");
            let around = found[..100].iter().chain(&found[100 + expected.len()..]);
            assert!(around.copied().all(|byte| byte == 1), "bytes beside the part are left alone");
        }
    });
}

#[test]
fn missing_chunks_read_as_fill_value_on_the_gpu() {
    Bed::each(|bed| {
        for (policy, codecs) in [(POLICIES[0], RAW), (POLICIES[1], RAW), (POLICIES[1], GZIP)] {
            for (shape, missing) in [(SHAPES[1], "1/1"), (SHAPES[3], "1")] {
                let array = array(bed, policy, shape, codecs);
                let mut expected = pattern(array.len_bytes() as usize);
                array.write_from(&expected).unwrap();
                fs::remove_file(chunk_path(&array, missing)).unwrap();
                let elements: Vec<_> = match missing {
                    "1" => (5_000_000..6_000_000).collect(),
                    _ => (3..6).flat_map(|row| row * 1100 + 300..row * 1100 + 600).collect(),
                };
                for element in elements {
                    expected[element * 4..element * 4 + 4].copy_from_slice(&FILL);
                }
                let mut buffer = on_device(bed, &vec![1; expected.len()]);
                array.read_into(&mut buffer).unwrap();
                assert!(buffer.to_vec().unwrap() == expected, "{array:?}");
                fs::remove_dir_all(array.as_zarrs().storage().folder()).unwrap();
            }
        }
    });
}

#[test]
fn errors_name_the_array() {
    for (fault, codecs) in [
        ("fault cudaMemcpyAsync err=700 times=all", RAW),
        ("fault cudaMemcpyAsync err=700 times=all", GZIP),
        ("fault cudaStreamSynchronize err=700 times=all", GZIP),
    ] {
        let bed = Bed::emulated();
        let array = array(&bed, RoutePolicy::PosixOnly, SHAPES[0], codecs);
        array.write_from(&pattern(array.len_bytes() as usize)).unwrap();
        let mut buffer = bed.device.alloc(array.len_bytes() as usize).unwrap();
        bed.emulator.as_ref().unwrap().control(fault);
        let error = array.read_into(&mut buffer).unwrap_err();
        let folder = array.as_zarrs().storage().folder().to_owned();
        assert!(matches!(error, Error::File(_)), "{error}");
        assert!(error.to_string().contains(folder.to_str().unwrap()), "{error}");
        let error = array.write_from(&buffer).unwrap_err();
        assert!(error.to_string().contains(folder.to_str().unwrap()), "{error}");
    }

    let bed = Bed::emulated();
    let array = array(&bed, RoutePolicy::PosixOnly, SHAPES[0], RAW);
    array.write_from(&pattern(array.len_bytes() as usize)).unwrap();
    fs::write(chunk_path(&array, "3"), "short").unwrap();
    let error = array.read_to_device(&bed.device).unwrap_err();
    assert!(
        matches!(&error, Error::Zarr { error: ZarrError::ChunkLength { key, .. }, .. } if key == "c/3"),
        "{error}"
    );
    bed.emulator.as_ref().unwrap().control("fault cudaMalloc err=2");
    let error = array.read_to_device(&bed.device).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}
