//! `gpufile verify`: everything that is wrong with a model.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gpufile::formats::gguf::Model;
use gpufile::formats::safetensors::{Verification, Verify};
use serde_json::json;

use super::failure::Failure;
use super::location::path_parser;
use super::model::{engine, is_gguf, options};
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
  gpufile verify llama-00001-of-00003.gguf

The exit status is 0 if the model would load completely, and 1 otherwise, with a list of everything
that is wrong. A warning names what would not be loaded, and does not change the exit status.")]
pub struct Args {
    /// A safetensors or GGUF file, an index of one model, or a folder with a model.
    #[arg(value_parser = path_parser())]
    model: PathBuf,
    /// Compares each file of a Hugging Face cache with the SHA-256 in its name.
    #[arg(long)]
    contents: bool,
    /// Compares each file with its SHA-256 in this list, which `sha256sum` wrote.
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    hash_list: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    if is_gguf(&arguments.model) {
        return run_gguf(arguments, &arguments.model);
    }
    let mut verify = Verify::new().files(&options(&engine()?)).contents(arguments.contents);
    if let Some(list) = &arguments.hash_list {
        verify = verify.hash_list(list)?;
    }
    report(arguments, &verify.run([&arguments.model]).into())
}

/// Verifies all headers, and that the files have all bytes of the tensors.
fn run_gguf(arguments: &Args, path: &Path) -> Result<ExitCode, Failure> {
    if arguments.contents || arguments.hash_list.is_some() {
        let text = format!("{path:?} is GGUF: --contents and --hash-list are for safetensors models only");
        return Err(Failure::Other(text));
    }
    let found = match Model::open_with(path, &options(&engine()?)) {
        Ok(model) => Found {
            files: model.files().map(|(file, _)| file.path().to_owned()).collect(),
            tensors: model.tensors().len(),
            len_bytes: model.len_bytes(),
            ..Found::default()
        },
        Err(error) => Found { problems: vec![error.to_string()], ..Found::default() },
    };
    report(arguments, &found)
}

fn report(arguments: &Args, found: &Found) -> Result<ExitCode, Failure> {
    if arguments.json {
        print_json(&to_json(found))?;
    } else {
        say(text(found).trim_end())?;
    }
    Ok(if found.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    tensors: usize,
    len_bytes: u64,
    hashed: usize,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Found {
    fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

impl From<Verification> for Found {
    fn from(found: Verification) -> Self {
        let problems = found.problems.iter().map(ToString::to_string).collect();
        let warnings = found.warnings.iter().map(ToString::to_string).collect();
        let Verification { files, tensors, len_bytes, hashed, .. } = found;
        Self { files, tensors, len_bytes, hashed, problems, warnings }
    }
}

fn text(found: &Found) -> String {
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

fn to_json(found: &Found) -> serde_json::Value {
    json!({
        "good": found.is_good(),
        "files": found.files.iter().map(|file| file.to_string_lossy()).collect::<Vec<_>>(),
        "tensors": found.tensors,
        "bytes": found.len_bytes,
        "hashed": found.hashed,
        "warnings": found.warnings,
        "problems": found.problems,
    })
}
