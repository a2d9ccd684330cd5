//! New files in the folder of FILE.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::{fs, io, process};

use gpufile::{File, OpenOptions};

use crate::interrupt::Unfinished;

/// A place for a file that a case makes and removes. A file that was there before stays.
pub struct Fresh {
    pub path: PathBuf,
    made: RefCell<Option<Unfinished>>,
}

impl Fresh {
    pub fn beside(path: &Path, number: usize) -> Self {
        let mut name = path.to_owned().into_os_string();
        name.push(format!(".fresh-{}-{number}", process::id()));
        Self { path: name.into(), made: RefCell::new(None) }
    }

    pub fn create(&self, options: &OpenOptions) -> gpufile::Result<File> {
        let (file, made) = Unfinished::create(|| {
            let file = options.clone().create_new(true).open(&self.path);
            file.map(|file| (file, self.path.clone()))
        })?;
        self.made.replace(Some(made));
        Ok(file)
    }

    pub fn remove(&self) -> io::Result<()> {
        match self.made.take() {
            Some(_made) => fs::remove_file(&self.path),
            None => Ok(()),
        }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // The measurement stands, whether or not the file can be removed.
        let _ = self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_files_are_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (options, taken) = (File::options().write(true), Fresh::beside(&path, 0));
        fs::write(&taken.path, "precious").unwrap();
        assert!(taken.create(&options).is_err());
        taken.remove().unwrap();
        let precious = taken.path.clone();
        drop(taken);
        assert_eq!(fs::read(precious).unwrap(), b"precious");

        let free = Fresh::beside(&path, 1);
        for _ in 0..2 {
            free.create(&options).unwrap();
            free.remove().unwrap();
        }
        free.create(&options).unwrap();
        let made = free.path.clone();
        drop(free);
        assert!(!made.exists());
    }
}
