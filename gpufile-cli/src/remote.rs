//! The options for objects of servers, which several commands share.
//!
//! A header may be secret, so this module parses it, and not clap, whose messages repeat the text.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use gpufile::is_address;
use gpufile::remote::{RemoteFile, RemoteOptions};

use super::failure::Failure;
use super::location::Location;
use super::units::{duration, size};

const MOST_BYTES: u64 = 1 << 20;

/// The options for requests to servers.
#[derive(clap::Args, Clone, Default, PartialEq)]
#[command(next_help_heading = "Options for URLs")]
pub struct RequestArgs {
    /// Sends a header with each request, or each line of FILE.
    #[arg(short = 'H', long, value_name = "NAME: VALUE|@FILE")]
    header: Vec<OsString>,
    /// Sends a failed request at most N times in all [default: 5].
    #[arg(long = "tries", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    request_tries: Option<u32>,
    /// Ends a try whose next 64 KiB take longer [default: 30; path: 10].
    #[arg(long = "timeout", value_name = "TIME", value_parser = duration)]
    request_timeout: Option<Duration>,
}

/// The options for opening objects of servers.
#[derive(clap::Args, Clone, Default, PartialEq)]
#[command(next_help_heading = "Options for URLs")]
pub struct RemoteArgs {
    #[command(flatten)]
    requests: RequestArgs,
    /// Keeps whole objects in FOLDER, of at most SIZE bytes in all.
    #[arg(long, value_name = "FOLDER:SIZE", value_parser = OsStringValueParser::new().try_map(Cache::parse))]
    cache: Option<Cache>,
}

#[derive(Debug, Clone, PartialEq)]
struct Cache {
    folder: PathBuf,
    most_bytes: u64,
}

impl Cache {
    fn parse(text: OsString) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let colon = bytes.iter().rposition(|&byte| byte == b':').filter(|&colon| colon > 0);
        let colon = colon.ok_or("expected FOLDER:SIZE, such as cache:100GiB")?;
        if is_address(bytes) {
            return Err("the folder of a cache is a path, not a URL".to_owned());
        }
        let most_bytes = size(&String::from_utf8_lossy(&bytes[colon + 1..]))?;
        Ok(Self { folder: OsString::from_vec(bytes[..colon].to_vec()).into(), most_bytes })
    }
}

impl RequestArgs {
    pub fn options(&self) -> Result<RemoteOptions, Failure> {
        let mut options = RemoteFile::options();
        for (name, value) in self.headers()? {
            options = options.header(name, value);
        }
        Ok(self.limited(options))
    }

    fn limited(&self, mut options: RemoteOptions) -> RemoteOptions {
        if let Some(tries) = self.request_tries {
            options = options.tries(tries);
        }
        if let Some(timeout) = self.request_timeout {
            options = options.timeout(timeout);
        }
        options
    }

    pub fn check_unused(&self) -> Result<(), Failure> {
        match *self == Self::default() {
            true => Ok(()),
            false => Err(Failure::Usage(UNUSED.to_owned())),
        }
    }

    /// Returns the time for each path, if it is limited. Refuses the other options beside a path.
    ///
    /// # Errors
    /// There is another option.
    pub fn path_timeout(&self) -> Result<Option<Duration>, Failure> {
        let timeout = self.request_timeout;
        Self { request_timeout: None, ..self.clone() }.check_unused().map(|()| timeout)
    }

    fn headers(&self) -> Result<Vec<(String, String)>, Failure> {
        let mut headers = Vec::new();
        for text in &self.header {
            let Some(path) = text.as_bytes().strip_prefix(b"@") else {
                headers.push(header(&text.to_string_lossy())?);
                continue;
            };
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            let lines = lines(&path)
                .map_err(|error| Failure::Other(format!("cannot read the headers in {path:?}: {error}")))?;
            let lines = lines.lines().filter(|line| !line.trim().is_empty());
            headers.extend(lines.map(header).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(headers)
    }
}

const UNUSED: &str = "--header, --tries, --timeout and --cache are for URLs";

/// Reads a file, which may be a pipe.
fn lines(path: &PathBuf) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Parses a header; the error does not repeat what may be secret.
fn header(line: &str) -> Result<(String, String), Failure> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let parts = line.split_once(':').filter(|(name, _)| !name.is_empty() && name.bytes().all(is_part));
    let (name, value) = parts.ok_or_else(|| {
        Failure::Usage("--header: expected NAME: VALUE, such as `Authorization: Bearer TOKEN`".to_owned())
    })?;
    Ok((name.to_owned(), value.trim().to_owned()))
}

impl RemoteArgs {
    pub fn options(&self) -> Result<RemoteOptions, Failure> {
        let options = self.requests.options()?;
        Ok(match &self.cache {
            Some(Cache { folder, most_bytes }) => options.cache(folder, *most_bytes),
            None => options,
        })
    }

    /// Leaves out headers and a cache, which writing does not use.
    pub fn upload_options(&self) -> RemoteOptions {
        self.requests.limited(RemoteFile::options())
    }

    /// Refuses headers and a cache where no object is read.
    pub fn check_for_upload(&self) -> Result<(), Failure> {
        match self.requests.header.is_empty() && self.cache.is_none() {
            true => Ok(()),
            false => Err(Failure::Usage("--header and --cache are for URLs that are read".to_owned())),
        }
    }

    /// Refuses options beside a path.
    pub fn check(&self, location: &Location) -> Result<(), Failure> {
        match location.path().is_none() || *self == Self::default() {
            true => Ok(()),
            false => Err(Failure::Usage(UNUSED.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_caches_have_a_size() {
        let parse = |text: &str| Cache::parse(text.into());
        let cache = |folder: &str, most_bytes| Ok(Cache { folder: folder.into(), most_bytes });
        assert_eq!(parse("/a:b:2k"), cache("/a:b", 2048));
        assert_eq!(parse("a:7"), cache("a", 7));
        for wrong in ["", "a", ":1", "a:", "a:b", "a:0"] {
            parse(wrong).unwrap_err();
        }
    }

    #[test]
    fn wrong_headers_are_not_repeated() {
        assert_eq!(header("A-b:  c: d ").unwrap(), ("A-b".to_owned(), "c: d".to_owned()));
        assert_eq!(header("A:").unwrap(), ("A".to_owned(), String::new()));
        for wrong in ["secret", "Bearer secret:x", ":secret", "sec\tret:"] {
            assert!(!header(wrong).unwrap_err().to_string().contains("secret"), "{wrong}");
        }
    }
}
