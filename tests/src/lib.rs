//! What tests of the workspace stand on.

pub mod bed;
mod emulator;
mod symbols;

pub use emulator::Emulator;

/// Runs each function on a thread of its own.
///
/// Joins them one by one, which ThreadSanitizer sees; how a scope waits for threads that nobody joins it does not.
///
/// # Panics
/// If one of them does.
pub fn in_threads<F: FnOnce() + Send>(functions: impl IntoIterator<Item = F>) {
    std::thread::scope(|scope| {
        let threads: Vec<_> = functions.into_iter().map(|function| scope.spawn(function)).collect();
        for thread in threads {
            thread.join().expect("a thread that did not panic");
        }
    });
}
