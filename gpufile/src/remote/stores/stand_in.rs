//! Keys that object_store cannot name or sign, such as `a//b`, `a/../b` and, in Azure, `a b`. object_store gets a stand-in. The
//! key replaces it in addresses and requests, which are signed anew.

use std::fmt;

use object_store_signer::aws::AwsCredentialProvider;
use object_store_signer::azure::AzureCredentialProvider;
use object_store_signer::azure::{AzureAuthorizer, AzureCredential};
use object_store_signer::client::HttpRequest;
use object_store_signer::path::Path;
use object_store_signer::path::PathPart;
use percent_encoding::percent_decode_str;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::{Position, Url, form_urlencoded};

use super::super::location::Key;
use super::signature::aws4;
use super::signature::shared_access;

const STAND_IN: &str = "gpufilestandin";

/// The server expects a signature of the name itself, and object_store signs the escaped one.
const NO_ACCESS_KEY: &str = "without an access key of the account, no name of Azure with characters that an address escapes, such as \
    spaces, can be signed; use the key, or an https address with a token of shared access";

/// All except the characters that RFC 3986 calls unreserved.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const STRICT_PATH: &AsciiSet = &STRICT.remove(b'/');

/// The way to sign requests for a store.
#[derive(Clone)]
pub(crate) enum Signatures {
    S3(AwsCredentialProvider),
    Azure { credentials: AzureCredentialProvider, access_key: Option<AccessKey> },
    Google,
}

#[derive(Clone)]
pub(crate) struct AccessKey {
    pub account: String,
    pub key: Vec<u8>,
}

/// A key in the place of the stand-in.
#[derive(Clone)]
pub(crate) struct StandIn {
    pub key: Key,
    pub signatures: Signatures,
}

/// Shows no credentials.
impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StandIn").field(&self.key).finish()
    }
}

/// Returns a key as object_store names it; `None` if that would be another object.
pub(crate) fn plain(key: &Key) -> Option<Path> {
    Path::parse(key.as_str()).ok().filter(|path| path.as_ref() == key.as_str())
}

pub(crate) fn stand_in() -> Path {
    Path::from(STAND_IN)
}

/// Returns a key as the end of an address, so that nobody on the way takes a part for a step to another folder.
///
/// # Errors
/// There is no such path.
pub(crate) fn in_address(key: &Key) -> Result<String, String> {
    if matches!(key.as_str(), "." | "..") {
        return Err(format!("no address has the key {:?}", key.as_str()));
    }
    let escaped = utf8_percent_encode(key.as_str(), STRICT_PATH).to_string();
    let is_step = |part: &str| matches!(part, "." | "..");
    let mut path = String::new();
    let mut before: Option<&str> = None;
    for part in escaped.split('/') {
        path += match before {
            None => "",
            Some(before) if is_step(before) || is_step(part) => "%2F",
            Some(_) => "/",
        };
        path += part;
        before = Some(part);
    }
    Ok(path)
}

impl Signatures {
    /// Returns the name that object_store signs in addresses; `None` if it signs only the stand-in.
    pub fn signable(&self, key: &Key) -> Option<Path> {
        match self {
            Self::S3(_) => plain(key),
            Self::Azure { access_key: None, .. } => plain(key),
            // The server expects a signature of the name, and object_store signs the escaped one.
            Self::Azure { .. } => plain(key)
                .filter(|path| utf8_percent_encode(path.as_ref(), STRICT_PATH).to_string() == path.as_ref()),
            // It does not escape the name. The server signs no escaped slashes, so only those are that would be lost.
            Self::Google => {
                let escaped = in_address(key).ok()?;
                let rest = escaped.trim_start_matches('/');
                let first = "%2F".repeat(escaped.len() - rest.len());
                let parts = format!("{first}{rest}");
                let parts = parts.split('/').map(PathPart::parse);
                parts.into_iter().try_fold(Path::ROOT, |path, part| part.map(|part| path.join(part)).ok())
            }
        }
    }

    /// Returns an address that object_store signed for a [`signable`](Self::signable) key.
    ///
    /// # Errors
    /// The server would not accept the signature.
    pub fn check(&self, signed: Url) -> Result<Url, String> {
        match self {
            Self::Azure { access_key: None, .. } if signed.path().contains('%') => {
                Err(NO_ACCESS_KEY.to_owned())
            }
            _ => Ok(signed),
        }
    }
}

impl StandIn {
    /// Returns an address of the key from a signed one of the stand-in.
    ///
    /// # Errors
    /// The reason why there is none.
    pub async fn address(&self, mut url: Url) -> Result<Url, String> {
        let folder = url.path().strip_suffix(STAND_IN).ok_or("its address is unusual")?.to_owned();
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let value = |name: &str| {
            pairs.iter().find(|pair| pair.0.eq_ignore_ascii_case(name)).map_or("", |pair| pair.1.as_str())
        };
        let (signature, pairs_left): (&str, Vec<_>);
        let signed = match &self.signatures {
            Signatures::S3(credentials) => {
                (signature, pairs_left) = ("X-Amz-Signature", without(&pairs, "X-Amz-Signature"));
                let secret = secret(credentials, value("X-Amz-Credential")).await?;
                let request = format!(
                    "GET\n{folder}{}\n{}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD",
                    utf8_percent_encode(self.key.as_str(), STRICT_PATH),
                    canonical(&pairs_left),
                    &url[Position::BeforeHost..Position::AfterPort],
                );
                aws4(&secret.key, &secret.scope, value("X-Amz-Date"), &request)
            }
            Signatures::Azure { access_key, .. } => {
                (signature, pairs_left) = ("sig", without(&pairs, "sig"));
                let AccessKey { account, key } = access_key.as_ref().ok_or(NO_ACCESS_KEY)?;
                let folder = percent_decode_str(&folder).decode_utf8_lossy();
                // The path of other servers has the account.
                let is_in_host = url.host_str().unwrap_or_default().contains(account.as_str());
                let account = if is_in_host { format!("/{account}") } else { String::new() };
                let resource = format!("/blob{account}{folder}{}", self.key.as_str());
                shared_access(key, &resource, value)
            }
            Signatures::Google => return Err("its address has no other form".to_owned()),
        };
        url.set_path(&format!("{folder}{}", in_address(&self.key)?));
        url.query_pairs_mut().clear().extend_pairs(pairs_left).append_pair(signature, &signed);
        Ok(url)
    }

    /// Makes a request for the stand-in one for the key.
    ///
    /// # Errors
    /// The reason why there is none.
    pub async fn replace(&self, request: &mut HttpRequest) -> Result<(), String> {
        let url = Url::parse(&request.uri().to_string()).map_err(|error| error.to_string())?;
        let Some(folder) = url.path().strip_suffix(STAND_IN) else {
            // These name the objects in their bodies.
            let is_list = url
                .query()
                .unwrap_or_default()
                .split('&')
                .any(|part| matches!(part, "delete" | "comp=batch"));
            return if is_list {
                Err("requests for several objects cannot have this key".to_owned())
            } else {
                Ok(())
            };
        };
        let query = url.query().map_or(String::new(), |query| format!("?{query}"));
        let new = format!("{}{folder}{}{query}", &url[..Position::BeforePath], in_address(&self.key)?);
        *request.uri_mut() = new.parse().map_err(|_| "its address is too long")?;
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let Some(authorization) = header("authorization") else { return Ok(()) };
        match &self.signatures {
            Signatures::S3(credentials) => {
                let field = |name: &str| {
                    let fields = authorization.split([' ', ',']);
                    fields
                        .filter_map(|field| field.strip_prefix(name)?.strip_prefix('='))
                        .next()
                        .unwrap_or_default()
                };
                let (credential, names) = (field("Credential"), field("SignedHeaders"));
                let secret = secret(credentials, credential).await?;
                let headers: String = names
                    .split(';')
                    .map(|name| {
                        let values =
                            request.headers().get_all(name).iter().filter_map(|value| value.to_str().ok());
                        let values: Vec<_> = values
                            .map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "))
                            .collect();
                        format!("{name}:{}\n", values.join(","))
                    })
                    .collect();
                let pairs: Vec<_> =
                    form_urlencoded::parse(url.query().unwrap_or_default().as_bytes()).into_owned().collect();
                let canonical = format!(
                    "{}\n{folder}{}\n{}\n{headers}\n{names}\n{}",
                    request.method(),
                    utf8_percent_encode(self.key.as_str(), STRICT_PATH),
                    canonical(&pairs),
                    header("x-amz-content-sha256").unwrap_or_default(),
                );
                let signature =
                    aws4(&secret.key, &secret.scope, header("x-amz-date").unwrap_or_default(), &canonical);
                let new = format!(
                    "AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
                );
                let new = new.parse().map_err(|_| "its signature is no header")?;
                request.headers_mut().insert("authorization", new);
            }
            Signatures::Azure { credentials, .. } => {
                let account =
                    authorization.strip_prefix("SharedKey ").and_then(|rest| rest.split(':').next());
                let Some(account) = account.map(str::to_owned) else { return Ok(()) };
                let credential = credentials.get_credential().await.map_err(|error| error.to_string())?;
                request.headers_mut().remove("authorization");
                let credential: &AzureCredential = &credential;
                AzureAuthorizer::new(credential, &account).authorize(request);
            }
            Signatures::Google => {}
        }
        Ok(())
    }
}

/// The secret key of S3, and the scope of its signatures.
struct Secret {
    key: String,
    scope: String,
}

/// Returns the secret of a credential such as `KEY/20130524/us-east-1/s3/aws4_request`.
///
/// # Errors
/// The reason why there is none.
async fn secret(credentials: &AwsCredentialProvider, credential: &str) -> Result<Secret, String> {
    let found = credentials.get_credential().await.map_err(|error| error.to_string())?;
    match credential.split_once('/') {
        Some((id, scope)) if id == found.key_id => {
            Ok(Secret { key: found.secret_key.clone(), scope: scope.to_owned() })
        }
        // Directory buckets have keys for sessions.
        _ => {
            Err("this key needs a signature that the session keys of a directory bucket cannot make"
                .to_owned())
        }
    }
}

fn without(pairs: &[(String, String)], name: &str) -> Vec<(String, String)> {
    pairs.iter().filter(|pair| pair.0 != name).cloned().collect()
}

/// Returns a query as signatures of S3 have it.
fn canonical(pairs: &[(String, String)]) -> String {
    let escaped = |text: &str| utf8_percent_encode(text, STRICT).to_string();
    let mut pairs: Vec<_> =
        pairs.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
    pairs.sort_unstable();
    pairs.join("&")
}
