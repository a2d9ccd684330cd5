//! Signatures with HMAC-SHA256, as S3 and Azure describe them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

/// Returns the signature, version 4, of a canonical request. The scope is such as `20130524/us-east-1/s3/aws4_request`.
pub(super) fn aws4(secret: &str, scope: &str, time: &str, request: &str) -> String {
    let first = format!("AWS4{secret}").into_bytes();
    let key = scope.split('/').fold(first, |key, part| hmac(&key, part).to_vec());
    let hash = hex(&Sha256::digest(request));
    hex(&hmac(&key, &format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}")))
}

/// Returns the signature of shared access to a resource such as `/blob/account/container/name`. The parameters of the query
/// have their short names, such as `sp`.
pub(super) fn shared_access<'a>(key: &[u8], resource: &'a str, value: impl Fn(&str) -> &'a str) -> String {
    // The others are not in the query.
    let fields = [value("sp"), value("st"), value("se"), resource, "", "", "", value("sv"), value("sr")];
    let text = format!("{}{}", fields.join("\n"), "\n".repeat(7));
    BASE64_STANDARD.encode(hmac(key, &text))
}

fn hmac(key: &[u8], text: &str) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    match key.len() {
        0..=BLOCK => block[..key.len()].copy_from_slice(key),
        _ => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of RFC 4231, cases 2 and 6.
    #[test]
    fn hmacs_are_those_of_the_rfc() {
        for (key, text, expected) in [
            (
                &b"Jefe"[..],
                "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            assert_eq!(hex(&hmac(key, text)), expected);
        }
    }

    /// The example of "Authenticating Requests: Using Query Parameters" in the reference of S3.
    #[test]
    fn signatures_are_those_of_the_reference() {
        let scope = "20130524/us-east-1/s3/aws4_request";
        let request = format!(
            "GET\n/test.txt\nX-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F{}\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\n\
             host:examplebucket.s3.amazonaws.com\n\nhost\nUNSIGNED-PAYLOAD",
            scope.replace('/', "%2F")
        );
        assert_eq!(
            aws4("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", scope, "20130524T000000Z", &request),
            "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
    }
}
