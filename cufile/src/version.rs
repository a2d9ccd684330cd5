//! Versions of libcufile.

use std::fmt;

/// A version of libcufile, `major.minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 1 in every version so far.
    pub major: u32,
    /// 20 for cuFile 1.20, which came with CUDA 13.5.
    pub minor: u32,
}

impl Version {
    /// Makes the version from `cuFileGetVersion`'s 1000 × major + 10 × minor.
    pub(crate) const fn from_raw(raw: i32) -> Self {
        let raw = raw.unsigned_abs();
        Self { major: raw / 1000, minor: raw % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_print_like_the_library() {
        assert_eq!(Version::from_raw(1200), Version { major: 1, minor: 20 });
        assert_eq!(Version::from_raw(1110).to_string(), "1.11");
        assert!(Version::from_raw(1200) > Version::from_raw(1190));
    }
}
