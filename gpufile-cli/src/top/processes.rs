//! The processes that have loaded libcufile, and what they have read from and written to the storage.

use std::fs;
use std::path::Path;

#[derive(Debug, PartialEq)]
pub struct Process {
    pub pid: u32,
    /// A time that no later process with the same number has.
    pub start: u64,
    pub name: String,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl Process {
    pub fn is_same(&self, other: &Self) -> bool {
        (self.pid, self.start) == (other.pid, other.start)
    }
}

/// Returns the processes that this user may look at.
pub fn all(root: &Path) -> Vec<Process> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut processes: Vec<_> = pids.filter_map(|pid| process(root, pid)).collect();
    processes.sort_by_key(|process| process.pid);
    processes
}

fn process(root: &Path, pid: u32) -> Option<Process> {
    let folder = root.join(pid.to_string());
    let read =
        |name: &str| fs::read(folder.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let is_cufile = |line: &str| {
        line.rsplit('/').next().is_some_and(|file| file.starts_with("libcufile") && file.contains(".so"))
    };
    if !read("maps").ok()?.lines().any(|line| line.contains('/') && is_cufile(line)) {
        return None;
    }
    let io = read("io").ok()?;
    let counter = |name: &str| {
        let mut fields = io.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| *field == name).and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
    };
    // The name of the program may have spaces and parentheses. The start is the 20th field after it.
    let stat = read("stat").ok()?;
    let start = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let name = read("comm").ok()?.trim().chars().filter(|c| !c.is_control()).collect();
    Some(Process {
        pid,
        start,
        name,
        read_bytes: counter("read_bytes"),
        written_bytes: counter("write_bytes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(root: &Path, pid: u32, maps: &str) {
        let folder = root.join(pid.to_string());
        fs::create_dir(&folder).unwrap();
        let files = [
            ("maps", maps),
            ("io", "rchar: 1\nread_bytes: 4096\nwrite_bytes: 77\ncancelled_write_bytes: 5\n"),
            ("stat", "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21\n"),
            ("comm", "a b) c\n"),
        ];
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn only_processes_with_libcufile_are_listed() {
        let root = tempfile::tempdir().unwrap();
        let map = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 5 {path}\n");
        make(root.path(), 12, &map("/usr/lib/libcufile.so.1.16"));
        make(root.path(), 5, &map("/opt/my libs/libcufile.so.0"));
        make(root.path(), 6, &map("/home/libcufile/program"));
        make(root.path(), 7, "");
        fs::create_dir(root.path().join("self")).unwrap();
        fs::create_dir(root.path().join("99")).unwrap();
        let found = all(root.path());
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [5, 12]);
        let expected =
            Process { pid: 5, start: 4242, name: "a b) c".to_owned(), read_bytes: 4096, written_bytes: 77 };
        assert_eq!(found[0], expected);
        assert_eq!(all(Path::new("/nonexistent")), []);
    }
}
