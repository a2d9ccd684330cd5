//! Objects of Google Cloud Storage.

use std::error::Error;
use std::io;
use std::sync::Arc;

use object_store_signer::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store_signer::path::Path;
use object_store_signer::{ClientConfigKey, ObjectStore};

use super::super::location::{Location, Name, invalid};
use super::super::policy::Policy;
use super::signed::{Client, SignedObject, without_queries};
use super::stand_in::{Signatures, plain, stand_in};
use crate::error::RemoteError;

/// The settings that name an identity. One of them is enough.
const IDENTITIES: [GoogleConfigKey; 3] = [
    GoogleConfigKey::ServiceAccount,
    GoogleConfigKey::ServiceAccountKey,
    GoogleConfigKey::ApplicationCredentials,
];

/// Returns the object with this name.
///
/// # Errors
/// [`RemoteError::Invalid`], also for unusable options and variables.
pub(super) fn object(name: Name, policy: &Policy) -> Result<SignedObject, RemoteError> {
    let store = build(builder(&name, &policy.gcs, &Client::for_credentials(policy))?)?;
    SignedObject::new(Location::Store(name), Arc::new(store), Signatures::Google)
}

/// Returns the store that takes an object, and the object's name there.
///
/// # Errors
/// As for [`object`].
pub(super) fn store(
    name: &Name,
    options: &[(String, String)],
    client: &Client,
) -> Result<(Arc<dyn ObjectStore>, Path), RemoteError> {
    let (builder, key) = (builder(name, options, client)?, name.key()?);
    if let Some(path) = plain(&key) {
        return Ok((Arc::new(build(builder)?), path));
    }
    let connector = client.standing_in(key, Signatures::Google)?;
    Ok((Arc::new(build(builder.with_http_connector(connector))?), stand_in()))
}

fn build(builder: GoogleCloudStorageBuilder) -> Result<GoogleCloudStorage, RemoteError> {
    builder.build().map_err(|error| invalid(objection(&error)))
}

fn builder(
    name: &Name,
    options: &[(String, String)],
    client: &Client,
) -> Result<GoogleCloudStorageBuilder, RemoteError> {
    let [variables, options] =
        client.settings::<GoogleConfigKey>("Google Cloud Storage", "GOOGLE_", options)?;
    // An identity of the options is used without those of the environment.
    let has_identity = options.iter().any(|(key, _)| IDENTITIES.contains(key));
    let variables = variables.into_iter().filter(|(key, _)| !has_identity || !IDENTITIES.contains(key));
    let limit = |key| GoogleConfigKey::Client(key);
    let new = GoogleCloudStorageBuilder::new().with_http_connector(client.connector.clone());
    let builder = variables
        .chain(options)
        .fold(new, |builder, (key, value)| builder.with_config(key, value))
        .with_config(limit(ClientConfigKey::Timeout), client.timeout())
        .with_config(limit(ClientConfigKey::ConnectTimeout), "2s")
        .with_retry(client.retry.clone());
    if builder.get_config_value(&GoogleConfigKey::SkipSignature).is_some_and(|skips| skips != "false") {
        return Err(invalid("GOOGLE_SKIP_SIGNATURE signs no addresses; public objects have an https URL"));
    }
    Ok(builder.with_bucket_name(&name.bucket))
}

/// Returns the reason why there is no store, without the parts of credentials that object_store quotes.
fn objection(error: &object_store_signer::Error) -> String {
    let text = error.to_string();
    let of_credentials = [
        "Unable to open service account file",
        "Unable to decode service account file",
        "Error reading pem file",
    ];
    let Some(reason) = of_credentials.into_iter().find(|reason| text.contains(reason)) else {
        return without_queries(&text);
    };
    let mut last: &dyn Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    match last.downcast_ref::<io::Error>() {
        Some(error) => format!("{reason}: {error}"),
        None => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, policy: &Policy) -> Result<SignedObject, RemoteError> {
        match Location::parse(text)? {
            Location::Store(name) => object(name, policy),
            Location::Web(url) => panic!("{url}"),
        }
    }

    #[test]
    fn names_and_options_that_cannot_be_used_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.json");
        std::fs::write(&file, "[\"secret\"]").unwrap();
        let file = file.to_str().unwrap();
        let of_pem =
            |pem: &str| format!(r#"{{"client_email": "a", "private_key_id": "1", "private_key": "{pem}"}}"#);
        let none = ("GOOGLE_SERVICE_ACCOUNT_KEY", of_pem(""));
        for (text, (name, value), reason) in [
            ("gs://", none.clone(), "gs://BUCKET/OBJECT"),
            ("gs://bucket:1/a", none.clone(), "gs://BUCKET/OBJECT"),
            ("gs://secret@bucket/a", none.clone(), "gs://BUCKET/OBJECT"),
            ("gs://me:secret@bucket/a", none.clone(), "gs://BUCKET/OBJECT"),
            ("gs://bucket/a", none, "pem"),
            ("gs://bucket/a", ("GOOGLE_SERVICE_ACCOUNT_KEY", "\"secret\"".to_owned()), "decode"),
            ("gs://bucket/a", ("google_service_account", "{\"secret\"".to_owned()), "open"),
            ("gs://bucket/a", ("GOOGLE_SERVICE_ACCOUNT", file.to_owned()), "decode"),
            ("gs://bucket/a", ("GOOGLE_APPLICATION_CREDENTIALS", file.to_owned()), "decode"),
            ("gs://bucket/a", ("service_account_key", of_pem("-----BEGIN secret\\n")), "pem"),
            ("gs://bucket/a", ("GOOGLE_SKIP_SIGNATURE", "true".to_owned()), "https"),
            ("gs://bucket/a", ("AWS_REGION", "secret".to_owned()), "no option of Google Cloud Storage"),
        ] {
            let error = parse(text, &Policy { gcs: vec![(name.to_owned(), value)], ..Policy::default() })
                .unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{text}: {error}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(reason) && !shown.contains("secret"), "{text}: {shown}");
        }
    }
}
