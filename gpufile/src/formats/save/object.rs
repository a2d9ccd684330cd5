//! Saves to objects, each of which appears as a whole: of a store by its address, or of a destination.

use std::path::{Path, PathBuf};

use cufile::{BufSlice, IoBuf};

use super::SaveOptions;
use super::outcome::InPlace;
use crate::engine::Engine;
use crate::formats::Error;
use crate::host_bytes::host_bytes;
use crate::storage::Destination;
use crate::{Cause, storage};

/// The most bytes of a GPU that are copied at a time.
const AT_ONCE: usize = 8 << 20;

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

/// The place for the objects of a save.
pub trait Objects {
    /// Writes an object, in the place of an older one.
    fn save(
        &mut self,
        name: &str,
        len_bytes: u64,
        bytes: &mut dyn Iterator<Item = BufSlice<'_>>,
    ) -> Result<(), Failed>;

    /// Removes an object, if there is one.
    fn remove(&self, name: &str) -> crate::Result<()>;

    /// Returns the path of an object for the caller of the save.
    fn path(&self, name: &str) -> PathBuf;
}

/// The objects of a destination.
pub struct OfDestination<'d> {
    pub destination: &'d dyn Destination,
    /// It copies from GPUs.
    pub engine: Engine,
}

impl<'d> OfDestination<'d> {
    /// # Errors
    /// Those of the engine of the options.
    pub fn new(
        destination: &'d dyn Destination,
        name: &str,
        options: &SaveOptions,
    ) -> Result<Self, crate::Error> {
        let engine = options.files.engine_or_global();
        let engine = engine.map_err(|cause| failed("begin to write", name, cause))?;
        Ok(Self { destination, engine })
    }
}

fn failed(operation: &'static str, name: &str, cause: Cause) -> crate::Error {
    crate::Error::File { operation, path: name.into(), cause }
}

impl Objects for OfDestination<'_> {
    fn save(
        &mut self,
        name: &str,
        len_bytes: u64,
        bytes: &mut dyn Iterator<Item = BufSlice<'_>>,
    ) -> Result<(), Failed> {
        let failed_in = |operation, error: storage::Error| failed(operation, name, Cause::of_storage(error));
        let begun = self.destination.begin(name, len_bytes);
        let mut object = begun.map_err(|error| failed_in("begin to write", error))?;
        let mut copied = Vec::new();
        for bytes in bytes {
            for start in (0..bytes.len_bytes()).step_by(AT_ONCE) {
                let part = bytes.slice(start..bytes.len_bytes().min(start + AT_ONCE));
                let part = match host_bytes(&part) {
                    Some(part) => part,
                    None => {
                        copied.resize(part.len_bytes(), 0);
                        let copy = self.engine.cuda()?.copy(&part, &mut copied[..]);
                        copy.map_err(|error| failed("copy tensors for", name, error.into()))?;
                        &copied
                    }
                };
                object.write(part).map_err(|error| failed_in("write", error))?;
            }
        }
        let finished = object.finish();
        finished.map_err(|error| Failed {
            error: Box::new(failed_in("write", error)),
            in_place: InPlace::Unknown,
        })
    }

    fn remove(&self, name: &str) -> crate::Result<()> {
        let removed = self.destination.remove(name);
        removed.map_err(|error| failed("remove", name, Cause::of_storage(error)))
    }

    fn path(&self, name: &str) -> PathBuf {
        name.into()
    }
}

#[cfg(feature = "s3")]
mod at_url {
    use super::*;
    use crate::remote::RemoteOptions;
    use crate::remote::location::{Location, without_secrets};

    /// An object of a store, and those beside it.
    pub struct AtUrl<'a> {
        /// The address of the object.
        pub url: &'a str,
        /// The same, for an object beside which others are.
        pub location: Option<&'a Location>,
        pub remote: &'a RemoteOptions,
        pub is_cancelled: &'a mut dyn FnMut() -> bool,
    }

    impl AtUrl<'_> {
        fn url(&self, name: &str) -> String {
            match self.location {
                Some(location) if location.last() != name => location.beside(name).text(),
                _ => self.url.to_owned(),
            }
        }
    }

    impl Objects for AtUrl<'_> {
        /// Ends when the caller no longer waits: with the errno `ECANCELED`.
        fn save(
            &mut self,
            name: &str,
            len_bytes: u64,
            bytes: &mut dyn Iterator<Item = BufSlice<'_>>,
        ) -> Result<(), Failed> {
            let mut object = self.remote.upload(&self.url(name), len_bytes)?;
            for bytes in bytes {
                object.write_unless(bytes, self.is_cancelled)?;
            }
            object.send_rest(self.is_cancelled)?;
            object.finish_unless(self.is_cancelled).map_err(|error| {
                // A store that has completed an object does not find its upload when it is asked again.
                let is_refused = |status| matches!(status, 300..=499) && status != 404;
                let in_place = match error.cause() {
                    Cause::Remote(cause) if !cause.status().is_some_and(is_refused) => InPlace::Unknown,
                    _ => InPlace::Old,
                };
                Failed { error: Box::new(error), in_place }
            })
        }

        fn remove(&self, name: &str) -> crate::Result<()> {
            self.remote.remove(&self.url(name))
        }

        fn path(&self, name: &str) -> PathBuf {
            without_secrets(&self.url(name)).into()
        }
    }
}
#[cfg(feature = "s3")]
pub use at_url::AtUrl;
