//! The ways to the address of an object.

use super::super::address::Address;
use super::super::error::RemoteError;
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
    /// [`RemoteError::Invalid`] if this is neither an address nor such a name.
    #[cfg_attr(not(feature = "s3"), expect(unused_variables, reason = "options of S3"))]
    pub fn parse(text: &str, policy: &Policy) -> Result<Self, RemoteError> {
        #[cfg(feature = "azure")]
        if ["az://", "abfs://", "abfss://"].iter().any(|scheme| text.starts_with(scheme)) {
            return azure::parse(text, policy).map(Source::Signed);
        }
        #[cfg(feature = "gcs")]
        if text.starts_with("gs://") {
            return gcs::parse(text, policy).map(Source::Signed);
        }
        #[cfg(feature = "s3")]
        if text.starts_with("s3://") || !policy.s3.is_empty() {
            return s3::parse(text, policy).map(Source::Signed);
        }
        Address::parse(text).map(Source::Address)
    }

    /// Returns an address of the object, newly signed if need be.
    pub fn address(&self) -> Result<Address, RemoteError> {
        match self {
            Source::Address(address) => Ok(address.clone()),
            #[cfg(feature = "s3")]
            Source::Signed(object) => object.sign(),
        }
    }

    /// Returns whether [`address`](Self::address) may return another address than this one, which the server refused with
    /// this status. Servers say otherwise if a signed address has expired than if there is no such object.
    #[cfg_attr(not(feature = "s3"), expect(unused_variables, reason = "the status of signed addresses"))]
    pub fn can_replace(&self, location: &Address, status: u16) -> bool {
        match self {
            Source::Address(address) => address != location,
            #[cfg(feature = "s3")]
            Source::Signed(_) => !matches!(status, 404 | 410),
        }
    }

    /// Returns the way to another object, whose text [`beside`](Self::beside) returned, with the same client.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`].
    #[cfg(feature = "formats")]
    pub fn with(&self, text: &str) -> Result<Self, RemoteError> {
        match self {
            Source::Address(_) => Address::parse(text).map(Source::Address),
            #[cfg(feature = "s3")]
            Source::Signed(object) => object.with(text).map(Source::Signed),
        }
    }

    /// Returns the text of another object in the same folder or below it. It may contain secrets.
    #[cfg(feature = "formats")]
    pub fn beside(&self, name: &str) -> String {
        match self {
            Source::Address(address) => address.beside(name),
            #[cfg(feature = "s3")]
            Source::Signed(object) => object.beside(name),
        }
    }
}
