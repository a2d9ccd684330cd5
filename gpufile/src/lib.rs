//! Moves bytes between files and GPU or host memory, over the fastest route that this machine has.
//!
//! A [`File`] reads into and writes from device and host memory alike. For device memory, it uses cuFile where cuFile
//! moves the bytes without host memory. Elsewhere, for example without GPUDirect Storage or libcufile, the bytes pass
//! through pinned host memory. Host memory needs neither CUDA nor a GPU. Not yet run on real hardware: GPUDirect
//! Storage with nvidia-fs, P2PDMA, aarch64 processors, and more than two GPUs.
//!
//! ```toml
//! [dependencies]
//! gpufile = "0.1"
//! ```
//!
//! On other systems than Linux the crate does not compile, unlike `libcufile`: host memory needs no library, so the crate would
//! have to read and write files there, and its engine consists of Linux's calls for memory, files and processors. A crate that
//! also builds there names it under `[target.'cfg(target_os = "linux")'.dependencies]`, and writes
//! `#[cfg(target_os = "linux")]` before the code that uses it.
//!
//! ```
//! use gpufile::File;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("weights.bin");
//! let file = File::create(&path)?;
//! file.write_all_at(b"weights".as_slice(), 0)?;
//! let mut bytes = vec![0; 7]; // or device memory
//! file.read_exact_at(&mut bytes, 0)?;
//! assert_eq!(bytes, b"weights");
//! # Ok(())
//! # }
//! ```
//!
//! One contract holds on every route. A read is short only at the end of the file. The engine continues interrupted and
//! partial transfers. An error names the file, the range, the cause, and the number of bytes that had been transferred.
//!
//! # Load a model
//!
//! A [`Checkpoint`](formats::safetensors::Checkpoint) loads the tensors of a safetensors model into one allocation, as
//! fast as one large read. [`formats`] also has `.npy` and, with the feature `zarr`, Zarr.
//!
//! ```
//! use gpufile::formats::{Dtype, SaveOptions};
//! use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! # let weight = vec![0; 64];
//! # safetensors::save(&path, &[TensorData::new("weight", Dtype::F16, &[4, 8], &weight)], &SaveOptions::new())?;
//! let checkpoint = Checkpoint::open(&path)?;
//! let loaded = checkpoint.load().to_host()?; // or to_device(&device)
//! for tensor in loaded.iter() {
//!     println!("{} {} {:?}", tensor.info.name, tensor.info.dtype, tensor.info.shape);
//! }
//! # assert_eq!(loaded.bytes("weight"), Some(&weight[..]));
//! # Ok(())
//! # }
//! ```
//!
//! A [`Placement`](formats::safetensors::Placement) spreads a model over several GPUs: whole tensors, slices for tensor
//! parallelism, or copies. Each byte is read once, and copied between GPUs where several need it:
//!
//! ```no_run
//! use gpufile::Engine;
//! use gpufile::formats::safetensors::{Checkpoint, Cut, Placement, Share};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cuda = Engine::global().cuda()?;
//! let devices = [cuda.device(0)?, cuda.device(1)?];
//! let placement = Placement::by(|tensor| match tensor.name.ends_with("o_proj.weight") {
//!     true => Share::Slice { axis: 1, cut: Cut::Even }, // columns
//!     false => Share::All,
//! });
//! let checkpoint = Checkpoint::open("model.safetensors.index.json")?;
//! let loaded = checkpoint.load().placed(&placement).to_devices(&devices)?;
//! println!("{} tensors and slices on {:?}", loaded[1].iter().len(), loaded[1].buffer().device());
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `nccl`, several processes load such a model together, each to its own GPU: see the module `ranks`.
//!
//! A file of another format goes to the GPU with one [`File::read_exact_at`]:
//!
//! ```no_run
//! use gpufile::{Engine, File};
//!
//! let device = Engine::global().cuda()?.device(0)?;
//! let file = File::open("model.bin")?;
//! let mut weights = device.alloc(file.len_bytes()? as usize)?;
//! file.read_exact_at(&mut weights, 0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Read many ranges
//!
//! One [`File::read_many`] is much faster than many reads: the engine packs small ranges, merges neighbours, and
//! shares the work among all workers. [`Engine::read_many`] takes several files and buffers. [`File::read_many_each`]
//! and [`Engine::read_many_each`] return the outcome of each range. Use [`File::read_at_async`] and
//! [`File::read_many_async`] if the program has other work to do until the bytes are there, and
//! [`File::read_many_each_async`] for the outcome of each range as well.
//!
//! Ranges may have any order in the file and in the buffer. On a GPU, a kernel copies short ranges to their places. For
//! that, each worker keeps two staging buffers of about 2 MiB of GPU memory, which [`Engine::release_buffers`] frees.
//! [`File::read_many`] states which ranges may overlap.
//!
//! Many small ranges of a cached file are fastest from a mapping. [`File::map`] is safe while other programs write to
//! the file or shorten it. [`File::map_unchecked`] is faster for ranges shorter than 4 KiB, but the file must not
//! change.
//!
//! ```
//! use gpufile::{File, IoRange};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("table.bin");
//! # std::fs::write(&path, (0..=255).collect::<Vec<u8>>())?;
//! let file = File::open(&path)?;
//! let rows = [7, 2, 12];
//! let mut buffer = vec![0; rows.len() * 16]; // or device memory
//! let ranges: Vec<_> = rows
//!     .iter()
//!     .enumerate()
//!     .map(|(place, row)| IoRange { file_offset: row * 16, buffer_offset: place * 16, len_bytes: 16 })
//!     .collect();
//! file.read_many(&mut buffer, &ranges)?;
//! assert_eq!((buffer[0], buffer[16], buffer[32]), (7 * 16, 2 * 16, 12 * 16));
//! # Ok(())
//! # }
//! ```
//!
//! # Keep the blocks of a KV cache
//!
//! With the feature `kv-blocks`, the module `kv_blocks` stores and fetches blocks of paged memory by their keys, with an
//! outcome and a deadline for each. A storage that does not answer holds up no caller, and a killed process leaves whole
//! blocks.
//!
//! # Write back
//!
//! [`File::write_all_at`] changes a file in place. A failure or a killed process leaves part of the new bytes, and
//! [`File::sync_all`] makes them durable. [`safetensors::save`](formats::safetensors::save) replaces a model as a
//! whole: a killed process leaves the old model or the new one. The file system needs room for both.
//!
//! ```
//! use gpufile::File;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("state.bin");
//! # std::fs::write(&path, [0; 4096])?;
//! let file = File::options().read(true).write(true).open(&path)?;
//! let state = vec![7; 1024]; // or device memory
//! file.write_all_at(&state, 2048)?;
//! file.sync_all()?;
//! # assert_eq!(std::fs::read(&path)?[2047..2049], [0, 7]);
//! # Ok(())
//! # }
//! ```
//!
//! # Use streams
//!
//! A stream-ordered transfer starts when the work already in the stream is done, and later work in the stream waits
//! for it. The call itself does not wait, except in the cases that [`File::read_at_on_stream`] lists. A transfer
//! takes pinned memory and one of the GPU's hardware queues until it ends, so a few long transfers are better than
//! many short ones. [`File::read_many_on_stream`] reads many ranges as one transfer.
//!
//! ```no_run
//! use gpufile::{Engine, File};
//!
//! let device = Engine::global().cuda()?.device(0)?;
//! let stream = device.stream()?;
//! let file = File::open("batch.bin")?;
//! let read = file.read_at_on_stream(&stream, device.alloc(256 << 20)?, 0);
//! // Kernels that are launched on the stream here find the bytes in the buffer.
//! let (outcome, batch) = read.wait(); // or read.await
//! println!("{} bytes on {:?}", outcome?, batch.device());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The feature `cudarc` adds the module of that name, for slices, views and streams of the crate cudarc, which candle
//! also uses. With candle's default device, pass `Stream::from_cudarc` of its per-thread stream; the module's guide
//! explains that stream.
//!
//! # Use memory and files of other libraries
//!
//! [`cuda::DeviceMemory`] is device memory of another library together with its owner, and
//! [`BufSliceMut::from_device`] borrows such memory. All transfers take both. [`OpenOptions::open_borrowed_fd`] uses
//! a file that another library keeps open.
//!
//! ```no_run
//! use std::os::fd::BorrowedFd;
//! use gpufile::cuda::{Device, DeviceMemory};
//! use gpufile::{File, IoRange, Result};
//!
//! /// A tensor of some framework.
//! struct Tensor {
//!     address: *mut u8,
//!     len_bytes: usize,
//! }
//!
//! fn load(file: BorrowedFd<'_>, ranges: &[IoRange], device: &Device, tensor: Tensor) -> Result<Tensor> {
//!     let (address, len_bytes) = (tensor.address, tensor.len_bytes);
//!     // SAFETY: the tensor keeps its memory until it is dropped, and no other code has the tensor.
//!     let mut memory = unsafe { DeviceMemory::from_raw(device, address, len_bytes, tensor) };
//!     File::options().open_borrowed_fd(file)?.read_many(&mut memory, ranges)?;
//!     Ok(memory.into_owner())
//! }
//! ```
//!
//! # Read contents of your own
//!
//! [`File::from_storage`] makes a file over anything that reads ranges: another client's object, a cache, a decoder. Models and
//! arrays load from it too. The module [`storage`] has the contract, an example, and a suite that checks it.
//!
//! # Choose settings
//!
//! The defaults suit most machines. Every file uses the process's default engine, which follows [environment
//! variables](Settings::from_env). [`Engine::builder`] configures another engine, and [`OpenOptions`] a single file.
//! More workers are faster up to the speed of the GPU's link, but use more processors and pinned memory.
//! [`DirectIo::Always`] keeps the page cache free for other files, but then the next load comes from the disk.
//!
//! ```
//! use gpufile::{DirectIo, Engine, File, RoutePolicy};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data.bin");
//! # std::fs::write(&path, "data")?;
//! let engine = Engine::builder().threads(4).bounce_memory_bytes(64 << 20).build();
//! let file = File::options()
//!     .read(true)
//!     .engine(&engine)
//!     .policy(RoutePolicy::PosixOnly)
//!     .direct_read(DirectIo::Never)
//!     .open(&path)?;
//! assert_eq!(file.engine().settings().threads, 4);
//! # Ok(())
//! # }
//! ```
//!
//! # Prepare the first transfer
//!
//! An engine opens the cuFile driver with the first file that may have a direct route, which takes 60 to 110 ms with
//! libcufile 1.20. A program that opens the driver when it starts spares its first transfer this wait:
//!
//! ```no_run
//! use cufile::Driver;
//! use gpufile::Engine;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::builder().driver(Driver::open()?).build();
//! engine.warm_up(&[engine.cuda()?.device(0)?])?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Engine::warm_up`] prepares everything else: worker threads, pinned memory and kernels. An engine with an open driver
//! uses cuFile also where only the driver knows of a direct route.
//!
//! # Register memory
//!
//! [`Engine::register`] pins GPU memory once for the direct routes. That is worth its time for a buffer that many aligned
//! transfers use. It is not for a buffer that is filled once, for unaligned transfers, or on a GPU whose BAR 1 is
//! smaller than its memory. [`RegisteredBuffer`] has the table, the four conditions of an unaligned transfer, and the host
//! memory that a registration takes. Without a direct route, registration changes nothing.
//!
//! # Find out why it is slow
//!
//! 1. [`File::route`] returns the route between the file and device memory, and why it is not a better one.
//! 2. [`page_cache::residency`] returns how much of the file is cached. The rest is read at the speed of the disk.
//! 3. [`Engine::stats`] returns how many bytes took each route so far, and what kept files from a better one.
//! 4. Nsight Systems shows each transfer, chunk and wait for copies as a range (NVTX) of its thread.
//! 5. The program `gpufile check FILE` prints both, and `gpufile bench FILE` measures the file, the disk and the GPU's
//!    link.
//!
//! ```
//! use gpufile::{File, RouteKind, page_cache};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data.bin");
//! # std::fs::write(&path, "data")?;
//! let file = File::open(&path)?;
//! if file.route().kind() != RouteKind::Gds {
//!     println!("{}", file.route());
//! }
//! let cached = page_cache::residency(&file, 0..file.len_bytes()?)?;
//! println!("{:.0} % cached", 100.0 * cached.fraction());
//! # Ok(())
//! # }
//! ```
//!
//! Many small calls are slower than one call with many ranges. Writing a new file is limited by the file system,
//! which allocates its blocks.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `formats`, on by default | [`formats`], with serde and serde_json |
//! | `zarr` | Zarr arrays in [`formats`], on the crate zarrs |
//! | `hash` | the comparison of models with SHA-256 |
//! | `kv-blocks` | the module `kv_blocks`, with crc32fast |
//! | `nccl` | the module `ranks` |
//! | `remote` | the module `remote`, with httparse, rustls and url; `formats` too |
//! | `s3` | objects of S3, Azure Blob Storage and Google Cloud Storage in `remote`, with object_store |
//! | `azure`, `gcs` | other names of `s3` |
//! | `cudarc` | the module of that name |
//! | `tracing` | a span for each request, and an event for each way not taken, with the crate tracing |
//! | `object_store` | objects of the crate object_store, with its clients, in [`storage`] |
//!
//! # Types of other crates
//!
//! These crates have types in public functions. A version of gpufile that takes an incompatible version of one of them is a
//! breaking version: before 1.0 the second number rises, then the first. So `cargo update` never brings other types.
//!
//! | crate | version | feature | also at |
//! |---|---|---|---|
//! | `cufile`, the package `libcufile` | equal to gpufile's | | its own documentation lists more crates |
//! | `cuda_rt_sys` | equal to gpufile's | | `cufile::cuda` |
//! | `zarrs` | 0.22 | `zarr` | `formats::zarr::zarrs` |
//! | `zarrs_storage`, `zarrs_metadata` | those of zarrs | `zarr` | `zarrs::storage`, `zarrs::metadata` |
//! | `cudarc` | 0.19 | `cudarc` | `cudarc::cudarc` |
//! | `object_store` | 0.14 | `object_store` | |
//! | `tokio` | 1 | `object_store` | |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
// In tests, forked children use no locks of their parent.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "gpufile is for Linux on x86-64 and aarch64. Name it under [target.'cfg(target_os = \"linux\")'.dependencies] in Cargo.toml, \
     and write #[cfg(target_os = \"linux\")] before the code that uses it"
);

mod direction;
mod engine;
mod error;
mod file;
#[cfg(feature = "formats")]
pub mod formats;
mod future;
mod gpu;
#[cfg(feature = "formats")]
mod host_bytes;
#[cfg(feature = "kv-blocks")]
pub mod kv_blocks;
mod lists;
mod local_path;
mod memory;
mod open_file;
#[cfg(feature = "nccl")]
pub mod ranks;
#[cfg(feature = "remote")]
pub mod remote;
mod route;
mod settings;
pub mod storage;
pub mod trusted;

pub use cufile;
pub use cufile::cuda;
#[cfg(feature = "cudarc")]
pub use cufile::cudarc;
pub use cufile::{
    BufSlice, BufSliceMut, Failed, FileProperties, IoBuf, IoBufMut, Location, OwnedPart, RegisteredBuffer,
};
#[doc(alias = "ThreadPool")]
#[doc(alias = "thread_pool")]
pub use engine::Engine;
pub use engine::{EngineBuilder, IoRange};
#[doc(alias = "message")]
#[doc(alias = "context_iter")]
#[doc(alias = "with_context")]
#[doc(alias = "with_operation")]
#[doc(alias = "set_source")]
#[doc(alias = "set_permanent")]
#[doc(alias = "set_temporary")]
#[doc(alias = "set_persistent")]
#[doc(alias = "backtrace")]
pub use error::Error;
pub use error::{Cause, Result};
#[doc(alias = "FileHandle")]
#[doc(alias = "FileWrapper")]
#[doc(alias = "closed")]
#[doc(alias = "opened")]
#[doc(alias = "close")]
#[doc(alias = "posix_close")]
pub use file::File;
pub use file::options::OpenOptions;
#[doc(alias = "StreamFuture")]
pub use future::IoFuture;
pub use lists::Request;
pub use local_path::{check as check_path, is_address};
pub use open_file::page_cache;
#[doc(alias = "CompatModeManager")]
pub use route::Route;
#[doc(alias = "CompatMode")]
#[doc(alias = "is_gds_preferred")]
pub use route::RoutePolicy;
pub use route::{RouteKind, Stats, Traffic};
#[doc(alias = "defaults")]
#[doc(alias = "Config")]
pub use settings::Settings;
pub use settings::{DirectIo, ParseBytesError, Setting, SettingsError, parse_bytes};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
