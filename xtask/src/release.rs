//! The releases of the libraries.

use std::fmt::{self, Display};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(u32, u32);

impl Release {
    /// # Panics
    /// If the text is not MAJOR.MINOR.
    pub fn parse(text: &str) -> Self {
        let (major, minor) = text.split_once('.').expect("a release is MAJOR.MINOR");
        Self(major.parse().expect("a number"), minor.parse().expect("a number"))
    }

    pub fn major(self) -> u32 {
        self.0
    }

    /// Returns the number in the form of the libraries' version calls.
    pub fn number(self) -> u32 {
        self.0 * 1000 + self.1 * 10
    }
}

impl Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}
