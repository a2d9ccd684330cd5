//! Tools for tests of transfers in flight: streams that are held, memory that notes its freeing, and the smallest executor.

use std::future::Future;
use std::panic::panic_any;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use cufile::cuda::Stream;
use cufile::{FileHandle, IoBuf, IoBufMut, Location};

use crate::bed::Bed;

/// Registers a new file with these contents.
///
/// # Panics
/// If libcufile refuses it.
pub fn register(bed: &Bed, name: &str, contents: &[u8]) -> Arc<FileHandle> {
    let file = bed.file(name, contents);
    Arc::new(FileHandle::register(&bed.driver, file).expect("the file is registered"))
}

/// Keeps a stream from going on until it is opened or dropped.
pub struct Gate(Sender<()>);

impl Gate {
    /// Holds the stream's later work, for ten seconds at most.
    ///
    /// # Panics
    /// If the stream takes no function.
    pub fn close(stream: &Stream) -> Gate {
        let (sender, receiver) = mpsc::channel();
        // The wait has a limit, so that a test that fails behind a closed gate ends.
        let wait = move || {
            let _ = receiver.recv_timeout(Duration::from_secs(10));
        };
        stream.call_on_host(wait).expect("the stream takes a host function");
        Gate(sender)
    }

    /// Lets the stream go on.
    pub fn open(self) {
        drop(self.0);
    }
}

/// The state of a [`Tracked`] buffer.
#[derive(Debug, Default)]
pub struct Life {
    /// Set by the test when the transfer is over, or may be.
    pub over: AtomicBool,
    /// Set by the test if freeing the buffer is to panic.
    pub panics: AtomicBool,
    freed: AtomicBool,
    freed_too_early: AtomicBool,
}

impl Life {
    /// Returns whether the buffer is freed.
    ///
    /// # Panics
    /// If it was freed before [`over`](Self::over) was set.
    pub fn is_freed(&self) -> bool {
        assert!(!self.freed_too_early.load(Ordering::SeqCst), "freed while libcufile may use it");
        self.freed.load(Ordering::SeqCst)
    }
}

/// Memory that notes its freeing.
#[derive(Debug)]
pub struct Tracked<B = Vec<u8>> {
    memory: B,
    life: Arc<Life>,
}

impl Tracked {
    /// Allocates zeros.
    pub fn new(len_bytes: usize) -> (Tracked, Arc<Life>) {
        Tracked::of(vec![0; len_bytes])
    }

    /// Returns the contents.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }
}

impl<B> Tracked<B> {
    /// Wraps memory.
    pub fn of(memory: B) -> (Tracked<B>, Arc<Life>) {
        let life = Arc::<Life>::default();
        (Tracked { memory, life: Arc::clone(&life) }, life)
    }
}

impl<B> Drop for Tracked<B> {
    fn drop(&mut self) {
        self.life.freed_too_early.store(!self.life.over.load(Ordering::SeqCst), Ordering::SeqCst);
        self.life.freed.store(true, Ordering::SeqCst);
        if self.life.panics.load(Ordering::SeqCst) {
            panic_any(Bomb);
        }
    }
}

/// The payload of a panic, which panics once more when it is dropped.
pub struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

// SAFETY: the memory inside keeps the promise.
unsafe impl<B: IoBuf> IoBuf for Tracked<B> {
    fn as_ptr(&self) -> *const u8 {
        IoBuf::as_ptr(&self.memory)
    }

    fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    fn location(&self) -> Location {
        let Location { is_host_accessible, .. } = self.memory.location();
        Location { is_host_accessible, ..Location::HOST }
    }
}

// SAFETY: the memory inside keeps the promise.
unsafe impl<B: IoBufMut> IoBufMut for Tracked<B> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        IoBufMut::as_mut_ptr(&mut self.memory)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future to its end.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A waker that calls a function, once.
pub struct Call(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Call {
    /// Makes the waker.
    pub fn waker(function: impl FnOnce() + Send + 'static) -> Waker {
        Waker::from(Arc::new(Call(Mutex::new(Some(Box::new(function))))))
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        let function = self.0.lock().unwrap().take();
        if let Some(function) = function {
            function();
        }
    }
}

/// Waits until other threads have made a condition true. A panic with its backtrace takes seconds under a sanitizer.
///
/// # Panics
/// If it stays false for a minute.
pub fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
