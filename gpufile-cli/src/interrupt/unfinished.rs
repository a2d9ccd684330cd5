//! Files and folders that a signal removes.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io, mem, thread};

static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Locked while a file is created that is not yet in the list.
static CREATING: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all unfinished files. Returns when no other file can be created.
pub fn remove_all(said: &Sender<String>) {
    remove_known(said);
    mem::forget(lock(&CREATING));
    remove_known(said);
}

/// Starts a thread for each file, because its file system may not answer.
fn remove_known(said: &Sender<String>) {
    for path in mem::take(&mut *lock(&UNFINISHED)) {
        let said = said.clone();
        let remove = move || match remove(&path) {
            Ok(()) => said.send(format!("removed the unfinished {path:?}")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => said.send(format!("could not remove the unfinished {path:?}: {error}")),
        };
        let _ = thread::Builder::new().spawn(remove);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

/// A file or folder that a signal removes, until this is dropped.
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// Remembers the file under the path that `create` returns.
    ///
    /// A signal waits for the call to end, so no unknown file stays.
    pub fn create<T, E>(create: impl FnOnce() -> Result<(T, PathBuf), E>) -> Result<(T, Self), E> {
        let creating = Creating::new();
        let (created, path) = create()?;
        Ok((created, creating.remember(path)))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut unfinished = lock(&UNFINISHED);
        if let Some(place) = unfinished.iter().position(|path| *path == self.0) {
            unfinished.swap_remove(place);
        }
    }
}

/// The time during which a signal waits, because a file is created.
pub struct Creating(#[expect(dead_code, reason = "held until dropped")] MutexGuard<'static, ()>);

impl Creating {
    pub fn new() -> Self {
        Self(lock(&CREATING))
    }

    pub fn remember(self, path: PathBuf) -> Unfinished {
        lock(&UNFINISHED).push(path.clone());
        Unfinished(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_unfinished_until_dropped() {
        let is_known = || lock(&UNFINISHED).iter().any(|path| path.ends_with("unfinished-in-a-test"));
        let path = PathBuf::from("/nonexistent/unfinished-in-a-test");
        let (_, file) = Unfinished::create(|| Ok::<_, io::Error>(((), path))).unwrap();
        assert!(is_known());
        drop(file);
        assert!(!is_known());
        assert!(Unfinished::create(|| Err::<((), PathBuf), _>(io::Error::other("full"))).is_err());
    }

    #[test]
    fn folders_are_removed_with_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, path) = (folder.path().join("kept"), folder.path().join("made"));
        fs::write(&kept, "x").unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("model"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, path.join("link")).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists() && kept.exists());
        assert_eq!(remove(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
