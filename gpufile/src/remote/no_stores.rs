//! The substitute for the stores in a build that signs no addresses.

use super::address::Address;
use super::location::{Location, invalid, unknown};
use super::policy::Policy;
use crate::error::RemoteError;

#[derive(Debug)]
pub(crate) enum SignedObject {}

impl SignedObject {
    pub fn decoded(&self) -> Option<Self> {
        match *self {}
    }

    pub fn with(&self, _: Location) -> Result<Self, RemoteError> {
        match *self {}
    }

    pub fn sign(&self) -> Result<Address, RemoteError> {
        match *self {}
    }

    pub fn location(&self) -> &Location {
        match *self {}
    }
}

/// Refuses an object of a store.
///
/// # Errors
/// [`RemoteError::Invalid`].
pub(super) fn object(location: Location, _: &Policy) -> Result<SignedObject, RemoteError> {
    Err(invalid(match location {
        Location::Store(name) => unknown(name.scheme),
        Location::Web(_) => "addresses are signed only with the feature s3".to_owned(),
    }))
}
