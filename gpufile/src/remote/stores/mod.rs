//! The stores that objects lie in: their addresses, options and credentials.
//!
//! Nothing here sends a request for bytes.

#[cfg(feature = "azure")]
mod azure;
#[cfg(feature = "s3")]
mod connector;
#[cfg(feature = "s3")]
pub(super) mod destination;
#[cfg(feature = "gcs")]
mod gcs;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
mod signature;
#[cfg(feature = "s3")]
pub(super) mod signed;
pub(super) mod source;
#[cfg(feature = "s3")]
mod stand_in;
