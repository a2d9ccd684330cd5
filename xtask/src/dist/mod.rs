//! `cargo xtask dist`: the files of a release, in `target/dist`.
//!
//! zig links for glibc 2.17, on a host of either processor for both. What tries the files is `.ci/dist`.

mod program;
mod sbom;
mod tools;
mod wheels;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages::run as run_command;
use crate::settings;
use crate::workspace::target_folder;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The least version for wheels and programs: that of Rust's standard library.
const GLIBC: &str = "2.17";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A wheel for each processor, and the source distribution.
    Wheels,
    /// The program for each processor, as archive and as Debian package.
    Program,
}

impl Part {
    /// Returns the named parts, or all if none is named.
    pub fn parse(names: &[&str]) -> Result<Vec<Self>> {
        if names.is_empty() {
            return Ok(vec![Self::Wheels, Self::Program]);
        }
        let parse = |name: &&str| match *name {
            "wheels" => Ok(Self::Wheels),
            "program" => Ok(Self::Program),
            _ => anyhow::bail!("{name}: not a part of a release; the parts are wheels and program"),
        };
        names.iter().map(parse).collect()
    }
}

/// Builds the parts and their checksums. Deletes what an earlier call made.
///
/// Fails if a tool is missing, or the page of settings lacks one.
pub fn run(parts: &[Part]) -> Result<()> {
    settings::run(true)?;
    tools::check(parts)?;
    let folder = target_folder().join("dist");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let folder = folder.canonicalize()?;
    for part in parts {
        match part {
            Part::Wheels => wheels::build(&folder)?,
            Part::Program => program::build(&folder)?,
        }
    }
    sums(&folder)
}

/// Prints the names and sizes of the files, too.
fn sums(folder: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a file name that is not UTF-8")?;
        println!("{:>9} {name}", entry.metadata()?.len());
        names.push(name);
    }
    names.sort();
    let output = Command::new("sha256sum").current_dir(folder).args(&names).output()?;
    fs::write(folder.join("SHA256SUMS"), output.stdout)?;
    run_command(Command::new("sha256sum").current_dir(folder).args(["--check", "--quiet", "SHA256SUMS"]))
}

#[test]
fn unknown_parts_are_refused() {
    assert_eq!(Part::parse(&[]).unwrap(), [Part::Wheels, Part::Program]);
    assert_eq!(Part::parse(&["program"]).unwrap(), [Part::Program]);
    assert!(Part::parse(&["program", "wheel"]).unwrap_err().to_string().starts_with("wheel: not a part"));
}
