//! The descriptors 0 to 2.

use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;

/// Opens `/dev/null` for each standard stream that is closed. Otherwise the next file or pipe would get its descriptor, and
/// the output of the program.
///
/// Rust does so before `main`, but other languages, such as Python, do not.
pub fn reopen_closed() {
    for descriptor in 0..3 {
        // SAFETY: takes integers.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        if flags < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF) {
            // The kernel gives the lowest descriptor that is free, and those below are open.
            let null = File::options().read(true).write(true).open("/dev/null");
            // Without /dev/null, the process goes on as it is.
            let _ = null.map(IntoRawFd::into_raw_fd);
        }
    }
}
