//! The heads of a server's answers.

use std::time::Duration;

use crate::error::RemoteError;

const MOST_LINES: usize = 256;

/// The parts of a head that matter for reading a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    /// The number of bytes that follow, if the head has it.
    pub body_bytes: Option<u64>,
    pub is_chunked: bool,
    pub range: Option<ContentRange>,
    pub version: Version,
    /// The address of a redirect.
    pub location: Option<String>,
    /// The wait that the server asks for.
    pub retry_after: Option<Duration>,
    /// The encoding, for example `gzip`.
    pub coding: Option<String>,
    /// True if the bytes that follow are ranges with heads of their own.
    pub is_multipart: bool,
    pub clues: Clues,
    /// True if another request may follow on the connection.
    pub keeps_connection: bool,
}

/// The range that an answer has, and the length of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentRange {
    /// The first byte and the last one, if there are bytes.
    pub bytes: Option<(u64, u64)>,
    /// The length of the object in bytes, if the server says.
    pub total_bytes: Option<u64>,
}

/// Headers that say more of a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clues {
    pub code: Option<String>,
    pub region: Option<String>,
    /// The name of the request, by which its operator finds it.
    pub request: Option<String>,
}

/// The version of an object, by which a change is noticed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Version {
    pub etag: Option<String>,
    /// The time of the last change.
    pub modified: Option<String>,
}

impl Version {
    /// Returns whether an answer has this version. The ETag decides, and without one the time of the last change.
    ///
    /// Some servers and caches weaken the ETag of the same bytes, so `W/"a"` and `"a"` are the same.
    pub fn is_same(&self, other: &Self) -> bool {
        let opaque = |etag: &str| etag.strip_prefix("W/").unwrap_or(etag).to_owned();
        match self {
            Version { etag: Some(etag), .. } => other.etag.as_deref().map(opaque) == Some(opaque(etag)),
            Version { modified: Some(time), .. } => other.modified.as_ref() == Some(time),
            _ => true,
        }
    }

    /// Returns the header with which a server refuses to send another version.
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
    /// Reads a head from the start of `bytes`. Returns it and its length in bytes, or `None` if it is not whole.
    ///
    /// # Errors
    /// [`RemoteError::Answer`] if this is not HTTP.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, RemoteError> {
        let mut lines = [httparse::EMPTY_HEADER; MOST_LINES];
        let mut head = httparse::Response::new(&mut lines);
        let mut config = httparse::ParserConfig::default();
        // RFC 9112 asks clients to take lines that go on in the next one.
        config.allow_obsolete_multiline_headers_in_responses(true);
        config.allow_spaces_after_header_name_in_responses(true);
        let unreadable = |error: httparse::Error| RemoteError::answer(format!("no HTTP: {error}"));
        let parsed = config.parse_response(&mut head, bytes).map_err(unreadable)?;
        let httparse::Status::Complete(len_bytes) = parsed else { return Ok(None) };
        let mut answer = Self {
            status: head.code.unwrap_or(0),
            keeps_connection: head.version == Some(1),
            ..Self::default()
        };
        for line in head.headers.iter() {
            // Other bytes than those of a text differ, as versions with them do.
            let text = || line.value.iter().copied().map(char::from).collect();
            let value: String = str::from_utf8(line.value).map_or_else(|_| text(), str::to_owned);
            answer.note(line.name, value.replace(['\r', '\n'], " ").trim())?;
        }
        if answer.is_chunked && (answer.body_bytes.is_some() || head.version != Some(1)) {
            // RFC 9112: another program on the way may see another end of this answer.
            (answer.body_bytes, answer.keeps_connection) = (None, false);
        }
        Ok(Some((answer, len_bytes)))
    }

    fn note(&mut self, name: &str, value: &str) -> Result<(), RemoteError> {
        let is = |other| name.eq_ignore_ascii_case(other);
        let wrong = || RemoteError::answer(format!("the header {name} is {value:?}"));
        if is("content-length") {
            // The same length may come several times.
            for one in words(value) {
                let body_bytes = number(one).ok_or_else(wrong)?;
                if self.body_bytes.replace(body_bytes).is_some_and(|before| before != body_bytes) {
                    return Err(wrong());
                }
            }
        } else if is("content-range") {
            let range = ContentRange::parse(value).ok_or_else(wrong)?;
            if self.range.replace(range).is_some_and(|before| before != range) {
                return Err(wrong());
            }
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
            for word in words(value).map(str::to_ascii_lowercase) {
                match word.as_str() {
                    // S3 keeps the second one of an upload, whose chunks are gone.
                    "" | "identity" | "aws-chunked" => {}
                    "chunked" if is("transfer-encoding") && !self.is_chunked => self.is_chunked = true,
                    _ => self.coding = Some(word),
                }
            }
        } else if is("content-type") {
            self.is_multipart = value.to_ascii_lowercase().starts_with("multipart/byteranges");
        } else if is("x-amz-error-code") || is("x-ms-error-code") || is("x-error-code") {
            self.clues.code = Some(value.to_owned());
        } else if is("x-amz-bucket-region") {
            self.clues.region = Some(value.to_owned());
        } else if is("x-amz-request-id")
            || is("x-ms-request-id")
            || is("x-guploader-uploadid")
            || is("x-request-id")
        {
            self.clues.request = Some(value.to_owned());
        } else if is("connection") {
            if words(value).any(|word| word.eq_ignore_ascii_case("close")) {
                self.keeps_connection = false;
            } else if words(value).any(|word| word.eq_ignore_ascii_case("keep-alive")) {
                self.keeps_connection = true;
            }
        }
        Ok(())
    }
}

impl ContentRange {
    fn parse(value: &str) -> Option<Self> {
        let (unit, rest) = value.split_at_checked("bytes".len())?;
        let (bytes, total) =
            rest.trim_start().split_once('/').filter(|_| unit.eq_ignore_ascii_case("bytes"))?;
        let total_bytes = if total == "*" { None } else { Some(number(total)?) };
        if bytes == "*" {
            return Some(Self { bytes: None, total_bytes });
        }
        let (first, last) = bytes.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        let is_possible = first <= last && last < total_bytes.unwrap_or(u64::MAX);
        is_possible.then_some(Self { bytes: Some((first, last)), total_bytes })
    }
}

fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim)
}

/// Reads a number of digits only.
fn number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
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
            version: Version { etag: Some("\"a\"".to_owned()), modified: Some("x".to_owned()) },
            keeps_connection: true,
            ..Answer::default()
        };
        assert_eq!((answer, len_bytes), (expected, 109));
        assert!(!head("Connection: close").unwrap().unwrap().0.keeps_connection);
        assert!(head("Transfer-Encoding: Chunked").unwrap().unwrap().0.is_chunked);
        let coding = |lines: &str| head(lines).unwrap().unwrap().0.coding;
        for plain in ["", "identity", "aws-chunked", "aws-chunked,", "aws-chunked, Identity"] {
            assert_eq!(coding(&format!("Content-Encoding: {plain}")), None, "{plain}");
        }
        assert_eq!(coding("Content-Encoding: aws-chunked,GZIP").as_deref(), Some("gzip"));
        assert_eq!(coding("Content-Encoding: br\r\nContent-Encoding:").as_deref(), Some("br"));
        assert_eq!(coding("Transfer-Encoding: gzip, chunked").as_deref(), Some("gzip"));
        assert_eq!(coding("Transfer-Encoding: chunked, chunked").as_deref(), Some("chunked"));
        assert_eq!(head("Retry-After: 7").unwrap().unwrap().0.retry_after, Some(Duration::from_secs(7)));
        assert_eq!(head("Retry-After: Sun, 06 Nov 1994").unwrap().unwrap().0.retry_after, None);
        assert_eq!(Answer::parse(b"HTTP/1.1 206 Partial Content\r\nETag: ").unwrap(), None);
        let (old, _) = Answer::parse(b"HTTP/1.0 200 OK\r\n\r\n").unwrap().unwrap();
        assert!(!old.keeps_connection);
    }

    #[test]
    fn unusual_forms_of_heads_are_read() {
        let (answer, _) = head("Content-Length: 4, 4\r\nContent-Length: 4\r\nContent-Range:\r\n BYTES 6-9/*")
            .unwrap()
            .unwrap();
        let range = ContentRange { bytes: Some((6, 9)), total_bytes: None };
        assert_eq!((answer.body_bytes, answer.range, answer.keeps_connection), (Some(4), Some(range), true));
        // Two lengths of the body.
        let (answer, _) = head("Content-Length: 4\r\nTransfer-Encoding: chunked").unwrap().unwrap();
        assert_eq!((answer.body_bytes, answer.is_chunked, answer.keeps_connection), (None, true, false));
        assert!(head("Content-Type: multipart/byteranges; boundary=x").unwrap().unwrap().0.is_multipart);
    }

    #[test]
    fn versions_of_the_same_bytes_are_the_same() {
        let version = |etag: &str, modified: &str| {
            let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            Version { etag: some(etag), modified: some(modified) }
        };
        for (opened, answer, is_same) in [
            (version("\"a\"", ""), version("\"a\"", "Monday"), true),
            (version("\"a\"", ""), version("W/\"a\"", ""), true),
            (version("W/\"a\"", ""), version("\"a\"", ""), true),
            (version("\"a\"", ""), version("\"b\"", ""), false),
            (version("\"a\"", "Monday"), version("", "Monday"), false),
            (version("", "Monday"), version("\"a\"", "Monday"), true),
            (version("", "Monday"), version("\"a\"", "Tuesday"), false),
            (version("", "Monday"), version("", ""), false),
            (version("", ""), version("\"a\"", ""), true),
        ] {
            assert_eq!(opened.is_same(&answer), is_same, "{opened:?} {answer:?}");
        }
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
            "Content-Length: 4, 5",
            "Content-Length:",
            "Content-Range: bytes 6-9/10\r\nContent-Range: bytes 7-9/10",
            "Content-Range: bytes 9-6/10",
            "Content-Range: bytes 6-10/10",
            "Content-Range: lines 6-9/10",
            "Content-Range: bytes 0-18446744073709551615/*",
            "Content-Range: bytes 0-1/18446744073709551616",
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
