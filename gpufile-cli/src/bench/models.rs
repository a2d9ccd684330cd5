//! The cases that load a model to several GPUs, and save it from there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, mem, thread};

use gpufile::IoRange;
use gpufile::cuda::Device;
use gpufile::formats::safetensors::{
    self, Checkpoint, Cut, PartView, PlacedTensors, Placement, Share, TensorData,
};
use gpufile::formats::{Dtype, SaveOptions};

use super::case::Case;
use super::fresh::Fresh;
use super::memory::{DeviceMemory, POISON, compare, in_order};
use super::timing::{Lap, Measured, timed};
use super::{Bench, MIB, Result};
use crate::interrupt::Unfinished;

pub const CASES: &[Case] = &[
    Case::gpus("gpus-load-all", "A model to each GPU", |bench, gpus, threads| {
        load_model(bench, gpus, threads, &Placement::all())
    }),
    Case::gpus(
        "gpus-load-all-again",
        "A model to each GPU, into the memory of an earlier load",
        reload_model,
    ),
    Case::gpus("gpus-load-sliced", "A slice of each tensor to each GPU", |bench, gpus, threads| {
        load_model(bench, gpus, threads, &by_rows_and_columns())
    }),
    Case::gpus(
        "gpus-load-balanced",
        "Whole tensors to the GPUs, as many bytes to each",
        |bench, gpus, threads| load_model(bench, gpus, threads, &Placement::balanced()),
    ),
    Case::gpus("gpus-save-shards", "A model from all GPUs, each into a file of its own", save_shards),
    Case::gpus("gpus-save-one", "A model from the first GPU into one file", save_one),
];

/// The length of a row in elements and in bytes.
const COLUMNS: usize = 4096;
const ROW_BYTES: usize = 2 * COLUMNS;

/// A model of matrices beside FILE, with the bytes of FILE.
pub struct Model {
    checkpoint: Checkpoint,
    pub len_bytes: usize,
    pub fresh: Fresh,
}

impl Model {
    pub fn new(bench: &Bench, gpu: &Device, threads: usize) -> Result<Self> {
        let matrix_bytes = (bench.file_bytes / 16).min(64 * MIB) / ROW_BYTES * ROW_BYTES;
        let count = bench.file_bytes / matrix_bytes;
        let shape = [(matrix_bytes / ROW_BYTES) as u64, COLUMNS as u64];
        let names: Vec<_> = (0..count).map(|number| format!("matrix.{number:05}")).collect();
        let mut memory = DeviceMemory::new(gpu, bench.file_bytes)?;
        memory.load(bench)?;
        let part = |number| memory.part(number * matrix_bytes..(number + 1) * matrix_bytes);
        let tensor = |(number, name)| TensorData::new(name, Dtype::BF16, &shape, part(number));
        let tensors: Vec<_> = names.iter().map(String::as_str).enumerate().map(tensor).collect();
        let fresh = Fresh::beside(&bench.path, 0);
        let options = bench.options(threads);
        // The saved file replaces this empty one.
        fresh.create(&options.clone().write(true))?;
        let saving = SaveOptions::new().files(&options).sync(false);
        safetensors::save(&fresh.path, &tensors, &saving)?;
        let checkpoint = Checkpoint::open_with([&fresh.path], &options)?;
        Ok(Self { checkpoint, len_bytes: count * matrix_bytes, fresh })
    }
}

pub fn compare_parts(model: &Checkpoint, placed: &[PlacedTensors]) -> Result {
    for on_gpu in placed {
        let mut of_files: BTreeMap<&Path, Vec<IoRange>> = BTreeMap::new();
        for part in on_gpu.iter() {
            let (file, header) = model.file_of(part.info.name).ok_or("a tensor of the model")?;
            let tensor = header.get(part.info.name).ok_or("a tensor of the file")?;
            let ranges = ranges_of(&part, header.in_file(tensor.offsets.clone()).start);
            of_files.entry(file.path()).or_default().extend(ranges);
        }
        for (file, ranges) in of_files {
            compare(file, on_gpu.buffer(), &ranges)?;
        }
    }
    Ok(())
}

/// Returns the parts' runs that are adjacent in the file, in pieces of 1 MiB for a whole tensor. The tensor starts at
/// `start` in the file, in bytes.
fn ranges_of(part: &PartView<'_>, start: u64) -> Vec<IoRange> {
    let len_bytes = part.info.len_bytes();
    let Some(slice) = part.slice else {
        let place = |piece: IoRange| IoRange {
            file_offset: start + piece.file_offset,
            buffer_offset: part.range.start + piece.buffer_offset,
            len_bytes: piece.len_bytes.min(part.range.len() - piece.buffer_offset),
        };
        return in_order(part.range.len(), MIB).into_iter().map(place).collect();
    };
    let outer: u64 = part.info.shape[..slice.axis].iter().product();
    let axis = part.info.shape[slice.axis];
    let index_bytes = len_bytes / outer / axis;
    let run_bytes = (slice.range.end - slice.range.start) * index_bytes;
    let run = |number| IoRange {
        file_offset: start + (number * axis + slice.range.start) * index_bytes,
        buffer_offset: part.range.start + (number * run_bytes) as usize,
        len_bytes: run_bytes as usize,
    };
    (0..outer).map(run).collect()
}

fn by_rows_and_columns() -> Placement {
    Placement::by(|tensor| {
        let is_odd = tensor.name.ends_with(['1', '3', '5', '7', '9']);
        Share::Slice { axis: usize::from(is_odd), cut: Cut::Even }
    })
}

/// The pause before each load. The GPU clears memory after it was freed, and the next user of that memory waits for it.
const PAUSE: Duration = Duration::from_millis(100);

/// Loads the model, with the time for allocation. `gbps` counts each byte of the model once.
fn load_model(bench: &Bench, gpus: &[Device], threads: usize, placement: &Placement) -> Result<Measured> {
    let model = Model::new(bench, &gpus[0], threads)?;
    let mut placed = Vec::new();
    let laps = bench.warm_laps(|| {
        drop(mem::take(&mut placed));
        thread::sleep(PAUSE);
        timed(|| {
            placed = model.checkpoint.load().placed(placement).to_devices(gpus)?;
            Ok::<_, gpufile::formats::Error>(())
        })
    })?;
    compare_parts(&model.checkpoint, &placed)?;
    Ok(Measured { size: model.len_bytes, ops: 1, laps })
}

fn reload_model(bench: &Bench, gpus: &[Device], threads: usize) -> Result<Measured> {
    let model = Model::new(bench, &gpus[0], threads)?;
    let mut placed = model.checkpoint.load().placed(&Placement::all()).to_devices(gpus)?;
    let laps = bench.warm_laps(|| reload(&model.checkpoint, gpus, &mut placed))?;
    compare_parts(&model.checkpoint, &placed)?;
    Ok(Measured { size: model.len_bytes, ops: 1, laps })
}

/// Loads all tensors to each GPU, into the poisoned memory of an earlier load.
pub fn reload(model: &Checkpoint, gpus: &[Device], placed: &mut Vec<PlacedTensors>) -> Result<Lap> {
    let mut memory: Vec<_> = mem::take(placed).into_iter().map(PlacedTensors::into_buffer).collect();
    memory.iter_mut().try_for_each(|buffer| buffer.fill(POISON))?;
    timed(|| {
        *placed = model.load().placed(&Placement::all()).reuse(memory).to_devices(gpus)?;
        Ok::<_, gpufile::formats::Error>(())
    })
}

/// Saves from each GPU a part of the tensors into a file of its own. The time leaves out waiting for the storage.
fn save_shards(bench: &Bench, gpus: &[Device], threads: usize) -> Result<Measured> {
    let model = Model::new(bench, &gpus[0], threads)?;
    let placed = model.checkpoint.load().placed(&Placement::balanced()).to_devices(gpus)?;
    let mut of_gpus: Vec<Vec<TensorData<'_>>> = Vec::new();
    for on_gpu in &placed {
        of_gpus.push(on_gpu.iter().filter_map(|part| part.to_save()).collect());
    }
    let shards: Vec<_> = of_gpus.iter().map(Vec::as_slice).collect();
    let options = SaveOptions::new().files(&bench.options(threads)).sync(false);
    let folder = Folder::beside(bench)?;
    let mut saved = PathBuf::new();
    let laps = bench.warm_laps(|| {
        folder.empty()?;
        timed(|| {
            let path = folder.0.join("saved.safetensors");
            saved = safetensors::save_shards(path, &shards, &options)?.path;
            Ok::<_, gpufile::formats::Error>(())
        })
    })?;
    let again = Checkpoint::open_with([&saved], &bench.options(threads))?;
    let parts: usize = placed.iter().map(|on_gpu| on_gpu.iter().count()).sum();
    if again.tensors().count() != parts {
        return Err(format!("the saved model does not have the {parts} tensors").into());
    }
    compare_parts(&again, &placed)?;
    Ok(Measured { size: model.len_bytes, ops: 1, laps })
}

fn save_one(bench: &Bench, gpus: &[Device], threads: usize) -> Result<Measured> {
    save_shards(bench, &gpus[..1], threads)
}

struct Folder(PathBuf, #[expect(dead_code, reason = "a signal names it")] Unfinished);

impl Folder {
    fn beside(bench: &Bench) -> Result<Self> {
        let path = Fresh::beside(&bench.path, 1).path.clone();
        let ((), unfinished) = Unfinished::create(|| fs::create_dir(&path).map(|()| ((), path.clone())))?;
        Ok(Self(path, unfinished))
    }

    fn empty(&self) -> Result {
        for entry in fs::read_dir(&self.0)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The measurement stands, whether or not the folder can be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
