//! `gpufile verify`: everything that is wrong with a model.

use std::path::PathBuf;
use std::process::ExitCode;

use gpufile::formats::safetensors::{Verification, Verify};
use serde_json::json;

use super::failure::Failure;
use super::model::options;
use super::table::print_json;
use super::table::say;
use super::units::Bytes;

/// Verifies that a model is complete and consistent, without reading its tensors unless asked to.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile verify models/llama
  gpufile verify --contents ~/.cache/huggingface/hub/models--owner--name
  gpufile verify --hash-list SHA256SUMS models/llama

The exit status is 0 if the model would load completely, and 1 otherwise, with a list of everything
that is wrong. A warning names what would not be loaded, and does not change the exit status.")]
pub struct Args {
    /// A safetensors file, an index of one model, or a folder with a model.
    model: PathBuf,
    /// Compares each file of a Hugging Face cache with the SHA-256 in its name.
    #[arg(long)]
    contents: bool,
    /// Compares each file with its SHA-256 in this list, which `sha256sum` wrote.
    #[arg(long, value_name = "FILE")]
    hash_list: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Verifies the model.
pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let mut verify = Verify::new().files(&options()?).contents(arguments.contents);
    if let Some(list) = &arguments.hash_list {
        verify = verify.hash_list(list)?;
    }
    let found = verify.run([&arguments.model]);
    if arguments.json {
        print_json(&to_json(&found))?;
    } else {
        say(text(&found).trim_end())?;
    }
    Ok(if found.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(found: &Verification) -> String {
    let problems = found.problems.iter().map(|problem| format!("wrong: {problem}\n"));
    let warnings = found.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    let mut text: String = problems.chain(warnings).collect();
    if found.is_good() {
        let (files, tensors, bytes) = (found.files.len(), found.tensors, Bytes(found.len_bytes));
        text += &format!("complete: {files} files, {tensors} tensors, {bytes}");
        if found.hashed > 0 {
            text += &format!("; the contents of {} files are right", found.hashed);
        }
    }
    text
}

fn to_json(found: &Verification) -> serde_json::Value {
    let texts = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>();
    json!({
        "good": found.is_good(),
        "files": texts(&mut found.files.iter().map(|file| file.to_string_lossy().into_owned())),
        "tensors": found.tensors,
        "bytes": found.len_bytes,
        "hashed": found.hashed,
        "warnings": texts(&mut found.warnings.iter().map(ToString::to_string)),
        "problems": texts(&mut found.problems.iter().map(ToString::to_string)),
    })
}
