//! The functions of each header: the release that brought them, what they do, their results, and their safe counterparts in
//! `cufile`. A new function is a row in one of these tables.

mod cufile;
mod driver;
mod runtime;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail};
use quote::ToTokens;
use syn::ForeignItemFn;

use crate::workspace::workspace;

/// The guide that names the safe counterparts of cuFile's functions.
const GUIDE: &str = "cufile/PORTING.md";

pub struct Functions(BTreeMap<&'static str, Function>);

struct Function {
    /// `None` if every supported release has it.
    since: Option<&'static str>,
    safe: Vec<String>,
    text: &'static str,
}

impl Functions {
    pub fn cufile() -> Result<Self> {
        let guide = fs::read_to_string(workspace().join(GUIDE)).context(GUIDE)?;
        let safe = counterparts(&guide);
        let row = |(name, since, text): &(&'static str, &'static str, &'static str)| {
            let safe = safe.get(*name).cloned().with_context(|| format!("{GUIDE} has no {name}"))?;
            let since = (!since.is_empty()).then_some(*since);
            Ok((*name, Function { since, safe, text }))
        };
        Ok(Self(cufile::FUNCTIONS.iter().map(row).collect::<Result<_>>()?))
    }

    pub fn runtime() -> Self {
        Self::cuda(runtime::FUNCTIONS, runtime::NEWER)
    }

    pub fn driver() -> Self {
        Self::cuda(driver::FUNCTIONS, &[])
    }

    fn cuda(
        functions: &[(&'static str, &str, &'static str)],
        newer: &[(&'static str, &'static str)],
    ) -> Self {
        let row = |(name, safe, text): &(&'static str, &str, &'static str)| {
            let since = newer.iter().find(|(newer, _)| newer == name).map(|(_, release)| *release);
            let safe = safe.split(", ").filter(|item| !item.is_empty());
            let safe = safe.map(|item| format!("cuda::{item}")).collect();
            (*name, Function { since, safe, text })
        };
        Self(functions.iter().map(row).collect())
    }

    pub fn since(&self, name: &str) -> Option<&'static str> {
        self.0.get(name)?.since
    }

    /// Returns the paragraphs on a function: its description; its result, its safe counterpart, and the release that
    /// brought it.
    pub fn docs(&self, function: &ForeignItemFn, product: &str) -> Result<Vec<String>> {
        let name = function.sig.ident.to_string();
        let Function { since, safe, text } =
            self.0.get(&*name).with_context(|| format!("{name} has no row in xtask/src/functions"))?;
        let mut sentences: Vec<String> = convention(function).into_iter().map(str::to_owned).collect();
        if !safe.is_empty() {
            let safe: Vec<_> = safe.iter().map(|item| format!("`cufile::{item}`")).collect();
            sentences.push(format!("Safe: {}.", safe.join(", ")));
        }
        sentences.extend(since.map(|release| format!("Since {product} {release}.")));
        let facts = sentences.join(" ");
        Ok([(*text).to_owned(), facts].into_iter().filter(|paragraph| !paragraph.is_empty()).collect())
    }

    pub fn check(&self, bound: &[ForeignItemFn]) -> Result<()> {
        let bound: BTreeSet<String> = bound.iter().map(|function| function.sig.ident.to_string()).collect();
        match self.0.keys().find(|function| !bound.contains(**function)) {
            Some(function) => bail!("xtask/src/functions has {function}, which is not bound"),
            None => Ok(()),
        }
    }
}

/// Returns how the function reports success, by its type.
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

fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns the path of a link, if the link's text is shorter.
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
        let texts = cufile::FUNCTIONS.iter().map(|(_, _, text)| *text);
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
