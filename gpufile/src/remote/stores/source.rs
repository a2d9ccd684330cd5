//! The ways to the address of an object.

use super::super::address::Address;
use super::super::error::RemoteError;
#[cfg(feature = "s3")]
use super::super::location::Service;
use super::super::location::{Location, invalid, unknown};
use super::super::policy::Policy;
#[cfg(feature = "azure")]
use super::azure;
#[cfg(feature = "gcs")]
use super::gcs;
#[cfg(feature = "s3")]
use super::{s3, signed::SignedObject};

/// The way to the address of an object.
#[derive(Debug)]
pub(crate) enum Source {
    /// The address itself.
    Address(Address),
    /// An object of a store. Its address is signed when it is needed, for a limited time.
    #[cfg(feature = "s3")]
    Signed(SignedObject),
}

impl Source {
    /// # Errors
    /// [`RemoteError::Invalid`] if there cannot be such an object.
    #[cfg_attr(not(feature = "s3"), expect(unused_variables, reason = "options of S3"))]
    pub fn new(location: Location, policy: &Policy) -> Result<Self, RemoteError> {
        match location {
            #[cfg(feature = "azure")]
            Location::Store(name) if name.service == Service::Azure => {
                azure::object(name, policy).map(Source::Signed)
            }
            #[cfg(feature = "gcs")]
            Location::Store(name) if name.service == Service::Google => {
                gcs::object(name, policy).map(Source::Signed)
            }
            #[cfg(feature = "s3")]
            Location::Store(ref name) if name.service == Service::S3 => {
                s3::object(location, policy).map(Source::Signed)
            }
            #[cfg(feature = "s3")]
            Location::Web(_) if !policy.s3.is_empty() => s3::object(location, policy).map(Source::Signed),
            Location::Store(name) => Err(invalid(unknown(name.scheme))),
            Location::Web(url) => Address::of(url).map(Source::Address).map_err(invalid),
        }
    }

    /// Returns an address of the object, newly signed if need be.
    pub fn address(&self) -> Result<Address, RemoteError> {
        match self {
            Source::Address(address) => Ok(address.clone()),
            #[cfg(feature = "s3")]
            Source::Signed(object) => object.sign(),
        }
    }

    /// Returns the way to the object whose key has each `%XX` decoded; `None` if the key has none of these.
    pub fn decoded(&self) -> Option<Self> {
        match self {
            Source::Address(_) => None,
            #[cfg(feature = "s3")]
            Source::Signed(object) => object.decoded().map(Source::Signed),
        }
    }

    /// Returns whether [`address`](Self::address) may return another address than this one, which the server refused with
    /// this status. The status tells an expired address from a missing object.
    #[cfg_attr(not(feature = "s3"), expect(unused_variables, reason = "the status of signed addresses"))]
    pub fn can_replace(&self, location: &Address, status: u16) -> bool {
        match self {
            Source::Address(address) => address != location,
            #[cfg(feature = "s3")]
            Source::Signed(_) => !matches!(status, 404 | 410),
        }
    }

    /// Returns the way to another object of the same bucket or server, with the same client.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`].
    #[cfg(feature = "formats")]
    pub fn with(&self, location: Location) -> Result<Self, RemoteError> {
        match (self, location) {
            #[cfg(feature = "s3")]
            (Source::Signed(object), location) => object.with(location).map(Source::Signed),
            (Source::Address(_), Location::Web(url)) => {
                Address::of(url).map(Source::Address).map_err(invalid)
            }
            (Source::Address(_), Location::Store(name)) => Err(invalid(unknown(name.scheme))),
        }
    }

    #[cfg(feature = "formats")]
    pub fn location(&self) -> Location {
        match self {
            Source::Address(address) => address.location(),
            #[cfg(feature = "s3")]
            Source::Signed(object) => object.location().clone(),
        }
    }
}
