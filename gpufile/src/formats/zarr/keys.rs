//! The keys of a store: the check of a key, and the path that it names.

use std::borrow::Cow;

/// Returns whether a key can only name a file inside the folder. No part of such a key is empty, `.` or `..`.
pub(super) fn is_plain(key: &str) -> bool {
    !key.contains('\0') && key.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KeyRules {
    /// All letters become lower case.
    pub lower_case: bool,
    /// The numbers of a chunk become folders: `0.1` is `0/1`.
    pub nested: bool,
}

impl KeyRules {
    pub fn apply(self, key: &str) -> Cow<'_, str> {
        let mut key = Cow::Borrowed(key);
        if self.lower_case && key.contains(char::is_uppercase) {
            key = key.to_lowercase().into();
        }
        if self.nested {
            let name = key.rfind('/').map_or(0, |slash| slash + 1);
            if is_dotted(&key[name..]) {
                let nested = key[name..].replace('.', "/");
                key.to_mut().replace_range(name.., &nested);
            }
        }
        key
    }
}

/// Returns whether a name is numbers with dots between them: a chunk of an array of version 2 with more than one
/// axis.
fn is_dotted(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.contains('.') && name.split('.').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_leave_the_folder_are_not_plain() {
        for key in ["a", "a/b", "a/.b", "..a", "a../b", "...", "a b/ä"] {
            assert!(is_plain(key), "{key:?}");
        }
        for key in ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/./b", "a\0"] {
            assert!(!is_plain(key), "{key:?}");
        }
    }

    #[test]
    fn key_rules_change_only_case_and_chunk_separators() {
        let lower = KeyRules { lower_case: true, nested: false };
        assert_eq!(lower.apply("Ab/C.0"), "ab/c.0");
        let nested = KeyRules { lower_case: false, nested: true };
        for (key, path) in [
            ("0.1", "0/1"),
            ("A/10.20.30", "A/10/20/30"),
            ("0", "0"),
            ("c.0.1", "c.0.1"),
            ("1.5/.zarray", "1.5/.zarray"),
            ("1..2", "1..2"),
            (".1", ".1"),
        ] {
            assert_eq!(nested.apply(key), path);
        }
    }
}
