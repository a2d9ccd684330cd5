//! A cache of whole objects in a folder, which processes of one user share.
//!
//! Each object is a file whose name is a hash of the address, the version and the length. While it is fetched, it is a file
//! with the ending `.part`, which its process has locked. It gets its name when all bytes are on the disk. The cache neither
//! serves nor deletes other files.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::error::{Cause, Error};
use crate::trusted::PrivateFolder;

const OURS: &str = "gpufile-";
const PART: &str = ".part";
/// The number of times that a part is opened while other processes end with theirs.
const ATTEMPTS: usize = 16;

/// A folder of objects, and the most bytes that they may have together.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    pub folder: PathBuf,
    pub most_bytes: u64,
}

#[derive(Debug)]
pub(super) struct OpenCache {
    folder: PrivateFolder,
    most_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Place<'c> {
    cache: &'c OpenCache,
    name: OsString,
    len_bytes: u64,
}

/// A file that this process fetches.
#[derive(Debug)]
pub(super) struct Part<'c> {
    pub file: File,
    place: &'c Place<'c>,
    is_whole: bool,
}

impl Cache {
    /// Opens the folder, and makes it and those above it if need be.
    ///
    /// # Errors
    /// [`Error::Open`], also if other users could have put objects into it.
    pub fn open(&self) -> Result<OpenCache, Error> {
        let opened = PrivateFolder::open(&self.folder, true, is_ours)
            .and_then(|folder| folder.make_private().map(|()| folder).map_err(Cause::from));
        let folder = opened.map_err(|cause| Error::Open { path: self.folder.clone(), cause })?;
        Ok(OpenCache { folder, most_bytes: self.most_bytes })
    }
}

impl OpenCache {
    pub fn place(&self, address: &str, etag: &str, len_bytes: u64) -> Place<'_> {
        let hash = Sha256::digest(format!("{address}\n{etag}\n{len_bytes}"));
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Place { cache: self, name: format!("{OURS}{hash}").into(), len_bytes }
    }

    /// Deletes the files used longest ago, except those that a process fetches, until the others have at most
    /// `most_bytes` bytes.
    fn make_room(&self, most_bytes: u64) -> io::Result<()> {
        let mut files: Vec<_> = self.folder.names()?;
        files.retain(|name| is_ours(name));
        let file_of = |name: OsString| {
            let metadata = self.folder.open_file(&name, libc::O_RDONLY).ok()?.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), name))
        };
        let mut files: Vec<_> = files.into_iter().filter_map(file_of).collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, len_bytes, _)| len_bytes).sum();
        for (_, len_bytes, name) in files {
            if total > most_bytes && self.remove(&name).is_ok_and(|removed| removed) {
                total -= len_bytes;
            }
        }
        Ok(())
    }

    /// Deletes a file. Returns false if a process is fetching it.
    fn remove(&self, name: &OsStr) -> Result<bool, Cause> {
        // The lock holds until the file is deleted.
        let part = self.folder.open_file(name, libc::O_RDONLY)?;
        let can = !is_part(name) || self.is_left(&part, name)?;
        if can {
            self.folder.remove(name)?;
        }
        Ok(can)
    }

    /// Locks a part. Returns whether its process has ended, and left it.
    fn is_left(&self, part: &File, name: &OsStr) -> io::Result<bool> {
        Ok(lock(part)? && self.has_name(part, name))
    }

    /// Returns whether a file still has a name. The process that had its lock may have renamed or deleted it.
    fn has_name(&self, file: &File, name: &OsStr) -> bool {
        let inode = file.metadata().map(|metadata| metadata.ino());
        self.folder.inode(name).is_ok_and(|there| inode.is_ok_and(|inode| inode == there))
    }
}

/// Returns whether a file has a name that the cache gives.
fn is_ours(name: &OsStr) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_hash = |name: &str| name.len() == 64 && name.bytes().all(is_digit);
    let hash = name.to_str().and_then(|name| name.strip_prefix(OURS));
    hash.is_some_and(|name| is_hash(name.strip_suffix(PART).unwrap_or(name)))
}

fn is_part(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(PART.as_bytes())
}

/// Locks a file until it is closed. Returns false if another process has it.
fn lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

impl Place<'_> {
    fn part(&self) -> OsString {
        let mut name = self.name.clone();
        name.push(PART);
        name
    }

    /// Opens the file, if the cache has it.
    ///
    /// # Errors
    /// [`Error::Open`] if something else has its name.
    pub fn open(&self) -> Result<Option<File>, Error> {
        let found = self.cache.folder.find_file(&self.name, libc::O_RDONLY);
        let found = found.map_err(|cause| self.failed(&self.name, cause))?;
        Ok(found.filter(|file| {
            // Files with old times are deleted earlier.
            let _ = file.set_modified(SystemTime::now());
            file.metadata().is_ok_and(|metadata| metadata.len() == self.len_bytes)
        }))
    }

    /// Makes room for the object, and a file. Returns `None` if the cache cannot have it now, for example because it is too
    /// long, or another process fetches it.
    ///
    /// # Errors
    /// [`Error::Open`] if something else has the name of the file.
    pub fn begin(&self) -> Result<Option<Part<'_>>, Error> {
        match self.try_to_begin() {
            Err(Cause::Io(_)) => Ok(None),
            begun => begun.map_err(|cause| self.failed(&self.part(), cause)),
        }
    }

    fn try_to_begin(&self) -> Result<Option<Part<'_>>, Cause> {
        let OpenCache { folder, most_bytes } = self.cache;
        let Some(room) = most_bytes.checked_sub(self.len_bytes) else { return Ok(None) };
        self.cache.make_room(room)?;
        for _ in 0..ATTEMPTS {
            let file = folder.open_file(&self.part(), libc::O_RDWR | libc::O_CREAT)?;
            if !lock(&file)? {
                return Ok(None);
            }
            if self.cache.has_name(&file, &self.part()) {
                file.set_len(0)?;
                return Ok(Some(Part { file, place: self, is_whole: false }));
            }
        }
        Ok(None)
    }

    fn failed(&self, name: &OsStr, cause: Cause) -> Error {
        Error::Open { path: self.cache.folder.path_of(name), cause }
    }
}

impl Part<'_> {
    /// Gives the file its name, after all bytes are on the disk.
    pub fn end(mut self) -> io::Result<()> {
        let Place { cache, name, .. } = self.place;
        self.file.sync_data()?;
        cache.folder.rename(&self.place.part(), name)?;
        self.is_whole = true;
        // Others may have fetched at the same time.
        cache.make_room(cache.most_bytes)
    }
}

impl Drop for Part<'_> {
    /// Deletes an unfinished file.
    fn drop(&mut self) {
        if !self.is_whole {
            // This process still has the lock, so the file is its own.
            let _ = self.place.cache.folder.remove(&self.place.part());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn cache(folder: &Path, most_bytes: u64) -> OpenCache {
        Cache { folder: folder.join("a/b"), most_bytes }.open().unwrap()
    }

    fn fill(place: &Place<'_>, byte: u8) {
        let mut part = place.begin().unwrap().unwrap();
        part.file.write_all(&vec![byte; place.len_bytes as usize]).unwrap();
        part.end().unwrap();
    }

    fn path(place: &Place<'_>) -> PathBuf {
        place.cache.folder.path_of(&place.name)
    }

    fn names(cache: &OpenCache) -> usize {
        cache.folder.names().unwrap().len()
    }

    #[test]
    fn files_are_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1000);
        let place = cache.place("http://a", "\"1\"", 100);
        assert!(place.open().unwrap().is_none());
        let mut part = place.begin().unwrap().unwrap();
        part.file.write_all(&[1; 99]).unwrap();
        assert!(place.open().unwrap().is_none());
        assert!(place.begin().unwrap().is_none(), "another fetches it");
        drop(part);
        assert_eq!(names(&cache), 0);
        // What a killed process left is overwritten.
        fs::write(cache.folder.path_of(&place.part()), [9; 500]).unwrap();
        fill(&place, 1);
        assert_eq!((place.open().unwrap().unwrap().metadata().unwrap().len(), names(&cache)), (100, 1));
        // A file that others shortened is no object.
        fs::write(path(&place), [1; 99]).unwrap();
        assert!(place.open().unwrap().is_none());
        fill(&place, 2);
        assert_eq!(io::read_to_string(place.open().unwrap().unwrap()).unwrap(), "\u{2}".repeat(100));
    }

    #[test]
    fn objects_differ_by_address_version_and_length() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 0);
        let places = [("a", "1", 1), ("b", "1", 1), ("a", "2", 1), ("a", "1", 2)]
            .map(|(address, etag, len_bytes)| cache.place(address, etag, len_bytes));
        let distinct: std::collections::HashSet<_> = places.iter().map(|place| &place.name).collect();
        assert_eq!(distinct.len(), 4);
        assert!(places.iter().all(|place| is_ours(&place.name) && is_ours(&place.part())));
        let hash = "0123456789abcdef".repeat(4);
        for other in [
            hash.clone(),
            format!("{hash}.part"),
            format!("gpufile-{hash}.part.part"),
            format!("gpufile-{hash}.txt"),
            format!("gpufile-{hash}0"),
            format!("gpufile-{}", hash.to_uppercase()),
            "gpufile-.part".to_owned(),
        ] {
            assert!(!is_ours(OsStr::new(&other)), "{other}");
        }
    }

    #[test]
    fn files_used_longest_ago_are_deleted_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1000);
        // Of other programs, which name files by hashes too.
        for other in ["other".to_owned(), "a".repeat(64), format!("{}.part", "b".repeat(64))] {
            fs::write(cache.folder.path_of(OsStr::new(&other)), [0; 5000]).unwrap();
        }
        let places = ["a", "b", "c"].map(|address| cache.place(address, "1", 300));
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        for (number, place) in (0..).zip(&places) {
            fill(place, number);
            let file = File::options().write(true).open(path(place)).unwrap();
            file.set_modified(long_ago + Duration::from_secs(10 * u64::from(number))).unwrap();
        }
        assert!(places[0].open().unwrap().is_some(), "now it was used last");
        fill(&cache.place("d", "1", 200), 4);
        assert_eq!(places.each_ref().map(|place| path(place).exists()), [true, false, true]);
        // What is being fetched stays, and what a killed process left does not.
        let place = cache.place("e", "1", 100);
        let part = place.begin().unwrap().unwrap();
        let left = cache.folder.path_of(&cache.place("f", "1", 100).part());
        fs::write(&left, [0; 100]).unwrap();
        fill(&cache.place("g", "1", 1000), 5);
        assert!(cache.folder.path_of(&place.part()).exists() && !left.exists());
        assert_eq!(names(&cache), 5);
        assert!(cache.place("h", "1", 1001).begin().unwrap().is_none(), "it is too long");
        assert_eq!(names(&cache), 5);
        drop(part);
    }

    #[test]
    fn nobody_deletes_what_another_fetches() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1000);
        let place = cache.place("a", "1", 100);
        let (part, name) = (place.begin().unwrap().unwrap(), place.part());
        // Another process opens the part, and then waits for its turn.
        let opened = cache.folder.open_file(&name, libc::O_RDONLY).unwrap();
        assert!(!cache.is_left(&opened, &name).unwrap(), "it is being fetched");
        drop(part);
        let _part = place.begin().unwrap().unwrap();
        assert!(!cache.is_left(&opened, &name).unwrap(), "a third process has made it anew");
        assert!(!cache.remove(&name).unwrap() && names(&cache) == 1);
    }
}
