//! The bytes of a header, read from the start on. Every length is checked before bytes are taken or memory is allocated.

use crate::formats::FormatError;

/// The most bytes that the header of a GGUF file may have. Vocabularies take a few megabytes.
pub const MAX_HEADER_LEN: u64 = 1 << 28;

pub(super) const FORMAT: &str = "GGUF";

pub(super) struct Cursor<'a> {
    head: &'a [u8],
    at: usize,
    file_len: u64,
}

impl<'a> Cursor<'a> {
    pub fn new(head: &'a [u8], file_len: u64) -> Self {
        Self { head, at: 0, file_len }
    }

    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Checks that `len_bytes` bytes follow, in the file and in the part of it that is in memory.
    pub fn expect(&self, len_bytes: u64) -> Result<usize, FormatError> {
        let needed_bytes = self.offset().saturating_add(len_bytes);
        let truncated =
            |available_bytes| FormatError::Truncated { what: "a GGUF header", needed_bytes, available_bytes };
        if needed_bytes > self.file_len {
            return Err(truncated(self.file_len));
        }
        if needed_bytes > MAX_HEADER_LEN {
            let (len_bytes, limit_bytes) = (needed_bytes, MAX_HEADER_LEN);
            return Err(FormatError::HeaderTooLarge { format: FORMAT, len_bytes, limit_bytes });
        }
        match needed_bytes <= self.head.len() as u64 {
            true => Ok(len_bytes as usize),
            false => Err(truncated(self.head.len() as u64)),
        }
    }

    pub fn take(&mut self, len_bytes: u64) -> Result<&'a [u8], FormatError> {
        let len_bytes = self.expect(len_bytes)?;
        let taken = &self.head[self.at..self.at + len_bytes];
        self.at += len_bytes;
        Ok(taken)
    }

    pub fn number<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        Ok(self.take(N as u64)?.try_into().expect("as many bytes as were asked for"))
    }

    pub fn u32(&mut self) -> Result<u32, FormatError> {
        self.number().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, FormatError> {
        self.number().map(u64::from_le_bytes)
    }

    /// Takes a string: its length and its bytes.
    pub fn string(&mut self) -> Result<&'a str, FormatError> {
        let len_bytes = self.u64()?;
        let start = self.offset();
        let bytes = self.take(len_bytes)?;
        std::str::from_utf8(bytes)
            .map_err(|error| syntax(start + error.valid_up_to() as u64, "a string is not UTF-8".to_owned()))
    }
}

/// Returns an error that is not about a tensor.
pub(super) fn syntax(offset: u64, message: String) -> FormatError {
    FormatError::Syntax { format: FORMAT, tensor: None, offset, message }
}
