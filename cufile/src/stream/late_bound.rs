//! Sizes and offsets that can be set until the transfer runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use cufile_sys::off_t;

use super::StreamFlags;
use crate::error::{Error, Result};
use crate::memory::file_offset;

const PAGE: u64 = 4096;

/// The size and the offsets of a stream-ordered transfer, which can be set until it runs.
///
/// Clones refer to the same values. Any thread can set them, and so can a function that the stream calls before the
/// transfer (`cudaLaunchHostFunc`, here [`Stream::call_on_host`](crate::cuda::Stream::call_on_host)). The order of
/// the stream makes sure that the transfer sees the new values. Setting them after the transfer has run has no effect
/// on it. They may serve several transfers.
///
/// libcufile's first transfer of device memory in a stream does not return from its call while a function that the stream
/// calls is pending. Such a function must not wait for anything that the thread does after that call.
///
/// The transfer always stays in the buffer. The length can only be lowered, because libcufile prepares for the length
/// at submission. The buffer offset must leave room for the longest transfer, also after the length was lowered:
/// libcufile reads one value after the other, and may have read the former length already. The offset can be set only for
/// registered memory: libcufile assumes that other memory is as long as the transfer.
///
/// ```no_run
/// # use {std::sync::Arc, cufile::*};
/// # fn index() -> u64 { 7 }
/// # fn late(stream: RegisteredStream, file: Arc<FileHandle>, buffer: cuda::DeviceBuffer) -> Result<()> {
/// let arguments = stream.late_bound(&buffer, 0, 1 << 20, 0)?;
/// let setter = arguments.clone();
/// // The stream calls this when its work so far is done, which finds out the range to read.
/// stream.stream().call_on_host(move || {
///     setter.set_file_offset(index() << 20).expect("a late-bound file offset");
/// })?;
/// let (bytes, buffer) = stream.read_late(&file, buffer, &arguments)?.wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LateBound(pub(super) Arc<Arguments>);

/// Plain memory, which C reads through pointers: aligned words, so C sees each one whole, before or after a
/// change.
pub(super) struct Arguments {
    pub(super) len_bytes: AtomicUsize,
    pub(super) file_offset: AtomicI64,
    // Counted from C's base: that of the registration, or the start of the transfer.
    pub(super) buffer_offset: AtomicI64,
    // Both counted from the buffer's first byte.
    pub(super) first_buffer_offset: usize,
    pub(super) max_buffer_offset: usize,
    pub(super) base_offset: usize,
    pub(super) buffer_len_bytes: usize,
    pub(super) is_registered: bool,
    pub(super) flags: StreamFlags,
}

impl LateBound {
    /// Returns the length of the transfer in bytes.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes.load(Ordering::Acquire)
    }

    /// Returns the offset in the file, in bytes.
    pub fn file_offset(&self) -> u64 {
        self.0.file_offset.load(Ordering::Acquire) as u64
    }

    /// Returns the offset in the buffer, in bytes.
    pub fn buffer_offset(&self) -> usize {
        match self.0.is_registered {
            true => self.0.buffer_offset.load(Ordering::Acquire) as usize - self.0.base_offset,
            false => self.0.first_buffer_offset,
        }
    }

    /// Lowers the number of bytes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if it is more than now, not aligned as the stream's flags promise, or fixed by
    /// those flags.
    pub fn set_len_bytes(&self, len_bytes: usize) -> Result<()> {
        const OPERATION: &str = "set_len_bytes";
        self.0.check_late(OPERATION, StreamFlags::FIXED_FILE_SIZE)?;
        self.0.check_aligned(OPERATION, len_bytes as u64)?;
        let lower = |now| (len_bytes <= now).then_some(len_bytes);
        match self.0.len_bytes.fetch_update(Ordering::Release, Ordering::Relaxed, lower) {
            Ok(_) => Ok(()),
            Err(now) => Err(Error::invalid(
                OPERATION,
                format!("{len_bytes} bytes are more than the current {now}; the length can only be reduced"),
            )),
        }
    }

    /// Sets the offset in the file, in bytes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if it does not fit into `off_t`, is not aligned as the stream's flags promise, or is
    /// fixed by them.
    pub fn set_file_offset(&self, offset: u64) -> Result<()> {
        const OPERATION: &str = "set_file_offset";
        self.0.check_late(OPERATION, StreamFlags::FIXED_FILE_OFFSET)?;
        self.0.check_aligned(OPERATION, offset)?;
        let offset = file_offset(OPERATION, offset)?;
        self.0.file_offset.store(offset, Ordering::Release);
        Ok(())
    }

    /// Sets the offset in the buffer, in bytes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the longest transfer does not fit there, if the memory is not registered,
    /// or if the stream's flags fix the offset or promise an alignment that it lacks.
    pub fn set_buffer_offset(&self, offset: usize) -> Result<()> {
        const OPERATION: &str = "set_buffer_offset";
        let arguments = &*self.0;
        arguments.check_late(OPERATION, StreamFlags::FIXED_BUF_OFFSET)?;
        if !arguments.is_registered {
            return Err(Error::invalid(
                OPERATION,
                "libcufile takes a late offset only for registered memory; register the buffer",
            ));
        }
        if offset > arguments.max_buffer_offset {
            let max_len_bytes = arguments.buffer_len_bytes - arguments.max_buffer_offset;
            return Err(Error::invalid(
                OPERATION,
                format!(
                    "the longest transfer, of {max_len_bytes} bytes, does not fit at offset {offset} of a buffer of {} bytes",
                    arguments.buffer_len_bytes
                ),
            ));
        }
        // No overflow: `RegisteredStream::arguments` saw that the buffer's end fits.
        let from_base = arguments.base_offset + offset;
        arguments.check_aligned(OPERATION, from_base as u64)?;
        arguments.buffer_offset.store(from_base as off_t, Ordering::Release);
        Ok(())
    }
}

impl Arguments {
    pub(super) fn check_late(&self, operation: &'static str, flag: StreamFlags) -> Result<()> {
        if self.flags.contains(flag) {
            return Err(Error::invalid(
                operation,
                "the stream's flags fix this value at submission; register the stream without that flag",
            ));
        }
        Ok(())
    }

    pub(super) fn check_aligned(&self, operation: &'static str, value: u64) -> Result<()> {
        if self.flags.contains(StreamFlags::PAGE_ALIGNED_INPUTS) && !value.is_multiple_of(PAGE) {
            return Err(Error::invalid(
                operation,
                format!(
                    "{value} is not a multiple of {PAGE}, which the stream's PAGE_ALIGNED_INPUTS promises"
                ),
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for LateBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateBound")
            .field("len_bytes", &self.len_bytes())
            .field("file_offset", &self.file_offset())
            .field("buffer_offset", &self.buffer_offset())
            .finish_non_exhaustive()
    }
}
