//! Loads and saves on the CPU.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

// The derive of `Module` names the crate so.
use burn_core as burn;
use burn_core::module::{Module, Param};
use burn_core::tensor::{Device, Tensor, TensorData as BurnData};
use burn_store::{ModuleSnapshot, ModuleStore, PathFilter};
use gpufile::formats::safetensors::{Checkpoint, TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile_burn::GpufileStore;
use testkit::web::Server;

#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

fn zeros() -> Layer {
    let device = Device::default();
    Layer {
        weight: Param::from_tensor(Tensor::zeros([3, 2], &device)),
        bias: Param::from_tensor(Tensor::zeros([3], &device)),
    }
}

fn numbers(data: BurnData) -> Vec<f32> {
    data.try_to_vec().expect("numbers")
}

fn saved(folder: &tempfile::TempDir, tensors: &[(&str, &[u64], &[f32])]) -> PathBuf {
    let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let all: Vec<_> = tensors.iter().map(|(.., numbers)| bytes(numbers)).collect();
    let data = tensors.iter().zip(&all);
    let data: Vec<_> =
        data.map(|((name, shape, _), bytes)| TensorData::new(name, Dtype::F32, shape, bytes)).collect();
    let path = folder.path().join("model.safetensors");
    save(path, &data, &SaveOptions::new()).expect("a model").path
}

fn shorten(path: &Path, by: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("the file");
    file.set_len(file.metadata().expect("its length").len() - by).expect("a shorter file");
}

const WEIGHT: (&str, &[u64], &[f32]) = ("weight", &[3, 2], &[1., 2., 3., 4., 5., 6.]);
const BIAS: (&str, &[u64], &[f32]) = ("bias", &[3], &[0.5, 0.25, 0.125]);

#[test]
fn modules_load_with_any_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder, &[WEIGHT, BIAS]);
    for budget_bytes in [0, 1, 24, 36, usize::MAX] {
        let mut store = GpufileStore::open(&path).expect("a model").budget_bytes(budget_bytes);
        assert_eq!(store.keys().expect("names"), ["bias", "weight"]);
        for _ in 0..2 {
            let mut layer = zeros();
            layer.load_from(&mut store).expect("a whole module");
            assert_eq!(numbers(layer.weight.val().to_data()), WEIGHT.2);
            assert_eq!(numbers(layer.bias.val().to_data()), BIAS.2);
        }
    }
}

#[test]
fn a_missing_tensor_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder, &[WEIGHT]);
    let error =
        zeros().load_from(&mut GpufileStore::open(&path).expect("a model")).expect_err("half of a module");
    assert!(error.to_string().contains("bias"), "{error}");
    let mut layer = zeros();
    let mut partial = GpufileStore::open(&path).expect("a model").allow_partial(true);
    assert_eq!(layer.load_from(&mut partial).expect("a part").missing.len(), 1);
    assert_eq!(numbers(layer.weight.val().to_data()), WEIGHT.2);
}

#[test]
fn filtered_tensors_are_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder, &[BIAS, WEIGHT]);
    let filter = PathFilter::new().with_full_path("bias");
    let mut store = GpufileStore::open(&path).expect("a model").filter(filter);
    // The weight is behind the bias in the file, and can no longer be read.
    shorten(&path, 24);
    let mut layer = zeros();
    let result = layer.load_from(&mut store).expect("the bias");
    assert_eq!((result.applied.len(), result.skipped.len()), (1, 1));
    assert_eq!(numbers(layer.bias.val().to_data()), BIAS.2);
}

#[test]
fn a_shortened_file_is_an_error_that_names_the_tensor() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder, &[WEIGHT, BIAS]);
    let mut store = GpufileStore::open(&path).expect("a model");
    shorten(&path, 4);
    let tensor = store.get_tensor("weight").expect("tensors").expect("the tensor");
    let error = burn_store::bridge::to_data(tensor).expect_err("a read beyond the end");
    assert!(error.to_string().contains(r#"tensor "weight""#), "{error}");
    // What was not asked for does not fail what was.
    let tensor = store.get_tensor("bias").expect("tensors").expect("the tensor");
    assert_eq!(numbers(burn_store::bridge::to_data(tensor).expect("a whole tensor")), BIAS.2);
}

#[test]
fn saved_modules_load_again_and_failures_keep_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (saved(&folder, &[WEIGHT, BIAS]), folder.path().join("second"));
    let mut layer = zeros();
    layer.load_from(&mut GpufileStore::open(&first).expect("a model")).expect("a whole module");
    layer.save_into(&mut GpufileStore::create(&second)).expect("a model");
    assert!(std::fs::read(&first).expect("a file") == std::fs::read(&second).expect("a file"));

    let only = PathFilter::new().with_full_path("weight");
    layer.save_into(&mut GpufileStore::create(&second).filter(only)).expect("a part");
    assert_eq!(Checkpoint::open(&second).expect("a model").tensors().len(), 1);
    let nowhere = folder.path().join("missing").join("model");
    assert!(layer.save_into(&mut GpufileStore::create(nowhere)).is_err());
}

#[test]
fn every_type_of_burn_has_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = [0; 8];
    let types = [
        (Dtype::Bool, "bool"),
        (Dtype::BF16, "bf16"),
        (Dtype::F16, "f16"),
        (Dtype::F32, "f32"),
        (Dtype::F64, "f64"),
        (Dtype::I8, "i8"),
        (Dtype::I16, "i16"),
        (Dtype::I32, "i32"),
        (Dtype::I64, "i64"),
        (Dtype::U8, "u8"),
        (Dtype::U16, "u16"),
        (Dtype::U32, "u32"),
        (Dtype::U64, "u64"),
    ];
    let tensors = types
        .map(|(dtype, name)| TensorData::new(name, dtype, &[1], &bytes[..dtype.size_bits() as usize / 8]));
    let path = folder.path().join("model.safetensors");
    save(&path, &tensors, &SaveOptions::new()).expect("a model");
    let mut store = GpufileStore::open(&path).expect("a model");
    for (_, name) in types {
        assert_eq!(store.get_tensor(name).expect("tensors").expect("a tensor").dtype.name(), name);
    }
    let tensors = [TensorData::new("c", Dtype::C64, &[1], &bytes[..])];
    save(&path, &tensors, &SaveOptions::new()).expect("a model");
    let error = GpufileStore::open(&path).err().expect("a type that burn lacks");
    assert_eq!(error.to_string(), "burn has no type for C64");
}

/// Names of files. The library's rule takes each folder as a model, or refuses it.
const FOLDERS: [&[&str]; 9] = [
    &["model"],
    &["model-00001-of-00002", "model-00002-of-00002"],
    &["model-00001-of-00002"],
    &["model-00000-of-00002", "model-00002-of-00002"],
    &["model-00001-of-00002", "model-001-of-002", "model-00002-of-00002"],
    &["model.fp16-00001-of-00002", "model-00001-of-00002.fp16", "model.fp16-00002-of-00002"],
    &["model", "model.fp16"],
    &["weights", "adapters"],
    &[],
];

#[test]
fn folders_are_the_models_that_the_library_finds() {
    for names in FOLDERS {
        let folder = tempfile::tempdir().expect("a folder");
        for name in names {
            let tensor = TensorData::new(name, Dtype::F32, &[1], [0_u8; 4].as_slice());
            let path = folder.path().join(format!("{name}.safetensors"));
            save(path, &[tensor], &SaveOptions::new()).expect("a file");
        }
        let wanted = Checkpoint::open(folder.path());
        match (wanted, GpufileStore::open(folder.path())) {
            (Ok(wanted), Ok(mut found)) => {
                let mut wanted: Vec<_> = wanted.tensors().map(|tensor| tensor.name.to_owned()).collect();
                wanted.sort();
                let mut found = found.keys().expect("names");
                found.sort();
                assert_eq!(found, wanted, "{names:?}");
            }
            (Err(wanted), Err(found)) => {
                assert!(found.to_string().contains(&wanted.to_string()), "{names:?}: {found} and {wanted}");
            }
            (wanted, found) => panic!("{names:?}: {wanted:?}, but found is {:?}", found.err()),
        }
    }
}

#[test]
fn packed_models_load_from_an_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let weight: Vec<_> = (0..64 * 512).map(|at| (at as f32).sin() / 50.).collect();
    let plain = saved(&folder, &[("weight", &[64, 512], &weight), BIAS]);
    let packed = folder.path().join("packed.safetensors");
    let checkpoint = Checkpoint::open(&plain).expect("a model");
    let len_bytes = checkpoint.compress(&packed, &SaveOptions::new()).expect("a packed model").len_bytes;
    assert!(len_bytes < 64 * 512 * 4);
    let server = Server::new(std::fs::read(packed).expect("a file"));
    let checkpoint = Checkpoint::open_url(&server.url("/model.safetensors")).expect("a model");
    let mut store = GpufileStore::from_checkpoint(checkpoint).expect("a store");
    for (name, expected) in [("weight", &weight[..]), ("bias", BIAS.2)] {
        let tensor = store.get_tensor(name).expect("tensors").expect("the tensor");
        assert_eq!(numbers(burn_store::bridge::to_data(tensor).expect("a whole tensor")), expected);
    }
}

#[test]
fn watchers_learn_of_every_byte_and_may_end_loads() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder, &[WEIGHT, BIAS]);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let watched = |end_at: u64, filter: PathFilter| {
        let noted = calls.clone();
        noted.lock().expect("no panics").clear();
        let watch = move |read_bytes, all_bytes| {
            noted.lock().expect("no panics").push((read_bytes, all_bytes));
            if read_bytes >= end_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let store = GpufileStore::open(&path).expect("a model").budget_bytes(0);
        store.filter(filter).allow_partial(true).watch(watch)
    };
    zeros().load_from(&mut watched(u64::MAX, PathFilter::new())).expect("a whole module");
    assert_eq!(calls.lock().expect("no panics").last(), Some(&(36, 36)));
    zeros().load_from(&mut watched(u64::MAX, PathFilter::new().with_full_path("bias"))).expect("the bias");
    assert_eq!(*calls.lock().expect("no panics"), [(12, 12)]);
    let mut store = watched(1, PathFilter::new());
    let error = zeros().load_from(&mut store).expect_err("a load that was ended").to_string();
    assert!(error.contains("cancelled"), "{error}");
    assert!(zeros().load_from(&mut store).is_err());
    assert_eq!(calls.lock().expect("no panics").len(), 1);
}
