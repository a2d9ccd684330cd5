//! `gpufile check`: the parts of GPUDirect Storage that this machine has, and the route of a file.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, process};

use crate::{Engine, File, RouteKind, Settings, page_cache};
use cuda_rt_sys::{driver, runtime};
use cufile::cuda::Cuda;
use cufile::{Controls, Driver, Features, FileProperties, Library};

use crate::cli::Failure;

/// Reports the libraries, GPUs and kernel modules of this machine, and the route of a file.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  gpufile check /data

The exit status is
  0  if the bytes go past the host's memory: by GPUDirect Storage or P2PDMA
  1  if an environment variable is wrong, or PATH cannot be used
  2  if the command line is wrong
  3  if the bytes go through the host's memory
  4  if the bytes cannot go to a GPU at all, because there is no CUDA or no GPU")]
pub struct Args {
    /// A file or a folder, in which the command makes a file and removes it.
    #[arg(default_value = ".")]
    path: PathBuf,
}

/// Prints the report.
pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let mut report = Report { out: io::stdout(), is_read: true };
    report.title(concat!("gpufile ", env!("CARGO_PKG_VERSION")))?;
    libraries(&mut report)?;
    gpus(&mut report)?;
    kernel(&mut report)?;
    let settings_are_good = settings(&mut report)?;
    let route = file(&mut report, &arguments.path)?;
    Ok(match route {
        Some(route) if settings_are_good => ExitCode::from(status(route)),
        _ => ExitCode::FAILURE,
    })
}

/// Returns the exit status that stands for a route.
fn status(route: RouteKind) -> u8 {
    match route {
        RouteKind::Gds | RouteKind::P2pDma => 0,
        RouteKind::Unavailable => 4,
        _ => 3,
    }
}

/// The text on the standard output: titles, and under each title lines of a name and a finding.
struct Report {
    out: io::Stdout,
    /// False after the reader has gone. The exit status still has to be right.
    is_read: bool,
}

impl Report {
    fn title(&mut self, title: impl Display) -> io::Result<()> {
        self.print(format_args!("{title}\n"))
    }

    fn line(&mut self, name: &str, found: impl Display) -> io::Result<()> {
        // A finding of several lines stays in its column.
        let found = found.to_string().replace('\n', &format!("\n{:22}", ""));
        self.print(format_args!("  {name:<20}{found}\n"))
    }

    fn print(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        if !self.is_read {
            return Ok(());
        }
        match self.out.write_fmt(text) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_read = false;
                Ok(())
            }
            outcome => outcome,
        }
    }
}

fn libraries(report: &mut Report) -> io::Result<()> {
    report.title("\nlibraries")?;
    let libcuda = driver::Library::load().map(|library| {
        let mut version = 0;
        // SAFETY: `version` outlives the call, which needs no cuInit. It keeps its 0 if the call fails.
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
    path.map_or_else(|| version.clone(), |path| format!("{version}, {:?}", whole(path)))
}

/// Returns the reason why a library does not load, with each file that was tried on a line of its own.
fn attempts(error: impl Display) -> String {
    error.to_string().replace("; ", "\n  ")
}

/// Returns the version that a number stands for: 13.0 for 13000. A library without an answer returns 0.
fn cuda_version(raw: i32) -> String {
    if raw == 0 { "?".to_owned() } else { format!("{}.{}", raw / 1000, raw % 1000 / 10) }
}

/// Returns the full path of a library that the dynamic loader found by its bare name.
fn whole(path: &Path) -> PathBuf {
    // The kernel lists the target of the link `libcuda.so.1`, such as `libcuda.so.580.65`.
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
            return report.line("none", format!("{} does not load (see above)", error.library()));
        }
        Err(error) => return report.line("none", error),
    };
    for ordinal in 0..cuda.device_count().unwrap_or(0) {
        let device = match cuda.device(ordinal) {
            Ok(device) => device,
            Err(error) => {
                report.line(&ordinal.to_string(), error)?;
                continue;
            }
        };
        report.line(&ordinal.to_string(), device.name().unwrap_or_else(|error| error.to_string()))?;
        let scattered = match Engine::builder().cuda(cuda.clone()).build().load_kernels(&device) {
            Ok(()) => "by a kernel".to_owned(),
            Err(reason) => format!("copied one by one: {reason}"),
        };
        report.line("  scattered ranges", scattered)?;
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

/// Reports the kernel's parts for the direct routes, as far as they can be seen without libcufile.
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
        some => format!("these GPUs offer their memory: {}", some.join(", ")),
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
    let chunk = settings.chunk_bytes().map_or("depend on the transfer".to_owned(), |bytes| bytes.to_string());
    let (each, most) = (settings.bounce_buffer_bytes(), settings.bounce_memory_bytes());
    report.line("threads", settings.threads())?;
    report.line("chunk bytes", chunk)?;
    report.line("bounce buffers", format!("{each} bytes each, {most} bytes together"))?;
    report.line("cuFile from bytes", settings.gds_threshold_bytes())?;
    report.line("policy", format!("{:?}", settings.policy()))?;
    report.line("O_DIRECT reads", format!("{:?}", settings.direct_read()))?;
    report.line("O_DIRECT writes", format!("{:?}", settings.direct_write()))?;
    report.line("over-reads", yes_or_no(settings.overread()))?;
    report.line("pool for each disk", yes_or_no(settings.pool_per_block_device()))?;
    Ok(true)
}

/// Returns the route of the file, or of one in the folder. Returns `None` if it cannot be opened or made.
fn file(report: &mut Report, target: &Path) -> io::Result<Option<RouteKind>> {
    report.title(format!("\n{target:?}"))?;
    // The route is worth knowing even where the environment is wrong.
    let engine = Engine::builder().settings(Settings::from_env().unwrap_or_default()).build();
    let options = File::options().read(true).engine(&engine);
    if !target.is_dir() {
        return match options.open(target) {
            Ok(file) => describe(report, &file, false).map(Some),
            Err(error) => report.line("error", error).map(|()| None),
        };
    }
    let path = target.join(format!(".gpufile-check-{}", process::id()));
    let file = match options.write(true).create_new(true).open(&path) {
        Ok(file) => file,
        // A file of that name belongs to somebody else, and stays.
        Err(error) => return report.line("error", error).map(|()| None),
    };
    let outcome = match file.write_all_at(&[7; 1 << 20][..], 0) {
        Ok(()) => describe(report, &file, true).map(Some),
        Err(error) => report.line("error", error).map(|()| None),
    };
    if let Err(error) = fs::remove_file(&path) {
        report.line("error", format!("cannot remove {path:?}: {error}"))?;
    }
    outcome
}

fn describe(report: &mut Report, file: &File, may_drop: bool) -> io::Result<RouteKind> {
    match FileProperties::of(file) {
        Ok(found) => {
            let (major, minor) = found.device;
            let block_device = match (found.udev_path(), found.udev_record) {
                (Some(path), Some(false)) => {
                    format!("{major}:{minor}, without the udev record that cuFile needs ({path:?})")
                }
                (Some(_), _) => format!("{major}:{minor}, with a udev record"),
                (None, _) => "none".to_owned(),
            };
            let direct_io = found.direct_io.map_or("none, or unknown to the kernel".to_owned(), |needs| {
                format!("memory at {}, offset and length at {} bytes", needs.memory_bytes, needs.offset_bytes)
            });
            report.line("file system", found.file_system)?;
            report.line("block device", block_device)?;
            report.line("O_DIRECT alignment", direct_io)?;
        }
        Err(error) => report.line("file system", error)?,
    }
    report.line("page cache", page_cache_tools(file, may_drop).unwrap_or_else(|error| error.to_string()))?;
    report.line("route", file.route())?;
    Ok(file.route().kind())
}

/// Returns how much of the file the kernel caches, and the call that tells it. If `may_drop`, also tries to drop the pages.
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

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn exit_status_tells_direct_routes_from_fallbacks() {
        for (route, expected) in [
            (RouteKind::Gds, 0),
            (RouteKind::P2pDma, 0),
            (RouteKind::CufileCompat, 3),
            (RouteKind::Posix, 3),
            (RouteKind::Unavailable, 4),
        ] {
            assert_eq!(status(route), expected, "{route}");
            let help = Args::augment_args(clap::Command::new("check")).render_help().to_string();
            assert!(help.contains(&format!("\n  {expected}  ")), "{route}");
        }
    }
}
