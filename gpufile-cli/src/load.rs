//! `gpufile load`: loads a model as a program would, and reports the speed of each file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use cufile::cuda::DeviceBuffer;
use gpufile::formats::safetensors::{Checkpoint, Header};
use gpufile::page_cache;
use serde_json::json;

use super::failure::Failure;
use super::model::{checkpoint, name_of, options};
use super::progress::Bar;
use super::stderr::complain;
use super::table::say;
use super::table::{Table, print_json};
use super::target::{MemoryArgs, Place};
use super::units::{Bytes, Time, gbps};

/// Loads a safetensors model to GPU or host memory, and reports the speed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile load models/llama
  gpufile load --gpu 0,1 --cold model.safetensors.index.json

With several GPUs, each loads some of the files, all at the same time.")]
pub struct Args {
    /// A safetensors file, an index of one model, or a folder with a model.
    model: PathBuf,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Drops the files from the page cache first, so that they are read from storage.
    #[arg(long)]
    cold: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// The outcome of loading one file.
struct Loaded {
    file: usize,
    place: String,
    took: Duration,
    /// Keeps the tensors until all files are loaded.
    _tensors: Tensors,
}

enum Tensors {
    Host(#[expect(dead_code, reason = "keeps the memory")] Vec<u8>),
    Gpu(#[expect(dead_code, reason = "keeps the memory")] DeviceBuffer),
}

/// Loads the model.
pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let model = checkpoint(&arguments.model, &options()?)?;
    let (places, why_host) = arguments.memory.places()?;
    if let Some(why) = why_host {
        complain(&format!("{why}; loading to host memory"));
    }
    if arguments.cold {
        for (file, _) in model.files() {
            let dropped = page_cache::evict(file, 0..u64::MAX);
            dropped.map_err(|error| Failure::Other(format!("cannot drop {:?}: {error}", file.path())))?;
        }
    }
    let start = Instant::now();
    let mut loaded = load(&model, &places)?;
    let took = start.elapsed();
    loaded.sort_by_key(|loaded| loaded.file);
    let routes: Vec<_> = model.files().map(|(file, _)| route(file, &places)).collect();
    if arguments.json {
        as_json(&model, &loaded, took, &routes)
    } else {
        as_table(&model, &loaded, took, &routes)
    }
}

fn route(file: &gpufile::File, places: &[Place]) -> String {
    match places {
        [Place::Host, ..] => "host memory".to_owned(),
        _ => file.route().kind().to_string(),
    }
}

/// Loads each file at one of the places, and all places at the same time.
fn load(model: &Checkpoint, places: &[Place]) -> Result<Vec<Loaded>, Failure> {
    let bar = &Bar::of_bytes(model.len_bytes(), "loading");
    let files: Vec<_> = model.files().map(|(_, header)| header).collect();
    let share = &|number: usize, place: &Place| -> Result<Vec<Loaded>, Failure> {
        let numbers = (number..files.len()).step_by(places.len());
        numbers.map(|file| load_one(model, file, files[file], place, bar)).collect()
    };
    thread::scope(|scope| {
        let threads = places.iter().enumerate();
        let start =
            |(number, place)| thread::Builder::new().spawn_scoped(scope, move || share(number, place));
        let threads: Vec<_> = threads
            .map(start)
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::Other(format!("cannot start a thread to load files: {error}")))?;
        let mut loaded = Vec::new();
        for thread in threads {
            let part = thread.join().map_err(|_| Failure::Other("a loading thread panicked".to_owned()))?;
            loaded.extend(part?);
        }
        Ok(loaded)
    })
}

fn load_one(
    model: &Checkpoint,
    file: usize,
    header: &Header,
    place: &Place,
    bar: &Bar,
) -> Result<Loaded, Failure> {
    let start = Instant::now();
    let mut before = 0;
    let load = model.load().only(header.tensors().map(|tensor| tensor.name))?;
    // A load that reports its progress is read in steps, which takes longer.
    let load = match bar.is_hidden() {
        true => load,
        false => load.progress(|progress| {
            bar.add(progress.done_bytes - before);
            before = progress.done_bytes;
        }),
    };
    let tensors = match place {
        Place::Host => Tensors::Host(load.to_host()?.into_buffer()),
        Place::Gpu(device) => Tensors::Gpu(load.to_device(device)?.into_buffer()),
    };
    Ok(Loaded { file, place: place.name(), took: start.elapsed(), _tensors: tensors })
}

fn tensor_bytes(header: &Header) -> u64 {
    header.tensors().map(|tensor| tensor.len_bytes()).sum()
}

/// Returns the number of tensors and of bytes of each type of elements.
fn dtypes(model: &Checkpoint) -> BTreeMap<&'static str, (u64, u64)> {
    let mut totals = BTreeMap::<_, (u64, u64)>::new();
    for tensor in model.tensors() {
        let (tensors, bytes) = totals.entry(tensor.dtype.name()).or_default();
        (*tensors, *bytes) = (*tensors + 1, *bytes + tensor.len_bytes());
    }
    totals
}

fn as_table(
    model: &Checkpoint,
    loaded: &[Loaded],
    took: Duration,
    routes: &[String],
) -> Result<ExitCode, Failure> {
    let mut table = Table::new(&["file<", "tensors", "size", "time", "GB/s", "to<", "route<"]);
    for ((file, header), (loaded, route)) in model.files().zip(loaded.iter().zip(routes)) {
        let bytes = tensor_bytes(header);
        table.row(vec![
            name_of(file.path()),
            header.tensors().len().to_string(),
            Bytes(bytes).to_string(),
            Time(loaded.took).to_string(),
            format!("{:.2}", gbps(bytes, loaded.took.as_secs_f64())),
            loaded.place.clone(),
            route.clone(),
        ]);
    }
    table.print()?;
    let mut table = Table::new(&["dtype<", "tensors", "size"]);
    for (dtype, (tensors, bytes)) in dtypes(model) {
        table.row(vec![dtype.to_owned(), tensors.to_string(), Bytes(bytes).to_string()]);
    }
    say("")?;
    table.print()?;
    let speed = gbps(model.len_bytes(), took.as_secs_f64());
    say(&format!("\n{} in {}: {speed:.2} GB/s", Bytes(model.len_bytes()), Time(took)))
}

fn as_json(
    model: &Checkpoint,
    loaded: &[Loaded],
    took: Duration,
    routes: &[String],
) -> Result<ExitCode, Failure> {
    let files = model.files().zip(loaded.iter().zip(routes)).map(|((file, header), (loaded, route))| {
        json!({
            "file": file.path().to_string_lossy(),
            "tensors": header.tensors().len(),
            "bytes": tensor_bytes(header),
            "seconds": loaded.took.as_secs_f64(),
            "gbps": gbps(tensor_bytes(header), loaded.took.as_secs_f64()),
            "to": loaded.place,
            "route": route,
        })
    });
    let dtypes: BTreeMap<_, _> = dtypes(model)
        .into_iter()
        .map(|(dtype, (tensors, bytes))| (dtype, json!({ "tensors": tensors, "bytes": bytes })))
        .collect();
    print_json(&json!({
        "files": files.collect::<Vec<_>>(),
        "dtypes": dtypes,
        "bytes": model.len_bytes(),
        "seconds": took.as_secs_f64(),
        "gbps": gbps(model.len_bytes(), took.as_secs_f64()),
    }))?;
    Ok(ExitCode::SUCCESS)
}
