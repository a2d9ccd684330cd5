//! `--try`: a small write and read that prove the route, by what libcufile and nvidia-fs count.

use std::path::Path;
use std::time::{Duration, Instant};

use cufile::Driver;
use cufile::cuda::Device;
use gpufile::{Engine, File, RouteKind};

use super::machine::Opened;
use super::root::Root;
use super::target::{self, Target, named};
use crate::nvidia_fs::Stats;

/// The length of the write and of the read. It is longer than the shortest transfer that uses cuFile.
pub const BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// `None` for host memory.
    pub gpu: Option<u32>,
    pub route: RouteKind,
    /// `None` if nothing can be written.
    pub write: Option<Duration>,
    pub read: Duration,
    /// Writes and reads; `None` if libcufile counts none.
    pub by_cufile: Option<(u64, u64)>,
    /// Writes and reads of all processes; `None` if nvidia-fs counts none.
    pub by_nvidia_fs: Option<(u64, u64)>,
}

impl Attempt {
    /// Returns whether the counters agree with the route; `None` if nothing counts on it.
    pub fn proven(&self) -> Option<bool> {
        let moved = |(writes, reads)| reads > 0 && (writes > 0 || self.write.is_none());
        match self.route {
            RouteKind::Gds => self.by_nvidia_fs.map(moved),
            RouteKind::P2pDma | RouteKind::CufileCompat => self.by_cufile.map(moved),
            // gpufile moves these bytes itself.
            _ => Some(true),
        }
    }

    pub fn disproof(&self) -> Option<String> {
        (self.proven() == Some(false)).then(|| format!("{}, but {}", self.route, self.proof()))
    }

    pub fn proof(&self) -> String {
        let count = |name: &str, counted: Option<(u64, u64)>| {
            counted.map(|(writes, reads)| format!("{name} counted {writes} writes and {reads} reads"))
        };
        let counted = [count("libcufile", self.by_cufile), count("nvidia-fs", self.by_nvidia_fs)];
        let counted: Vec<String> = counted.into_iter().flatten().collect();
        match self.proven() {
            None => {
                let hint = "nothing counts transfers on this route (nvidia-fs would, with its parameter rw_stats_enabled=1)";
                [counted.as_slice(), &[hint.to_owned()]].concat().join(", ")
            }
            Some(_) if counted.is_empty() => "gpufile moved the bytes itself".to_owned(),
            Some(_) => counted.join(", "),
        }
    }
}

/// Writes a file of this command beside or in the path, reads it back and compares it. Nothing stays. Where nothing can
/// be written, only reads an existing file.
pub fn attempt(
    root: &Root,
    target: &Target,
    engine: &Engine,
    opened: &Opened,
    gpu: u32,
) -> Result<Attempt, String> {
    let (file, is_own) = match own(&target.path, engine) {
        Ok(file) => (file, true),
        Err(error) => {
            let sample = target.sample.as_ref().filter(|_| target.read_only.is_some()).ok_or(error)?;
            let sample = File::options().read(true).engine(engine).open(sample);
            (sample.map_err(|error| error.to_string())?.into(), false)
        }
    };
    let device = opened.cuda.as_ref().ok().map(|cuda| cuda.device(gpu)).transpose();
    let device = device.map_err(|error| error.to_string())?;
    let before = Counters::of(root, opened.driver.as_ref());
    let (write, read) =
        if is_own { round_trip(&file, device.as_ref())? } else { (None, only_read(&file, device.as_ref())?) };
    let after = Counters::of(root, opened.driver.as_ref());
    Ok(Attempt {
        gpu: device.map(|device| device.ordinal()),
        route: file.route().kind(),
        write,
        read,
        by_cufile: difference(before.cufile, after.cufile),
        by_nvidia_fs: difference(before.nvidia_fs, after.nvidia_fs),
    })
}

/// Makes a file without a name, which does not stay even if the process is killed.
fn own(path: &Path, engine: &Engine) -> Result<target::Opened, String> {
    let real = path.canonicalize().map_err(|error| format!("cannot open {path:?}: {error}"))?;
    let folder = if real.is_dir() { real.as_path() } else { real.parent().unwrap_or(Path::new("/")) };
    named(folder, engine)
}

fn round_trip(file: &File, device: Option<&Device>) -> Result<(Option<Duration>, Duration), String> {
    let bytes: Vec<u8> =
        (0..BYTES as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    let (back, write, read) = match device {
        Some(device) => on_gpu(file, device, &bytes),
        None => on_host(file, &bytes),
    }
    .map_err(|error| error.to_string())?;
    if back == bytes {
        Ok((Some(write), read))
    } else {
        Err("the bytes that came back differ from those written".to_owned())
    }
}

fn only_read(file: &File, device: Option<&Device>) -> Result<Duration, String> {
    let len_bytes = BYTES.min(file.len_bytes().map_err(|error| error.to_string())? as usize);
    let mut host = vec![0; len_bytes];
    let Some(device) = device else {
        let start = Instant::now();
        return file
            .read_exact_at(&mut host[..], 0)
            .map(|()| start.elapsed())
            .map_err(|error| error.to_string());
    };
    let mut memory = device.alloc(len_bytes).map_err(|error| error.to_string())?;
    let start = Instant::now();
    file.read_exact_at(&mut memory, 0).map(|()| start.elapsed()).map_err(|error| error.to_string())
}

type Outcome = Result<(Vec<u8>, Duration, Duration), Box<dyn std::error::Error>>;

fn on_gpu(file: &File, device: &Device, bytes: &[u8]) -> Outcome {
    let mut memory = device.alloc(bytes.len())?;
    memory.copy_from_host(0, bytes)?;
    let start = Instant::now();
    file.write_all_at(&memory, 0)?;
    let write = start.elapsed();
    memory.fill(0)?;
    let start = Instant::now();
    file.read_exact_at(&mut memory, 0)?;
    let read = start.elapsed();
    Ok((memory.to_vec()?, write, read))
}

fn on_host(file: &File, bytes: &[u8]) -> Outcome {
    let start = Instant::now();
    file.write_all_at(bytes, 0)?;
    let write = start.elapsed();
    let mut back = vec![0; bytes.len()];
    let start = Instant::now();
    file.read_exact_at(&mut back[..], 0)?;
    Ok((back, write, start.elapsed()))
}

struct Counters {
    cufile: Option<(u64, u64)>,
    nvidia_fs: Option<(u64, u64)>,
}

impl Counters {
    fn of(root: &Root, driver: Option<&Driver>) -> Self {
        let statistics = driver.and_then(|driver| driver.statistics().basic().ok());
        let module = root.text("/proc/driver/nvidia-fs/stats").map(|text| Stats::parse(&text));
        Self {
            cufile: statistics.map(|stats| (stats.write.operations.ok, stats.read.operations.ok)),
            nvidia_fs: module
                .filter(|stats| stats.counts_transfers)
                .map(|stats| (stats.write.calls, stats.read.calls)),
        }
    }
}

fn difference(before: Option<(u64, u64)>, after: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let ((writes, reads), (more_writes, more_reads)) = (before?, after?);
    Some((more_writes.saturating_sub(writes), more_reads.saturating_sub(reads)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_prove_or_disprove_the_route() {
        let of = |route, by_cufile, by_nvidia_fs| Attempt {
            gpu: Some(0),
            route,
            write: Some(Duration::ZERO),
            read: Duration::ZERO,
            by_cufile,
            by_nvidia_fs,
        };
        for (route, by_cufile, by_nvidia_fs, expected) in [
            (RouteKind::Gds, Some((1, 1)), Some((1, 1)), Some(true)),
            (RouteKind::Gds, Some((1, 1)), Some((1, 0)), Some(false)),
            (RouteKind::Gds, Some((1, 1)), None, None),
            (RouteKind::P2pDma, Some((2, 1)), None, Some(true)),
            (RouteKind::P2pDma, Some((0, 0)), None, Some(false)),
            (RouteKind::P2pDma, None, None, None),
            (RouteKind::Posix, Some((0, 0)), None, Some(true)),
            // Another process moves bytes at the same time.
            (RouteKind::Posix, None, Some((1, 1)), Some(true)),
        ] {
            let attempt = of(route, by_cufile, by_nvidia_fs);
            assert_eq!(attempt.proven(), expected, "{route}: {}", attempt.proof());
            assert_eq!(attempt.proof().contains("rw_stats_enabled"), expected.is_none());
        }
        let only_read = Attempt { write: None, ..of(RouteKind::P2pDma, Some((0, 1)), None) };
        assert_eq!(only_read.proven(), Some(true));
        assert_eq!(difference(Some((3, 5)), Some((4, 5))), Some((1, 0)));
        assert_eq!(
            (difference(None, Some((1, 1))), difference(Some((9, 9)), Some((1, 1)))),
            (None, Some((0, 0)))
        );
    }
}
