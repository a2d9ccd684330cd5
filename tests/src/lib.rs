//! What tests of the workspace stand on.

pub mod bed;
mod emulator;
mod symbols;

use std::env;
use std::process::Command;

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

/// Runs the body of the test `name` in a process of its own, where no other test runs: for what concerns the process.
///
/// # Panics
/// If it fails there.
pub fn alone(name: &str, body: impl FnOnce()) {
    const VARIABLE: &str = "CUFILE_TEST_ALONE";
    if env::var_os(VARIABLE).is_some_and(|value| value == name) {
        return body();
    }
    let program = env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(VARIABLE, name);
    let output = command.output().expect("this program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}:\n{out}{err}", output.status);
}
