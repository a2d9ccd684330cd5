//! A cache of whole objects in a folder, which processes share.
//!
//! Each object is a file whose name is a hash of the address, the version and the length. While it is fetched, it is a file
//! with the ending `.part`, which its process has locked. It gets its name when all bytes are on the disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// The ending of the name of a file that is not whole.
const PART: &str = "part";
/// The number of times that a part is opened while other processes end with theirs.
const ATTEMPTS: usize = 16;

/// A folder of objects, and the most bytes that they may have together.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    pub folder: PathBuf,
    pub most_bytes: u64,
}

/// The file of an object in a cache.
#[derive(Debug)]
pub(super) struct Place<'c> {
    cache: &'c Cache,
    path: PathBuf,
    len_bytes: u64,
}

/// A file that is being fetched, which no other process writes.
#[derive(Debug)]
pub(super) struct Part<'c> {
    pub file: File,
    cache: &'c Cache,
    path: PathBuf,
    whole: PathBuf,
    is_whole: bool,
}

impl Cache {
    /// Makes the folder, which only the user may read.
    pub fn make_folder(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    /// Returns the place of an object of this version.
    pub fn place(&self, address: &str, etag: &str, len_bytes: u64) -> Place<'_> {
        let hash = Sha256::digest(format!("{address}\n{etag}\n{len_bytes}"));
        let name: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Place { cache: self, path: self.folder.join(name), len_bytes }
    }

    /// Deletes the files that were used longest ago, until the others have at most so many bytes. Does not delete what
    /// a process fetches.
    fn make_room(&self, most_bytes: u64) -> io::Result<()> {
        let mut files: Vec<_> = fs::read_dir(&self.folder)?
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let metadata = fs::symlink_metadata(&path).ok().filter(|_| is_ours(&path))?;
                Some((metadata.modified().ok()?, metadata.len(), path))
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, len_bytes, _)| len_bytes).sum();
        for (_, len_bytes, path) in files {
            if total > most_bytes && remove(&path).is_ok() {
                total -= len_bytes;
            }
        }
        Ok(())
    }
}

/// Returns whether a file has a name that the cache gives.
fn is_ours(path: &Path) -> bool {
    let is_hash = |name: &str| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let ending = path.extension();
    path.file_stem().and_then(|stem| stem.to_str()).is_some_and(is_hash)
        && ending.is_none_or(|ending| ending == PART)
}

/// Deletes a file, unless a process is fetching it.
fn remove(path: &Path) -> io::Result<()> {
    if path.extension().is_some() && !lock(&File::open(path)?)? {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    fs::remove_file(path)
}

/// Locks a file for this process until it is closed. Returns false if another one has it.
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

impl<'c> Place<'c> {
    /// Opens the file, if the cache has it.
    pub fn open(&self) -> Option<File> {
        let file = File::open(&self.path).ok()?;
        // Files that others may not change are old to them, and are deleted earlier.
        let _ = file.set_modified(SystemTime::now());
        file.metadata().is_ok_and(|metadata| metadata.len() == self.len_bytes).then_some(file)
    }

    /// Makes room for the object, and a file for its bytes. Returns `None` if the object is too long for the cache, or if
    /// another process fetches it.
    pub fn begin(&self) -> io::Result<Option<Part<'c>>> {
        let Some(room) = self.cache.most_bytes.checked_sub(self.len_bytes) else { return Ok(None) };
        self.cache.make_room(room)?;
        let path = self.path.with_extension(PART);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        for _ in 0..ATTEMPTS {
            let file = options.open(&path)?;
            if !lock(&file)? {
                return Ok(None);
            }
            // The process that had the lock before may have given the file its name.
            let is_same = fs::metadata(&path)
                .is_ok_and(|there| file.metadata().is_ok_and(|file| there.ino() == file.ino()));
            if is_same {
                file.set_len(0)?;
                let (cache, whole) = (self.cache, self.path.clone());
                return Ok(Some(Part { file, cache, path, whole, is_whole: false }));
            }
        }
        Ok(None)
    }
}

impl Part<'_> {
    /// Gives the file its name, after all bytes are on the disk.
    pub fn end(mut self) -> io::Result<()> {
        self.file.sync_data()?;
        fs::rename(&self.path, &self.whole)?;
        self.is_whole = true;
        // Others may have fetched at the same time.
        self.cache.make_room(self.cache.most_bytes)
    }
}

impl Drop for Part<'_> {
    /// Deletes a file that did not get its name.
    fn drop(&mut self) {
        if !self.is_whole {
            // This process still has the lock, so the file is its own.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    fn cache(folder: &Path, most_bytes: u64) -> Cache {
        let cache = Cache { folder: folder.join("a/b"), most_bytes };
        cache.make_folder().unwrap();
        cache
    }

    fn fill(place: &Place<'_>, byte: u8) {
        let mut part = place.begin().unwrap().unwrap();
        part.file.write_all(&vec![byte; place.len_bytes as usize]).unwrap();
        part.end().unwrap();
    }

    fn names(cache: &Cache) -> usize {
        fs::read_dir(&cache.folder).unwrap().count()
    }

    #[test]
    fn files_are_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1000);
        let place = cache.place("http://a", "\"1\"", 100);
        assert!(place.open().is_none());
        let mut part = place.begin().unwrap().unwrap();
        part.file.write_all(&[1; 99]).unwrap();
        assert!(place.open().is_none());
        assert!(place.begin().unwrap().is_none(), "another fetches it");
        drop(part);
        assert_eq!(names(&cache), 0);
        // What a killed process left is overwritten.
        fs::write(place.path.with_extension(PART), [9; 500]).unwrap();
        fill(&place, 1);
        assert_eq!((place.open().unwrap().metadata().unwrap().len(), names(&cache)), (100, 1));
        // A file that others shortened is no object.
        fs::write(&place.path, [1; 99]).unwrap();
        assert!(place.open().is_none());
        fill(&place, 2);
        assert_eq!(io::read_to_string(place.open().unwrap()).unwrap(), "\u{2}".repeat(100));
    }

    #[test]
    fn objects_differ_by_address_version_and_length() {
        let cache = Cache { folder: PathBuf::new(), most_bytes: 0 };
        let places = [("a", "1", 1), ("b", "1", 1), ("a", "2", 1), ("a", "1", 2)]
            .map(|(address, etag, len_bytes)| cache.place(address, etag, len_bytes).path);
        let distinct: std::collections::HashSet<_> = places.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert!(places.iter().all(|path| is_ours(path) && is_ours(&path.with_extension(PART))));
        assert!(!is_ours(Path::new("model.part")) && !is_ours(&places[0].with_extension("txt")));
    }

    #[test]
    fn files_used_longest_ago_are_deleted_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1000);
        fs::write(cache.folder.join("other"), [0; 5000]).unwrap();
        let places = ["a", "b", "c"].map(|address| cache.place(address, "1", 300));
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        for (number, place) in (0..).zip(&places) {
            fill(place, number);
            let file = File::options().write(true).open(&place.path).unwrap();
            file.set_modified(long_ago + Duration::from_secs(10 * u64::from(number))).unwrap();
        }
        assert!(places[0].open().is_some(), "now it was used last");
        fill(&cache.place("d", "1", 200), 4);
        assert_eq!(places.each_ref().map(|place| place.path.exists()), [true, false, true]);
        // What is being fetched stays, and what a killed process left does not.
        let part = cache.place("e", "1", 100).begin().unwrap().unwrap();
        let left = cache.place("f", "1", 100).path.with_extension(PART);
        fs::write(&left, [0; 100]).unwrap();
        fill(&cache.place("g", "1", 1000), 5);
        assert!(part.path.exists() && !left.exists());
        assert_eq!(names(&cache), 3);
        assert!(cache.place("h", "1", 1001).begin().unwrap().is_none(), "it is too long");
        assert_eq!(names(&cache), 3);
    }
}
