//! Checks the pages in Markdown: their links, who runs their blocks of code, and the list of test programs in
//! docs/testing.md.

use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::workspace;

/// Folders of the published packages.
pub const PACKAGES: [&str; 6] = ["cuda-rt-sys", "cufile-sys", "cufile", "gpufile", "gpufile-cli", "emulator"];

/// Leaves out folders that builds make.
pub fn pages() -> Vec<PathBuf> {
    fn add(folder: &Path, pages: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
            let is_page = name.ends_with(".md") && name != "CHANGELOG.md";
            if path.is_dir() && !name.starts_with(['.', '_']) && name != "target" && name != "shared" {
                add(&path, pages);
            } else if is_page {
                pages.push(path);
            }
        }
    }
    let mut pages = Vec::new();
    add(workspace(), &mut pages);
    pages
}

fn prose(page: &str) -> String {
    let outside = page.split("```").step_by(2).collect::<String>();
    outside.lines().filter(|line| !line.starts_with("    ")).map(|line| format!("{line}\n")).collect()
}

/// Leaves out links to other hosts. Keeps paths of Rust: code hosts take them for files.
fn links(prose: &str) -> Vec<&str> {
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target).filter(|target| !target.contains("://")).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns links to no file or to no heading.
fn broken(page: &Path) -> Vec<String> {
    let text = prose(&fs::read_to_string(page).unwrap());
    let is_broken = |target: &&str| {
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
        let has_heading = || {
            let text = prose(&fs::read_to_string(&file).unwrap());
            text.lines().any(|line| line.starts_with('#') && anchor(line) == heading)
        };
        !file.exists() || !heading.is_empty() && !has_heading()
    };
    links(&text).into_iter().filter(is_broken).map(|target| format!("{target} in {page:?}")).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let pages = pages();
    assert!(pages.len() > 20, "the pages were found: {}", pages.len());
    let broken: Vec<_> = pages.iter().flat_map(|page| broken(page)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    assert_eq!(anchor("## `O_DIRECT` on this disk: 4 KiB"), "o_direct-on-this-disk-4-kib");
}

#[test]
fn renamed_headings_lead_to_headings() {
    let book = fs::read_to_string(workspace().join("docs/book.toml")).unwrap();
    let (_, redirects) = book.split_once("[output.html.redirect]\n").expect("the table");
    let mut found = 0;
    for line in redirects.lines() {
        let (old, new) = line.trim_matches('"').split_once("\" = \"").unwrap_or_else(|| panic!("{line}"));
        let page = |html: &str| match html.trim_start_matches('/').trim_end_matches(".html") {
            "index" => workspace().join("README.md"),
            page => workspace().join(format!("{page}.md")),
        };
        let (old_page, old) = old.split_once('#').unwrap_or((old, ""));
        let (new_page, new) = new.split_once('#').unwrap_or((new, ""));
        let folder = Path::new(old_page).parent().unwrap().join(new_page);
        let headings = |path: &Path| {
            let text = prose(&fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}")));
            text.lines().filter(|line| line.starts_with('#')).map(anchor).collect::<Vec<_>>()
        };
        let (new_page, old_page) = (page(folder.to_str().unwrap()), page(old_page));
        if old.is_empty() {
            assert!(new_page.is_file() && !old_page.exists(), "{line}");
            continue;
        }
        assert!(headings(&new_page).iter().any(|heading| heading == new), "{line}: no such heading");
        assert!(headings(&old_page).iter().all(|heading| heading != old), "{line}: the heading is there");
        found += 1;
    }
    assert!(found > 100, "{found}");
}

/// docs.rs and the registry show a package without the files around it, and docs.rs without its own.
#[test]
fn packages_link_to_no_file() {
    let mut found = 0;
    for folder in PACKAGES {
        let folder = workspace().join(folder);
        let shown = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let shown: Vec<_> = shown.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
        assert!(shown.iter().any(|page| page.ends_with("README.md")), "{folder:?} has no README.md");
        for page in shown {
            let text = prose(&fs::read_to_string(&page).unwrap());
            let files: Vec<_> = links(&text).into_iter().filter(|target| !target.starts_with('#')).collect();
            assert!(files.is_empty(), "{page:?} links to {files:?}");
        }
        for source in sources(&folder.join("src")) {
            let text = fs::read_to_string(&source).unwrap();
            let docs = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
            let docs: String =
                docs.map(|line| format!("{}\n", line.trim_start_matches(['/', '!']))).collect();
            // Paths of Rust are checked by rustdoc.
            let is_file = |target: &&str| target.contains(['/', '.']) && !target.contains("::");
            let files: Vec<_> = links(&docs).into_iter().filter(is_file).collect();
            assert!(files.is_empty(), "{source:?} links to {files:?}");
            found += usize::from(docs.contains("](") || docs.contains("[`"));
        }
    }
    assert!(found > 100, "comments with links were found: {found}");
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect()
}

/// [`files_and_functions_in_pages_exist`] looks for the tests that these rows name.
#[test]
fn each_row_of_the_emulator_names_a_test_or_reason() {
    let page = fs::read_to_string(workspace().join("docs/emulator.md")).unwrap();
    let table = page.split("## Where libcufile hangs").nth(1).expect("the table");
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| **"));
    let mut rows = rows.map(|line| line.trim_matches('|').split(" |").map(str::trim).collect::<Vec<_>>());
    assert_eq!(rows.next().as_deref(), Some(&["libcufile", "the emulator", "test", ""][..3]));
    let mut count = 0;
    for row in rows {
        let [fact, emulator, test] = row[..] else { panic!("{row:?}") };
        match emulator.strip_prefix("no: ") {
            Some(reason) => assert!(test.is_empty() && reason.len() > 10, "{fact}"),
            None => assert!(test.matches('`').count() >= 4 || test.contains("conformance"), "{fact}"),
        }
        count += 1;
    }
    assert!(count > 40, "{count}");
}

#[test]
fn the_page_of_tests_names_every_program() {
    let page = fs::read_to_string(workspace().join("docs/testing.md")).unwrap();
    let packages = ["cufile-sys", "cufile", "gpufile", "gpufile-cli", "emulator", "tests"];
    let mut programs = Vec::new();
    for package in packages {
        for entry in fs::read_dir(workspace().join(package).join("tests")).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            match name.strip_suffix(".rs") {
                Some(program) => programs.push(program.to_owned()),
                None if entry.path().join("main.rs").is_file() => programs.push(name),
                None => {}
            }
        }
    }
    assert!(programs.len() > 20, "the programs were found: {}", programs.len());
    let is_named = |program: &String| {
        [format!("`{program}`"), format!("/{program}.rs`")].iter().any(|name| page.contains(name))
    };
    let missing: Vec<_> = programs.iter().filter(|program| !is_named(program)).collect();
    assert!(missing.is_empty(), "docs/testing.md does not say what these prove: {missing:?}");
}

fn tracked() -> (Vec<String>, String) {
    let listed =
        std::process::Command::new("git").args(["ls-files"]).current_dir(workspace()).output().unwrap();
    let files: Vec<_> = String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect();
    let sources = files.iter().filter(|file| !file.ends_with(".md"));
    let text = sources.filter_map(|file| fs::read_to_string(workspace().join(file)).ok()).collect();
    (files, text)
}

#[test]
fn files_and_functions_in_pages_exist() {
    let (files, text) = tracked();
    let is_file = |name: &str| files.iter().any(|file| format!("/{file}").ends_with(&format!("/{name}")));
    // NVIDIA's.
    let known = |code: &str| code == "cufile.h" || code.starts_with("MODULE/");
    let mut found = 0;
    for page in pages() {
        let prose = prose(&fs::read_to_string(&page).unwrap());
        for code in prose.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let words = code.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
            let kinds = [".rs", ".py", ".pyi", ".cu", ".cc", ".c", ".h", ".toml", ".txt"];
            let names_file = words && kinds.iter().any(|kind| code.ends_with(kind));
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let names_test = code.matches('_').count() >= 3 && code.chars().all(is_name);
            let exists = match (names_file, names_test) {
                (true, _) => is_file(code) || known(code),
                (_, true) => {
                    text.contains(code)
                        || is_file(&format!("{code}.rs"))
                        || is_file(&format!("{code}/main.rs"))
                }
                _ => continue,
            };
            assert!(exists, "{page:?} names `{code}`, which does not exist");
            found += 1;
        }
    }
    assert!(found > 300, "names were found: {found}");
}

/// Returns the languages of a page's blocks of code, without rustdoc's attributes, and the lines that look like other
/// blocks: indented ones, and fences in lists.
fn languages(page: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut languages, mut hidden) = (Vec::new(), Vec::new());
    let (mut in_code, mut in_list, mut last) = (false, false, "");
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            in_code = !in_code;
            if in_code {
                // rustdoc does not run a block with `ignore`.
                let end =
                    language.find(',').filter(|_| !language.contains("ignore")).unwrap_or(language.len());
                languages.push(&language[..end]);
            }
        } else if !in_code {
            let in_prose = !line.is_empty() && !line.starts_with(' ');
            let item =
                line.starts_with("- ") || line.split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok());
            in_list = item || in_list && !in_prose;
            let indented = line.starts_with("    ") && last.is_empty() && !in_list;
            if indented || line.trim_start().starts_with("```") {
                hidden.push(line);
            }
        }
        last = line;
    }
    (languages, hidden)
}

#[test]
fn each_block_of_code_has_a_runner() {
    let sources = ["tests/src/lib.rs", "cufile/src/lib.rs", "gpufile/src/lib.rs"];
    let sources = sources.map(|path| (path, fs::read_to_string(workspace().join(path)).unwrap()));
    let mut found = 0;
    for path in pages() {
        let name = path.strip_prefix(workspace()).unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (languages, hidden) = languages(&text);
        assert!(
            hidden.is_empty(),
            "{name}: begin these blocks with ``` and a language, outside of lists: {hidden:?}"
        );
        found += languages.len();
        for language in languages {
            let has_runner = match language {
                // A doc test includes the page.
                "rust" => sources.iter().any(|(source, text)| {
                    let folder = Path::new(source).parent().unwrap().parent().unwrap();
                    let page = path.strip_prefix(workspace().join(folder)).ok();
                    let page = page.map_or(format!("../../{name}"), |page| format!("../{}", page.display()));
                    text.contains(&format!("include_str!(\"{page}\")"))
                }),
                // `cargo xtask conformance` compiles them.
                "c" => name == crate::c_blocks::PAGE,
                // python/tests/test_pages.py.
                "python" | "toml" | "json" => name.starts_with("docs/") || name.matches('/').count() < 2,
                // .ci/commands.
                "sh" => true,
                // Units and manifests need systemd, Prometheus and Kubernetes: whoever changes one tries it by hand.
                "ini" | "yaml" => name == "docs/operating.md",
                // Nothing to run: drawings, and what programs print.
                "text" => true,
                _ => false,
            };
            assert!(has_runner, "nothing runs the block of {language:?} in {name}");
        }
    }
    assert!(found > 50, "blocks were found: {found}");
    assert_eq!(
        languages("a\n\n    b\n- c\n\n    d\n```rust,no_run\ne\n```\n"),
        (vec!["rust"], vec!["    b"])
    );
}

/// Returns words in quotes with their file, except those in unit tests.
fn quoted_words(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut words = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            words.extend(quoted_words(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let code = source.split("#[cfg(test)]").next().unwrap();
            words.extend(code.split('"').map(|word| (path.clone(), word.to_owned())));
        }
    }
    words
}

#[test]
fn security_names_each_variable_that_chooses_code() {
    let page = fs::read_to_string(workspace().join("SECURITY.md")).unwrap();
    // A library's search names its variable. The file of the search names those of folders.
    let chooses_code = |(path, word): &(PathBuf, String)| {
        let is_variable = word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let is_error = word.starts_with("CUDA_ERROR_");
        is_variable
            && !is_error
            && (word.ends_with("_LIBRARY") || path.ends_with("cuda-rt-sys/src/loader.rs"))
    };
    let folders = ["cuda-rt-sys/src", "cufile-sys/src", "cufile/src", "gpufile/src"];
    let words = folders.iter().flat_map(|folder| quoted_words(&workspace().join(folder)));
    let variables: Vec<_> = words.filter(chooses_code).map(|(_, word)| word).collect();
    assert!(variables.len() > 7 && variables.iter().any(|name| name == "CUDA_HOME"), "{variables:?}");
    let missing: Vec<_> = variables.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "SECURITY.md does not name {missing:?}");
}

#[test]
fn variables_of_cufile_have_their_effects() {
    let page = fs::read_to_string(workspace().join("docs/libcufile.md")).unwrap();
    let table = fs::read_to_string(workspace().join("gpufile-cli/src/check/cufile_variables.txt")).unwrap();
    let listed: Vec<_> = table.lines().filter_map(|line| line.split(' ').next()).collect();
    let rows: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `CUFILE_")?.split_once("` | "))
        .filter(|(_, rest)| {
            rest.trim_end_matches(" |").split(" | ").filter(|cell| !cell.is_empty()).count() == 2
        })
        .map(|(name, _)| format!("CUFILE_{name}"))
        .collect();
    assert!(listed.len() > 20);
    assert_eq!(rows, listed);
}
