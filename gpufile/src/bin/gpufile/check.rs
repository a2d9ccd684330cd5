//! `gpufile check`: what of GPUDirect Storage this machine has, and which way a file takes.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, process};

use cuda_rt_sys::{driver, runtime};
use cufile::cuda::Cuda;
use cufile::{Controls, Driver, Features, FileProperties, Library};
use gpufile::{Engine, File, Settings, page_cache};

use crate::Failure;

pub const USAGE: &str = "gpufile check [FILE|DIR]
    Says which libraries, GPUs and kernel modules are there, and which way FILE, or a file in DIR (the current
    folder), takes to a GPU. The file in DIR is made for the purpose and removed.

    The exit status is 1 if an environment variable is wrong, or there is no such FILE or DIR.";

/// Prints the report.
pub fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let target = match arguments {
        [] => PathBuf::from("."),
        [option] if option.to_string_lossy().starts_with('-') => {
            return Err(Failure::Usage(format!("{}: no such option", option.display())));
        }
        [path] => PathBuf::from(path),
        [_, more, ..] => return Err(Failure::Usage(format!("{}: one FILE or DIR", more.display()))),
    };
    let mut report = Report(io::stdout());
    report.title(concat!("gpufile ", env!("CARGO_PKG_VERSION")))?;
    libraries(&mut report)?;
    gpus(&mut report)?;
    kernel(&mut report)?;
    let settings_are_good = settings(&mut report)?;
    let file_is_there = file(&mut report, &target)?;
    Ok(if settings_are_good && file_is_there { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Titles, and under each of them what is found for which name.
struct Report(io::Stdout);

impl Report {
    fn title(&mut self, title: impl Display) -> io::Result<()> {
        writeln!(self.0, "{title}")
    }

    fn line(&mut self, name: &str, found: impl Display) -> io::Result<()> {
        // What has several lines stays in its column.
        writeln!(self.0, "  {name:<20}{}", found.to_string().replace('\n', &format!("\n{:22}", "")))
    }
}

fn libraries(report: &mut Report) -> io::Result<()> {
    report.title("\nlibraries")?;
    let libcuda = driver::Library::load().map(|library| {
        let mut version = 0;
        // SAFETY: `version` outlives the call, which needs no cuInit; it keeps its 0 if that fails.
        unsafe { (library.cuDriverGetVersion)(&mut version) };
        found(format!("for CUDA {}", cuda_version(version)), library.path())
    });
    report.line("libcuda", libcuda.unwrap_or_else(attempts))?;
    let libcudart = runtime::Library::load()
        .map(|library| found(format!("of CUDA {}", cuda_version(library.version())), library.path()));
    report.line("libcudart", libcudart.unwrap_or_else(attempts))?;
    let libcufile =
        Library::load().map(|library| found(format!("version {}", library.version()), library.path()));
    report.line("libcufile", libcufile.unwrap_or_else(attempts))
}

fn found(version: String, path: Option<&Path>) -> String {
    path.map_or_else(|| version.clone(), |path| format!("{version}, {}", whole(path).display()))
}

/// Why a library does not load, each file that was tried on a line of its own.
fn attempts(error: impl Display) -> String {
    error.to_string().replace("; ", "\n  ")
}

/// 13000 is 13.0, and 0 is what a library answers that does not know.
fn cuda_version(raw: i32) -> String {
    if raw == 0 { "?".to_owned() } else { format!("{}.{}", raw / 1000, raw % 1000 / 10) }
}

/// Where a library lies that the dynamic loader found by its bare name.
fn whole(path: &Path) -> PathBuf {
    // `libcuda.so.1` is mapped by what it links to, such as `libcuda.so.580.65`.
    let stem = |path: &Path| path.file_name()?.to_str()?.split_once(".so").map(|(stem, _)| stem.to_owned());
    let mapped = || {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let mut files = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
        files.find(|file| stem(file).is_some() && stem(file) == stem(path))
    };
    let is_bare = path.components().count() == 1;
    is_bare.then(mapped).flatten().unwrap_or_else(|| path.to_owned())
}

fn gpus(report: &mut Report) -> io::Result<()> {
    report.title("\nGPUs")?;
    let cuda = match Cuda::load() {
        Ok(cuda) => cuda,
        Err(cufile::Error::Load(error)) => {
            return report.line("none", format!("{} does not load", error.library()));
        }
        Err(error) => return report.line("none", error),
    };
    for ordinal in 0..cuda.device_count().unwrap_or(0) {
        let name = cuda.device(ordinal).and_then(|device| device.name());
        report.line(&ordinal.to_string(), name.unwrap_or_else(|error| error.to_string()))?;
    }
    match Driver::open().and_then(|driver| driver.properties()) {
        Ok(found) => {
            report.line("cuFile", "its driver opens")?;
            report.line("  compatibility", yes_or_no(found.controls.contains(Controls::COMPAT_MODE)))?;
            report.line("  nvidia-fs", yes_or_no(found.nvidia_fs.is_some()))?;
            report.line("  P2PDMA", yes_or_no(found.features.contains(Features::P2P)))
        }
        Err(error) => report.line("cuFile", attempts(error)),
    }
}

/// What the kernel has for the direct paths, as far as it can be seen without libcufile.
fn kernel(report: &mut Report) -> io::Result<()> {
    report.title("\nkernel")?;
    let text = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    report.line("Linux", text("/proc/sys/kernel/osrelease").as_deref().unwrap_or("?"))?;
    let nvidia_fs = match text("/proc/driver/nvidia-fs/version") {
        Some(version) => format!("loaded, {version}"),
        None if Path::new("/proc/driver/nvidia-fs").exists() => "loaded".to_owned(),
        None => "not loaded".to_owned(),
    };
    report.line("nvidia-fs", nvidia_fs)?;
    let p2p = match &*gpus_with_p2p_memory().unwrap_or_default() {
        [] => "no GPU offers its memory to other PCI devices (no p2pmem in sysfs)".to_owned(),
        some => format!("memory is offered by {}", some.join(", ")),
    };
    report.line("P2PDMA", p2p)
}

fn gpus_with_p2p_memory() -> io::Result<Vec<String>> {
    const NVIDIA: &str = "0x10de";
    let mut found = Vec::new();
    for device in fs::read_dir("/sys/bus/pci/devices")? {
        let (path, name) = device.map(|device| (device.path(), device.file_name()))?;
        let is_nvidia = || fs::read_to_string(path.join("vendor")).is_ok_and(|id| id.trim() == NVIDIA);
        if path.join("p2pmem").exists() && is_nvidia() {
            found.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

fn yes_or_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Returns whether the environment can be followed.
fn settings(report: &mut Report) -> io::Result<bool> {
    report.title("\nsettings, by default and by environment variables")?;
    let settings = match Settings::from_env() {
        Ok(settings) => settings,
        Err(error) => return report.line("wrong", error).map(|()| false),
    };
    let task = settings.task_bytes().map_or("by the transfer".to_owned(), |bytes| bytes.to_string());
    let (each, most) = (settings.bounce_buffer_bytes(), settings.bounce_memory_bytes());
    report.line("threads", settings.threads())?;
    report.line("task bytes", task)?;
    report.line("bounce buffers", format!("{each} bytes each, {most} bytes together"))?;
    report.line("cuFile from bytes", settings.gds_threshold_bytes())?;
    report.line("path policy", format!("{:?}", settings.path_policy()))?;
    report.line("O_DIRECT reads", format!("{:?}", settings.direct_read()))?;
    report.line("O_DIRECT writes", format!("{:?}", settings.direct_write()))?;
    report.line("over-reads", yes_or_no(settings.overread()))?;
    report.line("threads for each disk", yes_or_no(settings.pool_per_block_device()))?;
    Ok(true)
}

/// Returns whether there is such a file or folder.
fn file(report: &mut Report, target: &Path) -> io::Result<bool> {
    report.title(format!("\n{}", target.display()))?;
    // Where the environment cannot be followed, the route is still worth knowing.
    let engine = Engine::builder().settings(Settings::from_env().unwrap_or_default()).build();
    let options = File::options().read(true).engine(&engine);
    if !target.is_dir() {
        return match options.open(target) {
            Ok(file) => describe(report, &file, false).map(|()| true),
            Err(error) => report.line("error", error).map(|()| false),
        };
    }
    let path = target.join(format!(".gpufile-check-{}", process::id()));
    let made = options.write(true).create_new(true).open(&path);
    let outcome = match made.and_then(|file| file.write_all_at(&[7; 1 << 20][..], 0).map(|()| file)) {
        Ok(file) => describe(report, &file, true).map(|()| true),
        Err(error) => report.line("error", error).map(|()| false),
    };
    // There is none if it could not be made.
    let _ = fs::remove_file(path);
    outcome
}

fn describe(report: &mut Report, file: &File, may_drop: bool) -> io::Result<()> {
    match FileProperties::of(file) {
        Ok(found) => {
            let (major, minor) = found.device;
            let block_device = match (found.udev_path(), found.udev_record) {
                (Some(path), Some(false)) => {
                    format!("{major}:{minor}, without the udev record that cuFile needs ({})", path.display())
                }
                (Some(_), _) => format!("{major}:{minor}, with a udev record"),
                (None, _) => "none".to_owned(),
            };
            let direct_io = found.direct_io.map_or("none, or the kernel does not say".to_owned(), |needs| {
                format!("memory at {}, offset and length at {} bytes", needs.memory_bytes, needs.offset_bytes)
            });
            report.line("file system", found.file_system)?;
            report.line("block device", block_device)?;
            report.line("O_DIRECT alignment", direct_io)?;
        }
        Err(error) => report.line("file system", error)?,
    }
    report.line("page cache", page_cache_tools(file, may_drop).unwrap_or_else(|error| error.to_string()))?;
    report.line("route", file.route())
}

/// By what the kernel tells what it has cached; and whether it lets go of it, where that may be tried.
fn page_cache_tools(file: &File, may_drop: bool) -> io::Result<String> {
    let percent = |found: page_cache::Residency| format!("{:.0} %", 100.0 * found.fraction());
    let before = page_cache::residency(file, 0..u64::MAX)?;
    let by = if before.dirty.is_some() { "cachestat" } else { "mincore" };
    if !may_drop {
        return Ok(format!("{} cached, by {by}", percent(before)));
    }
    page_cache::drop(file, 0..u64::MAX)?;
    let after = page_cache::residency(file, 0..u64::MAX)?;
    Ok(format!("{} cached, by {by}; {} after dropping it", percent(before), percent(after)))
}
