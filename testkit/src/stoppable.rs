//! A file system that stops answering: bindfs, whose process is stopped. It needs root and bindfs.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use tempfile::TempDir;

use crate::in_flight::soon;
use crate::mounts::{or_skip, own_mounts, run};

/// A mount of bindfs, in a mount namespace of the calling thread and its children.
pub struct StoppableMount {
    process: Child,
    /// The mounted folder.
    pub path: PathBuf,
    _folder: TempDir,
}

impl StoppableMount {
    /// Mounts a folder. Returns `None` if that cannot be done here.
    ///
    /// # Panics
    /// If `CUFILE_REQUIRE_MOUNTS=1` requires mounts.
    pub fn new() -> Option<Self> {
        or_skip(Self::make())
    }

    fn make() -> Result<Self, String> {
        own_mounts()?;
        run("bindfs", &["--version"])?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let [source, path] = ["source", "mounted"].map(|name| folder.path().join(name));
        for folder in [&source, &path] {
            fs::create_dir(folder).map_err(|error| error.to_string())?;
        }
        let mut command = Command::new("bindfs");
        command.arg("-f").args([&source, &path]).stdout(Stdio::null());
        // SAFETY: makes one system call between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let start = Instant::now();
        let is_mounted = || {
            fs::read_to_string("/proc/thread-self/mounts")
                .is_ok_and(|mounts| mounts.contains(&*path.to_string_lossy()))
        };
        while !is_mounted() {
            let is_over = process.try_wait().map_err(|error| error.to_string())?.is_some();
            if is_over || start.elapsed() > Duration::from_secs(10) {
                return Err("bindfs mounts nothing".to_owned());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { process, path, _folder: folder })
    }

    /// Stops the file system: every operation waits from now on.
    ///
    /// # Panics
    /// If the process does not stop.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.process.id());
        soon("the process stops", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
    }

    /// Lets the file system go on.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: takes integers; the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }
}

impl Drop for StoppableMount {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Removing the folder must not meet the mount.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
