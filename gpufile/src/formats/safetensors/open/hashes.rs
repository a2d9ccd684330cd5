//! The contents of files against their SHA-256: of a list, or of the names in a cache of downloads.

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, thread};

use cufile::fork::{self, Mutex};
use sha2::{Digest, Sha256};

use super::warning::{Compared, Warning};
use crate::formats::regular::open_plain;
use crate::formats::{Error, FormatError, Result};

const DIGITS: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Contents {
    pub is_compared: bool,
    list: Option<HashList>,
}

impl Contents {
    pub fn read_list(&mut self, path: &Path) -> Result<()> {
        self.list = Some(HashList::read(path)?);
        Ok(())
    }

    /// Compares the files of a model, if they are to be.
    pub fn compare(&self, files: &[PathBuf], opened: &Path) -> Compared {
        match self.is_compared {
            true => compare(files, opened, self.list.as_ref()),
            false => Compared::default(),
        }
    }
}

#[derive(Debug, Clone)]
struct HashList(Vec<(PathBuf, String)>);

impl HashList {
    pub fn read(path: &Path) -> Result<Self> {
        let mut bytes = Vec::new();
        open_plain(path)?.read_to_end(&mut bytes).map_err(|error| failed(path, error))?;
        let mut entries = Vec::new();
        let mut offset = 0;
        for line in bytes.split(|byte| *byte == b'\n') {
            if !line.trim_ascii().is_empty() {
                let message = "a line of `sha256sum` has 64 digits, two spaces and a path".to_owned();
                let error = FormatError::Syntax { format: "hash list", tensor: None, offset, message };
                entries.push(entry(line).ok_or(Error::Format { path: path.to_owned(), error })?);
            }
            offset += line.len() as u64 + 1;
        }
        Ok(Self(entries))
    }

    /// Returns the hash of a file: of the longest path in the list that the file's path ends with.
    fn find(&self, file: &Path) -> Option<&str> {
        let file = std::path::absolute(file).ok()?;
        let ends = self.0.iter().filter(|(path, _)| file.ends_with(path));
        ends.max_by_key(|(path, _)| path.components().count()).map(|(_, hash)| &**hash)
    }
}

/// Takes a line apart. A backslash before the hash says that the name has escapes.
fn entry(line: &[u8]) -> Option<(PathBuf, String)> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (is_escaped, line) = line.strip_prefix(b"\\").map_or((false, line), |line| (true, line));
    let (hash, rest) = line.split_at_checked(DIGITS)?;
    let name = rest.strip_prefix(b"  ").or_else(|| rest.strip_prefix(b" *"))?;
    let name = if is_escaped { unescape(name)? } else { name.to_owned() };
    let name = PathBuf::from(std::ffi::OsString::from_vec(name));
    Some((name.strip_prefix(".").unwrap_or(&name).to_owned(), hash_of(hash)?))
}

fn unescape(name: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = name.iter();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b'\\' => b'\\',
                _ => return None,
            },
            byte => *byte,
        });
    }
    Some(plain)
}

fn hash_of(digits: &[u8]) -> Option<String> {
    let is_hash = digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit);
    is_hash.then(|| String::from_utf8_lossy(digits).to_ascii_lowercase())
}

/// Returns the hash in the name of a file of a cache: links lead to `blobs/HASH`.
fn hash_in_cache(file: &Path) -> Option<String> {
    let blob = fs::canonicalize(file).ok()?;
    let is_blob = blob.parent()?.file_name()? == "blobs";
    hash_of(blob.file_name()?.as_encoded_bytes()).filter(|_| is_blob)
}

/// Compares the files of a model, and its index if a hash of it is known.
fn compare(files: &[PathBuf], opened: &Path, list: Option<&HashList>) -> Compared {
    let hash = |file: &Path| match list {
        Some(list) => list.find(file).map(str::to_owned),
        None => hash_in_cache(file),
    };
    let (mut known, mut warnings) = (Vec::new(), Vec::new());
    for file in files {
        match hash(file) {
            Some(hash) => known.push((file.clone(), hash)),
            None => warnings.push(Warning::NoHash { file: file.clone() }),
        }
    }
    if !files.iter().any(|file| file == opened)
        && let Some(hash) = hash(opened)
    {
        known.push((opened.to_owned(), hash));
    }
    let (next, mut found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((number, (file, hash))) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            known.get(number).map(|entry| (number, entry))
        } {
            let outcome = compare_one(file, hash);
            found.lock().extend(outcome.err().map(|error| (number, error)));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(known.len());
    fork::scope(|scope| {
        // This thread does what others cannot be started for.
        let _others: Vec<_> = (1..threads).map_while(|_| scope.spawn("gpufile-hash", work).ok()).collect();
        work();
    });
    let mut found = mem::take(found.get_mut());
    found.sort_by_key(|(number, _)| *number);
    let problems = found.into_iter().map(|(_, error)| error).collect();
    Compared { hashed: known.len(), warnings, problems }
}

fn compare_one(path: &Path, expected: &str) -> Result<()> {
    const BLOCK: usize = 1 << 20;
    let mut file = open_plain(path)?;
    let (mut block, mut hasher) = (vec![0; BLOCK], Sha256::new());
    loop {
        match file.read(&mut block) {
            Ok(0) => break,
            Ok(read) => hasher.update(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(path, error).into()),
        }
    }
    let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    match found == expected {
        true => Ok(()),
        false => Err(Error::WrongContents { path: path.to_owned(), expected: expected.to_owned(), found }),
    }
}

fn failed(path: &Path, error: io::Error) -> crate::Error {
    crate::Error::File { operation: "read", path: path.to_owned(), cause: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_sha256sum_are_taken_apart() {
        let hash = "0123456789abcdef".repeat(4);
        let name = |line: String| entry(line.as_bytes()).map(|(name, _)| name);
        assert_eq!(name(format!("{hash}  a b")), Some("a b".into()));
        assert_eq!(name(format!("{hash} *./sub/a\r")), Some("sub/a".into()));
        assert_eq!(name(format!("\\{hash}  a\\nb\\\\")), Some("a\nb\\".into()));
        let wrong = [format!("{hash} a"), hash.clone(), format!("{}g  a", &hash[1..]), "x".to_owned()];
        for line in wrong.into_iter().chain([format!("\\{hash}  a\\x")]) {
            assert_eq!(name(line.clone()), None, "{line}");
        }
    }

    #[test]
    fn longest_path_of_a_list_counts() {
        let entry = |path: &str, hash: &str| (PathBuf::from(path), hash.to_owned());
        let list = HashList(vec![entry("x/a", "1"), entry("a", "2"), entry("y/x/a", "3")]);
        assert_eq!(list.find(Path::new("/m/x/a")), Some("1"));
        assert_eq!(list.find(Path::new("/m/y/x/a")), Some("3"));
        assert_eq!(list.find(Path::new("/m/a")), Some("2"));
        assert_eq!(list.find(Path::new("/m/b")), None);
    }
}
