//! The executables and libraries that cargo builds, and their paths.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::workspace::workspace;

pub struct Artifact {
    /// The target: `handle` for `tests/handle.rs`.
    pub name: String,
    /// `test`, `example`, `bin`, `cdylib`, or `lib` for the unit tests of a library.
    pub kind: String,
    pub path: PathBuf,
}

pub fn build(arguments: &[&str]) -> Result<Vec<Artifact>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(workspace())
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo {}: {}", arguments.join(" "), output.status);
    let mut artifacts = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        let target = &message["target"];
        let kinds = target["kind"].as_array().map_or(&[][..], Vec::as_slice);
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let made = message["filenames"].as_array().map_or(&[][..], Vec::as_slice);
        let library =
            made.iter().filter_map(|file| file.as_str()).find(|file| file.ends_with("_emulator.so"));
        let (kind, path) = match (text(&message["executable"]), library) {
            (Some(executable), _) => (kinds.first().and_then(text).unwrap_or_default(), executable),
            (None, Some(library)) => ("cdylib".to_owned(), library.to_owned()),
            (None, None) => continue,
        };
        artifacts.push(Artifact { name: text(&target["name"]).unwrap_or_default(), kind, path: path.into() });
    }
    Ok(artifacts)
}
