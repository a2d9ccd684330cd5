//! The rule that tells which files are a model, and which tensors of each file. `docs/models.md` states it clause by clause.
//!
//! The folder is only listed here, and indexes are read. `files` opens what was chosen.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::headers::index::ShardIndex;
use super::super::headers::index_file::{index_path, parse_index, read_index};
use super::folder;
use super::names::{Name, Role, USUAL};
use crate::formats::{Error, Result};

/// The files of a model.
#[derive(Default)]
pub(in crate::formats::safetensors) struct Choice {
    /// The path of the model in errors: an index, or the first file.
    pub path: PathBuf,
    pub sources: Vec<Source>,
    /// The files that the model lacks.
    pub missing: Missing,
    /// A file with the name of the whole model, in the folder of the index.
    pub beside: Option<PathBuf>,
}

/// A file to open.
#[derive(Clone, PartialEq)]
pub(in crate::formats::safetensors) struct Source {
    pub path: PathBuf,
    /// The index that names the file, and the file's number there.
    pub named: Option<(Arc<Index>, u32)>,
}

/// An index in a file.
pub(in crate::formats::safetensors) struct Index {
    pub path: PathBuf,
    pub map: ShardIndex,
    json: Vec<u8>,
}

impl PartialEq for Index {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.json) == (&other.path, &other.json)
    }
}

/// Files that are not there.
#[derive(Default)]
pub(in crate::formats::safetensors) struct Missing {
    /// The first of the missing files.
    pub files: Vec<PathBuf>,
    pub count: u64,
}

impl Missing {
    /// The most files that are kept by name. A file name can claim any number of shards.
    const NAMED: usize = 8;

    pub fn push(&mut self, path: PathBuf) {
        self.count += 1;
        if self.files.len() < Self::NAMED {
            self.files.push(path);
        }
    }
}

/// Chooses the files of the model at a path: a folder, an index, or a file.
///
/// # Errors
/// [`Error::File`], [`Error::Format`] of an index, [`Error::NoModel`], [`Error::SeveralModels`].
pub(in crate::formats::safetensors) fn choose(path: &Path) -> Result<Choice> {
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
///
/// # Errors
/// As [`choose`].
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
        let mut indexes: Vec<_> = names.iter().filter(|(_, name)| name.role == Role::Index).collect();
        indexes.sort_by_key(|(file, _)| (file.len(), file));
        for (file, _) in indexes {
            let path = folder.join(file);
            let Some(json) = read_index(&path)? else { continue };
            name_sources(
                &mut choice,
                folder,
                Arc::new(Index { map: parse_index(&path, &json)?, path, json }),
            );
        }
        complete_shards(&mut choice, folder, &names);
    }
    Ok(choice)
}

/// Lets an index decide on those of the files that it names and no other does. Files that it names and that do not exist are
/// missing.
fn name_sources(choice: &mut Choice, folder: &Path, index: Arc<Index>) {
    let numbers: BTreeMap<_, _> = index.map.files().iter().map(String::as_str).zip(0..).collect();
    let mut left = numbers.clone();
    let mut is_used = false;
    for source in &mut choice.sources {
        let file = source.path.strip_prefix(folder).ok().and_then(Path::to_str);
        if let Some(number) = file.and_then(|file| numbers.get(file))
            && source.named.is_none()
        {
            source.named = Some((index.clone(), *number));
            is_used = true;
        }
        file.map(|file| left.remove(file));
    }
    if is_used {
        let paths = left.keys().map(|file| folder.join(file)).filter(|path| !path.exists());
        paths.for_each(|path| choice.missing.push(path));
    }
}

/// Adds the shards that are in no list and not in the folder, for files that no index names.
fn complete_shards(choice: &mut Choice, folder: &Path, names: &[(String, Name)]) {
    let mut sets = Sets::default();
    names.iter().for_each(|(file, name)| sets.add(file, name));
    for ((model, series, count), numbers) in sets.0 {
        let is_listed = |source: &Source| {
            let file = source.path.strip_prefix(folder).ok().and_then(Path::to_str);
            source.named.is_none() && file.is_some_and(|file| numbers.values().any(|shard| shard == file))
        };
        if choice.sources.iter().any(is_listed) {
            add_missing(&mut choice.missing, folder, &(model, series, count), &numbers);
        }
    }
}

/// Chooses files without a look at their folder.
pub(in crate::formats::safetensors) fn of_files(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Choice {
    let source = |path: &Path| Source { path: path.to_owned(), named: None };
    let sources: Vec<_> = paths.into_iter().map(|path| source(path.as_ref())).collect();
    let path = sources.first().map(|source| source.path.clone()).unwrap_or_default();
    Choice { path, sources, ..Choice::default() }
}

pub(super) fn of_index(path: &Path, json: Vec<u8>) -> Result<Choice> {
    let index = Arc::new(Index { path: path.to_owned(), map: parse_index(path, &json)?, json });
    let files = index.map.files().iter().zip(0..);
    let source = |(file, number): (&String, u32)| Source {
        path: path.with_file_name(file),
        named: Some((index.clone(), number)),
    };
    let sources = files.map(source).collect();
    Ok(Choice { path: path.to_owned(), sources, ..Choice::default() })
}

fn of_folder(folder: &Path) -> Result<Choice> {
    // Saves replace these two while others open the model, which a list of the folder may miss.
    if let Some(choice) = of_model(folder, USUAL[0], &[])? {
        return Ok(choice);
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
    let listed = of_model().filter(|(_, name)| name.role == Role::Index).map(|(file, _)| folder.join(file));
    for path in [index_path(&whole)].into_iter().chain(listed) {
        if let Some(json) = read_index(&path)? {
            let choice = of_index(&path, json)?;
            return Ok(Some(Choice { beside: has_whole().then_some(whole), ..choice }));
        }
    }
    if has_whole() {
        return Ok(Some(of_files([whole])));
    }
    let mut sets = Sets::default();
    of_model().for_each(|(file, name)| sets.add(file, name));
    let mut sets = sets.0.into_iter();
    if let Some((key, numbers)) = sets.next() {
        if let Some((_, others)) = sets.next() {
            let models = [&numbers, &others].map(|set| folder.join(&set[set.keys().next().expect("a set")]));
            return Err(Error::SeveralModels { folder: folder.to_owned(), models: models.into() });
        }
        let mut choice = of_files(numbers.values().map(|file| folder.join(file)));
        add_missing(&mut choice.missing, folder, &key, &numbers);
        return Ok(Some(choice));
    }
    // Files that differ in a number.
    let numbered = names.iter().filter(|(_, name)| {
        name.role == Role::Whole && name.without_number().is_some_and(|key| key == model)
    });
    let mut files: Vec<_> = numbered.map(|(file, _)| folder.join(file)).collect();
    files.sort();
    Ok((!files.is_empty()).then(|| of_files(files)))
}

type Key = (String, String, u64);

/// The sets of shards: for the model, the series and the count of shards, the file of each number.
#[derive(Default)]
struct Sets(BTreeMap<Key, BTreeMap<u64, String>>);

impl Sets {
    fn add(&mut self, file: &str, name: &Name) {
        if let Role::Shard { series, count, number } = &name.role {
            let set = self.0.entry((name.model.clone(), series.clone(), *count)).or_default();
            set.insert(*number, file.to_owned());
        }
    }
}

/// Adds the shards that a set lacks. The numbers count from 1, or from 0 if there is one of that number and none of the last.
fn add_missing(missing: &mut Missing, folder: &Path, key: &Key, numbers: &BTreeMap<u64, String>) {
    let count = key.2;
    let first = u64::from(!numbers.contains_key(&0) || numbers.contains_key(&count));
    let present = numbers.range(first..first + count).count() as u64;
    let (_, like) = numbers.iter().next().expect("a set has a shard");
    let absent = (first..first + count).filter(|number| !numbers.contains_key(number));
    let before = missing.files.len();
    for number in absent.take(Missing::NAMED - before) {
        missing.files.push(folder.join(file_like(like, number)));
    }
    missing.count += count - present;
}

/// Returns the file name of a shard, from that of another.
fn file_like(like: &str, number: u64) -> String {
    let of = like.rfind("-of-").or_else(|| like.rfind("_of_")).unwrap_or(0);
    let start = like[..of].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    format!("{}{number:0width$}{}", &like[..start], &like[of..], width = of - start)
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
