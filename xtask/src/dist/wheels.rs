//! The wheels of the Python package, and its source distribution.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{GLIBC, sbom};
use crate::packages::run;
use crate::target::Target;
use crate::workspace::workspace;

/// Fails, for example, if the module needs a symbol of a newer glibc.
pub fn build(folder: &Path) -> Result<()> {
    let policy = format!("manylinux_{}", GLIBC.replace('.', "_"));
    for target in Target::ALL {
        run(maturin("build", folder).args([
            "--release",
            "--zig",
            "--compatibility",
            &policy,
            "--target",
            &target.triple(),
        ]))?;
    }
    run(&mut maturin("sdist", folder))?;
    sbom::write("gpufile-python", &folder.join(format!("gpufile-{}-wheels.cdx.json", super::VERSION)))
}

fn maturin(command: &str, folder: &Path) -> Command {
    let mut maturin = Command::new("maturin");
    maturin.current_dir(workspace());
    maturin.args([command, "--manifest-path", "python/Cargo.toml", "--out"]).arg(folder);
    maturin
}
