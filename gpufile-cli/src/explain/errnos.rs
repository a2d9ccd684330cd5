//! The operating system's error numbers, for files and their transfers. Numbers that files do not cause are grouped.

use std::io;

use super::{CHECK, Entry};

/// Returns the entry of a number, positive or negative.
pub fn of(errno: i32) -> Option<&'static Entry> {
    let errno = errno.checked_abs()?;
    let row = TABLE.iter().find(|(names, _)| names.iter().any(|name| number(name) == Some(errno)));
    row.map(|(_, entry)| entry)
}

/// Returns what a number is called: its name, and the system's words for it.
pub fn title(errno: i32) -> String {
    let name = NAMES.iter().find(|(_, number)| *number == errno).map_or("errno", |(name, _)| name);
    format!("{name} (errno {errno}, {})", words(errno))
}

/// Returns the number whose words a line in lower case has.
pub fn in_words(line: &str) -> Option<i32> {
    let mut numbers = NAMES.iter().map(|(_, number)| *number);
    numbers.find(|number| line.contains(&words(*number).to_lowercase()))
}

/// Returns the system's words for a number.
fn words(errno: i32) -> String {
    let words = io::Error::from_raw_os_error(errno).to_string();
    words.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Returns the number of a name.
pub fn number(name: &str) -> Option<i32> {
    let aliases =
        [("EWOULDBLOCK", libc::EAGAIN), ("ENOTSUP", libc::EOPNOTSUPP), ("EDEADLOCK", libc::EDEADLK)];
    let mut all = NAMES.iter().chain(&aliases);
    all.find(|(known, _)| *known == name).map(|(_, number)| *number)
}

macro_rules! names {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// Every number of Linux on x86-64 and aarch64.
pub const NAMES: &[(&str, i32)] = names![
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK
    ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT
    EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV
    ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX
    ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT
    ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET
    ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH
    EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY
    EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON
];

/// The names of the numbers, and what is known about them.
type Row = (&'static [&'static str], Entry);

const fn row(
    names: &'static [&'static str],
    meaning: &'static str,
    cause: &'static str,
    remedy: &'static str,
    proof: &'static str,
) -> Row {
    (names, Entry { meaning, cause, remedy, proof })
}

const STRACE: &str = "`strace -f -e trace=file,desc PROGRAM` shows the call and its arguments";
const DISK: &str = "`dmesg` shows errors of the disk; `dd if=FILE of=/dev/null bs=1M` reads the same bytes";

pub const TABLE: &[Row] = &[
    row(
        &["EPERM"],
        "the operation is not allowed",
        "the file is immutable or append-only; libcufile returns 1 for a range beyond the buffer's allocation, and for a \
         write beyond `ulimit -f`",
        "pass a range within the allocation; remove the attribute with chattr; raise the limit",
        "`lsattr FILE`, `ulimit -f`, and `gpufile check FILE`",
    ),
    row(
        &["ENOENT"],
        "there is no such file, or a folder of its path is missing",
        "a misspelt name, a link that leads nowhere, or a container into which the folder is not mounted",
        "name a path that exists; mount the folder into the container",
        "`ls -l PATH`, in the container too",
    ),
    row(
        &["EINTR", "ERESTART"],
        "a signal interrupted the call",
        "a signal handler without SA_RESTART, or Ctrl-C",
        "repeat the call; gpufile does so",
        STRACE,
    ),
    row(
        &["EIO"],
        "the storage failed the transfer; with cuFile, also a negative offset into the buffer, or a write to a file that is \
         open for reading",
        "a disk or a network with errors; -5 of a stream-ordered transfer comes from an offset into memory that is not \
         registered",
        "read the kernel's log; with cuFile, register the whole buffer, and open the file for this direction",
        DISK,
    ),
    row(
        &["ENXIO", "ENODEV", "ENOTBLK", "ENOMEDIUM", "EMEDIUMTYPE"],
        "there is no such device, or it does not take the call",
        "a FIFO without a reader, a disk that is gone, or a mapping of a file that cannot be mapped",
        "name a regular file on a disk that is there",
        DISK,
    ),
    row(
        &["EBADF", "EBADFD"],
        "the descriptor is closed, or the file is not open for this direction",
        "a write to a file that was opened for reading, or a descriptor that was closed while it was in use",
        "open the file for reading and writing, and close it last",
        STRACE,
    ),
    row(
        &["EAGAIN", "EALREADY", "EINPROGRESS", "EBUSY", "ETXTBSY"],
        "the file or the device is busy, or a limit of processes or locked memory is reached",
        "another program has it locked or runs it; mlock returns it at the limit of locked memory",
        "end the other program, or raise the limit",
        "`fuser -v FILE`, and `ulimit -a`",
    ),
    row(
        &["ENOMEM", "ENOBUFS"],
        "memory ran out; as the byte count -12 of a stream-ordered transfer, the thread has no current CUDA context",
        "the container's memory, the limit of locked memory, or the limit of mappings is reached",
        "give the process more memory (`--memory`, `ulimit -l unlimited`), or set GPUFILE_BOUNCE_MEMORY lower",
        "`ulimit -l`, `memory.events` of the control group, and `dmesg | grep -i oom`",
    ),
    row(
        &["EACCES"],
        "this user may not use the file or a folder of its path",
        "permissions, an ACL, or a security module such as SELinux in a container",
        "change the permissions, run as the owner, or mount the folder with the label (`:z`)",
        "`namei -l PATH` shows each folder's permissions",
    ),
    row(
        &["EFAULT"],
        "the address is not readable or writable memory",
        "device memory was passed to a call for host memory, the memory was freed, or the device was reset",
        "pass GPU memory to gpufile or cuFile only, and keep it until the transfer is done",
        "cudaPointerGetAttributes shows the kind of the memory",
    ),
    row(
        &["EEXIST", "ENOTEMPTY"],
        "the file or the folder is there already",
        "an earlier run left it",
        "remove it or choose another name",
        "`ls -la FOLDER`",
    ),
    row(
        &["EXDEV", "EMLINK"],
        "a file cannot be renamed or linked to there",
        "the target is on another file system, or has too many links",
        "write next to the target",
        "`findmnt -T PATH` shows the file system",
    ),
    row(
        &["ENOTDIR", "EISDIR"],
        "a folder was named where a file is needed, or the reverse",
        "the path ends too early or too late",
        "name the file",
        "`ls -ld PATH`",
    ),
    row(
        &["EINVAL"],
        "an argument is invalid; for O_DIRECT, the address, the offset or the length is not a multiple of the block size",
        "an unaligned direct transfer, a file system without O_DIRECT, or more than 128 entries of cuFileReadv",
        "align address, offset and length to the block size, or let gpufile do it",
        "`gpufile check FILE` shows the alignment that O_DIRECT needs",
    ),
    row(
        &["ENFILE", "EMFILE", "EUSERS"],
        "too many files are open",
        "the limit of open files of the process or the machine is reached",
        "raise it (`ulimit -n`), or close files",
        "`ls /proc/PID/fd | wc -l`, compared with `ulimit -n`",
    ),
    row(
        &["ENOTTY", "ENOSYS", "EOPNOTSUPP", "EPROTONOSUPPORT", "ENOPKG"],
        "the file system, the device or the kernel does not support the call",
        "an old kernel, a FUSE or network file system, or a container that forbids the call",
        "use another file system or a newer kernel; gpufile goes another way where it can",
        CHECK,
    ),
    row(
        &["EFBIG"],
        "the file would become too large",
        "`ulimit -f`, or the largest file of the file system",
        "raise the limit, or use a file system with larger files",
        "`ulimit -f`",
    ),
    row(
        &["ENOSPC", "EDQUOT"],
        "the file system is full, or the user's quota is used up",
        "leftovers of earlier runs, reserved blocks, or no free inodes",
        "free space; gpufile removes leftovers of its own saves when it saves again",
        "`df -h PATH`, `df -i PATH` and `quota`",
    ),
    row(
        &["ESPIPE"],
        "the descriptor has no offsets",
        "it is a pipe, a terminal or a socket",
        "name a regular file",
        "`stat PATH`",
    ),
    row(
        &["EROFS"],
        "the file system is mounted read-only",
        "a mount option, squashfs, or errors of the disk after which the kernel made it so",
        "`mount -o remount,rw`, or write elsewhere",
        "`findmnt -T PATH` shows the options, `dmesg` the errors",
    ),
    row(
        &["EPIPE", "ESTRPIPE"],
        "the reader is gone",
        "the next program of a pipeline ended",
        "nothing, if it had seen enough",
        STRACE,
    ),
    row(
        &["ENAMETOOLONG", "ELOOP"],
        "the path is too long, or its links go round in a circle",
        "a name of more than 255 bytes, or a link that leads to itself",
        "shorten the name, or correct the links",
        "`namei -l PATH`",
    ),
    row(
        &["ENOLCK", "EDEADLK"],
        "a lock could not be taken",
        "a network file system without a lock service",
        "mount it with locks",
        "`flock FILE true`",
    ),
    row(
        &["ENODATA", "EOVERFLOW", "ERANGE", "EDOM", "E2BIG"],
        "a value is missing or does not fit",
        "an attribute that is not there, or an offset of more than 2^63 - 1",
        "correct the argument",
        STRACE,
    ),
    row(
        &["EBADMSG", "EUCLEAN", "EILSEQ", "ENOTUNIQ", "EHWPOISON"],
        "what the disk or the memory returned is damaged",
        "a checksum of the file system does not match, or a page of memory is faulty",
        "check the file system (fsck, xfs_repair, btrfs scrub), and restore the file",
        DISK,
    ),
    row(
        &[
            "ESTALE",
            "EREMOTEIO",
            "ETIMEDOUT",
            "ECONNRESET",
            "ECONNABORTED",
            "ECONNREFUSED",
            "ENETDOWN",
            "ENETUNREACH",
            "ENETRESET",
            "EHOSTDOWN",
            "EHOSTUNREACH",
            "ENOTCONN",
            "ESHUTDOWN",
            "ENOLINK",
            "ECOMM",
            "EPROTO",
            "ETIME",
            "EREMOTE",
            "ENONET",
            "EPFNOSUPPORT",
            "EREMCHG",
        ],
        "a network file system or another server does not answer, or does not know the file any more",
        "the server restarted or is not reachable, or the file was replaced on another machine",
        "mount it again, or open the file again",
        "`dmesg`, and `stat PATH` from another machine",
    ),
    row(
        &["ENOKEY", "EKEYEXPIRED", "EKEYREVOKED", "EKEYREJECTED"],
        "the key of an encrypted folder or of a network file system is missing",
        "the folder is locked, or a ticket (Kerberos) has expired",
        "unlock the folder, or get a new ticket",
        "`keyctl show`, `klist`",
    ),
    row(
        &["ECANCELED"],
        "the transfer was cancelled",
        "the program or Ctrl-C ended it",
        "nothing, if that was intended",
        STRACE,
    ),
    row(
        &["ELIBACC", "ELIBBAD", "ELIBSCN", "ELIBMAX", "ELIBEXEC", "ENOEXEC"],
        "a library or a program cannot be loaded",
        "it is damaged, or for another processor",
        "install it again, for this processor",
        "`file PATH`, and `ldd PATH`",
    ),
    row(
        &["ESRCH", "ECHILD", "EOWNERDEAD", "ENOTRECOVERABLE"],
        "the process or the thread is gone",
        "it ended while something waited for it",
        "look for why it ended",
        "`dmesg` and the exit status of the process",
    ),
    row(
        &[
            "ENOMSG",
            "EIDRM",
            "ECHRNG",
            "EL2NSYNC",
            "EL3HLT",
            "EL3RST",
            "ELNRNG",
            "EUNATCH",
            "ENOCSI",
            "EL2HLT",
            "EBADE",
            "EBADR",
            "EXFULL",
            "ENOANO",
            "EBADRQC",
            "EBADSLT",
            "EBFONT",
            "ENOSTR",
            "ENOSR",
            "EADV",
            "ESRMNT",
            "EMULTIHOP",
            "EDOTDOT",
            "ENOTSOCK",
            "EDESTADDRREQ",
            "EMSGSIZE",
            "EPROTOTYPE",
            "ENOPROTOOPT",
            "ESOCKTNOSUPPORT",
            "EAFNOSUPPORT",
            "EADDRINUSE",
            "EADDRNOTAVAIL",
            "EISCONN",
            "ETOOMANYREFS",
            "ENOTNAM",
            "ENAVAIL",
            "EISNAM",
            "ERFKILL",
        ],
        "a call that has nothing to do with files failed",
        "a socket, a queue or a terminal; transfers of files do not return it",
        "look up the call in its manual page",
        STRACE,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_the_system_has_one_entry() {
        let mut found = 0;
        for errno in 1..200 {
            let words = io::Error::from_raw_os_error(errno).to_string();
            if words.starts_with("Unknown error") {
                continue;
            }
            let rows = TABLE.iter().filter(|(names, _)| names.iter().any(|name| number(name) == Some(errno)));
            assert_eq!(rows.count(), 1, "{words}");
            assert!(title(errno).starts_with('E') && of(-errno).is_some(), "{words}");
            found += 1;
        }
        assert_eq!(found, NAMES.len());
        assert!(of(0).is_none() && of(i32::MIN).is_none());
    }
}
