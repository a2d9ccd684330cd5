//! The file of a workload: one that the command makes and removes, or one that is there.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;

use super::super::memory::Random;
use crate::failure::Failure;
use crate::interrupt::Unfinished;
use crate::progress::Bar;
use crate::units::Bytes;

/// Returns the length of an existing file, or of one that is made.
pub fn default_len(path: &Path) -> u64 {
    const OF_NEW: u64 = 1 << 30;
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map_or(OF_NEW, |file| file.len())
}

/// A file to measure. Dropping it removes a file that was made.
pub struct TargetFile {
    pub path: PathBuf,
    /// Set for a file that was made.
    made: Option<Unfinished>,
}

impl TargetFile {
    /// Opens a file, or makes one with random bytes: in a folder, or where there is none that runs would write.
    ///
    /// # Errors
    /// The file is too short, is not to be written, or cannot be made.
    pub fn new(path: &Path, len_bytes: u64, writes: bool, overwrite: bool) -> Result<Self, Failure> {
        let failed = |problem: &dyn std::fmt::Display| Failure::Other(format!("{path:?}: {problem}"));
        let made = match fs::metadata(path) {
            Ok(there) if there.is_dir() => path.join(format!("gpufile-bench-{}", process::id())),
            Err(error) if error.kind() == ErrorKind::NotFound && writes => path.to_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(failed(&"there is no such file to read; name a folder to make one in"));
            }
            Err(error) => return Err(failed(&error)),
            Ok(there) if !there.is_file() => {
                return Err(failed(&"not a regular file; name a file or a folder"));
            }
            Ok(there) => {
                if len_bytes > there.len() {
                    let (has, needs) = (Bytes(there.len()), Bytes(len_bytes));
                    return Err(failed(&format_args!("the file has {has}, but the runs need {needs}")));
                }
                if writes && !overwrite {
                    let problem = "writing replaces the file's contents: name a folder, or add --overwrite to permit that";
                    return Err(Failure::Usage(format!("{path:?}: {problem}")));
                }
                return Ok(Self { path: path.to_owned(), made: None });
            }
        };
        let (file, unfinished) = Unfinished::create(|| {
            let file = File::options().write(true).create_new(true).open(&made);
            file.map(|file| (file, made.clone()))
        })
        .map_err(|error| Failure::Other(format!("cannot create {made:?}: {error}")))?;
        let this = Self { path: made, made: Some(unfinished) };
        let filled = fill(file, len_bytes);
        filled.map_err(|error| Failure::Other(format!("cannot fill {:?}: {error}", this.path)))?;
        Ok(this)
    }

    /// Returns whether the command made the file.
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }
}

impl Drop for TargetFile {
    fn drop(&mut self) {
        if self.made.is_some() {
            // The measurement stands, whether or not the file can be removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Fills a file with bytes that neither disks nor file systems can compress.
fn fill(mut file: File, len_bytes: u64) -> std::io::Result<()> {
    const PART: u64 = 16 << 20;
    let bar = Bar::of_bytes(len_bytes, "making the file");
    let (mut random, mut bytes) = (Random::new(3), vec![0; PART.min(len_bytes) as usize]);
    for at in (0..len_bytes).step_by(PART as usize) {
        let part = &mut bytes[..PART.min(len_bytes - at) as usize];
        random.fill(part);
        file.write_all(part)?;
        bar.add(part.len() as u64);
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_files_are_removed_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let error = TargetFile::new(&missing, 5000, false, false).err().unwrap().to_string();
        assert!(error.contains("there is no such file to read"), "{error}");
        assert!(TargetFile::new(&missing, 5000, true, false).unwrap().is_made() && !missing.exists());
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let made = TargetFile::new(folder.path(), 100_001, true, false).unwrap();
        assert!(made.is_made() && fs::metadata(&made.path).unwrap().len() == 100_001 && names() == 1);
        drop(made);
        assert_eq!(names(), 0);

        let path = folder.path().join("precious");
        fs::write(&path, [7; 5000]).unwrap();
        let error = TargetFile::new(&path, 5000, true, false).err().unwrap().to_string();
        assert!(error.contains("--overwrite"), "{error}");
        let error = TargetFile::new(&path, 5001, false, false).err().unwrap().to_string();
        assert!(error.contains("the file has 4.88 KiB"), "{error}");
        let there = TargetFile::new(&path, default_len(&path), true, true).unwrap();
        assert!(!there.is_made());
        drop(there);
        assert_eq!(fs::read(&path).unwrap(), [7; 5000]);
    }
}
