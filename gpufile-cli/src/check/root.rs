//! The file system of the machine, or a folder that stands for it in tests.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder that holds `proc`, `sys`, `etc` and `run`.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    pub fn of_machine() -> Self {
        Self(PathBuf::from("/"))
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Returns the trimmed text; `None` if missing, unreadable or empty.
    pub fn text(&self, path: &str) -> Option<String> {
        text(&self.at(path))
    }

    /// Returns sorted paths; a missing folder holds nothing.
    pub fn list(&self, path: &str) -> Vec<PathBuf> {
        list(&self.at(path))
    }
}

pub fn text(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&text).trim().to_owned()).filter(|text| !text.is_empty())
}

pub fn list(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder that stands for `/`.
    pub struct Fake {
        folder: tempfile::TempDir,
    }

    impl Fake {
        pub fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        pub fn root(&self) -> Root {
            Root(self.folder.path().to_owned())
        }

        pub fn file(&self, path: &str, contents: impl AsRef<[u8]>) -> &Self {
            let path = self.root().at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
            self
        }

        pub fn folder(&self, path: &str) -> &Self {
            fs::create_dir_all(self.root().at(path)).unwrap();
            self
        }

        /// Links to an absolute path of the fake machine.
        pub fn link(&self, path: &str, target: &str) -> &Self {
            let path = self.root().at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(self.root().at(target), path).unwrap();
            self
        }
    }

    #[test]
    fn missing_files_and_folders_are_empty() {
        let fake = Fake::new();
        fake.file("/proc/cmdline", "quiet\n").file("/proc/empty", "\n").folder("/sys/class/net");
        let root = fake.root();
        assert_eq!(root.text("/proc/cmdline").as_deref(), Some("quiet"));
        assert_eq!((root.text("/proc/empty"), root.text("/proc/none")), (None, None));
        assert!(root.list("/sys/class/net").is_empty() && root.list("/sys/none").is_empty());
        assert_eq!(
            root.list("/proc").iter().map(|path| name(path)).collect::<Vec<_>>(),
            ["cmdline", "empty"]
        );
    }
}
