//! Runs of segments that follow each other in one file, so that one system call moves them.

use std::{iter, ptr};

use super::transfer::Segment;
use crate::open_file::OpenFile;

/// A run of segments that follow each other in one file.
pub struct Run<'a, I> {
    pub file: &'a OpenFile,
    /// The entry of the first segment.
    pub entry: usize,
    pub offset: u64,
    /// The memory of the first segment.
    pub ptr: *mut u8,
    pub len_bytes: usize,
    /// The number of segments in the run, which are the first of `segments`.
    pub count: usize,
    segments: I,
}

impl<'a, I: Iterator<Item = Segment<'a>> + Clone> Run<'a, I> {
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> {
        self.segments.clone().take(self.count)
    }
}

/// Joins segments that follow each other in one file into runs.
pub fn adjacent<'a, I: Iterator<Item = Segment<'a>> + Clone>(
    segments: I,
) -> impl Iterator<Item = Run<'a, I>> {
    let (mut here, mut rest) = (segments.clone(), segments);
    let mut coming = rest.next();
    iter::from_fn(move || {
        let Segment { file, entry, offset, ptr, len_bytes } = coming?;
        let mut run = Run { file, entry, offset, ptr, len_bytes, count: 1, segments: here.clone() };
        loop {
            here = rest.clone();
            coming = rest.next();
            match coming {
                Some(next) if ptr::eq(next.file, file) && next.offset == offset + run.len_bytes as u64 => {
                    run.len_bytes += next.len_bytes;
                    run.count += 1;
                }
                _ => return Some(run),
            }
        }
    })
}
