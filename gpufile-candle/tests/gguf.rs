//! Quantised tensors from GGUF files on the CPU and on CUDA, compared with candle's own readers.

mod support;

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Module, Tensor};
use gpufile::formats::SaveOptions;
use gpufile::formats::gguf::{self, GgmlType, Metadata, TensorData};
use gpufile_candle::gguf::{Model, VarBuilder, load, load_model};
use support::{computes, each_device};

/// The types that candle's own reader takes.
const READ_BY_CANDLE: [GgmlType; 13] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2K,
    GgmlType::Q3K,
    GgmlType::Q4K,
    GgmlType::Q5K,
    GgmlType::Q6K,
];

/// Returns bytes that repeat after no short period.
fn noise(len: u64, seed: u64) -> Vec<u8> {
    let at = |at: u64| ((at + seed * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..len).map(at).collect()
}

fn blocks(ggml_type: GgmlType, rows: u64) -> Vec<u8> {
    noise(rows * 512 / ggml_type.block_elements() * ggml_type.block_bytes(), ggml_type.number().into())
}

fn saved(path: &Path, tensors: &[(&str, GgmlType)]) {
    let contents: Vec<_> = tensors.iter().map(|(_, ggml_type)| blocks(*ggml_type, 3)).collect();
    let data = std::iter::zip(tensors, &contents);
    let data: Vec<_> =
        data.map(|((name, ggml_type), bytes)| TensorData::new(name, *ggml_type, &[3, 512], bytes)).collect();
    gguf::save(path, &Metadata::new(), &data, &SaveOptions::new()).expect("a model");
}

fn bits(tensor: &QTensor) -> Vec<u32> {
    let elements = tensor.dequantize(&tensor.device()).and_then(|all| all.flatten_all()?.to_vec1::<f32>());
    elements.expect("numbers").into_iter().map(f32::to_bits).collect()
}

fn assert_equal(ours: &QTensor, theirs: &QTensor, name: &str) {
    assert_eq!((ours.dtype(), ours.shape()), (theirs.dtype(), theirs.shape()), "{name}");
    assert!(ours.data().expect("blocks") == theirs.data().expect("blocks"), "{name}: other blocks");
    assert!(ours.device().same_device(&theirs.device()), "{name}: another device");
    if computes(&ours.device()) {
        assert!(bits(ours) == bits(theirs), "{name}: other numbers");
    }
}

#[test]
fn each_type_loads_as_by_candle() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        let tensors = READ_BY_CANDLE.map(|ggml_type| (ggml_type.name(), ggml_type));
        saved(&path, &tensors);
        let ours = load(&path, device).expect("tensors");
        let mut file = File::open(&path).expect("the file");
        let content = Content::read(&mut file).expect("a header");
        assert_eq!(ours.len(), READ_BY_CANDLE.len());
        for (name, _) in tensors {
            assert_equal(&ours[name], &content.tensor(&mut file, name, device).expect("a tensor"), name);
        }
        let builder = VarBuilder::from_gguf(&path, device).expect("a builder");
        let theirs = candle_transformers::quantized_var_builder::VarBuilder::from_gguf(&path, device)
            .expect("a builder");
        for (name, _) in tensors {
            let ours = builder.get((3, 512), name).expect("a tensor");
            assert_equal(&ours, &theirs.get((3, 512), name).expect("a tensor"), name);
        }
    });
}

#[test]
fn types_of_intermediate_results_load_too() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        saved(&path, &[("a", GgmlType::Q8_1), ("b", GgmlType::Q8K)]);
        let ours = load(&path, device).expect("tensors");
        for (name, dtype, ggml_type) in
            [("a", GgmlDType::Q8_1, GgmlType::Q8_1), ("b", GgmlDType::Q8K, GgmlType::Q8K)]
        {
            // candle asks for aligned bytes here.
            let words: Vec<u32> = blocks(ggml_type, 3)
                .chunks(4)
                .map(|word| u32::from_ne_bytes(word.try_into().expect("whole words")))
                .collect();
            let storage = QStorage::from_data(bytemuck::cast_slice(&words).into(), device, dtype);
            let theirs = QTensor::new(storage.expect("blocks"), (3, 512)).expect("a tensor");
            assert_equal(&ours[name], &theirs, name);
        }
    });
}

#[test]
fn types_that_candle_lacks_are_named_with_their_tensor() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        saved(&path, &[("blk.0.attn_q.weight", GgmlType::Q4K), ("blk.0.attn_k.weight", GgmlType::IQ2XXS)]);
        let error = load(&path, device).expect_err("a type that candle lacks").to_string();
        assert!(error.contains("blk.0.attn_k.weight") && error.contains("IQ2_XXS"), "{error}");
        let error = VarBuilder::from_gguf(&path, device).err().expect("a type that candle lacks").to_string();
        assert!(error.contains("blk.0.attn_k.weight") && error.contains("IQ2_XXS"), "{error}");
    });
}

#[test]
fn builders_find_tensors_by_prefix_and_shape() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        saved(&path, &[("blk.1.ffn_up.weight", GgmlType::Q8_0), ("norm", GgmlType::F32)]);
        let builder = VarBuilder::from_gguf(&path, device).expect("a builder");
        let layer = builder.pp("blk").pp(1);
        assert!(layer.device().same_device(device));
        assert!(layer.contains_key("norm") && !layer.contains_key("ffn_up.weight"));
        let weight = layer.get((3, 512), "ffn_up.weight").expect("a tensor");
        assert!(std::sync::Arc::ptr_eq(
            &weight,
            &builder.get_no_shape("blk.1.ffn_up.weight").expect("a tensor")
        ));
        let error = layer.get((512, 3), "ffn_up.weight").expect_err("another shape").to_string();
        assert!(error.contains("blk.1.ffn_up.weight"), "{error}");
        let error = layer.get_no_shape("norm").expect_err("no such tensor").to_string();
        assert!(error.contains("blk.1.norm"), "{error}");
        if computes(device) {
            let input = Tensor::ones((2, 512), DType::F32, device).expect("ones");
            let product = QMatMul::from_arc(weight).and_then(|weight| weight.forward(&input));
            assert_eq!(product.expect("a product").dims(), [2, 3]);
        }
    });
}

#[test]
fn a_shortened_file_fails_without_a_signal() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        saved(&path, &[("w", GgmlType::Q6K)]);
        let model = Model::open(&path).expect("a model");
        let file = File::options().write(true).open(&path).expect("the file");
        file.set_len(file.metadata().expect("its length").len() - 64).expect("a shorter file");
        let error = load_model(&model, device).expect_err("a read beyond the end").to_string();
        assert!(error.contains(r#""w""#), "{error}");
    });
}

#[test]
fn tensors_without_elements_or_axes_do_as_candle_says() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        let number = 1_f32.to_le_bytes();
        let empty = TensorData::new("empty", GgmlType::Q4_0, &[0, 32], &[][..]);
        let save =
            |tensors: &[TensorData<'_>]| gguf::save(&path, &Metadata::new(), tensors, &SaveOptions::new());
        save(&[empty]).expect("a model");
        assert_eq!(load(&path, device).expect("tensors")["empty"].shape().dims(), [0, 32]);
        save(&[TensorData::new("scalar", GgmlType::F32, &[], &number[..])]).expect("a model");
        let error = load(&path, device).expect_err("no axes").to_string();
        assert!(error.contains("scalar"), "{error}");
    });
}
