//! Objects of Azure Blob Storage.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use object_store_signer::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store_signer::path::Path;
use object_store_signer::{ClientConfigKey, ObjectStore};

use super::super::location::{Location, Name, invalid};
use super::super::policy::Policy;
use super::signed::{Client, SignedObject, without_queries};
use super::stand_in::{AccessKey, Signatures, plain, stand_in};
use crate::error::RemoteError;

/// Returns the object with this name.
///
/// # Errors
/// [`RemoteError::Invalid`], also for unusable options and variables.
pub(super) fn object(name: Name, policy: &Policy) -> Result<SignedObject, RemoteError> {
    let builder = configured(&name, &policy.azure, &Client::for_credentials(policy))?;
    let has = |key| builder.get_config_value(&key).is_some();
    let signs = [AzureConfigKey::AccessKey, AzureConfigKey::Token, AzureConfigKey::ClientSecret];
    if has(AzureConfigKey::SasKey) && !signs.into_iter().any(has) {
        return Err(invalid(
            "a token of shared access cannot sign addresses; append it to an https URL, as the query",
        ));
    }
    let access_key = access_key(&name, &builder);
    let store = build(builder)?;
    let signatures = Signatures::Azure { credentials: store.credentials().clone(), access_key };
    SignedObject::new(Location::Store(name), Arc::new(store), signatures)
}

/// Returns the access key of the account, if it is what signs.
fn access_key(name: &Name, builder: &MicrosoftAzureBuilder) -> Option<AccessKey> {
    let setting = |key| builder.get_config_value(&key);
    let key = setting(AzureConfigKey::AccessKey).and_then(|key| BASE64_STANDARD.decode(key).ok())?;
    let of_name = name.bucket.split_once('@').and_then(|(_, server)| server.split('.').next());
    let account = of_name.map(str::to_owned).or_else(|| setting(AzureConfigKey::AccountName))?;
    Some(AccessKey { account, key })
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
    let (builder, key) = (configured(name, options, client)?, name.key()?);
    let store = build(builder.clone())?;
    if let Some(path) = plain(&key) {
        return Ok((Arc::new(store), path));
    }
    let signatures = Signatures::Azure { credentials: store.credentials().clone(), access_key: None };
    let connector = client.standing_in(key, signatures)?;
    Ok((Arc::new(build(builder.with_http_connector(connector))?), stand_in()))
}

fn configured(
    name: &Name,
    options: &[(String, String)],
    client: &Client,
) -> Result<MicrosoftAzureBuilder, RemoteError> {
    if name.key()?.as_str().contains('\\') {
        return Err(invalid("Azure takes a backslash in a name for a slash; write a slash"));
    }
    let [variables, options] = client.settings::<AzureConfigKey>("Azure", "AZURE_", options)?;
    let limit = |key| AzureConfigKey::Client(key);
    let new = MicrosoftAzureBuilder::new().with_http_connector(client.connector.clone());
    Ok(variables
        .into_iter()
        .chain(options)
        .fold(new, |builder, (key, value)| builder.with_config(key, value))
        .with_config(limit(ClientConfigKey::Timeout), client.timeout())
        .with_config(limit(ClientConfigKey::ConnectTimeout), "2s")
        .with_retry(client.retry.clone())
        // It finds the container, and perhaps the account.
        .with_url(name.with_key("").to_string()))
}

fn build(builder: MicrosoftAzureBuilder) -> Result<MicrosoftAzure, RemoteError> {
    builder.build().map_err(|error| invalid(without_queries(&error.to_string())))
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

    fn options(more: &[(&str, &str)]) -> Vec<(String, String)> {
        let name = ("AZURE_STORAGE_ACCOUNT_NAME", "account");
        [&[name], more].concat().iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn addresses_are_those_of_the_account() {
        let azure = options(&[("azure_storage_account_key", "a2V5")]);
        let policy = Policy { azure, ..Policy::default() };
        for (text, address) in [
            ("az://box/a/b", "https://account.blob.core.windows.net/box/a/b"),
            ("abfs://box/a", "https://account.blob.core.windows.net/box/a"),
            ("abfss://box@other.dfs.core.windows.net/a", "https://other.blob.core.windows.net/box/a"),
        ] {
            let object = parse(text, &policy).unwrap();
            assert_eq!(object.sign().unwrap().to_string(), address);
        }
    }

    #[test]
    fn names_and_options_that_cannot_be_used_are_refused() {
        let key = [("azure_storage_account_key", "a2V5")];
        for (wrong, options) in [
            ("az://", options(&key)),
            ("az://box", options(&key)),
            ("az://box/a\\b", options(&key)),
            ("az://box:1/a", options(&key)),
            ("az://me:secret@box/a", options(&key)),
            ("abfs://box@secret.example.org/a", options(&key)),
            ("az://box/a", options(&[("azure_storage_account_key", "?secret")])),
            ("az://box/a", options(&[("AZURE_STORAGE_SAS_TOKEN", "sig=secret")])),
            ("az://box/a", options(&[("secret", "x")])),
            ("az://box/a", options(&[key[0], ("AZURE_STORAGE_ENDPOINT", "secret:1")])),
            ("az://box/a", options(&[key[0], ("AZURE_AUTHORITY_HOST", "secret")])),
            ("az://box/a", options(&[key[0], ("AZURE_STORAGE_SAS_TOKEN", "secret\n")])),
        ] {
            let error = parse(wrong, &Policy { azure: options, ..Policy::default() }).unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{wrong}: {error}");
        }
    }
}
