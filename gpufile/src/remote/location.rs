//! Locations of objects: names such as `s3://BUCKET/KEY`, and web addresses.
//!
//! A key is literal: `%20`, `?`, `#`, `//` and `..` are characters like others. A web address follows the rules of URLs.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::error::RemoteError;

/// The key of an object in its bucket: any text that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// # Errors
    /// [`RemoteError::Invalid`] if the text is empty.
    pub fn new(text: &str) -> Result<Self, RemoteError> {
        match text {
            "" => Err(invalid("the name of the object is empty")),
            text => Ok(Self(text.to_owned())),
        }
    }

    /// Returns the key that the path of a web address stands for.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if it is empty, or no UTF-8.
    fn of_web(url: &Url) -> Result<Self, RemoteError> {
        let path = url.path().trim_start_matches('/');
        let key = percent_decode_str(path).decode_utf8().map_err(|error| invalid(error.to_string()))?;
        Self::new(&key)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key with each `%XX` decoded; `None` if that is the same one.
    pub fn decoded(&self) -> Option<Self> {
        let decoded = percent_decode_str(&self.0).decode_utf8().ok()?;
        (decoded != self.0.as_str()).then(|| Self(decoded.into_owned()))
    }
}

/// A kind of store, each with its schemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    S3,
    Azure,
    Google,
}

/// The schemes of names. Users of fsspec and object_store write each of these.
const SCHEMES: [(&str, Service); 8] = [
    ("s3", Service::S3),
    ("s3a", Service::S3),
    ("az", Service::Azure),
    ("azure", Service::Azure),
    ("abfs", Service::Azure),
    ("abfss", Service::Azure),
    ("gs", Service::Google),
    ("gcs", Service::Google),
];

/// The end of a message about a key with `%XX`, where an object has the decoded key.
pub const ESCAPED: &str = ": there is no object with this key, but one with the characters that its %XX stand for; a key is \
    written without escapes";

impl Service {
    /// Returns the service of an address by its scheme, if it has one.
    pub fn of(address: &str) -> Option<Self> {
        let (scheme, _) = address.split_once("://")?;
        let known = SCHEMES.into_iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known));
        known.map(|(_, service)| service)
    }

    /// Returns the form of names.
    fn form(self) -> &'static str {
        match self {
            Self::S3 => "s3://BUCKET/KEY",
            Self::Azure => "az://CONTAINER/BLOB or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/BLOB",
            Self::Google => "gs://BUCKET/OBJECT",
        }
    }
}

/// Returns the schemes that this build knows.
pub fn stores() -> Vec<&'static str> {
    let built = SCHEMES.into_iter().filter(|_| cfg!(feature = "s3"));
    built.map(|(scheme, _)| scheme).collect()
}

/// Returns the objection to a scheme that this build does not know.
pub fn unknown(scheme: &str) -> String {
    let known = [&["http", "https"], &stores()[..]].concat().join(", ");
    format!("the scheme {scheme:?} is not known; known are {known}{}", meant(scheme))
}

/// Returns the end of a sentence: how to write an address with another program's scheme.
pub fn meant(scheme: &str) -> &'static str {
    match scheme.to_ascii_lowercase().as_str() {
        "file" => {
            "; for a local file, write its path, such as /data/model in the place of file:///data/model"
        }
        "s3n" => "; write s3://BUCKET/KEY",
        "adl" | "wasb" | "wasbs" => "; write az://CONTAINER/BLOB",
        "hf" => "; download the model with huggingface_hub, and write its path",
        _ => "",
    }
}

/// The name of an object of a store, or a folder, whose key may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub service: Service,
    pub scheme: &'static str,
    /// The bucket or the container, the latter perhaps with `@` and the server of its account.
    pub bucket: String,
    key: String,
}

impl Name {
    /// Takes a text apart. Returns `None` if its scheme is not one of a store.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if the bucket cannot be one.
    fn parse(text: &str) -> Option<Result<Self, RemoteError>> {
        let (scheme, rest) = text.split_once("://")?;
        let (scheme, service) = SCHEMES.into_iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known))?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_bucket = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._$".contains(&byte))
        };
        let is_known = match bucket.split_once('@') {
            Some((container, server)) => {
                scheme.starts_with("abfs") && is_bucket(container) && is_bucket(server)
            }
            None => is_bucket(bucket),
        };
        // A key may have a question mark, but this is an address that was pasted.
        let is_signed = key.split_once('?').is_some_and(|(_, query)| has_signature(query));
        let name = Self { service, scheme, bucket: bucket.to_owned(), key: key.to_owned() };
        Some(match (is_known, is_signed) {
            (false, _) => Err(invalid(format!("expected {}", service.form()))),
            (true, true) => Err(invalid("the key ends with a signature; a signed address begins with https")),
            (true, false) => Ok(name),
        })
    }

    /// # Errors
    /// [`RemoteError::Invalid`] if there is none.
    pub fn key(&self) -> Result<Key, RemoteError> {
        Key::new(&self.key)
    }

    /// Returns the name of another object of the bucket.
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { key: key.into(), ..self.clone() }
    }
}

/// Shows the text that [`Location::parse`] takes.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.bucket, self.key)
    }
}

/// The place of an object, or of a folder of objects.
#[derive(Debug, Clone)]
pub enum Location {
    Store(Name),
    /// It may have secrets.
    Web(Url),
}

impl Location {
    /// # Errors
    /// [`RemoteError::Invalid`] if this is neither a name of a store nor a URL.
    pub fn parse(text: &str) -> Result<Self, RemoteError> {
        match Name::parse(text) {
            Some(name) => name.map(Self::Store),
            None => Url::parse(text).map(Self::Web).map_err(|error| invalid(format!("no URL: {error}"))),
        }
    }

    /// Returns the last part of the key or of the path, without escapes.
    pub fn last(&self) -> Cow<'_, str> {
        self.unescaped(match self {
            Self::Store(name) => last_part(&name.key),
            Self::Web(url) => last_part(url.path()),
        })
    }

    /// Decodes a part of the text, if this is a web address.
    pub fn unescaped<'a>(&self, part: &'a str) -> Cow<'a, str> {
        match self {
            Self::Store(_) => part.into(),
            Self::Web(_) => percent_decode_str(part).decode_utf8_lossy(),
        }
    }

    /// # Errors
    /// [`RemoteError::Invalid`] if it is empty.
    pub fn key(&self) -> Result<Key, RemoteError> {
        match self {
            Self::Store(name) => name.key(),
            Self::Web(url) => Key::of_web(url),
        }
    }

    /// Returns another object in the same folder or below it, with the same query.
    pub fn beside(&self, name: &str) -> Self {
        match self {
            Self::Store(one) => {
                let folder = one.key.rfind('/').map_or("", |slash| &one.key[..=slash]);
                Self::Store(one.with_key(format!("{folder}{name}")))
            }
            Self::Web(url) => {
                let mut url = url.clone();
                if let Ok(mut path) = url.path_segments_mut() {
                    path.pop().extend(name.split('/'));
                }
                Self::Web(url)
            }
        }
    }

    /// Returns an object in this folder, whose text may end with a slash.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if this cannot be a folder.
    pub fn inside(&self, name: &str) -> Result<Self, RemoteError> {
        match self {
            Self::Store(folder) => {
                let slash = if folder.key.is_empty() || folder.key.ends_with('/') { "" } else { "/" };
                Ok(Self::Store(folder.with_key(format!("{}{slash}{name}", folder.key))))
            }
            Self::Web(url) => {
                let mut url = url.clone();
                match url.path_segments_mut() {
                    Ok(mut path) => path.pop_if_empty().push(name),
                    Err(()) => return Err(invalid("no URL: it has no path")),
                };
                Ok(Self::Web(url))
            }
        }
    }

    /// Returns the text that [`parse`](Self::parse) takes. It may contain secrets.
    pub fn text(&self) -> String {
        match self {
            Self::Store(name) => name.to_string(),
            Self::Web(url) => url.to_string(),
        }
    }
}

fn has_signature(query: &str) -> bool {
    let mut names = query.split('&').filter_map(|pair| Some(pair.split_once('=')?.0.to_ascii_lowercase()));
    names.any(|name| name == "sig" || name.ends_with("signature"))
}

/// Returns whether a text names a bucket or a folder: its key is empty or ends with a slash.
pub fn is_folder(text: &str) -> bool {
    matches!(Name::parse(text), Some(Ok(name)) if last_part(&name.key).is_empty())
}

/// Returns the last part of a key, or of a web address's path with its escapes; empty after a slash.
///
/// ```
/// assert_eq!(gpufile::remote::last_in("https://host/models/a.gguf?token=x"), "a.gguf");
/// ```
pub fn last_in(text: &str) -> &str {
    let (_, rest) = text.split_once("://").unwrap_or_default();
    let rest = match Name::parse(text) {
        Some(Ok(_)) => rest,
        _ => rest.split(['?', '#']).next().unwrap_or_default(),
    };
    rest.split_once('/').map_or("", |(_, path)| last_part(path))
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Returns a text, which may be no location, without the query, the fragment, the user and the password of an address. Keys
/// stay as they are.
///
/// ```
/// let shown = gpufile::remote::without_secrets("https://me:secret@host/a?token=secret");
/// assert_eq!(shown, "https://host/a");
/// ```
pub fn without_secrets(text: &str) -> String {
    match Name::parse(text) {
        Some(Ok(name)) => return name.to_string(),
        Some(Err(_)) => {
            let text = text.split(['?', '#']).next().unwrap_or_default();
            let (scheme, rest) = text.split_once("://").unwrap_or_default();
            let bucket = rest.split('/').next().unwrap_or_default();
            let user = bucket.rfind('@').map_or(0, |at| at + 1);
            return format!("{scheme}://{}", &rest[user..]);
        }
        None => {}
    }
    let mut url = Url::parse(text).ok().filter(Url::has_authority);
    if let Some(url) = &mut url {
        // These fail for addresses that cannot have any.
        let _ = (url.set_username(""), url.set_password(None));
    }
    let text = url.as_ref().map_or(text, Url::as_str).split(['?', '#']).next().unwrap_or_default();
    match url {
        Some(_) => text.to_owned(),
        None => text.rsplit('@').next().unwrap_or_default().to_owned(),
    }
}

pub fn invalid(reason: impl Into<String>) -> RemoteError {
    RemoteError::Invalid { reason: reason.into() }
}

impl RemoteError {
    pub(crate) fn answer(reason: impl Into<String>) -> Self {
        RemoteError::Answer { reason: reason.into() }
    }

    pub(crate) fn deadline(timeout: Duration) -> Self {
        RemoteError::Deadline { seconds: timeout.as_secs_f32() }
    }

    pub(crate) fn closed() -> Self {
        let reason = "the server closed it too early";
        RemoteError::Connection(io::Error::new(io::ErrorKind::UnexpectedEof, reason))
    }
}

#[cfg(all(test, feature = "s3"))]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        match Location::parse(text).unwrap() {
            Location::Store(name) => name,
            Location::Web(url) => panic!("{url}"),
        }
    }

    #[test]
    fn keys_are_literal() {
        for key in [
            "a",
            "a%20b",
            "a b",
            "a+b",
            "a/../b",
            "a/./b",
            "..",
            "a//b",
            "/a",
            "//",
            "a/",
            "a?b",
            "a#b",
            "a?b=c&d#e",
            "ts=2026%3A01/x",
            "a\tb",
            "\0",
            "\u{7f}",
            "gl\u{fc}ck \u{1f600}",
            "a@b:c",
            "%",
            "%zz",
            "%ff",
            "\\",
            " ",
            "s3://b/k",
        ] {
            for root in [
                "s3://bucket",
                "az://box",
                "abfss://box@account.dfs.core.windows.net",
                "gs://my.bucket",
                "gcs://b",
            ] {
                let text = format!("{root}/{key}");
                let name = name(&text);
                assert_eq!((name.key.as_str(), name.to_string()), (key, text.clone()));
                assert_eq!(without_secrets(&text), text);
            }
        }
        assert_eq!(name("S3://Bucket/Key").to_string(), "s3://Bucket/Key");
    }

    #[test]
    fn names_without_a_bucket_are_refused() {
        for wrong in [
            "s3://",
            "s3:///key",
            "s3://me:x@bucket/key",
            "s3://me@bucket/key",
            "s3://bucket:1/key",
            "s3://b?x/key",
            "s3://b%20/key",
            "az://box@host/a",
            "az:///a",
            "abfss://@host/a",
            "abfss://a:b@host/a",
            "gs://me@bucket/a",
            "gs://b\tb/a",
            "gcs://me@bucket/a",
            "s3a:///a",
        ] {
            let error = Location::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("expected "), "{wrong}: {error}");
        }
        for wrong in [
            "az://box/a?sv=1&sig=secret",
            "s3://bucket/a?X-Amz-Signature=secret",
            "gs://b/a?Signature=secret",
        ] {
            let error = Location::parse(wrong).unwrap_err().to_string();
            assert!(
                error.contains("begins with https") && !without_secrets(wrong).contains("secret"),
                "{error}"
            );
        }
        for wrong in ["", "a/b"] {
            assert!(matches!(Location::parse(wrong), Err(RemoteError::Invalid { .. })), "{wrong}");
        }
    }

    #[test]
    fn keys_are_not_empty() {
        assert!(name("s3://bucket").key().is_err() && name("s3://bucket/").key().is_err());
    }

    #[test]
    fn schemes_of_other_clients_name_the_same_stores() {
        for (scheme, service) in [
            ("s3a", Service::S3),
            ("azure", Service::Azure),
            ("gcs", Service::Google),
            ("GS", Service::Google),
        ] {
            let text = format!("{scheme}://bucket/a%20b");
            assert_eq!((name(&text).service, Service::of(&text)), (service, Some(service)));
        }
        for other in ["https://s3/a", "gcs", "s3n://bucket/a", "adl://a/b", ""] {
            assert_eq!(Service::of(other), None, "{other}");
        }
    }

    #[test]
    fn web_addresses_are_urls() {
        let Location::Web(url) = Location::parse("http://a/b%20c/../d\t?e").unwrap() else { panic!() };
        assert_eq!(url.as_str(), "http://a/d?e");
    }

    #[test]
    fn escapes_have_another_spelling() {
        let decoded = |key: &str| Key::new(key).unwrap().decoded().map(|key| key.as_str().to_owned());
        assert_eq!(decoded("a%20b%2Fc"), Some("a b/c".to_owned()));
        for same in ["a b", "a%", "%zz", "%ff", "a+b"] {
            assert_eq!(decoded(same), None, "{same}");
        }
        let of_web = |text: &str| Key::of_web(&Url::parse(text).unwrap()).map(|key| key.as_str().to_owned());
        assert_eq!(of_web("http://h/a%20b//c%2Fd/").unwrap(), "a b//c/d/");
        assert!(of_web("http://h/").is_err() && of_web("http://h/%ff").is_err());
    }

    #[test]
    fn neighbours_share_the_folder() {
        for (one, name, other) in [
            ("https://example.org/a/b.json?sig=x", "c d.bin", "https://example.org/a/c%20d.bin?sig=x"),
            ("https://example.org/a/b.json?sig=x", "c/d?e", "https://example.org/a/c/d%3Fe?sig=x"),
            ("http://a", "b", "http://a/b"),
            ("s3://bucket/a%20b/c?d", "c d#e/f", "s3://bucket/a%20b/c d#e/f"),
            ("s3://bucket/a//b", "c", "s3://bucket/a//c"),
            ("gs://bucket/a/", "c", "gs://bucket/a/c"),
            ("az://box/a", "c", "az://box/c"),
        ] {
            assert_eq!(Location::parse(one).unwrap().beside(name).text(), other);
        }
        for (folder, object) in [
            ("http://example.org", "http://example.org/object"),
            ("http://example.org/a/", "http://example.org/a/object"),
            ("http://example.org/a%20b?x=y", "http://example.org/a%20b/object?x=y"),
            ("s3://bucket", "s3://bucket/object"),
            ("s3://bucket/", "s3://bucket/object"),
            ("s3://bucket/a%20b", "s3://bucket/a%20b/object"),
            ("s3://bucket/a//", "s3://bucket/a//object"),
        ] {
            assert_eq!(Location::parse(folder).unwrap().inside("object").unwrap().text(), object);
        }
        assert!(matches!(
            Location::parse("mailto:me").unwrap().inside("object"),
            Err(RemoteError::Invalid { .. })
        ));
    }

    #[test]
    fn last_parts_have_no_escapes_of_the_web() {
        for (text, last) in [
            ("https://h/a%20b/c%20d.json?x", "c d.json"),
            ("s3://bucket/a%20b/c%20d.json", "c%20d.json"),
            ("s3://bucket", ""),
            ("s3://bucket/a/", ""),
        ] {
            assert_eq!(Location::parse(text).unwrap().last(), last);
        }
    }

    #[test]
    fn last_parts_keep_what_is_written() {
        for (text, last) in [
            ("http://host/a/b%20.npy?sig=/x#y", "b%20.npy"),
            ("http://host/a/", ""),
            ("http://host", ""),
            ("http://host?a/b", ""),
            ("s3://bucket/a/key?x#y", "key?x#y"),
            ("s3://bucket/a/", ""),
            ("s3://bucket", ""),
            ("a/b", ""),
        ] {
            assert_eq!(last_in(text), last, "{text}");
        }
    }

    #[test]
    fn shown_locations_have_no_secrets() {
        for (text, shown) in [
            ("http://example.org/a/b?X-Signature=secret#secret", "http://example.org/a/b"),
            ("http://me:secret@example.org:8080/a", "http://example.org:8080/a"),
            ("http:/me:secret@example.org/a", "http://example.org/a"),
            ("http://me:sec@ret@example.org", "http://example.org/"),
            ("s3://me:secret@bucket/a@b", "s3://bucket/a@b"),
            ("s3://bucket?secret", "s3://bucket"),
            ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
            ("me:secret@example.org/a", "example.org/a"),
            ("http://me:secret@", ""),
            ("http://[::1]:8080/?secret", "http://[::1]:8080/"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
    }
}
