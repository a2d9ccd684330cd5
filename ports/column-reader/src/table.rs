//! Tables in files: where the chunks of each column are.
//!
//! A file has the chunks, then a line of text for each column, and the length of these lines in its last 8 bytes.

use std::io::{self, ErrorKind, Write};
use std::ops::Range;

use gpufile::File;

/// The alignment of bitmaps and values, in files and in memory, as Arrow recommends.
pub const ALIGNMENT: u64 = 64;

/// The columns of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    pub columns: Vec<Column>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Letters and digits.
    pub name: String,
    pub chunks: Vec<Chunk>,
}

/// The places of some rows of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub rows: u64,
    /// A bit for each row, which is 1 if the row has a value.
    pub validity: Range<u64>,
    pub values: Range<u64>,
}

impl Chunk {
    pub fn validity_bytes(&self) -> u64 {
        self.validity.end - self.validity.start
    }

    pub fn values_bytes(&self) -> u64 {
        self.values.end - self.values.start
    }
}

impl Table {
    /// Writes a chunk of a column at the place `at`, the end of what was written before, and moves `at` to the end of
    /// the chunk.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn push(
        &mut self,
        out: &mut impl Write,
        at: &mut u64,
        column: &str,
        rows: u64,
        validity: &[u8],
        values: &[u8],
    ) -> io::Result<()> {
        let mut put = |bytes: &[u8]| {
            let start = at.next_multiple_of(ALIGNMENT);
            out.write_all(&vec![0; (start - *at) as usize])?;
            out.write_all(bytes)?;
            *at = start + bytes.len() as u64;
            io::Result::Ok(start..*at)
        };
        let chunk = Chunk { rows, validity: put(validity)?, values: put(values)? };
        match self.columns.iter_mut().find(|known| known.name == column) {
            Some(known) => known.chunks.push(chunk),
            None => self.columns.push(Column { name: column.to_owned(), chunks: vec![chunk] }),
        }
        Ok(())
    }

    /// Writes the places of all chunks, which ends the file.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(&self, out: &mut impl Write) -> io::Result<()> {
        let line = |column: &Column| {
            let place = |Chunk { rows, validity, values }: &Chunk| {
                format!(" {rows} {} {} {} {}", validity.start, validity.end, values.start, values.end)
            };
            format!("{}{}\n", column.name, column.chunks.iter().map(place).collect::<String>())
        };
        let lines: String = self.columns.iter().map(line).collect();
        out.write_all(lines.as_bytes())?;
        out.write_all(&(lines.len() as u64).to_le_bytes())
    }

    /// Reads the places of the chunks.
    ///
    /// # Errors
    /// The file cannot be read, or is no table.
    pub fn open(file: &File) -> io::Result<Self> {
        let (mut length, len_bytes) = ([0; 8], file.len_bytes().map_err(io::Error::other)?);
        let no_table = || io::Error::new(ErrorKind::InvalidData, "the file is no table");
        let end = len_bytes.checked_sub(8).ok_or_else(no_table)?;
        file.read_exact_at(&mut length[..], end).map_err(io::Error::other)?;
        let start = end.checked_sub(u64::from_le_bytes(length)).ok_or_else(no_table)?;
        let mut lines = vec![0; (end - start) as usize];
        file.read_exact_at(&mut lines, start).map_err(io::Error::other)?;
        let lines = String::from_utf8(lines).map_err(|_| no_table())?;
        let columns = lines.lines().map(|line| column_of(line, start)).collect::<Option<_>>();
        Ok(Self { columns: columns.ok_or_else(no_table)? })
    }

    /// Returns the column of that name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// Returns the column of a line. `None` if a chunk ends behind `end`, or the line is wrong.
fn column_of(line: &str, end: u64) -> Option<Column> {
    let mut words = line.split(' ');
    let name = words.next()?.to_owned();
    let numbers = words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let chunk = |numbers: &[u64]| match *numbers {
        [rows, a, b, c, d] if a <= b && b <= end && c <= d && d <= end => {
            Some(Chunk { rows, validity: a..b, values: c..d })
        }
        _ => None,
    };
    Some(Column { name, chunks: numbers.chunks(5).map(chunk).collect::<Option<_>>()? })
}
