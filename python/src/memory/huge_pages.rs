use gpufile::{IoBuf, IoBufMut};
use pyo3::prelude::*;

use super::{Access, Memory};
use crate::lost_pages::page_bytes;

/// Asks the kernel for huge pages in memory of the host that was allocated for a read. Does nothing for short memory
/// and for memory of GPUs.
///
/// The kernel allocates a page at its first use, which takes longer than to fill it from the page cache. A huge page is
/// allocated at once. numpy asks for its own arrays, and torch does not.
#[pyfunction]
pub fn prefer_huge_pages(buffer: &Bound<'_, PyAny>) -> PyResult<()> {
    /// The shortest memory, in bytes, that has a huge page for certain.
    const SHORTEST_BYTES: usize = 4 << 20;
    let mut memory = Memory::of(buffer, Access::Write)?;
    if memory.len_bytes() < SHORTEST_BYTES || !memory.location().is_host_accessible {
        return Ok(());
    }
    let page_bytes = page_bytes();
    let before = memory.as_mut_ptr().addr().wrapping_neg() % page_bytes;
    let len_bytes = (memory.len_bytes() - before) / page_bytes * page_bytes;
    // A kernel without huge pages refuses, and nothing else changes.
    // SAFETY: the pages lie in the memory, which the object keeps, and keep their contents.
    unsafe { libc::madvise(memory.as_mut_ptr().add(before).cast(), len_bytes, libc::MADV_HUGEPAGE) };
    Ok(())
}
