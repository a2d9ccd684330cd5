//! Quantised models of candle-transformers, loaded by `from_gguf` with this crate's reader and with a file.

mod support;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{Device, Result, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen2, quantized_qwen3};
use gpufile::formats::SaveOptions;
use gpufile::formats::gguf::{self, Array, GgmlType, Metadata, TensorData};
use gpufile_candle::gguf::{Model, Reader};
use support::{computes, each_device};

const WIDTH: u64 = 64;
const LAYERS: u32 = 2;

fn blocks(ggml_type: GgmlType, shape: &[u64], seed: usize) -> Vec<u8> {
    let noise = |at: usize| ((at + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let elements = shape.iter().product::<u64>() as usize;
    let block = |block: usize| -> Vec<u8> {
        let scale = half::f16::from_f32(0.002 + f32::from(noise(block)) / 1e5).to_le_bytes();
        scale
            .into_iter()
            .chain((1..ggml_type.block_bytes() as usize - 1).map(|at| noise(block * 64 + at)))
            .collect()
    };
    match ggml_type {
        GgmlType::F32 => {
            (0..elements).flat_map(|at| (0.5 + f32::from(noise(at)) / 256.).to_le_bytes()).collect()
        }
        _ => (0..elements / ggml_type.block_elements() as usize).flat_map(block).collect(),
    }
}

/// Saves a network of an architecture, in files of at most `shard_bytes` bytes. Returns the path of the first.
fn save(folder: &Path, architecture: &str, ggml_type: GgmlType, shard_bytes: u64) -> PathBuf {
    let key = |name: &str| format!("{architecture}.{name}");
    let mut metadata = Metadata::from_iter([("general.architecture", architecture)]);
    for (name, value) in [
        ("attention.head_count", 4_u32),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("block_count", LAYERS),
        ("context_length", 32),
        ("embedding_length", WIDTH as u32),
        ("rope.dimension_count", 16),
    ] {
        metadata.insert(key(name), value);
    }
    metadata.insert(key("attention.layer_norm_rms_epsilon"), 1e-5_f32);
    metadata.insert(key("rope.freq_base"), 10_000_f32);
    let words: gguf::Strings = (0..40).map(|word| format!("word {word}")).collect();
    metadata.insert("tokenizer.ggml.tokens", gguf::Value::Array(Array::Strings(words)));

    let mut tensors = vec![("token_embd".to_owned(), vec![40, WIDTH]), ("output_norm".into(), vec![WIDTH])];
    for layer in 0..LAYERS {
        let mut of_layer = vec![
            ("attn_k.weight", vec![32, WIDTH]),
            ("attn_norm.weight", vec![WIDTH]),
            ("attn_output.weight", vec![WIDTH, WIDTH]),
            ("attn_q.weight", vec![WIDTH, WIDTH]),
            ("attn_v.weight", vec![32, WIDTH]),
            ("ffn_down.weight", vec![WIDTH, 96]),
            ("ffn_gate.weight", vec![96, WIDTH]),
            ("ffn_norm.weight", vec![WIDTH]),
            ("ffn_up.weight", vec![96, WIDTH]),
        ];
        match architecture {
            "qwen2" => of_layer.extend([
                ("attn_q.bias", vec![WIDTH]),
                ("attn_k.bias", vec![32]),
                ("attn_v.bias", vec![32]),
            ]),
            "qwen3" => of_layer.extend([("attn_q_norm.weight", vec![16]), ("attn_k_norm.weight", vec![16])]),
            _ => {}
        }
        tensors.extend(of_layer.into_iter().map(|(name, shape)| (format!("blk.{layer}.{name}"), shape)));
    }
    for (name, _) in &mut tensors[..2] {
        name.push_str(".weight");
    }
    let typed = |shape: &[u64]| if shape.len() == 1 { GgmlType::F32 } else { ggml_type };
    let contents: Vec<_> =
        tensors.iter().enumerate().map(|(seed, (_, shape))| blocks(typed(shape), shape, seed)).collect();
    let data: Vec<_> = std::iter::zip(&tensors, &contents)
        .map(|((name, shape), bytes)| TensorData::new(name, typed(shape), shape, bytes))
        .collect();
    let options = SaveOptions::new().shard_bytes(shard_bytes);
    gguf::save_split(folder.join("model.gguf"), &metadata, &data, &options).expect("a model").path
}

/// Returns the bits of the network's scores for the token behind some others.
fn scores<R: Read + Seek>(content: Content, reader: &mut R, device: &Device) -> Result<Vec<u32>> {
    let tokens = Tensor::new(&[[3_u32, 14, 15, 9, 26]], device)?;
    let architecture = content.metadata["general.architecture"].to_string()?.clone();
    let scores = match &*architecture {
        "llama" => quantized_llama::ModelWeights::from_gguf(content, reader, device)?.forward(&tokens, 0)?,
        "qwen2" => quantized_qwen2::ModelWeights::from_gguf(content, reader, device)?.forward(&tokens, 0)?,
        _ => quantized_qwen3::ModelWeights::from_gguf(content, reader, device)?.forward(&tokens, 0)?,
    };
    let scores = scores.flatten_all()?.to_vec1::<f32>()?;
    assert!(scores.iter().all(|score| score.is_finite()) && scores.iter().any(|score| *score != scores[0]));
    Ok(scores.into_iter().map(f32::to_bits).collect())
}

const NETWORKS: [(&str, GgmlType); 6] = [
    ("llama", GgmlType::Q4_0),
    ("llama", GgmlType::Q8_0),
    ("qwen2", GgmlType::Q4_0),
    ("qwen2", GgmlType::Q8_0),
    ("qwen3", GgmlType::Q4_0),
    ("qwen3", GgmlType::Q8_0),
];

#[test]
fn networks_give_equal_scores_by_both_readers() {
    each_device(|device| {
        if !computes(device) {
            return;
        }
        for (architecture, ggml_type) in NETWORKS {
            let folder = tempfile::tempdir().expect("a folder");
            let path = save(folder.path(), architecture, ggml_type, u64::MAX);
            let mut file = File::open(&path).expect("the file");
            let content = Content::read(&mut file).expect("a header");
            let theirs = scores(content, &mut file, device).expect("scores");

            let mut reader = Reader::open(&path).expect("a reader");
            let content = reader.content();
            assert!(
                scores(content, &mut reader, device).expect("scores") == theirs,
                "{architecture} {ggml_type}"
            );
            reader.rewind().expect("the start");
            let content = Content::read(&mut reader).expect("a header");
            assert!(
                scores(content, &mut reader, device).expect("scores") == theirs,
                "{architecture} {ggml_type}"
            );

            let folder = tempfile::tempdir().expect("a folder");
            let model =
                Model::open(save(folder.path(), architecture, ggml_type, 10_000)).expect("a split model");
            assert!(model.files().len() > 2);
            let mut reader = Reader::new(&model).expect("a reader");
            let content = reader.content();
            assert!(scores(content, &mut reader, device).expect("scores") == theirs, "split {architecture}");
        }
    });
}

#[test]
fn descriptions_are_those_of_candle() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = save(folder.path(), "qwen2", GgmlType::Q8_0, u64::MAX);
    let reader = Reader::open(&path).expect("a reader");
    let (ours, theirs) =
        (reader.content(), Content::read(&mut File::open(&path).expect("the file")).expect("a header"));
    assert_eq!(format!("{:?}", ours.magic), format!("{:?}", theirs.magic));
    let sorted = |content: &Content| {
        let mut all: Vec<_> =
            content.metadata.iter().map(|(key, value)| format!("{key} {value:?}")).collect();
        all.sort();
        all
    };
    assert_eq!(sorted(&ours), sorted(&theirs));
    assert!(matches!(&ours.metadata["tokenizer.ggml.tokens"], Value::Array(words) if words.len() == 40));
    let places = |content: &Content| {
        let place = |(name, info): (&String, &candle_core::quantized::gguf_file::TensorInfo)| {
            let start = content.tensor_data_offset + info.offset;
            (name.clone(), info.ggml_dtype, info.shape.dims().to_vec(), start)
        };
        let mut all: Vec<_> = content.tensor_infos.iter().map(place).collect();
        all.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        all
    };
    assert!(places(&ours) == places(&theirs));
}

#[test]
fn each_file_of_a_split_model_has_a_reader() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let model = Model::open(save(folder.path(), "llama", GgmlType::Q4_0, 10_000)).expect("a model");
        let mut count = 0;
        for (reader, (file, _)) in Reader::each(&model).expect("readers").iter_mut().zip(model.files()) {
            let content = Content::read(reader).expect("a header");
            let mut file = File::open(file.path()).expect("the file");
            for name in content.tensor_infos.keys() {
                let ours = content.tensor(reader, name, device).expect("a tensor");
                let theirs = content.tensor(&mut file, name, device).expect("a tensor");
                assert!(ours.data().expect("blocks") == theirs.data().expect("blocks"), "{name}");
                count += 1;
            }
        }
        assert_eq!(count, model.tensors().len());
    });
}

#[test]
fn any_part_of_the_files_has_their_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = Model::open(save(folder.path(), "llama", GgmlType::Q4_0, 10_000)).expect("a model");
    let whole: Vec<u8> =
        model.files().flat_map(|(file, _)| std::fs::read(file.path()).expect("a file")).collect();
    let mut reader = Reader::new(&model).expect("a reader");
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).expect("all bytes");
    assert!(bytes == whole);
    assert_eq!(reader.read(&mut [0; 8]).expect("the end"), 0);
    for number in 0_usize..2000 {
        let at = number.wrapping_mul(0x9e37_79b9) % whole.len();
        let len = (number * 31 % 9000).min(whole.len() - at);
        let back = (whole.len() - at) as i64;
        let from = [SeekFrom::Start(at as u64), SeekFrom::End(-back)][number % 2];
        assert_eq!(reader.seek(from).expect("a place"), at as u64);
        let mut part = vec![0; len];
        reader.read_exact(&mut part).expect("bytes");
        assert!(part == whole[at..][..len], "{len} bytes at {at}");
        assert_eq!(reader.stream_position().expect("a place"), (at + len) as u64);
    }
    assert!(reader.seek(SeekFrom::Current(-(whole.len() as i64) - 1)).is_err());
}

#[test]
fn a_shortened_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = save(folder.path(), "llama", GgmlType::Q8_0, u64::MAX);
    let mut reader = Reader::open(&path).expect("a reader");
    let file = File::options().write(true).open(&path).expect("the file");
    file.set_len(file.metadata().expect("its length").len() - 40).expect("a shorter file");
    let error = reader.content().tensor(&mut reader, "blk.1.ffn_up.weight", &Device::Cpu);
    let error = error.expect_err("a read beyond the end").to_string();
    assert!(error.contains("model.gguf"), "{error}");
}
