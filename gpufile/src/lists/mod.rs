//! Transfers of many ranges, of one file or of several, by one call.

mod each;
pub(crate) mod many;
pub(crate) mod request;

pub use request::Request;
