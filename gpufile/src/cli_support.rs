//! The items that the program `gpufile`, the Python package and `cargo xtask` use beyond the public API. Nothing here is promised to stay.

use std::io;

#[cfg(feature = "formats")]
pub use crate::formats::regular::open_unblocked;
#[cfg(feature = "formats")]
pub use crate::formats::save::save_copy;
#[cfg(feature = "formats")]
pub use crate::formats::visible::visible;
pub use crate::local_path::{check as check_path, is_address};
#[cfg(feature = "remote")]
pub use crate::remote::location::{last_in, without_secrets};
use crate::route::Way;
pub use crate::settings::{PAGE_HEAD, kvikio_settings, page_rows, variable_names};
#[cfg(feature = "formats")]
pub use crate::trusted::{PrivateFolder, at::lacks_call, kind as kind_of_file};
pub use crate::with_settings;
use crate::{Error, File};

/// Counts a read to host memory that the caller has carried out itself.
pub fn count_host_read(file: &File, bytes: usize) {
    file.open_file().count_read(Way::Host, bytes, &Ok(()));
}

/// Returns the error of an operation on a file that is not a transfer.
pub fn failed(file: &File, operation: &'static str, error: io::Error) -> Error {
    file.failed(operation, error)
}
