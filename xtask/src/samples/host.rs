//! The host of samples: their executables, the libraries, the GPUs, and files made for them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, process};

use anyhow::{Context, Result};

use super::calls::Table;
use super::table::{Argument, LARGE, LARGE_EMULATED, Sample};
use super::{LIMIT, Options};
use crate::header::crt_headers;
use crate::limited::{self, Run};
use crate::packages::{self, CUDA_HEADER, CUFILE_HEADER};
use crate::target::Target;
use crate::workspace::{target_folder, workspace};

/// Sample 13 makes four million calls.
const LIMIT_OF_C: Duration = Duration::from_secs(600);

const EMULATOR: &str = "libcufile_emulator.so";

pub struct Host {
    executables: PathBuf,
    variables: Vec<(&'static str, PathBuf)>,
    folder: Scratch,
    emulated: bool,
    gpus: u32,
}

impl Host {
    pub fn prepare(options: &Options) -> Result<Self> {
        if options.bin_dir.is_none() {
            let packages = ["--package", "libcufile", "--package", "gpufile"];
            let features = ["--features", "gpufile/cudarc,gpufile/kv-blocks,gpufile/nccl,gpufile/zarr"];
            build(&[&packages[..], &["--examples"], &features[..]].concat())?;
            if options.emulator {
                build(&["--package", "cufile-emulator"])?;
            }
        }
        let built = target_folder().join("release");
        let executables = options.bin_dir.clone().unwrap_or_else(|| built.join("examples"));
        let executables =
            fs::canonicalize(&executables).with_context(|| executables.display().to_string())?;
        let folder = Scratch::create(options.dir.clone().unwrap_or_else(env::temp_dir))?;
        let mut variables = Vec::new();
        if options.emulator {
            let folders = [executables.clone(), executables.join("../tests"), executables.join("..")];
            let library = folders.iter().map(|folder| folder.join(EMULATOR)).find(|file| file.exists());
            let library = library
                .with_context(|| format!("{EMULATOR} was not found beside {}", executables.display()))?;
            variables = ["CUFILE_LIBRARY", "CUDART_LIBRARY", "CUDA_LIBRARY", "NCCL_LIBRARY"]
                .map(|name| (name, library.clone()))
                .into();
            // cudarc asks the dynamic loader for libcuda.
            symlink(&library, folder.0.join("libcuda.so"))?;
            variables.push(("LD_LIBRARY_PATH", folder.0.clone()));
        }
        if let Some(library) = &options.library {
            let library = fs::canonicalize(library).with_context(|| library.display().to_string())?;
            variables.push(("CUFILE_LIBRARY", library));
        }
        // By default, libcufile logs into the working directory.
        variables.push(("CUFILE_LOGFILE_PATH", folder.0.join("cufile.log")));
        let gpus = if options.emulator { 2 } else { visible_gpus() };
        Ok(Self { executables, variables, folder, emulated: options.emulator, gpus })
    }

    /// Runs without faults, prints the result, and returns whether it succeeded.
    pub fn run(&self, sample: &Sample, call: &[Argument], files: &Path) -> Result<bool> {
        let words = self.words(call, files)?;
        let Run { status, stdout, stderr, took } =
            match limited::run(&mut self.command(sample.name, &words), LIMIT) {
                Ok(run) => run,
                Err(error) => {
                    println!("{:<44} {:<8} {error:#}", sample.name, "FAILED");
                    return Ok(false);
                }
            };
        let result = match status {
            None => "hangs",
            Some(status) if status.success() => "ok",
            Some(_) => "FAILED",
        };
        let shown = call.iter().zip(&words).map(|(argument, word)| match argument {
            Argument::Input(_) | Argument::Output | Argument::Large => "FILE",
            _ => word.as_str(),
        });
        let line = [sample.name].into_iter().chain(shown).collect::<Vec<_>>().join(" ");
        let last = |text: &str| text.lines().last().unwrap_or("").to_owned();
        let said = if result == "ok" { last(&stdout) } else { last(&stderr) };
        println!("{line:<44} {result:<8} {:>7.2}  {said}", took.as_secs_f64());
        if result != "ok" {
            print!("{stdout}{stderr}");
            println!("{}", status.map_or(format!("killed after {LIMIT:?}"), |status| status.to_string()));
        }
        Ok(result == "ok")
    }

    /// Runs a sample as its C program ran, prints the result, and returns whether it made the same calls.
    pub fn compare_calls(&self, sample: &Sample, files: &Path) -> Result<bool> {
        let Some(table) = Table::of(sample.name)? else { return Ok(true) };
        let words = recorded_words(&table, files)?;
        let trace = files.join("calls");
        let mut command = self.command(sample.name, &words);
        command.env("CUFILE_EMULATOR_TRACE", &trace);
        command.envs(table.commands.iter().map(|commands| ("CUFILE_EMULATOR", commands)));
        let run = limited::run(&mut command, LIMIT)?;
        let compared = match run.status {
            Some(status) if status.success() => table.compare(&trace),
            _ => Err(anyhow::anyhow!("fails: {}", run.stderr)),
        };
        let (result, said) = match &compared {
            Ok(()) => ("as in C", table.differs.map_or(String::new(), |reason| format!("except: {reason}"))),
            Err(error) => ("DIFFERS", error.to_string()),
        };
        println!("{:<44} {result:<8} {:>7.2}  {said}", sample.name, run.took.as_secs_f64());
        Ok(compared.is_ok())
    }

    /// Compiles the C program that a sample retells, from a folder with NVIDIA's sources, and runs it on the emulator. Prints the
    /// result, and returns whether it made the calls of the table. Returns `None` for a sample that has no table, and for a C
    /// program that does not compile, for example because it needs `nvcc`.
    pub fn compare_c(&self, sample: &Sample, sources: &Path, files: &Path) -> Result<Option<bool>> {
        let Some(table) = Table::of(sample.name)? else { return Ok(None) };
        let source = sources.join(&table.source);
        let (_, library) = self.variables.first().context("C programs run on the emulator alone")?;
        let folder = library.parent().context("a library without a folder")?;
        let program = files.join("c");
        let target = Target::host()?;
        let include =
            [CUFILE_HEADER.folder_of("cufile.h", target)?, CUDA_HEADER.folder_of("cuda.h", target)?];
        let mut compiler = target.c_compiler();
        compiler
            .args(["-w", "-std=c++17", "-o"])
            .args([&program, &source])
            .args(include.iter().chain([&crt_headers(target)?]).map(|dir| format!("-I{}", dir.display())))
            .arg(library)
            .arg(format!("-Wl,-rpath,{}", folder.display()))
            .args(["-lstdc++", "-lcrypto", "-lpthread", "-ldl", "-lm"]);
        let compiled = limited::run(&mut compiler, LIMIT)?;
        if !compiled.status.is_some_and(|status| status.success()) {
            let error = compiled.stderr.lines().find(|line| line.contains("error")).unwrap_or_default();
            println!("{:<44} {:<8} {:>7.2}  {error}", table.source, "-", compiled.took.as_secs_f64());
            return Ok(None);
        }
        let (words, trace) = (recorded_words(&table, files)?, files.join("calls-of-c"));
        let mut command = Command::new(&program);
        command.args(words).current_dir(&self.folder.0).env("CUFILE_EMULATOR_TRACE", &trace);
        let run = limited::run(&mut command, LIMIT_OF_C)?;
        let ended = run.status.map_or("killed".to_owned(), |status| status.to_string());
        let compared = table.compare_c(&trace).with_context(|| format!("{ended}: {}", run.stderr));
        let (result, said) = match &compared {
            Ok(()) => ("recorded", String::new()),
            Err(error) => ("DIFFERS", format!("{error:#}")),
        };
        println!("{:<44} {result:<8} {:>7.2}  {said}", table.source, run.took.as_secs_f64());
        Ok(Some(compared.is_ok()))
    }

    pub fn command(&self, name: &str, words: &[String]) -> Command {
        let mut command = Command::new(self.executables.join(name));
        command
            .args(words)
            .current_dir(&self.folder.0)
            .envs(self.variables.iter().map(|(name, path)| (name, path)));
        // Only the failure cases inject faults.
        command.env_remove("CUFILE_EMULATOR");
        command
    }

    /// Returns the words, and makes the input files in `files`, too.
    pub fn words(&self, call: &[Argument], files: &Path) -> Result<Vec<String>> {
        call.iter()
            .enumerate()
            .map(|(position, argument)| {
                let path = files.join(format!("file-{position}"));
                if let Some(len_bytes) = self.input(*argument) {
                    make_file(&path, len_bytes)?;
                }
                Ok(match argument {
                    Argument::Input(_) | Argument::Large | Argument::Output => {
                        path.to_str().context("a path that is not UTF-8")?.to_owned()
                    }
                    Argument::Gpu(index) => (*index).min(self.gpus.saturating_sub(1)).to_string(),
                    Argument::LargeSize => self.large().to_string(),
                    Argument::Word(word) => (*word).to_owned(),
                })
            })
            .collect()
    }

    pub fn input(&self, argument: Argument) -> Option<u64> {
        match argument {
            Argument::Input(len_bytes) => Some(len_bytes),
            Argument::Large => Some(self.large()),
            _ => None,
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    fn large(&self) -> u64 {
        if self.emulated { LARGE_EMULATED } else { LARGE }
    }
}

fn build(arguments: &[&str]) -> Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    packages::run(command.current_dir(workspace()).args(["build", "--quiet", "--release"]).args(arguments))
}

struct Scratch(PathBuf);

impl Scratch {
    fn create(parent: PathBuf) -> Result<Self> {
        let parent = fs::canonicalize(&parent).with_context(|| parent.display().to_string())?;
        let folder = parent.join(format!("cufile-samples-{}", process::id()));
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// Returns the arguments of the C program, and makes the input files.
fn recorded_words(table: &Table, files: &Path) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (position, argument) in table.arguments.iter().enumerate() {
        let path = files.join(format!("file-{position}"));
        if let Some(len_bytes) = argument.strip_prefix("FILE") {
            make_file(&path, len_bytes.parse().unwrap_or(0))?;
            words.push(path.to_str().context("a path that is not UTF-8")?.to_owned());
        } else {
            words.push(argument.clone());
        }
    }
    Ok(words)
}

/// Counts without calling CUDA.
fn visible_gpus() -> u32 {
    let chosen = env::var("CUDA_VISIBLE_DEVICES").ok();
    let chosen = chosen.map(|list| list.split(',').filter(|word| !word.trim().is_empty()).count());
    let numbered = |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten();
    let present = devices.filter(|entry| entry.file_name().to_str().is_some_and(numbered)).count();
    chosen.map_or(present, |chosen| chosen.min(present)) as u32
}

/// Repeats contents at a distance that no power of two divides, so that samples notice a shifted range.
fn make_file(path: &Path, len_bytes: u64) -> Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let block: Vec<u8> = (0..1_000_003)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    let mut left = len_bytes;
    while left > 0 {
        let piece = &block[..block.len().min(usize::try_from(left)?)];
        file.write_all(piece).with_context(|| path.display().to_string())?;
        left -= piece.len() as u64;
    }
    Ok(())
}
