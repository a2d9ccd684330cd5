//! The places of tensors in memory, without I/O.

use std::ops::Range;

use gpufile::formats::safetensors::{Header, TensorInfo};

/// Tensors of one file, or a part of one tensor, in one allocation.
#[derive(Default)]
pub struct Layout {
    pub len_bytes: usize,
    /// In the order of the file, and that of the memory.
    pub stretches: Vec<Stretch>,
    /// The number of each tensor in the file, and its start in the memory, in bytes.
    pub places: Vec<(u32, usize)>,
}

/// Bytes that are adjacent in the file and in the memory. All fields are in bytes.
#[derive(Clone, Copy)]
pub struct Stretch {
    pub file_offset: u64,
    pub buffer_offset: usize,
    pub len_bytes: usize,
}

/// The alignment of every tensor that has as many bytes. Kernels load 16 bytes at once, and some, such as those of
/// 8-bit matrices, refuse other addresses.
const ALIGNMENT: usize = 16;

impl Layout {
    /// Places the tensors of a file, or those with the chosen numbers, in allocations of at most `limit_bytes` each. A
    /// longer tensor gets a separate one. Returns `None` if memory cannot have as many bytes.
    pub fn of(header: &Header, chosen: Option<&[u32]>, limit_bytes: u64) -> Option<Vec<Self>> {
        let mut layouts: Vec<Self> = Vec::new();
        let mut chosen = chosen.map(|chosen| chosen.iter().peekable());
        for (number, info) in (0..).zip(header.tensors()) {
            if chosen.as_mut().is_some_and(|chosen| chosen.next_if_eq(&&number).is_none()) {
                continue;
            }
            let len_bytes = usize::try_from(info.len_bytes()).ok()?;
            let alignment = match len_bytes >= ALIGNMENT {
                true => ALIGNMENT,
                false => info.dtype.size_bits().div_ceil(8) as usize,
            };
            let start = layouts.last().map(|open| open.len_bytes.next_multiple_of(alignment));
            let start = start.filter(|start| start.saturating_add(len_bytes) as u64 <= limit_bytes);
            if start.is_none() && (layouts.is_empty() || len_bytes > 0) {
                layouts.push(Self::default());
            }
            let open = layouts.last_mut()?;
            let start = start.unwrap_or(0);
            open.places.push((number, if len_bytes == 0 { 0 } else { start }));
            open.append(header.in_file(info.offsets).start, start, len_bytes)?;
        }
        Some(layouts)
    }

    /// Places the elements of a tensor from start to stop along each axis, without gaps. The tensor starts at
    /// `file_offset`, in bytes. Returns `None` if the bounds do not lie in the tensor.
    pub fn of_part(info: &TensorInfo<'_>, file_offset: u64, bounds: &[(u64, u64)]) -> Option<Self> {
        let shape = stored_shape(info)?;
        let is_inside = |(axis, bound): (&u64, &(u64, u64))| bound.0 <= bound.1 && bound.1 <= *axis;
        if bounds.len() != shape.len() || !shape.iter().zip(bounds).all(is_inside) {
            return None;
        }
        let element_bytes = u64::from(info.dtype.size_bits().div_ceil(8));
        let strides: Vec<_> = strides(&shape).into_iter().map(|stride| stride * element_bytes).collect();
        // The axes from `inner` on are taken whole, except the first of them.
        let whole = shape.iter().zip(bounds).rev().take_while(|(axis, bound)| **bound == (0, **axis)).count();
        let inner = (shape.len() - whole).saturating_sub(1);
        let (start, run_bytes) = match bounds.get(inner) {
            Some((start, stop)) => (start * strides[inner], (stop - start) * strides[inner]),
            None => (0, element_bytes),
        };
        let mut layout = Self::default();
        if run_bytes == 0 || bounds.iter().any(|(start, stop)| start == stop) {
            return Some(layout);
        }
        let run_bytes = usize::try_from(run_bytes).ok()?;
        let mut index: Vec<_> = bounds[..inner].iter().map(|(start, _)| *start).collect();
        loop {
            let outer: u64 = index.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
            layout.append(file_offset + outer + start, layout.len_bytes, run_bytes)?;
            // Counts `index` up, the last axis first.
            let Some(axis) = (0..inner).rev().find(|axis| index[*axis] + 1 < bounds[*axis].1) else { break };
            index[axis] += 1;
            for later in axis + 1..inner {
                index[later] = bounds[later].0;
            }
        }
        Some(layout)
    }

    /// Appends bytes of the file, at `start` in the memory.
    fn append(&mut self, file_offset: u64, start: usize, len_bytes: usize) -> Option<()> {
        if len_bytes == 0 {
            return Some(());
        }
        match self.stretches.last_mut() {
            Some(open) if open.file_end() == file_offset && open.in_buffer().end == start => {
                open.len_bytes += len_bytes;
            }
            _ => self.stretches.push(Stretch { file_offset, buffer_offset: start, len_bytes }),
        }
        self.len_bytes = start.checked_add(len_bytes)?;
        Some(())
    }

    /// Returns the parts of the stretches that lie in this range of the memory, in bytes.
    pub fn within(&self, start: usize, stop: usize) -> impl Iterator<Item = Stretch> {
        self.stretches.iter().filter_map(move |stretch| {
            let Range { start: first, end } = stretch.in_buffer();
            let (from, to) = (start.max(first), stop.min(end));
            (from < to).then(|| Stretch {
                file_offset: stretch.file_offset + (from - first) as u64,
                buffer_offset: from,
                len_bytes: to - from,
            })
        })
    }
}

impl Stretch {
    /// Returns the range in the memory.
    pub fn in_buffer(&self) -> Range<usize> {
        self.buffer_offset..self.buffer_offset + self.len_bytes
    }

    fn file_end(&self) -> u64 {
        self.file_offset + self.len_bytes as u64
    }
}

/// Returns the length of each axis in memory. The last axis of packed types counts bytes; `None` if it has no whole
/// number of them.
pub fn stored_shape(info: &TensorInfo<'_>) -> Option<Vec<u64>> {
    let mut shape = info.shape.to_vec();
    let bits = u64::from(info.dtype.size_bits());
    if bits < 8 {
        let last = shape.last_mut()?;
        let last_bits = last.checked_mul(bits).filter(|last_bits| last_bits.is_multiple_of(8))?;
        *last = last_bits / 8;
    }
    Some(shape)
}

/// Returns the distance of neighbours along each axis, in elements, of an array in C order.
pub fn strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        // Only a shape without elements can have strides that overflow. Nothing is read there.
        strides[axis - 1] = shape[axis].max(1).saturating_mul(strides[axis]);
    }
    strides
}
