//! The frame of a body in chunks: their lengths, and the lines between and behind them.

use std::mem;

use crate::error::RemoteError;

/// The longest line of a frame in bytes.
const MOST_LINE_BYTES: usize = 8 << 10;

/// The place in such a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunks {
    /// Before the length of a chunk.
    Length,
    /// Before this number of bytes of a chunk.
    Bytes(u64),
    /// Before the end of the line behind a chunk.
    Behind,
    /// Before a line behind the last chunk.
    Trailer,
    /// Behind the body.
    End,
}

impl Chunks {
    /// Reads the frame up to the next bytes of the body, or its end. Returns the length read.
    ///
    /// # Errors
    /// [`RemoteError::Answer`] if this is no frame.
    pub fn read(&mut self, received: &[u8]) -> Result<usize, RemoteError> {
        let wrong = || RemoteError::answer("its chunks cannot be read");
        let mut used = 0;
        loop {
            let rest = &received[used..];
            if let Self::Bytes(1..) | Self::End = self {
                return Ok(used);
            }
            let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
                return if rest.len() > MOST_LINE_BYTES { Err(wrong()) } else { Ok(used) };
            };
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            used += end + 1;
            *self = match mem::replace(self, Self::Length) {
                Self::Length => match length(line).ok_or_else(wrong)? {
                    0 => Self::Trailer,
                    len_bytes => Self::Bytes(len_bytes),
                },
                Self::Behind | Self::Bytes(_) if line.is_empty() => Self::Length,
                Self::Trailer if line.is_empty() => Self::End,
                Self::Trailer => Self::Trailer,
                _ => return Err(wrong()),
            };
        }
    }

    /// Returns the number of bytes before the next part of the frame.
    pub fn left_bytes(&self) -> u64 {
        if let Self::Bytes(left) = self { *left } else { 0 }
    }

    pub fn advance(&mut self, count: usize) {
        if let Self::Bytes(left) = self {
            *left -= count as u64;
            if *left == 0 {
                *self = Self::Behind;
            }
        }
    }
}

/// Reads the length of a chunk, which an extension may follow.
fn length(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&byte| byte == b';').next()?.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a body that arrives in pieces, or `None` if it is damaged or not whole.
    fn body(sent: &[u8], piece: usize) -> Option<Vec<u8>> {
        let (mut chunks, mut received, mut found) = (Chunks::Length, Vec::new(), Vec::new());
        for some in sent.chunks(piece) {
            received.extend_from_slice(some);
            loop {
                let used = chunks.read(&received).ok()?;
                received.drain(..used);
                let count = received.len().min(chunks.left_bytes() as usize);
                found.extend(received.drain(..count));
                chunks.advance(count);
                if used + count == 0 {
                    break;
                }
            }
        }
        (chunks == Chunks::End && received.is_empty()).then_some(found)
    }

    #[test]
    fn bodies_are_found_in_their_chunks() {
        for sent in [
            "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            "05;name=value;other=\"x\"\r\nabcde\r\n000\r\nTrailer: x\r\nOther: y\r\n\r\n",
            "5 ; a\nabcde\n0\n\n",
        ] {
            for piece in 1..sent.len() {
                assert_eq!(body(sent.as_bytes(), piece).as_deref(), Some(&b"abcde"[..]), "{sent:?} {piece}");
            }
        }
        assert_eq!(body(b"0\r\n\r\n", 3), Some(Vec::new()));
    }

    #[test]
    fn damaged_chunks_are_errors() {
        for sent in [
            "3\r\nabcd\r\n0\r\n\r\n",
            "x\r\n",
            "\r\n",
            "-1\r\na\r\n",
            "+3\r\nabc\r\n",
            "0x3\r\nabc\r\n",
            "10000000000000000\r\na",
            "ffffffffffffffffff\r\na",
        ] {
            assert!(
                Chunks::Length.read(sent.as_bytes()).is_err() || body(sent.as_bytes(), 2).is_none(),
                "{sent:?}"
            );
        }
        let endless = vec![b'0'; MOST_LINE_BYTES + 1];
        assert!(Chunks::Length.read(&endless).is_err());
    }
}
