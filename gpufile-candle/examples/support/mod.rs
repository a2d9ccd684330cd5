//! The parts of the examples that time loads: options, processes, medians.

#[cfg(feature = "cuda")]
mod gpu;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use candle_core::{Device, Error, Result};

/// The number of loads in turn, of which the median is reported.
const ROUNDS: usize = 5;

/// A model, and several ways to load it.
pub trait Loads: Sized {
    /// The end of the name of the file.
    const ENDING: &'static str;
    /// The names of the ways.
    const LOADERS: &'static [&'static str];
    /// The loaded tensors.
    type Tensors;

    /// Writes a model of so many MiB.
    fn make(path: &Path, mib: usize) -> Result<()>;

    fn open(path: &Path) -> Result<Self>;

    /// Returns the number of bytes of the tensors, and the number of tensors.
    fn size(&self) -> (u64, usize);

    /// Loads all tensors.
    fn load(&self, loader: usize, device: &Device) -> Result<Self::Tensors>;

    /// Compares the tensors of this crate's loaders with those of candle's.
    fn compare(&self, device: &Device) -> Result<()>;
}

struct Options {
    device: Device,
    device_name: String,
    mib: usize,
    loader: Option<usize>,
    model: Option<PathBuf>,
}

fn options() -> Result<Options> {
    let mut options =
        Options { device: Device::Cpu, device_name: "cpu".into(), mib: 4096, loader: None, model: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| Error::msg(format!("{argument} what?")));
        match &*argument {
            "--device" => options.device_name = value()?,
            "--mib" => options.mib = value()?.parse().map_err(Error::wrap)?,
            "--loader" => options.loader = Some(value()?.parse().map_err(Error::wrap)?),
            model => options.model = Some(model.into()),
        }
    }
    if options.device_name == "cuda" {
        options.device = Device::new_cuda(0)?;
    }
    Ok(options)
}

/// Times the loads of a model: of the one that the arguments name, or of a new one in /dev/shm.
pub fn main<L: Loads>() -> Result<()> {
    let options = options()?;
    let made = PathBuf::from(format!("/dev/shm/gpufile-candle-{}.{}", std::process::id(), L::ENDING));
    let model = options.model.clone().unwrap_or_else(|| made.clone());
    let result = match options.model {
        Some(_) => run::<L>(&options, &model),
        None => L::make(&made, options.mib).and_then(|()| run::<L>(&options, &model)),
    };
    if options.model.is_none() {
        std::fs::remove_file(made)?;
    }
    result
}

fn run<L: Loads>(options: &Options, path: &Path) -> Result<()> {
    let model = L::open(path)?;
    let (device, (bytes, count)) = (&options.device, model.size());
    if let Some(loader) = options.loader {
        return alone(&model, loader, device);
    }
    println!("{bytes} bytes in {count} tensors, to {}", options.device_name);
    for (loader, name) in L::LOADERS.iter().enumerate() {
        let mut program = Command::new(std::env::current_exe()?);
        program.args(["--device", &options.device_name, "--loader", &loader.to_string()]);
        assert!(program.arg(path).status()?.success(), "{name} failed");
    }
    #[cfg(feature = "cuda")]
    gpu::link(device)?;
    in_turn(&model, device)?;
    model.compare(device)
}

fn time<L: Loads>(model: &L, loader: usize, device: &Device) -> Result<f64> {
    let start = Instant::now();
    let tensors = model.load(loader, device)?;
    device.synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    drop(tensors);
    device.synchronize()?;
    Ok(seconds)
}

fn report(what: &str, seconds: f64, bytes: u64) {
    println!("{what}: {:.0} ms, {:.2} GB/s", seconds * 1e3, bytes as f64 / seconds / 1e9);
}

/// Times the loads of one loader by itself.
fn alone<L: Loads>(model: &L, loader: usize, device: &Device) -> Result<()> {
    let bytes = model.size().0;
    #[cfg(feature = "cuda")]
    let peak = gpu::Peak::watch(device, bytes)?;
    for round in ["first", "second", "third"] {
        report(&format!("{} {round}", L::LOADERS[loader]), time(model, loader, device)?, bytes);
    }
    #[cfg(feature = "cuda")]
    if let Some(peak) = peak {
        peak.report();
    }
    Ok(())
}

/// Times all loaders in turn, and reports the median of each.
fn in_turn<L: Loads>(model: &L, device: &Device) -> Result<()> {
    let mut seconds = vec![Vec::new(); L::LOADERS.len()];
    for _ in 0..=ROUNDS {
        for (loader, seconds) in seconds.iter_mut().enumerate() {
            seconds.push(time(model, loader, device)?);
        }
    }
    for (name, mut seconds) in L::LOADERS.iter().zip(seconds) {
        seconds.remove(0);
        seconds.sort_by(f64::total_cmp);
        report(&format!("{name}, median of {ROUNDS} in turn"), seconds[ROUNDS / 2], model.size().0);
    }
    Ok(())
}
