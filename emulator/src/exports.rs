//! The C functions. Each counts its call and asks for a fault in its first line.

#![allow(missing_docs, reason = "C's functions, documented by NVIDIA")]
#![allow(
    clippy::missing_safety_doc,
    reason = "C's contracts: pointers are null or valid for what C declares"
)]
#![allow(non_snake_case, reason = "C's names")]

/// Lets the compiler check that functions have the types that the bindings declare. Older libraries lack those of `newer`.
/// A test makes sure that every bound function is in such a list.
macro_rules! declared {
    ($table:ty: $($name:ident)* $(; newer: $($newer:ident)*)?) => {
        const _: fn(&mut $table) = |table| {
            $(table.$name = $name;)*
            $($(table.$newer = Some($newer);)*)?
        };
    };
}

mod batch;
mod driver;
mod driver_api;
mod driver_streams;
mod handle;
mod io;
mod kernels;
mod nccl;
mod nvtx;
mod opened;
mod params;
mod runtime;
mod runtime_copy;
mod stats;
mod stream_io;
mod system;
mod unaligned;

pub(crate) use batch::live_batches;
pub(crate) use handle::{live_buffers, live_direct_handles, live_handles};
pub(crate) use nccl::live_comms;
pub(crate) use opened::use_count;
pub(crate) use stream_io::live_stream_registrations;
