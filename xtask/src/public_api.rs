//! `cargo xtask public-api` writes or checks the public API of the crates for users, one item a line.
//!
//! It leaves out what nobody wrote: derived implementations except conversions, implementations of auto traits, all that
//! `bitflags` makes, and what the table of settings makes. Two others list each setting: docs/settings.md, whose rows a test
//! of [`settings`](crate::settings) compares with the table, and the stubs of Python.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use gpufile::Settings;
use public_api::PublicItem;

use crate::workspace::{package, target_folder, workspace};

const CRATES: [&str; 2] = ["cufile", "gpufile"];

pub fn run(check: bool) -> Result<()> {
    let mut drifted = Vec::new();
    for name in CRATES {
        let found = items(name)?;
        println!("{name}: {} public items, {} of them functions", found.lines().count(), functions(&found));
        let path = workspace().join(name).join("public-api.txt");
        let written = fs::read_to_string(&path).unwrap_or_default();
        if found == written {
            continue;
        }
        drifted.push(name);
        print_difference(name, &written, &found);
        if !check {
            fs::write(&path, found).with_context(|| path.display().to_string())?;
        }
    }
    match (drifted.as_slice(), check) {
        ([], _) => println!("the public API of {} is as written", CRATES.join(" and ")),
        (drifted, false) => println!("written: {}", drifted.join(", ")),
        (drifted, true) => {
            bail!("the public API of {} has changed; run `cargo xtask public-api`", drifted.join(" and "))
        }
    }
    Ok(())
}

/// Returns the items that no derive, macro or rule makes.
fn items(name: &str) -> Result<String> {
    let target = target_folder().join("public-api");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["rustdoc", "--quiet", "--lib", "--all-features", "--package", package(name), "--target-dir"])
        .arg(&target);
    cargo.args(["--", "-Zunstable-options", "--output-format", "json"]);
    // The format is not stable; the code below checks that this toolchain writes a known one.
    let status = cargo.env("RUSTC_BOOTSTRAP", "1").current_dir(workspace()).status()?;
    ensure!(status.success(), "rustdoc failed for {name}");
    let json = target.join("doc").join(format!("{name}.json"));
    let read = |without_derived| {
        let builder = public_api::Builder::from_rustdoc_json(&json).sorted(true).omit_blanket_impls(true);
        builder.omit_auto_derived_impls(without_derived).build().with_context(|| {
            format!("another version of public-api may read what this toolchain wrote: {}", json.display())
        })
    };
    let (all, by_hand) = (read(false)?, read(true)?);
    let by_hand: HashSet<_> = by_hand.items().map(|item| item.id()).collect();
    // A derived conversion is one that users rely on by `?`.
    let is_conversion = |item: &&PublicItem| item.to_string().contains("core::convert::From<");
    let conversions: HashSet<_> = all.items().filter(is_conversion).map(|item| item.id()).collect();
    let is_kept = |item: &&PublicItem| {
        let is_of_conversion = |parent| conversions.contains(&parent);
        by_hand.contains(&item.id())
            || is_of_conversion(item.id())
            || item.parent_id().is_some_and(is_of_conversion)
    };
    let lines: Vec<String> = all.items().filter(is_kept).map(ToString::to_string).collect();
    Ok(written(&lines).into_iter().map(|line| format!("{line}\n")).collect())
}

fn written(lines: &[String]) -> Vec<&str> {
    let lines = lines.iter().map(String::as_str).filter(|line| !is_auto(line) && !is_of_settings(line));
    let mut lines: Vec<&str> = lines.collect();
    // An implementation that has lost all its members.
    lines.dedup();
    let flags: BTreeSet<&str> =
        lines.iter().filter_map(|line| line.strip_prefix("impl bitflags::traits::Flags for ")).collect();
    let mut kept = Vec::new();
    let mut rest = &lines[..];
    while let [first, after @ ..] = rest {
        let ty = first.strip_prefix("impl ").map(|item| item.rsplit(" for ").next().unwrap_or(item));
        let members = ty.map_or(0, |ty| {
            let of_type = format!(" {ty}::");
            after.iter().take_while(|line| !line.starts_with("impl") && line.contains(&of_type)).count()
        });
        let (members, after) = after.split_at(members);
        if !ty.is_some_and(|ty| flags.contains(ty) && is_of_bitflags(first, members)) {
            kept.push(*first);
            kept.extend(members);
        }
        rest = after;
    }
    kept
}

/// Keeps the line of a type that is not `Send` or `Sync`, or only under a condition, so that a lost thread safety shows as
/// a new one.
fn is_auto(line: &str) -> bool {
    const ALWAYS: [&str; 5] = [
        "core::marker::Freeze",
        "core::marker::Unpin",
        "core::marker::UnsafeUnpin",
        "core::panic::unwind_safe::RefUnwindSafe",
        "core::panic::unwind_safe::UnwindSafe",
    ];
    const THREADS: [&str; 2] = ["core::marker::Send", "core::marker::Sync"];
    let is_of = |names: &[&str]| names.iter().any(|name| line.contains(&format!("{name} for ")));
    let has_condition = line.contains('!') || line.contains(" where ") || line.contains(": core::marker::");
    line.starts_with("impl") && (is_of(&ALWAYS) || is_of(&THREADS) && !has_condition)
}

/// Returns whether it is a field of `Settings`, or a method of `EngineBuilder`.
fn is_of_settings(line: &str) -> bool {
    let field = || line.strip_prefix("pub gpufile::Settings::")?.split_once(": ");
    let method = || line.strip_prefix("pub fn gpufile::EngineBuilder::")?.split_once("(self, ");
    field()
        .or_else(method)
        .is_some_and(|(name, _)| Settings::table().iter().any(|setting| setting.name == name))
}

fn is_of_bitflags(header: &str, members: &[&str]) -> bool {
    const TRAITS: [&str; 8] = [
        "bitflags::",
        "core::fmt::Binary ",
        "core::fmt::LowerHex ",
        "core::fmt::Octal ",
        "core::fmt::UpperHex ",
        "core::iter::traits::collect::",
        "core::ops::arith::Sub",
        "core::ops::bit::",
    ];
    let has = |name: &str| members.iter().any(|line| line.contains(&format!("::{name}(")));
    let header = header.trim_start_matches("impl ");
    match header.contains(" for ") {
        true => TRAITS.iter().any(|name| header.starts_with(name)),
        false => has("from_bits_retain") || has("iter_names"),
    }
}

/// Counts functions, also those of traits.
fn functions(items: &str) -> usize {
    let is_function = |line: &&str| {
        ["pub fn ", "pub const fn ", "pub unsafe fn ", "pub const unsafe fn "]
            .iter()
            .any(|start| line.starts_with(start))
    };
    items.lines().filter(is_function).count()
}

fn print_difference(name: &str, written: &str, found: &str) {
    let [written, found] = [written, found].map(|text| text.lines().collect::<BTreeSet<_>>());
    for gone in written.difference(&found) {
        println!("{name}: - {gone}");
    }
    for new in found.difference(&written) {
        println!("{name}: + {new}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FLAGS: &str = "\
pub struct c::Flags(_)
impl c::Flags
pub const c::Flags::ONE: Self
impl c::Flags
pub const fn c::Flags::all() -> Self
pub const fn c::Flags::from_bits_retain(u32) -> Self
impl c::Flags
pub const fn c::Flags::iter_names(&self) -> bitflags::iter::IterNames<c::Flags>
impl c::Flags
pub fn c::Flags::describe(&self) -> String
impl bitflags::traits::Flags for c::Flags
pub type c::Flags::Bits = u32
impl core::fmt::Binary for c::Flags
pub fn c::Flags::fmt(&self, &mut core::fmt::Formatter<'_>) -> core::fmt::Result
impl core::fmt::Display for c::Flags
pub fn c::Flags::fmt(&self, &mut core::fmt::Formatter<'_>) -> core::fmt::Result
impl core::ops::bit::Not for c::Flags
pub type c::Flags::Output = c::Flags
pub fn c::Flags::not(self) -> Self
impl core::marker::Send for c::Flags
pub struct c::Other
impl core::ops::bit::Not for c::Other
pub fn c::Other::not(self) -> Self";

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn only_written_items_of_flags_are_listed() {
        let expected = "\
pub struct c::Flags(_)
impl c::Flags
pub const c::Flags::ONE: Self
impl c::Flags
pub fn c::Flags::describe(&self) -> String
impl core::fmt::Display for c::Flags
pub fn c::Flags::fmt(&self, &mut core::fmt::Formatter<'_>) -> core::fmt::Result
pub struct c::Other
impl core::ops::bit::Not for c::Other
pub fn c::Other::not(self) -> Self";
        let flags = lines(FLAGS);
        assert_eq!(written(&flags), expected.lines().collect::<Vec<_>>());
        assert_eq!(functions(expected), 3);
    }

    #[test]
    fn only_written_items_of_settings_are_listed() {
        let kept = "\
pub struct gpufile::Settings
impl gpufile::EngineBuilder
pub fn gpufile::EngineBuilder::settings(self, gpufile::Settings) -> Self
pub fn gpufile::Settings::bounce_memory_bytes(&self) -> usize
pub gpufile::Settings::threads_of_no_row: usize";
        let made = "\
pub gpufile::Settings::threads: usize
impl gpufile::EngineBuilder
pub fn gpufile::EngineBuilder::threads(self, usize) -> Self
";
        let all = lines(&kept.replacen("impl", &format!("{made}impl"), 1));
        assert_eq!(written(&all), kept.lines().collect::<Vec<_>>());
    }

    #[test]
    fn lost_and_conditional_thread_safety_is_listed() {
        let kept = "\
impl !core::marker::Send for c::Local
impl<B> core::marker::Send for c::Holder<B> where B: core::marker::Send
impl<B: core::marker::Send> core::marker::Sync for c::Part<B>";
        let all = lines(&format!(
            "impl core::marker::Send for c::Plain\nimpl core::marker::Unpin for c::Plain\n{kept}"
        ));
        assert_eq!(written(&all), kept.lines().collect::<Vec<_>>());
    }

    #[test]
    fn lists_of_the_crates_hold_written_items_only() {
        for name in CRATES {
            let path = workspace().join(name).join("public-api.txt");
            let text = fs::read_to_string(&path).unwrap();
            let all = lines(&text);
            assert_eq!(written(&all).len(), all.len(), "{}", path.display());
            assert!(!text.contains("core::marker::StructuralPartialEq"), "{}", path.display());
        }
    }

    fn roots(list: &str) -> BTreeSet<&str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let ends = list.match_indices("::").map(|(at, _)| at);
        ends.filter_map(|end| {
            let name = list[..end].rsplit(|c| !is_part(c)).next().unwrap_or("");
            let is_first = !list[..end - name.len()].ends_with("::");
            (is_first && name.starts_with(|c: char| c.is_ascii_lowercase())).then_some(name)
        })
        .collect()
    }

    #[test]
    fn crates_with_public_types_are_documented_with_their_version() {
        let locked = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
        for name in ["cufile", "gpufile"] {
            let list = fs::read_to_string(workspace().join(name).join("public-api.txt")).unwrap();
            let docs = fs::read_to_string(workspace().join(name).join("src/lib.rs")).unwrap();
            let rows: Vec<_> = docs.lines().filter(|line| line.starts_with("//! | `")).collect();
            let foreign = roots(&list);
            let foreign = foreign.iter().filter(|root| !["std", "core", "alloc", name].contains(root));
            let mut count = 0;
            for root in foreign {
                let row = rows.iter().find(|row| {
                    row.split('|').nth(1).is_some_and(|crates| crates.contains(&format!("`{root}`")))
                        && row.matches('|').count() == 5
                });
                let row = row.unwrap_or_else(|| panic!("{name}/src/lib.rs does not list {root}"));
                let version = row.split('|').nth(2).unwrap().trim();
                let required = locked.lines().find(|line| line.starts_with(&format!("{root} = ")));
                let required = required.and_then(|line| line.split('"').nth(1)).unwrap_or("");
                assert!(
                    ["equal to", "those of"].iter().any(|start| version.starts_with(start))
                        || required.starts_with(version) && !version.is_empty(),
                    "{root} is {required}, and {name}/src/lib.rs says {version}"
                );
                count += 1;
            }
            assert!(count >= 3, "{name}: {count}");
        }
        assert_eq!(roots("pub fn a::B::c(&d::E, F<g::h::I>)"), BTreeSet::from(["a", "d", "g"]));
    }
}
