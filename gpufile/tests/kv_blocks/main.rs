//! Tests of stores of blocks.

mod damaged;
mod killed;
mod readers;
mod regions;
mod stalled;
mod store;
mod striped;
mod sums;
mod watched;
