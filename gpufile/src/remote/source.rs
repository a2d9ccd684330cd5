//! The ways to the address of an object.

use super::address::Address;
use super::location::{Location, invalid, unknown};
use super::policy::Policy;
use super::stores::{self, SignedObject};
use crate::error::RemoteError;

#[derive(Debug)]
pub(crate) enum Source {
    Address(Address),
    /// An object of a store. Its address is signed when it is needed, for a limited time.
    Signed(SignedObject),
}

impl Source {
    /// # Errors
    /// [`RemoteError::Invalid`] if there cannot be such an object.
    pub fn new(location: Location, policy: &Policy) -> Result<Self, RemoteError> {
        match location {
            Location::Web(url) if policy.s3.is_empty() => {
                Address::of(url).map(Source::Address).map_err(invalid)
            }
            location => stores::object(location, policy).map(Source::Signed),
        }
    }

    /// Returns an address of the object, newly signed if need be.
    pub fn address(&self) -> Result<Address, RemoteError> {
        match self {
            Source::Address(address) => Ok(address.clone()),
            Source::Signed(object) => object.sign(),
        }
    }

    /// Returns the way to the object whose key has each `%XX` decoded, if it differs.
    pub fn decoded(&self) -> Option<Self> {
        match self {
            Source::Address(_) => None,
            Source::Signed(object) => object.decoded().map(Source::Signed),
        }
    }

    /// Returns whether [`address`](Self::address) may replace this one, which the server refused with this status: that
    /// of an expired address.
    pub fn can_replace(&self, location: &Address, status: u16) -> bool {
        match self {
            Source::Address(address) => address != location,
            Source::Signed(_) => !matches!(status, 404 | 410),
        }
    }

    /// Returns the way to another object of the same bucket or server, with the same client.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`].
    pub fn with(&self, location: Location) -> Result<Self, RemoteError> {
        match (self, location) {
            (Source::Signed(object), location) => object.with(location).map(Source::Signed),
            (Source::Address(_), Location::Web(url)) => {
                Address::of(url).map(Source::Address).map_err(invalid)
            }
            (Source::Address(_), Location::Store(name)) => Err(invalid(unknown(name.scheme))),
        }
    }

    pub fn location(&self) -> Location {
        match self {
            Source::Address(address) => address.location(),
            Source::Signed(object) => object.location().clone(),
        }
    }
}
