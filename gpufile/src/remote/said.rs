//! The words of a server about a refusal, for messages.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::connection::answer::Clues;

const MOST_CHARS: usize = 300;
/// The fewest characters of a secret. Shorter values are part of other words.
const LEAST_SECRET: usize = 6;

/// Returns a colon and the words of an answer on one line, without these secrets, or an empty text.
pub(super) fn said(clues: &Clues, body: &[u8], secrets: &[&str]) -> String {
    let mut found = of_body(&String::from_utf8_lossy(body));
    found.code = found.code.or_else(|| clues.code.clone());
    let region = found.region.or_else(|| clues.region.clone()).map(|region| format!("region {region}"));
    let request = clues.request.as_ref().map(|request| format!("request {request}"));
    let words: Vec<_> = found.code.into_iter().chain(found.message).collect();
    let about: Vec<_> = region.into_iter().chain(request).collect();
    let mut text = words.join(": ");
    if !about.is_empty() {
        text += &format!(" ({})", about.join(", "));
    }
    let text = hidden(&line(&text), secrets);
    if text.is_empty() { text } else { format!(": {text}") }
}

/// The parts of a body that are worth a message.
#[derive(Debug, Default)]
struct Found {
    code: Option<String>,
    message: Option<String>,
    region: Option<String>,
}

/// Finds the parts in the XML of S3 and Azure, the JSON of Google and others, or the first line of a text.
fn of_body(body: &str) -> Found {
    let body = body.trim_start_matches('\u{feff}').trim();
    if body.starts_with('{') || body.starts_with('[') {
        return serde_json::from_str(body).map(|value| of_json(&value)).unwrap_or_default();
    }
    if body.starts_with('<') {
        // Pages of HTML repeat the status.
        let [code, message, region] = ["Code", "Message", "Region"].map(|name| element(body, name));
        return Found { code, message, region };
    }
    let message = body.lines().next().filter(|line| !line.is_empty()).map(str::to_owned);
    Found { message, ..Found::default() }
}

/// Returns the text of an element of XML.
pub(super) fn element(body: &str, name: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once('<')?;
    let names =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#39;", "'"), ("&amp;", "&")];
    let text = names.iter().fold(text.to_owned(), |text, (name, sign)| text.replace(name, sign));
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the parts of an object such as `{"error": {"status": …, "message": …}}`.
fn of_json(value: &Value) -> Found {
    let value = value.get(0).unwrap_or(value);
    let inner = value.get("error").filter(|inner| inner.is_object()).unwrap_or(value);
    let text = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| inner.get(name)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned))
    };
    let code = text(&["status", "code", "Code", "error", "error_code"]);
    let message = text(&["message", "Message", "error_description", "detail", "title"]);
    Found { code, message, region: text(&["region"]) }
}

/// Returns a text as one line that is not too long.
fn line(text: &str) -> String {
    let printable = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    let words: String = printable.collect();
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

/// Returns a text without these secrets, and without the queries of addresses.
fn hidden(text: &str, secrets: &[&str]) -> String {
    let mut hidden = text.to_owned();
    for secret in secrets {
        let decoded: Cow<'_, str> = percent_decode_str(secret).decode_utf8_lossy();
        // A header may have a word before the secret.
        for word in [*secret, &*decoded].into_iter().flat_map(str::split_whitespace) {
            if word.chars().count() >= LEAST_SECRET {
                hidden = hidden.replace(word, "…");
            }
        }
    }
    let is_address = |word: &str| word.contains("://") || word.starts_with('/');
    let words = hidden.split(' ').map(|word| match word.split_once('?') {
        Some((before, _)) if is_address(word) => before,
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(body: &str) -> String {
        said(&Clues::default(), body.as_bytes(), &[])
    }

    #[test]
    fn bodies_of_each_store_have_words() {
        for (body, expected) in [
            (
                "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>no &lt;kms:Decrypt&gt; &amp; more</Message></Error>",
                ": AccessDenied: no <kms:Decrypt> & more",
            ),
            (
                "<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong</Message><Region>eu-west-1</Region></Error>",
                ": AuthorizationHeaderMalformed: wrong (region eu-west-1)",
            ),
            (
                "\u{feff}<?xml?><Error><Code>BlobNotFound</Code><Message>The blob is missing.\nRequestId:1\nTime:2</Message></Error>",
                ": BlobNotFound: The blob is missing. RequestId:1 Time:2",
            ),
            (
                "{\"error\": {\"code\": 403, \"status\": \"PERMISSION_DENIED\", \"message\": \"no access\"}}",
                ": PERMISSION_DENIED: no access",
            ),
            ("{\"error\": \"Access to model m is restricted\"}", ": Access to model m is restricted"),
            ("[{\"message\": \"a\"}]", ": a"),
            ("Auth failed: invalid range\nmore", ": Auth failed: invalid range"),
            ("<html><head><title>404 Not Found</title></head></html>", ""),
            ("{\"error\": ", ""),
            ("<Error>", ""),
            ("", ""),
        ] {
            assert_eq!(words(body), expected, "{body}");
        }
    }

    #[test]
    fn headers_say_more() {
        let some = |text: &str| Some(text.to_owned());
        let clues = Clues { code: some("NoSuchKey"), region: some("eu-west-1"), request: some("A1") };
        assert_eq!(said(&clues, b"", &[]), ": NoSuchKey (region eu-west-1, request A1)");
        assert_eq!(
            said(&clues, b"<Code>Other</Code><Region>us-west-2</Region>", &[]),
            ": Other (region us-west-2, request A1)"
        );
    }

    #[test]
    fn words_are_one_short_line_without_secrets() {
        let long = "ä".repeat(5000);
        assert_eq!(words(&long).chars().count(), 2 + MOST_CHARS + 1);
        assert_eq!(words("a\tb\u{1b}[31mc\0"), ": a b [31mc");
        let secrets = ["a%2Bsecret", "Bearer hidden-token", "1"];
        let text =
            "token hidden-token of a+secret at https://example.org/a?sig=other and /b?c=d failed 1 time?";
        let shown = said(&Clues::default(), text.as_bytes(), &secrets);
        assert_eq!(shown, ": token … of … at https://example.org/a and /b failed 1 time?");
        let code = Clues { code: Some("a%2Bsecret".to_owned()), ..Clues::default() };
        assert_eq!(said(&code, b"", &secrets), ": …");
    }
}
