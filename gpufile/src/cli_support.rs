//! The items that the program `gpufile`, the Python package and `cargo xtask` use beyond the public API. Nothing here is promised to stay.

use std::io;

#[cfg(feature = "formats")]
pub use crate::formats::regular::open_unblocked;
#[cfg(feature = "formats")]
pub use crate::formats::save::save_copy;
#[cfg(feature = "formats")]
pub use crate::formats::visible::visible;
pub use crate::local_path::{check as check_path, is_address};
#[cfg(all(feature = "formats", feature = "remote"))]
pub use crate::remote::folder::RemoteFolder;
#[cfg(all(feature = "azure", feature = "gcs"))]
use crate::remote::location::Service;
#[cfg(feature = "remote")]
pub use crate::remote::location::{last_in, without_secrets};
#[cfg(feature = "remote")]
pub use crate::remote::probe::Probe;
use crate::route::Way;
pub use crate::settings::{PAGE_HEAD, kvikio_settings, page_rows, variable_names};
#[cfg(feature = "formats")]
pub use crate::trusted::{PrivateFolder, at::lacks_call, kind as kind_of_file};
pub use crate::with_settings;
use crate::{Error, File, RouteKind};

/// Returns the word for a kind of route in JSON and in Python.
pub fn word_of_route(kind: RouteKind) -> &'static str {
    match kind {
        RouteKind::Gds => "gds",
        RouteKind::P2pDma => "p2pdma",
        RouteKind::CufileCompat => "cufile-compat",
        RouteKind::Posix => "posix",
        RouteKind::Unavailable => "unavailable",
    }
}

/// Returns whether the bytes of a file do not come from its descriptor as they are, but from a server or from packed tensors.
pub fn is_remote(file: &File) -> bool {
    file.storage().is_some()
}

/// Makes a new connection to the server of an object, and measures its steps.
///
/// # Errors
/// [`Error::File`] with [`Cause::Remote`](crate::Cause::Remote).
#[cfg(feature = "remote")]
pub fn probe(file: &crate::remote::RemoteFile) -> crate::Result<Probe> {
    file.probe()
}

/// Writes the next bytes of an object, until the caller no longer waits.
///
/// # Errors
/// Those of [`Upload::write`](crate::remote::Upload::write), and the errno `ECANCELED`.
#[cfg(feature = "s3")]
pub fn write_unless(
    upload: &mut crate::remote::Upload,
    bytes: crate::BufSlice<'_>,
    is_cancelled: &mut dyn FnMut() -> bool,
) -> crate::Result<()> {
    upload.write_unless(bytes, is_cancelled)
}

/// Lets an object appear, unless the caller no longer waits before.
///
/// # Errors
/// Those of [`Upload::finish`](crate::remote::Upload::finish), and the errno `ECANCELED`.
#[cfg(feature = "s3")]
pub fn finish_unless(
    upload: crate::remote::Upload,
    is_cancelled: &mut dyn FnMut() -> bool,
) -> crate::Result<()> {
    upload.finish_unless(is_cancelled)
}

/// Sets an option of the store that an address names: of S3 unless it is another.
#[cfg(all(feature = "azure", feature = "gcs"))]
pub fn store_option(
    options: crate::remote::RemoteOptions,
    address: &str,
    name: impl Into<String>,
    value: impl Into<String>,
) -> crate::remote::RemoteOptions {
    match Service::of(address) {
        Some(Service::Azure) => options.azure_option(name, value),
        Some(Service::Google) => options.gcs_option(name, value),
        Some(Service::S3) | None => options.s3_option(name, value),
    }
}

/// Counts a read to host memory that the caller has carried out itself.
pub fn count_host_read(file: &File, bytes: usize) {
    file.open_file().count_read(Way::Host, bytes, &Ok(()));
}

/// Returns the error of an operation on a file that is not a transfer.
pub fn failed(file: &File, operation: &'static str, error: io::Error) -> Error {
    file.failed(operation, error)
}
