//! The places of tensors in a buffer, without I/O.

use std::ops::Range;

use cufile::BufSliceMut;

use super::super::open::catalog::{Catalog, Id};

/// The places of tensors in a buffer, each aligned to its elements.
#[derive(Debug)]
pub(super) struct Layout {
    /// In the order of the files, and that of the buffer.
    stretches: Vec<Stretch>,
    pub len_bytes: usize,
}

/// Tensors that are adjacent in a file and in the buffer. All fields except `file` are in bytes.
#[derive(Debug)]
pub(super) struct Stretch {
    pub file: u32,
    pub file_offset: u64,
    buffer_offset: usize,
    len_bytes: usize,
}

impl Layout {
    /// The alignment of the first tensor of a file, in bytes, as CUDA's allocations have it.
    const FILE_ALIGNMENT: usize = 256;

    /// Places tensors, given in the order of the files. Adjacent tensors stay adjacent if their alignment allows it.
    /// Returns `None` if they have more bytes than a buffer can have.
    pub fn of(catalog: &Catalog, ids: impl Iterator<Item = Id>) -> Option<Self> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut end = 0usize;
        for Id { file, tensor } in ids {
            let header = catalog.header(file);
            let tensor = header.nth(tensor);
            let len_bytes = usize::try_from(tensor.len_bytes()).ok()?;
            if len_bytes == 0 {
                continue;
            }
            let alignment = tensor.dtype.size_bits().div_ceil(8) as usize;
            let file_offset = header.in_file(tensor.offsets).start;
            match stretches.last_mut().filter(|open| open.file == file) {
                Some(open) if open.file_end() == file_offset && end.is_multiple_of(alignment) => {
                    open.len_bytes += len_bytes;
                }
                open => {
                    let alignment = if open.is_some() { alignment } else { Self::FILE_ALIGNMENT };
                    end = end.checked_next_multiple_of(alignment)?;
                    stretches.push(Stretch { file, file_offset, buffer_offset: end, len_bytes });
                }
            }
            end = end.checked_add(len_bytes)?;
        }
        Some(Self { stretches, len_bytes: end })
    }

    /// Returns the number of bytes of all placed tensors, without the gaps.
    pub fn filled_bytes(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.len_bytes as u64).sum()
    }

    /// Returns the range of a placed tensor in the buffer, in bytes. `0..0` if the tensor has no bytes.
    pub fn find(&self, catalog: &Catalog, id: Id) -> Range<usize> {
        let header = catalog.header(id.file);
        let in_file = header.in_file(header.nth(id.tensor).offsets);
        if in_file.is_empty() {
            return 0..0;
        }
        let behind = self
            .stretches
            .partition_point(|stretch| (stretch.file, stretch.file_offset) <= (id.file, in_file.start));
        let Stretch { file_offset, buffer_offset, .. } = self.stretches[behind - 1];
        let in_buffer = |offset: u64| buffer_offset + (offset - file_offset) as usize;
        in_buffer(in_file.start)..in_buffer(in_file.end)
    }

    /// Returns the stretches, each with its part of the buffer.
    pub fn cut<'a>(&self, buffer: BufSliceMut<'a>) -> impl Iterator<Item = (&Stretch, BufSliceMut<'a>)> {
        let (mut at, mut rest) = (0, Some(buffer));
        self.stretches.iter().map(move |stretch| {
            let rest_now = rest.take().expect("each stretch leaves a rest");
            let (_, from) = rest_now.split_at(stretch.buffer_offset - at);
            let (memory, behind) = from.split_at(stretch.len_bytes);
            at = stretch.buffer_offset + stretch.len_bytes;
            rest = Some(behind);
            (stretch, memory)
        })
    }
}

impl Stretch {
    fn file_end(&self) -> u64 {
        self.file_offset + self.len_bytes as u64
    }
}
