//! The parts of the examples that time loads: options, processes, medians.

#[cfg(feature = "cuda")]
mod gpu;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use candle_core::{Device, Error, Result};

/// The number of loads in turn, and of processes for first loads, of which the median is reported.
const ROUNDS: usize = 5;

pub trait Loads: Sized {
    const ENDING: &'static str;
    const LOADERS: &'static [&'static str];
    type Tensors;

    fn make(path: &Path, mib: usize) -> Result<()>;

    fn open(path: &Path) -> Result<Self>;

    fn size(&self) -> (u64, usize);

    fn load(&self, loader: usize, device: &Device) -> Result<Self::Tensors>;

    /// Compares the tensors of this crate's loaders with those of candle's.
    fn compare(&self, device: &Device) -> Result<()>;
}

struct Options {
    device: Device,
    device_name: String,
    mib: usize,
    loader: Option<usize>,
    watch: bool,
    /// Empties the page cache before each load.
    cold: bool,
    model: Option<PathBuf>,
}

fn options() -> Result<Options> {
    let mut options = Options {
        device: Device::Cpu,
        device_name: "cpu".into(),
        mib: 4096,
        loader: None,
        watch: false,
        cold: false,
        model: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| Error::msg(format!("{argument} what?")));
        match &*argument {
            "--device" => options.device_name = value()?,
            "--mib" => options.mib = value()?.parse().map_err(Error::wrap)?,
            "--watch" => options.watch = true,
            "--cold" => options.cold = true,
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
        return alone(&model, loader, device, options.watch);
    }
    println!("{bytes} bytes in {count} tensors, to {}", options.device_name);
    if !options.cold {
        first(&model, path, &options.device_name)?;
        #[cfg(feature = "cuda")]
        gpu::link(device)?;
    }
    in_turn(&model, device, options.cold.then_some(path))?;
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

fn report(what: &str, mut seconds: Vec<f64>, bytes: u64) {
    seconds.sort_by(f64::total_cmp);
    let [least, median, most] = [0, seconds.len() / 2, seconds.len() - 1].map(|at| seconds[at]);
    let speed = bytes as f64 / median / 1e9;
    println!("{what}: {:.0} ms ({:.0} to {:.0}), {speed:.2} GB/s", median * 1e3, least * 1e3, most * 1e3);
}

/// Loads once with one loader, and prints the seconds. With `watch`, prints the most device memory meanwhile instead, because
/// looking at it slows loads.
fn alone<L: Loads>(model: &L, loader: usize, device: &Device, watch: bool) -> Result<()> {
    #[cfg(feature = "cuda")]
    if let Some(peak) = watch.then(|| gpu::Peak::watch(device, model.size().0)).transpose()?.flatten() {
        time(model, loader, device)?;
        peak.report(L::LOADERS[loader]);
        return Ok(());
    }
    if !watch {
        println!("{}", time(model, loader, device)?);
    }
    Ok(())
}

/// Times the first loads of processes, which take turns, and then watches one process of each loader.
fn first<L: Loads>(model: &L, path: &Path, device_name: &str) -> Result<()> {
    let run = |loader: usize, options: &[&str]| -> Result<String> {
        let mut program = Command::new(std::env::current_exe()?);
        program.args(["--device", device_name, "--loader", &loader.to_string()]).args(options);
        let output = program.arg(path).stderr(Stdio::inherit()).output()?;
        assert!(output.status.success(), "{} failed", L::LOADERS[loader]);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut seconds = vec![Vec::new(); L::LOADERS.len()];
    for _ in 0..ROUNDS {
        for (loader, seconds) in seconds.iter_mut().enumerate() {
            seconds.push(run(loader, &[])?.trim().parse::<f64>().map_err(Error::wrap)?);
        }
    }
    for (name, seconds) in L::LOADERS.iter().zip(seconds) {
        report(&format!("{name}, first load, median of {ROUNDS} processes"), seconds, model.size().0);
    }
    for loader in 0..L::LOADERS.len() {
        print!("{}", run(loader, &["--watch"])?);
    }
    Ok(())
}

/// Times all loaders in turn, and reports the median of each. Empties the page cache of a cold file before each load.
fn in_turn<L: Loads>(model: &L, device: &Device, cold: Option<&Path>) -> Result<()> {
    let mut seconds = vec![Vec::new(); L::LOADERS.len()];
    for _ in 0..=ROUNDS {
        for (loader, seconds) in seconds.iter_mut().enumerate() {
            if let Some(path) = cold {
                gpufile::page_cache::evict(std::fs::File::open(path)?, 0..u64::MAX)?;
            }
            seconds.push(time(model, loader, device)?);
        }
    }
    for (name, mut seconds) in L::LOADERS.iter().zip(seconds) {
        seconds.remove(0);
        report(&format!("{name}, median of {ROUNDS} in turn"), seconds, model.size().0);
    }
    Ok(())
}
