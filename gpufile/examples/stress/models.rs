//! Rounds that save a model and load it.

use std::fs;

use gpufile::File;
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, SaveOptions};

use super::actor::Actor;
use super::content::{Random, compare, content};
use super::{Result, Scene};

pub fn round(actor: &mut Actor<'_>, scene: &Scene, random: &mut Random) -> Result {
    let kind = actor.kind(random);
    let path = actor.stage.folder.join(format!("model-{}", actor.number));
    let mut tensors = Vec::new();
    let mut at = 0;
    for number in 0..1 + random.below(40) {
        // Weights and biases lie next to each other in the file. They are long and short, and rarely aligned.
        let len = random.len(if number % 2 == 0 { 500_000 } else { 3000 });
        tensors.push((format!("{number}"), [len as u64], at..at + len));
        at += len;
    }
    let bytes = content(actor.written_salt(), 0, at);
    let mut memory = actor.take(kind);
    memory.put(0, &bytes)?;
    let data: Vec<_> = tensors
        .iter()
        .map(|(name, shape, range)| TensorData::new(name, Dtype::U8, shape, memory.part(range.clone())))
        .collect();
    let options = File::options().policy(random.pick(&scene.policies)).engine(&scene.engine);
    safetensors::save(&path, &data, &SaveOptions::new().files(&options))?;
    let checkpoint = Checkpoint::open_with([&path], &options)?;
    let all = |(_, _, range): &(_, _, std::ops::Range<usize>)| bytes[range.clone()].to_vec();
    match &actor.stage.device {
        Some(device) => {
            let loaded = checkpoint.load().to_device(device)?;
            let buffer = loaded.buffer().to_vec()?;
            for tensor in &tensors {
                let view = loaded.tensor(&tensor.0).ok_or_else(|| format!("no tensor {}", tensor.0))?;
                compare(&buffer[view.range], &all(tensor), || format!("tensor {}, loaded", tensor.0))?;
            }
        }
        None => {
            let loaded = checkpoint.load().to_host()?;
            for tensor in &tensors {
                let found = loaded.bytes(&tensor.0).ok_or_else(|| format!("no tensor {}", tensor.0))?;
                compare(found, &all(tensor), || format!("tensor {}, loaded", tensor.0))?;
            }
        }
    }
    fs::remove_file(&path)?;
    actor.put(kind, memory);
    actor.count("save and load", 1, at);
    Ok(())
}
