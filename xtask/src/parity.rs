//! Checks that the items, tests and files in `docs/parity.md` and `SECURITY.md` exist, and that a search finds the names of
//! other bindings in `cufile/PORTING.md`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tables::{Part, has_test, missing, parts, rows, without_comments};
use crate::workspace::workspace;

const FOLDER: &str = "docs";
const TABLES: &str = "docs/parity.md";

fn tables() -> String {
    fs::read_to_string(workspace().join(TABLES)).expect(TABLES)
}

#[test]
fn every_linked_file_exists() {
    let text = tables();
    let links = parts(&text).into_iter().filter_map(|part| match part {
        Part::Link(target) => Some(workspace().join(FOLDER).join(target)),
        Part::Code(_) => None,
    });
    let links: Vec<PathBuf> = links.collect();
    assert!(links.len() > 50, "the links were found: {}", links.len());
    let gone: Vec<_> = links.iter().filter(|path| !path.is_file()).collect();
    assert!(gone.is_empty(), "{TABLES} links to missing files: {gone:?}");
}

#[test]
fn rows_name_existing_items_and_tests() {
    let text = tables();
    let rows = rows(&text);
    assert!(rows.len() > 40, "the rows were found: {}", rows.len());
    // `Type::method` is written in its file as `method`. A name in a comment does not count.
    let has_item = |source: &str, name: &str| {
        let (source, item) = (without_comments(source), name.rsplit("::").next().unwrap_or(name));
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        source.match_indices(item).any(|(at, _)| {
            !source[..at].ends_with(is_word) && !source[at + item.len()..].starts_with(is_word)
        })
    };
    let mut wrong = Vec::new();
    for row in &rows {
        let [there, _, items, tests] = row[..] else { panic!("not four cells: {row:?}") };
        wrong.extend(missing(FOLDER, items, has_item));
        wrong.extend(missing(FOLDER, tests, has_test));
        let names = |cell| parts(cell).iter().any(|part| matches!(part, Part::Code(_)));
        if !names(items) || !names(tests) {
            wrong.push(format!("an item or a test for {there}"));
        }
    }
    assert!(wrong.is_empty(), "{TABLES} has empty cells or names missing items or tests: {wrong:#?}");
}

#[test]
fn every_claim_about_security_names_a_test() {
    let text = fs::read_to_string(workspace().join("SECURITY.md")).expect("SECURITY.md");
    let claims: Vec<_> = rows(&text).into_iter().filter(|row| row[1].contains("](")).collect();
    assert!(claims.len() > 5, "the claims were found: {}", claims.len());
    let wrong: Vec<_> = claims.iter().flat_map(|row| missing("", row[1], has_test)).collect();
    assert!(wrong.is_empty(), "SECURITY.md names missing items or tests: {wrong:#?}");
    let has_test = |row: &&Vec<&str>| parts(row[1]).iter().any(|part| matches!(part, Part::Code(_)));
    assert_eq!(claims.iter().filter(has_test).count(), claims.len());
}

#[test]
fn names_of_other_bindings_are_found_by_a_search() {
    let guide = fs::read_to_string(workspace().join("cufile/PORTING.md")).unwrap();
    let (_, table) = guide.split_once("## Names of other bindings\n").expect("the table");
    let sources = sources(&workspace().join("cufile/src"));
    let rows = rows(table);
    let names = rows.iter().flat_map(|row| parts(row[0]));
    let names: Vec<_> =
        names.filter_map(|part| if let Part::Code(name) = part { Some(name) } else { None }).collect();
    assert!(names.len() > 40, "the names were found: {}", names.len());
    // A search for `readv` finds `readv_at` by its first letters.
    let is_found = |name: &str| {
        ["fn NAME_at", "alias = \"NAME\"", "[\"NAME\"", ", \"NAME\""]
            .iter()
            .any(|form| sources.contains(&form.replace("NAME", name)))
    };
    let missing: Vec<_> = names.into_iter().filter(|name| !is_found(name)).collect();
    assert!(missing.is_empty(), "no item of cufile/src has {missing:?} as an alias");
}

fn sources(folder: &Path) -> String {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .map(|path| if path.is_dir() { sources(&path) } else { fs::read_to_string(&path).unwrap() })
        .collect()
}
