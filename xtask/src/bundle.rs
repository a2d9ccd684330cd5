//! `cargo xtask bundle`: the tests, examples and this program in a folder, for a GPU host without a Rust toolchain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::packages::workspace;

/// Optimised, but with the checks that tests want, and small enough to copy.
const PROFILE: &str = "bundle";

/// Builds everything and lays it out so that tests find the emulator and the examples where cargo's layout has them.
pub fn run(folder: &Path) -> Result<()> {
    let (tests, examples) = (folder.join("tests"), folder.join("examples"));
    for folder in [&tests, &examples] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut count = 0;
    for artifact in build(&["test", "--no-run", "--workspace", "--exclude", "xtask"])? {
        let target = match artifact.kind.as_str() {
            "example" => examples.join(&artifact.name),
            "test" => tests.join(&artifact.name),
            "cdylib" => tests.join(artifact.path.file_name().context("a library without a name")?),
            "bin" => continue,
            // The unit tests of a library.
            _ => tests.join(format!("{}-unit", artifact.name)),
        };
        fs::copy(&artifact.path, &target).with_context(|| target.display().to_string())?;
        count += 1;
    }
    for artifact in build(&["build", "--package", "xtask"])? {
        fs::copy(&artifact.path, folder.join("xtask"))?;
    }
    let script = folder.join("run-tests");
    fs::write(&script, RUN_TESTS)?;
    let mut permissions = fs::metadata(&script)?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    fs::set_permissions(&script, permissions)?;
    println!("{count} programs and libraries in {}", folder.display());
    Ok(())
}

const RUN_TESTS: &str = r#"#!/bin/sh
# Runs every test program of the bundle. CUFILE_REQUIRE_GPU=1 makes a host without a GPU a failure.
cd "$(dirname "$0")/tests" || exit 1
status=0
for test in ./*; do
    case $test in *.so) continue ;; esac
    echo "== $test"
    "$test" "$@" || { status=1; echo "FAILED: $test"; }
done
exit $status
"#;

struct Artifact {
    name: String,
    kind: String,
    path: PathBuf,
}

/// Runs cargo and returns the executables and shared libraries that it made.
fn build(arguments: &[&str]) -> Result<Vec<Artifact>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(workspace())
        .args(arguments)
        .args(["--profile", PROFILE, "--message-format=json-render-diagnostics"])
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
