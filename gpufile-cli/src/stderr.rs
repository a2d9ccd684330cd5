//! The standard error output: notes and failures, as lines of text or, with `--json`, as lines of JSON.

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Decides the form of all messages from the arguments. A mistake in these counts as a message, too.
pub fn follow(arguments: &[OsString]) {
    let mut options = arguments.iter().take_while(|argument| *argument != "--");
    IS_JSON.store(options.any(|argument| argument == "--json"), Ordering::Relaxed);
}

pub fn complain(text: &str) {
    write(&line(text, || json!({ "note": text })));
}

/// Writes the failure of a part of the work, for which the exit status is 1.
pub fn fail(text: &str) {
    write(&line(text, || failure(text, 1)));
}

/// Writes the failure that ends the command. A `hint` says what to do, on another line.
pub fn end(text: &str, hint: Option<&str>, exit_status: u8) {
    let whole = [Some(text), hint].into_iter().flatten().collect::<Vec<_>>().join("\n");
    write(&line(&whole, || {
        let mut value = failure(text, exit_status);
        if let Some(hint) = hint {
            value["hint"] = json!(hint);
        }
        value
    }));
}

pub fn interrupted(text: &str, signal: i32) -> String {
    line(text, || json!({ "error": text, "exit_status": 128 + signal }))
}

fn failure(text: &str, exit_status: u8) -> Value {
    json!({ "error": text, "exit_status": exit_status })
}

fn line(text: &str, value: impl FnOnce() -> Value) -> String {
    if IS_JSON.load(Ordering::Relaxed) { format!("{}\n", value()) } else { format!("gpufile: {text}\n") }
}

/// The exit status reports a failure even if nobody reads the text.
fn write(line: &str) {
    let _ = io::stderr().write_all(line.as_bytes());
}
