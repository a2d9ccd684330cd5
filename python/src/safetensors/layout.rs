//! The places of tensors in memory, without I/O.

use gpufile::formats::safetensors::{Header, TensorInfo, TensorSlice};

use super::runs::{Runs, Stretch};

/// Tensors of one file and slices of them, or a part of one tensor, in one allocation.
#[derive(Default)]
pub struct Layout {
    pub len_bytes: usize,
    /// In the order of the file, and that of the memory.
    runs: Vec<Runs>,
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
        at: usize,
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
        let (start, len_bytes) = match bounds.get(inner) {
            Some((start, stop)) => (start * strides[inner], (stop - start) * strides[inner]),
            None => (0, element_bytes(info)),
        };
        let len_bytes = usize::try_from(len_bytes).ok()?;
        let outer: u64 = bounds[..inner].iter().zip(&strides).map(|((at, _), stride)| at * stride).sum();
        let file_offset = file_offset + outer + start;
        if bounds[..inner].iter().all(|(start, stop)| stop - start == 1) {
            return self.append(file_offset, at, len_bytes);
        }
        let first = Stretch { file_offset, buffer_offset: at, len_bytes };
        let axes = bounds[..inner].iter().zip(&strides);
        let runs = Runs::new(first, axes.map(|((start, stop), stride)| (stop - start, *stride)))?;
        self.len_bytes = runs.in_buffer().end;
        self.runs.push(runs);
        Some(())
    }

    /// Appends bytes of the file, at `start` in the memory.
    fn append(&mut self, file_offset: u64, start: usize, len_bytes: usize) -> Option<()> {
        if len_bytes == 0 {
            return Some(());
        }
        match self.runs.last_mut().filter(|open| open.count() == 1).map(|open| &mut open.first) {
            Some(open) if open.file_end() == file_offset && open.in_buffer().end == start => {
                open.len_bytes += len_bytes;
            }
            _ => self.runs.push(Runs::one(Stretch { file_offset, buffer_offset: start, len_bytes })),
        }
        self.len_bytes = start.checked_add(len_bytes)?;
        Some(())
    }

    /// Returns the only stretch, if there is only one.
    pub fn only_stretch(&self) -> Option<Stretch> {
        match &self.runs[..] {
            [runs] if runs.count() == 1 => Some(runs.first),
            _ => None,
        }
    }

    /// Returns the parts of the stretches that lie in this range of the memory, in bytes.
    pub fn within(&self, start: usize, stop: usize) -> impl Iterator<Item = Stretch> {
        self.runs_of(start, stop).flat_map(move |runs| runs.within(start..stop))
    }

    /// Returns the end of the longest part of the memory from `start` on that has at most so many bytes and stretches.
    /// Also returns the number of its stretches.
    pub fn step(&self, start: usize, most_bytes: usize, most_stretches: usize) -> (usize, usize) {
        let stop = start.saturating_add(most_bytes).min(self.len_bytes);
        let mut left = most_stretches;
        for runs in self.runs_of(start, stop) {
            let numbers = runs.numbers(&(start..stop));
            if numbers.len() > left {
                let reached = runs.first.buffer_offset + (numbers.start + left) * runs.first.len_bytes;
                return (reached.max(start), most_stretches);
            }
            left -= numbers.len();
        }
        (stop, most_stretches - left)
    }

    /// Returns the most stretches that one read may have: enough to keep the engine busy, or those of whole tensors.
    pub fn most_stretches(&self) -> usize {
        (1 << 18).max(self.runs.len())
    }

    fn runs_of(&self, start: usize, stop: usize) -> impl Iterator<Item = &Runs> {
        let first = self.runs.partition_point(|runs| runs.in_buffer().end <= start);
        self.runs[first..].iter().take_while(move |runs| runs.first.buffer_offset < stop)
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
