//! The requests of a try, which differ in their range only.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use super::super::address::Address;
use super::super::proxy::Proxy;

/// The most bytes of two numbers and the hyphen between them.
const RANGE_BYTES: usize = 41;

#[derive(Debug)]
pub(crate) struct Request<'o> {
    pub address: Arc<Address>,
    /// The headers, except the host and the range.
    pub headers: Vec<(&'o str, &'o str)>,
    /// The proxy that gets requests without encryption.
    for_proxy: Option<Proxy>,
}

impl<'o> Request<'o> {
    pub fn new(address: Arc<Address>, headers: Vec<(&'o str, &'o str)>, proxy: Option<&Proxy>) -> Self {
        let for_proxy = proxy.filter(|_| !address.is_encrypted()).cloned();
        Self { address, headers, for_proxy }
    }

    /// Returns the length of the text of one request, or a little more.
    pub fn most_text_bytes(&self) -> usize {
        self.text(std::slice::from_ref(&(0..1))).len() + RANGE_BYTES
    }

    /// Returns the text of HTTP/1.1 that asks for these ranges.
    pub fn text(&self, ranges: &[Range<u64>]) -> String {
        let address = &self.address;
        let target = if self.for_proxy.is_some() { address.absolute() } else { address.target() };
        let mut behind = String::new();
        for (name, value) in &self.headers {
            behind.extend(["\r\n", name, ": ", value]);
        }
        behind += "\r\n";
        self.for_proxy.iter().for_each(|proxy| proxy.write_authorization(&mut behind));
        let before = format!("GET {target} HTTP/1.1\r\nHost: {}\r\nRange: bytes=", address.host());
        let mut text = String::with_capacity(ranges.len() * (before.len() + behind.len() + RANGE_BYTES + 2));
        for range in ranges {
            // A string takes all text.
            let _ = write!(text, "{before}{}-{}{behind}\r\n", range.start, range.end - 1);
        }
        text
    }
}
