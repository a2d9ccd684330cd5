//! The connections of the requests that object_store sends. They follow no redirects: a request to another server would
//! take the credentials there, and its answer would count as that of the store.

use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use object_store::client::{HttpClient, HttpConnector};
use object_store::{ClientConfigKey, ClientOptions, Error, Result};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, NoProxy, Proxy};

/// The name of the program in each request, if no setting has another.
const USER_AGENT: &str = concat!("gpufile/", env!("CARGO_PKG_VERSION"));

/// Makes the clients of HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    /// The authorities that are trusted beside those of the machine.
    pub trusted: Vec<Certificate>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let builder = self
            .trusted
            .iter()
            .cloned()
            .fold(Client::builder(), |builder, authority| builder.add_root_certificate(authority));
        let value = |key: ClientConfigKey| options.get_config_value(&key);
        let is_set = |key| value(key).map_or(Ok(false), |text| flag(&text));
        let mut builder = builder
            .redirect(Policy::none())
            .user_agent(value(ClientConfigKey::UserAgent).unwrap_or_else(|| USER_AGENT.to_owned()))
            .dns_resolver(Arc::new(Spread))
            .http1_only()
            .https_only(!is_set(ClientConfigKey::AllowHttp)?)
            .danger_accept_invalid_certs(is_set(ClientConfigKey::AllowInvalidCertificates)?);
        if let Some(time) = value(ClientConfigKey::Timeout) {
            builder = builder.timeout(duration(&time)?);
        }
        if let Some(time) = value(ClientConfigKey::ConnectTimeout) {
            builder = builder.connect_timeout(duration(&time)?);
        }
        if let Some(pem) = value(ClientConfigKey::ProxyCaCertificate) {
            builder = builder.add_root_certificate(Certificate::from_pem(pem.as_bytes()).map_err(unusable)?);
        }
        if let Some(proxy) = value(ClientConfigKey::ProxyUrl) {
            let exceptions =
                value(ClientConfigKey::ProxyExcludes).and_then(|list| NoProxy::from_string(&list));
            builder = builder.proxy(Proxy::all(proxy).map_err(unusable)?.no_proxy(exceptions));
        }
        Ok(HttpClient::new(builder.build().map_err(unusable)?))
    }
}

/// Returns a setting that is true or false, as object_store reads it.
fn flag(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "0" | "false" | "off" | "no" | "n" => Ok(false),
        _ => Err(unusable(io::Error::other(format!("{text:?} is neither true nor false")))),
    }
}

/// Returns a time in whole milliseconds or seconds, such as `2s`.
fn duration(text: &str) -> Result<Duration> {
    let time = match text.strip_suffix("ms") {
        Some(number) => number.parse().map(Duration::from_millis),
        None => text.trim_end_matches('s').parse().map(Duration::from_secs),
    };
    time.map_err(unusable)
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: "HTTP client", source: Box::new(error) }
}

/// The addresses of a name, from another one on for each connection. The connections spread over the servers of a store.
struct Spread;

impl Resolve for Spread {
    fn resolve(&self, name: Name) -> Resolving {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let look_up = move || -> io::Result<Addrs> {
            let mut found: Vec<_> = (name.as_str(), 0).to_socket_addrs()?.collect();
            let first = NEXT.fetch_add(1, Ordering::Relaxed) % found.len().max(1);
            found.rotate_left(first);
            Ok(Box::new(found.into_iter()))
        };
        Box::pin(async move { Ok(tokio::task::spawn_blocking(look_up).await??) })
    }
}
