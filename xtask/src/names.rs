//! `cargo xtask names` checks that the search of `libcufile`'s documentation finds every name of cuFile that programs
//! use in C and in Python.
//!
//! It reads the index that rustdoc writes, because rustdoc drops some of the aliases in the source.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::{target_folder, workspace};

/// The functions and types of the module `cuda.bindings.cufile` of cuda-bindings 13.5.0.
const PYTHON: &str = include_str!("names/cuda_bindings.txt");

pub fn run() -> Result<()> {
    // A folder of its own: the index of a folder has the names of every crate that was documented there.
    let target = target_folder().join("names");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["doc", "--quiet", "--no-deps", "--package", "libcufile", "--target-dir"]).arg(&target);
    ensure!(cargo.current_dir(workspace()).status()?.success(), "cargo doc failed");
    let found: BTreeSet<String> = index(&target)?.iter().map(|name| searched(name)).collect();
    let names: BTreeSet<String> =
        header()?.into_iter().chain(PYTHON.lines().map(ToOwned::to_owned)).collect();
    let missing: Vec<_> = names.iter().filter(|name| !found.contains(&searched(name))).collect();
    ensure!(
        missing.is_empty(),
        "the search of libcufile's documentation does not find {missing:?}; give each as #[doc(alias)] to the item that takes \
         its place, for an item of a private module on its `pub use`"
    );
    println!("{} names of cuFile lead to items of libcufile", names.len());
    Ok(())
}

/// Returns a name as rustdoc compares it: without case and underscores.
fn searched(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// Returns every function, type and constant that `cufile.h` declares, as the bindings have them.
fn header() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (file, before) in [
        ("bindings.rs", vec!["pub const ", "pub type ", "pub struct ", "pub union "]),
        ("functions.rs", vec!["pub cuFile"]),
    ] {
        let text = fs::read_to_string(workspace().join("cufile-sys/src").join(file))?;
        for (line, before) in text.lines().flat_map(|line| before.iter().map(move |before| (line, before))) {
            let Some(rest) = line.trim_start().strip_prefix(before) else { continue };
            let start = before.rsplit(' ').next().unwrap_or_default();
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let name = format!("{start}{}", &rest[..end]);
            // C gives these records no name. `fn` is a keyword of a constant function.
            if !name.contains("_anon_") && name != "fn" {
                names.push(name);
            }
        }
    }
    ensure!(names.len() > 200, "cufile-sys/src has only {} names", names.len());
    Ok(names)
}

/// Returns the names in the index, those of items and of aliases.
fn index(target: &std::path::Path) -> Result<Vec<String>> {
    let folder = target.join("doc/search.index/name");
    let files = fs::read_dir(&folder)
        .with_context(|| format!("{folder:?}: does rustdoc write another index now?"))?;
    let mut names = Vec::new();
    for file in files {
        let text = fs::read_to_string(file?.path())?;
        let packed = text.strip_prefix("rd_(\"").and_then(|text| text.trim_end().strip_suffix("\")"));
        names.extend(unpacked(packed.context("the index has another form than that of Rust 1.95")?));
    }
    Ok(names)
}

/// Unpacks strings. Each has its length before it, in hexadecimal digits that are the low four bits of a letter; the last digit
/// is a small letter. A character from `0` to `?` stands for one of the last 16 strings.
fn unpacked(packed: &str) -> Vec<String> {
    let mut strings: Vec<String> = Vec::new();
    let mut last: VecDeque<String> = VecDeque::new();
    let mut left = packed.chars();
    let mut len = 0;
    while let Some(letter) = left.next() {
        let low = letter as usize & 15;
        match letter {
            '0'..='?' => strings.extend(last.get(low).cloned()),
            '@'..='O' => len = (len | low) << 4,
            _ => {
                // Quotes and backslashes are escaped.
                let string: String = (0..len | low)
                    .filter_map(|_| left.next().and_then(|c| if c == '\\' { left.next() } else { Some(c) }))
                    .collect();
                len = 0;
                last.push_front(string.clone());
                last.truncate(16);
                strings.push(string);
            }
        }
    }
    strings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_strings_have_lengths_and_repeats() {
        assert_eq!(
            unpacked("bOkcAny1`A`0123456789abcdef0"),
            ["Ok", "Any", "Ok", "", "0123456789abcdef", "0123456789abcdef"]
        );
    }

    #[test]
    fn searches_ignore_case_and_underscores() {
        assert_eq!(searched("CU_FILE_Success"), searched("cufilesuccess"));
    }

    #[test]
    fn the_header_has_names_of_each_kind() {
        let names = header().unwrap();
        for name in ["cuFileRead", "CUfileError_t", "CU_FILE_SUCCESS", "CUFILE_PENDING"] {
            assert!(names.iter().any(|other| other == name), "{name}");
        }
    }
}
