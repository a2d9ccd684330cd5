//! Troubles, each with the messages that a user sees. A line of cufile.log is recognised by a few words of it.

mod models;
mod process;
mod servers;
mod storage;

use super::{Entry, fits};

/// A trouble.
pub struct Trouble {
    /// The heading in docs/troubleshooting.md.
    pub title: &'static str,
    /// Messages as a user sees them.
    pub seen: &'static [&'static str],
    /// Patterns in lower case, one of which a message contains. A number must be the whole message.
    pub marks: &'static [&'static str],
    pub entry: Entry,
}

impl Trouble {
    /// Returns whether a message in lower case is about this trouble.
    fn is_in(&self, message: &str) -> bool {
        self.marks.iter().any(|mark| match mark.parse::<i32>() {
            Ok(_) => message.trim() == *mark,
            Err(_) => fits(&format!("*{mark}"), message),
        })
    }
}

/// Returns all troubles, the commonest first.
pub fn all() -> impl Iterator<Item = &'static Trouble> {
    storage::TROUBLES.iter().chain(process::TROUBLES).chain(models::TROUBLES).chain(servers::TROUBLES)
}

/// Returns those that a message in lower case is about.
pub fn of(message: &str) -> impl Iterator<Item = &'static Trouble> {
    all().filter(move |trouble| trouble.is_in(message))
}
