//! Threads that a forked child can start.
//!
//! A thread of the standard library takes a lock of that library when it begins and when it ends. If a thread of the parent did
//! so at the fork, the lock stays locked in the child, and no thread begins there. So a child starts threads by the C library.

#![allow(clippy::disallowed_methods, reason = "this is the place that calls them")]
#![allow(clippy::disallowed_types, reason = "each is used only in the process that made it")]

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, mem, thread};

use super::Generation;
use crate::system::{self, RawThread};

/// A thread that runs until its end, or until it is joined. Dropping it lets the thread go on.
#[derive(Debug)]
pub struct JoinHandle(Option<(Generation, Kind)>);

#[derive(Debug)]
enum Kind {
    Std(thread::JoinHandle<()>),
    Own(OwnThread<()>),
}

impl JoinHandle {
    /// Waits until the thread has ended.
    ///
    /// # Errors
    /// The panic of the thread. A text in a forked child, which has no thread of its parent.
    pub fn join(mut self) -> thread::Result<()> {
        match self.0.take() {
            Some((made_in, kind)) if !made_in.is_current() => {
                mem::forget(kind);
                Err(Box::new("the thread is the parent's"))
            }
            Some((_, Kind::Std(handle))) => handle.join(),
            Some((_, Kind::Own(thread))) => thread.join(),
            None => Ok(()),
        }
    }

    /// Returns whether the calling thread is this one, which cannot wait for itself.
    pub fn is_caller(&self) -> bool {
        match &self.0 {
            Some((_, Kind::Std(handle))) => handle.thread().id() == thread::current().id(),
            Some((_, Kind::Own(thread))) => thread.raw.is_caller(),
            None => false,
        }
    }
}

impl Drop for JoinHandle {
    fn drop(&mut self) {
        if let Some((made_in, Kind::Own(thread))) = &self.0
            && made_in.is_current()
        {
            // SAFETY: nobody has joined the thread of this process, or will.
            unsafe { thread.raw.detach() };
        }
    }
}

/// Starts a thread with this name, also in a forked child.
///
/// ```
/// let thread = cufile::fork::spawn("worker", || assert_eq!(1 + 1, 2))?;
/// thread.join().unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The error that the operating system returned.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    let kind = match Generation::is_child() {
        false => Kind::Std(thread::Builder::new().name(name.to_owned()).spawn(body)?),
        true => Kind::Own(OwnThread::start(name, body)?),
    };
    Ok(JoinHandle(Some((Generation::current(), kind))))
}

/// The threads of a [`scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env> {
    threads: &'scope thread::Scope<'scope, 'env>,
    /// Those that the C library started, and nobody has joined.
    own: Unjoined,
}

type Unjoined = Mutex<Vec<(RawThread, Arc<AtomicBool>)>>;

/// A thread of a [`Scope`].
#[derive(Debug)]
pub struct ScopedJoinHandle<'a, 'scope, T>(ScopedKind<'a, 'scope, T>);

#[derive(Debug)]
enum ScopedKind<'a, 'scope, T> {
    Std(thread::ScopedJoinHandle<'scope, T>),
    Own { thread: OwnThread<T>, unjoined: &'a Unjoined },
}

/// Calls `body`, which may start threads that borrow what outlives the scope. All have ended when it returns. As
/// [`std::thread::scope`], also in a forked child.
///
/// # Panics
/// If a thread panics that is not joined.
///
/// ```
/// let numbers = [1, 2, 3];
/// let sum = cufile::fork::scope(|scope| {
///     let thread = scope.spawn("sum", || numbers.iter().sum::<i32>())?;
///     Ok::<_, std::io::Error>(thread.join().unwrap())
/// })?;
/// assert_eq!(sum, 6);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    thread::scope(|threads| {
        let scope = Scope { threads, own: Mutex::default() };
        let returned = body(&scope);
        if scope.join_all() {
            // The panic itself was reported.
            resume_unwind(Box::new("a scoped thread panicked"));
        }
        returned
    })
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread with this name.
    ///
    /// # Errors
    /// The error that the operating system returned.
    pub fn spawn<T: Send + 'scope>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'_, 'scope, T>> {
        if !Generation::is_child() {
            let builder = thread::Builder::new().name(name.to_owned());
            return Ok(ScopedJoinHandle(ScopedKind::Std(builder.spawn_scoped(self.threads, body)?)));
        }
        let thread = OwnThread::start(name, body)?;
        lock(&self.own).push((thread.raw, thread.has_panicked.clone()));
        Ok(ScopedJoinHandle(ScopedKind::Own { thread, unjoined: &self.own }))
    }
}

impl<T> ScopedJoinHandle<'_, '_, T> {
    /// Waits until the thread has ended.
    ///
    /// # Errors
    /// The panic of the thread.
    pub fn join(self) -> thread::Result<T> {
        match self.0 {
            ScopedKind::Std(handle) => handle.join(),
            ScopedKind::Own { thread, unjoined } => {
                lock(unjoined).retain(|(raw, _)| *raw != thread.raw);
                thread.join()
            }
        }
    }
}

impl Scope<'_, '_> {
    /// Waits for the threads that nobody has joined. Returns whether one of them has panicked.
    fn join_all(&self) -> bool {
        let unjoined = mem::take(&mut *lock(&self.own));
        unjoined.into_iter().fold(false, |before, (raw, has_panicked)| {
            // SAFETY: only threads that nobody else joins are in the list.
            unsafe { raw.join() };
            before || has_panicked.load(Ordering::Relaxed)
        })
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        // Also behind a panic of the body.
        self.join_all();
    }
}

/// A thread that the C library started.
#[derive(Debug)]
struct OwnThread<T> {
    raw: RawThread,
    outcome: Arc<Mutex<Option<thread::Result<T>>>>,
    has_panicked: Arc<AtomicBool>,
}

impl<T> OwnThread<T> {
    /// Starts a thread. Whoever has the value joins or detaches it before what `body` borrows ends.
    fn start<'a>(name: &str, body: impl FnOnce() -> T + Send + 'a) -> io::Result<Self>
    where
        T: Send + 'a,
    {
        let (outcome, has_panicked) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let (of_thread, panicked) = (outcome.clone(), has_panicked.clone());
        let name = CString::new(name).unwrap_or_default();
        let run = move || {
            system::name_this_thread(&name);
            let returned = catch_unwind(AssertUnwindSafe(body));
            panicked.store(returned.is_err(), Ordering::Relaxed);
            *lock(&of_thread) = Some(returned);
        };
        let run: Box<dyn FnOnce() + Send + 'a> = Box::new(run);
        // SAFETY: only the lifetime differs, which the caller keeps.
        let run: Box<dyn FnOnce() + Send> = unsafe { mem::transmute(run) };
        Ok(Self { raw: RawThread::start(run)?, outcome, has_panicked })
    }

    fn join(self) -> thread::Result<T> {
        // SAFETY: whoever joins the thread has taken it, so nobody else joins or detaches it.
        unsafe { self.raw.join() };
        lock(&self.outcome).take().expect("the thread stores it before its end")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::super::tests::in_a_child;
    use super::*;

    /// Panics without a message, for which a child may have to wait.
    fn unwind() -> ! {
        resume_unwind(Box::new("on purpose"))
    }

    /// Calls `body` here and in a forked child, whose threads the C library starts.
    fn here_and_in_a_child(body: impl Fn()) {
        body();
        assert!(in_a_child(|| catch_unwind(AssertUnwindSafe(&body)).is_ok()));
    }

    #[test]
    fn threads_return_their_values_and_panics() {
        here_and_in_a_child(|| {
            let name = fs::read_to_string("/proc/thread-self/comm").unwrap();
            scope(|scope| {
                let of_thread = || fs::read_to_string("/proc/thread-self/comm").unwrap();
                assert_eq!(
                    scope.spawn("a name of a thread", of_thread).unwrap().join().unwrap(),
                    "a name of a thr\n"
                );
                let panicking = scope.spawn("panicking", || -> u8 { unwind() }).unwrap();
                assert_eq!(*panicking.join().unwrap_err().downcast::<&str>().unwrap(), "on purpose");
            });
            assert_eq!(fs::read_to_string("/proc/thread-self/comm").unwrap(), name);
            let thread = spawn("panicking", || unwind()).unwrap();
            assert!(!thread.is_caller() && thread.join().is_err());
            let mut thread = Some(spawn("of the parent", || thread::sleep(Duration::from_secs(1))).unwrap());
            assert!(in_a_child(|| thread.take().unwrap().join().is_err()));
            thread.unwrap().join().unwrap();
        });
    }

    #[test]
    fn a_scope_waits_for_threads_that_nobody_joins() {
        here_and_in_a_child(|| {
            let done = AtomicUsize::new(0);
            let work = || {
                thread::sleep(Duration::from_millis(20));
                done.fetch_add(1, Ordering::Relaxed);
            };
            scope(|scope| (0..4).for_each(|_| drop(scope.spawn("one", work).unwrap())));
            assert_eq!(done.load(Ordering::Relaxed), 4);
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                scope(|scope| {
                    drop(scope.spawn("other", work).unwrap());
                    unwind();
                })
            }));
            assert!(panicked.is_err() && done.load(Ordering::Relaxed) == 5);
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                scope(|scope| drop(scope.spawn("panicking", || -> () { unwind() }).unwrap()))
            }));
            assert!(panicked.is_err());
        });
    }

    #[test]
    fn children_of_parents_that_start_threads_start_them_too() {
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        spawn("of the parent", || ()).unwrap().join().unwrap();
                    }
                });
            }
            // With threads of the standard library, about one child in a hundred hangs.
            let child = || {
                // SAFETY: the child ends by this signal if it hangs.
                unsafe { libc::alarm(20) };
                spawn("of the child", || ()).is_ok_and(|thread| thread.join().is_ok())
            };
            let all = (0..500).all(|_| in_a_child(child));
            is_over.store(true, Ordering::Relaxed);
            assert!(all);
        });
    }
}
