//! Code that the tests of the workspace share.

pub mod amazon;
pub mod another_boot;
pub mod bed;
pub mod bucket;
pub mod counting;
pub mod damage;
pub mod delay;
pub mod folders;
pub mod google;
pub mod in_flight;
pub mod memory;
mod mounts;
pub mod no_op;
pub mod proxy;
pub mod python;
pub mod random;
pub mod refusing;
pub mod stoppable;
pub mod ways;
pub mod web;
pub mod zoo;

use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, hint, io, thread};

use bed::Bed;
pub use cufile_emulator::Emulator;

/// Runs each function on another thread.
///
/// Joins each, because ThreadSanitizer does not see a scope's wait for unjoined threads.
///
/// # Panics
/// If one of them does.
pub fn in_threads<F: FnOnce() + Send>(functions: impl IntoIterator<Item = F>) {
    thread::scope(|scope| {
        let threads: Vec<_> = functions.into_iter().map(|function| scope.spawn(function)).collect();
        for thread in threads {
            thread.join().expect("a thread that did not panic");
        }
    });
}

/// Steps that two threads take together. They go on within nanoseconds of each other, so both are often the first at a lock.
#[derive(Debug, Default)]
pub struct Steps(AtomicUsize);

impl Steps {
    /// Waits until both threads are here.
    pub fn next(&self) {
        let others = self.0.fetch_add(1, Ordering::Relaxed) | 1;
        let mut looks = 0;
        while self.0.load(Ordering::Relaxed) <= others {
            looks += 1;
            // The other thread may need this processor.
            if looks % 50_000 == 0 { thread::yield_now() } else { hint::spin_loop() }
        }
    }
}

/// Returns the command that runs only the calling test, in another process.
///
/// # Panics
/// If this is not the thread of a test.
pub fn this_test() -> Command {
    let thread = thread::current();
    let name = thread.name().expect("the harness gives the thread of a test its name");
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs the body of the calling test in a separate process, for tests of state of the whole process.
///
/// # Panics
/// If it fails there.
pub fn alone(body: impl FnOnce()) {
    alone_with(|_| (), body);
}

/// Does what [`alone`] does, with a folder that the dynamic loader searches first, for the body's libraries.
///
/// # Panics
/// If it fails there.
pub fn alone_with_libraries(body: impl FnOnce(&Path)) {
    const FOLDER: &str = "CUFILE_TEST_LIBRARIES";
    let folder = tempfile::tempdir().expect("a folder for libraries");
    let change = |command: &mut Command| {
        for variable in ["CUFILE_LIBRARY", "CUDART_LIBRARY", "CUDA_LIBRARY"] {
            command.env_remove(variable);
        }
        command.env("LD_LIBRARY_PATH", folder.path()).env(FOLDER, folder.path());
    };
    alone_with(change, || body(Path::new(&env::var_os(FOLDER).expect("set for this process"))));
}

fn alone_with(change: impl FnOnce(&mut Command), body: impl FnOnce()) {
    const VARIABLE: &str = "CUFILE_TEST_ALONE";
    if env::var_os(VARIABLE).is_some() {
        return body();
    }
    let mut command = this_test();
    command.env(VARIABLE, "1");
    change(&mut command);
    let output = command.output().expect("this program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}:\n{out}{err}", output.status);
}

/// Runs `child` in a fork, and checks that it ends without a panic within 20 seconds. No other test may run, because
/// a fork copies its state.
///
/// # Errors
/// A description of how it ended.
///
/// # Panics
/// If the kernel refuses to fork.
pub fn in_a_fork(child: impl FnOnce()) -> Result<(), String> {
    const PATIENCE: Duration = Duration::from_secs(20);
    // SAFETY: the child uses no thread or lock of the parent's, and ends without returning.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            let ended = catch_unwind(AssertUnwindSafe(child));
            // SAFETY: ends the process without running the parent's code.
            unsafe { libc::_exit(if ended.is_ok() { 0 } else { 1 }) }
        }
        pid => {
            let (begun, mut status) = (Instant::now(), 0);
            // SAFETY: `status` outlives the call.
            while unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } != pid {
                if begun.elapsed() > PATIENCE {
                    // A child that hangs. The first process of a PID namespace heeds no other signal.
                    // SAFETY: the child was not waited for, so it has the process id still.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
                thread::sleep(Duration::from_millis(1));
            }
            match status {
                0 => Ok(()),
                _ if libc::WIFSIGNALED(status) => Err(format!("ended by signal {}", libc::WTERMSIG(status))),
                _ => Err(format!("failed with status {}", libc::WEXITSTATUS(status))),
            }
        }
    }
}

/// Runs `body` in a child process, as the calling test again. The child must abort and print `why`. A test may call this
/// several times, each with another `why`.
///
/// # Panics
/// If the child ends otherwise.
pub fn aborts(why: &str, body: impl FnOnce()) {
    const VARIABLE: &str = "CUFILE_TEST_ABORTS";
    if let Some(chosen) = env::var_os(VARIABLE) {
        if chosen == why {
            body();
        }
        return;
    }
    let output = this_test().env(VARIABLE, why).output().expect("this program runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let is_aborted = output.status.signal() == Some(libc::SIGABRT);
    assert!(is_aborted && text.contains(why), "{why}: {}: {text}", output.status);
}

/// Runs the body of the calling test as [`Bed::each`] does. Code that asks the dynamic loader for `libcuda.so` finds
/// the bed's libcuda there too. The loader reads its search path when a process starts, so the emulator gets a
/// separate process.
///
/// # Panics
/// If it fails there.
pub fn each_with_libcuda(body: impl Fn(&Bed)) {
    const FOLDER: &str = "CUFILE_TEST_LIBCUDA";
    let folder = tempfile::tempdir().expect("a folder for the emulator");
    let search = |command: &mut Command| {
        let others = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = [folder.path().to_owned()].into_iter().chain(env::split_paths(&others));
        let all = env::join_paths(folders).expect("folders without colons");
        command.env("LD_LIBRARY_PATH", all).env(FOLDER, folder.path());
    };
    let emulated = || {
        let folder = PathBuf::from(env::var_os(FOLDER).expect("set for this process"));
        body(&Bed::on(Emulator::at(&folder.join("libcuda.so"))));
    };
    alone_with(search, emulated);
    if env::var_os(FOLDER).is_none()
        && let Some(bed) = Bed::real()
    {
        body(&bed);
    }
}
