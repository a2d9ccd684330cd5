//! Web addresses of objects.

use std::fmt;

use url::{Position, Url};

use super::location::Location;
use super::location::invalid;
use super::location::{unknown, without_secrets};
use crate::error::RemoteError;

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address(Url);

impl Address {
    /// # Errors
    /// [`RemoteError::Invalid`] if this is no address, or not one of an object that can be read.
    pub fn parse(text: &str) -> Result<Self, RemoteError> {
        Self::of(Url::parse(text).map_err(|error| invalid(format!("no URL: {error}")))?).map_err(invalid)
    }

    /// # Errors
    /// The objection to the URL.
    pub fn of(url: Url) -> Result<Self, String> {
        if !["http", "https"].contains(&url.scheme()) {
            return Err(unknown(url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the URL has a user or a password; pass them as a header".to_owned());
        }
        Ok(Self(url))
    }

    /// Returns the address that the server of this one names instead.
    ///
    /// # Errors
    /// [`RemoteError::Answer`] if that is no address.
    pub fn redirected(&self, location: &str) -> Result<Self, RemoteError> {
        let unusable = |reason| RemoteError::answer(format!("it redirects elsewhere: {reason}"));
        let url = self.0.join(location).map_err(|error| unusable(error.to_string()))?;
        if self.is_encrypted() && url.scheme() == "http" {
            return Err(unusable("from https to http".to_owned()));
        }
        Self::of(url).map_err(unusable)
    }

    pub fn location(&self) -> Location {
        Location::Web(self.0.clone())
    }

    pub fn is_encrypted(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Returns the name of the host or its address, as a certificate has it.
    pub fn name(&self) -> &str {
        self.0.host_str().unwrap_or_default().trim_matches(['[', ']'])
    }

    /// Returns the port, also the usual one.
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or(0)
    }

    /// Returns the scheme, the host and the port. Requests to one origin share connections.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.0.scheme(), self.host_and_port())
    }

    /// Returns the host, and the port where it is not the usual one.
    pub fn host(&self) -> &str {
        &self.0[Position::BeforeHost..Position::AfterPort]
    }

    pub fn host_and_port(&self) -> String {
        format!("{}:{}", self.0.host_str().unwrap_or_default(), self.port())
    }

    /// Returns the whole address as a proxy gets it.
    pub fn absolute(&self) -> &str {
        &self.0[..Position::AfterQuery]
    }

    /// Returns the values of the query, which may be secret, as written.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let pairs = self.0.query().unwrap_or_default().split('&');
        pairs.map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value))
    }

    /// Returns the path and the query.
    pub fn target(&self) -> &str {
        &self.0[Position::BeforePath..Position::AfterQuery]
    }
}

/// Shows the address without its query, which may have a signature.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(self.0.as_str()))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_addresses_have_no_secrets() {
        let address = Address::parse("http://example.org/a?secret").unwrap();
        assert_eq!((address.to_string().as_str(), address.target()), ("http://example.org/a", "/a?secret"));
        assert_eq!(format!("{address:?}"), "http://example.org/a");
    }

    #[test]
    fn addresses_without_objects_are_refused() {
        for text in
            ["", "/a/b", "s3://bucket/key", "file:///a", "http://", "http://me@example.org", "http://:x@a/"]
        {
            let error = Address::parse(text).unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn origins_name_the_port() {
        let of = |text| Address::parse(text).unwrap();
        assert_eq!(of("http://Example.org/a").origin(), "http://example.org:80");
        assert_eq!(of("http://[::1]:8080/a").origin(), "http://[::1]:8080");
        assert_eq!(of("https://example.org").origin(), "https://example.org:443");
        assert_eq!([of("http://[::1]/").name(), of("http://a.b:1/").name()], ["::1", "a.b"]);
        assert_eq!(of("http://example.org:8080").host(), "example.org:8080");
        assert_eq!(of("https://[::1]/a?b#c").host_and_port(), "[::1]:443");
        assert_eq!(of("http://example.org:80/a?b#c").absolute(), "http://example.org/a?b");
        assert_eq!(of("http://example.org:80/a b").host(), "example.org");
        assert_eq!(of("http://example.org:80/a b\r\n").target(), "/a%20b");
    }

    #[test]
    fn redirects_are_relative_to_the_address() {
        let address = Address::parse("http://example.org/a/b?c").unwrap();
        let to = |location| address.redirected(location);
        assert_eq!(to("/d?e").unwrap(), Address::parse("http://example.org/d?e").unwrap());
        assert_eq!(to("http://other/f").unwrap().origin(), "http://other:80");
        for location in ["gopher://other/", "http://me:secret@other/", "http://[/"] {
            let error = to(location).unwrap_err();
            assert!(matches!(error, RemoteError::Answer { .. }) && !error.to_string().contains("secret"));
        }
        let encrypted = Address::parse("https://example.org/a").unwrap();
        assert!(encrypted.redirected("/b").is_ok() && encrypted.redirected("http://example.org/a").is_err());
        assert!(to("https://example.org/a").unwrap().is_encrypted());
    }
}
