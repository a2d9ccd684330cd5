//! A small Llama of candle's own, with random weights.

use std::collections::HashMap;
use std::path::Path;

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

pub fn save(path: &Path) -> Result<()> {
    let weights = VarMap::new();
    Llama::load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), &CONFIG)?;
    let weights = weights.data().lock().expect("no thread failed");
    let tensors: HashMap<_, _> =
        weights.iter().map(|(name, weight)| (name, weight.as_tensor().clone())).collect();
    gpufile_candle::save(&tensors, path)
}

/// Returns the network's scores for the next of these tokens.
pub fn run(weights: VarBuilder<'_>, device: &Device) -> Result<Vec<f32>> {
    let network = Llama::load(weights, &CONFIG)?;
    let mut cache = Cache::new(false, DType::F32, &CONFIG, device)?;
    let tokens = Tensor::new(&[[3_u32, 141, 59, 26, 53, 58, 97]], device)?;
    network.forward(&tokens, 0, &mut cache)?.flatten_all()?.to_vec1()
}
