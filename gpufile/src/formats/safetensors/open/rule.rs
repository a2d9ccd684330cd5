//! The rule that tells which files are a model, and which tensors of each file. `docs/models.md` states it clause by clause.
//!
//! The folder is only listed here, and indexes are read.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::headers::index::ShardIndex;
use super::super::headers::index_file::{index_path, parse_index, read_index};
use super::folder;
use super::names::{Name, Role, USUAL};
use super::sets::{Missing, Set, Sets, several};
use super::warning::Warning;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::Result;
use crate::local_path;

#[derive(Default)]
pub(in crate::formats::safetensors) struct Choice {
    /// The path of the model in errors: an index, or the first file.
    pub path: PathBuf,
    pub sources: Vec<Source>,
    pub missing: Missing,
    /// A file with the name of the whole model, in the folder of the index.
    pub beside: Option<PathBuf>,
    pub warnings: Vec<Warning>,
}

impl Choice {
    pub fn index(&self) -> Option<&Index> {
        self.sources.first()?.named.as_ref().map(|(index, _)| &**index)
    }
}

#[derive(Clone, PartialEq)]
pub(in crate::formats::safetensors) struct Source {
    pub path: PathBuf,
    /// The index that names the file, and the file's number there.
    pub named: Option<(Arc<Index>, u32)>,
}

pub(in crate::formats::safetensors) struct Index {
    model: String,
    pub path: PathBuf,
    pub map: ShardIndex,
    json: Vec<u8>,
}

impl Index {
    /// Returns whether the index names files, and none of them exists.
    fn is_stale(&self) -> bool {
        let files = self.map.files();
        !files.is_empty() && files.iter().all(|file| fs::metadata(self.path.with_file_name(file)).is_err())
    }
}

impl PartialEq for Index {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.json) == (&other.path, &other.json)
    }
}

/// Chooses the files of the model at a path: a folder, an index, or a file.
pub(in crate::formats::safetensors) fn choose(path: &Path) -> Result<Choice> {
    local_path::check(path)?;
    if path.is_dir() {
        return of_folder(path);
    }
    if path.extension().is_some_and(|extension| extension == "json") {
        return match read_index(path)? {
            Some(json) => of_index(path, json),
            None => Err(folder::not_found(path)),
        };
    }
    Ok(of_files([path]))
}

/// Chooses files that the caller names. An index in their folder decides on the tensors of the files that it names.
pub(in crate::formats::safetensors) fn choose_many(paths: &[PathBuf]) -> Result<Choice> {
    if let [path] = paths {
        return choose(path);
    }
    let mut choice = of_files(paths);
    let mut folders: Vec<_> = paths.iter().filter_map(|path| path.parent()).collect();
    folders.sort();
    folders.dedup();
    for folder in folders {
        // Opening the files tells why a folder cannot be listed.
        let names = folder::list(folder).unwrap_or_default();
        let mut files: Vec<_> = names.iter().filter(|(_, name)| name.role == Role::Index).collect();
        files.sort_by_key(|(file, _)| (file.len(), file));
        let mut indexes = Vec::new();
        for (file, name) in files {
            let path = folder.join(file);
            let Some(json) = read_index(&path)? else { continue };
            let index = Index { model: name.model.clone(), map: parse_index(&path, &json)?, path, json };
            indexes.push(Arc::new(index));
        }
        for index in &indexes {
            name_sources(&mut choice, folder, index)?;
        }
        complete_sets(&mut choice, folder, &names, &indexes)?;
    }
    Ok(choice)
}

/// Lets an index decide about the files that it alone names. Named files that do not exist are missing.
///
/// # Errors
/// [`Error::SeveralModels`] if another index of the same model says otherwise.
fn name_sources(choice: &mut Choice, folder: &Path, index: &Arc<Index>) -> Result<()> {
    let numbers: BTreeMap<_, _> = index.map.files().iter().map(String::as_str).zip(0..).collect();
    let mut left = numbers.clone();
    let mut is_used = false;
    for source in &mut choice.sources {
        let file = source.path.strip_prefix(folder).ok().and_then(Path::to_str);
        if let Some(number) = file.and_then(|file| numbers.get(file)) {
            match &source.named {
                None => {
                    source.named = Some((index.clone(), *number));
                    is_used = true;
                }
                Some((other, _)) if other.model == index.model && other.json != index.json => {
                    return Err(several(folder, vec![other.path.clone(), index.path.clone()]));
                }
                Some(_) => {}
            }
        }
        file.map(|file| left.remove(file));
    }
    if is_used {
        let paths = left.keys().map(|file| folder.join(file)).filter(|path| !path.exists());
        paths.for_each(|path| choice.missing.push(path));
    }
    Ok(())
}

/// Adds what is known of the listed files that no index names: shards that are in no list and not in the folder, and warnings
/// as for a folder.
///
/// # Errors
/// [`Error::SeveralModels`] if two files of the list claim one place.
fn complete_sets(
    choice: &mut Choice,
    folder: &Path,
    names: &[(String, Name)],
    indexes: &[Arc<Index>],
) -> Result<()> {
    let sources = choice.sources.iter().filter(|source| source.named.is_none());
    let listed = sources.filter_map(|source| source.path.strip_prefix(folder).ok().and_then(Path::to_str));
    let listed: BTreeSet<_> = listed.collect();
    let of_list: Vec<_> = names.iter().filter(|(file, _)| listed.contains(file.as_str())).cloned().collect();
    for (count, set) in Sets::of(&of_list).iter() {
        set.paths(folder, Some(count))?;
    }
    for (count, set) in Sets::of(names).iter().filter(|(_, set)| listed.iter().any(|file| set.has(file))) {
        set.add_missing(count, folder, &mut choice.missing);
    }
    let models: BTreeSet<_> = of_list.iter().filter_map(|(_, name)| name.without_number()).collect();
    let models: BTreeSet<_> = models.into_iter().map(|(model, _)| model).collect();
    for numbered in models.iter().filter_map(|model| of_numbers(folder, model, &of_list).transpose()) {
        let Choice { sources, warnings, .. } = numbered?;
        choice.warnings.extend(if sources.len() > 1 { warnings } else { Vec::new() });
    }
    for index in indexes.iter().filter(|index| index.is_stale()) {
        let shard = of_list.iter().find(|(_, name)| name.model == index.model && name.role != Role::Whole);
        let warning = shard.map(|(file, _)| (index.path.clone(), folder.join(file)));
        choice.warnings.extend(warning.map(|(index, file)| Warning::StaleIndex { index, file }));
    }
    Ok(())
}

/// Chooses files without a look at their folder.
pub(in crate::formats::safetensors) fn of_files(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Choice {
    let source = |path: &Path| Source { path: path.to_owned(), named: None };
    let sources: Vec<_> = paths.into_iter().map(|path| source(path.as_ref())).collect();
    let path = sources.first().map(|source| source.path.clone()).unwrap_or_default();
    Choice { path, sources, ..Choice::default() }
}

pub(super) fn of_index(path: &Path, json: Vec<u8>) -> Result<Choice> {
    let model = path.file_name().and_then(Name::of).map(|name| name.model).unwrap_or_default();
    let index = Arc::new(Index { model, path: path.to_owned(), map: parse_index(path, &json)?, json });
    let files = index.map.files().iter().zip(0..);
    let source = |(file, number): (&String, u32)| Source {
        path: path.with_file_name(file),
        named: Some((index.clone(), number)),
    };
    let sources = files.map(source).collect();
    Ok(Choice { path: path.to_owned(), sources, ..Choice::default() })
}

fn of_folder(folder: &Path) -> Result<Choice> {
    // Saves replace an index and a whole file while others open the model, which a list of the folder may miss.
    if of_model(folder, USUAL[0], &[])?.is_some() {
        let names = folder::list(folder)?;
        if let Some(choice) = of_model(folder, USUAL[0], &names)? {
            return Ok(choice);
        }
    }
    let names = folder::list(folder)?;
    let Some(model) = folder::choose_model(folder, &names)? else {
        return match folder::snapshot(folder)? {
            Some(snapshot) => of_folder(&snapshot),
            None => Err(folder::no_model(folder)),
        };
    };
    match of_model(folder, &model, &names)? {
        Some(choice) => Ok(choice),
        // The files are gone since.
        None => Err(folder::no_model(folder)),
    }
}

/// Chooses the files of one model in a folder, of which `names` may be a list.
fn of_model(folder: &Path, model: &str, names: &[(String, Name)]) -> Result<Option<Choice>> {
    let whole = folder.join(format!("{model}.safetensors"));
    let has_whole = || fs::symlink_metadata(&whole).is_ok();
    let of_model = || names.iter().filter(|(_, name)| name.model == model);
    let sets = Sets::of(of_model());
    if let Some(choice) = index_of(&whole, of_model().filter(|(_, name)| name.role == Role::Index))? {
        let is_stale = choice.index().is_some_and(Index::is_stale);
        return match is_stale && !has_whole() {
            true => in_place_of(choice, folder, &sets).map(Some),
            false => Ok(Some(Choice { beside: has_whole().then_some(whole), ..choice })),
        };
    }
    if has_whole() {
        let skipped = |(_, set): (u64, &Set)| Warning::SkippedShards {
            file: whole.clone(),
            shard: folder.join(set.first()),
        };
        let warnings = sets.complete(false).map(skipped).collect();
        return Ok(Some(Choice { warnings, ..of_files([&whole]) }));
    }
    let mut all = sets.iter();
    if let Some((count, set)) = all.next() {
        if let Some((_, other)) = all.next() {
            return Err(several(folder, [set, other].map(|set| folder.join(set.first())).into()));
        }
        let mut choice = of_files(set.paths(folder, Some(count))?);
        set.add_missing(count, folder, &mut choice.missing);
        return Ok(Some(choice));
    }
    of_numbers(folder, model, names)
}

/// Chooses the files of the index of a model, whatever way its name is written.
fn index_of<'n>(whole: &Path, listed: impl Iterator<Item = &'n (String, Name)>) -> Result<Option<Choice>> {
    let mut found: Option<(PathBuf, Vec<u8>)> = None;
    for path in [index_path(whole)].into_iter().chain(listed.map(|(file, _)| whole.with_file_name(file))) {
        match (&found, read_index(&path)?) {
            (None, Some(json)) => found = Some((path, json)),
            (Some((first, before)), Some(json)) if *before != json => {
                return Err(several(whole.parent().unwrap_or(whole), vec![first.clone(), path]));
            }
            _ => {}
        }
    }
    found.map(|(path, json)| of_index(&path, json)).transpose()
}

/// Chooses the complete set of shards that takes the place of a stale index, none of whose files exists.
fn in_place_of(stale: Choice, folder: &Path, sets: &Sets) -> Result<Choice> {
    let mut complete = sets.complete(true);
    let Some((count, set)) = complete.next() else { return Ok(stale) };
    if let Some((_, other)) = complete.next() {
        return Err(several(folder, [set, other].map(|set| folder.join(set.first())).into()));
    }
    let choice = of_files(set.paths(folder, Some(count))?);
    let warning = Warning::StaleIndex { index: stale.path, file: choice.path.clone() };
    Ok(Choice { warnings: vec![warning], ..choice })
}

/// Chooses the files whose names differ in a number. Nothing says how many they should be.
fn of_numbers(folder: &Path, model: &str, names: &[(String, Name)]) -> Result<Option<Choice>> {
    let mut set = Set::default();
    for (file, name) in names.iter().filter(|(_, name)| name.role == Role::Whole) {
        if let Some((_, number)) = name.without_number().filter(|(key, _)| key == model) {
            set.add(number, file);
        }
    }
    let Some((first, last)) = set.ends() else { return Ok(None) };
    let choice = of_files(set.paths(folder, None)?);
    let (file, count) = (choice.path.clone(), choice.sources.len());
    let warning = Warning::Uncounted { file, count, first, last };
    Ok(Some(Choice { warnings: vec![warning], ..choice }))
}

/// Returns the shards of a model by their names, in the folder of its index, that the index does not name. Those of a save in
/// progress, or of one that was killed, do not count.
pub(super) fn unnamed_shards(index: &Index) -> Vec<PathBuf> {
    let (Some(folder), Some(file)) = (index.path.parent(), index.path.file_name()) else { return Vec::new() };
    let Some(model) = Name::of(file).filter(|name| name.role == Role::Index) else { return Vec::new() };
    let Ok(names) = folder::list(folder) else { return Vec::new() };
    let is_shard = |name: &Name| {
        name.model == model.model && matches!(&name.role, Role::Shard { series, .. } if series.is_empty())
    };
    let mut named: Vec<_> = index.map.files().iter().map(String::as_str).collect();
    named.sort_unstable();
    let is_unnamed = |file: &str| named.binary_search(&file).is_err();
    let unnamed = names.iter().filter(|(file, name)| is_shard(name) && is_unnamed(file));
    let mut paths: Vec<_> = unnamed.map(|(file, _)| folder.join(OsStr::new(file))).collect();
    paths.sort();
    paths
}
