//! What file systems report late, by taking the place of the C library's calls.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use gpufile::formats::{Error, SaveOptions, safetensors};

/// The folder whose files cannot be closed without an error, and which.
static FAILING: Mutex<Option<(PathBuf, c_int)>> = Mutex::new(None);

/// Closes the descriptor, and reports an error, as a file system on the network does.
#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    let path = fs::read_link(format!("/proc/self/fd/{fd}"));
    // SAFETY: as for the C library's function, which does the same.
    let closed = unsafe { libc::syscall(libc::SYS_close, fd) };
    match (&*FAILING.lock().unwrap(), path) {
        (Some((folder, errno)), Ok(path)) if path.starts_with(folder) => {
            // SAFETY: this thread's.
            unsafe { *libc::__errno_location() = *errno };
            -1
        }
        _ => closed as c_int,
    }
}

#[test]
fn a_file_that_a_file_system_could_not_write_until_it_was_closed_does_not_replace_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let save = |errno| {
        fs::write(&path, "old").unwrap();
        *FAILING.lock().unwrap() = Some((folder.path().to_owned(), errno));
        let saved = safetensors::save_with(&path, &[], BTreeMap::new(), &SaveOptions::new().sync(false));
        *FAILING.lock().unwrap() = None;
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        match saved {
            Ok(_) => None,
            Err(Error::Save { error, .. }) => error.raw_os_error(),
            Err(error) => panic!("{error}"),
        }
    };
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EIO] {
        assert_eq!(save(errno), Some(errno));
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
    // A signal came, and that says nothing about the file.
    assert_eq!(save(libc::EINTR), None);
    assert_ne!(fs::read(&path).unwrap(), b"old");
}
