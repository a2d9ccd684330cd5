//! Tests of the backend on the CPU.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, linear};
use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};

/// Saves a linear layer of two inputs and three outputs, and a mask of a type that candle lacks.
fn saved(folder: &tempfile::TempDir) -> std::path::PathBuf {
    let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let (weight, bias) = (bytes(&[1., 2., 3., 4., 5., 6.]), bytes(&[0.5, 0.25, 0.125]));
    let tensors = [
        TensorData::new("layer.weight", Dtype::F32, &[3, 2], &weight),
        TensorData::new("layer.bias", Dtype::F32, &[3], &bias),
        TensorData::new(
            "ids",
            Dtype::I64,
            &[2],
            &[7, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255][..],
        ),
    ];
    let path = folder.path().join("model.safetensors");
    save(path, &tensors, &SaveOptions::new()).expect("a model").path
}

#[test]
fn layers_are_built_from_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = candle_backend::var_builder(saved(&folder), DType::F32, &Device::Cpu).expect("a model");
    assert!(tensors.contains_tensor("layer.bias") && !tensors.contains_tensor("layer"));
    let layer = linear(2, 3, tensors.pp("layer")).expect("a layer");
    let input = Tensor::new(&[[1_f32, 10.]], &Device::Cpu).expect("an input");
    let output = layer.forward(&input).expect("an output");
    assert_eq!(output.to_vec2::<f32>().expect("numbers"), [[21.5, 43.25, 65.125]]);

    let half = tensors.clone().set_dtype(DType::F16);
    assert_eq!(half.get(3, "layer.bias").expect("a tensor").dtype(), DType::F16);
    let missing = tensors.get(3, "layer.none").expect_err("no such tensor");
    assert!(missing.to_string().contains("cannot find tensor layer.none"), "{missing}");
    let other = tensors.get(4, "layer.bias").expect_err("another shape");
    assert!(other.to_string().contains("layer.bias"), "{other}");
}

#[test]
fn models_load_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder);
    let all = candle_backend::load_all(&path, &Device::Cpu).expect("tensors");
    assert_eq!(all.len(), 3);
    assert_eq!(all["ids"].to_vec1::<i64>().expect("numbers"), [7, -1]);
    assert_eq!(all["layer.weight"].to_vec2::<f32>().expect("numbers"), [[1., 2.], [3., 4.], [5., 6.]]);

    let tensors = [TensorData::new("mask", Dtype::Bool, &[1], &[1][..])];
    save(&path, &tensors, &SaveOptions::new()).expect("a model");
    let error = candle_backend::load_all(&path, &Device::Cpu).expect_err("a type that candle lacks");
    assert!(error.to_string().contains("candle has no type for BOOL"), "{error}");
}
