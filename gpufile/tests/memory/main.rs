//! Tests of what is allocated. Each runs in a process of its own, because the counters are of the whole process.

mod engine;
mod formats;
mod gguf;
mod host;
mod remote;
mod zarr;

use testkit::counting::Counting;

// The emulator is a separate library, and has its own allocator.
#[global_allocator]
static ALLOCATOR: Counting = Counting;
