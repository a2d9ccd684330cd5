//! Tests of the engine on the emulator, and on a GPU where there is one: transfers, lists, overwrites, kernels, memory and threads.

mod blocks;
mod each;
mod holes;
mod kernels;
mod many;
mod one_processor;
mod overwrites;
mod pinning;
mod profiler_ranges;
mod properties;
mod several_gpus;
mod stats;
#[cfg(feature = "tracing")]
mod traces;
mod transfers;
mod warm_up;
