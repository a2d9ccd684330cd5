//! The standard output: tables, JSON and other text.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde_json::Value;

use super::failure::Failure;

const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// A table of texts. Its columns are as wide as their longest cell.
pub struct Table {
    /// The first row has the titles.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these titles. A title that ends in `<` names a column of words, aligned to the left.
    pub fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(|&title| title.to_owned()).collect()] }
    }

    /// Adds a row, with hidden characters escaped.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len());
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// Prints the table. On a terminal, the titles are bold.
    pub fn print(&self) -> io::Result<()> {
        print(&self.text(has_style()))
    }

    /// Returns the table without styles.
    pub fn plain(&self) -> String {
        self.text(false)
    }

    fn text(&self, has_style: bool) -> String {
        let is_left = |column: usize| self.rows[0][column].ends_with('<');
        let shown = |number: usize, column: usize| match number {
            0 => self.rows[0][column].trim_end_matches('<'),
            _ => self.rows[number][column].as_str(),
        };
        let columns = 0..self.rows[0].len();
        let width = |column| {
            let lengths = (0..self.rows.len()).map(|number| shown(number, column).chars().count());
            lengths.max().unwrap_or(0)
        };
        let widths: Vec<_> = columns.clone().map(width).collect();
        let mut text = String::new();
        for number in 0..self.rows.len() {
            let cells = columns.clone().map(|column| {
                let (cell, width) = (shown(number, column), widths[column]);
                if is_left(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            let line = line.trim_end();
            match number {
                0 if has_style => text += &format!("{BOLD}{line}{PLAIN}\n"),
                _ => text += &format!("{line}\n"),
            }
        }
        text
    }
}

/// Returns true if the standard output shows styles: on a terminal, unless `NO_COLOR` forbids them.
fn has_style() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && is_screen()
}

/// Returns true if the standard output is a terminal that follows escape sequences.
pub fn is_screen() -> bool {
    env::var_os("TERM").is_none_or(|term| term != "dumb") && io::stdout().is_terminal()
}

/// Returns a text in bold type, for a standard output that shows it.
pub fn bold(text: &str) -> String {
    if has_style() { format!("{BOLD}{text}{PLAIN}") } else { text.to_owned() }
}

/// Escapes the characters of a text, such as a file's name, that command the terminal, end a line or cannot be seen.
pub fn printable(text: &str) -> String {
    gpufile::cli_support::visible(text).into_owned()
}

/// Prints a value as JSON.
pub fn print_json(value: &Value) -> io::Result<()> {
    print(&format!("{value:#}\n"))
}

/// Writes a line to the standard output, which ends a command.
pub fn say(text: &str) -> Result<ExitCode, Failure> {
    print(&format!("{text}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes to the standard output. Succeeds without a reader, because the exit status still has to be right.
pub fn print(text: &str) -> io::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_align_left_and_numbers_right() {
        let mut table = Table::new(&["name<", "bytes"]);
        table.row(vec!["é".to_owned(), "1".to_owned()]);
        table.row(vec!["longer".to_owned(), "12345678".to_owned()]);
        assert_eq!(table.text(false), "name       bytes\né              1\nlonger  12345678\n");
        assert!(table.text(true).starts_with("\x1b[1mname       bytes\x1b[0m\n"));
    }

    #[test]
    fn names_cannot_command_the_terminal() {
        let mut table = Table::new(&["name<", "bytes"]);
        table.row(vec!["a\x1b[2Jé\n".to_owned(), "1".to_owned()]);
        assert_eq!(table.plain(), "name           bytes\na\\u{1b}[2Jé\\n      1\n");
    }
}
