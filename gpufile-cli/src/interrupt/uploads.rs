//! The upload of an object, which a signal aborts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

static IS_ENDING: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<State> = Mutex::new(State::None);
static CHANGED: Condvar = Condvar::new();

#[derive(Clone, Copy, PartialEq)]
enum State {
    None,
    Running,
    Ended { is_complete: bool },
}

/// Waits for the end of the upload, and sends words for what is known of the object.
pub fn abort(said: &Sender<String>) {
    IS_ENDING.store(true, Ordering::SeqCst);
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let state = CHANGED.wait_while(state, |state| *state == State::Running);
    let words = match *state.unwrap_or_else(PoisonError::into_inner) {
        State::Ended { is_complete: true } => "the object is complete",
        // The store may refuse to remove parts, and its answer to the whole of a short object may be on its way.
        State::Ended { is_complete: false } => {
            "aborted the upload, of which the store may keep what it has received"
        }
        _ => return,
    };
    let _ = said.send(words.to_owned());
}

/// The time during which an object is uploaded. A signal waits until this is dropped, and the program then ends.
pub struct Uploading {
    is_complete: bool,
}

impl Uploading {
    pub fn new() -> Self {
        set(State::Running);
        Self { is_complete: false }
    }

    /// Returns whether a signal came.
    pub fn is_ending(&self) -> bool {
        IS_ENDING.load(Ordering::SeqCst)
    }

    /// Ends the upload. `is_complete` if it has made its object.
    pub fn end(mut self, is_complete: bool) {
        self.is_complete = is_complete;
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        set(State::Ended { is_complete: self.is_complete });
        // The thread of signals ends the process, and says why.
        while self.is_ending() {
            thread::park();
        }
    }
}

fn set(state: State) {
    *STATE.lock().unwrap_or_else(PoisonError::into_inner) = state;
    CHANGED.notify_all();
}
