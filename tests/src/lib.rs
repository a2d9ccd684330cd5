//! The package of the tests that span crates.

/// Compiles the examples of pages that no published crate can include.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/emulator.md")]
#[doc = include_str!("../../docs/which-crate.md")]
#[doc = include_str!("../../emulator/README.md")]
struct Readme;
