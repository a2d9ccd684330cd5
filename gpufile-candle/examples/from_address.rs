//! Loads a Llama of candle's own from an address, with a bar, and compares its scores with those of the file.
//!
//! `from_address [--device cuda] [ADDRESS]`. Without ADDRESS, a server of this program has the model, with packed weights.
//! Addresses such as `s3://bucket/model/` need the feature `s3`, and the model must have the shapes of this example.

mod llama;
mod server;

use std::io::Write;
use std::ops::ControlFlow;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use gpufile::formats::SaveOptions;
use gpufile::formats::safetensors::Checkpoint;
use gpufile_candle::Tensors;
use llama::{run, save};
use server::serve;

type Error = Box<dyn std::error::Error>;

fn draw(read_bytes: u64, all_bytes: u64) -> ControlFlow<()> {
    const WIDTH: u64 = 40;
    let full = (WIDTH * read_bytes).checked_div(all_bytes).unwrap_or(WIDTH) as usize;
    eprint!("\r[{:<40}] {read_bytes} of {all_bytes} bytes", "#".repeat(full));
    std::io::stderr().flush().ok();
    ControlFlow::Continue(()) // or `Break(())`, to cancel
}

fn load(address: &str, device: &Device) -> Result<Vec<f32>, Error> {
    let tensors = Tensors::from_checkpoint(Checkpoint::open_url(address)?).watch(draw);
    let scores = run(VarBuilder::from_backend(Box::new(tensors), DType::F32, device.clone()), device)?;
    eprintln!();
    Ok(scores)
}

fn main() -> Result<(), Error> {
    let (mut device, mut address) = (Device::Cpu, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--device" if arguments.next().is_some_and(|name| name == "cuda") => {
                device = Device::new_cuda(0)?
            }
            "--device" => {}
            _ => address = Some(argument),
        }
    }
    if let Some(address) = address {
        println!("{:?}", &load(&address, &device)?[..4]);
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (plain, packed) = (folder.path().join("plain.safetensors"), folder.path().join("packed.safetensors"));
    save(&plain)?;
    let saved = Checkpoint::open(&plain)?.compress(&packed, &SaveOptions::new())?;
    let address = serve(std::fs::read(&packed)?)?;
    let scores = load(&address, &device)?;
    let of_file = run(gpufile_candle::var_builder(&[plain], DType::F32, &device)?, &device)?;
    assert!(scores.iter().map(|score| score.to_bits()).eq(of_file.iter().map(|score| score.to_bits())));
    println!("{} bytes from {address}: the scores are those of the file", saved.len_bytes);
    Ok(())
}
