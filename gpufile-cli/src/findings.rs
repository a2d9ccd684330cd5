//! A page of titles, and under each title lines of a name and a finding.

use std::fmt::Write;

use crate::table::{columns, printable};

/// The width in columns of a line, except for words that are longer, and on narrower terminals.
const WIDTH: usize = 100;

pub fn width() -> usize {
    columns().map_or(WIDTH, |columns| columns.min(WIDTH))
}

/// The page. It escapes control characters, except the ends of lines in a finding.
#[derive(Debug, Default)]
pub struct Page {
    pub text: String,
}

impl Page {
    pub fn title(&mut self, title: &str) {
        let _ = writeln!(self.text, "\n{}", printable(title));
    }

    pub fn line(&mut self, name: &str, found: &str) {
        self.wrapped(&format!("  {name:<13} "), found);
    }

    /// Writes a text after its beginning. Lines that are too long go on below the text.
    pub fn wrapped(&mut self, first: &str, text: &str) {
        let width = width();
        let first = printable(first);
        let indent = first.chars().count().min(16);
        for (index, paragraph) in text.lines().enumerate() {
            let (mut line, start) = match index {
                0 => (first.clone(), first.chars().count()),
                _ => (" ".repeat(indent), indent),
            };
            let mut start = start;
            for word in printable(paragraph).split_whitespace() {
                let used = line.chars().count();
                if used > start && used + 1 + word.chars().count() > width {
                    let _ = writeln!(self.text, "{}", line.trim_end());
                    (line, start) = (" ".repeat(indent), indent);
                }
                if line.chars().count() > start {
                    line.push(' ');
                }
                line.push_str(word);
            }
            let _ = writeln!(self.text, "{}", line.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_findings_go_on_in_their_column() {
        let mut page = Page::default();
        page.title("machine");
        page.line("name", &format!("{} end\nsecond  line", ["word"; 17].join(" ")));
        let words = ["word"; 16].join(" ");
        let gap = " ".repeat(16);
        let expected = format!("\nmachine\n  name          {words} word\n{gap}end\n{gap}second line\n");
        assert_eq!(page.text, expected);
    }

    #[test]
    fn longest_words_stay_whole() {
        let mut page = Page::default();
        let long = "x".repeat(150);
        page.wrapped("a: ", &format!("{long} b"));
        assert_eq!(page.text, format!("a: {long}\n   b\n"));
    }

    #[test]
    fn names_cannot_command_the_terminal() {
        let mut page = Page::default();
        page.title("a\nb\x1b");
        page.wrapped("c\nd: ", "e\x1b]0;f\x07\ng");
        assert_eq!(page.text, "\na\\nb\\u{1b}\nc\\nd: e\\u{1b}]0;f\\u{7}\n      g\n");
    }
}
