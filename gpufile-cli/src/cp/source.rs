//! The file or the object that is copied.

use std::fs::{self, Metadata};
use std::ops::Range;
use std::path::{Path, PathBuf};

use gpufile::{Engine, File};

use super::holes;
use crate::failure::Failure;
use crate::location::Location;
use crate::model::options;
use crate::remote::RemoteArgs;

pub struct Source {
    pub file: File,
    pub name: PathBuf,
    /// `None` for an object, which has no permissions.
    pub status: Option<Metadata>,
    pub len_bytes: u64,
    /// The ranges that have data: all bytes of an object.
    pub data: Vec<Range<u64>>,
}

impl Source {
    /// # Errors
    /// The source cannot be read, is not a regular file, or is a path with options for URLs.
    pub fn open(location: &Location, remote: &RemoteArgs, engine: &Engine) -> Result<Self, Failure> {
        remote.check(location)?;
        let name = location.name().to_owned();
        match location {
            Location::Path(path) => {
                let status = regular(path)?;
                let file = options(engine).open(path)?;
                let len_bytes = status.len();
                let data = holes::data(&file, len_bytes);
                Ok(Self { file, name, status: Some(status), len_bytes, data })
            }
            Location::Url(url) => {
                let file = File::from(remote.options()?.engine(engine).open(url)?);
                let len_bytes = file.len_bytes()?;
                Ok(Self {
                    file,
                    name,
                    status: None,
                    len_bytes,
                    data: std::iter::once(0..len_bytes).collect(),
                })
            }
        }
    }

    /// Opens the source of an object that is written. Holes are read as zeros.
    ///
    /// # Errors
    /// As for [`open`](Self::open); some options for URLs beside a path.
    pub fn open_for_upload(
        location: &Location,
        remote: &RemoteArgs,
        engine: &Engine,
    ) -> Result<Self, Failure> {
        let Location::Path(_) = location else { return Self::open(location, remote, engine) };
        remote.check_for_upload()?;
        Self::open(location, &RemoteArgs::default(), engine)
    }

    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|range| range.end - range.start).sum()
    }
}

/// Fails unless the source is a regular file.
fn regular(path: &Path) -> Result<Metadata, Failure> {
    let failed = |problem: &dyn std::fmt::Display| Failure::Other(format!("cannot copy {path:?}: {problem}"));
    let status = fs::metadata(path).map_err(|error| failed(&error))?;
    match status.is_file() {
        true => Ok(status),
        false if status.is_dir() => Err(failed(&"it is a folder; name a file")),
        false => Err(failed(&"it is not a regular file")),
    }
}
