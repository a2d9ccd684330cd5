//! Saves from the CPU and from CUDA.

mod support;

use std::collections::HashMap;

use candle_core::{DType, Tensor};
use gpufile::formats::safetensors::{self, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile_candle::{load, save};
use support::{CPU, computes, each_device};

#[test]
fn saved_files_equal_those_of_candle() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let whole = Tensor::arange(0_i64, 24, &CPU).and_then(|all| all.reshape((4, 6))).expect("numbers");
        let mut tensors = HashMap::from([
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
        if !computes(device) {
            let turned = tensors.remove("turned").expect("a view").to_device(device).expect("a copy");
            assert!(save(&[("turned", turned)].into(), &ours).is_err());
        }
        // Copies within a GPU are in flight when the save begins.
        let copied =
            |tensor: &Tensor| tensor.to_device(device).and_then(|tensor| tensor.copy()).expect("a copy");
        save(&tensors.iter().map(|(name, tensor)| (*name, copied(tensor))).collect(), &ours)
            .expect("a model");
        candle_core::safetensors::save(&tensors, &theirs).expect("a model");
        assert!(std::fs::read(&ours).expect("a file") == std::fs::read(&theirs).expect("a file"));
        let back = load(&[&ours], None, device).expect("tensors");
        assert_eq!(back["row"].to_vec2::<i64>().expect("numbers"), [[6, 7, 8, 9, 10, 11]]);
        if let Some(turned) = back.get("turned") {
            let turned = turned.to_vec2::<i64>().expect("numbers");
            assert_eq!((turned.len(), &turned[1][..]), (6, &[1, 7, 13, 19][..]));
        }
    });
}

#[test]
fn types_without_arithmetic_are_saved_from_their_device() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("model"), folder.path().join("copy"));
        let contents: Vec<_> = (0..24_u8).map(|at| at.wrapping_mul(37) ^ 0x5a).collect();
        for dtype in [Dtype::F4, Dtype::F6E2M3, Dtype::F6E3M2, Dtype::F8E8M0] {
            let data = TensorData::new("x", dtype, &[8], &contents[..dtype.size_bits() as usize]);
            safetensors::save(&path, &[data], &SaveOptions::new()).expect("a model");
            save(&load(&[&path], None, device).expect("tensors"), &copy).expect("a copy");
            assert!(
                std::fs::read(&path).expect("a file") == std::fs::read(&copy).expect("a file"),
                "{dtype}"
            );
        }
    });
}

#[test]
fn failed_saves_keep_the_old_file() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let one = Tensor::new(1_f32, device).expect("a number");
        save(&HashMap::from([("x", one.clone())]), &path).expect("a model");
        let before = std::fs::read(&path).expect("a file");
        assert!(save(&HashMap::from([("__metadata__", one)]), &path).is_err());
        assert!(std::fs::read(&path).expect("a file") == before);
    });
}
