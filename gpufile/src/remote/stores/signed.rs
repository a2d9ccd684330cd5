//! Objects of a store, whose addresses the crate object_store signs.

use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cufile::fork;
use object_store_signer::signer::Signer;
use object_store_signer::{BackoffConfig, RetryConfig};
use url::Url;

use super::super::address::Address;
use super::super::connection::tls::Trust;
use super::super::environment::Environment;
use super::super::location::{Key, Location, invalid};
use super::super::policy::Policy;
use super::connector::Connector;
use super::stand_in::{Signatures, StandIn, in_address, stand_in};
use crate::error::RemoteError;

/// The time for which a signed address is valid.
const VALID: Duration = Duration::from_secs(60 * 60);

/// The limits of the requests that object_store sends.
pub(crate) struct Client {
    timeout: Duration,
    pub retry: RetryConfig,
    pub connector: Connector,
    environment: Environment,
}

impl Client {
    /// Returns the limits of requests for credentials, which an instance of a cloud answers at once.
    pub fn for_credentials(policy: &Policy) -> Self {
        let retry = retry(Duration::from_millis(100), 2, Duration::from_secs(10));
        Self {
            timeout: Duration::from_secs(5),
            retry,
            connector: Connector { trust: Trust::of_machine(), stand_in: None },
            environment: policy.environment.clone(),
        }
    }

    pub fn of(policy: &Policy) -> Self {
        let trust = policy.trust.clone().unwrap_or_else(Trust::of_machine);
        let retry = retry(policy.wait, policy.tries as usize - 1, policy.timeout * policy.tries);
        let connector = Connector { trust, stand_in: None };
        Self { timeout: policy.timeout, retry, connector, environment: policy.environment.clone() }
    }

    /// Returns a connector whose requests for the stand-in are for this key.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if no address has the key.
    pub fn standing_in(&self, key: Key, signatures: Signatures) -> Result<Connector, RemoteError> {
        in_address(&key).map_err(invalid)?;
        Ok(self.connector.standing_in(StandIn { key, signatures }))
    }

    pub fn timeout(&self) -> String {
        format!("{}ms", self.timeout.as_millis())
    }

    /// Returns the variables with this prefix, and these options.
    ///
    /// # Errors
    /// The objection to an option of this service, or to a value.
    pub fn settings<K: FromStr>(
        &self,
        service: &str,
        prefix: &str,
        options: &[(String, String)],
    ) -> Result<[Vec<(K, String)>; 2], RemoteError> {
        let key_of = |name: &str| name.to_ascii_lowercase().parse::<K>();
        let variables = self.environment.starting_with(prefix);
        let variables = variables.filter_map(|(name, value)| Some((key_of(name).ok()?, name, value)));
        let variables = variables.map(|(key, name, value)| Ok((key, checked(name, value)?)));
        let options = options.iter().map(|(name, value)| match key_of(name) {
            Ok(key) => Ok((key, checked(name, value)?)),
            Err(_) => Err(invalid(format!("{name:?} is no option of {service}"))),
        });
        Ok([variables.collect::<Result<_, _>>()?, options.collect::<Result<_, _>>()?])
    }
}

/// Returns the value of a setting.
///
/// # Errors
/// [`RemoteError::Invalid`] if no request can have it. object_store panics on some of these values, and shows others.
fn checked(name: &str, value: &str) -> Result<String, RemoteError> {
    let lower = name.to_ascii_lowercase();
    let is_one_of = |kinds: &[&str]| kinds.iter().any(|kind| lower.contains(kind));
    // Texts in JSON and PEM have several lines.
    if !is_one_of(&["service_account", "certificate"]) && value.contains(char::is_control) {
        return Err(invalid(format!("the value of {name} has a line break or another control character")));
    }
    let is_address = is_one_of(&["endpoint", "full_uri", "authority_host", "base_url"]);
    if is_address && !lower.contains("use_fabric_endpoint") && Address::parse(value).is_err() {
        let expected = "expected an address such as http://HOST:PORT, without user and password";
        return Err(invalid(format!("the value of {name} is no address of a server: {expected}")));
    }
    Ok(value.to_owned())
}

fn retry(wait: Duration, max_retries: usize, retry_timeout: Duration) -> RetryConfig {
    // object_store chooses a wait from the first one on, and panics if there is none.
    let init_backoff = wait.max(Duration::from_millis(1));
    let max_backoff = init_backoff.max(Duration::from_secs(15));
    let backoff = BackoffConfig { init_backoff, max_backoff, base: 2.0 };
    RetryConfig { backoff, max_retries, retry_timeout }
}

/// An object, and the client that signs its address.
pub(crate) struct SignedObject {
    location: Location,
    key: Key,
    store: Arc<dyn Signer>,
    signatures: Signatures,
}

impl SignedObject {
    /// # Errors
    /// [`RemoteError::Invalid`] if no address has the key.
    pub fn new(
        location: Location,
        store: Arc<dyn Signer>,
        signatures: Signatures,
    ) -> Result<Self, RemoteError> {
        let key = location.key()?;
        in_address(&key).map_err(invalid)?;
        Ok(Self { key, location, store, signatures })
    }

    /// As [`Key::decoded`], for the object.
    pub fn decoded(&self) -> Option<Self> {
        let Location::Store(name) = &self.location else { return None };
        let key = name.key().ok()?.decoded()?;
        self.with(Location::Store(name.with_key(key.as_str()))).ok()
    }

    /// Returns another object of the same bucket or container, with the same client and its credentials.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if there cannot be one.
    pub fn with(&self, location: Location) -> Result<Self, RemoteError> {
        Self::new(location, self.store.clone(), self.signatures.clone())
    }

    /// Returns an address that is valid for an hour.
    ///
    /// # Errors
    /// [`RemoteError::Signature`] if there are no credentials, or the client cannot sign the name.
    pub fn sign(&self) -> Result<Address, RemoteError> {
        let failed = |reason: String| {
            let reason = without_queries(&reason);
            RemoteError::Signature { reason: missing(&reason).unwrap_or(reason) }
        };
        let sign = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            let signed = runtime.block_on(self.signed());
            // A look-up of a name may go on, which nobody waits for.
            runtime.shutdown_background();
            signed
        };
        // The calling thread may belong to a runtime, within which no other one runs.
        let signed = fork::scope(|scope| {
            let thread = scope.spawn("gpufile-sign", sign);
            thread.map_err(|error| error.to_string())?.join().unwrap_or_else(|panic| Err(panicked(&*panic)))
        });
        Address::of(signed.map_err(failed)?).map_err(invalid)
    }

    async fn signed(&self) -> Result<Url, String> {
        let signable = self.signatures.signable(&self.key);
        let path = signable.clone().unwrap_or_else(stand_in);
        let method = "GET".parse().expect("a method of HTTP");
        let signed = self.store.signed_url(method, &path, VALID).await.map_err(|error| error.to_string())?;
        match signable {
            Some(_) => self.signatures.check(signed),
            None => {
                let (key, signatures) = (self.key.clone(), self.signatures.clone());
                StandIn { key, signatures }.address(signed).await
            }
        }
    }

    pub fn location(&self) -> &Location {
        &self.location
    }
}

impl fmt::Debug for SignedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location.text().fmt(f)
    }
}

/// Returns the reason for a panic of object_store, which unusual settings and answers cause.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
    let text = text.lines().next().unwrap_or("no message");
    format!("check the endpoint, the region and the credentials; object_store panicked: {text}")
}

/// Returns the missing credentials, if a failure came from asking the machine for some. object_store does so last, and
/// names only the machine's service.
pub(crate) fn missing(reason: &str) -> Option<String> {
    const AMAZON: &str = "AWS_ACCESS_KEY_ID is not set, and the files of ~/.aws, with the profiles of AWS_PROFILE, are not read; \
        run `eval $(aws configure export-credentials --format env)`, or pass AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY as options";
    const MICROSOFT: &str = "neither AZURE_STORAGE_ACCOUNT_KEY nor a service principal (AZURE_CLIENT_ID, AZURE_CLIENT_SECRET, \
        AZURE_TENANT_ID) is set, and the user of `az login` is not read; set one of them, or pass options";
    const GOOGLE: &str = "neither GOOGLE_SERVICE_ACCOUNT, GOOGLE_SERVICE_ACCOUNT_KEY nor GOOGLE_APPLICATION_CREDENTIALS is set, \
        and ~/.config/gcloud has no file of `gcloud auth application-default login`; set one of them, or pass options";
    let paths = [
        ("/latest/api/token", AMAZON),
        ("/latest/meta-data/", AMAZON),
        ("/metadata/identity/", MICROSOFT),
        ("/computeMetadata/", GOOGLE),
    ];
    let (_, places) = paths.into_iter().find(|(path, _)| reason.contains(path))?;
    Some(format!("there are no credentials: {places}; the machine gives none either: {reason}"))
}

/// Returns a message without the queries of the addresses in it, which may have tokens.
pub(crate) fn without_queries(message: &str) -> String {
    let words: Vec<_> = message.split(' ').map(|word| word.split('?').next().unwrap_or_default()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_neither_none_nor_beyond_the_longest() {
        for seconds in [0, 1, 60] {
            let backoff = retry(Duration::from_secs(seconds), 4, Duration::ZERO).backoff;
            assert!(!backoff.init_backoff.is_zero() && backoff.max_backoff >= backoff.init_backoff);
        }
    }

    #[test]
    fn messages_have_no_queries() {
        let message = "error for url (https://sts.example.org/?Token=secret): refused";
        assert_eq!(without_queries(message), "error for url (https://sts.example.org/ refused");
    }
}
