//! Tests of Zarr arrays whose chunks are objects of a server.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{engine, options};
use gpufile::formats::zarr::zarrs::storage::{
    ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StorePrefix, WritableStorageTraits,
};
use gpufile::formats::zarr::{Array, FileStore, ZarrError};
use gpufile::formats::{self, Error};
use gpufile::remote::RemoteOptions;
use testkit::bed::{Bed, files_below, pattern};
use testkit::web::{Fault, Server};

const SHAPE: [u64; 2] = [70, 300];
const LONG: usize = 70 * 300 * 2;
const BYTES: &str = r#"{"name":"bytes","configuration":{"endian":"little"}}"#;
const GZIP: &str = r#"{"name":"gzip","configuration":{"level":1}}"#;

/// Makes an array of 16-bit numbers in a folder, in which the chunks of the last rows are missing. Returns its bytes.
fn save_array(folder: &Path, name: &str, chunk: [u64; 2], codecs: &str) -> Vec<u8> {
    let metadata = format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":{SHAPE:?},"data_type":"uint16",
        "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":{chunk:?}}}}},
        "chunk_key_encoding":{{"name":"default"}},"fill_value":257,"codecs":[{codecs}]}}"#
    );
    fs::create_dir_all(folder.join(name)).unwrap();
    fs::write(folder.join(name).join("zarr.json"), metadata).unwrap();
    let mut bytes = pattern(LONG);
    Array::open(&Arc::new(FileStore::new(folder)), name).unwrap().write_from(&bytes).unwrap();
    let last = (SHAPE[0] - 1) / chunk[0];
    fs::remove_dir_all(folder.join(name).join(format!("c/{last}"))).unwrap();
    bytes[(last * chunk[0] * SHAPE[1] * 2) as usize..].fill(1);
    bytes
}

fn save_arrays(folder: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let inner = format!(
        r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[5,100],"codecs":[{BYTES},{GZIP}],
        "index_codecs":[{BYTES},{{"name":"crc32c"}}]}}}}"#
    );
    let of = |name, chunk, codecs: &str| (name, save_array(folder, name, chunk, codecs));
    vec![
        of("raw rows", [8, 300], BYTES),
        of("raw/%20#?", [1, 300], BYTES),
        of("gzip", [16, 70], &format!("{BYTES},{GZIP}")),
        of("shards", [20, 300], &inner),
    ]
}

/// Serves the files below a folder, at `/all`.
fn server_of(folder: &Path) -> Server {
    let served = |(name, bytes): (String, Vec<u8>)| {
        let name = name.replace('%', "%25").replace(' ', "%20").replace('#', "%23").replace('?', "%3F");
        (format!("/all/{name}"), bytes)
    };
    let server = Server::new(Vec::new());
    server.set_files(files_below(folder).into_iter().map(served));
    server
}

fn store(server: &Server, options: &RemoteOptions) -> Arc<FileStore> {
    Arc::new(FileStore::at_url(&server.url("/all?token=secret"), options).unwrap())
}

fn part(bytes: &[u8], rows: Range<usize>, columns: Range<usize>) -> Vec<u8> {
    let row = |row: usize| &bytes[row * 600..][columns.start * 2..columns.end * 2];
    rows.flat_map(row).copied().collect()
}

#[test]
fn arrays_are_read_whole_and_by_region() {
    let folder = tempfile::tempdir().unwrap();
    let arrays = save_arrays(folder.path());
    let server = server_of(folder.path());
    Bed::each(|bed| {
        let store = store(&server, &options().engine(&engine(bed)));
        for (name, bytes) in &arrays {
            let array = Array::open(&store, name).unwrap();
            assert!(array.read_to_host().unwrap() == *bytes, "{name}");
            assert!(array.read_to_device(&bed.device).unwrap().to_vec().unwrap() == *bytes, "{name}");
            for (rows, columns) in [(3..70, 0..300), (15..40, 99..201), (69..70, 299..300)] {
                let expected = part(bytes, rows.clone(), columns.clone());
                let region = [rows, columns].map(|axis| axis.start as u64..axis.end as u64);
                let mut device = bed.device.alloc(expected.len()).unwrap();
                array.read_region_into(&region, &mut device).unwrap();
                assert!(device.to_vec().unwrap() == expected, "{name} {region:?}");
            }
        }
    });
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.target.ends_with("?token=secret")));
}

#[test]
fn failed_requests_are_repeated_and_bytes_stay_right() {
    let folder = tempfile::tempdir().unwrap();
    let arrays = save_arrays(folder.path());
    let server = server_of(folder.path());
    let bed = Bed::emulated();
    let store = store(&server, &options().engine(&engine(&bed)));
    let faults = [
        Fault::Status(503, Some(0)),
        Fault::Close(0),
        Fault::Reset(1),
        Fault::HangUp,
        Fault::Shorter,
        Fault::Shifted(1),
        Fault::Garbage,
    ];
    for round in 0..20 {
        for (name, bytes) in &arrays {
            // Fewer faults than tries, so that none fails for good, whichever threads meet them.
            let some = (0..12).map(|number| match number % 3 {
                0 => faults[(number / 3 + round) % faults.len()].clone(),
                _ => Fault::Interim,
            });
            server.fail(some);
            let array = Array::open(&store, name).unwrap();
            assert!(array.read_to_device(&bed.device).unwrap().to_vec().unwrap() == *bytes, "{name} {round}");
            server.forget_faults();
        }
    }
}

/// Reads an array while all requests for chunks fail in this way. Returns the error, which must have no secret.
#[track_caller]
fn failure(server: &Server, array: &Array, fault: Fault) -> Error {
    server.fail_always(Some(fault));
    let error = array.read_to_host().unwrap_err();
    server.fail_always(None);
    assert!(!format!("{error} {error:?} {array:?}").contains("secret"), "{error}");
    error
}

#[test]
fn refused_chunks_are_errors_with_their_address() {
    let folder = tempfile::tempdir().unwrap();
    let arrays = save_arrays(folder.path());
    let server = server_of(folder.path());
    let bed = Bed::emulated();
    let store = store(&server, &options().tries(2).engine(&engine(&bed)));
    for (name, _) in &arrays {
        let array = Array::open(&store, name).unwrap();
        for (fault, reason) in [
            (Fault::Status(403, None), "status 403"),
            (Fault::Status(500, None), "status 500"),
            (Fault::Compressed, "encoded as \"gzip\""),
        ] {
            let error = failure(&server, &array, fault).to_string();
            assert!(error.contains(reason) && error.contains(&server.url("/all/")), "{name}: {error}");
        }
        // A server without any of the chunks means the fill value.
        server.fail_always(Some(Fault::Status(404, None)));
        assert!(array.read_to_host().unwrap() == [1; LONG], "{name}");
        server.fail_always(None);
    }
    let error = Array::open(&store, "none").unwrap_err();
    assert!(matches!(&error, Error::Zarr { error: ZarrError::Open { .. }, .. }), "{error}");
    let shown = format!("{}/none", server.url("/all"));
    assert!(error.to_string().contains(&shown) && !error.to_string().contains("secret"), "{error}");
}

#[test]
fn chunks_of_a_wrong_length_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    save_array(folder.path(), "a", [8, 300], BYTES);
    fs::write(folder.path().join("a/c/1/0"), [1; 4799]).unwrap();
    let server = server_of(folder.path());
    let bed = Bed::emulated();
    let array = Array::open(&store(&server, &options().engine(&engine(&bed))), "a").unwrap();
    let Err(formats::Error::Zarr { error: ZarrError::ChunkLength { key, found_bytes, .. }, .. }) =
        array.read_to_host()
    else {
        panic!("the length is wrong")
    };
    assert_eq!((key.as_str(), found_bytes), ("a/c/1/0", 4799));
}

#[test]
fn stores_of_servers_are_neither_written_nor_listed() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = save_array(folder.path(), "a", [8, 300], BYTES);
    let server = server_of(folder.path());
    let bed = Bed::emulated();
    let store = store(&server, &options().engine(&engine(&bed)));
    let error = Array::open(&store, "a").unwrap().write_from(&bytes).unwrap_err().to_string();
    assert!(error.contains("only read") && !error.contains("secret"), "{error}");
    let key = StoreKey::new("a/zarr.json").unwrap();
    assert_eq!(store.size_key(&key).unwrap(), Some(store.get(&key).unwrap().unwrap().len() as u64));
    assert_eq!(store.size_key(&StoreKey::new("a/none").unwrap()).unwrap(), None);
    for refused in [
        store.set(&key, vec![1].into()).err(),
        store.erase(&key).err(),
        store.erase_prefix(&StorePrefix::root()).err(),
        store.list().err(),
        store.list_dir(&StorePrefix::new("a/").unwrap()).err(),
    ] {
        let error = refused.unwrap();
        assert!(matches!(
            error,
            StorageError::Unsupported(_) | StorageError::Other(_) | StorageError::IOError(_)
        ));
        assert!(error.to_string().contains("objects of servers and storages are"), "{error}");
    }
    for wrong in ["a.zarr", "ftp://example.org/a?secret", "http://me:secret@example.org/a"] {
        let error = FileStore::at_url(wrong, &options()).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn cached_chunks_are_not_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = save_array(folder.path(), "a", [1, 300], BYTES);
    let server = server_of(folder.path());
    let bed = Bed::emulated();
    let options = options().engine(&engine(&bed)).cache(bed.path("cache"), 1 << 20);
    let store = store(&server, &options);
    for is_first in [true, false] {
        let array = Array::open(&store, "a").unwrap();
        assert!(array.read_to_device(&bed.device).unwrap().to_vec().unwrap() == bytes);
        let fetched = server.requests().into_iter().filter(|request| request.range != Some(0..1)).count();
        assert_eq!(fetched > 0, is_first);
    }
}

#[test]
fn small_chunks_are_asked_for_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let mut arrays = save_arrays(folder.path());
    let one_shard = r#"{"name":"sharding_indexed","configuration":{"chunk_shape":[5,300],"codecs":[BYTES,GZIP],
        "index_codecs":[BYTES,{"name":"crc32c"}]}}"#;
    let one_shard = one_shard.replace("BYTES", BYTES).replace("GZIP", GZIP);
    arrays.push(("one shard", save_array(folder.path(), "one shard", [60, 300], &one_shard)));
    let engine = gpufile::Engine::builder().threads(16).build();
    for (name, bytes) in &arrays {
        let server = server_of(folder.path());
        let array = Array::open(&store(&server, &options().tries(20).engine(&engine)), name).unwrap();
        // The first requests wait, and are then repeated.
        server.fail(vec![Fault::Stall(0, Duration::from_millis(100)); 8]);
        let is_done = AtomicBool::new(false);
        let most = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !is_done.load(Ordering::Relaxed) {
                    most = most.max(server.open_connections());
                    thread::sleep(Duration::from_millis(1));
                }
                most
            });
            let found = array.read_to_host();
            is_done.store(true, Ordering::Relaxed);
            assert!(found.unwrap() == *bytes, "{name}");
            watch.join().unwrap()
        });
        // There are four shards, or nine chunks and more.
        assert!(most >= 4, "{name}: {most}");
    }
}

#[test]
fn objects_of_a_bucket_share_their_options() {
    let folder = tempfile::tempdir().unwrap();
    let arrays = save_arrays(folder.path());
    let server = server_of(folder.path());
    let bed = Bed::emulated();
    let options = options()
        .engine(&engine(&bed))
        .s3_option("AWS_ENDPOINT", server.url(""))
        .s3_option("AWS_ALLOW_HTTP", "true")
        .s3_option("AWS_ACCESS_KEY_ID", "KEY")
        .s3_option("AWS_SECRET_ACCESS_KEY", "hidden");
    for address in ["s3://all", "s3://all/"] {
        let store = Arc::new(FileStore::at_url(address, &options).unwrap());
        for (name, bytes) in &arrays {
            assert!(Array::open(&store, name).unwrap().read_to_host().unwrap() == *bytes, "{name}");
        }
    }
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.target.contains("X-Amz-Signature=")));
    // A missing object is asked for once by each of the two reads: its address has not expired.
    let missing = requests.iter().filter(|request| request.target.starts_with("/all/raw%20rows/c/8/0?"));
    assert_eq!(missing.count(), 2);
}
