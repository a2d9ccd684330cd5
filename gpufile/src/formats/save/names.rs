//! The names of temporary files, and the random numbers in them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The end of the names of files that are being written.
const SUFFIX: &str = ".gpufile-tmp";

/// `.NAME.RANDOM.gpufile-tmp`.
pub(super) fn temporary_name(name: &OsStr, number: u64) -> OsString {
    /// File systems allow 255 bytes, and the rest of the name has less than the difference.
    const MOST_BYTES: usize = 200;
    let name = name.as_bytes();
    let mut temporary = b".".to_vec();
    temporary.extend_from_slice(&name[..name.len().min(MOST_BYTES)]);
    temporary.extend_from_slice(format!(".{number:016x}{SUFFIX}").as_bytes());
    OsString::from_vec(temporary)
}

/// Returns the name of the file that a temporary one is for, cut if it is long; `None` if the name is not one that
/// [`temporary_name`] gives.
pub(in crate::formats) fn target_of(temporary: &[u8]) -> Option<&[u8]> {
    let name = temporary.strip_suffix(SUFFIX.as_bytes())?.strip_prefix(b".")?;
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    (dot > 0 && is_random(&name[dot + 1..])).then_some(&name[..dot])
}

/// Returns whether these are the digits of a number that [`random`] gave.
pub(in crate::formats) fn is_random(digits: &[u8]) -> bool {
    digits.len() == 16 && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns a number that no other process gets, and no copy of this one.
pub(in crate::formats) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the kernel writes as many bytes as the array has.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match got {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_given_count_as_temporary() {
        let long = "x".repeat(255);
        for name in ["a", "a.b", ".hidden", "é", &long] {
            let temporary = temporary_name(OsStr::new(name), random().unwrap());
            assert!(temporary.len() <= 255, "{temporary:?}");
            assert_eq!(target_of(temporary.as_bytes()), Some(&name.as_bytes()[..name.len().min(200)]));
        }
        for name in [
            "a.0123456789abcdef.gpufile-tmp",
            ".a.0123456789abcde.gpufile-tmp",
            ".a.0123456789abcdeF.gpufile-tmp",
            ".a.00123456789abcdef.gpufile-tmp",
            ".0123456789abcdef.gpufile-tmp",
            "..0123456789abcdef.gpufile-tmp",
            ".a.0123456789abcdef.gpufile-tmp2",
            ".a.0123456789abcdef",
            ".gpufile-tmp",
            "",
        ] {
            assert_eq!(target_of(name.as_bytes()), None, "{name}");
        }
    }
}
