//! The documentation of each bound function: what it does, its result, and its safe counterpart in `cufile`.

mod cufile;
mod driver;
mod runtime;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail};
use quote::ToTokens;
use syn::ForeignItemFn;

use crate::workspace::workspace;

/// The guide whose table names the safe counterparts of cuFile's functions.
const GUIDE: &str = "cufile/PORTING.md";

/// The documentation of the functions of one header.
pub struct Docs(BTreeMap<&'static str, Doc>);

struct Doc {
    safe: Vec<String>,
    text: &'static str,
}

impl Docs {
    pub fn cufile() -> Result<Self> {
        let guide = fs::read_to_string(workspace().join(GUIDE)).context(GUIDE)?;
        let safe = counterparts(&guide);
        let doc = |(function, text): &(&'static str, &'static str)| {
            let safe = safe.get(*function).cloned().with_context(|| format!("{GUIDE} has no {function}"))?;
            Ok((*function, Doc { safe, text }))
        };
        Ok(Self(cufile::FUNCTIONS.iter().map(doc).collect::<Result<_>>()?))
    }

    pub fn runtime() -> Self {
        Self::cuda(runtime::FUNCTIONS)
    }

    pub fn driver() -> Self {
        Self::cuda(driver::FUNCTIONS)
    }

    fn cuda(functions: &[(&'static str, &str, &'static str)]) -> Self {
        let doc = |(function, safe, text): &(&'static str, &str, &'static str)| {
            let safe = safe.split(", ").filter(|item| !item.is_empty());
            (*function, Doc { safe: safe.map(|item| format!("cuda::{item}")).collect(), text })
        };
        Self(functions.iter().map(doc).collect())
    }

    /// Returns the paragraphs on a function: its description; its result, its safe counterpart, and the release that
    /// brought it.
    pub fn of(&self, function: &ForeignItemFn, since: Option<&str>) -> Result<Vec<String>> {
        let name = function.sig.ident.to_string();
        let Doc { safe, text } =
            self.0.get(&*name).with_context(|| format!("{name} has no documentation"))?;
        let mut sentences: Vec<String> = convention(function).into_iter().map(str::to_owned).collect();
        if !safe.is_empty() {
            let safe: Vec<_> = safe.iter().map(|item| format!("`cufile::{item}`")).collect();
            sentences.push(format!("Safe: {}.", safe.join(", ")));
        }
        sentences.extend(since.map(|release| format!("Since {release}.")));
        let facts = sentences.join(" ");
        Ok([(*text).to_owned(), facts].into_iter().filter(|paragraph| !paragraph.is_empty()).collect())
    }

    /// Checks that each documented function is bound.
    pub fn check(&self, bound: &[ForeignItemFn]) -> Result<()> {
        let bound: BTreeSet<String> = bound.iter().map(|function| function.sig.ident.to_string()).collect();
        match self.0.keys().find(|function| !bound.contains(**function)) {
            Some(function) => bail!("{function} has documentation, but is not bound"),
            None => Ok(()),
        }
    }
}

/// Returns how a function says whether it succeeded, by the type that it returns.
fn convention(function: &ForeignItemFn) -> Option<&'static str> {
    let output = function.sig.output.to_token_stream().to_string();
    Some(match &*output {
        "-> CUfileError_t" => {
            "Returns a status: `err` is `CU_FILE_SUCCESS` or a code, and `errno` is not set."
        }
        "-> isize" => {
            "Returns the number of bytes; −1 with a POSIX number, or a code above 5000, in `errno`; or a negated code."
        }
        "-> cudaError_t" => "Returns `cudaSuccess` or an error, which may come from earlier work.",
        "-> CUresult" => "Returns `CUDA_SUCCESS` or an error, which may come from earlier work.",
        "" => "Returns nothing, and does not report failures.",
        _ => return None,
    })
}

/// Returns the safe items of each function in the table of the guide, by the function's symbol.
fn counterparts(guide: &str) -> BTreeMap<String, Vec<String>> {
    let rows = guide.lines().filter(|line| line.starts_with("| `cuFile"));
    let cells = rows.filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|');
        Some((cells.next()?, cells.next()?))
    });
    cells
        .map(|(function, items)| {
            (code(function).concat(), code(items).iter().map(|item| of_type(item, items)).collect())
        })
        .collect()
}

/// Returns the texts between backquotes.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns the full path of an item in a cell: of its link, if the text of the link is shorter.
fn of_type(item: &str, cell: &str) -> String {
    let link = cell.split_once(&format!("[`{item}`](")).and_then(|(_, target)| target.split(')').next());
    link.unwrap_or(item).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: [&[(&str, &str, &str)]; 2] = [runtime::FUNCTIONS, driver::FUNCTIONS];

    fn text_of(folder: &str) -> String {
        let files = fs::read_dir(workspace().join(folder)).unwrap();
        files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn safe_counterparts_of_cuda_functions_exist() {
        let cuda = text_of("cufile/src/cuda");
        let items = TABLES.into_iter().flatten().flat_map(|(_, safe, _)| safe.split(", "));
        let missing: Vec<_> = items
            .filter(|item| !item.is_empty())
            .filter(|item| match item.split_once("::") {
                Some((ty, method)) => {
                    !cuda.contains(&format!("struct {ty}"))
                        || !["(", "<"].iter().any(|next| cuda.contains(&format!("fn {method}{next}")))
                }
                None => !cuda.contains(&format!("struct {item}")),
            })
            .collect();
        assert!(missing.is_empty(), "cufile/src/cuda lacks {missing:?}");
    }

    #[test]
    fn hazards_name_sections_of_libcufile_md() {
        let page = fs::read_to_string(workspace().join("docs/libcufile.md")).unwrap();
        let texts = cufile::FUNCTIONS.iter().map(|(_, text)| *text);
        let texts = texts.chain(TABLES.into_iter().flatten().map(|(_, _, text)| *text));
        let mut named = 0;
        for text in texts {
            let Some((before, _)) = text.split_once("* in docs/libcufile.md") else { continue };
            let (_, section) = before.rsplit_once('*').unwrap();
            let is_heading =
                |line: &str| line.strip_prefix("## ").is_some_and(|heading| heading.starts_with(section));
            assert!(page.lines().any(is_heading), "no section {section:?}");
            named += 1;
        }
        assert!(named > 30, "{named} functions name a section");
    }

    #[test]
    fn counterparts_have_the_path_of_their_link() {
        let guide = "| `cuFileDriverClose` (`_v2`) | [`Driver::close`], or dropping | |\n\
                     | `cuFileGetParameterBool` | [`Params::get`](params::Params::get) | 1.14 |";
        let found = counterparts(guide);
        assert_eq!(found["cuFileDriverClose_v2"], ["Driver::close"]);
        assert_eq!(found["cuFileGetParameterBool"], ["params::Params::get"]);
    }
}
