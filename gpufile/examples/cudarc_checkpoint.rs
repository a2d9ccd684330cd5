//! Loads a model from safetensors files into memory of the crate cudarc, and uses a tensor as cudarc does.
//!
//! usage: cudarc_checkpoint [--cufile|--posix] CHECKPOINT [GPU]
//!
//! CHECKPOINT is a `.safetensors` file, or an index, `model.safetensors.index.json`, with its files in the same
//! folder. If there is no such file, the example saves a small model there first. All tensors go into one
//! `CudaSlice<u8>`, of which each is a view. One tensor is copied to a separate `CudaSlice<f32>`, as candle's
//! `CudaDType::wrap_cuda_slice` takes it. `--cufile` requires cuFile, and `--posix` never uses it.

mod common;

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use common::{Result, require_same};
use cudarc::driver::{CudaContext, CudaSlice};
use gpufile::cudarc::Synced;
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, SaveOptions};

fn main() -> ExitCode {
    common::run("[--cufile|--posix] CHECKPOINT [GPU]", |arguments| {
        let path = arguments.path(0)?;
        if !path.exists() {
            save_small(path)?;
            println!("made {}, which was not there", path.display());
        }
        // Without a GPU, this error is clearer than that of cudarc.
        let device = arguments.device(1)?;
        let stream = CudaContext::new(device.ordinal() as usize)?.new_stream()?;

        let checkpoint = Checkpoint::open_with([path], &arguments.options())?;
        if let Some((file, _)) = checkpoint.files().next() {
            println!("route: {}", file.route());
        }
        let load = checkpoint.load();
        let memory: CudaSlice<u8> = stream.alloc_zeros(load.len_bytes()?)?;
        let start = Instant::now();
        let loaded = load.to_buffer(Synced::new(memory)?)?;
        let seconds = start.elapsed().as_secs_f64();
        println!("{:.2} GB/s into a slice of cudarc", checkpoint.len_bytes() as f64 / seconds / 1e9);

        let tensors: Vec<(String, Dtype, Range<usize>)> = loaded
            .iter()
            .map(|tensor| (tensor.info.name.to_owned(), tensor.info.dtype, tensor.range))
            .collect();
        let memory = loaded.into_buffer().into_inner();

        for (name, _, range) in tensors.iter().take(1).chain(tensors.last()) {
            let bytes = stream.clone_dtoh(&memory.slice(range.clone()))?;
            require_same(&bytes, &checkpoint.read_tensor(name)?, name)?;
        }
        if let Some((name, _, range)) = tensors.iter().find(|(_, dtype, _)| *dtype == Dtype::F32) {
            let view = memory.slice(range.clone());
            // SAFETY: loaded aligned to its elements, and any bytes are floats.
            let view = unsafe { view.transmute::<f32>(range.len() / 4) }.ok_or("a tensor cut short")?;
            let owned: CudaSlice<f32> = stream.clone_dtod(&view)?;
            let numbers = stream.clone_dtoh(&owned)?;
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            require_same(&bytes, &checkpoint.read_tensor(name)?, name)?;
            println!("{name} begins with {:?}", &numbers[..numbers.len().min(3)]);
        }
        println!("contents match");
        Ok(())
    })
}

fn save_small(path: &Path) -> Result {
    let weights: Vec<u8> = (0..1 << 19).flat_map(|index: u32| (index as f32 / 3.0).to_le_bytes()).collect();
    let names: Vec<String> = (0..4).map(|layer| format!("layers.{layer}.weight")).collect();
    let tensors: Vec<_> =
        names.iter().map(|name| TensorData::new(name, Dtype::F32, &[512, 1024], &weights)).collect();
    safetensors::save(path, &tensors, &SaveOptions::new())?;
    Ok(())
}
