//! The heads of a server's answers.

use std::borrow::Cow;
use std::time::Duration;

use super::super::error::RemoteError;

/// The most header lines of an answer.
const MOST_LINES: usize = 128;

/// The head of an answer, as far as it matters for reading a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    /// The number of bytes that follow. `None` if the head does not have it.
    pub body_bytes: Option<u64>,
    pub range: Option<ContentRange>,
    pub version: Version,
    /// The address that a redirect names.
    pub location: Option<String>,
    /// The time that the server asks to wait before the next try.
    pub retry_after: Option<Duration>,
    /// True if the bytes that follow are not the range itself, but compressed or in chunks.
    pub is_encoded: bool,
    /// True if another request may follow on the connection.
    pub keeps_connection: bool,
}

/// The range that an answer has, and the length of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentRange {
    /// The first byte and the last one. `None` if the answer has no bytes.
    pub bytes: Option<(u64, u64)>,
    /// The length of the object in bytes. `None` if the server does not say.
    pub total_bytes: Option<u64>,
}

/// The version of an object, by which a change is noticed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Version {
    pub etag: Option<String>,
    /// The time of the last change, if there is no ETag.
    pub modified: Option<String>,
}

impl Version {
    /// Returns the name and the value of the header with which a server refuses to send another version.
    pub fn condition(&self) -> Option<(&str, &str)> {
        match self {
            // A server never takes a weak ETag for the same, nor, perhaps, other bytes than it sent.
            Version { etag: Some(etag), .. } if !etag.starts_with("W/") && etag.is_ascii() => {
                Some(("If-Match", etag))
            }
            Version { etag: None, modified: Some(time) } => Some(("If-Unmodified-Since", time)),
            _ => None,
        }
    }
}

impl Answer {
    /// Reads a head from the beginning of `bytes`. Returns it and its length in bytes, or `None` if more bytes must
    /// follow.
    ///
    /// # Errors
    /// [`RemoteError::Answer`] if this is not HTTP.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, RemoteError> {
        let mut lines = [httparse::EMPTY_HEADER; MOST_LINES];
        let mut head = httparse::Response::new(&mut lines);
        let unreadable = |error: httparse::Error| RemoteError::answer(format!("no HTTP: {error}"));
        let httparse::Status::Complete(len_bytes) = head.parse(bytes).map_err(unreadable)? else {
            return Ok(None);
        };
        let mut answer = Self {
            status: head.code.unwrap_or(0),
            keeps_connection: head.version == Some(1),
            ..Self::default()
        };
        answer.note_all(head.headers.iter().map(|line| (line.name, line.value)))?;
        Ok(Some((answer, len_bytes)))
    }

    fn note_all<'h>(
        &mut self,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
    ) -> Result<(), RemoteError> {
        for (name, value) in headers {
            // Other bytes than those of a text differ, as versions with them do.
            let text = || value.iter().copied().map(char::from).collect();
            let value = str::from_utf8(value).map_or_else(|_| Cow::Owned(text()), Cow::Borrowed);
            self.note(name, value.trim())?;
        }
        if self.version.etag.is_some() {
            self.version.modified = None;
        }
        Ok(())
    }

    fn note(&mut self, name: &str, value: &str) -> Result<(), RemoteError> {
        let is = |other| name.eq_ignore_ascii_case(other);
        let wrong = || RemoteError::answer(format!("the header {name} is {value:?}"));
        if is("content-length") {
            let body_bytes = number(value).ok_or_else(wrong)?;
            if self.body_bytes.replace(body_bytes).is_some_and(|before| before != body_bytes) {
                return Err(wrong());
            }
        } else if is("content-range") {
            self.range = Some(ContentRange::parse(value).ok_or_else(wrong)?);
        } else if is("etag") {
            self.version.etag = Some(value.to_owned());
        } else if is("last-modified") {
            self.version.modified = Some(value.to_owned());
        } else if is("location") {
            self.location = Some(value.to_owned());
        } else if is("retry-after") {
            // The other form is a date, for which the usual wait does.
            self.retry_after = number(value).map(Duration::from_secs);
        } else if is("content-encoding") || is("transfer-encoding") {
            self.is_encoded |= !value.eq_ignore_ascii_case("identity");
        } else if is("connection") {
            let mut words = value.split(',').map(str::trim);
            if words.clone().any(|word| word.eq_ignore_ascii_case("close")) {
                self.keeps_connection = false;
            } else if words.any(|word| word.eq_ignore_ascii_case("keep-alive")) {
                self.keeps_connection = true;
            }
        }
        Ok(())
    }
}

impl ContentRange {
    fn parse(value: &str) -> Option<Self> {
        let (bytes, total) = value.strip_prefix("bytes")?.trim_start().split_once('/')?;
        let total_bytes = if total == "*" { None } else { Some(number(total)?) };
        if bytes == "*" {
            return Some(Self { bytes: None, total_bytes });
        }
        let (first, last) = bytes.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        let is_possible = first <= last && total_bytes.is_none_or(|total| last < total);
        is_possible.then_some(Self { bytes: Some((first, last)), total_bytes })
    }
}

/// Reads a number of digits only.
fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &str) -> Result<Option<(Answer, usize)>, RemoteError> {
        Answer::parse(format!("HTTP/1.1 206 Partial Content\r\n{lines}\r\n\r\nbody").as_bytes())
    }

    #[test]
    fn heads_have_what_a_range_needs() {
        let (answer, len_bytes) =
            head("content-length: 4\r\nCONTENT-RANGE: bytes 6-9/10\r\nETag: \"a\"\r\nLast-Modified: x")
                .unwrap()
                .unwrap();
        let expected = Answer {
            status: 206,
            body_bytes: Some(4),
            range: Some(ContentRange { bytes: Some((6, 9)), total_bytes: Some(10) }),
            version: Version { etag: Some("\"a\"".to_owned()), modified: None },
            keeps_connection: true,
            ..Answer::default()
        };
        assert_eq!((answer, len_bytes), (expected, 109));
        assert!(!head("Connection: close").unwrap().unwrap().0.keeps_connection);
        assert!(head("Transfer-Encoding: chunked").unwrap().unwrap().0.is_encoded);
        assert!(head("Content-Encoding: gzip").unwrap().unwrap().0.is_encoded);
        assert!(!head("Content-Encoding: identity").unwrap().unwrap().0.is_encoded);
        assert_eq!(head("Retry-After: 7").unwrap().unwrap().0.retry_after, Some(Duration::from_secs(7)));
        assert_eq!(head("Retry-After: Sun, 06 Nov 1994").unwrap().unwrap().0.retry_after, None);
        assert_eq!(Answer::parse(b"HTTP/1.1 206 Partial Content\r\nETag: ").unwrap(), None);
        let (old, _) = Answer::parse(b"HTTP/1.0 200 OK\r\n\r\n").unwrap().unwrap();
        assert!(!old.keeps_connection);
    }

    #[test]
    fn versions_of_other_bytes_than_text_differ() {
        let etag = |letter: u8| {
            let head = [b"HTTP/1.1 206 Partial Content\r\nETag: \"", &[letter][..], b"\"\r\n\r\n"].concat();
            Answer::parse(&head).unwrap().unwrap().0.version.etag.unwrap()
        };
        assert_eq!([etag(b'a'), etag(0xe9), etag(0xe8)], ["\"a\"", "\"é\"", "\"è\""]);
    }

    #[test]
    fn wrong_heads_are_errors() {
        for lines in [
            "Content-Length: -1",
            "Content-Length: 99999999999999999999",
            "Content-Length: 4\r\nContent-Length: 5",
            "Content-Range: bytes 9-6/10",
            "Content-Range: bytes 6-10/10",
            "Content-Range: lines 6-9/10",
            "Content-Range: bytes +6-9/10",
            "Content-Range: bytes 6-9",
            "no colon",
        ] {
            assert!(matches!(head(lines), Err(RemoteError::Answer { .. })), "{lines}");
        }
        assert!(Answer::parse(b"SSH-2.0-OpenSSH\r\n").is_err());
    }

    #[test]
    fn conditions_name_strong_versions() {
        let version = |etag: Option<&str>, modified: Option<&str>| Version {
            etag: etag.map(str::to_owned),
            modified: modified.map(str::to_owned),
        };
        assert_eq!(version(Some("\"a\""), None).condition(), Some(("If-Match", "\"a\"")));
        assert_eq!(version(None, Some("Monday")).condition(), Some(("If-Unmodified-Since", "Monday")));
        assert_eq!(version(Some("W/\"a\""), None).condition(), None);
        assert_eq!(version(Some("\"ü\""), None).condition(), None);
        assert_eq!(version(None, None).condition(), None);
    }
}
