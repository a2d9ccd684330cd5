//! File systems that are mounted for a test, where the operating system allows it. The process of the test has its
//! own mounts, which end with it.

use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use tempfile::TempDir;

/// The namespace of the process that began the test.
const OUTSIDE: &str = "CUFILE_TEST_OUTSIDE";

pub struct Kind {
    pub name: &'static str,
    pub is_small: bool,
    mount: fn(&Path, &Path) -> Result<(), String>,
}

pub const KINDS: [Kind; 6] = [
    Kind {
        name: "tmpfs without space",
        is_small: true,
        mount: |_, target| mount("tmpfs", target, "size=3m"),
    },
    Kind { name: "overlayfs", is_small: false, mount: overlay },
    Kind { name: "ext4", is_small: false, mount: |scratch, target| image(scratch, target, "ext4", 192) },
    Kind {
        name: "ext4 without space",
        is_small: true,
        mount: |scratch, target| image(scratch, target, "ext4", 6),
    },
    Kind { name: "xfs", is_small: false, mount: |scratch, target| image(scratch, target, "xfs", 320) },
    Kind { name: "FUSE", is_small: false, mount: fuse },
];

fn namespace() -> PathBuf {
    fs::read_link("/proc/self/ns/mnt").unwrap_or_default()
}

/// Returns `None` in the process that began the test.
pub fn is_inside() -> Option<bool> {
    env::var_os(OUTSIDE).map(|outside| namespace() != Path::new(&outside))
}

/// Runs `name` in a process with its own mounts, if the operating system allows it, and returns its output.
///
/// # Panics
/// If it fails there.
pub fn inside(name: &str) -> String {
    let program = env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(OUTSIDE, namespace());
    // SAFETY: these calls take integers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let files = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ];
    let files = files.map(|(path, text)| (CString::new(path).unwrap(), text));
    let apart = move || {
        // SAFETY: the call takes integers.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0 {
            return Ok(());
        }
        // SAFETY: as above. A user without the right to mount may have it as the root of a namespace of users.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } == 0 {
            for (path, text) in &files {
                // SAFETY: the path and the bytes outlive the call, as does a descriptor that this process opened.
                unsafe {
                    let fd = libc::open(path.as_ptr(), libc::O_WRONLY);
                    libc::write(fd, text.as_ptr().cast(), text.len());
                    libc::close(fd);
                }
            }
        }
        // The process itself checks that its mounts are separate.
        Ok(())
    };
    // SAFETY: between fork and exec it calls the kernel, and allocates nothing.
    unsafe { command.pre_exec(apart) };
    let output = command.output().expect("this program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}:\n{out}{err}", output.status);
    err
}

pub struct Mounted {
    target: PathBuf,
    _scratch: TempDir,
}

impl Mounted {
    /// # Errors
    /// The reason why it cannot be mounted.
    pub fn new(kind: &Kind) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        // Other namespaces see none of these mounts.
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: the strings outlive the call, and null stands for no data.
        let private = unsafe {
            libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null())
        };
        if private != 0 {
            return Err(format!("no mounts of its own: {}", io::Error::last_os_error()));
        }
        let scratch = TempDir::new().map_err(text)?;
        let target = scratch.path().join("mounted");
        fs::create_dir(&target).map_err(text)?;
        (kind.mount)(scratch.path(), &target)?;
        Ok(Self { target, _scratch: scratch })
    }

    pub fn path(&self) -> &Path {
        &self.target
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let target = c_path(&self.target);
        // SAFETY: the path outlives the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().expect("a path that this test made")).expect("without NUL")
}

fn mount(kind: &str, target: &Path, options: &str) -> Result<(), String> {
    let [kind, options] = [kind, options].map(|text| CString::new(text).unwrap());
    let target = c_path(target);
    // SAFETY: the strings outlive the call.
    let mounted =
        unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
    if mounted == 0 { Ok(()) } else { Err(format!("mount: {}", io::Error::last_os_error())) }
}

fn overlay(scratch: &Path, target: &Path) -> Result<(), String> {
    let below = scratch.join("below");
    fs::create_dir(&below).map_err(|error| error.to_string())?;
    mount("tmpfs", &below, "size=512m")?;
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| below.join(name));
    for folder in [&lower, &upper, &work] {
        fs::create_dir(folder).map_err(|error| error.to_string())?;
    }
    let (lower, upper, work) = (lower.display(), upper.display(), work.display());
    mount("overlay", target, &format!("lowerdir={lower},upperdir={upper},workdir={work}"))
}

fn image(scratch: &Path, target: &Path, kind: &str, mebibytes: u64) -> Result<(), String> {
    let image = make_image(scratch, kind, mebibytes)?;
    run(Command::new("mount").args(["-t", kind, "-o", "loop"]).args([&image, target]))
}

fn fuse(scratch: &Path, target: &Path) -> Result<(), String> {
    let image = make_image(scratch, "ext4", 192)?;
    run(Command::new("fuse2fs").args([&image, target]).args(["-o", "fakeroot"]))
}

fn make_image(scratch: &Path, kind: &str, mebibytes: u64) -> Result<PathBuf, String> {
    let image = scratch.join("image");
    let made = fs::File::create(&image).and_then(|file| file.set_len(mebibytes << 20));
    made.map_err(|error| error.to_string())?;
    run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
    Ok(image)
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
