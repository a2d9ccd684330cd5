use std::{fs, io};

/// The files that the process may open meanwhile.
const SPARE: u64 = 64;

/// Raises the soft limit of open files to the hard one if `files` files, opened twice each for `O_DIRECT`, might not fit under it
/// beside those that the process has. Children of this process inherit the limit.
pub(super) fn make_room(files: usize) {
    if let Some(mut limit) = get().filter(|limit| limit.rlim_cur < limit.rlim_max) {
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        if limit.rlim_cur < (open + 2 * files) as u64 + SPARE {
            limit.rlim_cur = limit.rlim_max;
            // SAFETY: the call reads the structure.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
        }
    }
}

/// Adds to an error of opening one of several files what the limit is, if the limit is the cause.
pub(super) fn explain(error: crate::Error, files: usize) -> crate::Error {
    let (crate::Error::Open { path, .. }, Some(libc::EMFILE), Some(limit)) =
        (&error, error.raw_os_error(), get())
    else {
        return error;
    };
    let text = format!(
        "the model has {files} files, and this process may open no more than {} at once; raise the hard limit \
         (`ulimit -Hn`)",
        limit.rlim_cur
    );
    let cause = io::Error::other(text).into();
    crate::Error::Open { path: path.clone(), cause }
}

fn get() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the structure.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0).then_some(limit)
}
