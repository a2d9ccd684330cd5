//! `gpufile cache`: the part of each file that the page cache holds.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gpufile::page_cache::{self, Residency};
use gpufile::trusted::open_unblocked;
use serde_json::{Value, json};

use super::failure::Failure;
use super::location::path_parser;
use super::stderr::{self, complain};
use super::table::{Table, print_json};
use super::units::Bytes;

/// Reports how much of each file is in the page cache, and drops it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile cache *.safetensors
  gpufile cache --drop model.bin && gpufile load model.bin

The exit status is 1 if a file cannot be used. The others are still reported.
The kernel may refuse to report on files that the user neither owns nor may write. For these,
--drop still works, and prints `?` (in JSON null).")]
pub struct Args {
    /// Regular files.
    #[arg(required = true, value_parser = path_parser())]
    files: Vec<PathBuf>,
    /// Drops the files from the page cache, after writing changed pages to storage.
    #[arg(long)]
    drop: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

struct Found {
    len_bytes: u64,
    /// `None` if the kernel keeps it from this user.
    before: Option<Residency>,
    after: Option<Option<Residency>>,
}

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let mut status = ExitCode::SUCCESS;
    let mut found = Vec::new();
    for path in &arguments.files {
        match look(path, arguments) {
            Ok(state) => found.push((path, state)),
            Err(error) => {
                stderr::fail(&format!("{path:?}: {error}"));
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

fn look(path: &Path, arguments: &Args) -> io::Result<Found> {
    let file = open_unblocked(path)?;
    let before = page_cache::residency(&file, 0..u64::MAX);
    if !arguments.drop {
        return Ok(Found { len_bytes: file.metadata()?.len(), before: Some(before?), after: None });
    }
    let before = if_told(before)?;
    let len_bytes = file.metadata()?.len();
    page_cache::evict(&file, 0..u64::MAX)?;
    let after = if_told(page_cache::residency(&file, 0..u64::MAX))?;
    if before.is_none() || after.is_none() {
        let reason = "the kernel tells only its owner and users who may write to it";
        complain(&format!("{path:?}: cannot find out how much of it is cached: {reason}"));
    }
    Ok(Found { len_bytes, before, after: Some(after) })
}

/// Returns `None` if the kernel keeps the answer from this user.
fn if_told(residency: io::Result<Residency>) -> io::Result<Option<Residency>> {
    match residency {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        residency => residency.map(Some),
    }
}

fn percent(residency: Option<&Residency>) -> String {
    residency.map_or_else(unknown, |residency| format!("{:.0} %", 100.0 * residency.fraction()))
}

fn page_bytes() -> u64 {
    // SAFETY: takes an integer.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

fn unknown() -> String {
    "?".to_owned()
}

fn table(found: &[(&PathBuf, Found)]) -> Table {
    let is_changed = found.iter().any(|(_, found)| found.after.is_some());
    let mut titles = vec!["file<", "size", "cached", "dirty"];
    titles.extend(is_changed.then_some("now"));
    let mut table = Table::new(&titles);
    for (path, found) in found {
        let dirty = found.before.and_then(|before| before.dirty);
        let dirty = dirty.map(|pages| Bytes(pages * page_bytes()).to_string());
        let mut cells = vec![
            path.display().to_string(),
            Bytes(found.len_bytes).to_string(),
            percent(found.before.as_ref()),
            dirty.unwrap_or_else(unknown),
        ];
        cells.extend(found.after.map(|after| percent(after.as_ref())));
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
        "page_bytes": page_bytes(),
        "before": found.before.as_ref().map(state),
        "after": found.after.flatten().as_ref().map(state),
    })
}
