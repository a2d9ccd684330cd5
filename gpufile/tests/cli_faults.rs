//! The commands `check`, `ls`, `cache` and `top` on files, names and outputs that something is wrong with.

use std::io;
use std::process::Stdio;

mod program;

use program::{command, file, names};

#[test]
fn failures_keep_their_exit_status_without_a_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 5000);
    let path = path.to_str().unwrap();
    for arguments in [&["cache", path, "/nonexistent"][..], &["cache", "--json", path, "/nonexistent"]] {
        let nobody: Stdio = io::pipe().unwrap().1.into();
        let status = command(arguments).stdout(nobody).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
    assert_eq!(names(folder.path()), ["file"]);
}
