//! A folder, or objects of a server, as a store of zarrs: reading and writing values. `list` lists the keys of a folder.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zarrs::metadata::ChunkKeySeparator;
use zarrs::storage::byte_range::{ByteRange, ByteRangeIterator, InvalidByteRangeError};
use zarrs::storage::{
    Bytes, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError,
    StoreKey, StoreKeyError, StorePrefix, WritableStorageTraits, store_set_partial_many,
};

use super::keys::{KeyRules, is_plain};
use crate::formats::memory::{addressable, zeroed};
use crate::formats::save::folder::sync_folder;
use crate::formats::save::save;
use crate::formats::{self, SaveOptions, regular};
use crate::storage::{Folder, text_of};
use crate::{Cause, File, OpenOptions, local_path};

/// A folder of files, one for each key, for the arrays and groups of zarrs. [Objects of a server](Self::at_url) or
/// [storages](Self::from_folder) can take the place of the files.
///
/// Keys are paths relative to the folder. The store refuses keys that could lead out of it, such as `..`, and follows
/// all symbolic links. A complete value replaces an older one, as [`SaveOptions`] describes. By default, a write does
/// not wait for the storage: see [`sync`](Self::sync).
///
/// ```
/// use gpufile::formats::zarr::FileStore;
/// use gpufile::formats::zarr::zarrs::storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("gpufile-store-{}", std::process::id()));
/// let store = FileStore::new(&folder);
/// let key = StoreKey::new("a/b")?;
/// store.set(&key, vec![1, 2, 3].into())?;
/// assert_eq!(store.get_partial(&key, (1..3).into())?.unwrap(), [2, 3].as_slice());
/// assert_eq!(std::fs::read(folder.join("a/b"))?, [1, 2, 3]);
/// assert!(store.get(&StoreKey::new("a/../../b")?).is_err());
/// # std::fs::remove_dir_all(folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FileStore {
    values: Arc<dyn Values>,
    rules: KeyRules,
    reading: OpenOptions,
    saving: SaveOptions,
}

/// The values of a store, which are opened by the names of their files.
pub(super) trait Values: fmt::Debug + Send + Sync {
    /// Returns the folder, or the name of all values for messages.
    fn path(&self) -> &Path;

    /// Opens a value; `None` if there is none of this name.
    fn open(&self, name: &str, reading: &OpenOptions) -> crate::Result<Option<File>>;

    /// Returns the end of a message about a name that has no value, if another spelling of the address has one.
    fn other_spelling(&self, _name: &str) -> Option<&'static str> {
        None
    }

    /// Returns the folder if the values are files, which are also listed and written.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

impl Values for PathBuf {
    fn path(&self) -> &Path {
        self
    }

    fn open(&self, name: &str, reading: &OpenOptions) -> crate::Result<Option<File>> {
        let path = self.join(name);
        match regular::open(&path, reading) {
            Err(error) if is_missing(error.raw_os_error()) => Ok(None),
            // A folder has no value.
            Err(_) if path.is_dir() => Ok(None),
            file => file.map(Some),
        }
    }

    fn folder(&self) -> Option<&Path> {
        Some(self)
    }
}

/// Storages by name, and the name of all, for messages.
#[derive(Debug)]
struct Storages(Arc<dyn Folder>, PathBuf);

impl Values for Storages {
    fn path(&self) -> &Path {
        &self.1
    }

    fn open(&self, name: &str, reading: &OpenOptions) -> crate::Result<Option<File>> {
        let path = self.path().join(name);
        // The contract says that a folder can be used after a panic.
        let opened = catch_unwind(AssertUnwindSafe(|| self.0.open(name)));
        match opened.unwrap_or_else(|panic| Err(format!("the folder panicked: {}", text_of(&*panic)).into()))
        {
            Ok(None) => Ok(None),
            Ok(Some(storage)) => reading.open_storage(&path, storage).map(Some),
            Err(error) => Err(crate::Error::Open { path, cause: Cause::of_storage(error) }),
        }
    }
}

const MAX_METADATA_BYTES: u64 = 256 << 20;

const METADATA: [&str; 5] = ["zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"];

impl FileStore {
    /// Returns the store in this folder. The first write creates the folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self::at(Arc::new(folder.into()))
    }

    /// Returns the store of the values in a folder of [storages](crate::storage), for reading. Messages name it so. The name of a
    /// value is its key. The store lists no keys, and refuses writes.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use std::sync::Arc;
    ///
    /// use gpufile::formats::zarr::FileStore;
    /// use gpufile::formats::zarr::zarrs::storage::{ReadableStorageTraits, StoreKey};
    /// use gpufile::storage::{Error, Folder, Spans, Storage};
    ///
    /// #[derive(Debug)]
    /// struct Value(Vec<u8>);
    ///
    /// impl Storage for Value {
    ///     fn len_bytes(&self) -> u64 {
    ///         self.0.len() as u64
    ///     }
    ///
    ///     fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error> {
    ///         while let Some(range) = spans.next_range() {
    ///             spans.put(&self.0[range.start as usize..range.end as usize])?;
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// #[derive(Debug)]
    /// struct Values(BTreeMap<&'static str, Arc<Value>>);
    ///
    /// impl Folder for Values {
    ///     fn open(&self, name: &str) -> Result<Option<Arc<dyn Storage>>, Error> {
    ///         Ok(self.0.get(name).map(|value| value.clone() as Arc<dyn Storage>))
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let values = Values(BTreeMap::from([("a/b", Arc::new(Value(vec![1, 2, 3])))]));
    /// let store = FileStore::from_folder("values", Arc::new(values));
    /// assert_eq!(store.get(&StoreKey::new("a/b")?)?.unwrap(), [1, 2, 3].as_slice());
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_folder(name: impl Into<OsString>, folder: Arc<dyn Folder>) -> Self {
        Self::at(Arc::new(Storages(folder, PathBuf::from(name.into()))))
    }

    pub(super) fn at(values: Arc<dyn Values>) -> Self {
        let (rules, reading, saving) = (KeyRules::default(), OpenOptions::new(), SaveOptions::new());
        Self { values, rules, reading, saving }.files(&OpenOptions::new()).sync(false)
    }

    /// Sets the engine, the policy and the use of `O_DIRECT` of files. Ignores access and creation options.
    #[must_use]
    pub fn files(mut self, files: &OpenOptions) -> Self {
        self.reading = files.clone();
        self.saving = self.saving.files(files);
        self
    }

    /// Sets whether each write waits until the file and the new folders above it have reached the storage (`fsync`). By
    /// default it does not wait.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> Self {
        self.saving = self.saving.sync(sync);
        self
    }

    /// Sets whether file names have the letters of keys in lower case. Some stores were written so, because not every
    /// file system distinguishes `A` from `a`. By default keys stay unchanged.
    #[must_use]
    pub fn normalize_keys(mut self, normalize_keys: bool) -> Self {
        self.rules.lower_case = normalize_keys;
        self
    }

    /// Sets the separator in the names of chunk files whose keys have dots between numbers, as in version 2 arrays.
    /// With `/`, chunk `0.1` is the file `1` in the folder `0`. By default, or with `.`, the key is the name. Only
    /// arrays whose metadata does not name the separator need this.
    #[must_use]
    pub fn dimension_separator(mut self, separator: ChunkKeySeparator) -> Self {
        self.rules.nested = separator == ChunkKeySeparator::Slash;
        self
    }

    /// Returns the folder, the address of the objects without its query, or the name of the storages.
    pub fn folder(&self) -> &Path {
        self.values.path()
    }

    /// Returns whether a server or storages have the values, whose answers may take long.
    pub(super) fn is_remote(&self) -> bool {
        self.values.folder().is_none()
    }

    pub(super) fn other_spelling(&self, key: &str) -> Option<&'static str> {
        self.values.other_spelling(&self.name_of(key.trim_start_matches('/'))?)
    }

    pub(super) fn reading(&self) -> &OpenOptions {
        &self.reading
    }

    /// Returns the name of a key's file in the folder, if the key cannot lead out of it.
    pub(super) fn name_of<'a>(&self, key: &'a str) -> Option<Cow<'a, str>> {
        is_plain(key).then(|| self.rules.apply(key))
    }

    /// Opens the file with a name that [`name_of`](Self::name_of) gave, and returns it with its length in bytes; `None` if
    /// there is no such file.
    pub(super) fn open(&self, name: &str) -> crate::Result<Option<(File, u64)>> {
        let Some(file) = self.values.open(name, &self.reading)? else { return Ok(None) };
        let len_bytes = file.len_bytes()?;
        Ok(Some((file, len_bytes)))
    }

    /// Writes the file with a name that [`name_of`](Self::name_of) gave, and the folders that it lies in.
    ///
    /// # Errors
    /// [`formats::Error::Save`]. [`crate::Error::File`] if a server or storages have the values.
    pub(super) fn save(&self, name: &str, write: impl Fn(&File) -> crate::Result<()>) -> formats::Result<()> {
        if self.is_remote() {
            let refused =
                io::Error::new(ErrorKind::Unsupported, "objects of servers and storages are only read");
            let path = self.folder().join(name);
            return Err(crate::Error::File { operation: "write", path, cause: refused.into() }.into());
        }
        let path = &self.folder().join(name);
        let write = |file: &File, _| write(file);
        match save(path, &self.saving, write) {
            Err(formats::Error::Save { error, .. }) if error.raw_os_error() == Some(libc::ENOENT) => {
                let folder = path.parent().unwrap_or(self.folder());
                self.create_folders(folder).map_err(|error| crate::Error::File {
                    operation: "create the folder",
                    path: folder.to_owned(),
                    cause: error.into(),
                })?;
                save(path, &self.saving, write)
            }
            done => done,
        }
    }

    /// Syncs the parents of the new folders if this store syncs.
    fn create_folders(&self, folder: &Path) -> io::Result<()> {
        let is_new = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let new: Vec<_> = folder.ancestors().take_while(is_new).collect();
        fs::create_dir_all(folder)?;
        if self.saving.sync {
            new.into_iter().try_for_each(sync_folder)?;
        }
        Ok(())
    }

    fn name<'a>(&self, key: &'a str) -> Result<Cow<'a, str>, StorageError> {
        self.name_of(key).ok_or_else(|| StoreKeyError::from(key.escape_default().to_string()).into())
    }

    /// Returns the file of a key in the folder.
    ///
    /// # Errors
    /// The key could lead out of the folder, or a server or storages have the values.
    fn path(&self, key: &str) -> Result<PathBuf, StorageError> {
        let name = self.name(key)?;
        Ok(self.local()?.join(&*name))
    }

    /// Returns the folder.
    ///
    /// # Errors
    /// A server or storages have the values, or the folder is an address.
    fn local(&self) -> Result<&Path, StorageError> {
        let folder = self.values.folder().ok_or_else(unlisted)?;
        local_path::check(folder).map_err(|error| StorageError::Other(error.to_string()))?;
        Ok(folder)
    }

    pub(super) fn prefix_path(&self, prefix: &StorePrefix) -> Result<PathBuf, StorageError> {
        match prefix.as_str().strip_suffix('/') {
            None => Ok(self.local()?.to_owned()),
            // The name of a folder may look like a chunk's.
            Some(key) => Self { rules: KeyRules { nested: false, ..self.rules }, ..self.clone() }.path(key),
        }
    }

    fn find(&self, key: &StoreKey) -> Result<Option<(File, u64)>, StorageError> {
        self.open(&self.name(key.as_str())?).map_err(failed)
    }
}

impl ReadableStorageTraits for FileStore {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        let Some((file, len_bytes)) = self.find(key)? else { return Ok(None) };
        let name = key.as_str().rsplit('/').next().unwrap_or_default();
        if len_bytes > MAX_METADATA_BYTES && METADATA.contains(&name) {
            let message = format!("{len_bytes} bytes are over the limit of {MAX_METADATA_BYTES}");
            return Err(StorageError::InvalidMetadata(key.clone(), message));
        }
        read(&file, 0, len_bytes).map(Some)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some((file, len_bytes)) = self.find(key)? else { return Ok(None) };
        // Reads one after the other, because ranges from an untrusted file may overlap without limit.
        Ok(Some(Box::new(byte_ranges.map(move |range| {
            let (start, end) = resolve(range, len_bytes)
                .ok_or_else(|| InvalidByteRangeError::new(shown(range), len_bytes))?;
            read(&file, start, end - start)
        }))))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        if self.is_remote() {
            return Ok(self.find(key)?.map(|(_, len_bytes)| len_bytes));
        }
        match fs::metadata(self.path(key.as_str())?) {
            Ok(metadata) => Ok((!metadata.is_dir()).then_some(metadata.len())),
            Err(error) if is_missing(error.raw_os_error()) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for FileStore {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let name = self.name(key.as_str())?;
        let saved = self.save(&name, |file| file.write_all_at(&*value, 0));
        saved.map_err(|error| io::Error::from(error).into())
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'_>,
    ) -> Result<(), StorageError> {
        store_set_partial_many(self, key, offset_values)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        unless_missing(fs::remove_file(self.path(key.as_str())?))
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let folder = self.prefix_path(prefix)?;
        if !prefix.as_str().is_empty() {
            return unless_missing(fs::remove_dir_all(folder));
        }
        // Keeps the folder of the store, which may be a mount point or a link.
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return unless_missing(Err(error)),
        };
        for entry in entries {
            let entry = entry?;
            let is_folder = entry.file_type()?.is_dir();
            let remove = if is_folder { fs::remove_dir_all } else { fs::remove_file };
            unless_missing(remove(entry.path()))?;
        }
        Ok(())
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

fn unlisted() -> StorageError {
    StorageError::Unsupported("objects of servers and storages are neither listed nor written".to_owned())
}

/// Reads `len_bytes` bytes from `start`, or fewer if the file became shorter.
fn read(file: &File, start: u64, len_bytes: u64) -> Result<Bytes, StorageError> {
    let other = |error: formats::Error| StorageError::Other(error.to_string());
    let len_bytes = addressable(file.path(), len_bytes).map_err(other)?;
    let mut bytes = zeroed(file.path(), len_bytes).map_err(other)?;
    let done = file.read_at(&mut bytes, start).map_err(failed)?;
    bytes.truncate(done);
    Ok(bytes.into())
}

/// Returns the start and the end of a range of a file, in bytes; `None` if the file is too short.
fn resolve(range: ByteRange, len_bytes: u64) -> Option<(u64, u64)> {
    let (start, end) = match range {
        ByteRange::FromStart(start, None) => (start, len_bytes),
        ByteRange::FromStart(start, Some(len)) => (start, start.checked_add(len)?),
        ByteRange::Suffix(len) => (len_bytes.checked_sub(len)?, len_bytes),
    };
    (start <= end && end <= len_bytes).then_some((start, end))
}

/// Returns a range that an error can show. zarrs adds start and length for that, which may overflow.
fn shown(range: ByteRange) -> ByteRange {
    match range {
        ByteRange::FromStart(start, Some(len)) if start.checked_add(len).is_none() => {
            ByteRange::FromStart(start, None)
        }
        range => range,
    }
}

/// Returns whether an error means that there is no such file, or a file where the key has a folder.
fn is_missing(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOENT | libc::ENOTDIR))
}

fn unless_missing(done: io::Result<()>) -> Result<(), StorageError> {
    match done {
        Err(error) if is_missing(error.raw_os_error()) => Ok(()),
        done => Ok(done?),
    }
}

/// Returns the error of this crate that a store returned through zarrs, or the text of any other.
pub(super) fn cause(error: StorageError) -> Result<formats::Error, String> {
    let text = error.to_string();
    let StorageError::IOError(error) = error else { return Err(text) };
    let error = Arc::into_inner(error).and_then(io::Error::into_inner).ok_or(text.clone())?;
    error.downcast::<formats::Error>().map(|error| *error).map_err(|_| text)
}

fn failed(error: crate::Error) -> StorageError {
    io::Error::from(error).into()
}

/// Returns whether an error means that another process has removed a listed file or folder.
pub(super) fn has_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_beyond_the_file_are_not_resolved() {
        for (range, resolved) in [
            (ByteRange::FromStart(0, None), Some((0, 10))),
            (ByteRange::FromStart(10, None), Some((10, 10))),
            (ByteRange::FromStart(11, None), None),
            (ByteRange::FromStart(4, Some(6)), Some((4, 10))),
            (ByteRange::FromStart(4, Some(7)), None),
            (ByteRange::FromStart(4, Some(u64::MAX)), None),
            (ByteRange::Suffix(3), Some((7, 10))),
            (ByteRange::Suffix(11), None),
        ] {
            assert_eq!(resolve(range, 10), resolved, "{range:?}");
        }
        assert!(
            !InvalidByteRangeError::new(shown(ByteRange::FromStart(4, Some(u64::MAX))), 10)
                .to_string()
                .is_empty()
        );
    }
}
