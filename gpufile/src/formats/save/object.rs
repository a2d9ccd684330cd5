//! The save of an object: its parts are uploaded, and appear as a whole.

use cufile::BufSlice;

use crate::remote::RemoteOptions;

/// Uploads an object with these bytes, until the caller no longer waits.
///
/// # Errors
/// Those of an [`Upload`](crate::remote::Upload), and the errno `ECANCELED`. An older object then stays.
pub fn save_object<'b>(
    url: &str,
    len_bytes: u64,
    bytes: impl IntoIterator<Item = BufSlice<'b>>,
    remote: &RemoteOptions,
    is_cancelled: &mut dyn FnMut() -> bool,
) -> crate::Result<()> {
    let mut object = remote.upload(url, len_bytes)?;
    for bytes in bytes {
        object.write_unless(bytes, is_cancelled)?;
    }
    object.finish_unless(is_cancelled)
}
