//! The ways to the address of an object.

use super::address::Address;
use super::error::RemoteError;
use super::policy::Policy;
#[cfg(feature = "s3")]
use super::s3::S3Object;

/// The way to the address of an object.
#[derive(Debug)]
pub(super) enum Source {
    /// The address itself.
    Address(Address),
    /// An object of S3. Its address is signed when it is needed, for a limited time.
    #[cfg(feature = "s3")]
    S3(S3Object),
}

impl Source {
    /// # Errors
    /// [`RemoteError::Invalid`] if this is neither an address nor such a name.
    #[cfg_attr(not(feature = "s3"), expect(unused_variables, reason = "options of S3"))]
    pub fn parse(text: &str, policy: &Policy) -> Result<Self, RemoteError> {
        #[cfg(feature = "s3")]
        if text.starts_with("s3://") || !policy.s3.is_empty() {
            return S3Object::parse(text, &policy.s3).map(Source::S3);
        }
        Address::parse(text).map(Source::Address)
    }

    /// Returns an address of the object, newly signed if need be.
    pub fn address(&self) -> Result<Address, RemoteError> {
        match self {
            Source::Address(address) => Ok(address.clone()),
            #[cfg(feature = "s3")]
            Source::S3(object) => object.sign(),
        }
    }

    /// Returns whether [`address`](Self::address) may return another address than this one.
    pub fn can_replace(&self, location: &Address) -> bool {
        match self {
            Source::Address(address) => address != location,
            #[cfg(feature = "s3")]
            Source::S3(_) => true,
        }
    }

    /// Returns the way to another object, whose text [`beside`](Self::beside) returned, with the same client.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`].
    #[cfg(feature = "zarr")]
    pub fn with(&self, text: &str) -> Result<Self, RemoteError> {
        match self {
            Source::Address(_) => Address::parse(text).map(Source::Address),
            #[cfg(feature = "s3")]
            Source::S3(object) => object.with(text).map(Source::S3),
        }
    }

    /// Returns the text of another object in the same folder or below it. It may contain secrets.
    #[cfg(feature = "formats")]
    pub fn beside(&self, name: &str) -> String {
        match self {
            Source::Address(address) => address.beside(name),
            #[cfg(feature = "s3")]
            Source::S3(object) => object.beside(name),
        }
    }
}
