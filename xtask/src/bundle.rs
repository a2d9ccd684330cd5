//! `cargo xtask bundle`: the tests, examples and this program in a folder, for a GPU host without a Rust toolchain.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::artifacts;

/// Optimised, but with the checks that tests want, and small enough to copy.
const PROFILE: &str = "bundle";

/// Builds everything and copies it into cargo's layout, where tests find the emulator and the examples.
pub fn run(folder: &Path) -> Result<()> {
    let (tests, examples) = (folder.join("tests"), folder.join("examples"));
    for folder in [&tests, &examples] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut count = 0;
    let tests_build = ["test", "--no-run", "--workspace", "--exclude", "xtask"];
    for artifact in artifacts::build(&[&tests_build[..], &["--profile", PROFILE]].concat())? {
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
    for (package, program) in [("xtask", "xtask"), ("gpufile-cli", "gpufile")] {
        let build = ["build", "--package", package, "--bin", program, "--profile", PROFILE];
        for artifact in artifacts::build(&build)? {
            if artifact.kind == "bin" {
                fs::copy(&artifact.path, folder.join(program))?;
            }
        }
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
# Runs every test program of the bundle. CUFILE_REQUIRE_GPU=1 makes a host without a GPU a failure. Test files are on the
# file system of temporary files: cuFile before 1.16 takes none on tmpfs.
CUFILE_TEST_DIR=${CUFILE_TEST_DIR:-${TMPDIR:-/tmp}}
export CUFILE_TEST_DIR
cd "$(dirname "$0")/tests" || exit 1
status=0
for test in ./*; do
    case $test in *.so) continue ;; esac
    echo "== $test"
    "$test" "$@" || { status=1; echo "FAILED: $test"; }
done
exit $status
"#;
