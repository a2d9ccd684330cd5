//! Loads a model from safetensors files to several GPUs, and prints GB/s and the contents of each GPU.
//!
//! usage: load_placed [--cufile|--posix] [--all|--balanced] CHECKPOINT [GPU,…]
//!
//! Matrices are sliced, every second one along its columns and the others along their rows. All other tensors go to
//! each GPU. With `--all`, all tensors go to each GPU, and with `--balanced`, each tensor goes to one. Without a list
//! of GPUs, the example uses all. It compares what is on the GPUs with tensors that it reads separately. If
//! CHECKPOINT does not exist, the example saves a small model there first. `--cufile` requires cuFile, and
//! `--posix` never uses it.

mod common;

use cufile::IoBuf;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use common::placed::{expected, placement};
use common::{Result, require_same, save_small};
use gpufile::Engine;
use gpufile::cuda::Device;
use gpufile::formats::safetensors::Checkpoint;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] [--all|--balanced] CHECKPOINT [GPU,…]", |arguments| {
        let path = arguments.path(0)?;
        if !path.exists() {
            save_small(path)?;
            println!("made {}, which was not there", path.display());
        }
        let devices = devices(arguments.path(1).ok())?;
        let placement = placement(&arguments);

        let checkpoint = Checkpoint::open_with([path], &arguments.options())?;
        let start = Instant::now();
        let loaded = checkpoint.load().placed(&placement).to_devices(&devices)?;
        let seconds = start.elapsed().as_secs_f64();
        println!("loaded in {seconds:.6} seconds, {:.2} GB/s", checkpoint.len_bytes() as f64 / seconds / 1e9);
        for on_gpu in &loaded {
            println!(
                "{:?}: {} tensors and slices, {} bytes",
                on_gpu.buffer().device(),
                on_gpu.iter().len(),
                on_gpu.buffer().len_bytes()
            );
            for part in on_gpu.iter().take(3) {
                println!("  {} {} {:?}", part.info.name, part.info.dtype, part.shape());
            }
        }

        for name in checkpoint.tensors().map(|tensor| tensor.name) {
            let whole = checkpoint.read_tensor(name)?;
            for on_gpu in &loaded {
                let Some(part) = on_gpu.tensor(name) else { continue };
                let mut bytes = vec![0; part.range.len()];
                on_gpu.buffer().copy_to_host(part.range.start, &mut bytes)?;
                require_same(&bytes, &expected(&part, &whole), name)?;
            }
        }
        println!("contents match");
        Ok(())
    })
}

/// Returns the GPUs of a list such as `0,1`, or all.
fn devices(list: Option<&Path>) -> Result<Vec<Device>> {
    let found = |error| format!("no GPUs to use: {error}");
    let cuda = Engine::global().cuda().map_err(found)?;
    let ordinals = match list.and_then(Path::to_str) {
        Some(list) => {
            let parsed =
                list.split(',').map(|word| word.parse().map_err(|_| format!("GPU {word}: not a number")));
            parsed.collect::<std::result::Result<Vec<u32>, _>>()?
        }
        None => (0..cuda.device_count()?).collect(),
    };
    ordinals.into_iter().map(|ordinal| Ok(cuda.device(ordinal)?)).collect()
}
