//! Reads and writes at random from several threads, engines and streams, and compares every byte.
//!
//! usage: stress [--seconds N] [--seed N] [--threads N] [--actors N] [--posix] DIR [GPU]
//!
//! Each actor is a thread that runs rounds. A round reads ranges of a file whose contents are a function of
//! the offset. Or it writes ranges of files of which the actor keeps a copy. Each round uses one of gpufile's
//! calls, with memory of the GPU or the host. Lengths range from 1 to 200,000 bytes, and some are far longer.
//! Nothing is aligned. Ranges overlap in the file that is read. In memory they have gaps, whose bytes must
//! not change. Some rounds block their stream for a while. Others drop an engine before its transfers end.
//!
//! The same seed repeats the same actions, except for the timing of threads.
//!
//! Files are made in DIR, which is created if only DIR itself is missing, and removed at the end. If no
//! GPU exists and none is named, host memory takes its place. `--threads` sets the number of the engines'
//! workers. `--posix` disables cuFile.

#[path = "stress/actor.rs"]
mod actor;
#[path = "stress/content.rs"]
mod content;
#[path = "stress/memory.rs"]
mod memory;
#[path = "stress/models.rs"]
mod models;
#[path = "stress/reads.rs"]
mod reads;
#[path = "stress/writes.rs"]
mod writes;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use actor::Actor;
use gpufile::cuda::Device;
use gpufile::{DirectIo, Engine, File, RoutePolicy};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The salt of the contents of the file to be read, and its length in bytes, which is not aligned to
/// anything.
const READ_SALT: u64 = 1;
const READ_LEN: u64 = 200_000_011;
/// The length in bytes of each actor's own region in the file that all actors write.
const REGION: u64 = 3_000_017;

const USAGE: &str = "stress [--seconds N] [--seed N] [--threads N] [--actors N] [--posix] DIR [GPU]";

struct Stage {
    device: Option<Device>,
    folder: PathBuf,
    scenes: Vec<Scene>,
    /// Set when an actor has failed, so that the others end.
    is_over: AtomicBool,
    end: Instant,
    seed: u64,
}

struct Scene {
    /// The same file, opened with different options.
    read: Vec<File>,
    /// A file of which each actor writes its own region, opened with different options.
    written: Vec<File>,
    written_path: PathBuf,
    engine: Engine,
    policies: Vec<RoutePolicy>,
}

/// The number of transfers by each call, and the number of their bytes.
type Counts = BTreeMap<&'static str, (u64, u64)>;

struct Arguments {
    seconds: u64,
    seed: u64,
    threads: usize,
    actors: usize,
    posix: bool,
    folder: PathBuf,
    gpu: Option<u32>,
}

fn main() -> ExitCode {
    match arguments().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stress: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result {
    let Arguments { seconds, seed, threads, actors, .. } = *arguments;
    println!("seed {seed}: {actors} actors for {seconds} s, engines of {threads} threads");
    let device = device(arguments.gpu)?;
    let folder = arguments.folder.join(format!("stress-{}", std::process::id()));
    for folder in [&arguments.folder, &folder] {
        match fs::create_dir(folder) {
            Err(error) if !folder.is_dir() => return Err(format!("{}: {error}", folder.display()).into()),
            _ => {}
        }
    }
    let _removed = RemovedAtEnd(&folder);
    let read_path = folder.join("read");
    make_read_file(&read_path)?;
    let policies = policies(arguments.posix, &read_path);
    // One engine has the default sizes. The other's buffers and chunks have odd and small sizes, so there are
    // many of each.
    let engines = [
        Engine::builder().threads(threads).build(),
        Engine::builder().threads(threads).bounce_buffer_bytes(300_000).chunk_bytes(100_003).build(),
    ];
    let mut scenes = Vec::new();
    for (number, engine) in engines.into_iter().enumerate() {
        let written_path = folder.join(format!("written-{number}"));
        scenes.push(Scene::new(engine, &read_path, written_path, &policies)?);
    }
    for scene in &scenes {
        println!("route: {}", scene.read[0].route());
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let stage = Stage { device, folder: folder.clone(), scenes, is_over: AtomicBool::new(false), end, seed };
    let (counts, rounds, failures) = play(&stage, actors);
    for (way, (calls, bytes)) in counts {
        println!("{way:<24} {calls:>9} calls {bytes:>16} bytes");
    }
    match failures.is_empty() {
        true => {
            println!("{rounds} rounds, every byte compared, no failure");
            Ok(())
        }
        false => {
            Err(format!("{}\nrun again with --seed {seed} --actors {actors}", failures.join("\n")).into())
        }
    }
}

fn play(stage: &Stage, actors: usize) -> (Counts, u64, Vec<String>) {
    let (mut counts, mut rounds, mut failures) = (Counts::new(), 0, Vec::new());
    let outcomes: Vec<_> = thread::scope(|threads| {
        let playing: Vec<_> = (0..actors)
            .map(|number| {
                threads.spawn(move || {
                    let mut actor = Actor::new(stage, number as u64)?;
                    let outcome = actor.play();
                    stage.is_over.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    outcome.map_err(|error| format!("actor {number}, round {}: {error}", actor.round))?;
                    Result::Ok((actor.counts, actor.round))
                })
            })
            .collect();
        playing.into_iter().map(|actor| actor.join()).collect()
    });
    for outcome in outcomes {
        match outcome {
            Ok(Ok((more, more_rounds))) => {
                rounds += more_rounds;
                for (way, (calls, bytes)) in more {
                    let sum = counts.entry(way).or_default();
                    *sum = (sum.0 + calls, sum.1 + bytes);
                }
            }
            Ok(Err(error)) => failures.push(error.to_string()),
            Err(_) => failures.push("an actor panicked".to_owned()),
        }
    }
    (counts, rounds, failures)
}

impl Scene {
    fn new(engine: Engine, read: &Path, written_path: PathBuf, policies: &[RoutePolicy]) -> Result<Self> {
        let direct = [DirectIo::Auto, DirectIo::Always, DirectIo::Never];
        let ways = || policies.iter().flat_map(|policy| direct.map(|direct| (*policy, direct)));
        let options = |policy, direct| {
            File::options().policy(policy).direct_read(direct).direct_write(direct).engine(&engine).read(true)
        };
        let open_read = |(policy, direct)| options(policy, direct).open(read);
        let open_written =
            |(policy, direct)| options(policy, direct).write(true).create(true).open(&written_path);
        let read = ways().map(open_read).collect::<gpufile::Result<Vec<_>>>()?;
        let written = ways().map(open_written).collect::<gpufile::Result<Vec<_>>>()?;
        Ok(Self { read, written, written_path, engine, policies: policies.to_vec() })
    }
}

/// Returns the policies for device memory that work on this machine.
fn policies(posix: bool, path: &Path) -> Vec<RoutePolicy> {
    if posix {
        return vec![RoutePolicy::PosixOnly];
    }
    match File::options().read(true).policy(RoutePolicy::RequireCufile).open(path) {
        Ok(_) => vec![RoutePolicy::Auto, RoutePolicy::PosixOnly, RoutePolicy::RequireCufile],
        Err(error) => {
            println!("without cuFile: {error}");
            vec![RoutePolicy::Auto, RoutePolicy::PosixOnly]
        }
    }
}

fn device(gpu: Option<u32>) -> Result<Option<Device>> {
    match Engine::global().cuda().and_then(|cuda| Ok(cuda.device(gpu.unwrap_or(0))?)) {
        Ok(device) => {
            println!("GPU {}: {}", device.ordinal(), device.name()?);
            Ok(Some(device))
        }
        Err(error) if gpu.is_some() => Err(error.into()),
        Err(error) => {
            println!("host memory instead of GPU memory: {error}");
            Ok(None)
        }
    }
}

fn make_read_file(path: &Path) -> Result {
    let bytes = content::content(READ_SALT, 0, READ_LEN as usize);
    Ok(fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn arguments() -> Result<Arguments> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let (mut seconds, mut seed, mut threads, mut actors, mut posix) =
        (10, now.subsec_nanos().into(), 16, 6, false);
    let mut words = Vec::new();
    let mut given = env::args().skip(1);
    while let Some(word) = given.next() {
        let mut number = || -> Result<u64> {
            let value = given.next().ok_or_else(|| format!("{word} needs a number; usage: {USAGE}"))?;
            Ok(value.parse().map_err(|error| format!("{word} {value}: {error}"))?)
        };
        match word.as_str() {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            "--threads" => threads = number()?.max(1) as usize,
            "--actors" => actors = number()?.clamp(1, 64) as usize,
            "--posix" => posix = true,
            option if option.starts_with("--") => {
                return Err(format!("{option}: no such option; usage: {USAGE}").into());
            }
            _ => words.push(word),
        }
    }
    let folder = words.first().ok_or_else(|| format!("usage: {USAGE}"))?.into();
    let gpu =
        words.get(1).map(|word| word.parse().map_err(|error| format!("GPU {word}: {error}"))).transpose()?;
    Ok(Arguments { seconds, seed, threads, actors, posix, folder, gpu })
}

struct RemovedAtEnd<'a>(&'a Path);

impl Drop for RemovedAtEnd<'_> {
    fn drop(&mut self) {
        // The report is valid even if the files cannot be removed.
        let _ = fs::remove_dir_all(self.0);
    }
}
