//! Times a program from its start to the first token of a Llama, whose weights come by this crate or by candle's mapping.
//!
//! `first_token [--device cuda] [--layers 4] MODEL`. A MODEL that does not exist is made, with random weights. Each run is a
//! process of its own, and the two take turns.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use candle_core::{D, DType, Device, Error, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::llama::{Cache, Config, Llama};

const ROUNDS: usize = 5;
const LOADERS: [&str; 2] = ["candle", "gpufile"];

fn config(layers: usize) -> Config {
    Config {
        hidden_size: 2048,
        intermediate_size: 8192,
        vocab_size: 32_000,
        num_hidden_layers: layers,
        num_attention_heads: 16,
        num_key_value_heads: 8,
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 128,
        tie_word_embeddings: false,
    }
}

fn make(path: &Path, config: &Config) -> Result<()> {
    let weights = VarMap::new();
    Llama::load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), config)?;
    let weights = weights.data().lock().expect("no thread failed");
    let tensors: HashMap<_, _> =
        weights.iter().map(|(name, weight)| (name, weight.as_tensor().clone())).collect();
    gpufile_candle::save(&tensors, path)
}

/// Loads the weights, and returns the token that follows a few others.
fn first_token(loader: &str, path: &Path, config: &Config, device: &Device) -> Result<u32> {
    let weights = match loader {
        "gpufile" => gpufile_candle::var_builder(&[path], DType::F32, device)?,
        // SAFETY: nothing changes the file.
        _ => unsafe { VarBuilder::from_mmaped_safetensors(&[path], DType::F32, device)? },
    };
    let network = Llama::load(weights, config)?;
    let mut cache = Cache::new(false, DType::F32, config, device)?;
    let tokens = Tensor::new(&[[3_u32, 141, 59, 26, 53]], device)?;
    network.forward(&tokens, 0, &mut cache)?.argmax(D::Minus1)?.squeeze(0)?.to_scalar()
}

/// Runs one process of each kind in turn, and prints the medians of their seconds.
fn compare(arguments: &[String]) -> Result<()> {
    let mut seconds = [const { Vec::new() }; 2];
    let mut tokens = Vec::new();
    for _ in 0..ROUNDS {
        for (loader, seconds) in LOADERS.iter().zip(&mut seconds) {
            let start = Instant::now();
            let mut program = Command::new(std::env::current_exe()?);
            let output =
                program.args(arguments).args(["--loader", loader]).stderr(Stdio::inherit()).output()?;
            seconds.push(start.elapsed().as_secs_f64());
            assert!(output.status.success(), "{loader} failed");
            tokens.push(output.stdout);
        }
    }
    assert!(tokens.iter().all(|token| *token == tokens[0]), "the tokens differ");
    for (loader, mut seconds) in LOADERS.iter().zip(seconds) {
        seconds.sort_by(f64::total_cmp);
        let [least, median, most] = [0, ROUNDS / 2, ROUNDS - 1].map(|at| seconds[at]);
        println!("{loader}, start to first token: {median:.2} s ({least:.2} to {most:.2})");
    }
    Ok(())
}

fn main() -> Result<()> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let (mut device, mut layers, mut loader, mut path) = (Device::Cpu, 4, None, None);
    let mut arguments = all.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| Error::msg(format!("{argument} what?")));
        match &**argument {
            "--device" if value()? == "cuda" => device = Device::new_cuda(0)?,
            "--device" => {}
            "--layers" => layers = value()?.parse().map_err(Error::wrap)?,
            "--loader" => loader = Some(value()?),
            _ => path = Some(PathBuf::from(argument)),
        }
    }
    let path = path.ok_or_else(|| Error::msg("which MODEL?"))?;
    let config = config(layers);
    match loader {
        Some(loader) => println!("{}", first_token(loader, &path, &config, &device)?),
        None => {
            if !path.exists() {
                make(&path, &config)?;
            }
            compare(&all)?;
        }
    }
    Ok(())
}
