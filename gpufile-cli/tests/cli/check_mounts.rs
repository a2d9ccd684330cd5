//! `gpufile check` on file systems that the test mounts for itself. It needs root, and the tools of each file system.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The shell commands mount it on `mounted` in the working directory; `check` must name the causes.
struct Kind {
    name: &'static str,
    /// It cannot be made without this program.
    tool: &'static str,
    mount: &'static str,
    causes: &'static [&'static str],
    /// Words of the error that `--try` meets if its two workers write out of order.
    error: Option<&'static str>,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "overlay",
        tool: "mount",
        mount: "mkdir l u w && mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w mounted",
        causes: &["overlay"],
        error: None,
    },
    Kind {
        name: "tmpfs, read-only",
        tool: "mount",
        mount: "mount -t tmpfs none mounted && echo x > mounted/file && mount -o remount,ro mounted",
        causes: &["tmpfs", "read-only"],
        error: None,
    },
    Kind {
        name: "ext4 in a file",
        tool: "mkfs.ext4",
        mount: "truncate -s 32m i && mkfs.ext4 -q -F i && mount -o loop i mounted",
        causes: &["loop"],
        error: None,
    },
    Kind {
        name: "ext4 with a journal of data",
        tool: "mkfs.ext4",
        mount: "truncate -s 32m i && mkfs.ext4 -q -F i && mount -o loop,data=journal i mounted",
        causes: &["ext4-journal", "loop"],
        error: None,
    },
    Kind {
        name: "xfs in a file",
        tool: "mkfs.xfs",
        mount: "truncate -s 320m i && mkfs.xfs -q i && mount -o loop i mounted",
        causes: &["loop"],
        error: None,
    },
    Kind {
        name: "btrfs",
        tool: "mkfs.btrfs",
        mount: "truncate -s 128m i && mkfs.btrfs -q i && mount -o loop i mounted",
        causes: &["copy-on-write"],
        error: None,
    },
    Kind {
        name: "squashfs",
        tool: "mksquashfs",
        mount: "mkdir s && echo x > s/file && mksquashfs s i -quiet -no-progress && mount -o loop i mounted",
        causes: &["other-file-system", "read-only"],
        error: None,
    },
    Kind {
        name: "bindfs",
        tool: "bindfs",
        mount: "mkdir s && echo x > s/file && bindfs s mounted",
        causes: &["fuse"],
        error: None,
    },
    Kind {
        name: "rclone",
        tool: "rclone",
        mount: "mkdir s && echo x > s/file && rclone mount s mounted --daemon --config '' --vfs-cache-mode off",
        causes: &["fuse"],
        error: Some("rclone without --vfs-cache-mode"),
    },
    Kind {
        name: "rclone with a cache of writes",
        tool: "rclone",
        mount: "mkdir s && rclone mount s mounted --daemon --config '' --cache-dir c --vfs-cache-mode writes",
        causes: &["fuse"],
        error: None,
    },
];

/// Returns the reason if the file system cannot be mounted.
fn run_mounted(kind: &Kind, folder: &Path, arguments: &str) -> Result<Output, String> {
    fs::create_dir(folder.join("mounted")).map_err(|error| error.to_string())?;
    let program = crate::program::command([""; 0]);
    let script = format!(
        "export PATH=$PATH:/sbin:/usr/sbin; command -v {} >&2 || exit 90; mount --make-rprivate / && {{ {}; }} >&2 || exit 91; \
         \"$0\" {arguments}; code=$?; left=$(find mounted -name '.gpufile*' | head -n 3); umount -l mounted; \
         [ -z \"$left\" ] || {{ echo \"left: $left\" >&2; exit 92; }}; exit $code",
        kind.tool, kind.mount
    );
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(program.get_program()).current_dir(folder);
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // SAFETY: between fork and exec it makes one system call.
    unsafe {
        shell.pre_exec(|| match libc::unshare(libc::CLONE_NEWNS) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let output = shell.output().map_err(|error| format!("no mounts of its own: {error}"))?;
    match output.status.code() {
        Some(90) => Err(format!("{} is not installed", kind.tool)),
        Some(91) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        _ => Ok(output),
    }
}

fn check(kind: &Kind, folder: &Path) -> Result<Value, String> {
    let output = run_mounted(kind, folder, "check --try --json mounted")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let code = output.status.code();
    let report: Value =
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{code:?} {error}: {out}{err}"));
    assert_ne!(code, Some(92), "{}: {err}", kind.name);
    let fails = !report["paths"][0]["try"]["error"].is_null();
    assert_eq!(code, Some(if fails { 1 } else { 3 }), "{}: {report:#}{err}", kind.name);
    Ok(report)
}

#[test]
fn files_of_a_system_without_fsync_leave_the_page_cache() {
    let kind = KINDS.iter().find(|kind| kind.name == "squashfs").unwrap();
    let folder = tempfile::tempdir().unwrap();
    match run_mounted(kind, folder.path(), "cache --drop mounted/file") {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(reason) => eprintln!("skipped: {}: {reason}", kind.name),
    }
}

/// A mount of rclone has no ACLs, and answers EIO to the question for them.
#[test]
fn files_on_fuse_are_copied() {
    for name in ["bindfs", "rclone"] {
        let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
        let folder = tempfile::tempdir().unwrap();
        match run_mounted(kind, folder.path(), "cp mounted/file copy") {
            Ok(output) => {
                assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
                assert_eq!(fs::read(folder.path().join("copy")).unwrap(), b"x\n", "{name}");
            }
            Err(reason) => eprintln!("skipped: {name}: {reason}"),
        }
    }
}

#[test]
fn mounted_file_systems_have_their_causes() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let report = match check(kind, folder.path()) {
            Ok(report) => report,
            Err(reason) => {
                eprintln!("skipped: {}: {reason}", kind.name);
                continue;
            }
        };
        let path = &report["paths"][0];
        let found: Vec<&str> =
            path["causes"].as_array().unwrap().iter().map(|cause| cause["cause"].as_str().unwrap()).collect();
        for cause in kind.causes {
            assert!(found.contains(cause), "{}: {cause}: {found:?}", kind.name);
        }
        let error = path["try"]["error"].as_str();
        if let Some(error) = error {
            assert!(kind.error.is_some_and(|words| error.contains(words)), "{}: {error}", kind.name);
            continue;
        }
        // What cannot be written is still read.
        assert_eq!(
            path["try"]["write_seconds"].is_null(),
            kind.causes.contains(&"read-only"),
            "{}",
            kind.name
        );
    }
}
