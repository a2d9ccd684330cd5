use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::zarr::zarrs::storage::{ListableStorageTraits, ReadableStorageTraits, StoreKey};
use gpufile::formats::zarr::{Array, FileStore};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::storage::{Error, Folder, ObjectFolder, Storage};
use gpufile::{File, OpenOptions};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use testkit::bed::{Bed, files_below, pattern};

use crate::objects::runtime;
use crate::support::{Files, engine};

/// Calls `test` with folders of these files: in memory, and of a store of the crate object_store.
fn with_each(files: &BTreeMap<String, Vec<u8>>, test: impl Fn(&Bed, Arc<dyn Folder>)) {
    let runtime = runtime();
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    for (name, bytes) in files {
        let path = Path::parse(format!("all/{name}")).unwrap();
        runtime.block_on(store.put(&path, bytes.clone().into())).unwrap();
    }
    let objects = ObjectFolder::new(store, Path::from("all"), runtime.handle().clone()).unwrap();
    let (memory, objects): (Arc<dyn Folder>, Arc<dyn Folder>) =
        (Arc::new(Files(files.clone())), Arc::new(objects));
    Bed::each(|bed| {
        test(bed, memory.clone());
        test(bed, objects.clone());
    });
}

#[test]
fn models_load_from_storages() {
    let folder = tempfile::tempdir().unwrap();
    let contents: BTreeMap<_, _> = (0..9)
        .map(|number| (format!("layer.{number}"), pattern(400_000 + number).split_off(number)))
        .collect();
    let tensors: Vec<_> = contents
        .iter()
        .map(|(name, bytes)| TensorData::new(name, Dtype::U8, &[400_000], &bytes[..]))
        .collect();
    let options = SaveOptions::new().sync(false).shard_bytes(1 << 20);
    safetensors::save(folder.path().join("model.safetensors"), &tensors, &options).unwrap();
    let files = files_below(folder.path());
    with_each(&files, |bed, folder| {
        let options = OpenOptions::new().engine(&engine(bed));
        let names = files.keys().filter(|name| name.ends_with(".safetensors"));
        let open = |name: &String| options.open_storage(name, folder.open(name).unwrap().unwrap()).unwrap();
        let checkpoint = Checkpoint::from_files(names.map(open)).unwrap();
        assert!(checkpoint.files().len() > 2);
        let host = checkpoint.load().to_host().unwrap();
        let device = checkpoint.load().to_device(&bed.device).unwrap();
        let bytes = device.buffer().to_vec().unwrap();
        for (name, expected) in &contents {
            assert!(host.bytes(name).unwrap() == expected, "{name}");
            assert!(bytes[device.tensor(name).unwrap().range.clone()] == expected[..], "{name}");
        }
    });
    let none = Checkpoint::from_files(Vec::<File>::new());
    assert!(none.is_ok_and(|model| model.tensors().len() == 0));
}

#[test]
fn arrays_load_from_storages() {
    const BYTES: &str = r#"{"name":"bytes","configuration":{"endian":"little"}}"#;
    let gzip = format!(r#"{BYTES},{{"name":"gzip","configuration":{{"level":1}}}}"#);
    let shards = format!(
        r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[5,100],"codecs":[{gzip}],
        "index_codecs":[{BYTES},{{"name":"crc32c"}}]}}}}"#
    );
    let folder = tempfile::tempdir().unwrap();
    let mut expected = pattern(70 * 300 * 2);
    let arrays = [("raw", BYTES), ("gzip", &gzip), ("shards", &shards)];
    for (name, codecs) in arrays {
        let metadata = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[70,300],"data_type":"uint16",
            "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[20,300]}}}},
            "chunk_key_encoding":{{"name":"default"}},"fill_value":257,"codecs":[{codecs}]}}"#
        );
        fs::create_dir_all(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("zarr.json"), metadata).unwrap();
        let store = Arc::new(FileStore::new(folder.path()));
        Array::open(&store, name).unwrap().write_from(&pattern(70 * 300 * 2)).unwrap();
        // A chunk that no storage has.
        fs::remove_dir_all(folder.path().join(name).join("c/3")).unwrap();
    }
    expected[60 * 300 * 2..].fill(1);
    with_each(&files_below(folder.path()), |bed, folder| {
        let store = FileStore::from_folder("arrays", folder).files(&OpenOptions::new().engine(&engine(bed)));
        let store = Arc::new(store);
        for (name, _) in arrays {
            let array = Array::open(&store, name).unwrap();
            assert!(array.read_to_host().unwrap() == expected, "{name}");
            assert!(array.read_to_device(&bed.device).unwrap().to_vec().unwrap() == expected, "{name}");
            // The chunk that is there, or the one that is not: whichever comes first.
            let error = array.write_from(&expected).unwrap_err().to_string();
            assert!(error.contains("only read") || error.contains("neither listed nor written"), "{error}");
        }
        assert!(store.list().unwrap_err().to_string().contains("neither listed nor written"));
        assert!(Array::open(&store, "none").is_err());
    });
}

#[derive(Debug)]
struct Closed;

impl Folder for Closed {
    fn open(&self, name: &str) -> Result<Option<Arc<dyn Storage>>, Error> {
        assert!(name != "panics", "on demand");
        Err("closed".into())
    }
}

#[test]
fn errors_and_panics_of_folders_are_errors() {
    let store = FileStore::from_folder("values", Arc::new(Closed));
    for (key, expected) in
        [("a", "cannot open \"values/a\": closed"), ("panics", "the folder panicked: on demand")]
    {
        let error = store.get(&StoreKey::new(key).unwrap()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
