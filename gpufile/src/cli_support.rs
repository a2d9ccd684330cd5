//! Functions that the program `gpufile` calls beyond the public API. Nothing here is promised to stay.

use std::io;

#[cfg(feature = "formats")]
pub use crate::formats::regular::open_unblocked;
#[cfg(feature = "formats")]
pub use crate::formats::save::{kind as kind_of_file, save_copy};
pub use crate::settings::variable_names;
use crate::{Error, File};

/// Returns the error of an operation on a file that is not a transfer.
pub fn failed(file: &File, operation: &'static str, error: io::Error) -> Error {
    file.failed(operation, error)
}
