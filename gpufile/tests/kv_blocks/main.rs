//! Tests of stores of blocks.

mod damaged;
mod killed;
mod regions;
mod stalled;
mod store;
