//! Loads a model from safetensors files into GPU memory, and prints GB/s and a few of its tensors.
//!
//! usage: load_checkpoint [--cufile|--posix] CHECKPOINT [GPU]
//!
//! CHECKPOINT is a `.safetensors` file, or an index, `model.safetensors.index.json`, with its files in the same
//! folder. If there is no such file, the example saves a small model there first. It then reads the first and the
//! last tensor of each file separately, and compares them with the loaded ones. Without a GPU, and if GPU is not
//! given, it uses host memory. `--cufile` requires cuFile, and `--posix` never uses it.

mod common;

use std::process::ExitCode;
use std::time::Instant;

use common::{Result, require_same, save_small};
use gpufile::IoBuf;
use gpufile::formats::safetensors::{Checkpoint, Loaded, Progress};

fn main() -> ExitCode {
    common::run("[--cufile|--posix] CHECKPOINT [GPU]", |arguments| {
        let path = arguments.path(0)?;
        if !path.exists() {
            save_small(path)?;
            println!("made {}, which was not there", path.display());
        }
        let device = arguments.device_if_any(1)?;

        let start = Instant::now();
        let checkpoint = Checkpoint::open_with([path], &arguments.options())?;
        println!(
            "{} tensors in {} files, opened in {:.3} ms",
            checkpoint.tensors().len(),
            checkpoint.files().len(),
            start.elapsed().as_secs_f64() * 1e3,
        );
        let watch = |Progress { done_bytes, total_bytes, .. }: Progress| {
            println!("{done_bytes} of {total_bytes} bytes");
        };
        match device {
            Some(device) => {
                if let Some((file, _)) = checkpoint.files().next() {
                    println!("route: {}", file.route());
                }
                let start = Instant::now();
                let loaded = checkpoint.load().progress(watch).to_device(&device)?;
                report(&checkpoint, &loaded, start);
                for (name, expected) in sample(&checkpoint)? {
                    let range = loaded.tensor(&name).ok_or("a tensor that was not loaded")?.range;
                    let mut bytes = vec![0; range.len()];
                    loaded.buffer().copy_to_host(range.start, &mut bytes)?;
                    require_same(&bytes, &expected, &name)?;
                }
            }
            None => {
                let start = Instant::now();
                let loaded = checkpoint.load().progress(watch).to_host()?;
                report(&checkpoint, &loaded, start);
                for (name, expected) in sample(&checkpoint)? {
                    let bytes = loaded.bytes(&name).ok_or("a tensor that was not loaded")?;
                    require_same(bytes, &expected, &name)?;
                }
            }
        }
        println!("contents match");
        Ok(())
    })
}

fn report<B: IoBuf>(checkpoint: &Checkpoint, loaded: &Loaded<B>, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("loaded in {seconds:.6} seconds, {:.2} GB/s", checkpoint.len_bytes() as f64 / seconds / 1e9);
    for tensor in loaded.iter().take(5) {
        let (info, range) = (&tensor.info, &tensor.range);
        println!("{} {} {:?}: bytes {} to {}", info.name, info.dtype, info.shape, range.start, range.end);
    }
}

/// Reads some tensors of each file, one by one.
fn sample(checkpoint: &Checkpoint) -> Result<Vec<(String, Vec<u8>)>> {
    let mut some = Vec::new();
    for (_, header) in checkpoint.files() {
        let ends = header.tensors().next().into_iter().chain(header.tensors().next_back());
        for tensor in ends {
            some.push((tensor.name.to_owned(), checkpoint.read_tensor(tensor.name)?));
        }
    }
    Ok(some)
}
