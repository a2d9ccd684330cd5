//! The folders of a store: which belong together, and in which order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Cause, Error, Result};
use crate::kv_blocks::entry::Header;
use crate::kv_blocks::files::{Folder, is_ours, require_none};
use crate::kv_blocks::index::Index;
use crate::local_path;
use crate::trusted::PrivateFolder;

/// The folders of a store in their order, with the index of each.
pub struct Folders {
    pub folders: Arc<[Folder]>,
    pub indexes: Vec<Index>,
    /// The header of the first, or `None` for a store that is new.
    pub header: Option<Header>,
}

struct Opened {
    folder: PrivateFolder,
    index: Index,
    header: Option<Header>,
}

/// Checks a list of folders.
///
/// # Errors
/// [`Cause::Invalid`] if it has none or too many, or has an address.
pub fn check(paths: &[PathBuf]) -> Result<()> {
    if paths.is_empty() || paths.len() > usize::from(u16::MAX) {
        let why = format!("a block store has 1 to {} folders, and {} were named", u16::MAX, paths.len());
        return Err(Error::Cufile { cause: Cause::Invalid(why) });
    }
    paths.iter().try_for_each(|path| local_path::check(path))
}

impl Folders {
    /// Opens or makes folders, and locks the index of each.
    ///
    /// # Errors
    /// If another store has one open, or if they are not the folders of one store.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| {
            let folder = PrivateFolder::open(path, false, is_ours).map_err(|cause| failed(path, cause))?;
            if !Index::is_in(&folder)? {
                require_none(&folder)?;
            }
            let (index, header) = Index::open(&folder)?;
            if header.is_none() {
                require_none(&folder)?;
            }
            Ok(Opened { folder, index, header })
        };
        let opened: Vec<_> = paths.iter().map(open).collect::<Result<_>>()?;
        // A process that was killed had not written the header of the first folder, which comes last.
        let mut headers = opened.iter().filter_map(|opened| opened.header.as_ref());
        let first = headers.next();
        let count = opened.len() as u16;
        let is_unfinished = first.is_none_or(|first| first.folder > 0 && first.folders == count)
            && headers.all(|other| other.folder > 0 && first.is_some_and(|first| same_store(first, other)));
        if is_unfinished && opened.iter().all(|opened| require_none(&opened.folder).is_ok()) {
            return Self::new(opened, None);
        }
        Self::in_order(opened)
    }

    /// Opens the folders of a store to read them.
    ///
    /// # Errors
    /// If they are not the folders of one store.
    pub fn open_to_read(paths: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| {
            let folder = PrivateFolder::open_existing(path, is_ours).map_err(|cause| failed(path, cause))?;
            let (index, header) = Index::open_to_read(&folder)?;
            Ok(Opened { folder, index, header })
        };
        Self::in_order(paths.iter().map(open).collect::<Result<_>>()?)
    }

    /// Puts the folders of one store into their order.
    fn in_order(mut opened: Vec<Opened>) -> Result<Self> {
        let count = opened.len();
        let first = opened.iter().find_map(|opened| Some((opened.header?, opened.folder.path().to_owned())));
        for Opened { index, header, .. } in &opened {
            let why = match (header, &first) {
                (None, None) => "no store has been made there yet".to_owned(),
                (None, Some((_, path))) => {
                    format!("the folder is not one of the store in {}, and is empty", path.display())
                }
                (Some(header), _) if usize::from(header.folders) != count => {
                    format!("its store has {} folders, and {count} were named", header.folders)
                }
                (Some(header), Some((first, path))) if !same_store(first, header) => {
                    format!("the folder belongs to another store than {}", path.display())
                }
                _ => continue,
            };
            return Err(index.invalid("use", why));
        }
        opened.sort_by_key(|opened| opened.header.map(|header| header.folder));
        let number = |opened: &Opened| opened.header.map(|header| usize::from(header.folder));
        if let Some((_, twice)) = opened.iter().enumerate().find(|(at, opened)| number(opened) != Some(*at)) {
            return Err(twice.index.invalid("use", "another folder is a copy of it".to_owned()));
        }
        let header = opened[0].header;
        Self::new(opened, header)
    }

    fn new(opened: Vec<Opened>, header: Option<Header>) -> Result<Self> {
        let (mut folders, mut indexes) = (Vec::new(), Vec::new());
        for Opened { folder, index, .. } in opened {
            folders.push(Folder { folder, index: index.inode()? });
            indexes.push(index);
        }
        Ok(Self { folders: folders.into(), indexes, header })
    }
}

fn same_store(one: &Header, other: &Header) -> bool {
    (one.store, one.folders) == (other.store, other.folders)
}

fn failed(path: &Path, cause: Cause) -> Error {
    Error::Open { path: path.to_owned(), cause }
}
