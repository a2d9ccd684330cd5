//! The facts about an object that hold from its first answer on.

use super::super::connection::answer::{Answer, ContentRange, Version};
use super::super::said::element;
use crate::error::RemoteError;

/// The most bytes of a file, and so of an object.
const MOST_BYTES: u64 = i64::MAX as u64;

/// The most bytes before a range that are received and dropped. Servers without ranges send whole objects, so longer ones
/// cannot be read.
const MOST_SKIPPED: u64 = 8 << 20;

/// The length and the version of an object, which each later answer must have too.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub len_bytes: u64,
    pub version: Version,
}

/// The bytes of an answer that are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The bytes before them.
    pub skipped: usize,
    pub count: usize,
    /// The bytes behind them.
    pub rest: u64,
}

impl Facts {
    /// Reads the facts from the answer to a request for the first byte, and its body.
    ///
    /// # Errors
    /// [`RemoteError::Answer`] if the server sends no ranges of a long object, or does not know the length.
    pub fn of_first(answer: &Answer, body: &[u8]) -> Result<Self, RemoteError> {
        Ok(Self { len_bytes: length_of(answer, body)?, version: answer.version.clone() })
    }

    /// Returns the bytes that an answer has from `start` on, at most `most_bytes`.
    ///
    /// # Errors
    /// [`RemoteError::Changed`] if the answer is that of another version, and [`RemoteError::Answer`] if it has other bytes.
    pub fn check(&self, answer: &Answer, start: u64, most_bytes: u64) -> Result<Part, RemoteError> {
        let wrong = |what: &str| Err(RemoteError::answer(format!("{what} for the bytes from {start} on")));
        let has_other_length = match (answer.status, answer.range) {
            (200, _) => answer.body_bytes.is_some_and(|len_bytes| len_bytes != self.len_bytes),
            (_, range) => {
                range.and_then(|range| range.total_bytes).is_some_and(|total| total != self.len_bytes)
            }
        };
        let (first, last) = match (answer.status, answer.range) {
            (416, _) if has_other_length => return Err(RemoteError::Changed),
            (416, _) => return wrong("it has no bytes (status 416)"),
            _ if has_other_length && answer.coding.is_none() => return Err(RemoteError::Changed),
            _ if !self.version.is_same(&answer.version) => return Err(RemoteError::Changed),
            _ if answer.coding.is_some() => return Err(encoded(answer)),
            _ if answer.is_multipart => return wrong("it has several parts (multipart/byteranges)"),
            (200, _) if start > MOST_SKIPPED => return wrong("it has the whole object (status 200)"),
            // Neither a length nor a version says that this is the same object.
            (200, _) if answer.body_bytes.is_none() && self.version == Version::default() => {
                return wrong("it has the whole object (status 200), without its length or version,");
            }
            (200, _) => (0, self.len_bytes - 1),
            (_, Some(ContentRange { bytes: Some((first, last)), .. }))
                if first <= start
                    && start <= last
                    && last < self.len_bytes
                    && start - first <= MOST_SKIPPED =>
            {
                (first, last)
            }
            _ => return wrong("it has another range"),
        };
        if answer.body_bytes.is_some_and(|body_bytes| body_bytes != last - first + 1) {
            return wrong("its length is not that of its range");
        }
        let count = most_bytes.min(last - start + 1);
        Ok(Part { skipped: (start - first) as usize, count: count as usize, rest: last + 1 - start - count })
    }
}

fn encoded(answer: &Answer) -> RemoteError {
    let coding = answer.coding.as_deref().unwrap_or_default();
    RemoteError::answer(format!("its bytes are encoded as {coding:?}"))
}

fn length_of(answer: &Answer, body: &[u8]) -> Result<u64, RemoteError> {
    let unusable = |reason: &str| Err(RemoteError::answer(reason));
    match (answer.status, answer.range) {
        (200 | 206, _) if answer.coding.is_some() => Err(encoded(answer)),
        (200 | 206, _) if answer.is_multipart => unusable("it has several parts (multipart/byteranges)"),
        (206 | 416, Some(ContentRange { total_bytes: Some(total), .. })) if total > MOST_BYTES => {
            unusable("the object has more bytes than a file can have")
        }
        // An empty object has no range.
        (416, Some(ContentRange { bytes: None, total_bytes: Some(0) })) => Ok(0),
        // Some stores say so in the body only.
        (416, None) => match element(&String::from_utf8_lossy(body), "ActualObjectSize").as_deref() {
            Some("0") => Ok(0),
            _ => unusable("it has no bytes (status 416), and the object's length is missing"),
        },
        (206, Some(ContentRange { bytes: Some((0, last)), total_bytes })) => {
            match (answer.body_bytes, total_bytes) {
                (Some(body_bytes), _) if body_bytes != last + 1 => {
                    unusable("its length is not that of its range")
                }
                (_, Some(total)) => Ok(total),
                (_, None) => unusable("the server does not know the length of the object"),
            }
        }
        (206, _) => unusable("it has another range than the first byte"),
        (200, _) => match answer.body_bytes {
            Some(len_bytes @ 0..=MOST_SKIPPED) => Ok(len_bytes),
            _ => unusable("the server sends no ranges"),
        },
        _ => unusable("the server sends no ranges"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_no_longer_than_files() {
        for (total, is_possible) in [(MOST_BYTES, true), (MOST_BYTES + 1, false), (u64::MAX, false)] {
            let range = Some(ContentRange { bytes: Some((0, 0)), total_bytes: Some(total) });
            let answer = Answer { status: 206, body_bytes: Some(1), range, ..Answer::default() };
            let facts = Facts::of_first(&answer, &[]);
            assert_eq!(facts.as_ref().is_ok_and(|facts| facts.len_bytes == total), is_possible, "{facts:?}");
        }
    }

    #[test]
    fn empty_objects_have_no_first_byte() {
        let answer = |coding: Option<&str>, range| Answer {
            status: 416,
            coding: coding.map(str::to_owned),
            range,
            ..Answer::default()
        };
        let total = |total| Some(ContentRange { bytes: None, total_bytes: Some(total) });
        let length = |answer: &Answer, body: &str| {
            Facts::of_first(answer, body.as_bytes()).ok().map(|facts| facts.len_bytes)
        };
        // The coding is that of the words about the failure.
        assert_eq!(length(&answer(Some("gzip"), total(0)), ""), Some(0));
        assert_eq!(
            length(&answer(None, None), "<Error><ActualObjectSize>0</ActualObjectSize></Error>"),
            Some(0)
        );
        assert_eq!(
            length(&answer(None, None), "<Error><ActualObjectSize>1</ActualObjectSize></Error>"),
            None
        );
        assert_eq!(length(&answer(None, None), ""), None);
        assert_eq!(length(&answer(None, total(1)), ""), None);
        let facts = Facts { len_bytes: 5, version: Version::default() };
        assert!(matches!(facts.check(&answer(Some("gzip"), total(3)), 1, 1), Err(RemoteError::Changed)));
    }

    #[test]
    fn answers_may_have_more_bytes_than_needed() {
        let facts = Facts { len_bytes: 100 << 20, version: Version::default() };
        let answer = |first, last| Answer {
            status: 206,
            range: Some(ContentRange { bytes: Some((first, last)), total_bytes: None }),
            ..Answer::default()
        };
        let part = |skipped, count, rest| Some(Part { skipped, count, rest });
        const FAR: u64 = 50 << 20;
        for (first, last, expected) in [
            (FAR, FAR + 9, part(0, 10, 0)),
            (FAR, FAR + 4, part(0, 5, 0)),
            (FAR, FAR + 10, part(0, 10, 1)),
            (FAR - 7, FAR, part(7, 1, 0)),
            (FAR - MOST_SKIPPED, FAR + 9, part(MOST_SKIPPED as usize, 10, 0)),
            (FAR - MOST_SKIPPED - 1, FAR + 9, None),
            (FAR + 1, FAR + 9, None),
            (FAR - 9, FAR - 1, None),
            (FAR, 100 << 20, None),
        ] {
            assert_eq!(facts.check(&answer(first, last), FAR, 10).ok(), expected, "{first} {last}");
        }
        let whole = |body_bytes| Answer { status: 200, body_bytes, ..Answer::default() };
        assert_eq!(facts.check(&whole(Some(100 << 20)), 7, 10).ok(), part(7, 10, (100 << 20) - 17));
        assert!(matches!(facts.check(&whole(Some(99 << 20)), 7, 10), Err(RemoteError::Changed)));
        assert!(
            facts.check(&whole(Some(100 << 20)), FAR, 10).is_err()
                && facts.check(&whole(None), 7, 10).is_err()
        );
    }
}
