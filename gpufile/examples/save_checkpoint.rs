//! Saves a model from GPU memory to a safetensors file, loads it again, and compares.
//!
//! usage: save_checkpoint [--cufile|--posix] FILE [GPU]
//!
//! The new file replaces FILE when it is complete. Without a GPU, and if GPU is not given, it uses host
//! memory. `--cufile` requires cuFile, and `--posix` never uses it.

mod common;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use common::{Arguments, Result, all_of, require_same};
use gpufile::IoBuf;
use gpufile::cuda::DeviceBuffer;
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, SaveOptions};

/// The name, type and shape of each tensor.
const MODEL: [(&str, Dtype, &[u64]); 4] = [
    ("embed.weight", Dtype::F32, &[4096, 256]),
    ("layers.0.weight", Dtype::BF16, &[1024, 1024]),
    ("layers.0.bias", Dtype::BF16, &[1023]),
    ("step", Dtype::I64, &[]),
];

fn main() -> ExitCode {
    common::run("[--cufile|--posix] FILE [GPU]", |arguments| {
        let path = arguments.path(0)?;
        let device = arguments.device_if_any(1)?;
        let model: Vec<_> =
            MODEL.iter().enumerate().map(|(k, (_, dtype, shape))| bytes(k, *dtype, shape)).collect();

        let Some(device) = device else {
            save(path, &model, &arguments)?;
            let loaded = Checkpoint::open_with([path], &arguments.options())?.load().to_host()?;
            return compare(&model, |name| Ok(loaded.bytes(name).ok_or("not there")?.to_vec()));
        };
        let mut on_device: Vec<DeviceBuffer> = Vec::new();
        for bytes in &model {
            let mut buffer = device.alloc(bytes.len())?;
            buffer.copy_from_host(0, bytes)?;
            on_device.push(buffer);
        }
        save(path, &on_device, &arguments)?;
        let checkpoint = Checkpoint::open_with([path], &arguments.options())?;
        if let Some((file, _)) = checkpoint.files().next() {
            println!("route: {}", file.route());
        }
        let loaded = checkpoint.load().to_device(&device)?;
        compare(&model, |name| {
            let range = loaded.tensor(name).ok_or("not there")?.range;
            let mut bytes = vec![0; range.len()];
            loaded.buffer().copy_to_host(range.start, &mut bytes)?;
            Ok(bytes)
        })
    })
}

fn save<B: IoBuf>(path: &Path, buffers: &[B], arguments: &Arguments) -> Result {
    let tensors: Vec<_> = MODEL
        .iter()
        .zip(buffers)
        .map(|((name, dtype, shape), buffer)| TensorData::new(name, *dtype, shape, buffer))
        .collect();
    let options = SaveOptions::new().files(&arguments.options()).metadata([("format", "pt")]);
    let start = Instant::now();
    let len_bytes = safetensors::save(path, &tensors, &options)?.len_bytes;
    let seconds = start.elapsed().as_secs_f64();
    println!("saved {len_bytes} bytes in {seconds:.6} seconds, {:.2} GB/s", len_bytes as f64 / seconds / 1e9);
    all_of(std::fs::metadata(path)?.len() as usize, len_bytes as usize, "the file")
}

fn compare(model: &[Vec<u8>], found: impl Fn(&str) -> Result<Vec<u8>>) -> Result {
    for ((name, ..), expected) in MODEL.iter().zip(model) {
        require_same(&found(name)?, expected, name)?;
    }
    println!("contents match");
    Ok(())
}

/// Returns bytes that no other tensor has.
fn bytes(number: usize, dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    let len_bytes = shape.iter().product::<u64>() * u64::from(dtype.size_bits() / 8);
    (0..len_bytes).map(|index| (index / 7 + index + number as u64) as u8).collect()
}
