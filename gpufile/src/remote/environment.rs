//! The environment as it was when options were made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::{env, fmt};

/// The variables that are text. In C, no thread may read a variable while another sets one, as programs in Python do.
/// So the thread that makes options reads all at once.
#[derive(Clone)]
pub(super) struct Environment(Arc<BTreeMap<String, String>>);

impl Environment {
    pub fn now() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(Arc::new(env::vars_os().filter_map(text).collect()))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the names and the values of these variables.
    pub fn starting_with<'e>(&'e self, prefix: &'e str) -> impl Iterator<Item = (&'e str, &'e str)> {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(move |(name, _)| name.starts_with(prefix))
    }
}

/// Shows no variable: some are secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}
