//! `gpufile cache`: the part of each file that the page cache holds.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::progress::Bar;
use super::table::{Table, print_json};
use super::units::Bytes;
use super::{Failure, complain};
use crate::page_cache::{self, Residency};

/// Reports how much of each file is in the page cache, and drops or fills it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile cache *.safetensors
  gpufile cache --drop model.bin && gpufile load model.bin

The exit status is 1 if a file cannot be used. The others are reported all the same.")]
pub struct Args {
    /// Regular files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Drops the files from the page cache, after writing back what is newer than the storage.
    #[arg(long, conflicts_with = "warm")]
    drop: bool,
    /// Reads the files into the page cache.
    #[arg(long)]
    warm: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// The state of a file, before and after the change that was asked for.
struct Found {
    len_bytes: u64,
    before: Residency,
    after: Option<Residency>,
}

/// Reports, and drops or fills.
pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let mut status = ExitCode::SUCCESS;
    let mut found = Vec::new();
    for path in &arguments.files {
        match look(path, arguments) {
            Ok(state) => found.push((path, state)),
            Err(error) => {
                complain(&format!("gpufile: {path:?}: {error}"));
                status = ExitCode::FAILURE;
            }
        }
    }
    if arguments.json {
        print_json(&found.iter().map(|(path, found)| to_json(path, found)).collect())?;
    } else if !found.is_empty() {
        table(&found).print()?;
    }
    Ok(status)
}

fn look(path: &Path, arguments: &Args) -> std::io::Result<Found> {
    let file = File::open(path)?;
    let before = page_cache::residency(&file, 0..u64::MAX)?;
    let len_bytes = file.metadata()?.len();
    if arguments.drop {
        page_cache::drop(&file, 0..u64::MAX)?;
    } else if arguments.warm {
        warm(&file, len_bytes)?;
    } else {
        return Ok(Found { len_bytes, before, after: None });
    }
    let after = page_cache::residency(&file, 0..u64::MAX)?;
    Ok(Found { len_bytes, before, after: Some(after) })
}

/// Reads all of a file. The kernel's hint for this would return before the bytes are there.
fn warm(mut file: &File, len_bytes: u64) -> std::io::Result<()> {
    let bar = Bar::of_bytes(len_bytes, "reading");
    let mut buffer = vec![0; 4 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => bar.add(count as u64),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn percent(residency: &Residency) -> String {
    format!("{:.0} %", 100.0 * residency.fraction())
}

fn table(found: &[(&PathBuf, Found)]) -> Table {
    let is_changed = found.iter().any(|(_, found)| found.after.is_some());
    let mut titles = vec!["file<", "size", "cached", "dirty"];
    titles.extend(is_changed.then_some("now"));
    let mut table = Table::new(&titles);
    for (path, found) in found {
        let dirty = found.before.dirty.map(|pages| Bytes(pages * page_cache::page_bytes()).to_string());
        let mut cells = vec![
            path.display().to_string(),
            Bytes(found.len_bytes).to_string(),
            percent(&found.before),
            dirty.unwrap_or_else(|| "?".to_owned()),
        ];
        cells.extend(found.after.as_ref().map(percent));
        table.row(cells);
    }
    table
}

fn to_json(path: &Path, found: &Found) -> Value {
    let state = |residency: &Residency| {
        json!({
            "pages": residency.pages,
            "cached_pages": residency.cached,
            "dirty_pages": residency.dirty,
            "fraction": residency.fraction(),
        })
    };
    json!({
        "file": path.to_string_lossy(),
        "bytes": found.len_bytes,
        "page_bytes": page_cache::page_bytes(),
        "before": state(&found.before),
        "after": found.after.as_ref().map(state),
    })
}
