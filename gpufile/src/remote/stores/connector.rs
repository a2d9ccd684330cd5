//! The connections of the requests that object_store sends. They follow no redirects, which would take the credentials to
//! another server.

use std::error::Error as StdError;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store_signer::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store_signer::{ClientConfigKey, ClientOptions, Error, Result};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, NoProxy, Proxy};

use super::stand_in::StandIn;
use crate::remote::connection::tls::Trust;

/// The name of the program in each request, if no setting has another.
const USER_AGENT: &str = concat!("gpufile/", env!("CARGO_PKG_VERSION"));

/// The most bytes of an answer, which object_store keeps in memory. A list of Azure has up to 5000 names at once.
const MOST_ANSWER_BYTES: usize = 16 << 20;

/// Makes the clients of HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    pub trust: Trust,
    pub stand_in: Option<StandIn>,
}

impl Connector {
    /// Returns a connector that asks for the key in the place of the stand-in.
    pub fn standing_in(&self, stand_in: StandIn) -> Self {
        Self { stand_in: Some(stand_in), ..self.clone() }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let value = |key: ClientConfigKey| options.get_config_value(&key);
        let is_set = |key| value(key).map_or(Ok(false), |text| flag(&text));
        let accepts_any = is_set(ClientConfigKey::AllowInvalidCertificates)?;
        let proxy_authority = value(ClientConfigKey::ProxyCaCertificate);
        let mut builder = match (accepts_any, &proxy_authority) {
            (false, None) => Client::builder().use_preconfigured_tls(self.trust.config()),
            // These settings change the configuration that reqwest makes itself, from the authorities of the machine.
            _ => {
                let pem = [self.trust.pem.as_slice(), b"\n", proxy_authority.unwrap_or_default().as_bytes()]
                    .concat();
                let authorities = Certificate::from_pem_bundle(&pem).map_err(unusable)?;
                let builder = Client::builder().danger_accept_invalid_certs(accepts_any);
                authorities
                    .into_iter()
                    .fold(builder, |builder, authority| builder.add_root_certificate(authority))
            }
        };
        builder = builder
            .redirect(Policy::none())
            .user_agent(value(ClientConfigKey::UserAgent).unwrap_or_else(|| USER_AGENT.to_owned()))
            .dns_resolver(Arc::new(Spread))
            .http1_only()
            .https_only(!is_set(ClientConfigKey::AllowHttp)?);
        if let Some(time) = value(ClientConfigKey::Timeout) {
            builder = builder.timeout(duration(&time)?);
        }
        if let Some(time) = value(ClientConfigKey::ConnectTimeout) {
            builder = builder.connect_timeout(duration(&time)?);
        }
        if let Some(proxy) = value(ClientConfigKey::ProxyUrl) {
            let exceptions =
                value(ClientConfigKey::ProxyExcludes).and_then(|list| NoProxy::from_string(&list));
            builder = builder.proxy(Proxy::all(proxy).map_err(unusable)?.no_proxy(exceptions));
        }
        let client = HttpClient::new(builder.build().map_err(unusable)?);
        let client = HttpClient::new(Short(client));
        Ok(match self.stand_in.clone() {
            Some(stand_in) => HttpClient::new(Replacing { client, stand_in }),
            None => client,
        })
    }
}

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

/// A client that takes no long answers.
#[derive(Debug)]
struct Short(HttpClient);

#[async_trait]
impl HttpService for Short {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let failed = |error: Box<dyn StdError + Send + Sync>| match error.downcast() {
            Ok(error) => *error,
            Err(_) => HttpError::new(HttpErrorKind::Decode, io::Error::other("the answer is too long")),
        };
        let answer = self.0.execute(request).await?;
        Ok(answer.map(|body| HttpResponseBody::new(Limited::new(body, MOST_ANSWER_BYTES).map_err(failed))))
    }
}

#[derive(Debug)]
struct Replacing {
    client: HttpClient,
    stand_in: StandIn,
}

#[async_trait]
impl HttpService for Replacing {
    async fn call(&self, mut request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let replaced = self.stand_in.replace(&mut request).await;
        replaced.map_err(|error| HttpError::new(HttpErrorKind::Unknown, io::Error::other(error)))?;
        self.client.execute(request).await
    }
}

/// The addresses of a name, each time from another one on, so that connections spread over a store's servers.
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

#[cfg(test)]
mod tests {
    use object_store_signer::client::HttpRequestBody;
    use testkit::web::Server;

    use super::*;

    #[test]
    fn long_answers_are_not_collected() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connector = Connector { trust: Trust::of_machine(), stand_in: None };
        let options = ClientOptions::new().with_config(ClientConfigKey::AllowHttp, "true");
        let client = connector.connect(&options).unwrap();
        for (len_bytes, is_short) in [(MOST_ANSWER_BYTES, true), (MOST_ANSWER_BYTES + 1, false)] {
            let server = Server::new(vec![0; len_bytes]);
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = server.url("/a").parse().unwrap();
            let answer = runtime.block_on(async { client.execute(request).await?.into_body().bytes().await });
            assert_eq!(answer.is_ok_and(|bytes| bytes.len() == len_bytes), is_short, "{len_bytes}");
        }
    }
}
