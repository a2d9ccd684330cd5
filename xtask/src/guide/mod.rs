//! `cargo xtask guide`: the pages as a site, made with mdBook from the chapters that docs/SUMMARY.md lists.

mod html;
mod markdown;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::packages::run as run_command;
use crate::workspace::{target_folder, workspace};

const SUMMARY: &str = "docs/SUMMARY.md";
const SETTINGS: &str = "docs/book.toml";
const STYLE: &str = "guide.css";
/// Pinned, because other versions lay out the pages in other ways.
const MDBOOK: &str = "0.5.4";

/// Builds the site in `target/guide/html`, and checks its links.
///
/// # Errors
/// A page links to a page that is no chapter, mdBook fails, or a link of the site leads nowhere.
pub fn run() -> Result<()> {
    let mdbook = mdbook()?;
    let guide = target_folder().join("guide");
    let (source, site) = (guide.join("src"), guide.join("html"));
    for old in [&source, &site] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    let mut settings = fs::read_to_string(workspace().join(SETTINGS)).context(SETTINGS)?;
    // The search finds words in pages, not in source files. The settings end with the table of the search.
    for chapter in write_source(&source)? {
        settings += &format!("{chapter:?} = {{ enable = false }}\n");
    }
    fs::write(guide.join("book.toml"), settings)?;
    fs::copy(workspace().join("docs").join(STYLE), guide.join(STYLE)).context(STYLE)?;
    run_command(Command::new(mdbook).args(["build", "--dest-dir"]).args([&site, &guide]))?;
    let (pages, links) = html::check(&site)?;
    println!("{pages} pages with {links} links in {}", site.display());
    Ok(())
}

/// Returns mdBook's program, which the first call compiles.
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

/// Writes the chapters, the files that they show, and each source file that they link to as a chapter of its own. Returns
/// the chapters of the last kind.
fn write_source(folder: &Path) -> Result<Vec<String>> {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).with_context(|| path.to_owned());
    let write = |path: &str, text: String| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder"))?;
        fs::write(&path, text).with_context(|| path.display().to_string())
    };
    let summary = read(SUMMARY)?;
    let chapters: BTreeSet<String> = markdown::linked(SUMMARY, &summary).collect();
    let mut others = BTreeSet::new();
    for chapter in &chapters {
        let text = match read(chapter)? {
            source if chapter.ends_with(".rs") => {
                let before = summary
                    .split(&format!("{chapter})"))
                    .next()
                    .and_then(|it| it.rsplit_once("]("))
                    .map(|it| it.0);
                let title = before.and_then(|it| it.rsplit_once('[')).with_context(|| chapter.clone())?.1;
                markdown::guide_of(title, &source)
            }
            page => page,
        };
        for target in markdown::linked(chapter, &text) {
            if !chapters.contains(&target) {
                ensure!(
                    !target.ends_with(".md"),
                    "{chapter} links to {target}, which is no chapter of {SUMMARY}"
                );
                others.insert(target);
            }
        }
        write(&markdown::chapter_file(chapter), markdown::adapted(&text))?;
    }
    let mut sources = vec!["sources.md".to_owned()];
    let mut list = String::new();
    for path in others {
        let Some((_, kind)) = path.rsplit_once('.') else {
            bail!("{path} is linked, but is no file with an extension")
        };
        let text = read(&path)?;
        if kind == "svg" {
            write(&path, text)?;
            continue;
        }
        let language = if kind == "cu" || kind == "cc" { "cpp" } else { kind };
        let chapter = markdown::chapter_file(&path);
        write(&chapter, format!("# {path}\n\n``````{language}\n{text}\n``````\n"))?;
        list += &format!("- [{path}]({chapter})\n");
        sources.push(chapter);
    }
    let summary = markdown::from_root(SUMMARY, &summary);
    let indented = list.replace("- [", "    - [");
    write(
        "SUMMARY.md",
        format!("{summary}\n# Sources\n\n- [Files that pages link to](sources.md)\n{indented}"),
    )?;
    write("sources.md", format!("# Files that pages link to\n\n{list}"))?;
    Ok(sources)
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
