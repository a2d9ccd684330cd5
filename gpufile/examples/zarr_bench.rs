//! Writes Zarr arrays from GPU memory, reads them back, and prints the speed, as `benches/peers/zarr_gds.py` does.
//!
//! usage: zarr_bench [--cufile|--posix] DIR [GPU]
//!
//! | case | array | chunks of |
//! |---|---|---|
//! | `zarr-64MiB` | 4 GiB | 64 MiB |
//! | `zarr-4MiB` | 4 GiB | 4 MiB |
//! | `zarr-256KiB` | 1 GiB | 256 KiB |
//!
//! Arrays have one axis of 32-bit floats 0, 1, 2 and so on, uncompressed, of version 3. The example writes each array
//! once to `DIR/z`, which must not exist. It reads the array three times into new memory, compares it once, and removes
//! it. If there is no DIR, the example creates it and removes it again, for a trial with arrays and chunks of a
//! sixty-fourth.
//!
//! `read_gbps` is the best of three, from allocating the memory until the array is read. The files are in the page
//! cache, because they were just written. Without a GPU, and if GPU is not given, it uses host memory.
//! `--cufile` requires cuFile, and `--posix` never uses it.

mod common;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use common::{Arguments, KIB, MIB, Result, require_same};
use gpufile::cuda::{Device, DeviceBuffer};
use gpufile::formats::zarr::zarrs::array::{ArrayBuilder, DataType};
use gpufile::formats::zarr::{Array, FileStore};

struct Case {
    name: &'static str,
    len_bytes: usize,
    chunk_bytes: usize,
}

const CASES: [Case; 3] = [
    Case { name: "zarr-64MiB", len_bytes: 4096 * MIB, chunk_bytes: 64 * MIB },
    Case { name: "zarr-4MiB", len_bytes: 4096 * MIB, chunk_bytes: 4 * MIB },
    Case { name: "zarr-256KiB", len_bytes: 1024 * MIB, chunk_bytes: 256 * KIB },
];

/// The divisor of the arrays' lengths in a trial.
const LESS: usize = 64;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] DIR [GPU]", |arguments| {
        let folder = arguments.path(0)?;
        let device = arguments.device_if_any(1)?;
        let is_new = !folder.exists();
        if is_new {
            fs::create_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let measured =
            measure_all(&folder.join("z"), if is_new { LESS } else { 1 }, &arguments, device.as_ref());
        if is_new {
            fs::remove_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        measured
    })
}

fn measure_all(path: &Path, less: usize, arguments: &Arguments, device: Option<&Device>) -> Result {
    if path.exists() {
        return Err(format!("{} is there already", path.display()).into());
    }
    for case in &CASES {
        let measured = measure(case, less, path, arguments, device);
        // The measurement, or its failure, matters more than files that stay.
        let _ = fs::remove_dir_all(path);
        measured?;
    }
    Ok(())
}

fn measure(case: &Case, less: usize, path: &Path, arguments: &Arguments, device: Option<&Device>) -> Result {
    let (len_bytes, chunk_bytes) = (case.len_bytes / less, case.chunk_bytes / less);
    let store = Arc::new(FileStore::new(path).files(&arguments.options()));
    let (shape, chunk_shape) = (vec![len_bytes as u64 / 4], vec![chunk_bytes as u64 / 4]);
    let new = ArrayBuilder::new(shape, chunk_shape, DataType::Float32, 0f32).build(store.clone(), "/")?;
    new.store_metadata()?;

    let numbers: Vec<u8> = (0..len_bytes / 4).flat_map(|number| (number as f32).to_le_bytes()).collect();
    let array = Array::new(new)?;
    let write = match device {
        Some(device) => {
            let mut buffer = device.alloc(len_bytes)?;
            buffer.copy_from_host(0, &numbers)?;
            seconds(|| Ok(array.write_from(&buffer)?))?
        }
        None => seconds(|| Ok(array.write_from(&numbers)?))?,
    };

    let array = Array::open(&store, "/")?;
    let mut read = f64::INFINITY;
    for round in 0..3 {
        let mut found = None;
        read = read.min(seconds(|| {
            found = Some(match device {
                Some(device) => Memory::Device(array.read_to_device(device)?),
                None => Memory::Host(array.read_to_host()?),
            });
            Ok(())
        })?);
        if let (0, Some(found)) = (round, found) {
            require_same(&found.into_vec()?, &numbers, case.name)?;
        }
    }
    let gbps = |seconds: f64| len_bytes as f64 / seconds / 1e9;
    println!(
        "peer=gpufile case={} bytes={len_bytes} threads=0 read_gbps={:.3} write_gbps={:.3}",
        case.name,
        gbps(read),
        gbps(write),
    );
    Ok(())
}

enum Memory {
    Device(DeviceBuffer),
    Host(Vec<u8>),
}

impl Memory {
    fn into_vec(self) -> Result<Vec<u8>> {
        match self {
            Memory::Device(buffer) => Ok(buffer.to_vec()?),
            Memory::Host(bytes) => Ok(bytes),
        }
    }
}

/// Returns the seconds that `work` takes. It must succeed.
fn seconds(work: impl FnOnce() -> Result) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}
