//! The open files of a model, with the catalog of their tensors.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalog::{Catalog, Id};
use super::header::Header;
use super::split::{self, Split};
use crate::formats::clip::clip;
use crate::formats::head::{self, malformed};
use crate::formats::{Error, FormatError, Result, limit, regular};
use crate::{File, OpenOptions};

#[derive(Debug)]
pub(super) struct ModelFiles {
    /// The path that the caller opened.
    pub path: PathBuf,
    pub files: Vec<File>,
    pub catalog: Arc<Catalog>,
}

impl ModelFiles {
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self> {
        /// The most times to open the files: more than saves that follow each other at once.
        const TRIES: usize = 10;
        let open = || Self::open_by(path, &|path| regular::open(path, options));
        let mut opened = open()?;
        for _ in 1..TRIES {
            if opened.is_in_place() {
                break;
            }
            opened = open()?;
        }
        Ok(opened)
    }

    /// Returns whether the first file still has its name. A save takes that away before it replaces any other file of the
    /// model, so the open files are of one model then.
    fn is_in_place(&self) -> bool {
        let [first, _, ..] = &self.files[..] else { return true };
        let open = format!("/proc/self/fd/{}", first.as_fd().as_raw_fd());
        regular::identity(first.path()) == regular::identity(Path::new(&open))
    }

    pub(super) fn open_by(path: &Path, open: Open<'_>) -> Result<Self> {
        let (file, header) = open_file(path, open)?;
        let (files, headers) = match Split::of(&header).map_err(|error| malformed(&file, error))? {
            None => {
                split::check_alone(path).map_err(|error| malformed(&file, error))?;
                (vec![file], vec![header])
            }
            Some(split) => open_split(split, file, header, open)?,
        };
        let catalog = Catalog::new(headers).map_err(|mut twice| {
            let (numbers, tensor) = twice.pop_first().expect("a refused catalog has a name twice");
            let files = numbers.map(|number| files[number].path().to_owned());
            Error::DuplicateTensor { tensor, files }
        })?;
        Ok(Self { path: path.to_owned(), files, catalog: Arc::new(catalog) })
    }

    pub fn file(&self, number: u32) -> &File {
        &self.files[number as usize]
    }

    pub fn find(&self, name: &str) -> Result<Id> {
        self.catalog.find(name).ok_or_else(|| {
            let (path, others) = (self.path.clone(), self.files.len() - 1);
            Error::NoSuchTensor { tensor: clip(name), path, others }
        })
    }
}

type Open<'a> = &'a dyn Fn(&Path) -> crate::Result<File>;

fn open_file(path: &Path, open: Open<'_>) -> Result<(File, Header)> {
    let file = open(path)?;
    let header = head::read_until(&file, Header::parse)?;
    Ok((file, header))
}

/// Opens the other files of a split model, and checks all of them against each other.
fn open_split(split: Split, file: File, header: Header, open: Open<'_>) -> Result<(Vec<File>, Vec<Header>)> {
    /// The most missing files that an error names.
    const NAMED: usize = 8;
    let path = file.path().to_owned();
    let paths = split.paths(&path).map_err(|error| malformed(&file, error))?;
    let files_of_model = usize::try_from(split.count).unwrap_or(usize::MAX);
    limit::make_room(files_of_model);
    let mut opened = Some((file, header));
    let (mut files, mut headers) = (Vec::new(), Vec::new());
    let (mut missing, mut count) = (Vec::new(), 0);
    for (number, path) in (0..).zip(paths) {
        let other = match opened.take_if(|_| number == split.number) {
            Some(opened) => Ok(opened),
            None => open_file(&path, open),
        };
        match other {
            Ok((file, header)) => {
                split.check(number, &header).map_err(|error| malformed(&file, error))?;
                files.push(file);
                headers.push(header);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                count += 1;
                missing.extend((missing.len() < NAMED).then_some(path));
            }
            Err(Error::File(error)) => return Err(limit::explain(error, files_of_model).into()),
            Err(error) => return Err(error),
        }
    }
    if count > 0 {
        return Err(Error::Incomplete { path, missing, count, files: split.count });
    }
    let tensors = headers.iter().map(Header::len).sum();
    let format = |error: FormatError| Error::Format { path, error };
    split.check_tensors(tensors).map_err(format)?;
    Ok((files, headers))
}
