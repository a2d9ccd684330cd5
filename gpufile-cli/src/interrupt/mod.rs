//! Ctrl-C and the like: they end the program at once. Unfinished files are removed first, and named.
//!
//! Every thread blocks the signals, and one thread takes them with `sigwait`, without a handler. So the kernel ends a thread
//! that waits for a file system, even one that no longer answers.

mod unfinished;
mod uploads;

use std::io::{self, IsTerminal};
use std::mem;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use self::unfinished::{Creating, Unfinished};
pub use self::uploads::Uploading;
use super::stderr;

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The time for removing what is unfinished. A file system that does not answer must not keep the program alive.
const PATIENCE: Duration = Duration::from_millis(600);

/// Functions that remove what is unfinished, each in a thread of its own. They send words for the user.
const TIDIERS: &[fn(&Sender<String>)] = &[unfinished::remove_all, uploads::abort];

/// The time during which a thread takes the signals. Dropping it brings back the earlier state.
pub struct Watch {
    taker: Option<Taker>,
    limit_before: libc::sighandler_t,
}

struct Taker {
    thread: JoinHandle<()>,
    is_over: Arc<AtomicBool>,
    signal: libc::c_int,
    mask_before: libc::sigset_t,
}

/// Takes signals from now on. Signals that the process ignores stay ignored, as under `nohup`.
///
/// Without a thread, the signals end the process without removing anything. Threads that exist before this call must block
/// the signals themselves.
pub fn watch() -> Watch {
    // SAFETY: sets a disposition without a handler. Without the signal, a write beyond the limit of file sizes is an error
    // like that of a full file system.
    let limit_before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    Watch { taker: Taker::start(), limit_before }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.limit_before != libc::SIG_ERR {
            // SAFETY: the disposition was that of the process.
            unsafe { libc::signal(libc::SIGXFSZ, self.limit_before) };
        }
        if let Some(taker) = self.taker.take() {
            taker.stop();
        }
    }
}

impl Taker {
    fn start() -> Option<Self> {
        let watched: Vec<_> = SIGNALS.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        let signal = *watched.first()?;
        let set = set_of(&watched);
        let mask_before = set_mask(libc::SIG_BLOCK, &set);
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = {
            let is_over = Arc::clone(&is_over);
            thread::Builder::new().name("signals".to_owned()).spawn(move || take(&set, &is_over))
        };
        match thread {
            Ok(thread) => Some(Self { thread, is_over, signal, mask_before }),
            Err(_) => {
                set_mask(libc::SIG_SETMASK, &mask_before);
                None
            }
        }
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::SeqCst);
        // SAFETY: the thread has not been joined, so its number is its own.
        unsafe { libc::pthread_kill(self.thread.as_pthread_t(), self.signal) };
        let _ = self.thread.join();
        set_mask(libc::SIG_SETMASK, &self.mask_before);
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: zeros are a valid value of the struct, and the call fills it in. It changes nothing.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: the first call initialises the set, and the signals exist.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&mut set);
        signals.iter().for_each(|signal| {
            libc::sigaddset(&mut set, *signal);
        });
        set
    }
}

/// Changes the signals that this thread and its future threads block. Returns the earlier ones.
fn set_mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: both sets outlive the call, which fails only for a wrong `how`.
    unsafe {
        let mut before = mem::zeroed();
        libc::pthread_sigmask(how, set, &mut before);
        before
    }
}

fn take(signals: &libc::sigset_t, is_over: &AtomicBool) {
    let mut signal = 0;
    // SAFETY: both arguments outlive the call.
    let failed = unsafe { libc::sigwait(signals, &mut signal) } != 0;
    if failed || is_over.load(Ordering::SeqCst) {
        return;
    }
    let clear = if io::stderr().is_terminal() { "\r\x1b[K\x1b[?25h" } else { "" };
    let text = format!("{clear}{}", stderr::interrupted(&tidy(), signal));
    // Not with the standard library: the thread that draws a bar may hold its lock of the output.
    // SAFETY: the text outlives the call. Where nobody reads it, the call only fails.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    // SAFETY: the default action has no handler. The signal ends this process, and its parent sees which it was.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    set_mask(libc::SIG_UNBLOCK, signals);
    // SAFETY: takes integers. The first process of a container gets no signal from itself, and goes on to `_exit`.
    unsafe {
        libc::kill(libc::getpid(), signal);
        libc::_exit(128 + signal);
    }
}

fn tidy() -> String {
    let (sender, said) = mpsc::channel();
    for &tidier in TIDIERS {
        let sender = sender.clone();
        let _ = thread::Builder::new().spawn(move || tidier(&sender));
    }
    drop(sender);
    let (mut text, end) = (String::from("interrupted"), Instant::now() + PATIENCE);
    loop {
        match said.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(words) => text += &format!("; {words}"),
            Err(RecvTimeoutError::Disconnected) => return text,
            Err(RecvTimeoutError::Timeout) => {
                return text + "; something unfinished may stay, because the storage does not answer";
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_ends_with_the_earlier_mask() {
        let blocked = || {
            let mask = set_mask(libc::SIG_BLOCK, &set_of(&[]));
            // SAFETY: the set is initialised.
            SIGNALS.map(|signal| unsafe { libc::sigismember(&mask, signal) } == 1)
        };
        let expected = SIGNALS.map(|signal| !is_ignored(signal));
        let before = blocked();
        for _ in 0..2 {
            let watch = watch();
            assert!(is_ignored(libc::SIGXFSZ));
            assert_eq!(blocked(), expected);
            assert_eq!(thread::spawn(blocked).join().unwrap(), expected);
            drop(watch);
            assert_eq!(blocked(), before);
        }
    }
}
