//! What tests of the workspace stand on.

pub mod bed;
mod emulator;
mod symbols;

pub use emulator::Emulator;
