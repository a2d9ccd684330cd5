//! Ctrl-C, closed outputs and terminals, for the commands of the program `gpufile`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};

use crate::program::{command, file, names};
use testkit::stoppable::StoppableMount;

fn wait_for(folder: &Path, part: &str) -> String {
    let start = Instant::now();
    loop {
        if let Some(name) = names(folder).into_iter().find(|name| name.contains(part)) {
            return name;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no file {part}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: takes integers. The child has not been waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
}

/// Signals when there is a file with this in its name, checks that the command ends at once, and returns what it says.
fn interrupted(command: Command, folder: &Path, part: &str, number: libc::c_int) -> (String, String) {
    interrupted_when(command, |_| wait_for(folder, part), number)
}

/// Does the same when `wait` returns.
fn interrupted_when<T>(
    mut command: Command,
    wait: impl FnOnce(&Child) -> T,
    number: libc::c_int,
) -> (T, String) {
    // A program in the background of a script ignores SIGINT, and so do the programs that it starts.
    // SAFETY: sets a disposition, which is safe to call between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::signal(number, libc::SIG_DFL) {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let name = wait(&child);
    thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    signal(&child, number);
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    let status = child.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(status.signal(), Some(number), "{status}: {err}");
    println!("ended by signal {number} after {:?}", start.elapsed());
    (name, err)
}

/// Gives up where the kernel does not show a thread that waits for FUSE.
fn wait_for_fuse(child: &Child) {
    let start = Instant::now();
    let is_waiting = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
        let wait = |task: fs::DirEntry| fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
        tasks.map(wait).any(|wait| wait.contains("request_wait") || wait.contains("fuse"))
    };
    while !is_waiting() && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn signals_end_commands_that_wait_for_a_mount() {
    let Some(mount) = StoppableMount::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let source = file(folder.path(), "source", 1 << 20);
    let source = source.to_str().unwrap();
    let (hung, copy) = (mount.path.to_str().unwrap(), format!("{place}/copy"));
    let inside = format!("{hung}/model.safetensors");
    let (report, metrics) = (format!("{place}/report"), format!("{hung}/metrics.prom"));
    mount.stop();
    let commands: &[&[&str]] = &[
        &["check", "--timeout", "600", hung],
        &["check", "--timeout", "600", "--try", "--report", &report, place, hung],
        &["cp", &inside, &copy],
        &["cp", source, hung],
        &["cp", source, &inside],
        &["cache", &inside],
        &["cache", "--drop", source, &inside],
        &["ls", hung],
        &["load", &inside],
        &["verify", &inside],
        &["bench", hung, "-I", "write", "-s", "1m"],
        &["bench", &inside, "first-byte"],
        &["check", "--textfile", &metrics, place],
        &["top", "--textfile", &metrics],
    ];
    for arguments in commands {
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let ((), err) = interrupted_when(command(*arguments), wait_for_fuse, number);
            assert!(err.contains("gpufile: interrupted"), "{arguments:?}: {err}");
            assert_eq!(names(folder.path()), ["source"], "{arguments:?} {number}");
        }
    }
}

#[test]
fn interrupted_copies_from_a_hung_mount_leave_nothing() {
    let Some(mount) = StoppableMount::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = file(&mount.path, "source", 8 << 20);
    let copy = folder.path().join("copy");
    let wait = |child: &Child| {
        // The first such file may be one that tries what the mount can do.
        wait_for(folder.path(), ".gpufile-tmp");
        mount.stop();
        // The page cache has the first bytes.
        wait_for_fuse(child);
    };
    let command = command(["cp", "--buffer", "1", source.to_str().unwrap(), copy.to_str().unwrap()]);
    let ((), err) = interrupted_when(command, wait, libc::SIGTERM);
    let path = folder.path().join(".copy.");
    assert!(err.contains(&format!("removed the unfinished \"{}", path.display())), "{err}");
    assert_eq!(names(folder.path()), [""; 0]);
}

/// The kernel drops signals that the first process of a container sends itself.
#[test]
fn signals_end_the_first_process_of_a_container() {
    let folder = tempfile::tempdir().unwrap();
    let bench = command(["bench", folder.path().to_str().unwrap(), "-s", "8m", "-I", "read", "-T", "60"]);
    let mut container = Command::new("unshare");
    container.args(["--pid", "--fork"]).arg(bench.get_program()).args(bench.get_args());
    container.envs(bench.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut outer = container.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while names(folder.path()).is_empty() {
        if outer.try_wait().unwrap().is_some() || start.elapsed() > Duration::from_secs(30) {
            return println!("skipped: no process namespaces of its own");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", outer.id())).unwrap();
    // SAFETY: takes integers. The process has not been waited for, because its parent waits for it only.
    assert_eq!(unsafe { libc::kill(children.trim().parse().unwrap(), libc::SIGTERM) }, 0);
    assert_eq!(outer.wait().unwrap().code(), Some(128 + libc::SIGTERM));
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn check_goes_on_after_a_mount_that_hangs() {
    let Some(mount) = StoppableMount::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (place, hung) = (folder.path().to_str().unwrap(), mount.path.to_str().unwrap());
    mount.stop();
    let output = command(["check", "--timeout", "2", place, hung, place]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.matches(&format!("{place}: F")).count(), 2, "{text}");
    assert!(text.contains("did not answer within 2.00 s") && text.contains("umount -l"), "{text}");
    let output = command(["check", "--json", "--timeout", "1", hung]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["paths"][0]["causes"][0]["cause"], "no-answer");
}

#[test]
fn interrupted_bench_removes_and_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for (number, options) in
        [(libc::SIGINT, &["-T", "60"][..]), (libc::SIGTERM, &["--gpu", "0,1", "-T", "60"])]
    {
        let command = command([&["bench", path, "-s", "8m", "-i", "64k", "-I", "write"], options].concat());
        let (name, err) = interrupted(command, folder.path(), "gpufile-bench-", number);
        assert!(err.contains("gpufile: interrupted; removed the unfinished") && err.contains(&name), "{err}");
        assert_eq!(names(folder.path()), [""; 0]);
    }
    // A named case that makes files beside the one that it measures.
    let measured = file(folder.path(), "file", 16 << 20);
    let command = command(["bench", measured.to_str().unwrap(), "--repeats", "100", "kv-store-16k"]);
    let (name, err) = interrupted(command, folder.path(), ".fresh-", libc::SIGINT);
    assert!(err.contains(&name), "{err}");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn interrupted_copy_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "source", 8 << 20);
    let target = folder.path().join("target");
    fs::write(&target, "precious").unwrap();
    for options in [&["--gpu", "0"][..], &[]] {
        // Byte by byte, the copy takes minutes.
        let paths = [source.to_str().unwrap(), target.to_str().unwrap()];
        let command = command([&["cp", "--buffer", "1"], options, &paths].concat());
        // The first such file may be one that tries what the mount can do.
        let (_, err) = interrupted(command, folder.path(), ".gpufile-tmp", libc::SIGINT);
        let path = folder.path().join(".target.");
        assert!(err.contains(&format!("removed the unfinished \"{}", path.display())), "{err}");
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        assert_eq!(names(folder.path()), ["source", "target"]);
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let program =
        command(["bench", folder.path().to_str().unwrap(), "-s", "1m", "-i", "4k", "-I", "read", "-T", "1"]);
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' INT; exec \"$0\" \"$@\""]).arg(program.get_program());
    ignoring
        .args(program.get_args())
        .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = ignoring.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for(folder.path(), "gpufile-bench-");
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn nobody() -> Stdio {
    io::pipe().unwrap().1.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn closed_and_full_outputs_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 100_000);
    let (path, place) = (path.to_str().unwrap(), folder.path().to_str().unwrap());
    let copy = folder.path().join("copy");
    let commands: &[&[&str]] = &[
        &["bench", place, "-s", "1m", "-i", "64k", "-w", "2"],
        &["bench", path, "-i", "4k", "--json"],
        &["bench", path, "-i", "4k", "--csv"],
        &["cp", path, copy.to_str().unwrap()],
        &["cache", path],
        &["top", "--count", "1"],
        &["completions", "zsh"],
        &["man", "bench"],
        &["cp", "--help"],
    ];
    for arguments in commands {
        let status = command(*arguments).stdout(nobody()).stderr(nobody()).status().unwrap();
        assert_eq!(status.code(), Some(0), "{arguments:?}");
        let status = command(*arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
    assert_eq!(names(folder.path()), ["copy", "file"]);
    let status = command(["frobnicate"]).stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

fn terminal(columns: u16) -> (File, OwnedFd) {
    let (mut screen, mut program) = (-1, -1);
    let (name, modes) = (std::ptr::null_mut(), std::ptr::null());
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the numbers and the size outlive the call. The other pointers may be null.
    let opened = unsafe { libc::openpty(&mut screen, &mut program, name, modes, &size) };
    assert_eq!(opened, 0, "{}", io::Error::last_os_error());
    // SAFETY: the call has opened both, and nothing else owns them.
    unsafe { (File::from_raw_fd(screen), OwnedFd::from_raw_fd(program)) }
}

fn on_terminal(mut command: Command, columns: u16) -> String {
    let (mut screen, end) = terminal(columns);
    command.env("TERM", "xterm").stdin(Stdio::null()).stdout(end.try_clone().unwrap()).stderr(end);
    let mut child = command.spawn().unwrap();
    // The last copies of the program's end are in the command.
    drop(command);
    let mut bytes = Vec::new();
    // A terminal that no program has open any more is an error of reading.
    let _ = screen.read_to_end(&mut bytes);
    assert!(child.wait().unwrap().success(), "{}", String::from_utf8_lossy(&bytes));
    String::from_utf8(bytes).unwrap()
}

#[test]
fn terminals_get_progress_and_bold_titles() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let bench = || command(["bench", place, "-s", "1m", "-i", "64k", "-I", "read", "-w", "1", "-T", "1"]);
    let text = on_terminal(bench(), 100);
    assert!(text.contains("measuring [") && text.contains("\x1b[1mio "), "{text:?}");
    // The bar is cleared before a line is printed.
    let row = text.find("host memory").or(text.find("POSIX")).unwrap();
    assert!(text[..row].contains("\x1b[2K"), "{text:?}");

    let mut plain = bench();
    plain.env("NO_COLOR", "1");
    let text = on_terminal(plain, 100);
    assert!(!text.contains("\x1b[1m") && text.contains("GB/s"), "{text:?}");

    let output = bench().output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(!text.contains(&0x1b) && !text.is_empty(), "no terminal, no escape sequences");
}

#[test]
fn tables_fit_a_terminal_of_60_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &"long-name".repeat(12), 100_000);
    let path = path.to_str().unwrap();
    let model = folder.path().join("a-model-with-a-rather-long-name-00001-of-00002.safetensors");
    let name = "model.layers.31.self_attn.q_proj.weight.with.a.long.name";
    let tensor = TensorData::new(name, Dtype::F32, &[7], &[2_u8; 28][..]);
    save(&model, &[tensor], &SaveOptions::new()).unwrap();
    let model = model.to_str().unwrap();
    for arguments in [
        &["ls", model][..],
        &["load", model],
        &["cache", path],
        &["bench", path, "-I", "read", "-i", "4k", "-s", "64k"],
        &["explain", "5001"],
        &["top", "--count", "1"],
    ] {
        let mut command = command(arguments);
        command.env("NO_COLOR", "1");
        let text = on_terminal(command, 60);
        // `top` clears the rest of each line. A bar of progress is on lines of its own.
        let text = ["\x1b[H", "\x1b[K", "\x1b[J"].iter().fold(text, |text, code| text.replace(code, ""));
        let lines: Vec<_> =
            text.lines().filter(|line| !line.contains('\x1b') && !line.starts_with("gpufile: ")).collect();
        let is_long = |line: &&&str| line.trim_end().chars().count() > 60;
        assert!(!lines.is_empty() && !lines.iter().any(|line| is_long(&line)), "{arguments:?}: {text}");
    }
}

#[test]
fn interrupted_uploads_leave_nothing() {
    let (bucket, folder) = (testkit::bucket::Bucket::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("model.bin");
    fs::write(&path, vec![1; 40 << 20]).unwrap();
    bucket.hold(true);
    let mut command = command(["cp", path.to_str().unwrap(), "s3://bucket/a"]);
    command.envs(bucket.variables());
    let ready = |_: &Child| bucket.wait_for_held(1);
    let err = interrupted_when(command, ready, libc::SIGTERM).1;
    assert!(err.contains("interrupted; aborted the upload"), "{err}");
    assert_eq!((bucket.unfinished(), bucket.names().len()), (0, 0));
}
