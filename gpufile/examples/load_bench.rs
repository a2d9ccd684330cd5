//! Loads safetensors files to GPU memory, and prints the seconds in the same form as other loaders.
//!
//! usage: load_bench [--cufile|--posix] [--cold|--save|--first|--everything] DIR [GPU]
//!
//! | case | files | tensors in each | bytes of each |
//! |---|---|---|---|
//! | `load-big` | 1 | 64 | 64 MiB |
//! | `load-sharded` | 4 | 128 | 8 MiB |
//! | `load-many` | 1 | 8192 | 512 KiB |
//! | `load-tiny` | 1 | 65536 | 16 KiB |
//!
//! The files are `DIR/CASE-i.safetensors`, with tensors `f{i}.t{k}` of 16-bit integers j + k, wrapped, for j from 0.
//! The example skips a case whose files are missing. If there is no DIR, the example creates it with files of smaller
//! cases, for a trial. Files that were just made or read are in the page cache, and the example measures loading from
//! there.
//!
//! A line is the best of three after one to warm up. `size` has the bytes of a tensor with its share of the header,
//! and `ops` the number of tensors. `seconds` counts from opening the files until every tensor is in GPU memory,
//! allocation included. The example compares the last tensor of each file and 16 others with the contents that the
//! files must have. Without a GPU, and with none named, host memory takes its place. `--cufile` requires
//! cuFile, and `--posix` never uses it.
//!
//! `--cold` measures the storage instead, with two lines in turn. `load-big-cold` is the same after dropping the files
//! from the page cache. `load-big-direct-read` reads all bytes of the files into one such buffer with `O_DIRECT`,
//! opening and allocation included.
//!
//! `--save` loads the tensors of each case and saves them into one file beside the others. `save-big` is a new file
//! that is synced, `save-big-unsynced` one that is not, and `save-big-over` one that replaces another, unsynced.
//! `save-big-shards` are four new files, unsynced.
//!
//! `--first` measures one case in this process, the first whose files are there. `load-big-first` is its first load,
//! after CUDA has started, and `load-big-again` the second. `--everything` starts CUDA within the first load. Its line is
//! printed at once, so another program can measure the time from the start of the process.

mod common;

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use common::{Arguments, KIB, MIB, Result, require_same};
use gpufile::cuda::{Device, DeviceBuffer};
use gpufile::formats::safetensors::{self, Checkpoint, Loaded, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::{BufSliceMut, DirectIo, File, IoBuf, Request, page_cache};

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
    common::run("[--cufile|--posix] [--cold|--save|--first|--everything] DIR [GPU]", |arguments| {
        let folder = arguments.path(0)?;
        let device = arguments.device_if_any(1)?;
        if !folder.exists() {
            make_small(folder)?;
        }
        for case in &CASES {
            let paths = case.paths(folder);
            if let Some(missing) = paths.iter().find(|path| !path.exists()) {
                println!("peer=gpufile case={} error={} is missing", case.name, missing.display());
                continue;
            }
            let bench = Bench { case, paths, arguments: &arguments, device: device.as_ref() };
            let is_asked = |options: &[&str]| options.iter().any(|option| arguments.has(option));
            if is_asked(&["--first", "--everything"]) {
                return bench.load_first();
            } else if is_asked(&["--cold"]) {
                bench.load_cold()?;
            } else if is_asked(&["--save"]) {
                bench.save(folder)?;
            } else {
                bench.load()?;
            }
        }
        Ok(())
    })
}

/// A case, and the means to measure it.
struct Bench<'a> {
    case: &'a Case,
    paths: Vec<PathBuf>,
    arguments: &'a Arguments,
    device: Option<&'a Device>,
}

impl Bench<'_> {
    fn load(&self) -> Result {
        let (mut best, mut ops) = (Best::default(), 0);
        for _ in 0..ROUNDS {
            ops = self.load_once(&mut best)?;
        }
        report(self.case.name, self.total_bytes()?, ops, best);
        Ok(())
    }

    fn load_first(&self) -> Result {
        if let (Some(device), false) = (self.device, self.arguments.has("--everything")) {
            device.alloc(MIB)?.fill(0)?;
        }
        for name in ["first", "again"] {
            let start = Instant::now();
            let checkpoint = Checkpoint::open_with(&self.paths, &self.arguments.options())?;
            let loaded = Memory::load(&checkpoint, self.device)?;
            let took = Best { rounds: 1, seconds: start.elapsed().as_secs_f64() };
            let ops = checkpoint.tensors().len();
            report(&format!("{}-{name}", self.case.name), self.total_bytes()?, ops, took);
            check(&checkpoint, |name| loaded.to_vec(name))?;
            drop(loaded);
            self.pause();
        }
        Ok(())
    }

    fn load_cold(&self) -> Result {
        let (mut loads, mut reads, mut ops) = (Best::default(), Best::default(), 0);
        for _ in 0..ROUNDS {
            self.drop_cache()?;
            ops = self.load_once(&mut loads)?;
            self.drop_cache()?;
            self.read_directly(&mut reads)?;
        }
        let total_bytes = self.total_bytes()?;
        report(&format!("{}-cold", self.case.name), total_bytes, ops, loads);
        report(&format!("{}-direct-read", self.case.name), total_bytes, ops, reads);
        Ok(())
    }

    /// Waits, because the GPU still clears freed memory, and the next allocation would wait for that.
    fn pause(&self) {
        if self.device.is_some() {
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the number of tensors.
    fn load_once(&self, best: &mut Best) -> Result<usize> {
        self.pause();
        let start = Instant::now();
        let checkpoint = Checkpoint::open_with(&self.paths, &self.arguments.options())?;
        let loaded = Memory::load(&checkpoint, self.device)?;
        if best.add(start) == 1 {
            check(&checkpoint, |name| loaded.to_vec(name))?;
        }
        Ok(checkpoint.tensors().len())
    }

    /// Reads all files whole, from the storage.
    fn read_directly(&self, best: &mut Best) -> Result {
        let total_bytes = self.total_bytes()? as usize;
        self.pause();
        let start = Instant::now();
        let options = self.arguments.options().read(true).direct_read(DirectIo::Always);
        let files = self.paths.iter().map(|path| options.open(path)).collect::<gpufile::Result<Vec<_>>>()?;
        match self.device {
            Some(device) => read_whole(&files, (&mut device.alloc(total_bytes)?).into())?,
            None => read_whole(&files, (&mut vec![0; total_bytes]).into())?,
        }
        best.add(start);
        Ok(())
    }

    fn save(&self, folder: &Path) -> Result {
        let checkpoint = Checkpoint::open_with(&self.paths, &self.arguments.options())?;
        let loaded = Memory::load(&checkpoint, self.device)?;
        let tensors = loaded.tensors();
        let name = self.case.name.replace("load", "save");
        let saved = Removed(folder.join(format!("{name}.safetensors")));
        let path = &saved.0;
        let unsynced = SaveOptions::new().files(&self.arguments.options()).sync(false);
        let shard_bytes = self.total_bytes()?.div_ceil(4);
        let ways = [
            ("", unsynced.clone().sync(true), false),
            ("-unsynced", unsynced.clone(), false),
            ("-over", unsynced.clone(), true),
            ("-shards", unsynced.shard_bytes(shard_bytes), false),
        ];
        for (suffix, options, is_over) in ways {
            let (mut best, mut len_bytes) = (Best::default(), 0);
            for _ in 0..ROUNDS {
                if !is_over {
                    saved.remove();
                }
                let start = Instant::now();
                let model = safetensors::save(path, &tensors, &options)?;
                len_bytes = model.len_bytes;
                if best.add(start) == 1 {
                    let saved = Checkpoint::open_with([&model.path], &self.arguments.options())?;
                    check(&saved, |name| Ok(saved.read_tensor(name)?))?;
                }
            }
            report(&format!("{name}{suffix}"), len_bytes, tensors.len(), best);
        }
        Ok(())
    }

    fn total_bytes(&self) -> Result<u64> {
        let mut total_bytes = 0;
        for path in &self.paths {
            total_bytes += fs::metadata(path)?.len();
        }
        Ok(total_bytes)
    }

    fn drop_cache(&self) -> Result {
        for path in &self.paths {
            let file = fs::File::open(path)?;
            page_cache::evict(&file, 0..u64::MAX)?;
            let left = page_cache::residency(&file, 0..u64::MAX)?.fraction();
            if left > 0.01 {
                let (path, percent) = (path.display(), 100.0 * left);
                return Err(format!("{path}: {percent:.0} % stay in the page cache, as on tmpfs").into());
            }
        }
        Ok(())
    }
}

fn report(case: &str, total_bytes: u64, ops: usize, Best { seconds, .. }: Best) {
    println!(
        "peer=gpufile case={case} size={} ops={ops} threads=0 seconds={seconds:.6} gbps={:.3} us_per_op={:.3}",
        total_bytes / ops.max(1) as u64,
        total_bytes as f64 / seconds / 1e9,
        seconds / ops as f64 * 1e6,
    );
}

/// The number of rounds, of which the first warms up.
const ROUNDS: usize = 4;

/// The fastest round, without the first.
struct Best {
    rounds: usize,
    seconds: f64,
}

impl Default for Best {
    fn default() -> Self {
        Self { rounds: 0, seconds: f64::INFINITY }
    }
}

impl Best {
    /// Takes the time since the start. Returns the number of rounds.
    fn add(&mut self, start: Instant) -> usize {
        let seconds = start.elapsed().as_secs_f64();
        self.rounds += 1;
        if self.rounds > 1 {
            self.seconds = self.seconds.min(seconds);
        }
        self.rounds
    }
}

fn read_whole(files: &[File], mut memory: BufSliceMut<'_>) -> Result {
    let mut requests = Vec::new();
    for file in files {
        let (part, behind) = memory.split_at(file.len_bytes()? as usize);
        requests.push(Request { file, buffer: part, offset: 0 });
        memory = behind;
    }
    Ok(files[0].engine().read_many(&mut requests)?)
}

/// A model that is removed at the end: a file, or an index and its shards.
struct Removed(PathBuf);

impl Removed {
    fn remove(&self) {
        let index = self.0.with_extension("safetensors.index.json");
        let mut files = vec![self.0.clone(), index.clone()];
        if let Ok(model) = Checkpoint::open(&index) {
            files.extend(model.files().map(|(file, _)| file.path().to_owned()));
        }
        for file in files {
            // A file that stays does not change the measurement.
            let _ = fs::remove_file(file);
        }
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The loaded tensors, on the GPU or the host.
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
                let loaded = checkpoint.load().to_device(device)?;
                touch(&loaded);
                Memory::Device(loaded)
            }
            None => {
                let loaded = checkpoint.load().to_host()?;
                touch(&loaded);
                Memory::Host(loaded)
            }
        })
    }

    fn tensors(&self) -> Vec<TensorData<'_>> {
        match self {
            Memory::Device(loaded) => loaded.iter().map(TensorData::from).collect(),
            Memory::Host(loaded) => loaded.iter().map(TensorData::from).collect(),
        }
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

/// Compares some tensors with the contents that the files must have.
fn check(checkpoint: &Checkpoint, bytes_of: impl Fn(&str) -> Result<Vec<u8>>) -> Result {
    let names: Vec<&str> = checkpoint.tensors().map(|tensor| tensor.name).collect();
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
        let found = bytes_of(name)?;
        require_same(&found, &contents(number, found.len()), name)?;
    }
    Ok(())
}

impl Case {
    fn paths(&self, folder: &Path) -> Vec<PathBuf> {
        (0..self.files).map(|i| folder.join(format!("{}-{i}.safetensors", self.name))).collect()
    }
}

/// Returns the `k` of a name `f{i}.t{k}`.
fn number(name: &str) -> Option<usize> {
    name.split_once(".t")?.1.parse().ok()
}

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
            safetensors::save(path, &made, &SaveOptions::new().sync(false))?;
        }
    }
    Ok(())
}
