//! The Python literals that a header is made of: strings, truth values, numbers and tuples of numbers.

use crate::formats::FormatError;

pub(super) const FORMAT: &str = "npy";

/// A reader of literals, one after the other. Syntax of Python that headers do not need is an error.
pub(super) struct Literals<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The start of `bytes`, in bytes from the start of the file.
    start: u64,
}

impl<'a> Literals<'a> {
    pub(super) fn new(bytes: &'a [u8], start: u64) -> Self {
        Self { bytes, at: 0, start }
    }

    pub(super) fn offset(&self) -> u64 {
        self.start + self.at as u64
    }

    pub(super) fn error(&self, message: &str) -> FormatError {
        FormatError::Syntax {
            format: FORMAT,
            tensor: None,
            offset: self.offset(),
            message: message.to_owned(),
        }
    }

    /// Returns the next byte that is not white space, without consuming it.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r' | b'\x0c') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    pub(super) fn take(&mut self, byte: u8) -> bool {
        let next = self.peek() == Some(byte);
        self.at += usize::from(next);
        next
    }

    pub(super) fn expect(&mut self, byte: u8) -> Result<(), FormatError> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(self.error(&format!("a {:?} was expected", char::from(byte))))
        }
    }

    pub(super) fn end(&mut self) -> Result<(), FormatError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.error("text follows the dictionary")) }
    }

    /// Parses a string in either quotes, of printable ASCII without escapes.
    pub(super) fn string(&mut self) -> Result<&'a str, FormatError> {
        let Some(quote @ (b'\'' | b'"')) = self.peek() else {
            return Err(self.error("a string was expected"));
        };
        self.at += 1;
        let start = self.at;
        while let Some(&byte) = self.bytes.get(self.at) {
            if byte == quote {
                let text = str::from_utf8(&self.bytes[start..self.at]);
                self.at += 1;
                return text.map_err(|_| self.error("a string is not ASCII"));
            }
            if byte == b'\\' || !(b' '..=b'~').contains(&byte) {
                return Err(self.error("escapes and characters other than printable ASCII are not supported"));
            }
            self.at += 1;
        }
        Err(self.error("a string does not end"))
    }

    pub(super) fn truth(&mut self) -> Result<bool, FormatError> {
        self.peek();
        let rest = &self.bytes[self.at..];
        for (word, value) in [("True", true), ("False", false)] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.error("True or False was expected"))
    }

    /// Parses a tuple of lengths: `()`, `(1,)`, `(1, 2)`.
    pub(super) fn tuple(&mut self) -> Result<Vec<u64>, FormatError> {
        self.expect(b'(')?;
        let mut lengths = Vec::new();
        while !self.take(b')') {
            lengths.push(self.length()?);
            let comma = self.take(b',');
            if !comma && (lengths.len() == 1 || self.peek() != Some(b')')) {
                return Err(self.error("a ',' was expected"));
            }
        }
        Ok(lengths)
    }

    /// Parses a number from 0 to 2^64 - 1. Python 2 wrote an L after some.
    fn length(&mut self) -> Result<u64, FormatError> {
        self.peek();
        let rest = &self.bytes[self.at..];
        let digits = &rest[..rest.iter().take_while(|byte| byte.is_ascii_digit()).count()];
        if digits.is_empty() {
            return Err(self.error("a length was expected: digits without a sign"));
        }
        if digits[0] == b'0' && digits.len() > 1 {
            return Err(self.error("a length starts with 0"));
        }
        let mut value = 0_u64;
        for digit in digits {
            let next = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0')));
            value = next.ok_or_else(|| self.error("a length is more than 2^64 - 1"))?;
        }
        self.at += digits.len() + usize::from(rest.get(digits.len()) == Some(&b'L'));
        Ok(value)
    }
}
