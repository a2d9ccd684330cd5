//! The facts about an object that hold from its first answer on.

use super::super::connection::answer::{Answer, ContentRange, Version};
use super::super::error::RemoteError;

/// The most bytes of a file, and so of an object that is read as one.
const MOST_BYTES: u64 = i64::MAX as u64;

/// The length and the version of an object, which each later answer must have too.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub len_bytes: u64,
    pub version: Version,
}

impl Facts {
    /// Reads the facts from the answer to a request for the first byte.
    ///
    /// # Errors
    /// [`RemoteError::Answer`] if the server sends no ranges, or does not know the length.
    pub fn of_first(answer: &Answer) -> Result<Self, RemoteError> {
        Ok(Self { len_bytes: length_of(answer)?, version: answer.version.clone() })
    }

    /// Returns the number of bytes that an answer has from `start` on, at most `most_bytes`.
    ///
    /// # Errors
    /// [`RemoteError::Changed`] if the answer is that of another version, and [`RemoteError::Answer`] if it has other bytes.
    pub fn check(&self, answer: &Answer, start: u64, most_bytes: u64) -> Result<usize, RemoteError> {
        let wrong = |what: &str| Err(RemoteError::answer(format!("{what} for the bytes from {start} on")));
        match answer.range {
            Some(ContentRange { total_bytes: Some(total), .. }) if total != self.len_bytes => {
                Err(RemoteError::Changed)
            }
            _ if answer.status == 200 => wrong("it has the whole object (status 200)"),
            _ if answer.status != 206 => wrong("it has no bytes (status 416)"),
            _ if answer.version != self.version => Err(RemoteError::Changed),
            _ if answer.is_encoded => wrong("its bytes are encoded"),
            Some(ContentRange { bytes: Some((first, last)), .. })
                if first == start && last - first < most_bytes =>
            {
                let count = last - first + 1;
                match answer.body_bytes {
                    Some(body_bytes) if body_bytes != count => wrong("its length is not that of its range"),
                    _ => Ok(count as usize),
                }
            }
            _ => wrong("it has another range"),
        }
    }
}

/// Returns the length of an object, from the first answer of its server.
fn length_of(answer: &Answer) -> Result<u64, RemoteError> {
    let no_ranges = || RemoteError::answer("the server sends no ranges");
    match answer {
        Answer { is_encoded: true, .. } => Err(RemoteError::answer("its bytes are encoded")),
        Answer { status: 206, body_bytes: Some(other), .. } if *other != 1 => {
            Err(RemoteError::answer("its length is not that of its range"))
        }
        Answer { range: Some(ContentRange { total_bytes: Some(total), .. }), .. } if *total > MOST_BYTES => {
            Err(RemoteError::answer("the object has more bytes than a file can have"))
        }
        // An empty object has no range.
        Answer { status: 200, body_bytes: Some(0), .. } => Ok(0),
        Answer {
            status: 206,
            range: Some(ContentRange { bytes: Some((0, 0)), total_bytes: Some(total) }),
            ..
        } => Ok(*total),
        Answer { status: 206, range: Some(ContentRange { total_bytes: None, .. }), .. } => {
            Err(RemoteError::answer("the server does not know the length of the object"))
        }
        Answer { status: 416, range: Some(ContentRange { bytes: None, total_bytes: Some(0) }), .. } => Ok(0),
        Answer { status: 206, .. } => Err(RemoteError::answer("it has another range than the first byte")),
        _ => Err(no_ranges()),
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
            let facts = Facts::of_first(&answer);
            assert_eq!(facts.as_ref().is_ok_and(|facts| facts.len_bytes == total), is_possible, "{facts:?}");
        }
    }
}
