//! The names of temporary files and locks.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::formats::random::is_random;

/// The end of the names of temporary files.
const SUFFIX: &str = ".gpufile-tmp";

/// The longest name that a temporary name has all of. File systems allow 255 bytes, and the rest has 30.
pub(in crate::formats) const MOST_BYTES: usize = 255 - 30;

/// Returns `.NAME.RANDOM.gpufile-tmp`, where NAME is cut if it is long.
pub(super) fn temporary_name(name: &OsStr, number: u64) -> OsString {
    let name = name.as_bytes();
    let mut temporary = b".".to_vec();
    temporary.extend_from_slice(&name[..name.len().min(MOST_BYTES)]);
    temporary.extend_from_slice(format!(".{number:016x}{SUFFIX}").as_bytes());
    OsString::from_vec(temporary)
}

/// Returns `.NAME.USER.gpufile-lock`, where NAME is cut if it is long.
pub(super) fn lock_name(name: &OsStr, user: u32) -> OsString {
    let name = name.as_bytes();
    let mut lock = b".".to_vec();
    lock.extend_from_slice(&name[..name.len().min(MOST_BYTES)]);
    lock.extend_from_slice(format!(".{user}.gpufile-lock").as_bytes());
    OsString::from_vec(lock)
}

/// Returns the name of the target of a temporary file, cut if it is long; `None` if the name is not from
/// [`temporary_name`].
pub(in crate::formats) fn target_of(temporary: &[u8]) -> Option<&[u8]> {
    let name = temporary.strip_suffix(SUFFIX.as_bytes())?.strip_prefix(b".")?;
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    (dot > 0 && is_random(&name[dot + 1..])).then_some(&name[..dot])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::random::random;

    #[test]
    fn only_generated_names_count_as_temporary() {
        let long = "x".repeat(255);
        for name in ["a", "a.b", ".hidden", "é", &long] {
            let temporary = temporary_name(OsStr::new(name), random().unwrap());
            assert!(temporary.len() <= 255, "{temporary:?}");
            assert_eq!(target_of(temporary.as_bytes()), Some(&name.as_bytes()[..name.len().min(MOST_BYTES)]));
            let lock = lock_name(OsStr::new(name), u32::MAX);
            assert!(lock.len() <= 255 && target_of(lock.as_bytes()).is_none(), "{lock:?}");
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
