//! Ctrl-C: it ends the program at once, removes unfinished files, and tells which.
//!
//! A signal handler may hardly do anything. It therefore only writes the signal's number to a pipe. A thread reads the
//! pipe, cleans up, and lets the signal end the process. No other thread has to notice anything, so this works in the
//! middle of a transfer too.

use std::fs;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read};
use std::mem;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
#[cfg(feature = "s3")]
use std::sync::Condvar;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use super::stderr;

/// The signals that end the program.
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The end of the pipe that the handler writes to; -1 before there is one.
static WRITE_END: AtomicI32 = AtomicI32::new(-1);

/// The files and folders that are to be removed.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The uploads that a signal aborts.
#[cfg(feature = "s3")]
static UPLOADS: (Mutex<Uploads>, Condvar) =
    (Mutex::new(Uploads { count: 0, is_complete: false, is_ending: false }), Condvar::new());

#[cfg(feature = "s3")]
struct Uploads {
    count: usize,
    /// True if the last upload that ended has made its object.
    is_complete: bool,
    /// True after a signal.
    is_ending: bool,
}

/// The time during which signals are handled here. Dropping it restores the earlier handlers.
pub struct Watch(Vec<(libc::c_int, libc::sigaction)>);

/// Handles signals from now on. Signals that the process ignores stay ignored, as under `nohup`.
///
/// If there can be no pipe or thread, the signals end the process without cleaning.
pub fn watch() -> Watch {
    // Without a limit's signal, a write beyond the limit is an error like that of a full file system.
    let limit = replace(libc::SIGXFSZ, libc::SIG_IGN);
    let handler = note as extern "C" fn(libc::c_int) as usize;
    let ending = listen().map(|()| SIGNALS.into_iter().filter_map(|signal| replace(signal, handler)));
    Watch(limit.into_iter().chain(ending.into_iter().flatten()).collect())
}

/// Starts the thread that waits for the handler.
fn listen() -> io::Result<()> {
    static PIPE: OnceLock<PipeWriter> = OnceLock::new();
    // One thread for the whole process. Another call at the same time would only make one more.
    if PIPE.get().is_none() {
        let (reader, writer) = io::pipe()?;
        thread::Builder::new().name("signals".to_owned()).spawn(|| clean_up_on_signal(reader))?;
        let writer = PIPE.get_or_init(|| writer);
        WRITE_END.store(writer.as_raw_fd(), Ordering::Release);
    }
    Ok(())
}

/// Handles a signal by `handler`, unless the process ignores it. Returns the earlier action.
fn replace(signal: libc::c_int, handler: usize) -> Option<(libc::c_int, libc::sigaction)> {
    let before = action(signal, None).ok()?;
    let mut new = before;
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    (before.sa_sigaction != libc::SIG_IGN && action(signal, Some(&new)).is_ok()).then_some((signal, before))
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, before) in &self.0 {
            // The call succeeded for the same signal before.
            let _ = action(*signal, Some(before));
        }
    }
}

/// Returns the action of a signal, and sets another.
fn action(signal: libc::c_int, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    // SAFETY: zeros are a valid value of the struct, and the call fills it in.
    let mut before: libc::sigaction = unsafe { mem::zeroed() };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both structs outlive the call. Any handler in `new` came from the kernel, is none, or is `note`, which makes
    // only calls that are safe in a handler.
    match unsafe { libc::sigaction(signal, new, &mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Tells the thread of a signal. Calls nothing that may not be called in a handler.
extern "C" fn note(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: `byte` outlives the call. The descriptor stays open for the whole process. errno is the thread's own, and
    // is put back.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(WRITE_END.load(Ordering::Acquire), (&raw const byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// Returns the next signal that the handler wrote. Ignores other bytes: code that uses a closed descriptor may write to
/// the pipe instead. `None` if there is none any more.
fn next_signal(mut signals: impl Read) -> Option<libc::c_int> {
    let mut byte = [0];
    loop {
        signals.read_exact(&mut byte).ok()?;
        let signal = libc::c_int::from(byte[0]);
        if SIGNALS.contains(&signal) {
            return Some(signal);
        }
    }
}

fn clean_up_on_signal(signals: PipeReader) {
    let Some(signal) = next_signal(signals) else { return };
    // Nobody makes another file from now on.
    let unfinished = lock();
    let mut text = String::from("interrupted");
    for path in unfinished.iter() {
        match remove(path) {
            Ok(()) => text += &format!("; removed the unfinished {path:?}"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => text += &format!("; could not remove the unfinished {path:?}: {error}"),
        }
    }
    #[cfg(feature = "s3")]
    if let Some(outcome) = end_uploads() {
        text += outcome;
    }
    let clear = if io::stderr().is_terminal() { "\r\x1b[K\x1b[?25h" } else { "" };
    let text = format!("{clear}{}", stderr::interrupted(&text, signal));
    // Not by the standard library: the thread that draws a bar may hold its lock of the output.
    // SAFETY: the text outlives the call. Where nobody reads it, the call only fails.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    // SAFETY: the default action has no handler. The signal then ends this process, and tells its parent which it was.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
    }
}

/// Waits until all uploads have ended, and returns how they did; `None` if there is no upload.
#[cfg(feature = "s3")]
fn end_uploads() -> Option<&'static str> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
    let (uploads, changed) = &UPLOADS;
    let mut uploads = uploads.lock().unwrap_or_else(PoisonError::into_inner);
    uploads.is_ending = true;
    if uploads.count == 0 {
        return None;
    }
    let waited = changed.wait_timeout_while(uploads, PATIENCE, |uploads| uploads.count > 0);
    Some(waited.unwrap_or_else(PoisonError::into_inner).0.outcome())
}

#[cfg(feature = "s3")]
impl Uploads {
    /// Returns what is known of the object after a signal.
    fn outcome(&self) -> &'static str {
        match self {
            Self { count: 1.., .. } => "; could not abort the upload of the object",
            Self { is_complete: true, .. } => "; the object is complete",
            // The store may refuse to remove parts, and its answer to the whole of a short object may be on its way.
            _ => "; aborted the upload, of which the store may keep what it has received",
        }
    }
}

/// Removes a file, or a folder with all that is in it.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

fn lock() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file or folder that a signal removes, until this is dropped.
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// Creates a file by `create`, and remembers it under the path that the call returns.
    ///
    /// A signal waits for the call to end, so no unknown file stays.
    ///
    /// # Errors
    /// Those of `create`.
    pub fn create<T, E>(create: impl FnOnce() -> Result<(T, PathBuf), E>) -> Result<(T, Self), E> {
        let held = Held::new();
        let (created, path) = create()?;
        Ok((created, held.remember(path)))
    }
}

/// The time during which a signal waits, because a file is created.
pub struct Held(MutexGuard<'static, Vec<PathBuf>>);

impl Held {
    /// Makes signals wait from now on.
    pub fn new() -> Self {
        Self(lock())
    }

    /// Remembers the file that was created, and lets signals end the program again.
    pub fn remember(mut self, path: PathBuf) -> Unfinished {
        self.0.push(path.clone());
        Unfinished(path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut unfinished = lock();
        if let Some(place) = unfinished.iter().position(|path| *path == self.0) {
            unfinished.swap_remove(place);
        }
    }
}

/// The time during which an object is uploaded. A signal waits until this is dropped, and the program then ends.
#[cfg(feature = "s3")]
pub struct Uploading(());

#[cfg(feature = "s3")]
impl Uploading {
    /// Makes signals wait for the end of an upload.
    pub fn new() -> Self {
        UPLOADS.0.lock().unwrap_or_else(PoisonError::into_inner).count += 1;
        Self(())
    }

    /// Returns whether the upload is to be dropped, because a signal came.
    pub fn is_ending(&self) -> bool {
        UPLOADS.0.lock().unwrap_or_else(PoisonError::into_inner).is_ending
    }

    /// Ends the upload, which has made its object or not.
    pub fn end(self, is_complete: bool) {
        UPLOADS.0.lock().unwrap_or_else(PoisonError::into_inner).is_complete = is_complete;
    }
}

#[cfg(feature = "s3")]
impl Drop for Uploading {
    fn drop(&mut self) {
        let (uploads, changed) = &UPLOADS;
        let is_ending = {
            let mut uploads = uploads.lock().unwrap_or_else(PoisonError::into_inner);
            uploads.count -= 1;
            uploads.is_ending
        };
        changed.notify_all();
        if is_ending {
            // The thread of signals ends the process, and says why.
            loop {
                thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "s3")]
    #[test]
    fn ended_uploads_claim_only_what_is_known() {
        let outcome = |count, is_complete| Uploads { count, is_complete, is_ending: true }.outcome();
        assert!(outcome(1, false).contains("could not abort") && outcome(0, true).contains("complete"));
        assert!(outcome(0, false).contains("may keep"));
    }

    #[test]
    fn watching_ends_with_the_earlier_handlers() {
        let handler = |signal| action(signal, None).unwrap().sa_sigaction;
        let before = (SIGNALS.map(handler), handler(libc::SIGXFSZ));
        let watch = watch();
        assert!(
            SIGNALS.into_iter().any(|signal| handler(signal) == note as extern "C" fn(libc::c_int) as usize)
        );
        drop(watch);
        assert_eq!((SIGNALS.map(handler), handler(libc::SIGXFSZ)), before);
    }

    #[test]
    fn only_watched_signals_are_taken_from_the_pipe() {
        let bytes = [0, 34, 255, libc::SIGKILL as u8, libc::SIGTERM as u8, libc::SIGINT as u8];
        assert_eq!(next_signal(&bytes[..]), Some(libc::SIGTERM));
        assert_eq!(next_signal(&b"gpufile 1.0\n"[..7]), None);
    }

    #[test]
    fn files_are_unfinished_until_dropped() {
        let is_known = || lock().iter().any(|path| path.ends_with("unfinished-in-a-test"));
        let path = PathBuf::from("/nonexistent/unfinished-in-a-test");
        let (_, file) = Unfinished::create(|| Ok::<_, io::Error>(((), path))).unwrap();
        assert!(is_known());
        drop(file);
        assert!(!is_known());
        assert!(Unfinished::create(|| Err::<((), PathBuf), _>(io::Error::other("full"))).is_err());
    }

    #[test]
    fn folders_are_removed_with_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, path) = (folder.path().join("kept"), folder.path().join("made"));
        fs::write(&kept, "x").unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("model"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, path.join("link")).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists() && kept.exists());
        assert_eq!(remove(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
