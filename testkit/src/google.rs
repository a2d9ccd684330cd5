//! A service account of Google that tests made, and the checks of its signatures that Google Cloud Storage would make.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, RsaPublicKeyComponents};

/// The name of the account.
pub const EMAIL: &str = "test@example.org";
/// The account's private key, which no other program uses.
pub const PRIVATE_KEY: &str = include_str!("google.pem");

/// Returns the account's key in Google's JSON.
pub fn key() -> String {
    let private_key = PRIVATE_KEY.replace('\n', "\\n");
    format!(
        r#"{{"type": "service_account", "client_email": "{EMAIL}", "private_key_id": "7",
            "private_key": "{private_key}"}}"#
    )
}

/// Returns the environment of a client that uses the account at a server.
pub fn variables(endpoint: &str) -> [(&'static str, String); 3] {
    [
        ("GOOGLE_BASE_URL", endpoint.to_owned()),
        ("GOOGLE_ALLOW_HTTP", "true".to_owned()),
        ("GOOGLE_SERVICE_ACCOUNT_KEY", key()),
    ]
}

/// Returns whether the account signed this path and query for a request `GET`, as Google's page "V4 signing process" says.
pub fn is_signed(target: &str) -> bool {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_escaped = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte);
    let mut pairs: Vec<_> = query.split('&').collect();
    pairs.sort_unstable();
    let value = |name: &str| pairs.iter().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let (Some(time), Some(signature)) = (value("X-Goog-Date"), value("X-Goog-Signature").and_then(of_hex))
    else {
        return false;
    };
    let scope = format!("{}/auto/storage/goog4_request", time.get(..8).unwrap_or_default());
    let credential = format!("{EMAIL}/{scope}").replace('@', "%40").replace('/', "%2F");
    let signed: Vec<_> =
        pairs.iter().copied().filter(|pair| !pair.starts_with("X-Goog-Signature=")).collect();
    let query = signed.join("&");
    let request = format!("GET\n{path}\n{query}\nhost:storage.googleapis.com\n\nhost\nUNSIGNED-PAYLOAD");
    let hash: String =
        digest(&SHA256, request.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("GOOG4-RSA-SHA256\n{time}\n{scope}\n{hash}");
    path.bytes().all(is_escaped)
        && value("X-Goog-Algorithm") == Some("GOOG4-RSA-SHA256")
        && value("X-Goog-Credential") == Some(&credential)
        && value("X-Goog-SignedHeaders") == Some("host")
        && verify(&text, &signature)
}

/// Returns whether the account signed this token, a JSON Web Token.
pub fn is_token(token: &str) -> bool {
    let Some((text, signature)) = token.rsplit_once('.') else { return false };
    let claims = text.split('.').nth(1).and_then(|claims| BASE64_URL_SAFE_NO_PAD.decode(claims).ok());
    let claims = String::from_utf8(claims.unwrap_or_default()).unwrap_or_default();
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap_or_default();
    claims.contains(&format!(r#""iss":"{EMAIL}""#)) && verify(text, &signature)
}

fn verify(text: &str, signature: &[u8]) -> bool {
    let lines: String = PRIVATE_KEY.lines().filter(|line| !line.starts_with("-----")).collect();
    let key = BASE64_STANDARD.decode(lines).expect("a key in the format PEM");
    let key = RsaKeyPair::from_pkcs8(&key).expect("a key of RSA");
    let public: RsaPublicKeyComponents<Vec<u8>> = key.public().into();
    public.verify(&RSA_PKCS1_2048_8192_SHA256, text.as_bytes(), signature).is_ok()
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}
