//! Failures of `gpufile bench`: resources that run out, and outputs that nobody reads.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::process::{Command, Output};

use serde_json::Value;

use crate::program::{command, file, names};

fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let code = status.code().unwrap_or_else(|| panic!("{status}"));
    (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> (i32, String, String) {
    outcome(&mut command(arguments))
}

fn limited<S: AsRef<OsStr>>(limit: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let program = command(arguments);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]).arg(program.get_program());
    limited.args(program.get_args());
    limited
}

#[test]
fn bench_without_enough_memory_removes_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let big = ["bench", path, "-s", "60m", "-i", "20m", "-w", "3", "--depth", "3", "--host", "-I", "read"];
    let (status, _, err) = outcome(&mut limited("ulimit -v 300000", big));
    // A buffer may begin at any page, so it has one more than its contents.
    let fails = |bytes: usize| err.contains(&format!("the host cannot allocate {bytes} bytes of memory"));
    assert!(status == 1 && (fails(20 << 20) || fails((20 << 20) + 4096)), "{err}");
    assert_eq!(names(folder.path()), [""; 0]);

    let path = folder.path().join("sparse");
    fs::File::create(&path).unwrap().set_len(400 << 20).unwrap();
    let case = ["bench", path.to_str().unwrap(), "--threads", "1", "--repeats", "1", "host-read"];
    let (status, out, err) = outcome(&mut limited("ulimit -v 300000", case));
    assert!(status == 1 && out.contains("error=the host cannot allocate 419430400 bytes"), "{out}{err}");
}

#[test]
fn bench_without_enough_threads_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 16 << 20);
    let path = path.to_str().unwrap();
    let problem = "cannot start a thread: Resource temporarily unavailable";
    // The address space has room for a few of such large stacks.
    let limit = "ulimit -v 4000000; export RUST_MIN_STACK=268435456";
    let workload = ["bench", path, "-i", "1k", "-I", "read", "-w", "64", "--host"];
    let (status, _, err) = outcome(&mut limited(limit, workload));
    assert!(status == 1 && err.contains(problem) && err.lines().count() == 1, "{err}");
    let case = ["bench", path, "--threads", "64", "--repeats", "1", "host-read"];
    let (status, out, err) = outcome(&mut limited(limit, case));
    assert!(status == 1 && err.is_empty() && out.contains(&format!("error={problem}")), "{out}{err}");
}

#[test]
fn failures_count_even_if_nobody_reads_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 16 << 20);
    let path = path.to_str().unwrap();
    let failing = "fault cudaMemcpy times=all err=1; fault cudaMemcpyAsync times=all err=1";
    let workload = ["bench", path, "-i", "1m", "-I", "read"];
    let case = ["bench", path, "--repeats", "1", "read-default"];
    for (arguments, form) in
        [(&workload[..], ""), (&workload, "--csv"), (&workload, "--json"), (&case, ""), (&case, "--json")]
    {
        for (commands, expected) in [(failing, 1), ("gpus 1", 0)] {
            let mut command = command(arguments.iter().copied().chain((!form.is_empty()).then_some(form)));
            let nobody = io::pipe().unwrap().1;
            let output = command.env("CUFILE_EMULATOR", commands).stdout(nobody).output().unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(expected), "{arguments:?} {form} {commands}: {err}");
        }
    }
}

#[test]
fn notes_do_not_depend_on_the_form_of_the_results() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new");
    for form in ["--json", "--csv"] {
        let (status, _, err) =
            run(["bench", new.to_str().unwrap(), "-s", "1m", "-i", "64k", "-I", "write,read", form]);
        assert!(status == 0 && err.contains("is new, and is removed afterwards"), "{form}: {err}");
    }
}

#[test]
fn words_after_the_file_option_are_cases() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 16 << 20);
    let path = path.to_str().unwrap();
    let (status, out, err) = run(["bench", "--repeats", "1", "-f", path, "read-default", "latency"]);
    assert!(status == 0 && out.lines().count() == 2 && out.contains("case=latency-4k"), "{out}{err}");
    let (status, _, err) = run(["bench", "-f", path, "other"]);
    assert!(status == 2 && err.contains("\"other\" is not a case"), "{err}");
    let (status, _, err) = run(["bench", "-D", folder.path().to_str().unwrap(), "read"]);
    assert!(status == 2 && err.contains("read is a named case"), "{err}");
}

#[test]
fn cases_are_listed_as_json() {
    let (status, out, err) = run(["bench", "--list", "--json"]);
    assert_eq!(status, 0, "{err}");
    let listed: Value = serde_json::from_str(&out).unwrap();
    let listed = listed.as_array().unwrap();
    let find = |name: &str| listed.iter().find(|case| case["case"] == name).unwrap();
    let words = |name| ["unit", "memory"].map(|field| find(name)[field].as_str().unwrap());
    assert_eq!(words("first-byte"), ["ms", "gpu"], "{out}");
    assert_eq!(words("latency-4k"), ["us", "gpu"], "{out}");
    assert_eq!(words("gpus-read"), ["GB/s", "gpus"], "{out}");
    assert_eq!(words("host-read"), ["GB/s", "host"], "{out}");
    assert!(find("write-over")["overwrites"] == true && find("write-fresh")["overwrites"] == false, "{out}");
}

#[test]
fn short_files_are_not_blamed_on_the_size_option() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "empty", 0);
    let (status, _, err) = run(["bench", path.to_str().unwrap(), "-i", "4k"]);
    assert!(status == 2 && err.contains("0 B of the file: name a longer file"), "{err}");
}

#[test]
fn missing_files_are_made_for_writing_only() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new");
    let (status, out, err) = run(["bench", new.to_str().unwrap(), "-I", "read,randread"]);
    assert!(status == 1 && out.is_empty() && err.contains("there is no such file to read"), "{err}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn default_sizes_that_do_not_fit_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let workload = ["bench", folder.path().to_str().unwrap(), "-s", "8m", "-I", "read", "--host"];
    let (status, out, err) = run(workload);
    let has = |size| out.lines().any(|line| line.starts_with("read") && line.contains(size));
    assert!(status == 0 && has(" 64 KiB ") && has(" 1 MiB ") && !has(" 16 MiB "), "{out}{err}");
    let (status, _, err) = run(workload.into_iter().chain(["-i", "16m"]));
    assert!(status == 2 && err.contains("raise --size"), "{err}");
}
