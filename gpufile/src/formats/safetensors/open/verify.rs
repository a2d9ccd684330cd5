use std::path::{Path, PathBuf};

use super::files::{Examined, examine};
use super::hashes::Contents;
use super::rule;
use super::warning::Warning;
use crate::OpenOptions;
use crate::formats::Error;

/// The outcome of verifying a model.
///
/// [`Checkpoint::open`](super::super::Checkpoint::open) opens exactly the models without
/// [`problems`](Self::problems), unless the contents were compared too or a packed tensor has a wrong index,
/// which its first read finds.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Verification {
    /// The files of the model. Empty if there are problems.
    pub files: Vec<PathBuf>,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of bytes of all tensors.
    pub len_bytes: u64,
    /// The number of files whose contents were compared with a hash.
    pub hashed: usize,
    /// The parts of the model that are not loaded.
    pub warnings: Vec<Warning>,
    /// Everything that is wrong.
    pub problems: Vec<Error>,
}

impl Verification {
    /// Returns whether there are no problems.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// The verification of a model: that it is complete, its index correct, and each header consistent with itself and its
/// file. With the feature `hash`, also the contents.
///
/// ```
/// # use gpufile::formats::{Dtype, SaveOptions};
/// use gpufile::formats::safetensors::{self, TensorData, Verify};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.safetensors");
/// safetensors::save(&path, &[TensorData::new("w", Dtype::U8, &[2], &[1, 2][..])], &SaveOptions::new())?;
/// assert!(Verify::new().run([&path]).is_good());
///
/// std::fs::write(&path, "Entry not found").unwrap();
/// let found = Verify::new().run([&path]);
/// assert!(found.problems[0].to_string().contains("text that begins with \"Entry not found\""));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Verify {
    options: OpenOptions,
    pub(super) contents: Contents,
}

impl Verify {
    /// Returns a verification without the contents.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the options to open files with, as [`Checkpoint::open_with`](super::super::Checkpoint::open_with) does.
    pub fn files(mut self, options: &OpenOptions) -> Self {
        self.options = options.clone();
        self
    }

    /// Verifies the model at a path, or the model of several files, as
    /// [`Checkpoint::open_with`](super::super::Checkpoint::open_with) takes them.
    pub fn run(&self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Verification {
        let paths: Vec<_> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
        self.outcome(examine(|| rule::choose_many(&paths), &self.options))
    }

    fn outcome(&self, examined: Examined) -> Verification {
        let Examined { model, problems, warnings } = examined;
        let mut outcome = Verification { problems, warnings, ..Verification::default() };
        if let Some(model) = model {
            outcome.files = model.files.iter().map(|file| file.path().to_owned()).collect();
            outcome.tensors = model.catalog.len();
            outcome.len_bytes = model.catalog.len_bytes();
            outcome.problems.extend(model.views.iter().flatten().flat_map(|view| view.check()));
            let compared = self.contents.compare(&outcome.files, &model.path);
            outcome.hashed = compared.hashed;
            outcome.warnings.extend(compared.warnings);
            outcome.problems.extend(compared.problems);
        }
        outcome
    }
}
