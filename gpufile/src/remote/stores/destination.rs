//! The store and the name of an object that is written.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use object_store_signer::ObjectStore;
use object_store_signer::path::Path;

use super::super::location::{Location, Service, invalid, meant, stores, without_secrets};
use super::super::policy::Policy;
use super::super::proxy::Proxies;
use super::azure;
use super::gcs;
use super::s3;
use super::signed::Client;
use super::stand_in::stand_in;
use crate::error::RemoteError;

pub(crate) struct Destination {
    pub store: Arc<dyn ObjectStore>,
    /// The name for the store, perhaps a stand-in.
    pub key: Path,
    /// The address, without what may be secret in it.
    pub path: PathBuf,
    /// The store knows the key's folder by its name.
    pub is_listed: bool,
}

impl Destination {
    /// Finds the store of the object that a text such as `s3://bucket/key` names.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`], also for a server that is no store, and for options of reads.
    pub fn parse(text: &str, policy: &Policy) -> Result<Self, RemoteError> {
        if !policy.headers.is_empty() || !matches!(policy.proxies, Proxies::OfEnvironment) {
            return Err(invalid("an object is written without headers and proxies of the options"));
        }
        let client = Client::of(policy);
        let location = Location::parse(text)?;
        let (store, key) = match &location {
            Location::Store(name) if name.service == Service::Azure => {
                azure::store(name, &policy.azure, &client)?
            }
            Location::Store(name) if name.service == Service::Google => {
                gcs::store(name, &policy.gcs, &client)?
            }
            Location::Store(name) if name.service == Service::S3 => {
                s3::store(&location, &policy.s3, &client)?
            }
            Location::Web(_) if !policy.s3.is_empty() => s3::store(&location, &policy.s3, &client)?,
            _ => {
                let stores = stores().join(", ");
                let meant = text.split_once(':').map_or("", |(scheme, _)| meant(scheme));
                return Err(invalid(format!("objects are written only to addresses with {stores}{meant}")));
            }
        };
        let is_listed = matches!(location, Location::Store(_)) && key != stand_in();
        Ok(Self { store, key, path: PathBuf::from(without_secrets(text)), is_listed })
    }
}

/// Shows no settings of the store, which have credentials.
impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stores_take_objects() {
        let policy = Policy::default();
        for wrong in ["http://example.org/a", "https://example.org/a?secret", "ftp://a/b", "a", "s3://bucket"]
        {
            let error = Destination::parse(wrong, &policy).unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{wrong}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let error = Destination::parse("s3n://bucket/a", &policy).unwrap_err();
        assert!(error.to_string().ends_with("; write s3://BUCKET/KEY"), "{error}");
        let found = Destination::parse("s3://bucket/a/b", &policy).unwrap();
        assert_eq!((found.key.as_ref(), found.path.to_str()), ("a/b", Some("s3://bucket/a/b")));
        let headers = vec![("Authorization".to_owned(), "secret".to_owned())];
        let error = Destination::parse("s3://bucket/a", &Policy { headers, ..policy }).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
