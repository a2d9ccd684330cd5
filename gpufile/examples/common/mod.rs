//! Code that the examples share: arguments, random bytes, comparisons, and the exit status.

#![allow(dead_code, reason = "each example uses a part of it")]

pub mod placed;

use std::error::Error;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use gpufile::cuda::Device;
use gpufile::formats::safetensors::{self, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::{Engine, File, OpenOptions, RoutePolicy};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// Runs an example. The exit status is 0 if it succeeds; otherwise its error is printed to standard error.
pub fn run(usage: &'static str, example: impl FnOnce(Arguments) -> Result) -> ExitCode {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    match Arguments::parse(words, usage).and_then(example) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The command line: words by position, and options at any place. `--cufile` fails where cuFile does not work,
/// `--posix` never uses cuFile, and an example may have its own options.
pub struct Arguments {
    words: Vec<String>,
    own: Vec<String>,
    policy: RoutePolicy,
    usage: &'static str,
}

impl Arguments {
    fn parse(all: impl Iterator<Item = String>, usage: &'static str) -> Result<Self> {
        let (mut words, mut own, mut policy) = (Vec::new(), Vec::new(), RoutePolicy::Auto);
        let is_own = |option: &str| usage.split(['[', '|', ']']).any(|known| known == option);
        for word in all {
            match word.as_str() {
                "--cufile" => policy = RoutePolicy::RequireCufile,
                "--posix" => policy = RoutePolicy::PosixOnly,
                option if option.starts_with("--") && is_own(option) => own.push(word),
                option if option.starts_with("--") => {
                    return Err(format!("{option}: no such option; arguments: {usage}").into());
                }
                _ => words.push(word),
            }
        }
        Ok(Self { words, own, policy, usage })
    }

    pub fn has(&self, option: &str) -> bool {
        self.own.iter().any(|given| given == option)
    }

    pub fn path(&self, position: usize) -> Result<&Path> {
        let word = self.words.get(position);
        word.map(Path::new).ok_or_else(|| format!("arguments: {}", self.usage).into())
    }

    /// Returns the GPU named at `position`, or the first.
    pub fn device(&self, position: usize) -> Result<Device> {
        let ordinal = match self.words.get(position) {
            Some(word) => word.parse().map_err(|error| format!("GPU {word}: {error}"))?,
            None => 0,
        };
        let found = Engine::global().cuda().and_then(|cuda| Ok(cuda.device(ordinal)?));
        found.map_err(|error| format!("no GPU {ordinal} to use: {error}").into())
    }

    /// Returns the GPU as [`device`](Self::device), or `None` for host memory if no GPU is named and there is none.
    pub fn device_if_any(&self, position: usize) -> Result<Option<Device>> {
        match self.device(position) {
            Ok(device) => Ok(Some(device)),
            Err(error) if self.words.get(position).is_some() => Err(error),
            Err(error) => {
                println!("host memory instead of GPU memory: {error}");
                Ok(None)
            }
        }
    }

    /// Returns a size such as `65536`, `64KiB` or `64MiB` at `position`, or the default.
    pub fn size(&self, position: usize, usual: usize) -> Result<usize> {
        let Some(word) = self.words.get(position) else { return Ok(usual) };
        let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match &word[digits.len()..] {
            "" => Some(1),
            "KiB" => Some(KIB),
            "MiB" => Some(MIB),
            "GiB" => Some(KIB * MIB),
            _ => None,
        };
        let bytes = unit.and_then(|unit| digits.parse::<usize>().ok()?.checked_mul(unit));
        bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
            format!("{word}: expected a size, as a number of bytes or with KiB, MiB or GiB").into()
        })
    }

    pub fn options(&self) -> OpenOptions {
        File::options().policy(self.policy)
    }

    pub fn open(&self, path: &Path) -> Result<File> {
        Ok(self.options().read(true).open(path)?)
    }

    /// Creates or empties a file for writing and reading, as [`File::create`] does.
    pub fn create(&self, path: &Path) -> Result<File> {
        Ok(self.options().read(true).write(true).create(true).truncate(true).open(path)?)
    }
}

/// Makes a file of `len_bytes` random bytes by a plain write, and returns them.
pub fn make_file(path: &Path, len_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len_bytes];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    fs::write(path, &bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(bytes)
}

/// Fails unless a plain read of the file returns these bytes and no more.
pub fn require_file(path: &Path, expected: &[u8]) -> Result {
    let found = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if found.len() != expected.len() {
        return Err(
            format!("{} has {} bytes instead of {}", path.display(), found.len(), expected.len()).into()
        );
    }
    require_same(&found, expected, &path.display().to_string())
}

/// Fails if two ranges of bytes differ, and names the first difference.
pub fn require_same(found: &[u8], expected: &[u8], what: &str) -> Result {
    if found == expected {
        return Ok(());
    }
    let same = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
    Err(format!("{what}: the contents differ at byte {same}").into())
}

pub fn all_of(moved: usize, expected: usize, what: &str) -> Result {
    if moved == expected {
        return Ok(());
    }
    Err(format!("{what}: {moved} of {expected} bytes").into())
}

/// Saves a model of 8 MiB.
pub fn save_small(path: &Path) -> Result {
    let weights: Vec<u8> = (0..2 << 20).map(|index: u32| (index / 3) as u8).collect();
    let names: Vec<String> = (0..4).map(|layer| format!("layers.{layer}.weight")).collect();
    let tensors: Vec<_> =
        names.iter().map(|name| TensorData::new(name, Dtype::BF16, &[1024, 1024], &weights)).collect();
    safetensors::save(path, &tensors, &SaveOptions::new())?;
    Ok(())
}
