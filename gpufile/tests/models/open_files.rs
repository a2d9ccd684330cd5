//! Tests of models with more files than a process may open.

use std::path::{Path, PathBuf};

use gpufile::formats::gguf::{self, GgmlType, Metadata, Model};
use gpufile::formats::safetensors::{self, Checkpoint, TensorData, Verify};
use gpufile::formats::{Dtype, SaveOptions};
use testkit::alone;

const SHARDS: usize = 200;

fn set_limit(soft: u64, hard: u64) {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the call reads the structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

#[test]
fn models_of_many_files_raise_the_soft_limit() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=SHARDS {
            let path = folder.path().join(format!("model-{number:05}-of-{SHARDS:05}.safetensors"));
            let name = format!("layers.{number}");
            let bytes = [number as u8];
            let tensor = TensorData::new(&name, Dtype::U8, &[1], bytes.as_slice());
            safetensors::save(path, &[tensor], &SaveOptions::new()).unwrap();
        }
        set_limit(64, 4096);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.read_tensor("layers.200").unwrap(), [200]);
        assert_eq!(checkpoint.load().to_host().unwrap().iter().len(), SHARDS);
        drop(checkpoint);
        let first = saved_gguf(folder.path());
        set_limit(64, 4096);
        let model = Model::open(&first).unwrap();
        assert_eq!(model.files().len(), SHARDS);
        assert_eq!(model.read_tensor("blk.199").unwrap(), [199]);
        drop(model);

        // Nothing can raise the hard limit.
        set_limit(64, 64);
        let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("200 files") && error.contains("no more than 64"), "{error}");
        assert_eq!(Verify::new().run([folder.path()]).problems[0].to_string(), error);
        // The files that were opened are closed again.
        let one = folder.path().join("model-00001-of-00200.safetensors");
        assert_eq!(Checkpoint::open(one).unwrap().tensors().len(), 1);
        let error = Model::open(&first).unwrap_err().to_string();
        assert!(error.contains("200 files") && error.contains("no more than 64"), "{error}");
    });
}

fn saved_gguf(folder: &Path) -> PathBuf {
    let names: Vec<_> = (0..SHARDS).map(|number| format!("blk.{number}")).collect();
    let bytes: Vec<_> = (0..SHARDS).map(|number| [number as u8]).collect();
    let tensors: Vec<_> = std::iter::zip(&names, &bytes)
        .map(|(name, bytes)| gguf::TensorData::new(name, GgmlType::I8, &[1], &bytes[..]))
        .collect();
    let options = SaveOptions::new().shard_bytes(1);
    gguf::save_split(folder.join("m.gguf"), &Metadata::new(), &tensors, &options).unwrap().path
}
