//! Tables in documents whose cells name items and tests of files, and what these files hold.

use std::fs;

use crate::workspace::workspace;

/// A part of a cell: text in backquotes, or the target of a link, which is a file of the workspace.
#[derive(Debug, PartialEq)]
pub enum Part<'a> {
    Code(&'a str),
    Link(&'a str),
}

/// Leaves out the text of links.
pub fn parts(mut text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    while let Some(start) = text.find(['[', '`']) {
        let (rest, close) = (&text[start + 1..], if text[start..].starts_with('[') { ")" } else { "`" });
        let Some((inside, behind)) = rest.split_once(close) else { break };
        match (close, inside.split_once("](")) {
            (")", Some((_, target))) if !target.contains("://") => parts.push(Part::Link(target)),
            (")", _) => {}
            _ => parts.push(Part::Code(inside)),
        }
        text = behind;
    }
    parts
}

pub fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |line: &str| line.starts_with('|') && !line.starts_with("|---");
    let is_head = |at: usize| lines.get(at + 1).is_some_and(|next| next.starts_with("|---"));
    let rows = (0..lines.len()).filter(|&at| is_row(lines[at]) && !is_head(at));
    rows.map(|at| lines[at].trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns the names in a cell that its files lack. Links to the files are relative to `folder`. Each name belongs to
/// the link before it. Names before the first link are not checked.
pub fn missing(folder: &str, cell: &str, is_in: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let (mut file, mut missing) = (None, Vec::new());
    for part in parts(cell) {
        match (part, &file) {
            (Part::Link(target), _) => {
                let source = fs::read_to_string(workspace().join(folder).join(target)).unwrap_or_default();
                file = Some((target, source));
            }
            (Part::Code(name), Some((target, source))) if !is_in(source, name) => {
                missing.push(format!("{name} in {target}"));
            }
            (Part::Code(_), _) => {}
        }
    }
    missing
}

/// Refuses an attribute between the two lines of Rust, because it could be `ignore`.
pub fn has_test(source: &str, name: &str) -> bool {
    let is_python = name.starts_with("test_") && source.contains(&format!("\ndef {name}("));
    is_python
        || ["", "    "].iter().any(|indent| source.contains(&format!("#[test]\n{indent}fn {name}() {{")))
}

/// Finds no comment, no text, and no use.
pub fn defines(source: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_whole = |rest: &str| rest.strip_prefix(name).is_some_and(|rest| !rest.starts_with(is_word));
    let code = code(source);
    let is_item = code.lines().any(|line| {
        let words = ["fn ", "struct ", "enum ", "trait ", "const ", "static ", "type ", "mod "];
        words.iter().any(|word| {
            let at = line.find(word).filter(|at| !line[..*at].ends_with(is_word));
            at.is_some_and(|at| is_whole(&line[at + word.len()..]))
        })
    });
    // A variant of an enumeration begins its line.
    let is_variant = |line: &str| {
        let rest = line.trim().strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([',', '(']) || rest.starts_with(" {"))
    };
    is_item || code.contains("enum ") && code.lines().any(is_variant)
}

/// Finds a heading of Markdown or of a doc comment.
pub fn has_heading(source: &str, heading: &str) -> bool {
    let plain =
        |line: &str| line.trim().trim_start_matches("///").trim_start_matches("//!").trim() == heading;
    source.lines().any(plain)
}

/// Takes Rust, Python or C.
pub fn without_comments(source: &str) -> String {
    stripped(source, true)
}

fn code(source: &str) -> String {
    stripped(source, false)
}

fn stripped(source: &str, keeps_texts: bool) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let skipped = skipped(rest, code.chars().next_back());
        if skipped == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            let is_kept = keeps_texts && !rest.starts_with(['/', '#']);
            // Lines stay apart.
            code.extend(rest[..skipped].chars().filter(|c| is_kept || *c == '\n'));
            rest = &rest[skipped..];
        }
    }
    code
}

/// Returns 0 if `rest` begins with no comment or text.
fn skipped(rest: &str, before: Option<char>) -> usize {
    let until =
        |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    let is_python_comment = rest.starts_with("# ") && before.is_none_or(char::is_whitespace);
    if rest.starts_with("//") || is_python_comment {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until("*/", 2);
    }
    if rest.starts_with("\"\"\"") {
        return until("\"\"\"", 3);
    }
    let is_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if let Some(raw) = rest.strip_prefix('r').filter(|_| !is_name) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return until(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
        }
    }
    // A quotation mark as a character begins no text.
    if rest.starts_with("'\"'") || rest.starts_with("'\\\"'") {
        return until("'", 1);
    }
    if !rest.starts_with('"') {
        return 0;
    }
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

#[test]
fn names_in_comments_and_texts_are_no_code() {
    let source = "fn real() {} // fn comment\n/* fn block */ let a = \"fn text \\\" fn more\"; let b = r#\"fn raw\"#;\n\
                  let c = '\"'; fn behind() { used(); }\n/// fn doc\nenum E {\n    One,\n    Two(u8),\n    Three {\n    },\n}\n";
    for name in ["real", "behind", "E", "One", "Two", "Three"] {
        assert!(defines(source, name), "{name}: {}", code(source));
    }
    for name in ["comment", "block", "text", "more", "raw", "doc", "used", "rea", "Four"] {
        assert!(!defines(source, name), "{name}: {}", code(source));
    }
    assert_eq!(
        code("x = 1  # y\n\"\"\"doc\nz\"\"\"\n").split_whitespace().collect::<Vec<_>>(),
        ["x", "=", "1"]
    );
}

#[test]
fn headings_are_whole_lines() {
    let source = "//! # One\n/// ## Two\n// see # Three\n# Four\n";
    assert!(["# One", "## Two", "# Four"].iter().all(|heading| has_heading(source, heading)));
    assert!(["# Three", "# Two", "# On"].iter().all(|heading| !has_heading(source, heading)));
}

#[test]
fn names_belong_to_the_link_before_them() {
    let cell = "`open`, [`a.rs`](../a.rs) `File::open`, `close`; see [docs](https://x.y)";
    assert_eq!(
        parts(cell),
        [Part::Code("open"), Part::Link("../a.rs"), Part::Code("File::open"), Part::Code("close")]
    );
    let here = "[`tables.rs`](../xtask/src/tables.rs) `names_belong_to_the_link_before_them`, `nonsense`";
    // Put together, so that it is not in this file.
    let nonsense = here.replace("nonsense", &["no", "such", "thing"].join("_"));
    assert_eq!(missing("docs", &nonsense, |source, name| source.contains(name)).len(), 1);
}
