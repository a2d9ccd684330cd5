//! Objects of S3, whose addresses the crate object_store signs.

use std::env;
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

/// An object in a bucket, with options and the settings of the environment.
pub(super) struct S3Object {
    url: Url,
    key: Path,
    store: AmazonS3,
}

impl S3Object {
    /// Reads a name such as `s3://bucket/key`, or an address that is to be signed as it is.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`], also for options and settings in the environment that cannot be used.
    pub fn parse(text: &str, options: &[(String, String)]) -> Result<Self, RemoteError> {
        let invalid = |reason: String| RemoteError::Invalid { reason };
        let url = Url::parse(text).map_err(|error| invalid(format!("no URL: {error}")))?;
        let (is_name, host) = (url.scheme() == "s3", url.host_str().unwrap_or_default());
        let is_plain = url.username().is_empty() && url.password().is_none();
        if host.is_empty() || !is_plain || url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("expected s3://BUCKET/KEY, or an address without a query".to_owned()));
        }
        if !is_name {
            Address::parse(text)?;
        } else if url.port().is_some() {
            return Err(invalid(
                "the bucket has a port; the option AWS_ENDPOINT names the server".to_owned(),
            ));
        }
        let key = key_of(&url)?;
        // These limit the requests for credentials, which an instance of EC2 answers at once.
        let retry =
            RetryConfig { max_retries: 2, retry_timeout: Duration::from_secs(10), ..Default::default() };
        let limit = |key| AmazonS3ConfigKey::Client(key);
        let mut builder = configured(options)
            .map_err(invalid)?
            .with_config(limit(ClientConfigKey::Timeout), "5 seconds")
            .with_config(limit(ClientConfigKey::ConnectTimeout), "2 seconds")
            .with_retry(retry);
        if !is_name {
            // The endpoint then stands for the bucket, and the key is the path of the address.
            builder = builder
                .with_endpoint(url.origin().ascii_serialization())
                .with_virtual_hosted_style_request(true);
        }
        let store = builder.with_bucket_name(host).build();
        let store = store.map_err(|error| invalid(without_queries(&error.to_string())))?;
        Ok(Self { url, key, store })
    }

    /// Returns another object of the same bucket, with the same client and its credentials.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if the text is not that of one.
    #[cfg(feature = "zarr")]
    pub fn with(&self, text: &str) -> Result<Self, RemoteError> {
        let url =
            Url::parse(text).map_err(|error| RemoteError::Invalid { reason: format!("no URL: {error}") })?;
        Ok(Self { key: key_of(&url)?, url, store: self.store.clone() })
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

/// Returns the name of an object in its bucket.
fn key_of(url: &Url) -> Result<Path, RemoteError> {
    let invalid = |reason: String| RemoteError::Invalid { reason };
    match Path::from_url_path(url.path()).map_err(|error| invalid(error.to_string()))? {
        key if key.as_ref().is_empty() => Err(invalid("the name of the object is empty".to_owned())),
        key => Ok(key),
    }
}

/// Returns a builder with the settings of the environment and these options, which come before them.
///
/// # Errors
/// The objection to an option.
fn configured(options: &[(String, String)]) -> Result<AmazonS3Builder, String> {
    let key_of = |name: &str| name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>();
    let variables = env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("AWS_"))?;
        Some((key_of(&name).ok()?, value.into_string().ok()?))
    });
    let options = options.iter().map(|(name, value)| match key_of(name) {
        Ok(key) => Ok((key, value.clone())),
        Err(_) => Err(format!("{name:?} is no option of S3")),
    });
    let options: Vec<_> = options.collect::<Result<_, _>>()?;
    // The token of the environment belongs to the key there.
    let has_key = options.iter().any(|(key, _)| *key == AmazonS3ConfigKey::AccessKeyId);
    let variables = variables.filter(|(key, _)| !has_key || *key != AmazonS3ConfigKey::Token);
    let settings = variables.chain(options);
    Ok(settings.fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value)))
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
        for wrong in [
            "s3://",
            "s3://bucket",
            "s3://bucket/",
            "s3:///key",
            "s3://me:x@bucket/key",
            "s3://bucket/key?x",
            "s3://bucket:1/key",
            "http://example.org/",
            "http://me@example.org/key",
            "ftp://example.org/key",
        ] {
            let error = S3Object::parse(wrong, &[]).unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{wrong}: {error}");
        }
    }
}
