//! Writes of host and device memory to one file: by system calls, `O_DIRECT` or cuFile. Also the mappings for
//! writing.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::slice;
use std::sync::Arc;

use cufile::FileHandle;

use super::blocks::{Blocks, Held, Sharing, WrittenFiles};
use super::direct::Direct;
use super::file_system::FileSystem;
use super::mapping::{Mapping, may_be_sealed};
use super::outcome::{Outcome, Stop};
use super::posix::{one_by_one, write_adjacent, write_full};
use super::{OpenFile, device_route};
use crate::gpu::bounce::Bounce;
use crate::memory::Memory;
use crate::settings::DirectIo;
use crate::storage::Span;

impl OpenFile {
    /// As [`Alignment::place_for_write`](super::alignment::Alignment::place_for_write), for this file.
    pub fn place_for_write(&self, end: usize, offset: u64, len_bytes: usize, room_bytes: usize) -> usize {
        match self.direct_for_write(len_bytes) {
            Some(direct) => direct.alignment.place_for_write((end, room_bytes), offset, len_bytes),
            None => end,
        }
    }

    /// Writes host bytes: by `O_DIRECT` where the settings ask for it and the address allows it, and otherwise
    /// through the page cache.
    pub fn write_bytes(&self, source: &[u8], offset: u64) -> Outcome {
        let _held = self.hold_beside_cufile(offset, source.len());
        let mut done = 0;
        if let Some(direct) = self.direct_for_write(source.len()) {
            // The unaligned ends go through the page cache.
            let before = direct.alignment.until_aligned(offset).min(source.len());
            let inside = direct.alignment.aligned_part(source.len() - before);
            let middle = &source[before..before + inside];
            let at = offset + before as u64;
            if direct.alignment.fits(middle.as_ptr(), at, inside) {
                // SAFETY: the bytes belong to a slice.
                unsafe { write_full(self, source.as_ptr(), before, offset) }?;
                let (count, failure) = direct.write(middle, at);
                done = before + count;
                if let Some(error) = failure {
                    return Err(Stop::failed(done, error));
                }
            }
        }
        let rest = &source[done..];
        // SAFETY: the bytes belong to a slice.
        unsafe { write_full(self, rest.as_ptr(), rest.len(), offset + done as u64) }
            .map_err(|stop| stop.after(done))
    }

    /// # Safety
    /// `source` must be valid for reads of `len_bytes`, and nothing may write it during the call.
    pub unsafe fn write_from_host(
        &self,
        source: *const u8,
        len_bytes: usize,
        offset: u64,
        bounce: &mut Bounce,
    ) -> Outcome {
        // SAFETY: the caller's promise.
        let source = unsafe { slice::from_raw_parts(source, len_bytes) };
        let aligned = |direct: &Direct| {
            let before = direct.alignment.until_aligned(offset);
            direct.alignment.fits(source.as_ptr().wrapping_add(before), 0, 0)
        };
        let unaligned = self.direct_for_write(len_bytes).filter(|direct| !aligned(direct));
        let has_room = |direct: &&Direct| direct.alignment.most_bytes(bounce.len_bytes()) > 0;
        let Some(Direct { alignment, .. }) = unaligned.filter(has_room) else {
            return self.write_bytes(source, offset);
        };
        let mut done = 0;
        while done < len_bytes {
            let at = offset + done as u64;
            let start = alignment.head(at);
            // The buffer is longer than the alignment, so each part has at least a byte.
            let some = (len_bytes - done).min(bounce.len_bytes().saturating_sub(start));
            let target = bounce.part(start, some).map_err(|error| Stop::failed(done, error))?;
            // SAFETY: `part` returned the address of `some` bytes, which nothing else uses.
            let copy = unsafe { slice::from_raw_parts_mut(target, some) };
            copy.copy_from_slice(&source[done..done + some]);
            self.write_bytes(copy, at).map_err(|stop| stop.after(done))?;
            done += some;
        }
        Ok(())
    }

    /// Writes spans of host memory that follow each other in the file and have `len_bytes` together.
    ///
    /// # Safety
    /// As for [`write_from_host`](Self::write_from_host), for each span.
    pub unsafe fn write_adjacent_from_host(
        &self,
        spans: impl Iterator<Item = Span>,
        len_bytes: usize,
        offset: u64,
        bounce: &mut Bounce,
    ) -> Outcome {
        if self.direct_for_write(len_bytes).is_none() {
            let _held = self.hold_beside_cufile(offset, len_bytes);
            // SAFETY: the caller's promise.
            return unsafe { write_adjacent(self, spans) };
        }
        one_by_one(spans, |Span { offset, len_bytes, ptr }| {
            // SAFETY: the caller's promise.
            unsafe { self.write_from_host(ptr, len_bytes, offset, bounce) }
        })
    }

    pub fn write_cufile(&self, handle: &FileHandle, memory: &Memory, offset: u64) -> Outcome {
        let _held = self.blocks().hold(offset, memory.len_bytes, Sharing::Alone);
        device_route::write_cufile(handle, memory, offset, self.counters())
    }

    /// Returns the blocks of the file. In a forked child, an inherited file has those of the child.
    fn blocks(&self) -> Arc<Blocks> {
        match self.blocks.get() {
            Some(blocks) if blocks.is_of_this_process() => blocks.clone(),
            _ => {
                let found = WrittenFiles::of_process().blocks_of(self.device_and_inode);
                // If another thread was first, both found the same.
                let _ = self.blocks.set(found.clone());
                found
            }
        }
    }

    /// Holds the blocks of a range that the kernel writes. Holds nothing for files of tmpfs, to which cuFile never
    /// writes directly.
    fn hold_beside_cufile(&self, offset: u64, len_bytes: usize) -> Option<Held> {
        match self.file_system {
            FileSystem::Tmpfs => None,
            _ => self.blocks().hold(offset, len_bytes, Sharing::Shared),
        }
    }

    /// Allocates storage for a range, and extends the file to its end (`fallocate`). Returns whether that succeeded.
    pub fn allocate(&self, offset: u64, len_bytes: u64) -> bool {
        self.fallocate(0, offset, len_bytes)
    }

    /// Allocates storage as [`allocate`](Self::allocate) does, but keeps the length of the file.
    pub fn preallocate(&self, offset: u64, len_bytes: u64) -> bool {
        self.fallocate(libc::FALLOC_FL_KEEP_SIZE, offset, len_bytes)
    }

    fn fallocate(&self, mode: libc::c_int, offset: u64, len_bytes: u64) -> bool {
        let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len_bytes)) else {
            return false;
        };
        // SAFETY: the call takes integers only.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) == 0 }
    }

    /// Returns the `O_DIRECT` descriptor if a write should use it.
    pub fn direct_for_write(&self, len_bytes: usize) -> Option<&Direct> {
        let wanted = self.settings.direct_write == DirectIo::Always && len_bytes >= Bounce::ALIGNMENT;
        if wanted { self.direct() } else { None }
    }

    /// Returns a mapping for overwriting a range, or `None` if the file is shorter or cannot be mapped.
    ///
    /// It covers the whole file and is kept, because mapping pages takes as long as writing them, unless the file may
    /// be sealed.
    pub fn mapping_for_overwriting(&self, range: Range<u64>) -> Option<Arc<Mapping>> {
        let mut mapping = self.mapping.lock();
        if let Some(mapping) = mapping.as_ref().filter(|mapping| mapping.len_bytes() as u64 >= range.end) {
            return Some(mapping.clone());
        }
        let len_bytes = self.len_bytes().ok().filter(|len_bytes| *len_bytes >= range.end)?;
        if may_be_sealed(&self.file) {
            return self.mapping_for_writing_once(range);
        }
        let new = Arc::new(Mapping::for_overwriting(&self.file, usize::try_from(len_bytes).ok()?).ok()?);
        *mapping = Some(new.clone());
        Some(new)
    }

    /// Returns a mapping of a range for one write of each part of the range.
    pub fn mapping_for_writing_once(&self, range: Range<u64>) -> Option<Arc<Mapping>> {
        Mapping::for_writing_once(&self.file, range).ok().map(Arc::new)
    }
}
