//! Processes that the kernel stops at each system call.

use std::fs;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use libc::{c_int, c_long, c_void, pid_t};

#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub thread: pid_t,
    pub number: c_long,
    pub arguments: [u64; 6],
    /// The value that it returned; `None` if it has not begun.
    pub returned: Option<i64>,
}

/// The decision about the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Continue,
    Kill,
}

impl Call {
    /// Returns whether saves use the call to change files and folders, lock them, or wait for the storage.
    pub fn changes_files(&self) -> bool {
        const CHANGING: [c_long; 19] = [
            libc::SYS_write,
            libc::SYS_writev,
            libc::SYS_pwrite64,
            libc::SYS_pwritev,
            libc::SYS_pwritev2,
            libc::SYS_process_vm_writev,
            libc::SYS_io_uring_enter,
            libc::SYS_copy_file_range,
            libc::SYS_truncate,
            libc::SYS_ftruncate,
            libc::SYS_fallocate,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
            libc::SYS_sync_file_range,
            libc::SYS_mkdirat,
            libc::SYS_linkat,
            libc::SYS_unlinkat,
            libc::SYS_renameat2,
            libc::SYS_flock,
        ];
        /// The calls that newer machines do not have.
        #[cfg(target_arch = "x86_64")]
        const OLDER: [c_long; 8] = [
            libc::SYS_open,
            libc::SYS_creat,
            libc::SYS_mkdir,
            libc::SYS_rmdir,
            libc::SYS_link,
            libc::SYS_unlink,
            libc::SYS_rename,
            libc::SYS_renameat,
        ];
        #[cfg(not(target_arch = "x86_64"))]
        const OLDER: [c_long; 1] = [libc::SYS_renameat];
        let creates = self.number == libc::SYS_openat && self.arguments[2] & libc::O_CREAT as u64 != 0;
        creates || CHANGING.contains(&self.number) || OLDER.contains(&self.number)
    }

    pub fn path(&self, argument: usize) -> PathBuf {
        let memory = fs::File::open(format!("/proc/{}/mem", self.thread)).expect("a thread that is stopped");
        let mut text = Vec::new();
        let mut byte = [0];
        loop {
            let at = self.arguments[argument] + text.len() as u64;
            memory.read_exact_at(&mut byte, at).expect("a string");
            if byte[0] == 0 {
                return PathBuf::from(std::ffi::OsString::from_vec(text));
            }
            text.push(byte[0]);
        }
    }

    pub fn open_file(&self, number: i64) -> PathBuf {
        format!("/proc/{}/fd/{number}", self.thread).into()
    }
}

/// Runs a program, and calls `ask` before and after each system call of its threads. Returns true if the program
/// ended with status 0, and false if `ask` killed it.
pub fn run(mut command: Command, mut ask: impl FnMut(&Call) -> Verdict) -> bool {
    // SAFETY: makes one system call between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let process = command.spawn().expect("a process that is traced").id() as pid_t;
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    assert_eq!(wait(process), Some((process, stopped_by(libc::SIGTRAP))));
    ptrace(libc::PTRACE_SETOPTIONS, process, options as usize);
    go_on(process, 0);

    let mut begun = std::collections::HashMap::new();
    let mut verdict = Verdict::Continue;
    let mut status_at_end = None;
    while let Some((thread, status)) = wait(-1) {
        if !libc::WIFSTOPPED(status) {
            if thread == process {
                status_at_end = Some(status);
            }
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        if signal != libc::SIGTRAP | 0x80 {
            // A new thread begins with a stop, and its creation is another stop.
            let is_event = status >> 16 != 0 || signal == libc::SIGSTOP;
            go_on(thread, if is_event { 0 } else { signal });
            continue;
        }
        let call = match system_call(thread) {
            Some(call @ Call { returned: None, .. }) => {
                begun.insert(thread, call);
                call
            }
            Some(Call { returned, .. }) => match begun.remove(&thread) {
                Some(call) => Call { returned, ..call },
                None => {
                    go_on(thread, 0);
                    continue;
                }
            },
            None => continue,
        };
        if verdict == Verdict::Continue {
            verdict = ask(&call);
        }
        if verdict == Verdict::Kill {
            // SAFETY: takes integers; the process is ours and has not been waited for.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        go_on(thread, 0);
    }
    let status = status_at_end.expect("a process that ends");
    match verdict {
        Verdict::Kill => false,
        Verdict::Continue => {
            assert!(
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
                "ended with status {status:#x}"
            );
            true
        }
    }
}

fn stopped_by(signal: c_int) -> c_int {
    signal << 8 | 0x7f
}

/// Waits for a thread that this one traces; `None` if there is none.
fn wait(process: pid_t) -> Option<(pid_t, c_int)> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let thread = unsafe { libc::waitpid(process, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    (thread > 0).then_some((thread, status))
}

/// Lets a stopped thread go on to the next system call; it may have been killed.
fn go_on(thread: pid_t, signal: c_int) {
    ptrace(libc::PTRACE_SYSCALL, thread, signal as usize);
}

fn ptrace(request: libc::c_uint, thread: pid_t, data: usize) -> c_long {
    // SAFETY: these requests take integers.
    unsafe { libc::ptrace(request, thread, 0, data) }
}

/// Returns the system call that a thread is stopped at; `None` if it was killed.
fn system_call(thread: pid_t) -> Option<Call> {
    // SAFETY: zeros are valid.
    let mut info: libc::ptrace_syscall_info = unsafe { mem::zeroed() };
    let len_bytes = size_of_val(&info);
    let info_ptr: *mut c_void = (&raw mut info).cast();
    // SAFETY: the kernel writes at most the size of `info`.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, len_bytes, info_ptr) };
    match info.op {
        _ if got <= 0 => None,
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: the kernel reports that it has filled this in.
            let entry = unsafe { info.u.entry };
            Some(Call { thread, number: entry.nr as c_long, arguments: entry.args, returned: None })
        }
        _ => {
            // SAFETY: the kernel reports that it has filled this in.
            let returned = Some(unsafe { info.u.exit.sval });
            Some(Call { thread, number: -1, arguments: [0; 6], returned })
        }
    }
}
