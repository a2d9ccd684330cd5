//! Turns pages into chapters of mdBook.

use std::collections::BTreeSet;

/// The places to which links to files of the workspace lead.
pub struct Sources<'a> {
    pub chapters: &'a BTreeSet<String>,
    pub repository: &'a str,
}

/// Returns paths from the root of the workspace, without links to other hosts and to items of Rust.
pub fn linked(page: &str, text: &str) -> impl Iterator<Item = String> {
    let targets = parts(text).filter(|(code, _)| !code).flat_map(|(_, prose)| targets(prose));
    let targets =
        targets.filter(|target| is_file(target)).map(|target| target.split('#').next().unwrap_or(""));
    let paths: Vec<_> = targets.filter(|path| !path.is_empty()).map(|path| resolved(page, path)).collect();
    paths.into_iter()
}

/// Returns the file of a chapter. The chapter of a crate's guide has the name of its source file with `.md` at the end.
/// mdBook makes the start page of a folder only from `index.md`.
pub fn chapter_file(path: &str) -> String {
    match path.strip_suffix("README.md") {
        Some(folder) => format!("{folder}index.md"),
        None if path.ends_with(".md") => path.to_owned(),
        None => format!("{path}.md"),
    }
}

/// Returns the comment at the head of a file, below a title.
pub fn guide_of(title: &str, source: &str) -> String {
    let comment = source.lines().take_while(|line| line.starts_with("//!"));
    let mut in_code = false;
    let lines = comment.map(|line| {
        let line = line[3..].strip_prefix(' ').unwrap_or(&line[3..]);
        let Some(language) = line.strip_prefix("```") else {
            let level = if line.starts_with("# ") && !in_code { "#" } else { "" };
            return format!("{level}{line}\n");
        };
        in_code = !in_code;
        match language {
            "" if in_code => "```rust\n".to_owned(),
            "no_run" => "```rust,no_run\n".to_owned(),
            _ => format!("{line}\n"),
        }
    });
    format!("# {title}\n\n{}", lines.collect::<String>())
}

/// Returns a page whose links lead to chapters, and those to other files to the repository. Links to items of Rust, which
/// only rustdoc knows, become their text.
pub fn adapted(page: &str, text: &str, sources: &Sources<'_>) -> String {
    let adapted = |(code, part): (bool, &str)| match code {
        true => part.to_owned(),
        false => adapted_prose(page, part, sources),
    };
    parts(text).map(adapted).collect()
}

/// Returns a page whose links begin at the root of the workspace.
pub fn from_root(page: &str, text: &str) -> String {
    rewritten(text, |target| Some(chapter_file(&resolved(page, target))))
}

fn adapted_prose(page: &str, prose: &str, sources: &Sources<'_>) -> String {
    let in_repository = |path: &str| format!("{}/blob/main/{}", sources.repository, resolved(page, path));
    let linked = rewritten(prose, |target| match target.split_once('#').unwrap_or((target, "")) {
        _ if target.starts_with("http") => Some(target.to_owned()),
        _ if !is_file(target) => None,
        ("", _) => Some(target.to_owned()),
        (path, "") if path.ends_with(".svg") => Some(path.to_owned()),
        (path, _) if !sources.chapters.contains(&resolved(page, path)) => Some(in_repository(path)),
        (path, "") => Some(chapter_file(path)),
        (path, heading) => Some(format!("{}#{heading}", chapter_file(path))),
    });
    // What is left without a target: [`Item`].
    let mut parts = linked.split("[`");
    let mut text = parts.next().unwrap_or("").to_owned();
    for part in parts {
        match part.split_once("`]") {
            Some((item, rest)) if !rest.starts_with('(') => text += &format!("`{item}`{rest}"),
            _ => text += &format!("[`{part}"),
        }
    }
    text
}

/// Replaces each link's target or, with `None`, the link by its text.
fn rewritten(prose: &str, target: impl Fn(&str) -> Option<String>) -> String {
    let mut parts = prose.split("](");
    let mut text = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (old, rest) = part.split_once(')').unwrap_or((part, ""));
        match target(old) {
            Some(new) => text += &format!("]({new}){rest}"),
            None => {
                let start = text.rfind('[').unwrap_or(0);
                text.remove(start);
                text += rest;
            }
        }
    }
    text
}

/// Marks blocks of code with `true`.
fn parts(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut rest = text;
    let mut code = false;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        // A block of code includes the lines that open and close it.
        let end = match code {
            true => rest[3..].find("```").map_or(rest.len(), |at| at + 6),
            false => rest.find("```").unwrap_or(rest.len()),
        };
        let (part, later) = rest.split_at(end);
        rest = later;
        let was = code;
        code = !code;
        Some((was, part))
    })
}

fn targets(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

pub fn is_file(target: &str) -> bool {
    !target.contains(':') && target.contains(['.', '/', '#'])
}

/// Returns a path from the root.
fn resolved(page: &str, target: &str) -> String {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut path: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            ".." => drop(path.pop()),
            "." => {}
            part => path.push(part),
        }
    }
    path.join("/")
}

#[test]
fn pages_become_chapters() {
    let chapters = BTreeSet::from(["docs/b.rs".to_owned(), "c.md".to_owned()]);
    let sources = Sources { chapters: &chapters, repository: "https://r.s" };
    let adapted = |text| adapted("docs/x.md", text, &sources);
    let page = "See [`File::map`] or [`File`]: [one](File::a), [two](b.rs), [three](../c.md#d), [four](https://e.f), [five](../g.rs).\n";
    let chapter = "See `File::map` or `File`: one, [two](b.rs.md), [three](../c.md#d), [four](https://e.f), \
        [five](https://r.s/blob/main/g.rs).\n";
    assert_eq!(adapted(page), chapter);
    let code = "```rust\n[`a`](b.rs)\n```\n[b](b.rs)\n";
    assert_eq!(adapted(code), "```rust\n[`a`](b.rs)\n```\n[b](b.rs.md)\n");
    assert_eq!(linked("docs/x.md", page).collect::<Vec<_>>(), ["docs/b.rs", "c.md", "g.rs"]);
    assert_eq!(from_root("docs/x.md", "[a](../README.md) [b](b.md)"), "[a](index.md) [b](docs/b.md)");
    let source = "//! # A\n//!\n//! ```\n//! # b();\n//! ```\nmod c;\n";
    assert_eq!(guide_of("Title", source), "# Title\n\n## A\n\n```rust\n# b();\n```\n");
}
