//! Helpers that the tests of transfers in flight share.

#![allow(dead_code, reason = "each test uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use cufile::cuda::Stream;
use cufile::{FileHandle, IoBuf, IoBufMut};
use cufile_tests::bed::Bed;

/// Registers a new file with these contents.
pub fn register(bed: &Bed, name: &str, contents: &[u8]) -> Arc<FileHandle> {
    let file = bed.file(name, contents);
    Arc::new(FileHandle::register(&bed.driver, file).expect("the file is registered"))
}

/// Keeps a stream from going on until it is opened or dropped.
pub struct Gate(Sender<()>);

impl Gate {
    pub fn close(stream: &Stream) -> Gate {
        let (sender, receiver) = mpsc::channel();
        // The wait has a limit, so that a test that fails behind a closed gate ends.
        let wait = move || {
            let _ = receiver.recv_timeout(Duration::from_secs(10));
        };
        stream.call_on_host(wait).expect("the stream takes a host function");
        Gate(sender)
    }

    pub fn open(self) {
        drop(self.0);
    }
}

/// The state of a [`Tracked`] buffer, as seen from outside.
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
    pub fn is_freed(&self) -> bool {
        assert!(!self.freed_too_early.load(Ordering::SeqCst), "freed while libcufile may use it");
        self.freed.load(Ordering::SeqCst)
    }
}

/// Host memory that notes its freeing.
#[derive(Debug)]
pub struct Tracked {
    bytes: Vec<u8>,
    life: Arc<Life>,
}

impl Tracked {
    pub fn new(len_bytes: usize) -> (Tracked, Arc<Life>) {
        let life = Arc::<Life>::default();
        (Tracked { bytes: vec![0; len_bytes], life: Arc::clone(&life) }, life)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.life.freed_too_early.store(!self.life.over.load(Ordering::SeqCst), Ordering::SeqCst);
        self.life.freed.store(true, Ordering::SeqCst);
        assert!(!self.life.panics.load(Ordering::SeqCst), "a panic that the test wants");
    }
}

// SAFETY: the vector inside keeps the promise.
unsafe impl IoBuf for Tracked {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn is_host_accessible(&self) -> bool {
        true
    }
}

// SAFETY: the vector inside keeps the promise.
unsafe impl IoBufMut for Tracked {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
}
