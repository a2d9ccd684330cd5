//! Tests of the store on the CPU.

use std::path::PathBuf;

// The derive of `Module` names the crate so.
use burn_core as burn;
use burn_core::module::{Module, Param};
use burn_core::tensor::{Device, Tensor};
use burn_store::{ModuleSnapshot, ModuleStore};
use burn_store_port::GpufileStore;
use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};

#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

fn zeros(device: &Device) -> Layer {
    Layer {
        weight: Param::from_tensor(Tensor::zeros([3, 2], device)),
        bias: Param::from_tensor(Tensor::zeros([3], device)),
    }
}

/// Saves tensors of 32-bit floats.
fn saved(folder: &tempfile::TempDir, tensors: &[(&str, &[u64], &[f32])]) -> PathBuf {
    let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let all: Vec<_> = tensors.iter().map(|(.., numbers)| bytes(numbers)).collect();
    let data = tensors.iter().zip(&all);
    let data: Vec<_> =
        data.map(|((name, shape, _), bytes)| TensorData::new(name, Dtype::F32, shape, bytes)).collect();
    let path = folder.path().join("model.safetensors");
    save(path, &data, &SaveOptions::new()).expect("a model").path
}

const WEIGHT: (&str, &[u64], &[f32]) = ("weight", &[3, 2], &[1., 2., 3., 4., 5., 6.]);
const BIAS: (&str, &[u64], &[f32]) = ("bias", &[3], &[0.5, 0.25, 0.125]);

#[test]
fn modules_load_from_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = GpufileStore::open(saved(&folder, &[WEIGHT, BIAS])).expect("a model");
    assert_eq!(store.keys().expect("names"), ["bias", "weight"]);
    let mut layer = zeros(&Device::default());
    layer.load_from(&mut store).expect("a whole module");
    let numbers = |data: burn_core::tensor::TensorData| data.try_to_vec::<f32>().expect("numbers");
    assert_eq!(numbers(layer.weight.val().to_data()), WEIGHT.2);
    assert_eq!(numbers(layer.bias.val().to_data()), BIAS.2);
}

#[test]
fn a_missing_tensor_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = GpufileStore::open(saved(&folder, &[WEIGHT])).expect("a model");
    let error = zeros(&Device::default()).load_from(&mut store).expect_err("half of a module");
    assert!(error.to_string().contains("bias"), "{error}");
}

#[test]
fn a_shortened_file_is_an_error_that_names_the_tensor() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder, &[WEIGHT, BIAS]);
    let mut store = GpufileStore::open(&path).expect("a model");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.set_len(file.metadata().expect("its length").len() - 4).expect("a shorter file");
    let tensor = store.get_tensor("weight").expect("tensors").expect("the tensor");
    let error = burn_store::bridge::to_data(tensor).expect_err("a read beyond the end");
    assert!(error.to_string().contains(r#"tensor "weight""#), "{error}");
}

#[test]
fn every_type_of_burn_has_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = [0; 8];
    let types = [(Dtype::Bool, "bool"), (Dtype::BF16, "bf16"), (Dtype::I64, "i64"), (Dtype::U8, "u8")];
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
