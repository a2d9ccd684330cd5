//! Objects of S3, whose addresses the crate object_store signs.

use std::fmt;
use std::thread;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{ClientConfigKey, RetryConfig};
use url::Url;

use super::address::Address;
use super::error::RemoteError;

/// The time for which a signed address is valid. A newer one is signed when it has expired.
const VALID: Duration = Duration::from_secs(60 * 60);

/// An object in a bucket, with the settings of the environment.
pub(super) struct S3Object {
    url: Url,
    key: Path,
    store: AmazonS3,
}

impl S3Object {
    /// Reads a name such as `s3://bucket/key`.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`], also for settings in the environment that cannot be used.
    pub fn parse(text: &str) -> Result<Self, RemoteError> {
        let invalid = |reason: String| RemoteError::Invalid { reason };
        let url = Url::parse(text).map_err(|error| invalid(format!("no URL: {error}")))?;
        let bucket = url.host_str().unwrap_or_default();
        let is_plain = url.username().is_empty() && url.password().is_none() && url.port().is_none();
        if bucket.is_empty() || !is_plain || url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("the name of an object of S3 is s3://BUCKET/KEY".to_owned()));
        }
        let key = Path::from_url_path(url.path()).map_err(|error| invalid(error.to_string()))?;
        if key.as_ref().is_empty() {
            return Err(invalid("the name of the object is empty".to_owned()));
        }
        // These limit the requests for credentials, which an instance of EC2 answers at once.
        let retry =
            RetryConfig { max_retries: 2, retry_timeout: Duration::from_secs(10), ..Default::default() };
        let limit = |key| AmazonS3ConfigKey::Client(key);
        let store = AmazonS3Builder::from_env()
            .with_config(limit(ClientConfigKey::Timeout), "5 seconds")
            .with_config(limit(ClientConfigKey::ConnectTimeout), "2 seconds")
            .with_retry(retry)
            .with_bucket_name(bucket)
            .build();
        let store = store.map_err(|error| invalid(without_queries(&error.to_string())))?;
        Ok(Self { url, key, store })
    }

    /// Returns an address that is valid for an hour.
    ///
    /// # Errors
    /// [`RemoteError::Signature`] if there are no credentials.
    pub fn sign(&self) -> Result<Address, RemoteError> {
        let failed = |reason: String| RemoteError::Signature { reason: without_queries(&reason) };
        let sign = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            let method = "GET".parse().expect("a method of HTTP");
            runtime
                .block_on(self.store.signed_url(method, &self.key, VALID))
                .map_err(|error| error.to_string())
        };
        // The calling thread may belong to a runtime, within which no other one runs.
        let signed = thread::scope(|scope| {
            let thread = thread::Builder::new().name("gpufile-sign".to_owned()).spawn_scoped(scope, sign);
            thread.map_err(|error| error.to_string())?.join().expect("signing does not panic")
        });
        Address::parse(signed.map_err(failed)?.as_str())
    }

    /// Returns the name of another object in the same folder or below it.
    #[cfg(feature = "formats")]
    pub fn beside(&self, name: &str) -> String {
        let mut url = self.url.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop().extend(name.split('/'));
        }
        url.into()
    }
}

impl fmt::Debug for S3Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.as_str().fmt(f)
    }
}

/// Returns a message without the queries of the addresses in it, which may have tokens.
fn without_queries(message: &str) -> String {
    let words: Vec<_> = message.split(' ').map(|word| word.split('?').next().unwrap_or_default()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_no_queries() {
        let message = "error for url (https://sts.example.org/?Token=secret): refused";
        assert_eq!(without_queries(message), "error for url (https://sts.example.org/ refused");
    }

    #[test]
    fn names_of_objects_have_a_bucket_and_a_key() {
        for wrong in
            ["s3://", "s3://bucket", "s3://bucket/", "s3:///key", "s3://me:x@bucket/key", "s3://bucket/key?x"]
        {
            let error = S3Object::parse(wrong).unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{wrong}: {error}");
        }
    }
}
