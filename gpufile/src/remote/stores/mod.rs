//! The stores that objects lie in: their addresses, options and credentials.
//!
//! Nothing here sends a request for bytes.

mod azure;
mod connector;
pub(super) mod destination;
mod gcs;
mod s3;
mod signature;
pub(super) mod signed;
mod stand_in;

use super::location::{Location, Service};
use super::policy::Policy;
use crate::error::RemoteError;

pub(super) use signed::SignedObject;

/// Returns an object of a store.
///
/// # Errors
/// [`RemoteError::Invalid`] if there cannot be such an object, and for options and settings that cannot be used.
pub(super) fn object(location: Location, policy: &Policy) -> Result<SignedObject, RemoteError> {
    match location {
        Location::Store(name) if name.service == Service::Azure => azure::object(name, policy),
        Location::Store(name) if name.service == Service::Google => gcs::object(name, policy),
        location => s3::object(location, policy),
    }
}
