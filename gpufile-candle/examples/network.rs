//! Runs a small Llama of candle's own with weights that this crate loads, and compares its output bit by bit with the same
//! network on weights that candle loads.
//!
//! `network [--device cuda] [FOLDER]`. The weights are random, and saved to FOLDER/model.safetensors, or to a temporary
//! folder.

mod llama;

use std::path::PathBuf;

use candle_core::{DType, Device, Result};
use candle_nn::VarBuilder;
use llama::{run, save};

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
