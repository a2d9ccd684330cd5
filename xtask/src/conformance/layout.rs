//! Sizes, alignments, offsets and numbers: from a C program for each header, and from one Rust program for our side.
//!
//! bindgen lists only the names to measure. The C compiler computes the header's numbers, and rustc ours, so mistakes
//! of bindgen show as well as our own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use quote::ToTokens;
use syn::{File, Item};

use super::by_hand::{self, ByHand};
use super::surface::Surface;
use crate::header::Header;
use crate::target::Target;
use crate::workspace::workspace;

/// Measurements as text, by item.
pub type Facts = BTreeMap<String, String>;

pub struct CHeader {
    file: &'static str,
    include_dirs: Vec<PathBuf>,
    target: Target,
    /// Everything after preprocessing.
    text: String,
    macros: BTreeMap<String, String>,
    /// The macros whose `#define` stands in the header itself.
    own: BTreeSet<String>,
}

impl CHeader {
    pub fn read(header: &Header, include_dirs: &[PathBuf], target: Target) -> Result<Self> {
        let path = include_dirs.iter().map(|dir| dir.join(header.file)).find(|path| path.exists());
        let source = fs::read(path.with_context(|| format!("no {}", header.file))?)?;
        let source = String::from_utf8_lossy(&source);
        let own = source.lines().filter_map(defined).map(|(name, _)| name.to_owned()).collect();
        let mut c = Self {
            file: header.file,
            include_dirs: include_dirs.to_vec(),
            target,
            text: String::new(),
            macros: BTreeMap::new(),
            own,
        };
        c.text = c.preprocess(&["-E", "-P"])?;
        let macros = c.preprocess(&["-E", "-dM"])?;
        c.macros = macros
            .lines()
            .filter_map(defined)
            .map(|(name, definition)| (name.to_owned(), definition.trim().to_owned()))
            .collect();
        Ok(c)
    }

    fn preprocess(&self, options: &[&str]) -> Result<String> {
        let mut command = self.compiler();
        let output = command.args(options).args(["-x", "c", "-include", self.file, "/dev/null"]).output()?;
        ensure!(output.status.success(), failure(&command, &output));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn compiler(&self) -> Command {
        let mut command = self.target.c_compiler();
        command.args(self.include_dirs.iter().map(|dir| format!("-I{}", dir.display())));
        command
    }

    /// Returns the macros that bindings must cover: all of the header's own, or those with one of the prefixes.
    pub fn bound_macros(&self, header: &Header) -> impl Iterator<Item = &str> {
        let bound = |name: &&str| match header.functions {
            [] => self.own.contains(*name),
            _ => header.constants.iter().any(|prefix| name.starts_with(prefix)),
        };
        self.macros.keys().map(String::as_str).filter(bound)
    }

    pub fn macro_definition(&self, name: &str) -> Option<&str> {
        self.macros.get(name).map(String::as_str)
    }

    /// Returns the type as C spells it: a name without a typedef needs its keyword.
    fn spelled(&self, name: &str) -> String {
        for keyword in ["struct", "union", "enum"] {
            let tagged = format!("{keyword} {name}");
            let whole = |(at, _): (usize, &str)| {
                !self.text[at + tagged.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
            };
            if self.text.match_indices(&tagged).any(whole) {
                return tagged;
            }
        }
        name.to_owned()
    }

    /// Measures all names in `surface`, the types by hand, and the numbers of `macros`.
    pub fn measure<'a>(
        &self,
        surface: &Surface,
        by_hand: impl Iterator<Item = &'a ByHand>,
        macros: &[&str],
        scratch: &Path,
    ) -> Result<Facts> {
        let mut lines = String::new();
        for record in surface.records() {
            let ty = self.spelled(record);
            writeln!(
                lines,
                r#"    printf("layout {record}|size %zu, alignment %zu\n", sizeof({ty}), _Alignof({ty}));"#
            )?;
            for leaf in surface.leaves(record) {
                let path = leaf.c_path;
                writeln!(
                    lines,
                    r#"    printf("field {record}.{path}|offset %zu, size %zu\n", offsetof({ty}, {path}), sizeof((({ty} *)0)->{path}));"#
                )?;
            }
        }
        lines.extend(by_hand.map(ByHand::in_c));
        for name in surface.codes.keys() {
            let ty = self.spelled(name);
            writeln!(lines, r#"    printf("enumeration {name}|size %zu\n", sizeof({ty}));"#)?;
        }
        let constants: BTreeSet<&str> =
            surface.constants.keys().map(String::as_str).chain(macros.iter().copied()).collect();
        for name in constants {
            writeln!(lines, r#"    printf("constant {name}|%lld\n", (long long)({name}));"#)?;
        }
        let program = format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <{}>\n\nint main(void) {{\n{lines}    return 0;\n}}\n",
            self.file
        );
        fs::create_dir_all(scratch)?;
        let (source, binary) = (scratch.join("measure.c"), scratch.join("measure"));
        fs::write(&source, program)?;
        let mut command = self.compiler();
        let output = command.args(["-std=gnu11", "-o"]).arg(&binary).arg(&source).output()?;
        ensure!(output.status.success(), failure(&command, &output));
        facts(&mut self.target.program(&binary))
    }
}

/// One module of the sys crates.
pub struct Module {
    pub name: &'static str,
    /// Files below the workspace; the first is `bindings.rs`.
    pub files: &'static [&'static str],
    pub surface: Surface,
}

/// Compiles our committed files into a program that prints the same lines as the C programs.
pub fn measure_ours(
    modules: &[Module],
    scratch: &Path,
    target: Target,
) -> Result<BTreeMap<&'static str, Facts>> {
    let source = scratch.join("src");
    fs::create_dir_all(&source)?;
    let mut main = String::from(
        "#![allow(warnings)]\nuse std::mem::{align_of, offset_of, size_of};\n\
         fn size_of_field<T, F>(_: impl FnOnce(*const T) -> *const F) -> usize { size_of::<F>() }\n",
    );
    let mut body = String::new();
    for Module { name, files, surface } in modules {
        // The imports that `bare` leaves may still name the module of texts.
        writeln!(main, "mod {name} {{\n    mod text {{}}")?;
        let by_hand = by_hand::TYPES.iter().filter(|ty| ty.module == *name);
        for file in files.iter().copied().chain(by_hand.clone().map(|ty| ty.file)) {
            let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str()).context("a file name")?;
            writeln!(main, "    #[path = \"{name}_{stem}.rs\"]\n    mod {stem};\n    pub use {stem}::*;")?;
            write_if_changed(&source.join(name).join(format!("{name}_{stem}.rs")), &bare(file)?)?;
        }
        writeln!(main, "}}")?;
        for record in surface.records() {
            let ty = format!("{name}::{record}");
            writeln!(
                body,
                r#"    println!("{name}|layout {record}|size {{}}, alignment {{}}", size_of::<{ty}>(), align_of::<{ty}>());"#
            )?;
            for leaf in surface.leaves(record) {
                let (c_path, path) = (leaf.c_path, leaf.rust_path);
                writeln!(
                    body,
                    r#"    println!("{name}|field {record}.{c_path}|offset {{}}, size {{}}", offset_of!({ty}, {path}), size_of_field(|p: *const {ty}| unsafe {{ &raw const (*p).{path} }}));"#
                )?;
            }
        }
        body.extend(by_hand.map(ByHand::in_rust));
        for code in surface.codes.keys() {
            writeln!(
                body,
                r#"    println!("{name}|enumeration {code}|size {{}}", size_of::<{name}::{code}>());"#
            )?;
        }
        for (constant, expression) in &surface.constants {
            writeln!(
                body,
                r#"    println!("{name}|constant {constant}|{{}}", {name}::{expression} as i128);"#
            )?;
        }
    }
    write!(main, "fn main() {{\n{body}}}\n")?;
    write_if_changed(&source.join("main.rs"), &main)?;
    write_if_changed(
        &scratch.join("Cargo.toml"),
        "[package]\nname = \"measure\"\nedition = \"2024\"\n\n[dependencies]\nlibc = \"0.2\"\n\n[workspace]\n",
    )?;
    // The same libc as the workspace's, without a look-up in a registry.
    fs::copy(workspace().join("Cargo.lock"), scratch.join("Cargo.lock"))?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--offline", "--manifest-path"]).arg(scratch.join("Cargo.toml"));
    command.arg("--target-dir").arg(scratch.join("target"));
    target.tell_cargo(&mut command);
    let output = facts(&mut command)?;
    let mut ours = BTreeMap::new();
    for Module { name, .. } in modules {
        let prefix = format!("{name}|");
        let facts = output
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.to_owned(), value.clone())));
        ours.insert(*name, facts.collect());
    }
    Ok(ours)
}

/// Returns the measured items of a committed file, with paths for the measuring program. Layout assertions would
/// hide the wrong field. A text for a removed constant would hide the removal.
fn bare(file: &str) -> Result<String> {
    let text = fs::read_to_string(workspace().join(file))?;
    let mut parsed: File = syn::parse_str(&text).with_context(|| file.to_owned())?;
    parsed.items.retain(|item| match item {
        Item::Const(item) => item.ident != "_",
        Item::Impl(_) => !item.to_token_stream().to_string().contains("text ::"),
        Item::Fn(_) | Item::Mod(_) | Item::Macro(_) => false,
        _ => true,
    });
    let text = prettyplease::unparse(&parsed);
    Ok(match file.starts_with("cufile-sys") {
        true => text.replace("crate::", "super::").replace("cuda_rt_sys::", "crate::"),
        false => text,
    })
}

fn facts(command: &mut Command) -> Result<Facts> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(output.status.success(), failure(command, &output));
    let text = String::from_utf8(output.stdout)?;
    let pair = |line: &str| Some((line.rsplit_once('|')?.0.to_owned(), line.rsplit_once('|')?.1.to_owned()));
    text.lines().map(|line| pair(line).with_context(|| format!("unexpected line {line}"))).collect()
}

/// Leaves out the environment, which is long.
fn failure(command: &Command, output: &Output) -> String {
    let program = Path::new(command.get_program()).display();
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    format!(
        "{program} {}: {}\n{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    )
}

fn defined(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("define")?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(rest.split_at(end))
}

fn write_if_changed(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a file in a folder")?)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}
