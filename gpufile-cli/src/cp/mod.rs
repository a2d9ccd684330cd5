//! `gpufile cp`: copies a file through GPU or host memory.
//!
//! The copy is written under a temporary name, and renamed when it is complete. [`holes`] finds the parts of the source
//! that have data. [`pipe`] moves these.

mod holes;
mod pipe;

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gpufile::Settings;
use gpufile::cli_support::{kind_of_file, save_copy};
use gpufile::formats::SaveOptions;
use gpufile::page_cache;
use serde_json::json;

use super::failure::Failure;
use super::interrupt::Held;
use super::model::options;
use super::progress::Bar;
use super::table::print_json;
use super::table::say;
use super::target::{MemoryArgs, Place};
use super::units::{Bytes, Time, gbps, size};

/// Copies a file through host memory, or through the memory of a GPU.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile cp model.bin /fast/model.bin
  gpufile cp --gpu 0 --verify model.bin /fast/

DST gets the complete copy, or stays as it was. Holes stay holes. Permissions and POSIX
ACLs are kept, the owner and times are not. If SRC has an ACL and DST cannot have one,
only the owner may use DST. For folders, several sources, -p, -n and --reflink, take the system's
cp.")]
pub struct Args {
    /// The file to copy.
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The new file, or the folder to put it in.
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// Copies through the memory of this GPU instead of the host's.
    #[arg(short = 'd', long, value_name = "N")]
    gpu: Option<u32>,
    /// Reads the copy back from storage and compares it, before it appears as DST.
    #[arg(short = 'V', long)]
    verify: bool,
    /// Does not wait until the copy is on storage.
    #[arg(long)]
    no_sync: bool,
    /// Bytes per step [default: 64MiB, or what memory permits].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    buffer: Option<u64>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// A finished copy.
struct Copied {
    target: PathBuf,
    len_bytes: u64,
    data_bytes: u64,
    took: Duration,
    routes: Option<[String; 2]>,
}

/// Copies the file.
pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let gpu = MemoryArgs { gpu: arguments.gpu.into_iter().collect(), host: arguments.gpu.is_none() };
    let (places, _) = gpu.places()?;
    let copied = copy(arguments, &places[0])?;
    let speed = gbps(copied.data_bytes, copied.took.as_secs_f64());
    if arguments.json {
        print_json(&json!({
            "source": arguments.source.to_string_lossy(),
            "target": copied.target.to_string_lossy(),
            "bytes": copied.len_bytes,
            "data_bytes": copied.data_bytes,
            "seconds": copied.took.as_secs_f64(),
            "gbps": speed,
            "through": places[0].name(),
            "routes": copied.routes,
            "verified": arguments.verify,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("{:?}: {} in {}", copied.target, Bytes(copied.data_bytes), Time(copied.took));
    text += &format!(", {speed:.2} GB/s through {}", places[0].name());
    if let Some([read, write]) = &copied.routes {
        text += &format!(" (read via {read}, written via {write})");
    }
    if copied.data_bytes < copied.len_bytes {
        text += &format!("; {} of holes kept", Bytes(copied.len_bytes - copied.data_bytes));
    }
    if arguments.verify {
        text += "; verified";
    }
    say(&text)
}

fn copy(arguments: &Args, place: &Place) -> Result<Copied, Failure> {
    let path = &arguments.source;
    let status = regular(path)?;
    let target = target(path, &status, &arguments.target)?;
    let options = options()?;
    let source = options.clone().open(path)?;
    let data = holes::data(&source, status.len());
    let in_source =
        data.map_err(|error| Failure::Other(format!("cannot find the holes of {path:?}: {error}")))?;
    let mut data_bytes: u64 = in_source.iter().map(|range| range.end - range.start).sum();
    let buffer_bytes = arguments.buffer.unwrap_or_else(default_buffer);
    // Small files need no long buffers.
    let buffer_bytes = buffer_bytes.min(data_bytes.max(1)) as usize;
    let mut buffers = [place.alloc(buffer_bytes)?, place.alloc(buffer_bytes)?];
    let bar = Bar::of_bytes(if arguments.verify { 2 * data_bytes } else { data_bytes }, "copying");
    let start = Instant::now();
    let (mut unfinished, mut took, mut write_route) = (None, Duration::ZERO, None);
    let mut len_bytes = status.len();
    let save = SaveOptions::new().files(&options).sync(!arguments.no_sync);
    // The save creates a file before it calls the closure.
    let mut held = Some(Held::new());
    save_copy(&source, &status, &target, &save, |copy, temporary| {
        // A full file system makes the save create a second file.
        unfinished = Some(held.take().unwrap_or_else(Held::new).remember(temporary));
        let mut data = in_source.clone();
        copy.set_len(status.len())?;
        pipe::copy(&source, copy, &data, &mut buffers, &bar)?;
        len_bytes = pipe::copy_rest(&source, copy, status.len(), &bar)?;
        if len_bytes > status.len() {
            data.push(status.len()..len_bytes);
        }
        data_bytes = data.iter().map(|range| range.end - range.start).sum();
        write_route = Some(copy.route().kind());
        took = start.elapsed();
        if arguments.verify {
            // Bytes that are still in the page cache would prove nothing about the storage.
            page_cache::evict(copy, 0..u64::MAX).map_err(|error| pipe::failed(copy, "write back", error))?;
            pipe::compare(&source, copy, &data, &bar)?;
        }
        Ok(())
    })?;
    drop(unfinished);
    let on_gpu = matches!(place, Place::Gpu(_));
    let took = if arguments.verify { took } else { start.elapsed() };
    let routes = write_route
        .filter(|_| on_gpu)
        .map(|write| [source.route().kind(), write].map(|kind| kind.to_string()));
    Ok(Copied { target, len_bytes, data_bytes, took, routes })
}

/// Returns the bytes per step. Both buffers together have no more than an engine's bounce buffers may have, however many
/// workers it has: a sixteenth of the memory that the control groups leave.
fn default_buffer() -> u64 {
    const MOST: u64 = 64 << 20;
    let mut settings = Settings::default();
    settings.threads = 1024;
    (settings.bounce_memory_bytes() as u64 / 2).min(MOST)
}

/// Returns the state of a source, which must be a regular file.
fn regular(path: &Path) -> Result<Metadata, Failure> {
    let failed = |problem: &dyn std::fmt::Display| Failure::Other(format!("cannot copy {path:?}: {problem}"));
    let status = fs::metadata(path).map_err(|error| failed(&error))?;
    match status.is_file() {
        true => Ok(status),
        false if status.is_dir() => Err(failed(&"it is a folder; name a file")),
        false => Err(failed(&"it is not a regular file")),
    }
}

/// Returns the path of the copy.
fn target(source: &Path, status: &Metadata, target: &Path) -> Result<PathBuf, Failure> {
    let failed = |path: &Path, problem: &dyn std::fmt::Display| {
        Failure::Other(format!("cannot copy {source:?} to {path:?}: {problem}"))
    };
    let mut path = target.to_owned();
    if target.is_dir() {
        path.push(source.file_name().ok_or_else(|| failed(target, &"the source has no name"))?);
    } else if target.as_os_str().to_string_lossy().ends_with('/') {
        return Err(failed(target, &"there is no such folder"));
    }
    match fs::metadata(&path) {
        Ok(there) if (there.dev(), there.ino()) == (status.dev(), status.ino()) => {
            Err(failed(&path, &"they are the same file"))
        }
        Ok(there) if there.is_dir() => Err(failed(&path, &"there is a folder with that name")),
        // A rename would replace a device by a file.
        Ok(there) if !there.is_file() => {
            let kind = kind_of_file(there.file_type());
            Err(failed(&path, &format!("it is not a regular file but {kind}")))
        }
        // The file behind a link is replaced, not the link.
        Ok(_) => fs::canonicalize(&path).map_err(|error| failed(&path, &error)),
        Err(_) if path.read_link().is_ok() => Err(failed(&path, &"it is a symbolic link to a missing file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path),
        Err(error) => Err(failed(&path, &error)),
    }
}
