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

    /// Prints the table. On a terminal, the titles are bold, and words are cut to its width.
    pub fn print(&self) -> io::Result<()> {
        print(&self.text(has_style(), columns()))
    }

    /// Returns the table without styles.
    pub fn plain(&self) -> String {
        self.text(false, columns())
    }

    fn text(&self, has_style: bool, most: Option<usize>) -> String {
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
        let mut widths: Vec<_> = columns.clone().map(width).collect();
        if let Some(most) = most {
            narrow(&mut widths, is_left, most.saturating_sub(2 * (columns.len() - 1)));
        }
        let mut text = String::new();
        for number in 0..self.rows.len() {
            let cells = columns.clone().map(|column| {
                let width = widths[column];
                let cell = cut(shown(number, column), width);
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

/// The shortest width to which a column of words is narrowed.
const SHORTEST: usize = 6;

/// Narrows the widest columns of words until all columns have at most this width together.
fn narrow(widths: &mut [usize], is_left: impl Fn(usize) -> bool, most: usize) {
    while widths.iter().sum::<usize>() > most {
        let words = (0..widths.len()).filter(|column| is_left(*column) && widths[*column] > SHORTEST);
        let Some(widest) = words.max_by_key(|column| widths[*column]) else { return };
        widths[widest] -= 1;
    }
}

/// Leaves out the middle of a longer text.
pub fn cut(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let end: String = text.chars().skip(length - kept / 2).collect();
    text.chars().take(kept - kept / 2).chain(['…']).collect::<String>() + &end
}

/// The width for which output is made on a narrower terminal.
const NARROWEST: usize = 60;

pub fn columns() -> Option<usize> {
    if !is_screen() {
        return None;
    }
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the size outlives the call, which fills it.
    let failed = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) } != 0;
    // A terminal without a size says 0.
    (!failed && size.ws_col > 0).then(|| NARROWEST.max(size.ws_col.into()))
}

/// Returns true on a terminal, unless `NO_COLOR` forbids styles.
fn has_style() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && is_screen()
}

/// Returns true for a terminal that follows escape sequences.
pub fn is_screen() -> bool {
    env::var_os("TERM").is_none_or(|term| term != "dumb") && io::stdout().is_terminal()
}

pub fn bold(text: &str) -> String {
    if has_style() { format!("{BOLD}{text}{PLAIN}") } else { text.to_owned() }
}

/// Escapes characters that command the terminal, end a line or cannot be seen.
pub fn printable(text: &str) -> String {
    gpufile::formats::visible(text).into_owned()
}

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
        assert_eq!(table.text(false, None), "name       bytes\né              1\nlonger  12345678\n");
        assert!(table.text(true, None).starts_with("\x1b[1mname       bytes\x1b[0m\n"));
    }

    #[test]
    fn words_are_cut_to_the_width_and_numbers_are_not() {
        let mut table = Table::new(&["name<", "bytes", "file<"]);
        let row = ["model.layers.31.weight", "123456789", "model-00001-of-00002.safetensors"];
        table.row(row.map(str::to_owned).to_vec());
        for most in [60, 50, 40, 30] {
            let text = table.text(false, Some(most));
            assert!(text.lines().all(|line| line.chars().count() <= most), "{most}: {text}");
            assert!(text.contains("123456789") && text.contains('…'), "{text}");
        }
        assert!(table.text(false, Some(67)).contains("model-00001-of-00002.safetensors"));
        assert_eq!([cut("abcdef", 6), cut("abcdef", 5), cut("abcdef", 1)], ["abcdef", "ab…ef", "…"]);
    }

    #[test]
    fn names_cannot_command_the_terminal() {
        let mut table = Table::new(&["name<", "bytes"]);
        table.row(vec!["a\x1b[2Jé\n".to_owned(), "1".to_owned()]);
        assert_eq!(table.plain(), "name           bytes\na\\u{1b}[2Jé\\n      1\n");
    }
}
