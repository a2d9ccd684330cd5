//! The open files of a model, with their catalog.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use super::super::headers::header::{Header, LENGTH_BYTES};
use super::super::headers::parse::head_len;
use super::super::packed::view::{View, Viewed};
use super::catalog::{Catalog, Id};
use super::rule::{self, Choice, Index, Source};
use super::sets::Missing;
use super::warning::Warning;
use crate::formats::clip::clip;
use crate::formats::head;
use crate::formats::limit;
use crate::formats::regular::{self, identity};
use crate::formats::{Error, Result};
use crate::{File, OpenOptions};

#[derive(Debug)]
pub(in crate::formats::safetensors) struct ModelFiles {
    /// The path that the caller opened: a file, an index, or the first of several files.
    pub path: PathBuf,
    pub files: Vec<File>,
    /// The views of those with packed tensors, whose plain tensors `files` and `catalog` have.
    pub views: Vec<Option<Arc<View>>>,
    pub catalog: Arc<Catalog>,
    pub warnings: Vec<Warning>,
}

/// Everything that opening a model found.
#[derive(Default)]
pub(super) struct Examined {
    pub model: Option<ModelFiles>,
    pub problems: Vec<Error>,
    pub warnings: Vec<Warning>,
}

impl ModelFiles {
    /// Opens a model by the rule, in the module `rule`.
    pub fn open_model(choose: impl Fn() -> Result<Choice>, options: &OpenOptions) -> Result<Self> {
        examine(choose, options).into_model()
    }

    pub fn of_choice(choice: &Choice, open: &dyn Fn(&Path) -> crate::Result<File>) -> Result<Self> {
        examine_choice(choice, open).into_model()
    }

    pub fn file(&self, id: Id) -> &File {
        &self.files[id.file as usize]
    }

    pub fn find(&self, name: &str) -> Result<Id> {
        self.catalog.find(name).ok_or_else(|| {
            let is_first = self.files.first().is_some_and(|file| file.path() == self.path);
            let others = if is_first { self.files.len() - 1 } else { 0 };
            Error::NoSuchTensor { tensor: clip(name), path: self.path.clone(), others }
        })
    }
}

/// Chooses the files of a model, opens them and reads their headers. Starts again if it finds a problem and the choice has
/// changed since: another process replaces the model.
pub(super) fn examine(choose: impl Fn() -> Result<Choice>, options: &OpenOptions) -> Examined {
    /// The most tries. A process may replace the model again and again.
    const TRIES: usize = 100;
    let open = |path: &Path| regular::open(path, options);
    let mut choice = choose();
    for _ in 1..TRIES {
        let examined = match &choice {
            Ok(choice) => examine_choice(choice, &open),
            Err(_) => Examined::default(),
        };
        if examined.model.is_some() && examined.warnings.is_empty() {
            return examined;
        }
        match (choose(), &choice) {
            (Ok(now), Ok(before)) if now.sources != before.sources => choice = Ok(now),
            (Ok(now), Err(_)) => choice = Ok(now),
            // Another model, and then one of the first names again, took the place of the one that was chosen.
            (Ok(_), Ok(_)) if examined.missed_files_that_exist() => {}
            (Ok(_), Ok(_)) => return examined,
            (Err(error), _) => return Examined { problems: vec![error], ..Examined::default() },
        }
    }
    let error = |error| Examined { problems: vec![error], ..Examined::default() };
    choice.map_or_else(error, |choice| examine_choice(&choice, &open))
}

fn examine_choice(choice: &Choice, open: &dyn Fn(&Path) -> crate::Result<File>) -> Examined {
    limit::make_room(choice.sources.len());
    let mut opening = Opening { warnings: choice.warnings.clone(), ..Opening::default() };
    for source in &choice.sources {
        opening.note(source, open(&source.path), choice.sources.len());
        if opening.is_full {
            break;
        }
    }
    let index = choice.index();
    if let (Some(beside), Some(index)) = (&choice.beside, index) {
        // Looks at the file once, because a save may remove it at any time.
        let identity_beside = identity(beside);
        if opening.missing.count == choice.sources.len() as u64 && identity_beside.is_some() {
            let mut examined = examine_choice(&rule::of_files([beside]), open);
            let warning = Warning::StaleIndex { index: index.path.clone(), file: beside.clone() };
            examined.warnings.insert(0, warning.clone());
            examined.model.iter_mut().for_each(|model| model.warnings.insert(0, warning.clone()));
            return examined;
        }
        let is_same = opening.files.iter().any(|file| identity(file.path()) == identity_beside);
        if identity_beside.is_some() && !is_same {
            let models = vec![index.path.clone(), beside.clone()];
            let folder = beside.parent().unwrap_or(beside).to_owned();
            opening.problems.insert(0, Error::SeveralModels { folder, models });
        }
    }
    opening.finish(choice, index)
}

#[derive(Default)]
struct Opening {
    files: Vec<File>,
    views: Vec<Option<Arc<View>>>,
    headers: Vec<Header>,
    missing: Missing,
    is_full: bool,
    problems: Vec<Error>,
    warnings: Vec<Warning>,
}

impl Opening {
    fn note(&mut self, source: &Source, opened: crate::Result<File>, files: usize) {
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                let is_part = source.named.is_some() || files > 1 || source.path.is_symlink();
                self.is_full = error.raw_os_error() == Some(libc::EMFILE);
                match error.kind() == ErrorKind::NotFound && is_part {
                    true => self.missing.push(source.path.clone()),
                    false => self.problems.push(limit::explain(error, files).into()),
                }
                return;
            }
        };
        match plain(file) {
            Ok(Viewed { file, mut header, view }) => {
                if let Some((index, number)) = &source.named {
                    self.choose_tensors(&mut header, file.path(), index, *number);
                }
                self.files.push(file);
                self.views.push(view);
                self.headers.push(header);
            }
            Err(errors) => self.problems.extend(errors),
        }
    }

    /// Leaves out the tensors that the index does not name for this file.
    fn choose_tensors(&mut self, header: &mut Header, file: &Path, index: &Arc<Index>, number: u32) {
        const NAMED: usize = 8;
        if index.map.of_file(number).eq(header.sorted_names()) {
            return;
        }
        let is_named = |name: &str| index.map.is_in(name, number);
        let mut count = 0;
        let mut tensors = Vec::new();
        for name in header.tensors().map(|tensor| tensor.name).filter(|name| !is_named(name)) {
            count += 1;
            if tensors.len() < NAMED {
                tensors.push(clip(name));
            }
        }
        let absent = index.map.of_file(number).len() - (header.len() - count);
        if absent > 0 {
            let mut names = index.map.of_file(number).filter(|name| header.get(name).is_none());
            self.problems.push(Error::NotInShard {
                tensor: clip(names.next().unwrap_or_default()),
                others: absent - 1,
                file: file.to_owned(),
                index: index.path.clone(),
            });
        }
        if count > 0 {
            header.retain(is_named);
            let (file, index) = (file.to_owned(), index.path.clone());
            self.warnings.push(Warning::SkippedTensors { file, index, tensors, count });
        }
    }

    fn finish(mut self, choice: &Choice, index: Option<&Index>) -> Examined {
        let absent = &choice.missing;
        let count = self.missing.count + absent.count;
        if count > 0 {
            let mut missing: Vec<_> = self.missing.files.iter().chain(&absent.files).cloned().collect();
            missing.sort();
            let files = choice.sources.len() as u64 + absent.count;
            let path = choice.path.clone();
            self.problems.push(Error::Incomplete { path, missing, count, files });
        }
        let files = &self.files;
        let path = |number: usize| files[number].path().to_owned();
        let order = index.filter(|_| self.problems.is_empty()).and_then(|index| order_of(choice, index));
        let catalog = match order {
            Some(order) => Ok(Catalog::in_order(self.headers, order)),
            None => Catalog::new(self.headers),
        };
        let catalog = match catalog {
            Ok(catalog) => Some(catalog),
            Err(twice) => {
                let twice = twice.into_iter().map(|([one, other], tensor)| Error::DuplicateTensor {
                    tensor,
                    files: [path(one), path(other)],
                });
                self.problems.extend(twice);
                None
            }
        };
        let unnamed = index.map(|index| (index.path.clone(), rule::unnamed_shards(index)));
        if let Some((index, files)) = unnamed {
            let warning = |file| Warning::UnnamedShard { file, index: index.clone() };
            self.warnings.extend(files.into_iter().map(warning));
        }
        let Self { files, views, problems, warnings, .. } = self;
        let model = catalog.filter(|_| problems.is_empty()).map(|catalog| ModelFiles {
            path: choice.path.clone(),
            files,
            views,
            catalog: Arc::new(catalog),
            warnings: warnings.clone(),
        });
        Examined { model, problems, warnings }
    }
}

impl Examined {
    /// Returns whether a file that was absent when it was opened is there now.
    fn missed_files_that_exist(&self) -> bool {
        self.problems.iter().any(|problem| match problem {
            Error::File(error @ crate::Error::Open { path, .. }) => {
                error.kind() == ErrorKind::NotFound && path.exists()
            }
            Error::Incomplete { missing, .. } => missing.iter().any(|path| path.exists()),
            _ => false,
        })
    }

    fn into_model(mut self) -> Result<ModelFiles> {
        self.model.ok_or_else(|| self.problems.swap_remove(0))
    }
}

/// Returns the position of the file of each tensor among the sources, by the names of the tensors. Returns `None` if other
/// files than those of the index take part, or one twice.
fn order_of<'a>(choice: &Choice, index: &'a Index) -> Option<impl Iterator<Item = u32> + use<'a>> {
    let mut positions = vec![None; index.map.files().len()];
    for (position, source) in (0..).zip(&choice.sources) {
        let (_, number) = source.named.as_ref().filter(|(of, _)| ptr::eq(&**of, index))?;
        if positions[*number as usize].replace(position).is_some() {
            return None;
        }
    }
    Some(index.map.file_numbers().filter_map(move |number| positions[number as usize]))
}

/// Reads the header of a file. Takes the view of one with packed tensors in its place.
fn plain(file: File) -> Result<Viewed, Vec<Error>> {
    let header = header_of(&file)?;
    View::of(file, header).map_err(|error| vec![error])
}

fn header_of(file: &File) -> Result<Header, Vec<Error>> {
    /// The bytes that are read first, enough to recognize files of other formats.
    const PREFIX_BYTES: usize = 512;
    const { assert!(PREFIX_BYTES as u64 >= LENGTH_BYTES) };
    let (head, file_len) = head::read(file, PREFIX_BYTES, head_len).map_err(|error| vec![error])?;
    let malformed = |errors: Vec<_>| errors.into_iter().map(|error| head::malformed(file, error)).collect();
    Header::parse_all(&head, file_len).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    /// Chooses a file that does not exist, until its second choice calls a function with the path. Returns the outcome and the
    /// number of choices.
    fn examined(at_second: impl Fn(&Path)) -> (Examined, u32) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let choices = Cell::new(0);
        let choose = || {
            choices.set(choices.get() + 1);
            if choices.get() == 2 {
                at_second(&path);
            }
            Ok(rule::of_files([&path]))
        };
        (examine(choose, &OpenOptions::new()), choices.get())
    }

    /// Another process moves the file away and puts one of that name back, between the choice and the next.
    #[test]
    fn files_that_come_back_are_opened() {
        let (examined, choices) = examined(|path| fs::write(path, b"\x02\0\0\0\0\0\0\0{}").unwrap());
        assert!(examined.model.is_some());
        assert_eq!(choices, 2);
    }

    #[test]
    fn files_that_stay_away_are_reported_at_once() {
        let (examined, choices) = examined(|_| {});
        assert_eq!(examined.problems[0].kind(), ErrorKind::NotFound);
        assert_eq!(choices, 2);
    }
}
