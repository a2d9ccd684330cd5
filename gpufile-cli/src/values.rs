//! Parsers of words on the command line, which completions of shells list.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::Error;
use clap::{Arg, Command};

/// A parser that knows the usual words. It may accept others.
#[derive(Clone)]
pub struct Words<T> {
    words: Vec<&'static str>,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> Words<T> {
    pub fn new(words: impl IntoIterator<Item = &'static str>, parse: fn(&str) -> Result<T, String>) -> Self {
        Self { words: words.into_iter().collect(), parse }
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Words<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &std::ffi::OsStr) -> Result<T, Error> {
        self.parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.words.iter().map(PossibleValue::new)))
    }
}
