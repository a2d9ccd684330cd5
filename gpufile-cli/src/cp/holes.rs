//! The parts of a sparse file that have data.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the ranges that have data, in order, in the first `len_bytes` of a file. Where the file system does not tell,
/// that is all of it.
pub fn data(file: impl AsFd, len_bytes: u64) -> Vec<Range<u64>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < len_bytes {
        let start = match seek(&file, at, libc::SEEK_DATA) {
            Ok(start) => start,
            // The rest is a hole.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => break,
            Err(_) => at,
        };
        if start >= len_bytes {
            break;
        }
        // The end of the file counts as a hole.
        let end = seek(&file, start, libc::SEEK_HOLE).unwrap_or(len_bytes).clamp(start, len_bytes);
        // A file that changes at this moment could have a hole again where there was data.
        let end = if end == start { len_bytes } else { end };
        ranges.push(start..end);
        at = end;
    }
    ranges
}

fn seek(file: &impl AsFd, at: u64, whence: libc::c_int) -> io::Result<u64> {
    // SAFETY: takes integers. Nothing here uses the position of the descriptor.
    let found = unsafe { libc::lseek(file.as_fd().as_raw_fd(), at as libc::off_t, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range of a file is meant")]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_are_left_out() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(data(&file, 0), []);
        file.set_len(10 << 20).unwrap();
        file.write_all_at(&[7; 5000], 3 << 20).unwrap();
        file.write_all_at(b"end", (10 << 20) - 3).unwrap();
        let ranges = data(&file, 10 << 20);
        let has = |at: u64| ranges.iter().any(|range| range.contains(&at));
        assert!(has(3 << 20) && has((3 << 20) + 4999) && has((10 << 20) - 1), "{ranges:?}");
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
        // A file system without holes calls all of it data.
        if ranges.len() > 1 {
            assert!(!has(1 << 20) && !has(6 << 20), "{ranges:?}");
        }
    }

    #[test]
    fn data_ends_at_the_length_that_was_asked_for() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
        assert_eq!(data(&file, 70_001), [0..70_001]);
    }
}
