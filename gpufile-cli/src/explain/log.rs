//! A log, of any bytes and length: what is known about its lines, with the number of lines and the first one.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use super::find::{Subject, in_line};

/// The most bytes of a line that are read at once. The rest counts as the same line.
const MOST_BYTES: u64 = 64 << 10;

pub struct Finding {
    pub subject: Subject,
    pub count: u64,
    /// The number of the first line, from 1.
    pub line: u64,
    pub text: String,
}

/// Returns the subjects in the order of their first lines.
pub fn read(mut input: impl BufRead) -> io::Result<Vec<Finding>> {
    let (mut findings, mut places) = (Vec::<Finding>::new(), HashMap::new());
    let (mut bytes, mut line) = (Vec::new(), 1);
    while input.by_ref().take(MOST_BYTES).read_until(b'\n', &mut bytes)? > 0 {
        let text = String::from_utf8_lossy(&bytes);
        for subject in in_line(&text) {
            let place = *places.entry(subject).or_insert(findings.len());
            match findings.get_mut(place) {
                Some(finding) => finding.count += 1,
                None => {
                    findings.push(Finding { subject, count: 1, line, text: text.trim().to_owned() });
                }
            }
        }
        line += u64::from(bytes.ends_with(b"\n"));
        bytes.clear();
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_counted_in_any_bytes() {
        let log = b"\xff\xfe nothing\n\nERROR err=5030 \xff\nerror: ENOSPC\r\nerr=5030\n\0\0\0 err=5030";
        let found = read(&log[..]).unwrap();
        let found: Vec<_> =
            found.iter().map(|found| (found.subject.title(), found.count, found.line)).collect();
        let expected = [
            ("CU_FILE_INTERNAL_ERROR (5030)".to_owned(), 3, 3),
            ("ENOSPC (errno 28, No space left on device)".to_owned(), 1, 4),
        ];
        assert_eq!(found, expected);
        assert!(read(&b""[..]).unwrap().is_empty());
    }

    #[test]
    fn a_line_without_end_needs_little_memory() {
        let input = io::repeat(b'x').take(10 << 20).chain(&b" err=5030\nENOSPC"[..]);
        let found = read(io::BufReader::new(input)).unwrap();
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [1, 2]);
        assert!(found[0].text.len() <= MOST_BYTES as usize);
    }
}
