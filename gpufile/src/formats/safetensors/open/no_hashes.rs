//! The stand-in for comparing hashes, in a build without them.

use std::path::{Path, PathBuf};

use super::warning::Compared;

#[derive(Debug, Clone, Default)]
pub(super) struct Contents;

impl Contents {
    pub fn compare(&self, _: &[PathBuf], _: &Path) -> Compared {
        Compared::default()
    }
}
