//! `cargo xtask names` checks that the search of the documentation of `libcufile` and `gpufile` finds the names that
//! programs use elsewhere: those of cuFile in C and in Python, of KvikIO's C++ headers, and of the crate kvik-rs.
//!
//! It reads the index that rustdoc writes, because rustdoc drops some of the aliases in the source. A test here checks that the
//! documentation of an item names its aliases.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::{target_folder, workspace};

/// The functions and types of the module `cuda.bindings.cufile` of cuda-bindings 13.5.0.
const PYTHON: &str = include_str!("names/cuda_bindings.txt");
/// The classes, functions, methods, constants and enumerators of KvikIO 26.10: those that `kvikio/*.hpp` and `kvikio/cufile/*.hpp`
/// declare outside of the namespace `detail`. Missing are macros, conversions between numbers (`convert_…`), and what takes a
/// handle of libcurl (`setopt`, `setup_range_request`).
const KVIKIO: &str = include_str!("names/kvikio_cpp.txt");
/// The types, functions, methods, fields and variants of kvik-rs 0.1.0, as its documentation has them.
const KVIK_RS: &str = include_str!("names/kvik_rs.txt");

pub fn run() -> Result<()> {
    let (cufile, gpufile) = (found("libcufile")?, found("gpufile")?);
    let either: BTreeSet<String> = cufile.union(&gpufile).cloned().collect();
    let header = header()?;
    let header = header.iter().map(String::as_str).collect();
    let lists: [(&str, Vec<&str>, _); 4] = [
        ("cufile.h", header, &cufile),
        ("cuda.bindings.cufile", PYTHON.lines().collect(), &cufile),
        ("KvikIO", KVIKIO.lines().collect(), &either),
        ("kvik-rs", KVIK_RS.lines().collect(), &either),
    ];
    let mut missing = BTreeMap::new();
    for (list, names, found) in lists {
        let names: BTreeSet<&str> = names.into_iter().collect();
        println!("{list}: {} names", names.len());
        let unknown: Vec<_> = names.into_iter().filter(|name| !found.contains(&searched(name))).collect();
        if !unknown.is_empty() {
            missing.insert(list, unknown);
        }
    }
    ensure!(
        missing.is_empty(),
        "the search of the documentation does not find {missing:?}; give each as #[doc(alias)] to the item that takes its place, \
         for an item of a private module on its `pub use`, and name it in the documentation of the item"
    );
    Ok(())
}

/// Documents a package, and returns the names that its search finds.
fn found(package: &str) -> Result<BTreeSet<String>> {
    // A folder of its own: the index of a folder has the names of every crate that was documented there. What is built on the
    // way is that of `cargo doc`.
    let target = target_folder().join("names").join(package);
    // Cargo compares dates with what it last documented, wherever that was written.
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["doc", "--quiet", "--no-deps", "--all-features", "--package", package, "--target-dir"])
        .arg(&target);
    cargo.env("CARGO_BUILD_BUILD_DIR", target_folder());
    ensure!(cargo.current_dir(workspace()).status()?.success(), "cargo doc failed for {package}");
    Ok(index(&target)?.iter().map(|name| searched(name)).collect())
}

/// Removes case and underscores, as rustdoc does.
fn searched(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// Returns names as the bindings have them.
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

fn index(target: &Path) -> Result<Vec<String>> {
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

/// Unpacks strings. Before each is its length: letters whose low four bits are hexadecimal digits, of which the last is a
/// small letter. A character from `0` to `?` stands for one of the last 16 strings.
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

    /// An alias, with the documentation of its item.
    #[derive(Debug, PartialEq)]
    struct Alias {
        name: String,
        doc: String,
    }

    /// Takes the documentation of a `pub use` from the type that it exports.
    fn aliases(texts: &[String]) -> Vec<Alias> {
        let mut found = Vec::new();
        let mut types: BTreeMap<String, String> = BTreeMap::new();
        let mut exported = Vec::new();
        for text in texts {
            let (mut doc, mut names) = (String::new(), Vec::new());
            for line in text.lines().map(str::trim) {
                if let Some(line) = line.strip_prefix("///") {
                    doc = doc + line + "\n";
                } else if let Some(name) = line.strip_prefix("#[doc(alias = \"") {
                    names.push(name.trim_end_matches("\")]").to_owned());
                } else if !line.starts_with("#[") && !line.starts_with("//") {
                    let (doc, names) = (std::mem::take(&mut doc), std::mem::take(&mut names));
                    if let Some(path) = line.strip_prefix("pub use ") {
                        let ty =
                            path.trim_end_matches(';').rsplit("::").next().unwrap_or_default().to_owned();
                        exported.extend(names.into_iter().map(|name| (name, ty.clone())));
                        continue;
                    }
                    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
                    if words.by_ref().any(|word| ["struct", "enum", "trait", "type"].contains(&word)) {
                        *types.entry(words.next().unwrap_or_default().to_owned()).or_default() += &doc;
                    }
                    found.extend(names.into_iter().map(|name| Alias { name, doc: doc.clone() }));
                }
            }
        }
        found.extend(
            exported
                .into_iter()
                .map(|(name, ty)| Alias { name, doc: types.get(&ty).cloned().unwrap_or_default() }),
        );
        found
    }

    fn sources(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let texts = entries.flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![fs::read_to_string(path).unwrap()],
        });
        texts.collect()
    }

    fn has_word(text: &str, word: &str) -> bool {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|other| other == word)
    }

    #[test]
    fn documentation_names_the_aliases_of_its_item() {
        let header = header().unwrap();
        let lists = [PYTHON, KVIKIO, KVIK_RS].into_iter().flat_map(str::lines);
        let names: BTreeSet<_> = header.iter().map(String::as_str).chain(lists).collect();
        let mut count = 0;
        for folder in ["cufile/src", "gpufile/src"] {
            let aliases = aliases(&sources(&workspace().join(folder)));
            let of_lists = aliases.iter().filter(|alias| names.contains(&*alias.name));
            for Alias { name, doc } in of_lists {
                assert!(
                    has_word(doc, name),
                    "{folder}: an item with the alias {name} has other documentation: {doc}"
                );
                count += 1;
            }
        }
        assert!(count > 500, "the sources have only {count} aliases");
    }

    #[test]
    fn aliases_are_read_with_the_documentation_of_their_item() {
        let texts = [
            "/// First (`a`).\n#[derive(Debug)]\n/// Second.\n#[doc(alias = \"a\")]\nfn f() {}\n#[doc(alias = \"b\")]\nfn g() {}",
            "#[doc(alias = \"c\")]\npub use module::Type;\n",
            "/// A type.\npub struct Type<T>(T);",
        ];
        let alias = |name: &str, doc: &str| Alias { name: name.to_owned(), doc: doc.to_owned() };
        assert_eq!(
            aliases(&texts.map(ToOwned::to_owned)),
            [alias("a", " First (`a`).\n Second.\n"), alias("b", ""), alias("c", " A type.\n")]
        );
    }

    #[test]
    fn lists_are_sorted_and_name_each_name_once() {
        for list in [PYTHON, KVIKIO, KVIK_RS] {
            assert!(list.lines().is_sorted_by(|a, b| a < b), "{list}");
        }
    }

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
