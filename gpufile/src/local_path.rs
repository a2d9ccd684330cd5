//! The difference between the path of a file and the address of an object on a server. Both are texts.

use std::path::{Path, PathBuf};

use crate::error::{Cause, Error, Result};

/// The schemes of addresses that a path can lose a slash of: `pathlib` and [`Path::join`] make `s3:/bucket` of `s3://bucket`.
const SCHEMES: [&[u8]; 21] = [
    b"abfs", b"abfss", b"adl", b"az", b"azure", b"dbfs", b"file", b"ftp", b"gcs", b"gs", b"hdfs", b"hf",
    b"http", b"https", b"oss", b"s3", b"s3a", b"s3n", b"sftp", b"wasb", b"wasbs",
];

/// Returns whether a text is an address: a scheme of two letters or more, and `://`.
///
/// Any other text is a path, such as `a:b`, `./s3://bucket` or `C:\file`.
///
/// ```
/// assert!(gpufile::is_address(b"s3://bucket/model.safetensors"));
/// assert!(!gpufile::is_address(b"./s3://bucket/model.safetensors"));
/// ```
pub fn is_address(text: &[u8]) -> bool {
    scheme_and_rest(text).is_some_and(|(_, rest)| rest.starts_with(b"//"))
}

/// Refuses a path that is an address, also one of a known scheme that has lost a slash. Functions that take a path call it.
///
/// ```
/// use std::path::Path;
///
/// let error = gpufile::check_path(Path::new("s3:/bucket/key")).unwrap_err();
/// assert!(error.to_string().contains("an address that lost a slash"));
/// assert!(gpufile::check_path(Path::new("/data/s3:")).is_ok());
/// ```
///
/// # Errors
/// [`Error::Open`] with [`Cause::Invalid`]. It shows the address without what may be secret in it.
pub fn check(path: &Path) -> Result<()> {
    refuse(path).map_err(|cause| Error::Open { path: shown(path), cause })
}

/// As [`check`], for callers whose errors name the path.
pub(crate) fn refuse(path: &Path) -> Result<(), Cause> {
    problem(path).map_or(Ok(()), |problem| Err(Cause::Invalid(problem)))
}

fn problem(path: &Path) -> Option<String> {
    let text = path.as_os_str().as_encoded_bytes();
    let (scheme, rest) = scheme_and_rest(text)?;
    let has_lost_a_slash =
        || rest.starts_with(b"/") && SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme));
    let what = match () {
        () if rest.starts_with(b"//") => "it is an address, and not the path of a file",
        () if has_lost_a_slash() => "it is an address that lost a slash, and not the path of a file",
        () => return None,
    };
    Some(format!("{what}: pass an address as text to a function that takes one, or write ./ before the path"))
}

/// Splits a text at the colon behind its scheme.
fn scheme_and_rest(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (scheme, rest) = (&text[..colon], &text[colon + 1..]);
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let is_scheme = scheme.len() > 1 && scheme[0].is_ascii_alphabetic() && scheme.iter().all(is_part);
    is_scheme.then_some((scheme, rest))
}

/// Returns a path for errors. An address loses its query, its fragment, and a user with a password.
pub fn shown(path: &Path) -> PathBuf {
    if problem(path).is_none() {
        return path.to_owned();
    }
    let text = path.to_string_lossy();
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = text.split_once(":/").unwrap_or(("", text));
    let (host, below) =
        rest.trim_start_matches('/').split_once('/').unwrap_or((rest.trim_start_matches('/'), ""));
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{host}/{below}").into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_begin_with_a_scheme() {
        for text in ["s3://bucket/key", "HTTPS://a", "x+y-1.z://", "file:///a", "hf://org/model", "gcs://b"] {
            assert!(is_address(text.as_bytes()) && check(Path::new(text)).is_err(), "{text}");
        }
        for text in ["s3:/bucket/key", "file:/a", "HTTP:/a", "gs:/"] {
            assert!(!is_address(text.as_bytes()) && check(Path::new(text)).is_err(), "{text}");
        }
        for text in [
            "", "a", "/a", "a:b", "a:/b", "C://a", "./s3://a", "./s3:/x", "s3:", "s3:x", "://a", "1a://b",
            "a/b://c",
        ] {
            assert!(!is_address(text.as_bytes()) && check(Path::new(text)).is_ok(), "{text}");
        }
    }

    #[test]
    fn errors_show_no_secrets() {
        for (text, expected) in [
            ("s3://key:secret@bucket/a?token=secret", "s3://bucket/a"),
            ("https://me:secret@host", "https://host/"),
            ("s3:/me:secret@bucket/a", "s3://bucket/a"),
            ("s3://bucket/a@b", "s3://bucket/a@b"),
        ] {
            let error = check(Path::new(text)).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }
}
