//! Saves for tests that kill the process: the old data, the new data, and the data that a folder has afterwards.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gpufile::Engine;
use gpufile::OpenOptions;
use gpufile::formats::npy::{self, NpyFile};
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::zarr::{Array, FileStore};
use gpufile::formats::{Dtype, Error, SaveOptions, gguf};

/// A kind of data in a folder, which a test saves a first and a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Save {
    /// An npy file over another.
    Array,
    /// The numbers of files of the old and the new model; 0 means no old model. The save removes the old one.
    Model(usize, usize),
    /// The same numbers. The save leaves the old model.
    ModelBeside(usize, usize),
    /// A model of two files over one that another library saved in two files.
    ModelOverOthers,
    /// A model of two files over one in a single file with an index, as some libraries write it.
    ModelOverIndexed,
    /// The numbers of files of the old and the new split GGUF model.
    Split(usize, usize),
    /// A Zarr array of three chunks over another, uncompressed or not.
    Chunks {
        /// True if the chunks are compressed.
        gzip: bool,
    },
}

pub const SAVES: [Save; 18] = [
    Save::Array,
    Save::Model(0, 1),
    Save::Model(1, 1),
    Save::Model(0, 2),
    Save::Model(2, 2),
    Save::Model(3, 2),
    Save::Model(1, 2),
    Save::Model(2, 1),
    Save::ModelBeside(2, 2),
    Save::ModelBeside(1, 2),
    Save::ModelBeside(2, 1),
    Save::ModelOverOthers,
    Save::ModelOverIndexed,
    Save::Split(2, 2),
    Save::Split(3, 3),
    Save::Split(3, 2),
    Save::Chunks { gzip: false },
    Save::Chunks { gzip: true },
];

/// The data in the folder: the old, the new, or a mixture of whole chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The old data, or no data if there was none.
    Old,
    New,
    Both,
    /// No model opens. The old files are whole, under other names.
    Aside,
}

const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

const OLD: u8 = 1;
const NEW: u8 = 2;

/// The number of bytes of each part: a tensor, a chunk, or the array.
const LEN_BYTES: usize = 3000;

fn options() -> OpenOptions {
    // Two are the fewest threads that share work.
    OpenOptions::new().engine(&Engine::builder().threads(2).build())
}

fn save_options() -> SaveOptions {
    SaveOptions::new().files(&options())
}

impl Save {
    /// Saves the old data, from a process that is not killed.
    pub fn prepare(self, folder: &Path) {
        match self {
            Save::Model(0, _) => {}
            Save::Chunks { gzip } => {
                let codec = if gzip { r#",{"name":"gzip","configuration":{"level":1}}"# } else { "" };
                let metadata = format!(
                    r#"{{"zarr_format":3,"node_type":"array","shape":[{}],"data_type":"uint8","chunk_grid":
                    {{"name":"regular","configuration":{{"chunk_shape":[{LEN_BYTES}]}}}},"chunk_key_encoding":
                    {{"name":"default"}},"fill_value":0,"codecs":[{{"name":"bytes"}}{codec}]}}"#,
                    3 * LEN_BYTES
                );
                fs::write(folder.join("zarr.json"), metadata).expect("a new file");
                self.save_bytes(folder, OLD);
            }
            Save::ModelOverOthers => {
                let shard = |number| format!("model-{number:05}-of-00002.safetensors");
                for number in 1..=2 {
                    save_model(&folder.join(shard(number)), OLD, number - 1..number);
                }
                let index = format!(r#"{{"weight_map":{{"1.0":"{}","1.1":"{}"}}}}"#, shard(1), shard(2));
                fs::write(folder.join(INDEX), index).expect("a new file");
            }
            Save::ModelOverIndexed => {
                save_model(&folder.join(MODEL), OLD, 0..1);
                let index = r#"{"weight_map":{"1.0":"model.safetensors"}}"#;
                fs::write(folder.join(INDEX), index).expect("a new file");
            }
            _ => self.save_bytes(folder, OLD),
        }
    }

    pub fn save(self, folder: &Path) {
        self.save_bytes(folder, NEW);
    }

    fn save_bytes(self, folder: &Path, byte: u8) {
        match self {
            Save::Array => {
                let bytes = vec![byte; LEN_BYTES];
                let path = folder.join("array.npy");
                npy::write(path, "|u1", &[LEN_BYTES as u64], &bytes, &save_options())
                    .expect("an array that is saved");
            }
            Save::Model(old, new) | Save::ModelBeside(old, new) => {
                let files = if byte == OLD { old } else { new };
                let removes = matches!(self, Save::Model(..));
                save_model_with(&folder.join(MODEL), byte, 0..files, removes);
            }
            Save::ModelOverOthers | Save::ModelOverIndexed => {
                save_model_with(&folder.join(MODEL), byte, 0..2, true)
            }
            Save::Split(old, new) => {
                let files = if byte == OLD { old } else { new };
                save_split(&folder.join("model.gguf"), byte, files);
            }
            Save::Chunks { .. } => {
                let bytes = vec![byte; 3 * LEN_BYTES];
                array(folder, true).write_from(&bytes).expect("chunks that are saved");
            }
        }
    }

    pub fn found(self, folder: &Path) -> Found {
        match self {
            Save::Array => {
                let array = NpyFile::open(folder.join("array.npy")).expect("an array");
                of_bytes(&array.read_to_host().expect("the array's bytes"))
            }
            Save::Chunks { .. } => {
                let bytes = array(folder, false).read_to_host().expect("chunks");
                let mut chunks = bytes.chunks(LEN_BYTES).map(of_bytes);
                let first = chunks.next().expect("three chunks");
                if chunks.all(|chunk| chunk == first) { first } else { Found::Both }
            }
            Save::Model(old, new) | Save::ModelBeside(old, new) => of_folder(folder, old, new),
            Save::ModelOverOthers => of_folder(folder, 2, 2),
            Save::ModelOverIndexed => of_folder(folder, 1, 2),
            Save::Split(old, new) => of_split(folder, old, new),
        }
    }

    /// Returns the number of files after the new data was saved. Shards do not count, because those that no index names
    /// stay if the process was killed.
    pub fn files_after(self) -> usize {
        match self {
            Save::ModelBeside(old, new) if old.min(new) == 1 => 2,
            Save::Array | Save::Model(..) | Save::ModelBeside(..) => 1,
            Save::Split(..) => 0,
            Save::ModelOverOthers | Save::ModelOverIndexed => 1,
            // The metadata and three chunks.
            Save::Chunks { .. } => 4,
        }
    }

    /// Returns the number of shards after a save that nothing interrupted.
    pub fn shards_after(self) -> usize {
        match self {
            Save::Model(_, new) if new > 1 => new,
            Save::ModelBeside(old, new) => [old, new].into_iter().filter(|files| *files > 1).sum(),
            Save::ModelOverOthers | Save::ModelOverIndexed => 2,
            Save::Split(old, new) => {
                if old == new {
                    new
                } else {
                    old + new
                }
            }
            _ => 0,
        }
    }

    /// Returns whether every later save must keep this file: one that no save was asked to remove.
    pub fn keeps(self, path: &Path) -> bool {
        let name = path.file_name().expect("a file").to_string_lossy();
        match self {
            Save::ModelBeside(..) => !name.starts_with('.'),
            Save::Split(..) => name.starts_with("model-") || name.ends_with(".gpufile-old"),
            _ => false,
        }
    }
}

/// Saves a model of tensors whose names begin with their byte. If there are several, each is in a separate file.
fn save_model(path: &Path, byte: u8, numbers: std::ops::Range<usize>) {
    save_model_with(path, byte, numbers, false);
}

fn save_model_with(path: &Path, byte: u8, numbers: std::ops::Range<usize>, removes: bool) {
    let names: Vec<_> = numbers.map(|number| format!("{byte}.{number}")).collect();
    let bytes = vec![byte; LEN_BYTES];
    let shape = [LEN_BYTES as u64];
    let tensors: Vec<_> =
        names.iter().map(|name| TensorData::new(name, Dtype::U8, &shape, bytes.as_slice())).collect();
    let options = save_options().shard_bytes(1).remove_old_model(removes);
    safetensors::save(path, &tensors, &options).expect("a model that is saved");
}

fn save_split(path: &Path, byte: u8, files: usize) {
    let names: Vec<_> = (0..files).map(|number| format!("{number}")).collect();
    let bytes = vec![byte; LEN_BYTES];
    let shape = [LEN_BYTES as u64];
    let tensor = |name| gguf::TensorData::new(name, gguf::GgmlType::I8, &shape, bytes.as_slice());
    let tensors: Vec<_> = names.iter().map(|name| tensor(name)).collect();
    let options = save_options().shard_bytes(1);
    gguf::save_split(path, &gguf::Metadata::new(), &tensors, &options).expect("a model that is saved");
}

fn of_split(folder: &Path, old: usize, new: usize) -> Found {
    let first = |files: usize| folder.join(format!("model-00001-of-{files:05}.gguf"));
    if let Ok(model) = gguf::Model::open(first(new)) {
        let read = |name| of_bytes(&model.read_tensor(name).expect("a tensor"));
        let mut tensors = model.tensors().map(|tensor| read(tensor.name));
        let found = tensors.next().expect("a model with tensors");
        assert!(tensors.all(|tensor| tensor == found), "tensors of both models");
        return found;
    }
    if old != new {
        gguf::Model::open(first(old)).expect("the old model is whole");
        return Found::Old;
    }
    // Each old file is there, by its name or another.
    let files =
        fs::read_dir(folder).expect("a folder").map(|entry| fs::read(entry.expect("an entry").path()));
    let is_old = |file: &Vec<u8>| file.iter().filter(|byte| **byte == OLD).count() >= LEN_BYTES;
    assert_eq!(files.map(|file| file.expect("a file")).filter(is_old).count(), old, "old files are gone");
    Found::Aside
}

/// Returns the model of a folder; if there are two, the one at the path of the save.
fn of_folder(folder: &Path, old: usize, new: usize) -> Found {
    match Checkpoint::open(folder) {
        Err(Error::NoModel { .. } | Error::Incomplete { .. }) if old == 0 => Found::Old,
        Err(Error::SeveralModels { .. }) => {
            let is_new = [MODEL, INDEX].map(|name| {
                let model = Checkpoint::open(folder.join(name)).expect("both models are whole");
                of_model(&model, old) == Found::New
            });
            assert_eq!(is_new, [new == 1, new != 1], "the new model is where it belongs");
            Found::New
        }
        opened => of_model(&opened.expect("a model"), old),
    }
}

fn of_model(model: &Checkpoint, old: usize) -> Found {
    let loaded = model.load().to_host().expect("tensors");
    let mut found = loaded.iter().map(|tensor| {
        let bytes = loaded.bytes(tensor.info.name).expect("a tensor that was loaded");
        assert!(tensor.info.name.starts_with(&bytes[0].to_string()), "the bytes of another tensor");
        of_bytes(bytes)
    });
    let first = found.next().expect("a model with tensors");
    assert!(found.all(|tensor| tensor == first), "tensors of both models");
    assert!(
        first == Found::New || model.tensors().len() == old,
        "{} of {old} tensors",
        model.tensors().len()
    );
    first
}

fn of_bytes(bytes: &[u8]) -> Found {
    assert!(bytes.len() == LEN_BYTES && bytes.iter().all(|byte| *byte == bytes[0]), "bytes of both");
    match bytes[0] {
        OLD => Found::Old,
        NEW => Found::New,
        byte => panic!("bytes of neither save: {byte}"),
    }
}

fn array(folder: &Path, sync: bool) -> Array {
    Array::open(&Arc::new(FileStore::new(folder).files(&options()).sync(sync)), "/").expect("a Zarr array")
}
