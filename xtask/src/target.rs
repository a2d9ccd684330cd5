//! The supported processors, each with a C compiler and a command that runs its programs.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::workspace::workspace;

/// A processor, with Linux and glibc.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Target {
    X86_64,
    Aarch64,
}

impl Target {
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Fails if the processor is neither of the two.
    pub fn host() -> Result<Self> {
        let found = Self::ALL.into_iter().find(|target| target.arch() == env::consts::ARCH);
        found.with_context(|| format!("NVIDIA has no packages for {}", env::consts::ARCH))
    }

    /// Returns the name in uname, Rust and wheels.
    pub fn arch(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    pub fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.arch())
    }

    pub fn is_host(self) -> bool {
        self.arch() == env::consts::ARCH
    }

    pub fn c_compiler(self) -> Command {
        let host = format!("{}-unknown-linux-gnu", env::consts::ARCH);
        let mut build = cc::Build::new();
        build.target(&self.triple()).host(&host).opt_level(0).cargo_metadata(false);
        build.get_compiler().to_command()
    }

    /// Returns qemu's command, if this host cannot run programs of this target.
    fn emulator(self) -> Option<[String; 3]> {
        let arch = self.arch();
        (!self.is_host()).then(|| [format!("qemu-{arch}"), "-L".to_owned(), format!("/usr/{arch}-linux-gnu")])
    }

    pub fn program(self, path: &Path) -> Command {
        match self.emulator() {
            None => Command::new(path),
            Some([emulator, option, libraries]) => {
                let mut command = Command::new(emulator);
                command.args([option, libraries]).arg(path);
                command
            }
        }
    }

    pub fn tell_cargo(self, command: &mut Command) {
        let Some(emulator) = self.emulator() else { return };
        let variable =
            |what| format!("CARGO_TARGET_{}_{what}", self.triple().to_uppercase().replace('-', "_"));
        command.env("CARGO_BUILD_TARGET", self.triple());
        command.env(variable("LINKER"), self.c_compiler().get_program());
        command.env(variable("RUNNER"), emulator.join(" "));
    }

    pub fn missing(self) -> Option<String> {
        let starts = |command: &mut Command| {
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
        };
        let [emulator, ..] = self.emulator()?;
        let mut compiler = self.c_compiler();
        if !starts(&mut compiler) {
            return Some(compiler.get_program().to_string_lossy().into_owned());
        }
        if !starts(&mut Command::new(&emulator)) {
            return Some(emulator);
        }
        let has_standard_library = self.has_standard_library().ok()?;
        (!has_standard_library).then(|| format!("standard library of Rust for {}", self.triple()))
    }

    /// Returns whether Rust can build for this target here.
    pub fn has_standard_library(self) -> Result<bool> {
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.current_dir(workspace()).args(["--print=target-libdir", "--target", &self.triple()]);
        let folder = String::from_utf8(rustc.output().context("cannot start rustc")?.stdout)?;
        Ok(Path::new(folder.trim()).exists())
    }
}
