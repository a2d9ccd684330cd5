//! The bytes of a part of a tensor: ranges of the file at regular distances. Their description grows
//! with the axes of the part, not with the number of ranges.

use std::iter;
use std::ops::Range;

use super::super::headers::header::TensorInfo;
use crate::formats::FormatError;
use crate::formats::clip::clip;

/// A slice of a tensor: a range of indices along one axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorSlice {
    /// The axis, counted from 0, the slowest.
    pub axis: usize,
    /// The indices.
    pub range: Range<u64>,
}

/// Ranges of equal length at regular distances, in the order of the elements. All numbers except counts are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::formats::safetensors) struct Runs {
    /// The start of the first run, in the tensor or in the file.
    pub start: u64,
    pub run_bytes: u64,
    /// The axes with more than one run, the slowest first.
    axes: Vec<Axis>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Axis {
    len: u64,
    stride_bytes: u64,
}

impl Runs {
    pub fn whole(tensor: &TensorInfo<'_>) -> Self {
        Self { start: 0, run_bytes: tensor.len_bytes(), axes: Vec::new() }
    }

    /// Returns the runs of a slice, from the start of the tensor.
    pub fn of_slice(tensor: &TensorInfo<'_>, axis: usize, range: &Range<u64>) -> Result<Self, FormatError> {
        let mut bounds: Vec<_> = tensor.shape.iter().map(|&len| 0..len).collect();
        match bounds.get_mut(axis) {
            Some(bound) => *bound = range.clone(),
            None => return Err(outside(tensor, axis, range)),
        }
        Self::of(tensor, &bounds)
    }

    /// Returns the runs of the elements within these indices along each axis, from the start of the tensor. There is
    /// one run if they have no gaps, and none if they have no bytes.
    pub fn of(tensor: &TensorInfo<'_>, bounds: &[Range<u64>]) -> Result<Self, FormatError> {
        let shape = tensor.shape;
        if bounds.len() != shape.len() {
            return Err(outside(tensor, bounds.len().min(shape.len()), &(0..0)));
        }
        for (axis, (bound, len)) in iter::zip(bounds, shape).enumerate() {
            if bound.start > bound.end || bound.end > *len {
                return Err(outside(tensor, axis, bound));
            }
        }
        if tensor.len_bytes() == 0 || bounds.iter().any(Range::is_empty) {
            return Ok(Self { start: 0, run_bytes: 0, axes: Vec::new() });
        }
        let is_whole = |axis: usize| bounds[axis] == (0..shape[axis]);
        // A run has all of the axes behind this one.
        let Some(inner) = (0..shape.len()).rev().find(|axis| !is_whole(*axis)) else {
            return Ok(Self::whole(tensor));
        };
        // No axis has the length 0, so each of these products divides the length of the tensor.
        let product = |axes: &[u64]| axes.iter().map(|&len| u128::from(len)).product::<u128>();
        let stride_bits = |axis: usize| product(&shape[axis + 1..]) * u128::from(tensor.dtype.size_bits());
        let len = |axis: usize| bounds[axis].end - bounds[axis].start;
        let start = (0..=inner).map(|axis| u128::from(bounds[axis].start) * stride_bits(axis)).sum::<u128>();
        let run = start..start + u128::from(len(inner)) * stride_bits(inner);
        let outer = || (0..inner).filter(|axis| len(*axis) > 1);
        // If the first run and the second along each axis are whole bytes, all are.
        for shift in iter::once(0).chain(outer().rev().map(stride_bits)) {
            let bits = run.start + shift..run.end + shift;
            if bits.start % 8 != 0 || bits.end % 8 != 0 {
                return Err(FormatError::PartialByte { tensor: clip(tensor.name), bits });
            }
        }
        let mut axes: Vec<Axis> = Vec::new();
        for axis in outer() {
            let (len, stride_bytes) = (len(axis), (stride_bits(axis) / 8) as u64);
            match axes.last_mut().filter(|last| is_whole(axis) && last.stride_bytes == len * stride_bytes) {
                Some(last) => *last = Axis { len: last.len * len, stride_bytes },
                None => axes.push(Axis { len, stride_bytes }),
            }
        }
        let (start, end) = ((run.start / 8) as u64, (run.end / 8) as u64);
        Ok(Self { start, run_bytes: end - start, axes })
    }

    /// Returns the runs, moved `bytes` bytes further.
    pub fn behind(self, bytes: u64) -> Self {
        Self { start: bytes + self.start, ..self }
    }

    pub fn count(&self) -> u64 {
        match self.run_bytes {
            0 => 0,
            _ => self.axes.iter().map(|axis| axis.len).product(),
        }
    }

    pub fn len_bytes(&self) -> u64 {
        self.run_bytes * self.count()
    }

    pub fn nth(&self, number: u64) -> u64 {
        let (mut rest, mut start) = (number, self.start);
        for axis in self.axes.iter().rev() {
            start += rest % axis.len * axis.stride_bytes;
            rest /= axis.len;
        }
        start
    }
}

fn outside(tensor: &TensorInfo<'_>, axis: usize, range: &Range<u64>) -> FormatError {
    let available = tensor.shape.get(axis).copied().unwrap_or(0);
    FormatError::NoSuchSlice { tensor: Some(clip(tensor.name)), axis, range: range.clone(), available }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Dtype;

    fn tensor(dtype: Dtype, shape: &[u64]) -> TensorInfo<'_> {
        let bits = shape.iter().product::<u64>() * u64::from(dtype.size_bits());
        TensorInfo { name: "t", dtype, shape, offsets: 7..7 + bits / 8 }
    }

    /// Returns the numbers of the bits within the bounds, by looking at each element.
    fn naive(tensor: &TensorInfo<'_>, bounds: &[Range<u64>]) -> Vec<u64> {
        let bits = u64::from(tensor.dtype.size_bits());
        let index = |element: u64, axis: usize| {
            let inner: u64 = tensor.shape[axis + 1..].iter().product();
            element / inner % tensor.shape[axis]
        };
        (0..tensor.elements())
            .filter(|element| (0..bounds.len()).all(|axis| bounds[axis].contains(&index(*element, axis))))
            .flat_map(|element| element * bits..(element + 1) * bits)
            .collect()
    }

    fn all_bounds(shape: &[u64]) -> Vec<Vec<Range<u64>>> {
        shape.iter().fold(vec![vec![]], |lists, &len| {
            let ranges = || (0..=len).flat_map(move |start| (start..=len).map(move |end| start..end));
            lists.iter().flat_map(|list| ranges().map(|range| [&list[..], &[range]].concat())).collect()
        })
    }

    #[test]
    fn runs_have_the_bits_of_the_part() {
        let shapes: [&[u64]; 10] =
            [&[], &[1], &[7], &[6, 4], &[5, 3], &[1, 9], &[9, 1], &[2, 3, 4], &[3, 1, 2, 2], &[2, 0, 3]];
        let (mut whole, mut partial) = (0, 0);
        for dtype in [Dtype::F4, Dtype::F6E2M3, Dtype::U8, Dtype::F32] {
            for shape in shapes {
                let tensor = tensor(dtype, shape);
                if shape.iter().product::<u64>() * u64::from(dtype.size_bits()) % 8 != 0 {
                    continue;
                }
                for bounds in all_bounds(shape) {
                    let expected = naive(&tensor, &bounds);
                    let Ok(runs) = Runs::of(&tensor, &bounds) else {
                        // Some run does not start or end at a whole byte.
                        let inner = expected.windows(2).filter(|pair| pair[0] + 1 != pair[1]);
                        let mut edges = vec![expected[0], expected[expected.len() - 1] + 1];
                        edges.extend(inner.flat_map(|pair| [pair[0] + 1, pair[1]]));
                        assert!(edges.iter().any(|edge| edge % 8 != 0), "{shape:?} {bounds:?}");
                        partial += 1;
                        continue;
                    };
                    let starts: Vec<_> = (0..runs.count()).map(|number| runs.nth(number)).collect();
                    assert!(starts.windows(2).all(|pair| pair[0] + runs.run_bytes <= pair[1]));
                    let bytes = starts.iter().flat_map(|start| *start..start + runs.run_bytes);
                    let found: Vec<_> = bytes.flat_map(|byte| byte * 8..byte * 8 + 8).collect();
                    assert_eq!(found, expected, "{shape:?} {bounds:?}");
                    assert_eq!(runs.len_bytes() * 8, expected.len() as u64);
                    whole += 1;
                }
            }
        }
        assert!(whole > 3000 && partial > 500, "{whole} {partial}");
    }

    #[test]
    fn runs_of_a_slice_have_one_axis() {
        let runs = Runs::of_slice(&tensor(Dtype::U8, &[2, 3, 4, 1, 5]), 4, &(1..3)).unwrap();
        assert_eq!((runs.start, runs.run_bytes, runs.count()), (1, 2, 24));
        assert_eq!(runs.axes, [Axis { len: 24, stride_bytes: 5 }]);
    }

    #[test]
    fn parts_outside_the_tensor_are_refused() {
        let tensor = tensor(Dtype::U8, &[2, 3]);
        let beyond = u64::MAX;
        for (bounds, axis) in [
            (&[(0, 2)][..], 1),
            (&[(0, 2), (0, 3), (0, 1)], 2),
            (&[(0, 3), (0, 3)], 0),
            (&[(0, 2), (3, 2)], 1),
            (&[(0, 2), (beyond, beyond)], 1),
        ] {
            let bounds: Vec<_> = bounds.iter().map(|&(start, end)| start..end).collect();
            let refused = Runs::of(&tensor, &bounds).unwrap_err();
            assert!(matches!(refused, FormatError::NoSuchSlice { axis: at, .. } if at == axis), "{bounds:?}");
        }
        assert!(Runs::of_slice(&tensor, 2, &(0..0)).is_err());
    }
}
