//! Objects of S3.

use std::sync::Arc;

use object_store_signer::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store_signer::path::Path;
use object_store_signer::{ClientConfigKey, ObjectStore};

use super::super::address::Address;
use super::super::location::{Location, invalid};
use super::super::policy::Policy;
use super::signed::{Client, SignedObject, without_queries};
use super::stand_in::{Signatures, plain, stand_in};
use crate::error::RemoteError;

/// Returns the object with this name, or at a web address that is to be signed as it is.
///
/// # Errors
/// [`RemoteError::Invalid`], also for unusable options and variables.
pub(super) fn object(location: Location, policy: &Policy) -> Result<SignedObject, RemoteError> {
    let builder = builder(&location, &policy.s3, &Client::for_credentials(policy))?;
    if builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).is_some_and(|skips| skips != "false") {
        return Err(invalid("AWS_SKIP_SIGNATURE signs no addresses; public objects have an https URL"));
    }
    let store = build(builder)?;
    let signatures = Signatures::S3(store.credentials().clone());
    SignedObject::new(location, Arc::new(store), signatures)
}

/// Returns the store that takes an object, and the object's name there.
///
/// # Errors
/// As for [`object`].
pub(super) fn store(
    location: &Location,
    options: &[(String, String)],
    client: &Client,
) -> Result<(Arc<dyn ObjectStore>, Path), RemoteError> {
    let (builder, key) = (builder(location, options, client)?, location.key()?);
    let store = build(builder.clone())?;
    if let Some(path) = plain(&key) {
        return Ok((Arc::new(store), path));
    }
    let signatures = Signatures::S3(store.credentials().clone());
    let connector = client.standing_in(key, signatures)?;
    Ok((Arc::new(build(builder.with_http_connector(connector))?), stand_in()))
}

fn build(builder: AmazonS3Builder) -> Result<AmazonS3, RemoteError> {
    builder.build().map_err(|error| invalid(without_queries(&error.to_string())))
}

fn builder(
    location: &Location,
    options: &[(String, String)],
    client: &Client,
) -> Result<AmazonS3Builder, RemoteError> {
    let limit = |key| AmazonS3ConfigKey::Client(key);
    let builder = configured(options, client)?
        .with_config(limit(ClientConfigKey::Timeout), client.timeout())
        .with_config(limit(ClientConfigKey::ConnectTimeout), "2s")
        .with_retry(client.retry.clone());
    match location {
        Location::Store(name) => Ok(builder.with_bucket_name(&name.bucket)),
        Location::Web(url) => {
            if url.query().is_some() || url.fragment().is_some() {
                return Err(invalid("expected s3://BUCKET/KEY, or an address without a query"));
            }
            Address::of(url.clone()).map_err(invalid)?;
            // The endpoint then stands for the bucket, and the key is the path of the address.
            Ok(builder
                .with_endpoint(url.origin().ascii_serialization())
                .with_virtual_hosted_style_request(true)
                .with_bucket_name(url.host_str().unwrap_or_default()))
        }
    }
}

/// Returns a builder with the settings of the environment, and these options before them.
///
/// # Errors
/// The objection to an option.
fn configured(options: &[(String, String)], client: &Client) -> Result<AmazonS3Builder, RemoteError> {
    let [variables, options] = client.settings::<AmazonS3ConfigKey>("S3", "AWS_", options)?;
    // The token of the environment belongs to the key there.
    let has_key = options.iter().any(|(key, _)| *key == AmazonS3ConfigKey::AccessKeyId);
    let variables = variables.into_iter().filter(|(key, _)| !has_key || *key != AmazonS3ConfigKey::Token);
    let settings = variables.chain(options);
    let new = AmazonS3Builder::new().with_http_connector(client.connector.clone());
    Ok(settings.fold(new, |builder, (key, value)| builder.with_config(key, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, policy: &Policy) -> Result<SignedObject, RemoteError> {
        object(Location::parse(text)?, policy)
    }

    #[test]
    fn settings_that_no_request_can_have_are_refused() {
        for (name, value) in [
            ("AWS_ENDPOINT", "localhost:9000"),
            ("AWS_ENDPOINT_URL", "secret.example.org"),
            ("AWS_ENDPOINT_URL_S3", "http://me:secret@example.org"),
            ("AWS_ENDPOINT_URL_STS", ""),
            ("AWS_METADATA_ENDPOINT", "ftp://secret"),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "secret"),
            ("AWS_ACCESS_KEY_ID", "secret\n"),
            ("aws_session_token", "sec\nsecret"),
            ("AWS_REGION", "secret\r"),
        ] {
            let policy = Policy { s3: vec![(name.to_owned(), value.to_owned())], ..Policy::default() };
            let error = parse("s3://bucket/key", &policy).unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{name}: {error}");
            assert!(error.to_string().contains(name) && !error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn public_objects_have_an_address() {
        let skips = |value: &str| Policy {
            s3: vec![("AWS_SKIP_SIGNATURE".to_owned(), value.to_owned())],
            ..Policy::default()
        };
        let error = parse("s3://bucket/key", &skips("true")).unwrap_err();
        assert!(error.to_string().contains("public objects have an https URL"), "{error}");
        parse("s3://bucket/key", &skips("false")).unwrap();
    }

    #[test]
    fn panics_of_the_client_are_errors() {
        let uri = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI".to_owned(), "no address".to_owned());
        let object = parse("s3://bucket/key", &Policy { s3: vec![uri], ..Policy::default() }).unwrap();
        let error = object.sign().unwrap_err();
        assert!(matches!(error, RemoteError::Signature { .. }), "{error}");
        assert!(error.to_string().contains("check the endpoint"), "{error}");
    }

    #[test]
    fn names_of_objects_have_a_bucket_and_a_key() {
        for wrong in [
            "s3://",
            "s3://bucket",
            "s3://bucket/",
            "s3:///key",
            "s3://me:x@bucket/key",
            "http://example.org/key?x",
            "s3://bucket:1/key",
            "http://example.org/",
            "http://me@example.org/key",
            "ftp://example.org/key",
        ] {
            let error = parse(wrong, &Policy::default()).unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{wrong}: {error}");
        }
    }
}
