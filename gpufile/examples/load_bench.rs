//! Loads safetensors files to GPU memory, and prints how long that takes: gpufile's line beside those of other loaders.
//!
//! usage: load_bench [--cufile|--posix] DIR [GPU]
//!
//! | case | files | tensors in each | bytes of each |
//! |---|---|---|---|
//! | `load-big` | 1 | 64 | 64 MiB |
//! | `load-sharded` | 4 | 128 | 8 MiB |
//! | `load-many` | 1 | 8192 | 512 KiB |
//! | `load-tiny` | 1 | 65536 | 16 KiB |
//!
//! The files are `DIR/CASE-i.safetensors`, with tensors `f{i}.t{k}` of 16-bit integers j + k, wrapped, for j from 0; a
//! case whose files are missing is left out. If there is no DIR, it is made with files of smaller cases, to try this.
//! Files that were just made or read are in the page cache, and it is the loading from there that is measured.
//!
//! A line is the best of three after one to warm up: `size` the bytes of a tensor with its share of the header, `ops`
//! the tensors, `seconds` from opening the files until every tensor is in GPU memory, allocation included. What was
//! loaded is compared with what the files were made of: the last tensor of each file, and 16 others. Without a GPU, and
//! with none named, host memory takes its place. `--cufile` makes it a failure if cuFile does not work, `--posix` keeps
//! cuFile out.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use common::{Arguments, KIB, MIB, Result, require_same};
use gpufile::IoBuf;
use gpufile::cuda::{Device, DeviceBuffer};
use gpufile::formats::safetensors::{self, Checkpoint, Loaded, TensorData};
use gpufile::formats::{Dtype, SaveOptions};

struct Case {
    name: &'static str,
    files: usize,
    tensors: usize,
    len_bytes: usize,
}

const CASES: [Case; 4] = [
    Case { name: "load-big", files: 1, tensors: 64, len_bytes: 64 * MIB },
    Case { name: "load-sharded", files: 4, tensors: 128, len_bytes: 8 * MIB },
    Case { name: "load-many", files: 1, tensors: 8192, len_bytes: 512 * KIB },
    Case { name: "load-tiny", files: 1, tensors: 65536, len_bytes: 16 * KIB },
];

fn main() -> ExitCode {
    common::run("[--cufile|--posix] DIR [GPU]", |arguments| {
        let folder = arguments.path(0)?;
        let device = arguments.device_if_any(1)?;
        if !folder.exists() {
            make_small(folder)?;
        }
        for case in &CASES {
            measure(case, folder, &arguments, device.as_ref())?;
        }
        Ok(())
    })
}

fn measure(case: &Case, folder: &Path, arguments: &Arguments, device: Option<&Device>) -> Result {
    let paths = case.paths(folder);
    if let Some(missing) = paths.iter().find(|path| !path.exists()) {
        println!("peer=gpufile case={} error={} is missing", case.name, missing.display());
        return Ok(());
    }
    let mut total_bytes = 0;
    for path in &paths {
        total_bytes += fs::metadata(path)?.len();
    }
    let (mut seconds, mut ops) = (f64::INFINITY, 0);
    for round in 0..4 {
        let start = Instant::now();
        let checkpoint = Checkpoint::open_many_with(&paths, &arguments.options())?;
        let loaded = Memory::load(&checkpoint, device)?;
        let took = start.elapsed().as_secs_f64();
        if round == 0 {
            loaded.check(&checkpoint)?;
        } else {
            seconds = seconds.min(took);
        }
        ops = checkpoint.len();
    }
    println!(
        "peer=gpufile case={} size={} ops={ops} threads=0 seconds={seconds:.6} gbps={:.3} us_per_op={:.3}",
        case.name,
        total_bytes / ops.max(1) as u64,
        total_bytes as f64 / seconds / 1e9,
        seconds / ops as f64 * 1e6,
    );
    Ok(())
}

/// What was loaded, and where to.
enum Memory {
    Device(Loaded<DeviceBuffer>),
    Host(Loaded<Vec<u8>>),
}

impl Memory {
    /// Loads all tensors, and asks once for the address of each.
    fn load(checkpoint: &Checkpoint, device: Option<&Device>) -> Result<Self> {
        fn touch<B: IoBuf>(loaded: &Loaded<B>) {
            for tensor in loaded.iter() {
                black_box(tensor.bytes.as_ptr());
            }
        }
        Ok(match device {
            Some(device) => {
                let loaded = checkpoint.load_to_device(device)?;
                touch(&loaded);
                Memory::Device(loaded)
            }
            None => {
                let loaded = checkpoint.load_to_host()?;
                touch(&loaded);
                Memory::Host(loaded)
            }
        })
    }

    /// Compares some tensors with what the files were made of.
    fn check(&self, checkpoint: &Checkpoint) -> Result {
        let names: Vec<&str> = checkpoint.names().collect();
        let mut some: Vec<&str> = Vec::new();
        for (_, header) in checkpoint.files() {
            let numbered = header.tensors().filter_map(|tensor| Some((number(tensor.name)?, tensor.name)));
            some.extend(numbered.max().map(|(_, name)| name));
        }
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..16 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            some.push(names[(state >> 33) as usize % names.len()]);
        }
        for name in some {
            let number = number(name).ok_or_else(|| format!("{name}: not a tensor of these cases"))?;
            let found = self.to_vec(name)?;
            require_same(&found, &contents(number, found.len()), name)?;
        }
        Ok(())
    }

    fn to_vec(&self, name: &str) -> Result<Vec<u8>> {
        let missing = || format!("{name} was not loaded");
        match self {
            Memory::Host(loaded) => Ok(loaded.bytes(name).ok_or_else(missing)?.to_vec()),
            Memory::Device(loaded) => {
                let range = loaded.tensor(name).ok_or_else(missing)?.range;
                let mut bytes = vec![0; range.len()];
                loaded.buffer().copy_to_host(range.start, &mut bytes)?;
                Ok(bytes)
            }
        }
    }
}

impl Case {
    fn paths(&self, folder: &Path) -> Vec<PathBuf> {
        (0..self.files).map(|i| folder.join(format!("{}-{i}.safetensors", self.name))).collect()
    }
}

/// The `k` of a name `f{i}.t{k}`.
fn number(name: &str) -> Option<usize> {
    name.split_once(".t")?.1.parse().ok()
}

/// The bytes of the tensor with this number.
fn contents(number: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes / 2).flat_map(|j| ((j + number) as u16).to_le_bytes()).collect()
}

/// Makes the files of all cases, with fewer tensors and bytes.
fn make_small(folder: &Path) -> Result {
    const LESS: usize = 64;
    fs::create_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for case in &CASES {
        let (tensors, len_bytes) = ((case.tensors / LESS).max(4), case.len_bytes / LESS);
        for (i, path) in case.paths(folder).iter().enumerate() {
            let made: Vec<_> = (0..tensors).map(|k| (format!("f{i}.t{k}"), contents(k, len_bytes))).collect();
            let shape = [len_bytes as u64 / 2];
            let made: Vec<_> =
                made.iter().map(|(name, bytes)| TensorData::new(name, Dtype::I16, &shape, bytes)).collect();
            safetensors::save_with(path, &made, BTreeMap::new(), &SaveOptions::new().sync(false))?;
        }
    }
    Ok(())
}
