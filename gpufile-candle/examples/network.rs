//! Runs a small Llama of candle's own with weights that this crate loads, and compares its output bit by bit with the same
//! network on weights that candle loads.
//!
//! `network [--device cuda] [FOLDER]`. The weights are random, and saved to FOLDER/model.safetensors, or to a temporary
//! folder.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::llama::{Cache, Config, Llama};

const CONFIG: Config = Config {
    hidden_size: 64,
    intermediate_size: 176,
    vocab_size: 256,
    num_hidden_layers: 3,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    use_flash_attn: false,
    rms_norm_eps: 1e-5,
    rope_theta: 10_000.,
    bos_token_id: None,
    eos_token_id: None,
    rope_scaling: None,
    max_position_embeddings: 128,
    tie_word_embeddings: false,
};

/// Saves the weights of a network as candle initializes them.
fn save(path: &Path) -> Result<()> {
    let weights = VarMap::new();
    Llama::load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), &CONFIG)?;
    let weights = weights.data().lock().expect("no thread failed");
    let tensors: HashMap<_, _> =
        weights.iter().map(|(name, weight)| (name, weight.as_tensor().clone())).collect();
    gpufile_candle::save(&tensors, path)
}

/// Returns the network's scores for the next of these tokens.
fn run(weights: VarBuilder<'_>, device: &Device) -> Result<Vec<f32>> {
    let network = Llama::load(weights, &CONFIG)?;
    let mut cache = Cache::new(false, DType::F32, &CONFIG, device)?;
    let tokens = Tensor::new(&[[3_u32, 141, 59, 26, 53, 58, 97]], device)?;
    network.forward(&tokens, 0, &mut cache)?.flatten_all()?.to_vec1()
}

fn main() -> Result<()> {
    let (mut device, mut folder) = (Device::Cpu, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--device" if arguments.next().is_some_and(|name| name == "cuda") => {
                device = Device::new_cuda(0)?
            }
            "--device" => {}
            path => folder = Some(PathBuf::from(path)),
        }
    }
    let temporary = tempfile::tempdir()?;
    let path = folder.as_deref().unwrap_or(temporary.path()).join("model.safetensors");
    save(&path)?;

    let ours = run(gpufile_candle::var_builder(&[&path], DType::F32, &device)?, &device)?;
    // SAFETY: nothing else changes the file.
    let mapped = unsafe { VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, &device)? };
    let theirs = run(mapped, &device)?;
    let bits = |scores: &[f32]| scores.iter().map(|score| score.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&ours), bits(&theirs), "the networks differ");
    assert!(ours.iter().any(|score| *score != ours[0]), "a network without weights");
    println!("{} scores, all bits equal to candle's, on {:?}", ours.len(), device.location());
    Ok(())
}
