//! `cargo xtask guide`: the pages as a site, made with mdBook from the chapters that docs/SUMMARY.md lists.

mod html;
mod markdown;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::packages::run as run_command;
use crate::workspace::{target_folder, workspace};

const SUMMARY: &str = "docs/SUMMARY.md";
const SETTINGS: &str = "docs/book.toml";
const STYLE: &str = "guide.css";
/// Pinned, because other versions lay out the pages in other ways.
const MDBOOK: &str = "0.5.4";

/// Fails if a page links to a page that is no chapter, or a link of the site leads nowhere.
pub fn run() -> Result<()> {
    let mdbook = mdbook()?;
    let guide = target_folder().join("guide");
    let (source, site) = (guide.join("src"), guide.join("html"));
    for old in [&source, &site] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    write_chapters(&source)?;
    fs::copy(workspace().join(SETTINGS), guide.join("book.toml")).context(SETTINGS)?;
    fs::copy(workspace().join("docs").join(STYLE), guide.join(STYLE)).context(STYLE)?;
    run_command(Command::new(mdbook).args(["build", "--dest-dir"]).args([&site, &guide]))?;
    let (pages, links) = html::check(&site)?;
    println!("{pages} pages with {links} links in {}", site.display());
    Ok(())
}

/// Compiles mdBook in the first call.
fn mdbook() -> Result<PathBuf> {
    let root = target_folder().join("mdbook");
    let program = root.join("bin/mdbook");
    let version = Command::new(&program).arg("--version").output();
    if !version.is_ok_and(|output| output.stdout.trim_ascii().ends_with(MDBOOK.as_bytes())) {
        // Unoptimised, it compiles in a third of the time, and the pages take seconds.
        let install = ["install", "--quiet", "--locked", "--debug", "--force", "--no-default-features"];
        run_command(
            Command::new("cargo")
                .args(install)
                .args(["--features", "search", "mdbook", "--version", MDBOOK, "--root"])
                .arg(&root)
                .env_remove("CARGO_TARGET_DIR"),
        )?;
    }
    Ok(program)
}

/// Makes links to other files lead to the repository.
fn write_chapters(folder: &Path) -> Result<()> {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).with_context(|| path.to_owned());
    let write = |path: &str, text: String| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder"))?;
        fs::write(&path, text).with_context(|| path.display().to_string())
    };
    let manifest = read("Cargo.toml")?;
    let repository = repository(&manifest)?;
    let summary = read(SUMMARY)?;
    let chapters: BTreeSet<String> = markdown::linked(SUMMARY, &summary).collect();
    for chapter in &chapters {
        let text = match read(chapter)? {
            source if chapter.ends_with(".rs") => markdown::guide_of(title_of(chapter, &summary)?, &source),
            page => page,
        };
        for target in markdown::linked(chapter, &text) {
            if target.ends_with(".svg") {
                write(&target, read(&target)?)?;
            } else if !chapters.contains(&target) {
                let is_page = target.ends_with(".md");
                ensure!(!is_page, "{chapter} links to {target}, which is no chapter of {SUMMARY}");
                ensure!(workspace().join(&target).is_file(), "{chapter} links to {target}, which is no file");
            }
        }
        let sources = markdown::Sources { chapters: &chapters, repository };
        write(&markdown::chapter_file(chapter), markdown::adapted(chapter, &text, &sources))?;
    }
    write("SUMMARY.md", markdown::from_root(SUMMARY, &summary))
}

fn repository(manifest: &str) -> Result<&str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("repository = \""));
    Ok(line.context("Cargo.toml names no repository")?.trim_end_matches('"'))
}

fn title_of<'a>(chapter: &str, summary: &'a str) -> Result<&'a str> {
    let before = summary.split(&format!("](../{chapter})")).next().context("no title")?;
    Ok(before.rsplit_once('[').with_context(|| chapter.to_owned())?.1)
}

#[test]
fn the_summary_lists_every_page() {
    let summary = fs::read_to_string(workspace().join(SUMMARY)).unwrap();
    let chapters: Vec<_> = markdown::linked(SUMMARY, &summary).collect();
    let pages = crate::pages::pages();
    let pages = pages.iter().map(|page| page.strip_prefix(workspace()).unwrap().to_str().unwrap());
    // The pages of crates.io repeat what README.md says.
    let of_crates = |page: &&str| {
        crate::pages::PACKAGES.iter().any(|name| **page == format!("{name}/README.md")) || *page == SUMMARY
    };
    let missing: Vec<_> =
        pages.filter(|page| !of_crates(page) && !chapters.iter().any(|it| it == page)).collect();
    assert!(missing.is_empty(), "{SUMMARY} does not list {missing:?}");
}
