//! The places of a chunk's bytes in its file and in a region of the array.

use std::ops::Range;

/// The part of a chunk that lies in a region, as runs: ranges of bytes that are adjacent in both.
#[derive(Debug, Clone)]
pub(super) struct Runs {
    /// The length of each run, in bytes.
    pub run_bytes: usize,
    chunk_start: u64,
    region_start: usize,
    /// The axes along which runs repeat, the fastest first.
    axes: Vec<Axis>,
}

#[derive(Debug, Clone)]
struct Axis {
    len: u64,
    chunk_stride: u64,
    region_stride: usize,
}

/// The starts of a run in the chunk and in the region, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub in_chunk: u64,
    pub in_region: usize,
}

impl Runs {
    /// Returns the runs of the chunk with this origin and shape, which must have an element in the region. Sizes must
    /// have been checked: the chunk's bytes fit into a `u64`, the region's into a `usize`.
    pub fn new(origin: &[u64], shape: &[u64], region: &[Range<u64>], element_bytes: usize) -> Self {
        let mut runs = Self { run_bytes: element_bytes, chunk_start: 0, region_start: 0, axes: Vec::new() };
        let (mut chunk_stride, mut region_stride) = (element_bytes as u64, element_bytes);
        let mut is_whole = true;
        for ((&origin, &chunk_len), wanted) in origin.iter().zip(shape).zip(region).rev() {
            let start = wanted.start.max(origin);
            let len = wanted.end.min(origin + chunk_len) - start;
            let region_len = wanted.end - wanted.start;
            runs.chunk_start += (start - origin) * chunk_stride;
            runs.region_start += (start - wanted.start) as usize * region_stride;
            if is_whole {
                runs.run_bytes *= len as usize;
            } else if len > 1 {
                runs.axes.push(Axis { len, chunk_stride, region_stride });
            }
            is_whole &= len == chunk_len && len == region_len;
            chunk_stride *= chunk_len;
            region_stride *= region_len as usize;
        }
        runs
    }

    pub fn count(&self) -> u64 {
        self.axes.iter().map(|axis| axis.len).product()
    }

    pub fn total_bytes(&self) -> u64 {
        self.count() * self.run_bytes as u64
    }

    /// Returns all runs, in the order of the region.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        let mut at = vec![0; self.axes.len()];
        let first = Run { in_chunk: self.chunk_start, in_region: self.region_start };
        std::iter::successors(Some(first), move |run| {
            let mut run = *run;
            for (at, axis) in at.iter_mut().zip(&self.axes) {
                *at += 1;
                run.in_chunk += axis.chunk_stride;
                run.in_region += axis.region_stride;
                if *at < axis.len {
                    return Some(run);
                }
                run.in_chunk -= axis.len * axis.chunk_stride;
                run.in_region -= axis.len as usize * axis.region_stride;
                *at = 0;
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "a region of one axis")]

    use super::*;

    fn runs(origin: &[u64], shape: &[u64], region: &[Range<u64>]) -> (usize, Vec<(u64, usize)>) {
        let runs = Runs::new(origin, shape, region, 2);
        let all: Vec<_> = runs.iter().map(|run| (run.in_chunk, run.in_region)).collect();
        assert_eq!(all.len() as u64, runs.count());
        assert_eq!(runs.total_bytes(), runs.count() * runs.run_bytes as u64);
        (runs.run_bytes, all)
    }

    #[test]
    fn contiguous_elements_form_one_run() {
        assert_eq!(runs(&[], &[], &[]), (2, vec![(0, 0)]));
        assert_eq!(runs(&[4], &[4], &[0..20]), (8, vec![(0, 8)]));
        assert_eq!(runs(&[4, 0], &[2, 3], &[0..10, 0..3]), (12, vec![(0, 24)]));
        assert_eq!(runs(&[0, 2, 0], &[1, 2, 3], &[0..4, 0..4, 0..3]), (12, vec![(0, 12)]));
        // The region's rows are the chunk's, but start within it.
        assert_eq!(runs(&[4, 0], &[4, 3], &[5..10, 0..3]), (18, vec![(6, 0)]));
    }

    #[test]
    fn chunk_rows_form_runs_in_wider_regions() {
        assert_eq!(runs(&[0, 3], &[2, 3], &[0..2, 0..9]), (6, vec![(0, 6), (6, 24)]));
        assert_eq!(runs(&[0, 3], &[2, 3], &[1..2, 4..5]), (2, vec![(8, 0)]));
        // An edge chunk, of which one column is in the array.
        assert_eq!(runs(&[0, 3], &[2, 3], &[0..2, 0..4]), (2, vec![(0, 6), (6, 14)]));
        assert_eq!(
            runs(&[0, 0, 2], &[2, 2, 2], &[0..2, 0..2, 0..4]),
            (4, vec![(0, 4), (4, 12), (8, 20), (12, 28)])
        );
    }

    #[test]
    fn runs_cover_each_element_of_the_region_once() {
        let (shape, chunk) = ([5_u64, 7, 3], [2_u64, 3, 2]);
        for region in [[0..5, 0..7, 0..3], [1..4, 2..7, 1..2], [4..5, 6..7, 2..3], [0..2, 3..6, 0..2]] {
            let len = |axis: usize| (region[axis].end - region[axis].start) as usize;
            let mut seen = vec![None; len(0) * len(1) * len(2)];
            for i in 0..shape[0].div_ceil(chunk[0]) {
                for j in 0..shape[1].div_ceil(chunk[1]) {
                    for k in 0..shape[2].div_ceil(chunk[2]) {
                        let origin = [i * chunk[0], j * chunk[1], k * chunk[2]];
                        let meets = |axis: usize| {
                            origin[axis] < region[axis].end && origin[axis] + chunk[axis] > region[axis].start
                        };
                        if !(0..3).all(meets) {
                            continue;
                        }
                        let runs = Runs::new(&origin, &chunk, &region, 1);
                        for run in runs.iter() {
                            for byte in 0..runs.run_bytes {
                                let at = run.in_chunk + byte as u64;
                                let index = [at / 6, at / 2 % 3, at % 2];
                                let global: Vec<_> = (0..3).map(|axis| origin[axis] + index[axis]).collect();
                                assert!(seen[run.in_region + byte].replace(global).is_none());
                            }
                        }
                    }
                }
            }
            for (at, global) in seen.into_iter().enumerate() {
                let expected = [at / (len(1) * len(2)), at / len(2) % len(1), at % len(2)];
                let expected: Vec<_> =
                    (0..3).map(|axis| region[axis].start + expected[axis] as u64).collect();
                assert_eq!(global, Some(expected));
            }
        }
    }
}
