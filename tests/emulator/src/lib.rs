//! libcufile, libcudart and libcuda in one shared object, without a GPU.
//!
//! Files are moved with `pread` and `pwrite`. "Device" memory is an address range that no one may touch, with a hidden
//! twin that the emulator copies through: a host access that should have been a copy is a segmentation fault. Streams
//! are queues with a thread each, so what is asynchronous on a GPU is asynchronous here.
//!
//! [`emulator_control`] sets the cuFile version that the library poses as, and where it fails. docs/emulator.md explains
//! how to run a program on it. Symbols that an older version lacks are hidden by the code that loads the
//! file, not here.
//!
//! The emulator prints why and aborts where the real libraries crash or corrupt memory:
//!
//! - two `cudaMemcpyBatchAsync` at once, on whichever threads and streams;
//! - two calls at once of those that open, close, set or read, for versions before 1.16;
//! - vectors of which some are empty;
//! - reading the properties or setting a limit while bytes are on their way, for versions before 1.16.
//!
//! Unless the command `rmw 0` was given, an unaligned write to a descriptor with `O_DIRECT` takes whole
//! blocks, as on a direct path. Bytes that another thread writes to such a block during the write are lost. A
//! race shows often, but not each time.
//!
//! Work that `hold` stops goes on only with `release`: cancelling or destroying a batch waits for an entry
//! that is held.
//!
//! The emulator is simpler than CUDA: the null stream is one more queue, ordered with no other stream; a
//! context is the primary context of its device; access rights of mapped memory hold for every device; there
//! are no graphs, arrays or kernels.

mod c;
mod control;
mod device;
mod exports;
mod memory;
mod status;
mod stream;
mod virtual_memory;

pub use control::emulator_control;
