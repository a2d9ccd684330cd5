//! Proxies, as curl understands the variables that name them.

use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;
use url::Url;

use super::address::Address;
use super::environment::Environment;
use crate::error::RemoteError;

const USUAL_PORT: u16 = 1080;

/// A server of HTTP that passes on requests to others.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Proxy {
    pub host: String,
    pub port: u16,
    /// The value of the header that has the user and the password.
    authorization: Option<String>,
}

impl Proxy {
    /// Reads an address such as `http://user:password@host:port`; only the host is needed.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`], which shows neither the user nor the password.
    pub fn parse(text: &str) -> Result<Self, RemoteError> {
        let invalid =
            |reason: String| RemoteError::Invalid { reason: format!("the proxy cannot be used: {reason}") };
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(invalid(format!("the scheme {scheme:?} is not known; http is")));
        }
        // With a scheme that is not known, a port is kept even if it is the usual one of a scheme.
        let url = Url::parse(&format!("proxy://{rest}")).map_err(|error| invalid(error.to_string()))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(invalid("it has no host".to_owned()));
        }
        let decoded = |text| percent_decode_str(text).collect::<Vec<u8>>();
        let (user, password) = (url.username(), url.password());
        let authorization = (!user.is_empty() || password.is_some()).then(|| {
            let pair = [decoded(user), b":".to_vec(), decoded(password.unwrap_or_default())].concat();
            format!("Basic {}", BASE64_STANDARD.encode(pair))
        });
        Ok(Self { host: host.to_owned(), port: url.port().unwrap_or(USUAL_PORT), authorization })
    }

    /// Returns the request for a connection to a server through the proxy.
    pub fn connect_request(&self, address: &Address) -> String {
        let to = address.host_and_port();
        let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        self.write_authorization(&mut request);
        request + "\r\n"
    }

    /// Appends the header with the user and the password.
    pub fn write_authorization(&self, request: &mut String) {
        if let Some(authorization) = &self.authorization {
            request.extend(["Proxy-Authorization: ", authorization, "\r\n"]);
        }
    }
}

/// Shows neither the user nor the password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[derive(Debug, Clone, Default)]
pub(super) enum Proxies {
    /// The one that the variables name.
    #[default]
    OfEnvironment,
    None,
    /// The same proxy for all addresses.
    One(Proxy),
}

impl Proxies {
    /// Returns the proxy for an address.
    ///
    /// # Errors
    /// As for [`Proxy::parse`].
    pub fn choose(&self, address: &Address, environment: &Environment) -> Result<Option<Proxy>, RemoteError> {
        match self {
            Proxies::OfEnvironment => of_variables(address, |name| environment.get(name).map(str::to_owned)),
            Proxies::None => Ok(None),
            Proxies::One(proxy) => Ok(Some(proxy.clone())),
        }
    }
}

fn of_variables(
    address: &Address,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, RemoteError> {
    // A server of CGI takes `HTTP_PROXY` from a header of a request, so curl does not read it.
    let names: &[&str] = match address.is_encrypted() {
        true => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        false => &["http_proxy", "all_proxy", "ALL_PROXY"],
    };
    let Some(text) = names.iter().find_map(|name| variable(name)).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let exceptions = ["no_proxy", "NO_PROXY"].into_iter().find_map(&variable).unwrap_or_default();
    if is_exception(&exceptions, address.name()) { Ok(None) } else { Proxy::parse(&text).map(Some) }
}

/// Returns whether a list names a host, a domain of it or a network with it.
fn is_exception(list: &str, host: &str) -> bool {
    if list.trim() == "*" {
        return true;
    }
    let host = host.trim_end_matches('.');
    let ip: Option<IpAddr> = host.parse().ok();
    list.split([',', ' ', '\t']).filter(|entry| !entry.is_empty()).any(|entry| match ip {
        Some(ip) => is_in_network(entry, ip),
        None => {
            let entry = entry.trim_matches('.');
            let before = host.len().checked_sub(entry.len());
            before.and_then(|before| host.split_at_checked(before)).is_some_and(|(before, end)| {
                !entry.is_empty()
                    && end.eq_ignore_ascii_case(entry)
                    && (before.is_empty() || before.ends_with('.'))
            })
        }
    })
}

/// Returns whether an entry such as `10.0.0.0/8` or `[::1]` has this address.
fn is_in_network(entry: &str, ip: IpAddr) -> bool {
    let (network, bits) =
        entry.split_once('/').map_or((entry, None), |(network, bits)| (network, Some(bits)));
    let Ok(network) = network.trim_matches(['[', ']']).parse::<IpAddr>() else { return false };
    let (network, ip, width) = match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => {
            (u128::from(network.to_bits()), u128::from(ip.to_bits()), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) => (network.to_bits(), ip.to_bits(), 128),
        _ => return false,
    };
    let Some(bits) = bits.map_or(Some(width), |bits| bits.parse().ok().filter(|bits| *bits <= width)) else {
        return false;
    };
    (network ^ ip).checked_shr(width - bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_have_a_host_and_a_port() {
        for (text, shown) in [
            ("example.org", "example.org:1080"),
            ("http://example.org:80", "example.org:80"),
            ("HTTP://example.org:3128/", "example.org:3128"),
            ("http://me:secret@[::1]:8080", "::1:8080"),
        ] {
            assert_eq!(format!("{:?}", Proxy::parse(text).unwrap()), shown);
        }
        // RFC 7617 has this example.
        let proxy = Proxy::parse("Aladdin:open%20sesame@example.org").unwrap();
        let mut header = String::new();
        proxy.write_authorization(&mut header);
        assert_eq!(header, "Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n");
        for text in
            ["socks5://me:secret@host", "https://host", "http://", "http://me:secret@", "http://host:99999"]
        {
            let error = Proxy::parse(text).unwrap_err();
            assert!(matches!(error, RemoteError::Invalid { .. }), "{text}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn variables_choose_the_proxy_of_a_scheme() {
        let chosen = |address: &str, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned())
            };
            let found = of_variables(&Address::parse(address).unwrap(), variable).unwrap();
            found.map(|proxy| proxy.host)
        };
        let (plain, encrypted) = ("http://example.org/a", "https://example.org/a");
        for (name, for_plain, for_encrypted) in [
            ("http_proxy", true, false),
            ("HTTP_PROXY", false, false),
            ("https_proxy", false, true),
            ("HTTPS_PROXY", false, true),
            ("all_proxy", true, true),
            ("ALL_PROXY", true, true),
        ] {
            let variables = [(name, "p")];
            assert_eq!(chosen(plain, &variables).is_some(), for_plain, "{name}");
            assert_eq!(chosen(encrypted, &variables).is_some(), for_encrypted, "{name}");
        }
        assert_eq!(chosen(encrypted, &[("HTTPS_PROXY", "b"), ("https_proxy", "a")]).as_deref(), Some("a"));
        assert_eq!(chosen(plain, &[("http_proxy", ""), ("all_proxy", "p")]), None);
        assert_eq!(chosen(plain, &[("http_proxy", "p"), ("NO_PROXY", "example.org")]), None);
        assert!(chosen(plain, &[("http_proxy", "p"), ("no_proxy", ""), ("NO_PROXY", "*")]).is_some());
    }

    #[test]
    fn exceptions_are_hosts_domains_and_networks() {
        for (list, host, expected) in [
            ("*", "example.org", true),
            ("a, example.org", "example.org", true),
            (".example.org", "www.Example.org", true),
            ("example.org", "www.example.org.", true),
            ("example.org", "anexample.org", false),
            ("www.example.org", "example.org", false),
            ("example.org *", "other", false),
            ("", "other", false),
            (",.,", "other", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("127.0.0.0/8", "127.9.9.9", true),
            ("127.0.0.0/33", "127.0.0.0", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.1", "127.0.0.1", false),
            ("[::1]", "::1", true),
            ("fe80::/10", "fe80::1", true),
            ("fe80::/10", "127.0.0.1", false),
        ] {
            assert_eq!(is_exception(list, host), expected, "{list:?} {host}");
        }
    }
}
