//! The names of temporary files, old files and locks.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::formats::random::is_random;

const SUFFIX: &str = ".gpufile-tmp";
/// The end of the names of old files, as long as that of temporary ones. No save removes a file of this name that it did not
/// make.
const OLD: &str = ".gpufile-old";

/// The longest name that a temporary name has all of. File systems allow 255 bytes, and the rest has 30.
pub(in crate::formats) const MOST_BYTES: usize = 255 - 30;

/// Returns `.NAME.RANDOM.gpufile-tmp`, where NAME is cut if it is long.
pub(super) fn temporary_name(name: &OsStr, number: u64) -> OsString {
    hidden_name(name, &format!(".{number:016x}{SUFFIX}"))
}

/// Returns `.NAME.RANDOM.gpufile-old`, cut likewise.
pub(super) fn old_name(name: &OsStr, number: u64) -> OsString {
    hidden_name(name, &format!(".{number:016x}{OLD}"))
}

/// Returns `.NAME.USER.gpufile-lock`, cut likewise.
pub(super) fn lock_name(name: &OsStr, user: u32) -> OsString {
    hidden_name(name, &format!(".{user}.gpufile-lock"))
}

fn hidden_name(name: &OsStr, end: &str) -> OsString {
    let name = name.as_bytes();
    let mut hidden = b".".to_vec();
    hidden.extend_from_slice(&name[..name.len().min(MOST_BYTES)]);
    hidden.extend_from_slice(end.as_bytes());
    OsString::from_vec(hidden)
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
            let old = old_name(OsStr::new(name), u64::MAX);
            for other in [lock, old] {
                assert!(other.len() <= 255 && target_of(other.as_bytes()).is_none(), "{other:?}");
            }
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
