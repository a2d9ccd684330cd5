//! Times loads of a model by this crate and by candle, and compares the tensors bit by bit.
//!
//! `speed [--device cuda] [--mib 4096] [MODEL]`. Without MODEL, it makes a model of that size in /dev/shm. Each loader runs
//! in a process of its own, so that its first load is the first of the process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use gpufile_candle::Tensors;

const LOADERS: [&str; 3] = ["gpufile_candle::load", "gpufile_candle::var_builder", "candle's mapping"];
const ROUNDS: usize = 5;

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
        let mut value =
            || arguments.next().ok_or_else(|| candle_core::Error::msg(format!("{argument} what?")));
        match &*argument {
            "--device" => options.device_name = value()?,
            "--mib" => options.mib = value()?.parse().map_err(candle_core::Error::wrap)?,
            "--loader" => options.loader = Some(value()?.parse().map_err(candle_core::Error::wrap)?),
            model => options.model = Some(model.into()),
        }
    }
    if options.device_name == "cuda" {
        options.device = Device::new_cuda(0)?;
    }
    Ok(options)
}

/// Makes a model with the shapes of a language model, in which no two elements nearby are equal.
fn make(path: &Path, mib: usize) -> Result<()> {
    let (mut tensors, mut room) = (std::collections::HashMap::new(), mib << 20);
    let mut add = |name: String, shape: &[usize]| -> Result<bool> {
        let len = shape.iter().product::<usize>();
        if 2 * len > room {
            return Ok(false);
        }
        room -= 2 * len;
        let salt = room as u32;
        let bits = (0..len as u32).map(|at| (at ^ salt).wrapping_mul(0x9e37_79b1) >> 16);
        let elements: Vec<_> = bits.map(|bits| half::bf16::from_bits(bits as u16)).collect();
        tensors.insert(name, Tensor::from_vec(elements, shape, &Device::Cpu)?);
        Ok(true)
    };
    let mut layer = 0;
    while add(format!("layers.{layer}.mlp.down_proj.weight"), &[2048, 8192])? {
        add(format!("layers.{layer}.self_attn.q_proj.weight"), &[2048, 2048])?;
        add(format!("layers.{layer}.self_attn.k_proj.weight"), &[512, 2048])?;
        add(format!("layers.{layer}.input_layernorm.weight"), &[2048])?;
        layer += 1;
    }
    while add(format!("rest.{layer}"), &[1 << 19])? {
        layer += 1;
    }
    gpufile_candle::save(&tensors, path)
}

/// Loads all tensors, in the order of the file, and waits for the device.
fn load(loader: usize, model: &Path, names: &[String], device: &Device) -> Result<Vec<Tensor>> {
    let tensors = match loader {
        0 => {
            let mut all = gpufile_candle::load(&[model], None, device)?;
            names.iter().map(|name| all.remove(name).expect("loaded")).collect()
        }
        1 => get_all(&gpufile_candle::var_builder(&[model], DType::BF16, device)?, names)?,
        // SAFETY: this program is alone with the file.
        _ => get_all(&unsafe { VarBuilder::from_mmaped_safetensors(&[model], DType::BF16, device)? }, names)?,
    };
    device.synchronize()?;
    Ok(tensors)
}

fn get_all(tensors: &VarBuilder<'_>, names: &[String]) -> Result<Vec<Tensor>> {
    names.iter().map(|name| tensors.get_unchecked(name)).collect()
}

fn time(loader: usize, model: &Path, names: &[String], device: &Device) -> Result<f64> {
    let start = Instant::now();
    let tensors = load(loader, model, names, device)?;
    let seconds = start.elapsed().as_secs_f64();
    drop(tensors);
    device.synchronize()?;
    Ok(seconds)
}

fn report(what: &str, seconds: f64, bytes: u64) {
    println!("{what}: {:.0} ms, {:.2} GB/s", seconds * 1e3, bytes as f64 / seconds / 1e9);
}

/// Times the loads of one loader by itself.
fn alone(loader: usize, model: &Path, names: &[String], bytes: u64, device: &Device) -> Result<()> {
    #[cfg(feature = "cuda")]
    let peak = gpu::Peak::watch(device, bytes)?;
    for round in ["first", "second", "third"] {
        report(&format!("{} {round}", LOADERS[loader]), time(loader, model, names, device)?, bytes);
    }
    #[cfg(feature = "cuda")]
    peak.report();
    Ok(())
}

/// Times all loaders in turn, and reports the median of each.
fn in_turn(model: &Path, names: &[String], bytes: u64, device: &Device) -> Result<()> {
    let mut seconds = [const { Vec::new() }; LOADERS.len()];
    for _ in 0..=ROUNDS {
        for (loader, seconds) in seconds.iter_mut().enumerate() {
            seconds.push(time(loader, model, names, device)?);
        }
    }
    for (name, mut seconds) in LOADERS.into_iter().zip(seconds) {
        seconds.remove(0);
        seconds.sort_by(f64::total_cmp);
        report(&format!("{name}, median of {ROUNDS} in turn"), seconds[ROUNDS / 2], bytes);
    }
    Ok(())
}

fn compare(model: &Path, names: &[String], device: &Device) -> Result<()> {
    let reference = load(2, model, names, &Device::Cpu)?;
    for loader in [0, 1] {
        let tensors = load(loader, model, names, device)?;
        for (name, (ours, theirs)) in names.iter().zip(tensors.iter().zip(&reference)) {
            let bits = |tensor: &Tensor| -> Result<Vec<u16>> {
                let elements = tensor.flatten_all()?.to_device(&Device::Cpu)?.to_vec1::<half::bf16>()?;
                Ok(elements.into_iter().map(half::bf16::to_bits).collect())
            };
            assert!(ours.dims() == theirs.dims() && bits(ours)? == bits(theirs)?, "{name} differs");
        }
        println!("{}: all bits equal to candle's", LOADERS[loader]);
    }
    Ok(())
}

#[cfg(feature = "cuda")]
mod gpu {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    use candle_core::cuda_backend::cudarc::driver::CudaContext;
    use candle_core::{Device, Error, Result};

    /// The most device memory in use since the start of the watch.
    pub struct Peak {
        least_free: Arc<AtomicUsize>,
        stop: Arc<AtomicBool>,
        thread: JoinHandle<()>,
        start_free: usize,
        model_bytes: u64,
    }

    impl Peak {
        pub fn watch(device: &Device, model_bytes: u64) -> Result<Option<Self>> {
            let Device::Cuda(device) = device else { return Ok(None) };
            let context = device.cuda_stream().context().clone();
            let start_free = context.mem_get_info().map_err(Error::wrap)?.0;
            let least_free = Arc::new(AtomicUsize::new(start_free));
            let stop = Arc::new(AtomicBool::new(false));
            let (least, stopped) = (least_free.clone(), stop.clone());
            let thread = std::thread::spawn(move || {
                while !stopped.load(SeqCst) {
                    let free = context.mem_get_info().map_or(usize::MAX, |(free, _)| free);
                    least.fetch_min(free, SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            Ok(Some(Self { least_free, stop, thread, start_free, model_bytes }))
        }

        fn end(self) {
            self.stop.store(true, SeqCst);
            self.thread.join().expect("the watch");
            let peak = self.start_free - self.least_free.load(SeqCst);
            let model = self.model_bytes;
            println!("peak device memory: {peak} bytes, {:.4} of the model", peak as f64 / model as f64);
        }
    }

    pub trait Report {
        fn report(self);
    }

    impl Report for Option<Peak> {
        fn report(self) {
            if let Some(peak) = self {
                peak.end();
            }
        }
    }

    /// Reports the speed of copies from pinned memory.
    pub fn link(device: &Device) -> Result<()> {
        let Device::Cuda(device) = device else { return Ok(()) };
        const BYTES: usize = 1 << 30;
        let context: &Arc<CudaContext> = &device.cuda_stream().context().clone();
        // SAFETY: the bytes are copied only to be timed, and any are valid.
        let host = unsafe { context.alloc_pinned::<u8>(BYTES) }.map_err(Error::wrap)?;
        let mut memory = device.alloc_zeros::<u8>(BYTES)?;
        let mut best = f64::MAX;
        for _ in 0..5 {
            context.synchronize().map_err(Error::wrap)?;
            let start = Instant::now();
            device.memcpy_htod(&host, &mut memory)?;
            context.synchronize().map_err(Error::wrap)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        super::report("the link, from pinned memory", best, BYTES as u64);
        Ok(())
    }
}

#[cfg(feature = "cuda")]
use gpu::Report;

fn main() -> Result<()> {
    let options = options()?;
    let made = PathBuf::from(format!("/dev/shm/gpufile-candle-{}.safetensors", std::process::id()));
    let model = options.model.clone().unwrap_or_else(|| made.clone());
    if options.model.is_none() {
        make(&made, options.mib)?;
    }
    let result = run(&options, &model);
    if options.model.is_none() {
        std::fs::remove_file(made)?;
    }
    result
}

fn run(options: &Options, model: &Path) -> Result<()> {
    let tensors = Tensors::open(&[model])?;
    let (bytes, infos) = (tensors.checkpoint().len_bytes(), tensors.checkpoint().tensors());
    let names: Vec<_> = infos.map(|info| info.name.to_owned()).collect();
    if let Some(loader) = options.loader {
        return alone(loader, model, &names, bytes, &options.device);
    }
    println!("{bytes} bytes in {} tensors, to {}", names.len(), options.device_name);
    for (loader, name) in LOADERS.iter().enumerate() {
        let mut program = Command::new(std::env::current_exe()?);
        program.args(["--device", &options.device_name, "--loader", &loader.to_string()]);
        assert!(program.arg(model).status()?.success(), "{name} failed");
    }
    #[cfg(feature = "cuda")]
    gpu::link(&options.device)?;
    in_turn(model, &names, bytes, &options.device)?;
    compare(model, &names, &options.device)
}
