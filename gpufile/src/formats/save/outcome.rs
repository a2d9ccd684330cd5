use std::fmt;
use std::path::{Path, PathBuf};

use crate::formats::visible::Shown;

/// The data that is in place after a failed save.
///
/// ```
/// use gpufile::formats::SaveOptions;
/// use gpufile::formats::{Error, InPlace, safetensors};
///
/// let error = safetensors::save("/no/such/folder/model.safetensors", &[], &SaveOptions::new()).unwrap_err();
/// let Error::Save { in_place, left, .. } = error else { panic!("{error}") };
/// assert_eq!(in_place, InPlace::Old);
/// assert!(left.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum InPlace {
    /// The data from before the save, or none if there was none. The save has replaced nothing.
    #[default]
    Old,
    /// The new data, which opens by this path. A crash of the machine may bring the old data back.
    New(PathBuf),
    /// The data from before the save or the new one: the last answer of the store was a failure, or none came.
    Unknown,
    /// No data. The save had given the files of the old model other names, and could neither put the new ones in place nor
    /// the old ones back. `left` has their paths, such as `.model-00001-of-00002.gguf.0123456789abcdef.gpufile-old`.
    Neither,
}

/// The end of the text of a failed save to `path`.
pub(in crate::formats) struct After<'a> {
    pub path: &'a Path,
    pub in_place: &'a InPlace,
    pub left: &'a [PathBuf],
}

impl fmt::Display for After<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.in_place {
            InPlace::Old => f.write_str("; nothing was replaced")?,
            InPlace::Unknown => {
                f.write_str("; the old or the new data is in place, which the store did not say")?
            }
            InPlace::Neither => f.write_str(
                "; no data is in place; the old files have names that end with .gpufile-old: rename them back",
            )?,
            InPlace::New(at) if at == self.path => {
                f.write_str("; the new data is in place, but a crash of the machine may undo that")?;
            }
            InPlace::New(at) => write!(
                f,
                "; the new model is in place; open it with the path {}; a crash of the machine may undo the save",
                Shown(at)
            )?,
        }
        for (number, path) in self.left.iter().enumerate() {
            f.write_str(if number == 0 { "; the save left " } else { ", " })?;
            write!(f, "{}", Shown(path))?;
        }
        Ok(())
    }
}
