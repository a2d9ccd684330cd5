//! Runs the checks of real libraries, each in a separate process with a time limit.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::artifacts;
use crate::limited::{self, Run};
use crate::packages::Package;
use crate::release::Release;
use crate::target::Target;

/// The time limit of a group of checks, which takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
pub struct Outcome {
    pub checks: usize,
    pub failures: Vec<String>,
    /// The time until opening the driver failed, if it was tried.
    pub open: Option<Duration>,
}

pub fn build() -> Result<PathBuf> {
    let made = artifacts::build(&["build", "--quiet", "--package", "testkit", "--bin", "real_library"])?;
    let program = made.into_iter().find(|artifact| artifact.kind == "bin");
    program.map(|artifact| artifact.path).context("cargo named no executable for real_library")
}

/// Runs every check of one libcufile, or none without a program.
pub fn cufile(program: Option<&Path>, library: &Path, release: Release, scratch: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let Some(program) = program else { return Ok(outcome) };
    let version = release.number().to_string();
    for group in ["symbols", "parameters", "before-open"] {
        let arguments = [OsStr::new(group), library.as_os_str(), OsStr::new(&version)];
        outcome.run(group, Command::new(program).args(arguments), scratch)?;
    }
    let mut open = Command::new(program);
    // A missing libcuda, so that the check has the same result on a host with a GPU.
    open.arg("open").env("CUFILE_LIBRARY", library).env("CUDA_LIBRARY", "/nonexistent/libcuda.so.1");
    outcome.run("open", &mut open, scratch)?;
    Ok(outcome)
}

pub fn cudart(program: Option<&Path>, package: &Package, scratch: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let Some(program) = program else { return Ok(outcome) };
    let release = Release::parse(package.release());
    // The file name carries the major version, as its SONAME.
    let name = match release.major() {
        11 => "libcudart.so.11.0".to_owned(),
        major => format!("libcudart.so.{major}"),
    };
    let library = package.folder_of(&name, Target::host()?)?.join(name);
    let version = release.number().to_string();
    let arguments = [OsStr::new("cudart"), library.as_os_str(), OsStr::new(&version)];
    outcome.run("cudart", Command::new(program).args(arguments), scratch)?;
    Ok(outcome)
}

impl Outcome {
    fn run(&mut self, group: &str, command: &mut Command, scratch: &Path) -> Result<()> {
        fs::create_dir_all(scratch)?;
        let settings = scratch.join("cufile.json");
        fs::write(&settings, "{}\n")?;
        // The user's configuration must not change the results, and logs must not land in the working
        // directory.
        command
            .current_dir(scratch)
            .env("CUFILE_LOGFILE_PATH", scratch.join("cufile.log"))
            .env("CUFILE_ENV_PATH_JSON", settings);
        let Run { status, stdout: report, .. } = limited::run(command, LIMIT)?;

        let (mut failed, mut ended) = (false, false);
        let mut running = "no check";
        for line in report.lines().filter_map(|line| line.strip_prefix("real_library: ")) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "begins" => running = rest,
                "held" => self.checks += 1,
                "failed" => {
                    failed = true;
                    self.checks += 1;
                    self.failures.push(format!("{group}: {rest}"));
                }
                "ends" => ended = true,
                "took" => self.open = Some(Duration::from_micros(rest.parse()?)),
                _ => {}
            }
        }
        match status {
            None => self.failures.push(format!("{group}: hung in: {running}")),
            // Exit status 1 only means that a check failed, which the report has already.
            Some(status) if ended && (status.success() || failed && status.code() == Some(1)) => {}
            Some(status) => self.failures.push(format!("{group}: {status} in: {running}")),
        }
        Ok(())
    }
}
