//! Files that the command line names: by a path, or by the URL of an object on a server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{MapValueParser, PathBufValueParser, TypedValueParser, ValueParserFactory};

/// A file that the command line names.
#[derive(Clone)]
pub enum Location {
    Path(PathBuf),
    /// It may have secrets, which messages must not show. The path of the opened file has none.
    #[cfg(feature = "remote")]
    Url(String),
}

impl From<OsString> for Location {
    /// Takes a text that begins with a scheme and `://` for a URL. A path with such a beginning is written as `./…`.
    fn from(text: OsString) -> Self {
        #[cfg(feature = "remote")]
        if let Some(url) = text.to_str().filter(|text| has_scheme(text)) {
            return Self::Url(url.to_owned());
        }
        Self::Path(text.into())
    }
}

impl ValueParserFactory for Location {
    type Parser = MapValueParser<PathBufValueParser, fn(PathBuf) -> Self>;

    fn value_parser() -> Self::Parser {
        PathBufValueParser::new().map(|text| text.into_os_string().into())
    }
}

/// Returns a parser of paths that refuses URLs, for arguments that no object can stand for.
pub fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|text| match Location::from(text.into_os_string()) {
        Location::Path(path) => Ok::<_, &str>(path),
        #[cfg(feature = "remote")]
        Location::Url(_) => Err("only a path can be here, not a URL"),
    })
}

#[cfg(feature = "remote")]
fn has_scheme(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(is_part)
}

impl Location {
    /// Returns the path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            #[cfg(feature = "remote")]
            Self::Url(_) => None,
        }
    }

    /// Returns the URL, if it is one.
    #[cfg(feature = "remote")]
    pub fn url(&self) -> Option<&str> {
        match self {
            Self::Path(_) => None,
            Self::Url(url) => Some(url),
        }
    }

    /// Returns the last part of the path, of the path in the URL, or of the key. It is empty if that ends with a slash.
    pub fn name(&self) -> &Path {
        match self {
            Self::Path(path) => path.file_name().map_or(Path::new(""), Path::new),
            #[cfg(feature = "remote")]
            Self::Url(url) => Path::new(gpufile::cli_support::last_in(url)),
        }
    }
}

#[cfg(all(test, feature = "remote"))]
mod tests {
    use super::*;

    #[test]
    fn texts_with_a_scheme_are_urls() {
        let is_url = |text: &str| matches!(Location::from(OsString::from(text)), Location::Url(_));
        for text in ["http://a/b", "HTTPS://a", "s3://bucket/key", "x+y-1.z://", "file:///a"] {
            assert!(is_url(text), "{text}");
        }
        for text in ["", "a", "/a", "./http://a", "://a", "1a://b", "a/b://c", "http:/a", "C:\\a"] {
            assert!(!is_url(text), "{text}");
        }
    }

    #[test]
    fn names_are_the_last_part_without_the_query() {
        for (text, name) in [
            ("/a/b.npy", "b.npy"),
            ("b", "b"),
            ("..", ""),
            ("http://host/a/b.npy?sig=/x#y", "b.npy"),
            ("http://host/a/", ""),
            ("http://host", ""),
            ("http://host?a/b", ""),
            ("s3://bucket/a/b?c#d", "b?c#d"),
        ] {
            assert_eq!(Location::from(OsString::from(text)).name(), Path::new(name), "{text}");
        }
    }
}
