//! Scopes, in which transfers take borrowed buffers.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::abort;
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use std::{fmt, thread};

use crate::batch::{Batch, Completion};
use crate::driver::Driver;
use crate::error::Result;
use crate::failed::Failed;
use crate::fork::Mutex;
use crate::handle::FileHandle;
use crate::memory::{IoBuf, IoBufMut};
use crate::stream::{Count, Kept, LateBound, Operation, RegisteredStream};

/// Runs `work` with a scope, in which batches and stream-ordered transfers take borrowed buffers.
///
/// Returns, or continues a panic, only when every transfer of the scope has ended, even of forgotten operations and
/// batches, as [`std::thread::scope`] does for threads.
///
/// ```no_run
/// use std::sync::{Arc, MutexGuard};
///
/// use cufile::{Driver, Entry, FileHandle, RegisterFlags};
///
/// let driver = Driver::open()?;
/// let file = Arc::new(FileHandle::register(&driver, std::fs::File::open("data.bin")?)?);
/// let mut memory = driver.cuda().device(0)?.alloc(16 << 20)?;
/// driver.with_registered_mut(&mut memory, RegisterFlags::empty(), |memory| {
///     cufile::scope(|scope| {
///         let batch = scope.batch(&driver, 16)?;
///         let parts = memory.chunks(1 << 20).zip(0..);
///         batch.submit(parts.map(|(part, n)| Entry::read(&file, part, n << 20).id(n)))?;
///         for completion in batch.wait_all()? {
///             println!("entry {}: {} bytes", completion.id, completion.result?);
///         }
///         Ok::<_, cufile::Error>(())
///     })
/// })??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors of other types
/// A failed submission is a [`Failed`], which holds the borrowed buffers. `?` cannot turn it into a
/// `Box<dyn std::error::Error>`, which may hold no borrow:
///
/// ```compile_fail,E0373
/// # use std::{error::Error, sync::Arc};
/// # use cufile::{FileHandle, RegisteredStream};
/// # fn read(stream: &RegisteredStream, file: &Arc<FileHandle>) -> Result<(), Box<dyn Error>> {
/// let mut buffer = vec![0; 4096];
/// cufile::scope(|scope| -> Result<(), Box<dyn Error>> {
///     scope.read_at(stream, file, &mut buffer[..], 0)?.wait()?;
///     Ok(())
/// })
/// # }
/// ```
///
/// Let the function return a [`Result`] of this crate, and use `?` on the scope. Where the function also has errors of other
/// types, drop the buffers first: `map_err(cufile::Error::from)`.
///
/// ```no_run
/// # use std::{error::Error, sync::Arc};
/// # use cufile::{FileHandle, RegisteredStream};
/// # fn read(stream: &RegisteredStream, file: &Arc<FileHandle>) -> Result<(), Box<dyn Error>> {
/// let mut buffer = vec![0; 4096];
/// cufile::scope(|scope| -> cufile::Result<()> {
///     scope.read_at(stream, file, &mut buffer[..], 0)?.wait()?;
///     Ok(())
/// })?;
/// cufile::scope(|scope| -> Result<(), Box<dyn Error>> {
///     let reading = scope.read_at(stream, file, &mut buffer[..], 0).map_err(cufile::Error::from)?;
///     let (bytes, _) = reading.wait().map_err(cufile::Error::from)?;
///     std::fs::write("count", bytes.to_string())?;
///     Ok(())
/// })
/// # }
/// ```
///
/// # Borrows
/// A buffer must outlive the scope, not only the transfer:
///
/// ```compile_fail,E0597
/// # use cufile::{Driver, Entry, FileHandle};
/// # fn read(driver: &Driver, file: &std::sync::Arc<FileHandle>) -> cufile::Result<()> {
/// cufile::scope(|scope| {
///     let mut buffer = vec![0; 4096];
///     let batch = scope.batch(driver, 1)?;
///     batch.submit([Entry::read(file, &mut buffer[..], 0)])?;
///     Ok(())
/// })
/// # }
/// ```
///
/// While a transfer may be in flight, its buffer is borrowed:
///
/// ```compile_fail,E0499
/// # use cufile::{Driver, Entry, FileHandle};
/// # fn read(driver: &Driver, file: &std::sync::Arc<FileHandle>) -> cufile::Result<()> {
/// let mut buffer = vec![0; 4096];
/// cufile::scope(|scope| {
///     let batch = scope.batch(driver, 1)?;
///     batch.submit([Entry::read(file, &mut buffer[..], 0)])?;
///     buffer.fill(1);
///     batch.submit([Entry::read(file, &mut buffer[..], 0)])?;
///     Ok(())
/// })
/// # }
/// ```
///
/// # Aborts
/// Borrowed memory cannot be leaked. So the process aborts where an owned buffer would leak because its transfer may
/// be in flight: CUDA fails to wait for a stream; a stream is captured while a transfer is submitted; libcufile never
/// reports the end of a transfer, or can neither report nor cancel a batch. It also aborts if dropping a buffer
/// panics. While a stream of the scope is being captured, the scope does not end.
pub fn scope<'env, R>(work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
    let scope = Scope { in_use: ManuallyDrop::default(), scope: PhantomData, env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| work(&scope)));
    scope.end();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The value that [`scope`] passes to its function, to make batches and to submit transfers to streams.
///
/// A batch of the scope cannot be swapped for one that lives longer:
///
/// ```compile_fail
/// fn shortened<'a>(batch: cufile::Batch<&'static [u8]>) -> cufile::Batch<&'a [u8]> {
///     batch
/// }
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    // Empty at the end. A drop of the mutex could use what the scope refers to.
    in_use: ManuallyDrop<Mutex<InUse<'scope>>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct InUse<'scope> {
    streams: Vec<RegisteredStream>,
    counts: Vec<Count>,
    /// Pointers from boxes, to which users have references; the end of the scope makes boxes of them again.
    batches: Vec<NonNull<dyn InFlight + 'scope>>,
}

// SAFETY: a batch of any thread can be ended on any other.
unsafe impl Send for InUse<'_> {}

impl InUse<'_> {
    fn wait_for(&mut self, stream: &RegisteredStream) {
        if !self.streams.iter().any(|known| known.is_same(stream)) {
            self.streams.push(stream.clone());
        }
    }

    /// Forgets finished transfers now and then, so that a long scope needs memory only for those in flight.
    fn watch(&mut self, count: Count) {
        if self.counts.len() == self.counts.capacity() {
            self.counts.retain(|count| !count.is_written());
        }
        self.counts.push(count);
    }
}

trait InFlight {
    /// Returns false if libcufile cannot confirm that it is done with all buffers.
    fn settle(&mut self) -> bool;
}

impl<B> InFlight for Batch<B> {
    fn settle(&mut self) -> bool {
        Batch::settle(self, None)
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Sets up a batch of at most `capacity` entries at a time, which lives as long as the scope (`cuFileBatchIOSetUp`).
    ///
    /// Names elsewhere: `batch_io_set_up` (Python).
    ///
    /// # Errors
    /// As [`Batch::new`].
    #[doc(alias = "cuFileBatchIOSetUp")]
    #[doc(alias = "batch_io_set_up")]
    #[allow(clippy::mut_from_ref, reason = "each call makes another batch")]
    pub fn batch<B: IoBuf + Send + 'env>(
        &'scope self,
        driver: &Driver,
        capacity: usize,
    ) -> Result<&'scope mut Batch<B>> {
        let mut batch = NonNull::from(Box::leak(Box::new(Batch::set_up(driver, capacity)?)));
        self.in_use().batches.push(batch);
        // SAFETY: a box's content, to which this is the only reference until the scope has ended.
        Ok(unsafe { batch.as_mut() })
    }

    /// Cancels what is in flight in a batch of the scope, and returns every entry, as [`Batch::cancel`] does.
    ///
    /// Names elsewhere: `cuFileBatchIOCancel` (C); `batch_io_cancel` (Python).
    ///
    /// # Errors
    /// As [`Batch::cancel`].
    #[doc(alias = "cuFileBatchIOCancel")]
    #[doc(alias = "batch_io_cancel")]
    #[allow(clippy::type_complexity, reason = "the completions, and the error")]
    pub fn cancel<B: IoBuf>(
        &'scope self,
        batch: &'scope mut Batch<B>,
    ) -> Result<Vec<Completion<B>>, Failed<Vec<Completion<B>>>> {
        batch.cancel_in_place()
    }

    /// Reads into the whole of a borrowed buffer after the work already in the stream, as
    /// [`RegisteredStream::read_at`] does (`cuFileReadAsync`). For a part, pass a slice.
    ///
    /// ```no_run
    /// # use std::sync::{Arc, MutexGuard};
    /// # use cufile::{FileHandle, RegisteredStream, Result};
    /// # fn read(stream: &RegisteredStream, file: &Arc<FileHandle>) -> Result<()> {
    /// let mut buffers = [vec![0; 4096], vec![0; 100]];
    /// let [one, other] = &mut buffers;
    /// cufile::scope(|scope| {
    ///     let reading = scope.read_at(stream, file, one, 0)?;
    ///     let (bytes, _) = scope.read_at(stream, file, other, 4096)?.wait()?;
    ///     println!("{} and {bytes} bytes", reading.wait()?.0);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// The buffer is borrowed until the scope has ended, even if the operation is forgotten:
    ///
    /// ```compile_fail,E0505
    /// # use std::sync::{Arc, MutexGuard};
    /// # use cufile::{FileHandle, RegisteredStream, Result};
    /// # fn read(stream: &RegisteredStream, file: &Arc<FileHandle>) -> Result<()> {
    /// let mut buffer = vec![0; 4096];
    /// cufile::scope(|scope| {
    ///     std::mem::forget(scope.read_at(stream, file, &mut buffer[..], 0)?);
    ///     drop(buffer);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// Names elsewhere: `read_async` (Python).
    ///
    /// # Errors
    /// As [`RegisteredStream::read_at`].
    #[doc(alias = "cuFileReadAsync")]
    #[doc(alias = "read_async")]
    pub fn read_at<B: IoBufMut + 'env>(
        &self,
        stream: &RegisteredStream,
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.watched(stream, || stream.read_borrowed(file, buffer, file_offset))
    }

    /// Reads the range that `arguments` hold when the stream runs the read, as [`RegisteredStream::read_late`]
    /// does (`cuFileReadAsync`).
    ///
    /// Names elsewhere: `read_async` (Python).
    ///
    /// # Errors
    /// As [`RegisteredStream::read_late`].
    #[doc(alias = "cuFileReadAsync")]
    #[doc(alias = "read_async")]
    pub fn read_late<B: IoBufMut + 'env>(
        &self,
        stream: &RegisteredStream,
        file: &Arc<FileHandle>,
        buffer: B,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.watched(stream, || stream.read_borrowed_late(file, buffer, arguments))
    }

    /// Writes the whole of a borrowed buffer after the work already in the stream, as [`RegisteredStream::write_at`]
    /// does (`cuFileWriteAsync`). Mind [other writers](FileHandle::write_at).
    ///
    /// Names elsewhere: `write_async` (Python).
    ///
    /// # Errors
    /// As [`RegisteredStream::write_at`].
    #[doc(alias = "cuFileWriteAsync")]
    #[doc(alias = "write_async")]
    pub fn write_at<B: IoBuf + 'env>(
        &self,
        stream: &RegisteredStream,
        file: &Arc<FileHandle>,
        buffer: B,
        file_offset: u64,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.watched(stream, || stream.write_borrowed(file, buffer, file_offset))
    }

    /// Writes the range that `arguments` hold when the stream runs the write, as [`RegisteredStream::write_late`]
    /// does (`cuFileWriteAsync`). Mind [other writers](FileHandle::write_at).
    ///
    /// Names elsewhere: `write_async` (Python).
    ///
    /// # Errors
    /// As [`RegisteredStream::write_late`].
    #[doc(alias = "cuFileWriteAsync")]
    #[doc(alias = "write_async")]
    pub fn write_late<B: IoBuf + 'env>(
        &self,
        stream: &RegisteredStream,
        file: &Arc<FileHandle>,
        buffer: B,
        arguments: &LateBound,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.watched(stream, || stream.write_borrowed_late(file, buffer, arguments))
    }

    fn watched<B>(
        &self,
        stream: &RegisteredStream,
        submit: impl FnOnce() -> Result<Operation<B>, Failed<Kept<B>>>,
    ) -> Result<Operation<B>, Failed<Kept<B>>> {
        self.in_use().wait_for(stream);
        match submit() {
            Ok(operation) => {
                self.in_use().watch(operation.count());
                Ok(operation)
            }
            // Otherwise it is over when the stream has passed its work so far.
            Err(failed) => Err(failed.map(|kept| match kept.is_captured() {
                true => give_up("a stream was captured while a transfer was submitted"),
                false => kept,
            })),
        }
    }

    fn in_use(&self) -> MutexGuard<'_, InUse<'scope>> {
        self.in_use.lock()
    }

    fn end(&self) {
        let InUse { streams, counts, batches } = std::mem::take(&mut *self.in_use());
        streams.iter().for_each(passed);
        // In a forked child nothing is in flight.
        let is_alive = streams.iter().all(|stream| stream.driver().check_alive().is_ok());
        if is_alive && !counts.iter().all(Count::is_written) {
            // After a capture that has ended since, it may be part of a graph.
            give_up("libcufile did not report the end of a transfer");
        }
        for batch in batches {
            // SAFETY: made from a box, and no reference is left: the scope is over, and buffers refer only to
            // values outside it.
            let mut batch = unsafe { Box::from_raw(batch.as_ptr()) };
            // Its end drops buffers too. A panic there must not stop the waits for the others.
            let end = move || match batch.settle() {
                true => drop(batch),
                false => give_up("libcufile could neither report nor cancel a batch"),
            };
            let ended = catch_unwind(AssertUnwindSafe(end));
            // The payload lives longer than the process: its drop may panic too.
            if ended.is_err() {
                give_up("dropping a buffer panicked");
            }
        }
    }
}

fn passed(stream: &RegisteredStream) {
    // In a forked child nothing is in flight.
    while stream.driver().check_alive().is_ok() {
        match stream.stream().synchronize() {
            Ok(()) => return,
            Err(_) if stream.stream().is_capturing().is_ok_and(|is_capturing| is_capturing) => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => give_up(&error.to_string()),
        }
    }
}

/// Ends the process, because libcufile may still use borrowed memory.
#[cold]
fn give_up(why: &str) -> ! {
    eprintln!("cufile::scope: aborting, because libcufile may still use borrowed buffers: {why}");
    abort();
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}
