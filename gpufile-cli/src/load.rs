//! `gpufile load`: loads a model as a program would, and reports the speed of each file.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueHint;
use cufile::cuda::DeviceBuffer;
use gpufile::formats::safetensors::Progress;
use gpufile::page_cache;
use serde_json::json;

use super::failure::Failure;
use super::location::Location;
use super::model::{Model, ModelFile, engine, name_of};
use super::progress::Bar;
use super::remote::RemoteArgs;
use super::stderr::complain;
use super::table::say;
use super::table::{Table, print_json};
use super::target::{MemoryArgs, Place};
use super::units::{Bytes, Time, gbps};

/// Loads a safetensors or GGUF model to GPU or host memory, and reports the speed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile load models/llama
  gpufile load --gpu 0,1 --cold model.safetensors.index.json
  gpufile load llama-00001-of-00003.gguf
  gpufile load s3://bucket/llama/model.safetensors.index.json

With several GPUs, each loads some of the files, all at the same time. A URL is that of a
safetensors file, an index or a .gguf file, with http, https, s3 or az.")]
pub struct Args {
    /// A safetensors or GGUF file, an index, a folder with a model, or a URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    model: Location,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Drops the files from the page cache first, so that they are read from storage.
    #[arg(long)]
    cold: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

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

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    if let (Location::Url(_), true) = (&arguments.model, arguments.cold) {
        return Err(Failure::Usage(
            "--cold is for files: objects of servers are not in the page cache".to_owned(),
        ));
    }
    let model = Model::open(&arguments.model, &arguments.remote, &engine()?)?;
    let files = model.files();
    let (places, why_host) = arguments.memory.places()?;
    if let Some(why) = why_host {
        complain(&format!("{why}; loading to host memory"));
    }
    if arguments.cold {
        for ModelFile { file, .. } in &files {
            // A file with packed tensors is read through another descriptor than that of what it stands for.
            let opened = fs::File::open(file.path());
            let dropped = opened.and_then(|file| page_cache::evict(&file, 0..u64::MAX));
            dropped.map_err(|error| Failure::Other(format!("cannot drop {:?}: {error}", file.path())))?;
        }
    }
    let start = Instant::now();
    let mut loaded = load(&model, &files, &places)?;
    let took = start.elapsed();
    loaded.sort_by_key(|loaded| loaded.file);
    let routes: Vec<_> = files.iter().map(|of| route(of.file, &places)).collect();
    if arguments.json {
        as_json(&files, &loaded, took, &routes)
    } else {
        as_table(&files, &loaded, took, &routes)
    }
}

fn route(file: &gpufile::File, places: &[Place]) -> String {
    match places {
        [Place::Host, ..] => "host memory".to_owned(),
        _ => file.route().kind().to_string(),
    }
}

/// Loads each file at one of the places, and all places at the same time.
fn load(model: &Model, files: &[ModelFile<'_>], places: &[Place]) -> Result<Vec<Loaded>, Failure> {
    let bar = &Bar::of_bytes(model.len_bytes(), "loading");
    let share = &|number: usize, place: &Place| -> Result<Vec<Loaded>, Failure> {
        let numbers = (number..files.len()).step_by(places.len());
        numbers.map(|number| load_one(model, number, &files[number], place, bar)).collect()
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
    model: &Model,
    number: usize,
    file: &ModelFile<'_>,
    place: &Place,
    bar: &Bar,
) -> Result<Loaded, Failure> {
    let start = Instant::now();
    let mut before = 0;
    let watch = |progress: Progress| {
        bar.add(progress.done_bytes - before);
        before = progress.done_bytes;
    };
    // A load that reports its progress is read in steps, which takes longer.
    let tensors = load_tensors(model, file, place, (!bar.is_hidden()).then_some(watch))?;
    Ok(Loaded { file: number, place: place.name(), took: start.elapsed(), _tensors: tensors })
}

fn load_tensors(
    model: &Model,
    file: &ModelFile<'_>,
    place: &Place,
    watch: Option<impl FnMut(Progress)>,
) -> Result<Tensors, Failure> {
    let names = file.tensors.iter().map(|tensor| tensor.name);
    macro_rules! load {
        ($model:expr) => {{
            let mut load = $model.load().only(names)?;
            if let Some(watch) = watch {
                load = load.progress(watch);
            }
            Ok(match place {
                Place::Host => Tensors::Host(load.to_host()?.into_buffer()),
                Place::Gpu(device) => Tensors::Gpu(load.to_device(device)?.into_buffer()),
            })
        }};
    }
    match model {
        Model::Safetensors(model) => load!(model),
        Model::Gguf(model) => load!(model),
    }
}

/// Returns the number of tensors and of bytes of each type of elements.
fn dtypes(files: &[ModelFile<'_>]) -> BTreeMap<&'static str, (u64, u64)> {
    let mut totals = BTreeMap::<_, (u64, u64)>::new();
    for tensor in files.iter().flat_map(|file| &file.tensors) {
        let (tensors, bytes) = totals.entry(tensor.dtype).or_default();
        (*tensors, *bytes) = (*tensors + 1, *bytes + tensor.len_bytes);
    }
    totals
}

fn as_table(
    files: &[ModelFile<'_>],
    loaded: &[Loaded],
    took: Duration,
    routes: &[String],
) -> Result<ExitCode, Failure> {
    let mut table = Table::new(&["file<", "tensors", "size", "time", "GB/s", "to<", "route<"]);
    for (file, (loaded, route)) in files.iter().zip(loaded.iter().zip(routes)) {
        let bytes = file.len_bytes();
        table.row(vec![
            name_of(file.file.path()),
            file.tensors.len().to_string(),
            Bytes(bytes).to_string(),
            Time(loaded.took).to_string(),
            format!("{:.2}", gbps(bytes, loaded.took.as_secs_f64())),
            loaded.place.clone(),
            route.clone(),
        ]);
    }
    table.print()?;
    let mut table = Table::new(&["dtype<", "tensors", "size"]);
    for (dtype, (tensors, bytes)) in dtypes(files) {
        table.row(vec![dtype.to_owned(), tensors.to_string(), Bytes(bytes).to_string()]);
    }
    say("")?;
    table.print()?;
    let bytes = files.iter().map(ModelFile::len_bytes).sum();
    let speed = gbps(bytes, took.as_secs_f64());
    say(&format!("\n{} in {}: {speed:.2} GB/s", Bytes(bytes), Time(took)))
}

fn as_json(
    files: &[ModelFile<'_>],
    loaded: &[Loaded],
    took: Duration,
    routes: &[String],
) -> Result<ExitCode, Failure> {
    let of_files = files.iter().zip(loaded.iter().zip(routes)).map(|(file, (loaded, route))| {
        json!({
            "file": file.file.path().to_string_lossy(),
            "tensors": file.tensors.len(),
            "bytes": file.len_bytes(),
            "seconds": loaded.took.as_secs_f64(),
            "gbps": gbps(file.len_bytes(), loaded.took.as_secs_f64()),
            "to": loaded.place,
            "route": route,
        })
    });
    let dtypes: BTreeMap<_, _> = dtypes(files)
        .into_iter()
        .map(|(dtype, (tensors, bytes))| (dtype, json!({ "tensors": tensors, "bytes": bytes })))
        .collect();
    let bytes = files.iter().map(ModelFile::len_bytes).sum();
    print_json(&json!({
        "files": of_files.collect::<Vec<_>>(),
        "dtypes": dtypes,
        "bytes": bytes,
        "seconds": took.as_secs_f64(),
        "gbps": gbps(bytes, took.as_secs_f64()),
    }))?;
    Ok(ExitCode::SUCCESS)
}
