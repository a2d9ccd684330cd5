//! The file of a workload: one that the command makes and removes, or one that is there.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use super::super::memory::Random;
use crate::failure::Failure;
use crate::interrupt::Unfinished;
use crate::progress::Bar;
use crate::stderr::complain;
use crate::target::zeros;
use crate::units::Bytes;

pub fn default_len(path: &Path) -> u64 {
    const OF_NEW: u64 = 1 << 30;
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map_or(OF_NEW, |file| file.len())
}

/// A file to measure. Dropping it removes a file that was made.
pub struct TargetFile {
    pub path: PathBuf,
    made: Option<(File, Unfinished)>,
}

/// The beginning of the name of a file that is made in a folder. The number of the process follows.
const MADE: &str = "gpufile-bench-";

impl TargetFile {
    /// Opens a file, or makes one with random bytes: in a folder, or where there is none that runs would write.
    ///
    /// # Errors
    /// The file is too short, is not to be written, or cannot be made.
    pub fn new(path: &Path, len_bytes: u64, writes: bool, overwrite: bool) -> Result<Self, Failure> {
        let failed = |problem: &dyn std::fmt::Display| Failure::Other(format!("{path:?}: {problem}"));
        let made = match fs::metadata(path) {
            Ok(there) if there.is_dir() => {
                remove_leftovers(path);
                path.join(format!("{MADE}{}", process::id()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound && path.is_symlink() => {
                return Err(failed(&"it is a symbolic link to a missing file"));
            }
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
        // A file system without locks keeps what killed runs leave.
        let _ = is_locked(&file);
        let filled = fill(&file, len_bytes);
        let this = Self { path: made, made: Some((file, unfinished)) };
        filled.map_err(|error| Failure::Other(format!("cannot fill {:?}: {error}", this.path)))?;
        Ok(this)
    }

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

/// Removes the files of this name that no process has locked, which killed runs left. Young ones stay, because their
/// run may be about to lock them.
fn remove_leftovers(folder: &Path) {
    const YOUNG: Duration = Duration::from_secs(60);
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    for file in files.filter(|file| file.file_type().is_ok_and(|kind| kind.is_file())) {
        let name = file.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(MADE));
        let is_old = || {
            file.metadata().is_ok_and(|file| {
                file.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > YOUNG))
            })
        };
        if process.is_some_and(|number| number.parse::<u32>().is_ok())
            && is_old()
            && File::open(file.path()).is_ok_and(|file| is_locked(&file))
            && fs::remove_file(file.path()).is_ok()
        {
            complain(&format!("removed {:?}, which a killed run had left", file.path()));
        }
    }
}

fn is_locked(file: &File) -> bool {
    // SAFETY: takes two integers.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Writes bytes that neither disks nor file systems can compress.
fn fill(mut file: &File, len_bytes: u64) -> std::io::Result<()> {
    const PART: u64 = 16 << 20;
    let bar = Bar::of_bytes(len_bytes, "making the file");
    let (mut random, mut bytes) = (Random::new(3), zeros(PART.min(len_bytes) as usize)?);
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
    use std::time::SystemTime;

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

    #[test]
    fn leftovers_of_killed_runs_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let old = |name| {
            let file = File::create(path(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
            file
        };
        let names = ["gpufile-bench-1", "gpufile-bench-2", "gpufile-bench-x", "precious"];
        let [_, in_use, ..] = names.map(old);
        assert!(is_locked(&in_use));
        File::create(path("gpufile-bench-3")).unwrap();
        let made = TargetFile::new(folder.path(), 1000, true, false).unwrap();
        assert!(!path(names[0]).exists());
        for name in names[1..].iter().chain(&["gpufile-bench-3"]) {
            assert!(path(name).exists(), "{name}");
        }
        assert!(!is_locked(&File::open(&made.path).unwrap()), "others see that it is in use");
    }
}
