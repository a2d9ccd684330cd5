//! The table of all settings. A row makes the field and its default, the method of the builder, the variables, the
//! limits, their documentation, the row of docs/settings.md, the argument and the getter in Python, and the tests of all
//! these.

use std::thread;

/// Calls a macro with the table of settings, for bindings that give each setting an argument with its type.
/// [`Settings::table`](crate::Settings::table) has the same at run time.
///
/// ```
/// macro_rules! names {
///     ($({
///         $(#[$($doc:tt)*])*
///         pub $(($scope:tt))? $name:ident: $type:ty = $default:expr, $stated:literal;
///         $($rest:tt)*
///     })*) => {
///         [$(stringify!($name)),*]
///     };
/// }
///
/// assert!(gpufile::with_settings!(names).contains(&"threads"));
/// ```
///
/// Each row is in braces. A row is a setting:
///
/// - the field of [`Settings`](crate::Settings), its default, and this default in words or, in `code`, as the text of a variable.
///   The documentation of the field is also that of the page and of Python: its first paragraph has the unit and the limits, and
///   no links
/// - `set`: the argument of the method of [`EngineBuilder`](crate::EngineBuilder), from which `Into` makes the field, and the
///   documentation of the method
/// - `variable`, and for a setting that KvikIO has too, `kvikio`: its name in `kvikio.defaults`, and its variables, whose values
///   must agree
/// - `parse`: the function that reads a value, and the words that say what it accepts
/// - `limits`, for a number that has some
/// - `sample`: another value than the default, as the text of a variable and as the field
/// - `advice`: when to change it
#[macro_export]
macro_rules! with_settings {
    ($make:ident) => {
        $make! {
            {
                /// The choice whether transfers of device memory may or must use cuFile, for files that do not set it. Of the
                /// variable's values, `on` never uses cuFile, `off` requires it, and with `auto` the engine chooses.
                ///
                /// Names elsewhere: `compat_mode` (KvikIO, kvik-rs).
                #[doc(alias = "compat_mode")]
                pub policy: RoutePolicy = RoutePolicy::Auto, "`auto`";
                /// Sets whether transfers of device memory may or must use cuFile, for files that do not set it.
                ///
                /// Names elsewhere: `set_compat_mode` (KvikIO).
                #[doc(alias = "set_compat_mode")]
                set: RoutePolicy;
                variable: "GPUFILE_COMPAT_MODE"; kvikio: "compat_mode" ["KVIKIO_COMPAT_MODE"];
                parse: compat_mode, "on (or true, yes, 1), off (or false, no, 0), or auto";
                sample: "ON" => RoutePolicy::PosixOnly;
                advice: "`on` to compare with plain reads and writes. `off` if a program must fail where cuFile does not work.";
            }
            {
                /// The number of workers for each GPU, and for host memory, from 1 to 1024. They share transfers of many
                /// chunks. With the default, objects of servers have 64, or 32 if the server is near.
                ///
                /// Names elsewhere: `num_threads` (KvikIO, kvik-rs); `thread_pool_nthreads` (KvikIO).
                #[doc(alias = "num_threads")]
                #[doc(alias = "thread_pool_nthreads")]
                pub threads: usize = $crate::settings::table::default_threads(),
                    "one for each processor, at most 16";
                /// Sets the number of workers that share a transfer, from 1 to 1024. Each GPU that is used has this number of
                /// workers, and so does host memory. The calling thread waits for them. For host memory, the calling thread works
                /// too, and it works alone if the number is 1.
                ///
                /// The engine uses fewer workers where more would not help. One worker at a time writes a file on a local
                /// disk through the page cache. With `O_DIRECT`, a disk gets four requests at a time for each of its
                /// hardware queues, unless [`chunk_bytes`](Self::chunk_bytes) sets their length. Objects of servers have workers of
                /// their own, because these only wait: 64 for far servers, 32 for near ones. They have none if this method
                /// or [`settings`](Self::settings) changes the number, or [`bounce_memory_bytes`](Self::bounce_memory_bytes) is set.
                ///
                /// Names elsewhere: `set_num_threads`, `set_thread_pool_nthreads` (KvikIO).
                #[doc(alias = "set_num_threads")]
                #[doc(alias = "set_thread_pool_nthreads")]
                set: usize;
                variable: "GPUFILE_NUM_THREADS"; kvikio: "num_threads" ["KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"];
                parse: number, "a whole number from 1 to 1024";
                // More threads than any machine can use, and fewer than the operating system lets a process have.
                limits: 1..=1024;
                sample: "77" => 77;
                advice: "Fewer if the program needs the processors for other work while it reads.";
            }
            {
                /// The length in bytes of the chunks that one worker transfers at a time, at least 1. In a transfer of more than
                /// 4096 chunks, short chunks grow up to 1 MiB, so that their list stays short.
                ///
                /// Names elsewhere: `task_size` (KvikIO, kvik-rs).
                #[doc(alias = "task_size")]
                pub chunk_bytes: Option<usize> = None, "chosen for each transfer";
                /// Sets the length of chunks in bytes, at least 1. A worker transfers one chunk at a time. For device memory, a
                /// chunk is no larger than a bounce buffer. In a transfer of more than 4096 chunks, short chunks grow up to 1
                /// MiB. Without this setting, the engine chooses for each transfer.
                ///
                /// Names elsewhere: `set_task_size` (KvikIO).
                #[doc(alias = "set_task_size")]
                set: usize;
                variable: "GPUFILE_CHUNK_SIZE"; kvikio: "task_size" ["KVIKIO_TASK_SIZE"];
                parse: size, SIZE;
                limits: 1..=usize::MAX;
                sample: "1MiB" => Some(1 << 20);
                advice: "For a network file system that is fastest with requests of one length.";
            }
            {
                /// The length in bytes from which on transfers may use cuFile. Shorter transfers go through host memory,
                /// which is faster for them. With 0, all transfers may use cuFile.
                ///
                /// Names elsewhere: `gds_threshold` (KvikIO, kvik-rs).
                #[doc(alias = "gds_threshold")]
                pub gds_threshold_bytes: usize = 16 << 10, "`16KiB`";
                /// Sets the size in bytes below which transfers of device memory do not use cuFile, unless the file
                /// [requires cuFile](RoutePolicy::RequireCufile).
                ///
                /// Names elsewhere: `set_gds_threshold` (KvikIO).
                #[doc(alias = "set_gds_threshold")]
                set: usize;
                variable: "GPUFILE_GDS_THRESHOLD"; kvikio: "gds_threshold" ["KVIKIO_GDS_THRESHOLD"];
                parse: size_or_zero, "0, or a size that fits 64 bits, such as 65536, 64KiB or 4M";
                sample: "0" => 0;
                advice: "If `gpufile bench -x cufile,posix -i 4k,16k,64k` finds another length from which on cuFile is faster.";
            }
            {
                /// The number of bytes that each pinned bounce buffer has room for, from 1 to 1 GiB. The buffer itself is an
                /// eighth and 16 KiB longer, for alignment.
                ///
                /// Names elsewhere: `bounce_buffer_size`, `buffer_size` (KvikIO, kvik-rs).
                #[doc(alias = "bounce_buffer_size")]
                #[doc(alias = "buffer_size")]
                pub bounce_buffer_bytes: usize = $crate::settings::table::DEFAULT_BUFFER_BYTES, "`3584KiB`";
                /// Sets the size of a bounce buffer in bytes, from 1 to 1 GiB. The engine rounds it up to a multiple of 4096, and
                /// adds room for alignment. Each worker uses two buffers.
                ///
                /// Names elsewhere: `set_bounce_buffer_size` (KvikIO); `set_buffer_size` (kvik-rs).
                #[doc(alias = "set_bounce_buffer_size")]
                #[doc(alias = "set_buffer_size")]
                set: usize;
                variable: "GPUFILE_BOUNCE_BUFFER_SIZE"; kvikio: "bounce_buffer_size" ["KVIKIO_BOUNCE_BUFFER_SIZE"];
                parse: size, "a size above 0 and up to 1 GiB, such as 65536, 64KiB or 4M";
                // Two longer buffers for each thread need more memory than machines have.
                limits: 1..=1 << 30;
                sample: "16777216" => 16 << 20;
                advice: "`2MiB` on a busy host, if `gpufile bench` is faster with it.";
            }
            {
                /// The most bytes of pinned memory for the bounce buffers of each GPU, and for those of host memory, at least 1.
                /// The engine always allows two buffers, even if they need more.
                // `None` follows the threads and the buffers, no matter how and in which order they are set.
                pub(crate) bounce_memory_bytes: Option<usize> = None,
                    "two buffers for each worker and as many callers, at most 1/16 of the available memory";
                /// Limits the bytes of memory for the bounce buffers of each GPU, and for those of host memory; at least 1.
                /// [`Settings::bounce_memory_bytes`] states the default. The engine always allows two buffers, even if they need
                /// more. It starts no more workers than can have two buffers each. Stream-ordered transfers with `O_DIRECT` have
                /// separate buffers, which do not count. Neither do staging buffers: each worker that moves scattered ranges has
                /// two in the memory of its GPU, each as long as a bounce buffer. The same number of buffers again may be
                /// allocated in advance.
                set: usize;
                variable: "GPUFILE_BOUNCE_MEMORY";
                parse: size, SIZE;
                limits: 1..=usize::MAX;
                sample: "1 GiB" => Some(1 << 30);
                advice: "Less if pinned memory is scarce; workers without buffers do not start. More if many threads call at once.";
            }
            {
                /// The use of `O_DIRECT` for reads of files that do not set it.
                ///
                /// Names elsewhere: `auto_direct_io_read` (KvikIO, kvik-rs).
                #[doc(alias = "auto_direct_io_read")]
                pub direct_read: DirectIo = DirectIo::Auto, "`auto`";
                /// Sets whether reads use `O_DIRECT`, for files that do not set it.
                ///
                /// Names elsewhere: `set_auto_direct_io_read` (KvikIO).
                #[doc(alias = "set_auto_direct_io_read")]
                set: DirectIo;
                variable: "GPUFILE_DIRECT_READ"; kvikio: "auto_direct_io_read" ["KVIKIO_AUTO_DIRECT_IO_READ"];
                parse: direct_io, DIRECT;
                sample: "0" => DirectIo::Never;
                advice: "`always` for files that nothing reads again. `never` to fill the page cache for later readers.";
            }
            {
                /// The use of `O_DIRECT` for writes of files that do not set it.
                ///
                /// Names elsewhere: `auto_direct_io_write` (KvikIO, kvik-rs).
                #[doc(alias = "auto_direct_io_write")]
                pub direct_write: DirectIo = DirectIo::Auto, "`auto`";
                /// Sets whether writes use `O_DIRECT`, for files that do not set it.
                ///
                /// Names elsewhere: `set_auto_direct_io_write` (KvikIO).
                #[doc(alias = "set_auto_direct_io_write")]
                set: DirectIo;
                variable: "GPUFILE_DIRECT_WRITE"; kvikio: "auto_direct_io_write" ["KVIKIO_AUTO_DIRECT_IO_WRITE"];
                parse: direct_io, DIRECT;
                sample: "always" => DirectIo::Always;
                advice: "`always` for large files that nothing reads soon.";
            }
            {
                /// True if reads with `O_DIRECT` may read the whole blocks in which an unaligned range begins and ends. If
                /// not, unaligned ranges are read through the page cache.
                ///
                /// Names elsewhere: `auto_direct_io_read_overread` (KvikIO).
                #[doc(alias = "auto_direct_io_read_overread")]
                pub overread: bool = true, "`on`";
                /// Sets whether reads with `O_DIRECT` may read more than the caller asked for, up to the next multiples
                /// of the file system's alignment. If not, unaligned ranges go through the page cache.
                ///
                /// Names elsewhere: `set_auto_direct_io_read_overread` (KvikIO).
                #[doc(alias = "set_auto_direct_io_read_overread")]
                set: bool;
                variable: "GPUFILE_DIRECT_READ_OVERREAD";
                kvikio: "auto_direct_io_read_overread" ["KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD"];
                parse: switch, SWITCH;
                sample: "no" => false;
                advice: "`off` if reads with `O_DIRECT` must not read beyond the range.";
            }
        }
    };
}

/// The most workers of an engine that was given no number. More add little on one GPU's link.
pub const MOST_DEFAULT_THREADS: usize = 16;
/// The default length of the chunks that a bounce buffer has room for: long enough that the cost per call does not limit reads
/// and copies, and such that the buffer takes two huge pages.
pub const DEFAULT_BUFFER_BYTES: usize = 3584 << 10;

pub fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MOST_DEFAULT_THREADS)
}
