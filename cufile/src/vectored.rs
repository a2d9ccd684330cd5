//! Reads into and writes from several buffers.

use std::ffi::c_uint;

use cufile_sys::{CUfileHandle_t, CUfileIOVec_t, off_t};

use crate::error::{Error, Result};
use crate::handle::FileHandle;
use crate::memory::{IoBuf, IoBufMut, Span, file_offset};

type Together = unsafe extern "C" fn(CUfileHandle_t, *const CUfileIOVec_t, usize, off_t, c_uint) -> isize;

/// libcufile refuses more than 128, but 1.19 and 1.20 hang with 40 and more, after some calls or when the driver
/// closes; with 32 they never did.
const MOST_PARTS: usize = 16;

impl FileHandle {
    /// Reads consecutive bytes of the file from `file_offset` in bytes into the buffers, in their order
    /// (`cuFileReadv`).
    ///
    /// Returns the number of bytes read in all: fewer than fit at the end of the file, 0 beyond it or for empty
    /// buffers. If libcufile fails for a buffer after it filled others, the call returns the number of bytes of
    /// those. The next read then fails.
    ///
    /// Buffers of different kinds mix as `&mut dyn IoBufMut`:
    ///
    /// ```no_run
    /// # use cufile::{Driver, FileHandle, IoBufMut};
    /// # let driver = Driver::open()?;
    /// # let file = FileHandle::register(&driver, std::fs::File::open("data.bin")?)?;
    /// let mut header = vec![0u8; 4096];
    /// let mut body = driver.cuda().device(0)?.alloc(1 << 20)?;
    /// let bytes = file.readv_at::<&mut dyn IoBufMut>(&mut [&mut header, &mut body], 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Since cuFile 1.19, this makes one call for 16 buffers. With an older library, and for buffers of several
    /// CUDA contexts, it calls `cuFileRead` for each buffer. `cuFileReadv` takes addresses without offsets, so
    /// this passes the address of a part of a registered buffer.
    ///
    /// Names elsewhere: `CUfileIOVec_t`, `CUfileIOVec` (C); `IOVec` (Python).
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the end of the range does not fit into a file offset. Otherwise the error of
    /// cuFile or the operating system for the first buffer that has bytes.
    #[doc(alias = "IOVec")]
    #[doc(alias = "CUfileIOVec_t")]
    #[doc(alias = "cuFileReadv")]
    #[doc(alias = "CUfileIOVec")]
    pub fn readv_at<B: IoBufMut>(&self, buffers: &mut [B], file_offset: u64) -> Result<usize> {
        const NAME: &str = "cuFileReadv";
        let parts = parts(buffers.iter_mut(), |buffer| {
            let len_bytes = buffer.len_bytes();
            Span::new_mut(NAME, *buffer, 0, len_bytes)
        })?;
        match self.plan(NAME, self.driver().library().functions().cuFileReadv, &parts, file_offset)? {
            // SAFETY: `parts` belong to buffers to which there is no other access.
            Plan::Together(call) => unsafe { self.together(NAME, call, &parts, file_offset) },
            Plan::OneByOne => in_turn(
                buffers.iter_mut().filter(|buffer| buffer.len_bytes() > 0),
                |buffer| buffer.len_bytes(),
                file_offset,
                |buffer, at| self.read_at(buffer, at),
            ),
        }
    }

    /// Writes the buffers, in their order, to consecutive bytes of the file from `file_offset` in bytes
    /// (`cuFileWritev`).
    ///
    /// Returns the number of bytes written in all. If libcufile fails for a buffer after it wrote others, the call returns
    /// the number of bytes of those. The next write then fails.
    ///
    /// Mixes buffers, and chooses the calls of libcufile, as [`readv_at`](Self::readv_at) does. Mind [other writers](Self::write_at).
    ///
    /// # Errors
    /// As [`readv_at`](Self::readv_at).
    #[doc(alias = "cuFileWritev")]
    pub fn writev_at<B: IoBuf>(&self, buffers: &[B], file_offset: u64) -> Result<usize> {
        const NAME: &str = "cuFileWritev";
        let parts = parts(buffers.iter(), |buffer| Span::new(NAME, *buffer, 0, buffer.len_bytes()))?;
        match self.plan(NAME, self.driver().library().functions().cuFileWritev, &parts, file_offset)? {
            // SAFETY: `parts` belong to buffers that are borrowed during the call.
            Plan::Together(call) => unsafe { self.together(NAME, call, &parts, file_offset) },
            Plan::OneByOne => in_turn(
                buffers.iter().filter(|buffer| buffer.len_bytes() > 0),
                |buffer| buffer.len_bytes(),
                file_offset,
                |buffer, at| self.write_at(buffer, at),
            ),
        }
    }

    fn plan(
        &self,
        name: &'static str,
        together: Option<Together>,
        parts: &[Span],
        offset: u64,
    ) -> Result<Plan> {
        self.driver().check_alive()?;
        let bytes = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.len_bytes as u64));
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        file_offset(
            name,
            end.ok_or_else(|| {
                Error::invalid(name, "the end of the buffers is beyond the largest file offset")
            })?,
        )?;
        let mut contexts = parts.iter().filter_map(|part| part.context);
        let first = contexts.next();
        // Only one context can be current during the call.
        let one_context = contexts.all(|context| Some(context) == first);
        Ok(together.filter(|_| one_context).map_or(Plan::OneByOne, Plan::Together))
    }

    /// # Safety
    /// `call` must be allowed to use the parts.
    unsafe fn together(
        &self,
        name: &'static str,
        call: Together,
        parts: &[Span],
        file_offset: u64,
    ) -> Result<usize> {
        let context = parts.iter().find_map(|part| part.context);
        let vectors: Vec<_> =
            parts.iter().map(|part| CUfileIOVec_t { base: part.start(), len: part.len_bytes }).collect();
        let len_bytes = |vectors: &&[CUfileIOVec_t]| vectors.iter().map(|vector| vector.len).sum();
        in_turn(vectors.chunks(MOST_PARTS), len_bytes, file_offset, |vectors, at| {
            self.transfer(name, context, at, len_bytes(&vectors), |at| {
                // SAFETY: the handle is registered; the array has this many entries, which the caller may use.
                // C defines no flag.
                unsafe { call(self.as_raw(), vectors.as_ptr(), vectors.len(), at, 0) }
            })
        })
    }
}

enum Plan {
    Together(Together),
    OneByOne,
}

/// Returns the parts that have bytes. libcufile ends the process for an empty entry among others, and refuses an
/// empty array.
fn parts<B: IoBuf>(
    buffers: impl Iterator<Item = B>,
    span: impl Fn(&mut B) -> Result<Span>,
) -> Result<Vec<Span>> {
    buffers.filter(|buffer| buffer.len_bytes() > 0).map(|mut buffer| span(&mut buffer)).collect()
}

/// Transfers one part after the other until one is short or fails; the bytes before a failure count, as in one call.
fn in_turn<P>(
    pieces: impl Iterator<Item = P>,
    len_bytes: impl Fn(&P) -> usize,
    file_offset: u64,
    transfer: impl Fn(P, u64) -> Result<usize>,
) -> Result<usize> {
    let mut done = 0;
    for piece in pieces {
        let len_bytes = len_bytes(&piece);
        match transfer(piece, file_offset + done as u64) {
            Ok(bytes) => {
                done += bytes;
                if bytes < len_bytes {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
