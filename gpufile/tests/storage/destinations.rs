//! Destinations: the suite, those that break the contract, and saves to them.

use std::collections::BTreeMap;
use std::io::{Error as IoError, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gpufile::formats::gguf::{self, GgmlType, Metadata};
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, Error as FormatsError, InPlace, SaveOptions};
use gpufile::storage::conformance::{Rule, destination_breaches};
use gpufile::storage::{Destination, Error, NewObject, ObjectFolder};
use gpufile::{File, OpenOptions};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tempfile::tempdir;
use testkit::bed::{Bed, pattern};
use testkit::in_a_fork;

use crate::objects::runtime;
use crate::support::{engine, put, storage};

/// A wrong of an object of [`Memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    AppearsEarly,
    RemovesTheOlder,
    LosesTheLastByte,
    FinishesShortOnes,
    TakesTooMany,
    KeepsRemoved,
    RefusesToRemoveNothing,
    Panics,
    /// Fails at the end of an object whose name has this.
    FailsAtTheEndOf(&'static str),
    /// Fails at the beginning of such an object.
    FailsAtTheStartOf(&'static str),
}

#[derive(Debug, Clone)]
struct Memory {
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    fault: Fault,
}

#[derive(Debug)]
struct New {
    of: Memory,
    name: String,
    len_bytes: u64,
    bytes: Vec<u8>,
}

impl Memory {
    fn new(fault: Fault) -> Self {
        Self { objects: Arc::default(), fault }
    }

    fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.objects.lock().unwrap().get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }
}

fn denied() -> Error {
    IoError::new(ErrorKind::PermissionDenied, "not today").into()
}

impl Destination for Memory {
    fn begin(&self, name: &str, len_bytes: u64) -> Result<Box<dyn NewObject>, Error> {
        match self.fault {
            Fault::RemovesTheOlder => drop(self.objects.lock().unwrap().remove(name)),
            Fault::AppearsEarly => drop(self.objects.lock().unwrap().insert(name.to_owned(), Vec::new())),
            Fault::FailsAtTheStartOf(part) if name.contains(part) => return Err(denied()),
            _ => {}
        }
        Ok(Box::new(New { of: self.clone(), name: name.to_owned(), len_bytes, bytes: Vec::new() }))
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let mut objects = self.objects.lock().unwrap();
        match self.fault {
            Fault::KeepsRemoved => {}
            Fault::RefusesToRemoveNothing if !objects.contains_key(name) => return Err(denied()),
            _ => drop(objects.remove(name)),
        }
        Ok(())
    }
}

impl NewObject for New {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        assert!(!bytes.is_empty() && self.of.fault != Fault::Panics, "on demand");
        let is_fine = self.of.fault == Fault::TakesTooMany
            || self.bytes.len() as u64 + bytes.len() as u64 <= self.len_bytes;
        self.bytes.extend_from_slice(bytes);
        if is_fine { Ok(()) } else { Err("too many bytes".into()) }
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        match self.of.fault {
            Fault::FailsAtTheEndOf(part) if self.name.contains(part) => return Err(denied()),
            Fault::LosesTheLastByte => drop(self.bytes.pop()),
            Fault::FinishesShortOnes => {}
            _ if (self.bytes.len() as u64) < self.len_bytes => return Err("too few bytes".into()),
            _ => {}
        }
        let New { of, name, bytes, .. } = *self;
        of.objects.lock().unwrap().insert(name, bytes);
        Ok(())
    }
}

fn rules(memory: &Memory) -> Vec<Rule> {
    let found = destination_breaches(memory, &|name| memory.get(name));
    found.iter().map(|breach| breach.rule).collect()
}

#[test]
fn destinations_in_memory_conform() {
    let memory = Memory::new(Fault::None);
    assert_eq!(rules(&memory), []);
    assert!(memory.names().is_empty());
}

#[test]
fn each_broken_destination_is_caught() {
    let broken = [
        (Fault::AppearsEarly, Rule::WholeObjects),
        (Fault::RemovesTheOlder, Rule::WholeObjects),
        (Fault::LosesTheLastByte, Rule::Bytes),
        (Fault::FinishesShortOnes, Rule::Errors),
        (Fault::TakesTooMany, Rule::Errors),
        (Fault::KeepsRemoved, Rule::Removal),
        (Fault::RefusesToRemoveNothing, Rule::Errors),
        (Fault::Panics, Rule::Panics),
        (Fault::FailsAtTheStartOf("conformance"), Rule::Errors),
        (Fault::FailsAtTheEndOf("conformance/7"), Rule::Threads),
    ];
    for (fault, rule) in broken {
        let found = rules(&Memory::new(fault));
        assert!(found.contains(&rule), "{fault:?}: {found:?}");
    }
}

fn folder_in(store: &Arc<dyn ObjectStore>, path: &str, runtime: &tokio::runtime::Runtime) -> ObjectFolder {
    ObjectFolder::new(store.clone(), Path::from(path), runtime.handle().clone()).unwrap()
}

fn read(store: &dyn ObjectStore, path: &str, runtime: &tokio::runtime::Runtime) -> Option<Vec<u8>> {
    let got = runtime.block_on(store.get(&Path::from(path))).ok()?;
    Some(runtime.block_on(got.bytes()).unwrap().to_vec())
}

#[test]
fn folders_of_the_crate_object_store_conform() {
    let runtime = runtime();
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    for path in ["", "a/b"] {
        let folder = folder_in(&store, path, &runtime);
        let of = |name: &str| format!("{path}/{name}").trim_start_matches('/').to_owned();
        assert_eq!(destination_breaches(&folder, &|name| read(&*store, &of(name), &runtime)), []);
    }
}

#[test]
fn forked_children_write_no_objects_of_their_parent() {
    testkit::alone(|| {
        let runtime = runtime();
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let folder = folder_in(&store, "", &runtime);
        let mut object = folder.begin("long", 40 << 20).unwrap();
        object.write(&pattern(20 << 20)).unwrap();
        let child = in_a_fork(|| {
            let error = object.write(&pattern(20 << 20)).unwrap_err().to_string();
            assert!(error.contains("forked child"), "{error}");
            drop(object);
            assert!(folder.begin("long", 40 << 20).is_err() && folder.remove("long").is_err());
        });
        child.unwrap();
    });
}

/// Returns the tensors of a model, whose buffers are those of `buffers`.
fn tensors<'a, B>(buffers: &'a [B]) -> Vec<TensorData<'a>>
where
    &'a B: Into<gpufile::BufSlice<'a>>,
{
    let names = ["one", "two", "three"];
    let tensor = |(name, buffer)| TensorData::new(name, Dtype::U8, &[3_000_000], buffer);
    names.into_iter().zip(buffers).map(tensor).collect()
}

fn buffers() -> Vec<Vec<u8>> {
    (0..3).map(|seed| pattern(3_000_000 + seed)[seed..].to_vec()).collect()
}

#[test]
fn models_are_saved_to_destinations_as_to_files() {
    let buffers = buffers();
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let options = SaveOptions::new().sync(false).metadata([("format", "pt")]);
    safetensors::save(&path, &tensors(&buffers), &options).unwrap();
    let expected = std::fs::read(&path).unwrap();
    Bed::each(|bed| {
        let on_gpu: Vec<_> = buffers
            .iter()
            .map(|bytes| {
                let mut buffer = bed.device.alloc(bytes.len()).unwrap();
                buffer.copy_from_host(0, bytes).unwrap();
                buffer
            })
            .collect();
        let options = options.clone().files(&OpenOptions::new().engine(&engine(bed)));
        for tensors in [tensors(&buffers), tensors(&on_gpu)] {
            let memory = Memory::new(Fault::None);
            let saved = safetensors::save_to(&memory, "a/model.safetensors", &tensors, &options).unwrap();
            assert_eq!(
                (saved.path, saved.len_bytes),
                (PathBuf::from("a/model.safetensors"), expected.len() as u64)
            );
            assert!(memory.get("a/model.safetensors").unwrap() == expected);

            // Several objects, and their index.
            let several = options.clone().shard_bytes(4_000_000);
            let saved = safetensors::save_to(&memory, "b/model.safetensors", &tensors, &several).unwrap();
            assert_eq!(saved.path, PathBuf::from("b/model.safetensors.index.json"));
            let names: Vec<_> = memory.names().into_iter().filter(|name| name.starts_with("b/")).collect();
            assert_eq!(names.len(), 4);
            for name in names {
                std::fs::write(folder.path().join(&name[2..]), memory.get(&name).unwrap()).unwrap();
            }
            let opened = Checkpoint::open(folder.path().join("model.safetensors.index.json")).unwrap();
            for (name, bytes) in ["one", "two", "three"].into_iter().zip(&buffers) {
                assert!(&opened.read_tensor(name).unwrap() == bytes, "{name}");
            }
        }
    });
}

#[test]
fn gguf_models_are_saved_to_destinations() {
    let (memory, folder, bytes) = (Memory::new(Fault::None), tempdir().unwrap(), pattern(9000 * 4));
    let metadata = Metadata::from_iter([("general.architecture", "llama")]);
    let tensors = [gguf::TensorData::new("w", GgmlType::F32, &[9000], &bytes)];
    let (path, options) = (folder.path().join("x.gguf"), SaveOptions::new().sync(false));
    let len_bytes = gguf::save(&path, &metadata, &tensors, &options).unwrap();
    assert_eq!(gguf::save_to(&memory, "x.gguf", &metadata, &tensors, &options).unwrap(), len_bytes);
    let saved = memory.get("x.gguf").unwrap();
    assert!(saved == std::fs::read(&path).unwrap());
    // A file over the object is the model.
    let file = File::from_storage("x.gguf", storage(&saved, put)).unwrap();
    assert_eq!(file.len_bytes().unwrap(), len_bytes);

    let refused = Memory::new(Fault::FailsAtTheEndOf("gguf"));
    let error = gguf::save_to(&refused, "x.gguf", &metadata, &tensors, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("not today"), "{error}");
}

#[test]
fn failed_saves_say_what_is_in_place() {
    let buffers = buffers();
    let options = SaveOptions::new().shard_bytes(4_000_000);
    let cases = [
        (Fault::FailsAtTheStartOf("-00001-"), InPlace::Old, 0),
        (Fault::FailsAtTheStartOf("-00003-"), InPlace::Old, 0),
        (Fault::FailsAtTheStartOf("index"), InPlace::Old, 0),
        // The shard that failed at its end may be there.
        (Fault::FailsAtTheEndOf("-00002-"), InPlace::Old, 1),
        // The index may be there, and needs its shards.
        (Fault::FailsAtTheEndOf("index"), InPlace::Unknown, 3),
    ];
    for (fault, expected, count) in cases {
        let memory = Memory::new(fault);
        let error =
            safetensors::save_to(&memory, "model.safetensors", &tensors(&buffers), &options).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let FormatsError::Save { in_place, left, .. } = &error else { panic!("{error}") };
        assert_eq!((in_place, left.len()), (&expected, count), "{fault:?}: {error}");
        assert!(source.is_some() && error.to_string().contains("not today"), "{fault:?}: {error}");
        assert_eq!(memory.names().len(), if expected == InPlace::Old { 0 } else { 3 }, "{fault:?}");
    }
    let packed =
        safetensors::save_to(&Memory::new(Fault::None), "x", &tensors(&buffers), &options.compress(true));
    assert!(packed.unwrap_err().to_string().contains("packed"));
}
