//! Models that gpufile opened: from addresses, packed, and over storages; with watchers that end loads.

#[path = "../examples/server/mod.rs"]
mod server;
mod support;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use gpufile::formats::SaveOptions;
use gpufile::formats::safetensors::Checkpoint;
use gpufile_candle::Tensors;
use server::serve;
use support::{CPU, computes, each_device};

fn save(folder: &Path) -> (PathBuf, HashMap<String, Tensor>) {
    let weight = |seed: usize| {
        let values: Vec<_> = (0..64 * 512).map(|at| ((at + seed) as f32).sin() / 50.).collect();
        let tensor =
            Tensor::from_vec(values, (64, 512), &CPU).and_then(|tensor| tensor.to_dtype(DType::BF16));
        tensor.expect("a tensor")
    };
    let tensors: HashMap<_, _> = (0..6).map(|number| (format!("layers.{number}"), weight(number))).collect();
    let path = folder.join("model.safetensors");
    gpufile_candle::save(&tensors, &path).expect("a model");
    (path, tensors)
}

fn bits(tensor: &Tensor) -> Vec<u16> {
    let tensor = tensor.to_device(&CPU).and_then(|tensor| tensor.flatten_all()?.to_vec1::<half::bf16>());
    tensor.expect("numbers").into_iter().map(half::bf16::to_bits).collect()
}

fn assert_equal(ours: &HashMap<String, Tensor>, theirs: &HashMap<String, Tensor>, device: &Device) {
    assert_eq!(ours.len(), theirs.len());
    for (name, theirs) in theirs {
        assert!(ours[name].device().same_device(device), "{name}: another device");
        assert!(bits(&ours[name]) == bits(theirs), "{name}: other bits");
    }
}

#[test]
fn packed_models_load_from_an_address() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, tensors) = save(folder.path());
        let packed = folder.path().join("packed.safetensors");
        let saved = Checkpoint::open(&path).and_then(|plain| plain.compress(&packed, &SaveOptions::new()));
        assert!(saved.expect("a packed model").len_bytes < std::fs::metadata(&path).expect("a file").len());
        for path in [path, packed] {
            let address = serve(std::fs::read(path).expect("a file")).expect("a server");
            let checkpoint = Checkpoint::open_url(&address).expect("a model");
            let ours = Tensors::from_checkpoint(checkpoint).load(None, device).expect("tensors");
            assert_equal(&ours, &tensors, device);
            if computes(device) {
                let checkpoint = Checkpoint::open_url(&address).expect("a model");
                let wider = Tensors::from_checkpoint(checkpoint).load(DType::F32, device).expect("tensors");
                let narrow = |tensor: &Tensor| tensor.to_dtype(DType::BF16).expect("a tensor");
                let narrow = wider.iter().map(|(name, tensor)| (name.clone(), narrow(tensor))).collect();
                assert_equal(&narrow, &tensors, device);
            }
        }
    });
}

#[test]
fn watchers_learn_of_every_byte_once() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, _) = save(folder.path());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let noted = calls.clone();
        let note = move |read_bytes, all_bytes| {
            noted.lock().expect("no panics").push((read_bytes, all_bytes));
            ControlFlow::Continue(())
        };
        let tensors = Tensors::open(&[path]).expect("a model").watch(note);
        let all_bytes = tensors.checkpoint().len_bytes();
        let builder = VarBuilder::from_backend(Box::new(tensors), DType::BF16, device.clone());
        for number in [0, 3, 1, 3] {
            builder.get((64, 512), &format!("layers.{number}")).expect("a tensor");
        }
        let calls = calls.lock().expect("no panics");
        assert!(calls.is_sorted(), "{calls:?}");
        assert_eq!(calls.last(), Some(&(all_bytes, all_bytes)), "{calls:?}");
    });
}

#[test]
fn a_watcher_that_breaks_ends_this_load_and_later_ones() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        // Longer than a step, so that some is never read.
        let path = folder.path().join("model.safetensors");
        let tensor = || Tensor::zeros(40 << 20, DType::U8, &CPU).expect("zeros");
        let tensors = HashMap::from(["a", "b", "c"].map(|name| (name, tensor())));
        gpufile_candle::save(&tensors, &path).expect("a model");
        let address = serve(std::fs::read(path).expect("a file")).expect("a server");
        let checkpoint = Checkpoint::open_url(&address).expect("a model");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let noted = calls.clone();
        let end = move |read_bytes, _| {
            noted.lock().expect("no panics").push(read_bytes);
            ControlFlow::Break(())
        };
        let tensors = Tensors::from_checkpoint(checkpoint).watch(end);
        let error = tensors.load(None, device).expect_err("a load that was ended").to_string();
        assert!(error.contains("cancelled"), "{error}");
        let builder = VarBuilder::from_backend(Box::new(tensors), DType::U8, device.clone());
        assert!(builder.get(40 << 20, "a").is_err());
        assert_eq!(*calls.lock().expect("no panics"), [40 << 20]);
    });
}
