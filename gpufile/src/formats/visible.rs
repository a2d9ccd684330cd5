//! Names from files, as they are shown: in errors, in tables, in Python's exceptions.
//!
//! Some characters command a terminal, turn the order of the text around them, or cannot be seen, so that two
//! names look the same. All of these are shown escaped, as `\u{202e}`.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::path::Path;

/// Returns whether a character has no shape of its own: control characters, those that change the direction of text or
/// join others, blanks except the space, and fillers.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || HIDDEN.iter().any(|&(start, end)| (start..=end).contains(&c))
}

const HIDDEN: [(char, char); 22] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{e000}', '\u{f8ff}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{10ffff}'),
];

/// Returns a text, such as the name of a tensor, with its hidden characters escaped: those that control a terminal,
/// change the direction of the text, or are invisible.
///
/// ```
/// assert_eq!(gpufile::formats::visible("w\u{202e}1\n"), "w\\u{202e}1\\n");
/// ```
pub fn visible(text: &str) -> Cow<'_, str> {
    match text.contains(is_hidden) {
        true => text.chars().fold(String::new(), |shown, c| shown + &escape(c)).into(),
        false => text.into(),
    }
}

fn escape(c: char) -> Cow<'static, str> {
    match c {
        '\n' | '\r' | '\t' => c.escape_default().to_string().into(),
        c if is_hidden(c) => c.escape_unicode().to_string().into(),
        c => c.to_string().into(),
    }
}

/// A name in quotes, with hidden characters, quotes and backslashes escaped.
pub(crate) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c => f.write_str(&escape(c))?,
            }
        }
        f.write_char('"')
    }
}

/// A path in quotes, escaped as a [`Quoted`] name. Bytes that are no text are shown as `\xff`.
pub(crate) struct Shown<'a>(pub &'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_str() {
            Some(text) => Quoted(text).fmt(f),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// Items with commas between them, and the number of others.
pub(crate) struct Listed<I> {
    pub items: I,
    pub others: u64,
}

impl<I: Iterator<Item: fmt::Display> + Clone> fmt::Display for Listed<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, item) in self.items.clone().enumerate() {
            write!(f, "{}{item}", if number == 0 { "" } else { ", " })?;
        }
        match self.others {
            0 => Ok(()),
            others => write!(f, " and {others} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped() {
        for (text, shown) in [
            ("layers.0/é 模型 🦙 e\u{301}", "layers.0/é 模型 🦙 e\u{301}"),
            ("a\u{202e}b\u{200b}", "a\\u{202e}b\\u{200b}"),
            ("\x1b[31m\n\0\u{9b}", "\\u{1b}[31m\\n\\u{0}\\u{9b}"),
            ("\u{a0}\u{2028}\u{3000}", "\\u{a0}\\u{2028}\\u{3000}"),
            ("\u{2066}\u{3164}\u{fe0f}\u{e0041}", "\\u{2066}\\u{3164}\\u{fe0f}\\u{e0041}"),
            (r#"a"\"#, r#"a"\"#),
        ] {
            assert_eq!(visible(text), shown);
        }
        assert_eq!(Quoted("a\"\\\u{202e}").to_string(), r#""a\"\\\u{202e}""#);
        assert_eq!(Shown(Path::new("a\u{200b}")).to_string(), r#""a\u{200b}""#);
    }
}
