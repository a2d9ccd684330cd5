//! `gpufile cp`: copies a file through GPU or host memory.
//!
//! The copy is written under a temporary name, and renamed when it is complete. [`source`] opens what is copied, [`holes`]
//! finds its parts with data, and [`pipe`] moves these. [`upload`] writes an object instead.

mod holes;
mod pipe;
mod source;
mod upload;

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueHint;
use gpufile::Settings;
use gpufile::formats::{SaveOptions, save_copy};
use gpufile::{page_cache, trusted};
use serde_json::json;

use super::failure::Failure;
use super::interrupt::Creating;
use super::location::Location;
use super::model::{engine, options};
use super::progress::Bar;
use super::remote::RemoteArgs;
use super::table::print_json;
use super::table::say;
use super::target::{MemoryArgs, Place};
use super::units::{Bytes, Time, gbps, size};
use source::Source;

/// Copies from and to object stores, or through the memory of a GPU, and can verify the copy.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile cp model.bin /fast/model.bin
  gpufile cp --gpu 0 --verify model.bin /fast/
  gpufile cp https://example.org/model.bin /fast/
  gpufile cp model.bin s3://bucket/model.bin

DST gets the complete copy, or stays as it was. Holes stay holes. Permissions and POSIX
ACLs are kept, the owner and times are not. An existing DST is never opened to more users.
If SRC has an ACL and DST cannot have one, only the owner may use DST. For folders, several
sources, -p, -n and --reflink, take the system's cp.")]
pub struct Args {
    /// The file to copy, or the URL of an object (http, https, s3, az, abfs, gs).
    #[arg(value_name = "SRC", value_hint = ValueHint::AnyPath)]
    source: Location,
    /// The new file, the folder to put it in, or the URL of an object (s3, az, abfs, gs).
    #[arg(value_name = "DST", value_hint = ValueHint::AnyPath)]
    target: Location,
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
    #[command(flatten)]
    remote: RemoteArgs,
}

struct Copied {
    source: PathBuf,
    target: PathBuf,
    len_bytes: u64,
    data_bytes: u64,
    took: Duration,
    routes: Option<[String; 2]>,
}

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let gpu = MemoryArgs { gpu: arguments.gpu.into_iter().collect(), host: arguments.gpu.is_none() };
    let (places, _) = gpu.places()?;
    let copied = match &arguments.target {
        Location::Path(target) => copy(arguments, target, &places[0])?,
        Location::Url(url) => upload::copy(arguments, url, &places[0])?,
    };
    let speed = gbps(copied.data_bytes, copied.took.as_secs_f64());
    if arguments.json {
        print_json(&json!({
            "source": copied.source.to_string_lossy(),
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

fn copy(arguments: &Args, target: &Path, place: &Place) -> Result<Copied, Failure> {
    let engine = engine()?;
    let source = Source::open(&arguments.source, &arguments.remote, &engine)?;
    let target = self::target(&source, target)?;
    let mut data_bytes = source.data_bytes();
    let buffer_bytes = arguments.buffer.unwrap_or_else(default_buffer);
    // Small files need no long buffers.
    let buffer_bytes = buffer_bytes.min(data_bytes.max(1)) as usize;
    let mut buffers = [place.alloc(buffer_bytes)?, place.alloc(buffer_bytes)?];
    let bar = Bar::of_bytes(if arguments.verify { 2 * data_bytes } else { data_bytes }, "copying");
    let start = Instant::now();
    let (mut unfinished, mut took, mut write_route) = (None, Duration::ZERO, None);
    let mut len_bytes = source.len_bytes;
    let save = SaveOptions::new().files(&options(&engine)).sync(!arguments.no_sync);
    // The save creates a file before it calls the closure.
    let mut creating = Some(Creating::new());
    let Source { file, status, .. } = &source;
    save_copy(status.as_ref().map(|status| (file, status)), &target, &save, |copy, temporary| {
        // A full file system makes the save create a second file.
        unfinished = Some(creating.take().unwrap_or_else(Creating::new).remember(temporary));
        let mut data = source.data.clone();
        let is_sized = pipe::set_len(copy, source.len_bytes)?;
        pipe::copy(file, copy, &data, &mut buffers, &bar)?;
        if !is_sized && copy.len_bytes()? < source.len_bytes {
            // The hole at the end has the length that this byte gives it.
            copy.write_all_at(&[0][..], source.len_bytes - 1)?;
        }
        len_bytes = pipe::copy_rest(file, copy, source.len_bytes, &bar)?;
        if len_bytes > source.len_bytes {
            data.push(source.len_bytes..len_bytes);
        }
        data_bytes = data.iter().map(|range| range.end - range.start).sum();
        write_route = Some(copy.route().kind());
        took = start.elapsed();
        if arguments.verify {
            // Bytes that are still in the page cache would prove nothing about the storage.
            page_cache::evict(copy, 0..u64::MAX).map_err(|error| copy.failed("write back", error))?;
            pipe::compare(file, copy, &data, &bar)?;
        }
        Ok(())
    })?;
    drop(unfinished);
    let on_gpu = matches!(place, Place::Gpu(_));
    let took = if arguments.verify { took } else { start.elapsed() };
    let routes =
        write_route.filter(|_| on_gpu).map(|write| [file.route().kind(), write].map(|kind| kind.to_string()));
    Ok(Copied { source: file.path().to_owned(), target, len_bytes, data_bytes, took, routes })
}

/// Returns the bytes per step. Both buffers together have no more than an engine's bounce buffers may have, however many
/// workers it has: a sixteenth of the memory that the control groups leave.
fn default_buffer() -> u64 {
    const MOST: u64 = 64 << 20;
    let mut settings = Settings::default();
    settings.threads = 1024;
    (settings.bounce_memory_bytes() as u64 / 2).min(MOST)
}

fn target(source: &Source, target: &Path) -> Result<PathBuf, Failure> {
    let failed = |path: &Path, problem: &dyn std::fmt::Display| {
        Failure::Other(format!("cannot copy {:?} to {path:?}: {problem}", source.file.path()))
    };
    let is_source = |there: &Metadata| {
        source
            .status
            .as_ref()
            .is_some_and(|status| (there.dev(), there.ino()) == (status.dev(), status.ino()))
    };
    let mut path = target.to_owned();
    if target.is_dir() {
        if source.name.as_os_str().is_empty() {
            return Err(failed(target, &"the source has no name"));
        }
        path.push(&source.name);
    } else if target.as_os_str().to_string_lossy().ends_with('/') {
        return Err(failed(target, &"there is no such folder"));
    }
    match fs::metadata(&path) {
        Ok(there) if is_source(&there) => Err(failed(&path, &"they are the same file")),
        Ok(there) if there.is_dir() => Err(failed(&path, &"there is a folder with that name")),
        // A rename would replace a device by a file.
        Ok(there) if !there.is_file() => {
            let kind = trusted::kind(there.file_type());
            Err(failed(&path, &format!("it is not a regular file but {kind}")))
        }
        // The file behind a link is replaced, not the link.
        Ok(_) => fs::canonicalize(&path).map_err(|error| failed(&path, &error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.is_symlink() {
            true => Err(failed(&path, &"it is a symbolic link to a missing file")),
            false => Ok(path),
        },
        Err(error) => Err(failed(&path, &error)),
    }
}
