//! The places of tensors in memory, without I/O.

use std::ops::Range;

use gpufile::formats::safetensors::{Header, TensorInfo, TensorSlice};

/// Tensors of one file and slices of them, or a part of one tensor, in one allocation.
#[derive(Default)]
pub struct Layout {
    pub len_bytes: usize,
    /// In the order of the file, and that of the memory.
    pub stretches: Vec<Stretch>,
    /// In the order of the file.
    pub places: Vec<Place>,
}

/// The place of a tensor or of a slice.
pub struct Place {
    pub chosen: Chosen,
    /// The start in the memory, in bytes.
    pub start: usize,
}

/// A tensor to load, by its number in the file.
#[derive(Clone)]
pub struct Chosen {
    pub number: u32,
    /// `None` for the whole tensor. The indices are those of the file.
    pub slice: Option<TensorSlice>,
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
    /// Places the tensors of a file, or the chosen ones, in allocations of at most `limit_bytes` each. A longer tensor
    /// gets a separate one. Returns `None` if memory cannot have as many bytes, or if a slice has no whole bytes.
    pub fn of(header: &Header, chosen: Option<&[Chosen]>, limit_bytes: u64) -> Option<Vec<Self>> {
        let mut layouts: Vec<Self> = Vec::new();
        let mut chosen = chosen.map(|chosen| chosen.iter().peekable());
        for (number, info) in (0..).zip(header.tensors()) {
            let chosen = match &mut chosen {
                Some(chosen) => match chosen.next_if(|chosen| chosen.number == number) {
                    Some(chosen) => chosen.clone(),
                    None => continue,
                },
                None => Chosen { number, slice: None },
            };
            let bounds = match &chosen.slice {
                Some(slice) => Some(bounds_of(&info, slice)?),
                None => None,
            };
            let len_bytes = bounds.as_ref().map_or(info.len_bytes(), |bounds| part_bytes(&info, bounds));
            let len_bytes = usize::try_from(len_bytes).ok()?;
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
            open.places.push(Place { chosen, start: if len_bytes == 0 { 0 } else { start } });
            let file_offset = header.in_file(info.offsets.clone()).start;
            match bounds {
                Some(bounds) => open.append_part(&info, file_offset, start, &bounds)?,
                None => open.append(file_offset, start, len_bytes)?,
            }
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
        let mut layout = Self::default();
        layout.append_part(info, file_offset, 0, bounds)?;
        Some(layout)
    }

    /// Appends the elements of a tensor from start to stop along each axis, at `at` in the memory. The bounds lie in
    /// the tensor, which starts at `file_offset`, in bytes.
    fn append_part(
        &mut self,
        info: &TensorInfo<'_>,
        file_offset: u64,
        mut at: usize,
        bounds: &[(u64, u64)],
    ) -> Option<()> {
        if part_bytes(info, bounds) == 0 {
            return Some(());
        }
        let shape = stored_shape(info)?;
        let strides: Vec<_> =
            strides(&shape).into_iter().map(|stride| stride * element_bytes(info)).collect();
        // The axes from `inner` on are taken whole, except the first of them.
        let whole = shape.iter().zip(bounds).rev().take_while(|(axis, bound)| **bound == (0, **axis)).count();
        let inner = (shape.len() - whole).saturating_sub(1);
        let (start, run_bytes) = match bounds.get(inner) {
            Some((start, stop)) => (start * strides[inner], (stop - start) * strides[inner]),
            None => (0, element_bytes(info)),
        };
        let run_bytes = usize::try_from(run_bytes).ok()?;
        let mut index: Vec<_> = bounds[..inner].iter().map(|(start, _)| *start).collect();
        loop {
            let outer: u64 = index.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
            self.append(file_offset + outer + start, at, run_bytes)?;
            at += run_bytes;
            // Counts `index` up, the last axis first.
            let Some(axis) = (0..inner).rev().find(|axis| index[*axis] + 1 < bounds[*axis].1) else { break };
            index[axis] += 1;
            for later in axis + 1..inner {
                index[later] = bounds[later].0;
            }
        }
        Some(())
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
        let first = self.stretches.partition_point(|stretch| stretch.in_buffer().end <= start);
        let stretches =
            self.stretches[first..].iter().take_while(move |stretch| stretch.buffer_offset < stop);
        stretches.map(move |stretch| {
            let Range { start: first, end } = stretch.in_buffer();
            let (from, to) = (start.max(first), stop.min(end));
            Stretch {
                file_offset: stretch.file_offset + (from - first) as u64,
                buffer_offset: from,
                len_bytes: to - from,
            }
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

/// Returns the indices of a slice along each axis in memory. The last axis of packed types counts bytes; `None` if the
/// slice does not start and end at whole bytes.
pub fn bounds_of(info: &TensorInfo<'_>, slice: &TensorSlice) -> Option<Vec<(u64, u64)>> {
    let mut bounds: Vec<_> = stored_shape(info)?.into_iter().map(|axis| (0, axis)).collect();
    let bits = u64::from(info.dtype.size_bits());
    let packs = bits < 8 && slice.axis + 1 == bounds.len();
    let place = |index: u64| match packs {
        true => (index * bits).is_multiple_of(8).then(|| index * bits / 8),
        false => Some(index),
    };
    bounds[slice.axis] = (place(slice.range.start)?, place(slice.range.end)?);
    Some(bounds)
}

/// Returns the number of bytes between the bounds, which lie in the tensor.
pub fn part_bytes(info: &TensorInfo<'_>, bounds: &[(u64, u64)]) -> u64 {
    // Without an empty axis, the tensor has at least as many bytes, so nothing overflows.
    match bounds.iter().any(|(start, stop)| start == stop) {
        true => 0,
        false => bounds.iter().map(|(start, stop)| stop - start).product::<u64>() * element_bytes(info),
    }
}

/// Returns the bytes of an element in memory. Packed elements count in bytes.
pub fn element_bytes(info: &TensorInfo<'_>) -> u64 {
    u64::from(info.dtype.size_bits().div_ceil(8))
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
