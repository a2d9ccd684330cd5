//! Files that the command line names: by a path, or by the URL of an object on a server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{MapValueParser, PathBufValueParser, TypedValueParser, ValueParserFactory};
use gpufile::is_address;

#[derive(Clone)]
pub enum Location {
    Path(PathBuf),
    /// It may have secrets, which messages must not show; the path of the opened file has none.
    Url(String),
}

impl From<OsString> for Location {
    /// Takes a text that begins with a scheme and `://` for a URL. A path with such a beginning is written as `./…`.
    fn from(text: OsString) -> Self {
        if let Some(url) = text.to_str().filter(|text| is_address(text.as_bytes())) {
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

/// Returns a parser that refuses URLs, for arguments that no object can stand for.
pub fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match is_address(path.as_os_str().as_encoded_bytes()) {
        false => Ok(path),
        true => Err("only a path can be here, not a URL"),
    })
}

impl Location {
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Url(_) => None,
        }
    }

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
            Self::Url(url) => Path::new(gpufile::remote::last_in(url)),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

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
    fn arguments_that_are_paths_refuse_urls() {
        let of_path = clap::builder::ValueParser::path_buf().type_id();
        let mut program = Cli::command();
        program.build();
        let mut found = 0;
        for command in program.get_subcommands() {
            for argument in command.get_arguments().filter(|one| one.get_value_parser().type_id() == of_path)
            {
                let alone = clap::Arg::new("path").value_parser(argument.get_value_parser().clone());
                let alone = clap::Command::new("alone").arg(alone);
                let parsed = |path: &str| alone.clone().try_get_matches_from(["alone", path]);
                let name = format!("{} {}", command.get_name(), argument.get_id());
                assert!(parsed("./a").is_ok(), "{name}");
                assert!(parsed("s3://bucket/key").is_err(), "{name} takes a URL for a path");
                found += 1;
            }
        }
        assert!(found >= 6, "{found}");
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
