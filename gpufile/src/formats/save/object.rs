//! The save of an object: its parts are uploaded, and appear as a whole.

use std::path::Path;

use cufile::BufSlice;

use super::outcome::InPlace;
use crate::Cause;
use crate::formats::Error;
use crate::remote::RemoteOptions;

pub struct Failed {
    pub error: Box<crate::Error>,
    pub in_place: InPlace,
}

impl Failed {
    pub fn of(self, path: &Path) -> Error {
        let Self { error, in_place } = self;
        Error::Save { path: path.to_owned(), error, in_place, left: Vec::new() }
    }
}

/// Converts the error of a step before the last one.
impl From<crate::Error> for Failed {
    fn from(error: crate::Error) -> Self {
        Self { error: Box::new(error), in_place: InPlace::Old }
    }
}

/// Uploads an object with these bytes, until the caller no longer waits.
///
/// # Errors
/// Those of an [`Upload`](crate::remote::Upload), and the errno `ECANCELED`.
pub fn save_object<'b>(
    url: &str,
    len_bytes: u64,
    bytes: impl IntoIterator<Item = BufSlice<'b>>,
    remote: &RemoteOptions,
    is_cancelled: &mut dyn FnMut() -> bool,
) -> Result<(), Failed> {
    let mut object = remote.upload(url, len_bytes)?;
    for bytes in bytes {
        object.write_unless(bytes, is_cancelled)?;
    }
    object.send_rest(is_cancelled)?;
    object.finish_unless(is_cancelled).map_err(|error| {
        // A store that has completed an object does not find its upload when it is asked again.
        let is_refused = |status| matches!(status, 300..=499) && status != 404;
        let in_place = match error.cause() {
            Cause::Remote(cause) if !cause.status().is_some_and(is_refused) => InPlace::Unknown,
            _ => InPlace::Old,
        };
        Failed { error: Box::new(error), in_place }
    })
}
