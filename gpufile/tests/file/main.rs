//! Tests of files: what each call promises, how they are opened, mapped and registered, and the texts of errors.

mod contract;
mod direct_io;
mod errors;
mod global_engine;
mod mapped;
mod opening;
mod registered;
mod roundtrip;
mod ways;
