//! The suite finds no breach in the storages of this crate, and in those that these tests read.

use std::sync::Arc;
use std::time::Duration;

use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::remote::RemoteFile;
use gpufile::storage::conformance::breaches;
use gpufile::storage::{ObjectStorage, Storage};
use testkit::alone;
use testkit::bed::pattern;
use testkit::web::{Fault, Server};

use crate::objects::{put_object, runtime};
use crate::support::{fill, put, storage, write_raw};

const PATIENCE: Duration = Duration::from_secs(60);
const LENS: [usize; 4] = [0, 1, 4097, (1 << 20) + 77];

/// Expects no breach of a storage of each length. Children are forked, so no other test may run.
fn conforms(of: impl Fn(&[u8]) -> Arc<dyn Storage>) {
    for len in LENS {
        let bytes = pattern(len);
        assert_eq!(breaches(of(&bytes), &bytes, PATIENCE), [], "{len} bytes");
    }
}

#[test]
fn storages_in_memory_conform() {
    alone(|| {
        conforms(|bytes| storage(bytes, put));
        conforms(|bytes| storage(bytes, fill));
        conforms(|bytes| storage(bytes, write_raw));
    });
}

#[test]
fn objects_of_servers_conform() {
    alone(|| {
        for faults in [&[][..], &[Fault::Close(0), Fault::Reset(1), Fault::Status(503, Some(0))]] {
            conforms(|bytes| {
                let server = Server::new(bytes.to_vec());
                let options = RemoteFile::options().wait(Duration::from_millis(1));
                let file = options.open(&server.url("/data")).unwrap();
                server.fail(faults.iter().cloned());
                // The server answers until the process ends.
                std::mem::forget(server);
                file.storage().unwrap().clone()
            });
        }
    });
}

#[test]
fn objects_of_the_crate_object_store_conform() {
    alone(|| {
        let runtime = runtime();
        conforms(|bytes| {
            let (store, object) = put_object(&runtime, "a/b", bytes);
            Arc::new(ObjectStorage::new(store, object, runtime.handle().clone()).unwrap())
        });
    });
}

#[test]
fn packed_models_conform() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let (plain, packed) = (folder.path().join("plain"), folder.path().join("packed"));
        // Weights of few exponents, and a tensor that stays as it is.
        let weights: Vec<u8> = (0..700_001_u32)
            .flat_map(|number| (0x3f00 | (number.wrapping_mul(7919) >> 3) as u16 & 0xff).to_le_bytes())
            .collect();
        let rest = pattern(5001);
        let tensors = [
            TensorData::new("weights", Dtype::BF16, &[700_001], &weights[..]),
            TensorData::new("rest", Dtype::U8, &[5001], &rest[..]),
        ];
        let options = SaveOptions::new().sync(false);
        safetensors::save(&plain, &tensors, &options).unwrap();
        Checkpoint::open(&plain).unwrap().compress(&packed, &options).unwrap();
        let checkpoint = Checkpoint::open(&packed).unwrap();
        assert!(checkpoint.packed_len_bytes("weights").is_some());
        let view = checkpoint.file_of("weights").unwrap().0.storage().unwrap().clone();
        assert_eq!(breaches(view, &std::fs::read(&plain).unwrap(), PATIENCE), []);
    });
}
