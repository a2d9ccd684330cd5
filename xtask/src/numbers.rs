//! Checks that the numbers in pages are those of the code, and that pages keep their limits.

use std::fs;

use crate::tables::{Part, parts, rows};
use crate::workspace::workspace;

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns `256 << 10` for `const FIRST: usize = 256 << 10;`.
fn expression<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let constant = source.split(&format!("const {name}: ")).nth(1).and_then(|rest| rest.split_once(" = "));
    let field = || source.split(&format!("            {name}: ")).nth(1).map(|rest| ("", rest));
    let (_, rest) = constant.or_else(field)?;
    rest.split([';', '\n']).next().map(|text| text.trim_end_matches(','))
}

/// Returns `256 << 10` as `256 KiB`, or as `1,024` where it counts.
fn written(expression: &str) -> Vec<String> {
    let inside = |prefix: &str| expression.strip_prefix(prefix)?.strip_suffix(')');
    if let Some(time) = inside("Duration::from_millis(") {
        return vec![format!("{time} ms")];
    }
    if let Some(time) = inside("Duration::from_secs(") {
        return vec![format!("{time} seconds")];
    }
    if let Some(time) = inside("Duration::from_micros(") {
        let micros: f64 = time.parse().unwrap();
        return vec![format!("{time} µs"), format!("{} ms", micros / 1000.0)];
    }
    if let Some((first, last)) = inside("(").and_then(|both| both.split_once(", ")) {
        return vec![format!("{first} to {last}")];
    }
    let (number, shift) = expression.split_once(" << ").unwrap_or((expression, "0"));
    let value = number.parse::<u64>().unwrap() << shift.parse::<u32>().unwrap();
    let mut texts = vec![value.to_string()];
    if value >= 1000 {
        texts.push(format!("{},{:03}", value / 1000, value % 1000));
    }
    for (unit, shift) in [("KiB", 10), ("MiB", 20)] {
        if value >> shift << shift == value && value >> shift > 0 {
            texts.push(format!("{} {unit}", value >> shift));
        }
    }
    texts
}

#[test]
fn constants_of_the_engine_have_the_values_of_the_page() {
    let page = read("docs/engine.md");
    let is_constant = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_') && name.len() > 1;
    let (mut file, mut checked, mut wrong) = (String::new(), 0, Vec::new());
    for row in rows(&page) {
        let [names, values, ..] = row[..] else { continue };
        let (mut constants, mut links) = (Vec::new(), Vec::new());
        for part in parts(names) {
            match part {
                Part::Code(name) if is_constant(name) => constants.push(name),
                Part::Link(target) => links.push(target.trim_start_matches("../").to_owned()),
                Part::Code(_) => {}
            }
        }
        let values: Vec<&str> = values.split(", ").collect();
        // `Connection::receive_head` and the like have no number.
        if constants.is_empty() || constants.len() != values.len() {
            continue;
        }
        // A row without a file follows one of the same file.
        let files: Vec<String> = links.iter().cloned().chain([file.clone()]).collect();
        for (constant, value) in constants.iter().zip(values) {
            let found = files.iter().filter(|file| file.ends_with(".rs") || file.ends_with("settings"));
            let mut found = found.filter_map(|file| {
                let path = if file.ends_with(".rs") { file.clone() } else { format!("{file}/mod.rs") };
                Some(written(expression(&read(&path), constant)?))
            });
            match found.next() {
                Some(texts) if texts.iter().any(|text| text == value) => checked += 1,
                Some(texts) => {
                    wrong.push(format!("{constant} is {value} in docs/engine.md, and {texts:?} in the code"))
                }
                None => wrong.push(format!("{constant} of docs/engine.md is in none of {files:?}")),
            }
        }
        file = links.pop().unwrap_or(file);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 20, "{checked}");
    assert_eq!(written("2 << 20"), ["2097152", "2097,152", "2048 KiB", "2 MiB"]);
}

/// Sentences of pages with `{}` in the place of a number, and the constant or the field that has it.
const SENTENCES: [(&str, &str, &str, &str); 6] = [
    (
        "docs/commands.md",
        "by default {} to a near server",
        "gpufile/src/settings/mod.rs",
        "NEAR_OBJECT_THREADS",
    ),
    (
        "docs/commands.md",
        "near server and {} to a far one",
        "gpufile/src/settings/mod.rs",
        "FAR_OBJECT_THREADS",
    ),
    ("docs/commands.md", "`--tries` ({})", "gpufile/src/remote/policy.rs", "tries"),
    ("docs/commands.md", "`--timeout` ({} for 64 KiB)", "gpufile/src/remote/policy.rs", "timeout"),
    ("docs/commands.md", "in parts of {} or more", "gpufile/src/remote/upload.rs", "LEAST_PART_BYTES"),
    (
        "docs/saves.md",
        "An object of more than {} is uploaded",
        "gpufile/src/remote/upload.rs",
        "LEAST_PART_BYTES",
    ),
];

#[test]
fn sentences_of_pages_have_the_numbers_of_the_code() {
    for (page, sentence, file, name) in SENTENCES {
        let text = read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        let numbers = written(expression(&read(file), name).unwrap_or_else(|| panic!("{name} in {file}")));
        let is_there = |number: &String| text.contains(&sentence.replace("{}", number));
        assert!(numbers.iter().any(is_there), "{page}: {sentence:?} with one of {numbers:?}");
    }
}

#[test]
fn pages_name_the_versions_of_the_manifests() {
    let value = |path: &str, key: &str| {
        let text = read(path);
        let line =
            text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{key} in {path}"));
        line.trim_matches(['"', ' ', '=', '>']).to_owned()
    };
    let rust = value("Cargo.toml", "rust-version = ");
    let python = value("python/pyproject.toml", "requires-python = ");
    for (page, text) in [
        ("README.md", format!("Rust {rust} or newer")),
        ("README.md", format!("Python {python} or newer")),
        ("python/README.md", format!("Python {python} or newer")),
        ("CONTRIBUTING.md", format!("`.ci/oldest {rust}`")),
    ] {
        assert!(read(page).contains(&text), "{page} does not say {text:?}");
    }
}

#[test]
fn entries_of_troubleshooting_have_four_lines() {
    let page = read("docs/troubleshooting.md");
    let entries = page.split("\n### ").skip(1).map(|entry| entry.split("\n## ").next().unwrap());
    let mut count = 0;
    for entry in entries {
        let mut outside = entry.split("```").step_by(2).flat_map(str::lines).filter(|line| !line.is_empty());
        let title = outside.next().unwrap();
        let lines: Vec<_> = outside.filter(|line| !line.starts_with("- words: ")).collect();
        let items = ["- meaning: ", "- cause: ", "- what to do: ", "- proof: "];
        let has_place = |line: &&&str| items.iter().any(|item| line.starts_with(item));
        assert!(lines.len() <= 4 && lines.iter().all(|line| has_place(&line)), "{title}: {lines:?}");
        count += 1;
    }
    assert!(count > 120, "{count}");
}

#[test]
fn pages_keep_their_limits() {
    let lines = read("CONTRIBUTING.md").lines().count();
    assert!(lines <= 120, "CONTRIBUTING.md has {lines} lines");
}

fn texts(svg: &str) -> Vec<String> {
    let lines = svg.lines().flat_map(|line| line.split("<text").skip(1));
    let texts =
        lines.map(|line| line.split_once('>').unwrap().1.split("</text>").next().unwrap().trim().to_owned());
    texts.collect()
}

#[test]
fn pictures_say_what_code_and_pages_say() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (load, page) = (texts(&read("docs/load.svg")), read("docs/engine.md"));
    let spans = load.iter().filter_map(|text| text.split_once(" ms: ")?.0.split_once(" to "));
    let times: Vec<_> = spans.flat_map(|(from, to)| [from.to_owned(), to.to_owned()]).collect();
    assert_eq!(times.len(), 8);
    let paragraph =
        words(page.split("**The first load of a process**").nth(1).unwrap().split("\n\n").next().unwrap());
    let is_there = |time: &&String| *time == "0" || paragraph.contains(time.as_str());
    assert!(times.iter().all(|time| is_there(&time)), "{times:?}: {paragraph}");

    let (routes, source) = (texts(&read("docs/routes.svg")), read("gpufile/src/route/mod.rs"));
    let shown =
        source.lines().filter_map(|line| line.trim().strip_prefix("RouteKind::")?.split_once(" => \""));
    let names: Vec<_> = shown.map(|(_, name)| name.trim_end_matches("\",")).collect();
    let of_gpus = names.iter().filter(|name| !name.starts_with("none"));
    let missing: Vec<_> = of_gpus
        .filter(|name| !routes.iter().any(|text| text.trim_end_matches(" (FAST)") == **name))
        .collect();
    assert!(names.len() >= 5 && missing.is_empty(), "{names:?}: {missing:?}");

    let (explain, page) = (texts(&read("docs/explain.svg")), read("docs/troubleshooting.md"));
    let code = explain[1].as_str();
    let entry = page.split(&format!("### {code}\n")).nth(1).expect(code).split("\n### ").next().unwrap();
    let labels = ["what you see", "why", "what to do", "cured?"];
    let shown = explain[2..].iter().filter(|text| !labels.contains(&text.as_str()));
    let shown = words(&shown.cloned().collect::<Vec<_>>().join(" "));
    let expected: Vec<_> = entry.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(
        shown,
        words(
            &expected
                .join(" ")
                .replace("meaning:", "meaning")
                .replace("cause:", "cause")
                .replace("do:", "do")
                .replace("proof:", "proof")
        )
    );
}

/// Returns numbers such as `53.1` and `16,384`.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let words = text.split(move |c| !is_part(c)).map(|word| word.trim_end_matches(['.', ',']));
    words.map(|word| word.trim_start_matches(',')).filter(|word| word.chars().any(|c| c.is_ascii_digit()))
}

#[test]
fn figures_of_pages_are_raw_figures() {
    let raw = read("gpufile/benches/figures.tsv");
    let rows: Vec<Vec<&str>> =
        raw.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows[0], ["date", "page", "section", "row", "column", "figure"]);
    for row in &rows[1..] {
        assert!(row.len() == 6 && row[0].len() == 10 && row[0].starts_with("20"), "{row:?}");
    }
    let known: std::collections::HashSet<&str> = numbers(&raw).collect();
    for page in ["BENCHMARKS.md", "docs/engine.md"] {
        let text = read(page);
        let unknown: Vec<_> = numbers(&text).filter(|number| !known.contains(number)).collect();
        assert!(unknown.is_empty(), "{page} has figures that figures.tsv lacks: {unknown:?}");
    }
    assert_eq!(numbers("a 16,384 × 64 KiB, .83–.85.").collect::<Vec<_>>(), ["16,384", "64", ".83", ".85"]);
}
