//! The check of signatures that S3 would make, as its page "Signature Calculations for the Authorization Header" describes it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use ring::hmac::{HMAC_SHA256, Key, sign};

/// The account's secret key.
pub const SECRET: &str = "hidden";

const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns whether the account signed a request. The server does not know how the client escaped the object's key.
pub fn is_signed(method: &str, target: &str, header: impl Fn(&str) -> String) -> bool {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let decoded = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let escaped = |text: &str| utf8_percent_encode(text, STRICT).to_string();
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut pairs: Vec<_> = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
    pairs.sort();
    let value = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone());
    let authorization = header("authorization");
    let field = |name: &str| {
        let fields = authorization.split([' ', ',']);
        fields
            .filter_map(|field| field.strip_prefix(name)?.strip_prefix('='))
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let (credential, names, signature, time, hash) = match value("X-Amz-Signature") {
        Some(signature) => {
            let [credential, names, time] = ["X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Date"]
                .map(|name| value(name).unwrap_or_default());
            (credential, names, signature, time, "UNSIGNED-PAYLOAD".to_owned())
        }
        None => {
            let [time, hash] = ["x-amz-date", "x-amz-content-sha256"].map(&header);
            (field("Credential"), field("SignedHeaders"), field("Signature"), time, hash)
        }
    };
    let signed = pairs.iter().filter(|pair| pair.0 != "X-Amz-Signature");
    let query: Vec<_> = signed.map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
    let headers: String = names.split(';').map(|name| format!("{name}:{}\n", header(name).trim())).collect();
    let key = percent_decode_str(path).decode_utf8_lossy();
    let parts: Vec<_> = key.split('/').map(escaped).collect();
    let request = format!("{method}\n{}\n{}\n{headers}\n{names}\n{hash}", parts.join("/"), query.join("&"));
    let Some((_, scope)) = credential.split_once('/') else { return false };
    let hmac = |key: &[u8], text: &str| sign(&Key::new(HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let hash = hex(digest(&SHA256, request.as_bytes()).as_ref());
    let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), |key, part| hmac(&key, part));
    signature == hex(&hmac(&key, &format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}")))
}
