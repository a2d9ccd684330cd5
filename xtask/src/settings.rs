//! `cargo xtask settings`: the table of docs/settings.md, from the table in the sources.
//!
//! A release writes it. Until then, the page may lack a new setting; a test here refuses every other difference.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gpufile::Settings;

use crate::workspace::workspace;

const PAGE_HEAD: &str = "\
| setting | variable, and KvikIO's | meaning | values of the variable | default | when to change it |
|---|---|---|---|---|---|
";

fn page_rows() -> impl Iterator<Item = (&'static str, String)> {
    Settings::table().iter().map(|setting| {
        let names: Vec<_> = setting.variables().map(|name| format!("`{name}`")).collect();
        // The first paragraph, in one line.
        let lines = setting.docs.iter().map(|line| line.trim()).take_while(|line| !line.is_empty());
        let (names, meaning) = (names.join(", "), lines.collect::<Vec<_>>().join(" "));
        let (name, accepted, default, advice) =
            (setting.name, setting.accepted, setting.default, setting.advice);
        (name, format!("| `{name}` | {names} | {meaning} | {accepted} | {default} | {advice} |\n"))
    })
}

/// Fails, with `check`, unless the page has the table.
pub fn run(check: bool) -> Result<()> {
    let page = fs::read_to_string(page())?;
    let (before, old, after) = parts(&page)?;
    let new: String = page_rows().map(|(_, row)| row).collect();
    if check {
        ensure!(old == new, "docs/settings.md lacks a setting; run `cargo xtask settings`");
        return Ok(());
    }
    Ok(fs::write(self::page(), [before, &new, after].concat())?)
}

fn page() -> PathBuf {
    workspace().join("docs/settings.md")
}

/// Returns the page until the head of the table, the rows, and the rest.
fn parts(page: &str) -> Result<(&str, &str, &str)> {
    let start = page.find(PAGE_HEAD).context("docs/settings.md has no table of settings")? + PAGE_HEAD.len();
    let rows = page[start..].split_inclusive('\n').take_while(|line| line.starts_with('|'));
    let end = start + rows.map(str::len).sum::<usize>();
    Ok((&page[..start], &page[start..end], &page[end..]))
}

#[test]
fn each_row_of_the_page_is_that_of_a_setting() {
    let page = fs::read_to_string(page()).unwrap();
    let made: Vec<_> = page_rows().map(|(_, row)| row).collect();
    let (_, rows, _) = parts(&page).unwrap();
    let wrong: Vec<_> = rows.lines().filter(|row| !made.contains(&format!("{row}\n"))).collect();
    assert!(wrong.is_empty(), "no setting has these rows; run `cargo xtask settings`: {wrong:#?}");
    assert!(!rows.is_empty());
}

#[test]
fn rows_of_the_page_are_whole() {
    for (setting, row) in page_rows() {
        let cells: Vec<_> = row.trim_end().trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), PAGE_HEAD.lines().next().unwrap().matches('|').count() - 1, "{row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()) && cells[0] == format!("`{setting}`"), "{row}");
        assert!(cells[2].ends_with('.') && !cells[2].contains("]("), "{row}");
    }
}

#[test]
fn only_the_rows_of_a_page_are_replaced() {
    let page = format!("before\n\n{PAGE_HEAD}| a |\n| b |\n\nafter\n\n| c |\n");
    let (before, rows, after) = parts(&page).unwrap();
    assert_eq!((before.strip_suffix(PAGE_HEAD), rows), (Some("before\n\n"), "| a |\n| b |\n"));
    assert_eq!(after, "\nafter\n\n| c |\n");
    let rest = "\n- | a |\n";
    assert_eq!(parts(&format!("{PAGE_HEAD}{rest}")).unwrap(), (PAGE_HEAD, "", rest));
    assert!(parts("no table").is_err());
}
