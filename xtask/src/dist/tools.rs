//! The programs that build the files of a release.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::Part;
use crate::target::Target;

/// A program, a command that succeeds where the program is installed, and a command that installs it.
struct Tool {
    name: &'static str,
    command: &'static [&'static str],
    install: &'static str,
    part: Option<Part>,
}

const TOOLS: [Tool; 8] = [
    Tool {
        name: "zig",
        command: &["python3", "-m", "ziglang", "version"],
        install: "pip install ziglang",
        part: None,
    },
    Tool {
        name: "sha256sum",
        command: &["sha256sum", "--version"],
        install: "apt-get install coreutils",
        part: None,
    },
    Tool {
        name: "maturin",
        command: &["maturin", "--version"],
        install: "pip install maturin",
        part: Some(Part::Wheels),
    },
    Tool {
        name: "cargo-zigbuild",
        command: &["cargo-zigbuild", "--version"],
        install: "pip install cargo-zigbuild",
        part: Some(Part::Program),
    },
    Tool {
        name: "dpkg-deb",
        command: &["dpkg-deb", "--version"],
        install: "apt-get install dpkg",
        part: Some(Part::Program),
    },
    Tool {
        name: "GNU tar",
        command: &["tar", "--sort=name", "--version"],
        install: "apt-get install tar",
        part: Some(Part::Program),
    },
    Tool {
        name: "xz",
        command: &["xz", "--version"],
        install: "apt-get install xz-utils",
        part: Some(Part::Program),
    },
    Tool {
        name: "gzip",
        command: &["gzip", "--version"],
        install: "apt-get install gzip",
        part: Some(Part::Program),
    },
];

/// Names each missing program, and how to install it.
pub fn check(parts: &[Part]) -> Result<()> {
    let is_needed = |tool: &&Tool| tool.part.is_none_or(|part| parts.contains(&part));
    let mut missing = missing(TOOLS.iter().filter(is_needed));
    for target in Target::ALL {
        if !target.has_standard_library()? {
            missing.push(format!("Rust for {0} (rustup target add {0})", target.triple()));
        }
    }
    ensure!(missing.is_empty(), "needs what is missing here: {}", missing.join(", "));
    Ok(())
}

fn missing<'a>(tools: impl Iterator<Item = &'a Tool>) -> Vec<String> {
    let runs = |tool: &Tool| {
        let mut command = Command::new(tool.command[0]);
        command.args(&tool.command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    tools.filter(|tool| !runs(tool)).map(|tool| format!("{} ({})", tool.name, tool.install)).collect()
}

#[test]
fn missing_tools_are_named_with_their_installation() {
    let tool =
        |command| Tool { name: "bash", command, install: "apt-get install bash", part: Some(Part::Wheels) };
    let missing = missing([tool(&["no-such-program"]), tool(&["false"]), tool(&["true"])].iter());
    assert_eq!(missing, ["bash (apt-get install bash)"; 2]);
}
