//! libcufile, libcudart, libcuda and libnccl in one shared object, without a GPU.
//!
//! ```toml
//! [dev-dependencies]
//! cufile-emulator = "0.1"
//! ```
//!
//! A test loads it with [`Emulator::start`]. Cargo builds the shared library together with the test.
//!
//! The emulator moves bytes with `pread` and `pwrite`. "Device" memory is an address range that faults, with a hidden
//! twin for the emulator's copies: a host access that should have been a copy is a segmentation fault. Each stream is
//! a queue with a thread, so work runs asynchronously as on a GPU.
//!
//! [`emulator_control`] sets the emulated cuFile version and the faults. The functions that the version lacks cannot be
//! looked up. docs/emulator.md in the repository explains how to run a program on the emulator.
//!
//! The emulator prints the reason and aborts in calls that make the real libraries crash or corrupt memory:
//!
//! - two `cudaMemcpyBatchAsync` at once, on any threads and streams;
//! - two calls at once that open, close, set or read, for versions before 1.16;
//! - an array of vectors with empty and other entries;
//! - two threads that submit transfers to one stream at once;
//! - the first transfer of device memory in a stream, if a host function stays pending there for 20 s: libcufile hangs;
//! - reading the properties or setting a limit while a transfer is in flight, for versions before 1.16;
//! - a kernel with an entry outside live memory of its GPU, with entries that overlap (targets of a scatter may overlap
//!   each other), or with an unloaded module;
//! - a copy or kernel that begins in one staging buffer of an allocation and reaches the next. The emulator learns the
//!   starts of staging buffers from the launches of kernels.
//!
//! Page-locked memory and memory that the host shares with a GPU end at a page that faults.
//!
//! A write to a descriptor with `O_DIRECT` is unaligned if its file offset or length is not a multiple of 4096 bytes.
//! The emulator then reads, changes and writes back a first or last block that the write covers only partly.
//! libcufile does so on a direct path. Bytes that another thread writes to these blocks in between are lost, often
//! but not each time. The command `rmw 0` turns this off.
//!
//! Held work goes on only with `release`, so cancelling or destroying a batch waits for its held entries.
//!
//! The emulator is simpler than CUDA:
//!
//! - synchronising with the null stream waits for its own work alone;
//! - every context is the primary context of its device;
//! - access rights of mapped memory hold for every device;
//! - ranks of libnccl are on one host, their communicators never block, and each collective call is in a group;
//! - there are no graphs or arrays, and no kernels except gpufile's, which it knows by their names and runs on the host.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "cufile-emulator is for Linux on x86-64 and aarch64. Name it under [target.'cfg(target_os = \"linux\")'.dev-dependencies] in \
     Cargo.toml, and write #[cfg(target_os = \"linux\")] before the code that uses it"
);

mod c;
mod commands;
mod control;
mod cubin;
mod device;
mod emulator;
mod event;
mod exports;
mod kernels;
mod mapping;
mod memory;
mod newer;
mod pack;
mod queue;
mod ranks;
mod space;
mod status;
mod stream;
mod trace;
mod unpack;
mod virtual_memory;

pub use commands::emulator_control;
pub use emulator::{Emulator, Held, library_path};
