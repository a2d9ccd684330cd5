//! Saves from the CPU.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use gpufile_candle::{load, save};

const CPU: Device = Device::Cpu;

#[test]
fn saved_files_equal_those_of_candle() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = Tensor::arange(0_i64, 24, &CPU).and_then(|all| all.reshape((4, 6))).expect("numbers");
    let tensors = HashMap::from([
        ("turned", whole.t().expect("a view")),
        ("row", whole.narrow(0, 1, 1).expect("a view")),
        ("half", whole.to_dtype(DType::F16).expect("numbers")),
        ("brain", whole.to_dtype(DType::BF16).expect("numbers")),
        ("single", whole.to_dtype(DType::F32).expect("numbers")),
        ("double", whole.to_dtype(DType::F64).expect("numbers")),
        ("bytes", whole.to_dtype(DType::U8).expect("numbers")),
        ("unsigned", whole.to_dtype(DType::U32).expect("numbers")),
        ("empty", Tensor::zeros((0, 3), DType::F32, &CPU).expect("no numbers")),
        ("scalar", Tensor::new(5_f32, &CPU).expect("a number")),
    ]);
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    save(&tensors, &ours).expect("a model");
    candle_core::safetensors::save(&tensors, &theirs).expect("a model");
    assert!(std::fs::read(&ours).expect("a file") == std::fs::read(&theirs).expect("a file"));
    let back = load(&[&ours], None, &CPU).expect("tensors");
    let turned = back["turned"].to_vec2::<i64>().expect("numbers");
    assert_eq!((turned.len(), &turned[1][..]), (6, &[1, 7, 13, 19][..]));
}

#[test]
fn failed_saves_keep_the_old_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let one = Tensor::new(1_f32, &CPU).expect("a number");
    save(&HashMap::from([("x", one.clone())]), &path).expect("a model");
    let before = std::fs::read(&path).expect("a file");
    assert!(save(&HashMap::from([("__metadata__", one)]), &path).is_err());
    assert!(std::fs::read(&path).expect("a file") == before);
}
