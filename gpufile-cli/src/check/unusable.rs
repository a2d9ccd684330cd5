//! A library that is there and does not load.

use std::path::Path;

use cufile::LoadError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    pub path: String,
    pub reason: String,
}

/// The dynamic loader's words.
const ABSENT: &str = "cannot open shared object file: No such file";

impl Unusable {
    /// Returns the first tried file that exists.
    pub fn of(error: &LoadError) -> Option<Self> {
        let of = |path: &Path, reason: String| Self { path: path.to_string_lossy().into_owned(), reason };
        match error {
            LoadError::NotFound { attempts, .. } => {
                // The words come first only for the file itself, and not for a library that it needs.
                let is_there = |path: &Path, reason: &str| path.is_file() || !reason.starts_with(ABSENT);
                let found = attempts.iter().find(|attempt| is_there(&attempt.path, &attempt.reason))?;
                Some(of(&found.path, found.reason.clone()))
            }
            LoadError::MissingSymbol { path, .. } | LoadError::DriverTooOld { path, .. } => {
                let text = error.to_string();
                Some(of(path, text.trim_start_matches(&format!("{path:?} ")).to_owned()))
            }
            _ => None,
        }
    }

    pub fn remedy(&self, variable: &str) -> String {
        let reason = &self.reason;
        let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
        if has(&["wrong ELF class", "invalid ELF header", "cannot handle"]) {
            format!("it is no library for this processor: set {variable} to one that is")
        } else if has(&["file too short"]) {
            "the file is empty or cut off: install it again; in a container without GPUs, the runtime leaves empty ones".to_owned()
        } else if has(&["GLIBC"]) {
            format!("it needs a newer C library than this system has: set {variable} to an older release")
        } else if has(&["display driver supports only"]) {
            "update the display driver, or install a libcudart of its CUDA release".to_owned()
        } else if has(&[ABSENT]) {
            "install the library that it needs, or add its folder to LD_LIBRARY_PATH".to_owned()
        } else if has(&["Permission denied", "Operation not permitted", "failed to map segment"]) {
            "permit this user to read and execute it; a file system mounted with noexec forbids that"
                .to_owned()
        } else {
            format!("install it again, or set {variable} to another file")
        }
    }
}

#[cfg(test)]
mod tests {
    use cuda_rt_sys::loader::Attempt;

    use super::*;

    #[test]
    fn first_file_that_exists_is_named() {
        let of = |tried: &[(&str, &str)]| {
            let attempt =
                |(path, reason): &(&str, &str)| Attempt { path: path.into(), reason: (*reason).to_owned() };
            let attempts = tried.iter().map(attempt).collect();
            let error = LoadError::NotFound { library: "libcufile", variable: "CUFILE_LIBRARY", attempts };
            Unusable::of(&error).map(|file| (file.path, file.reason))
        };
        let absent = format!("{ABSENT} or directory");
        assert_eq!(of(&[("libcufile.so.0", &absent), ("/none/libcufile.so", &absent)]), None);
        let needed = format!("libnuma.so.1: {absent}");
        for reason in ["file too short", &needed] {
            let expected = ("/opt/libcufile.so".to_owned(), reason.to_owned());
            assert_eq!(of(&[("libcufile.so.0", &absent), ("/opt/libcufile.so", reason)]), Some(expected));
        }
        let old = LoadError::MissingSymbol {
            library: "libcufile",
            path: "/opt/x.so".into(),
            symbol: "cuFileRead".to_owned(),
        };
        let found = Unusable::of(&old).unwrap();
        assert!(
            found.path == "/opt/x.so" && found.reason.starts_with("has no function cuFileRead"),
            "{found:?}"
        );
    }

    #[test]
    fn each_reason_has_its_remedy() {
        for (reason, word) in [
            ("wrong ELF class: ELFCLASS32", "processor"),
            ("invalid ELF header", "processor"),
            ("file too short", "empty"),
            ("/lib/libc.so.6: version `GLIBC_2.38' not found (required by x)", "C library"),
            ("libnuma.so.1: cannot open shared object file: No such file or directory", "LD_LIBRARY_PATH"),
            (
                "is from CUDA 13.0, but the display driver supports only 12.4: update",
                "update the display driver",
            ),
            ("cannot open shared object file: Permission denied", "noexec"),
            ("undefined symbol: x", "set CUFILE_LIBRARY to another file"),
        ] {
            let unusable = Unusable { path: "/x".to_owned(), reason: reason.to_owned() };
            assert!(
                unusable.remedy("CUFILE_LIBRARY").contains(word),
                "{reason}: {}",
                unusable.remedy("CUFILE_LIBRARY")
            );
        }
    }
}
