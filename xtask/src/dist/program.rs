//! The program, linked for an old glibc: an archive to unpack anywhere, and a Debian package. Both have the manual pages and
//! the completions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{GLIBC, VERSION, sbom};
use crate::packages::run;
use crate::target::Target;
use crate::workspace::{target_folder, workspace};

/// Debian's form needs an address.
const MAINTAINER: &str = "the contributors of gpufile <gpufile@repository.example>";

const CONTAINERFILE: &str = include_str!("Containerfile");

const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/gpufile"),
    ("fish", "share/fish/vendor_completions.d/gpufile.fish"),
    ("zsh", "share/zsh/vendor-completions/_gpufile"),
];

/// Builds everything into the folder.
///
/// Fails, for example, if the program needs a symbol of a newer glibc.
pub fn build(folder: &Path) -> Result<()> {
    let mut built = Vec::new();
    for target in Target::ALL {
        built.push((target, compile(target)?));
    }
    let host = Target::host()?;
    let (_, runnable) =
        built.iter().find(|(target, _)| *target == host).context("a program for this host")?;
    for (target, program) in &built {
        let tree = target_folder().join("dist-tree").join(target.arch());
        if tree.exists() {
            fs::remove_dir_all(&tree)?;
        }
        fill(&tree.join("usr"), program, runnable)?;
        archive(&tree, *target, folder)?;
        package(&tree, *target, folder)?;
    }
    fs::write(folder.join("Containerfile"), CONTAINERFILE)?;
    sbom::write("gpufile-cli", &folder.join(format!("gpufile-{VERSION}.cdx.json")))
}

fn compile(target: Target) -> Result<PathBuf> {
    let triple = format!("{}.{GLIBC}", target.triple());
    let mut cargo = Command::new("cargo-zigbuild");
    cargo.current_dir(workspace()).args(["rustc", "--release", "--locked", "--package", "gpufile-cli"]);
    run(cargo.args(["--bin", "gpufile", "--target", &triple, "--", "-Cstrip=symbols"]))?;
    Ok(target_folder().join(target.triple()).join("release/gpufile"))
}

/// Takes the pages from the program that runs on this host.
fn fill(usr: &Path, program: &Path, runnable: &Path) -> Result<()> {
    let write = |path: &str, content: &[u8]| {
        let path = usr.join(path);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::write(&path, content).with_context(|| path.display().to_string())
    };
    write("bin/gpufile", &fs::read(program)?)?;
    let main = output(runnable, &["man"])?;
    let commands = commands(&main);
    ensure!(!commands.is_empty(), "the manual page names no commands");
    write("share/man/man1/gpufile.1", main.as_bytes())?;
    for command in commands {
        let page = output(runnable, &["man", &command])?;
        write(&format!("share/man/man1/gpufile-{command}.1"), page.as_bytes())?;
    }
    for (shell, path) in COMPLETIONS {
        write(path, output(runnable, &["completions", shell])?.as_bytes())?;
    }
    let mut copyright = format!(
        "gpufile {VERSION}: {}\nCopyright (c) the contributors of gpufile\n\n\
         Debian has the Apache License 2.0 in /usr/share/common-licenses/Apache-2.0.\n",
        env!("CARGO_PKG_LICENSE")
    );
    copyright += &format!("\n{}", fs::read_to_string(workspace().join("LICENSE-MIT"))?);
    write("share/doc/gpufile/copyright", copyright.as_bytes())?;
    write("share/doc/gpufile/changelog", changelog()?.as_bytes())?;
    let pages = fs::read_dir(usr.join("share/man/man1"))?.collect::<Result<Vec<_>, _>>()?;
    let changelog = usr.join("share/doc/gpufile/changelog");
    for page in pages.iter().map(|page| page.path()).chain([changelog]) {
        run(Command::new("gzip").args(["--best", "--no-name"]).arg(page))?;
    }
    // The user's umask does not matter.
    run(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(usr))?;
    run(Command::new("chmod").arg("755").arg(usr.join("bin/gpufile")))
}

/// Returns an entry for this version, with the time of its commit.
fn changelog() -> Result<String> {
    let mut git = Command::new("git");
    let output = git.current_dir(workspace()).args(["log", "-1", "--format=%cD"]).output()?;
    ensure!(output.status.success(), "git log: {}", output.status);
    let time = String::from_utf8(output.stdout)?;
    Ok(format!(
        "gpufile ({VERSION}) unstable; urgency=medium\n\n  * CHANGELOG.md of the sources has the changes.\n\n -- {MAINTAINER}  {}\n",
        time.trim()
    ))
}

fn commands(page: &str) -> Vec<String> {
    let command = |line: &str| Some(line.strip_prefix(r"gpufile\-")?.strip_suffix("(1)")?.to_owned());
    page.lines().filter_map(command).collect()
}

fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    ensure!(output.status.success(), "gpufile {}: {}", arguments.join(" "), output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn archive(tree: &Path, target: Target, folder: &Path) -> Result<()> {
    let name = format!("gpufile-{VERSION}-{}", target.triple());
    run(Command::new("tar")
        // Only the source distribution ends in .tar.gz, which is uploaded to another place.
        .args(["--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--transform=s,^usr,{name},"))
        .arg("--file")
        .arg(folder.join(format!("{name}.tar.xz")))
        .arg("--directory")
        .arg(tree)
        .arg("usr"))
}

fn package(tree: &Path, target: Target, folder: &Path) -> Result<()> {
    let architecture = target.debian();
    let repository = env!("CARGO_PKG_REPOSITORY");
    let homepage = if repository.is_empty() { String::new() } else { format!("Homepage: {repository}\n") };
    let control = format!(
        "Package: gpufile\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: {MAINTAINER}\n\
         Section: utils\n\
         Priority: optional\n\
         Depends: libc6 (>= {GLIBC})\n\
         {homepage}\
         Description: shows how files reach GPUs, and copies, loads and verifies files\n \
          Reports the route that files take to this machine's GPUs, with GPUDirect\n \
          Storage or without it, and measures its speed. CUDA's libraries are loaded\n \
          at run time.\n"
    );
    fs::create_dir_all(tree.join("DEBIAN"))?;
    fs::write(tree.join("DEBIAN/control"), control)?;
    run(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(tree))?;
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(tree)
        .arg(folder.join(format!("gpufile_{VERSION}_{architecture}.deb"))))
}

#[test]
fn commands_are_found_in_the_manual_page() {
    let page =
        ".SH SUBCOMMANDS\n.TP\ngpufile\\-check(1)\nReports\n.TP\ngpufile\\-cp(1)\nCopies gpufile\\-files\n";
    assert_eq!(commands(page), ["check", "cp"]);
}
