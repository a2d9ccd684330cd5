//! Checks the links of a site.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// The page for addresses that do not exist, whose links begin at the root of a server.
const NOT_FOUND: &str = "404.html";

/// Checks the links between the pages in a folder, and returns the numbers of pages and links.
///
/// Lists links that lead to no file or to no anchor.
pub fn check(site: &Path) -> Result<(usize, usize)> {
    let mut pages = BTreeMap::new();
    read_pages(site, &mut pages)?;
    let anchors: BTreeMap<&Path, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (&**path, values(text, "id").collect())).collect();
    let (mut links, mut broken) = (0, Vec::new());
    for (page, text) in &pages {
        for target in values(text, "href").chain(values(text, "src")) {
            if target.contains(':') || target.starts_with("//") {
                continue;
            }
            links += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { page.clone() } else { normal(&page.with_file_name(path)) };
            let has_anchor = || anchors.get(&*file).is_some_and(|anchors| anchors.contains(anchor));
            if !file.is_file() || !anchor.is_empty() && !has_anchor() {
                broken.push(format!("{target} in {}", page.strip_prefix(site)?.display()));
            }
        }
    }
    ensure!(links > 0, "no link in {}", site.display());
    if !broken.is_empty() {
        bail!("links that lead nowhere:\n{}", broken.join("\n"));
    }
    Ok((pages.len(), links))
}

fn read_pages(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            read_pages(&path, pages)?;
        } else if path.extension().is_some_and(|kind| kind == "html") && !path.ends_with(NOT_FOUND) {
            let text = fs::read_to_string(&path)?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

fn values<'a>(page: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {attribute}=\"");
    let parts: Vec<_> = page.split(&*start).skip(1).filter_map(|part| part.split('"').next()).collect();
    parts.into_iter()
}

/// Returns a path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn broken_links_and_anchors_are_found() {
    let site = tempfile::tempdir().unwrap();
    let write = |page: &str, text: &str| fs::write(site.path().join(page), text).unwrap();
    fs::create_dir(site.path().join("sub")).unwrap();
    write("a.html", r##"<h1 id="top"></h1><a href="sub/b.html#there">b</a> <a href="#top">a</a>"##);
    write("sub/b.html", r#"<h1 id="there"></h1><img src="../c.svg"><a href="https://example.org/x">x</a>"#);
    assert!(check(site.path()).unwrap_err().to_string().ends_with("nowhere:\n../c.svg in sub/b.html"));
    write("c.svg", "");
    assert_eq!(check(site.path()).unwrap(), (2, 3));
    write("sub/b.html", r#"<h1 id="elsewhere"></h1>"#);
    assert!(check(site.path()).unwrap_err().to_string().ends_with("nowhere:\nsub/b.html#there in a.html"));
    write("a.html", "");
    assert!(check(site.path()).unwrap_err().to_string().starts_with("no link in "));
}
