//! A file system that refuses a call: a program in Python, which needs root and `/dev/fuse`.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::mounts::{or_skip, own_mounts};

/// A mounted file system in memory, seen by the thread that made it, and its children.
pub struct RefusingMount {
    /// The mounted folder.
    pub path: PathBuf,
    process: Child,
    lines: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    _folder: TempDir,
}

/// The events between two calls of [`RefusingMount::refuse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// The calls that were refused.
    pub refusals: u64,
    /// The bytes that reached the file system.
    pub written_bytes: u64,
}

/// The calls as `refusing.py` names them.
pub const CALLS: [&str; 23] = [
    "rename",
    "create",
    "remove",
    "mkdir",
    "list",
    "ftruncate",
    "fallocate",
    "lseek",
    "writes out of order",
    "flock",
    "fsync",
    "fsync of folders",
    "close",
    "link",
    "symlink",
    "O_TMPFILE",
    "O_DIRECT",
    "mmap",
    "chmod",
    "chown",
    "utimens",
    "attributes",
    "statfs",
];

/// Errors with which mounts refuse calls. `EPERM` does not say that a call is missing. After `ENOSYS`, the kernel does not ask again for some calls.
pub const ERRORS: [i32; 4] = [libc::EPERM, libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS];

impl RefusingMount {
    /// Mounts a new file system. Returns `None` if that cannot be done here.
    ///
    /// # Panics
    /// If `CUFILE_REQUIRE_MOUNTS=1` requires mounts.
    pub fn new() -> Option<Self> {
        or_skip(Self::make())
    }

    fn make() -> Result<Self, String> {
        own_mounts()?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut command = Command::new("python3");
        command.args(["-c", include_str!("refusing.py")]).arg(folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("python3: {error}"))?;
        let (lines, answers) = (process.stdin.take(), process.stdout.take());
        let mut answers = BufReader::new(answers.expect("it is piped"));
        let mut first = String::new();
        let _ = answers.read_line(&mut first);
        // After an error, dropping this ends the process.
        let mount = Self { path: folder.path().to_owned(), process, lines, answers, _folder: folder };
        if first == "mounted\n" { Ok(mount) } else { Err("python3 mounts nothing by /dev/fuse".to_owned()) }
    }

    /// Refuses only this call from now on. Returns the counts since this was called before.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn refuse(&mut self, call: &str, errno: i32) -> Counts {
        let lines = self.lines.as_mut().expect("the mount has not ended");
        writeln!(lines, "{call} {errno}").expect("the process reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the process answers");
        let mut counts = answer.split_whitespace().map(|count| count.parse().expect("a count"));
        let mut next = || counts.next().expect("two counts");
        Counts { refusals: next(), written_bytes: next() }
    }

    /// Refuses nothing from now on. Returns counts as [`refuse`](Self::refuse) does.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn refuse_nothing(&mut self) -> Counts {
        self.refuse("nothing", 0)
    }
}

impl Drop for RefusingMount {
    fn drop(&mut self) {
        // The process unmounts at the end of its input.
        self.lines = None;
        let _ = self.process.wait();
    }
}
