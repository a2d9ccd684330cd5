//! Huge pages for new memory of the host.

/// Asks the kernel for huge pages in memory that is about to be filled. Does nothing for short memory.
///
/// The kernel allocates a page when it is first written. That takes longer than the copy from the page cache, and one huge
/// page takes the place of 512 others.
pub(crate) fn prefer(memory: &mut [u8]) {
    /// The shortest memory that contains a whole huge page wherever it starts.
    const SHORTEST_BYTES: usize = 4 << 20;
    if memory.len() < SHORTEST_BYTES {
        return;
    }
    // SAFETY: takes an integer.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let before = memory.as_ptr().addr().wrapping_neg() % page_bytes;
    let pages = &mut memory[before..];
    let len_bytes = pages.len() / page_bytes * page_bytes;
    // A kernel without huge pages refuses, and nothing else changes.
    // SAFETY: the pages lie in the borrowed memory, and the advice changes no byte.
    unsafe { libc::madvise(pages.as_mut_ptr().cast(), len_bytes, libc::MADV_HUGEPAGE) };
}
