use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::super::headers::header::TensorInfo;
use super::runs::TensorSlice;
use crate::formats::FormatError;
use crate::formats::clip::clip;

/// A rule that gives each tensor of a model to one or several GPUs, for [`Load::placed`](super::super::Load::placed).
///
/// A rule names GPUs by their position in the list that is passed to the load, from 0.
///
/// ```
/// use gpufile::formats::safetensors::{Cut, Placement, Share};
///
/// // Tensor parallelism: the first layers of a block by rows, the second by columns, and the norms everywhere.
/// let placement = Placement::by(|tensor| match tensor.name.rsplit('.').nth(1) {
///     Some("q_proj" | "k_proj" | "v_proj" | "gate_proj" | "up_proj") => Share::Slice { axis: 0, cut: Cut::Even },
///     Some("o_proj" | "down_proj") => Share::Slice { axis: 1, cut: Cut::Even },
///     _ => Share::All,
/// });
/// # let _ = placement;
/// ```
#[derive(Clone)]
pub struct Placement {
    rule: Arc<Rule>,
}

type Rule = dyn Fn(&TensorInfo<'_>) -> Share + Send + Sync;

/// The part of a tensor that each GPU gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Share {
    /// The whole tensor, on one GPU. The load chooses the GPU so that all get about the same number of bytes.
    Balanced,
    /// The whole tensor, on the GPU at this position of the list.
    On(usize),
    /// A slice on each GPU: a range of indices along an axis. Slices are empty where there are fewer indices than GPUs.
    Slice {
        /// The axis, counted from 0, the slowest.
        axis: usize,
        /// The lengths of the slices.
        cut: Cut,
    },
    /// The whole tensor, on each GPU.
    All,
}

/// The lengths of the slices of an axis, if its length is not a multiple of the number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cut {
    /// All slices are equally long, except that the last ones are shorter or empty, as by `torch.chunk` and PyTorch's
    /// `Shard`: 10 on 4 GPUs are 3, 3, 3 and 1.
    Chunks,
    /// The first slices are longer by one, as by `torch.tensor_split` and `numpy.array_split`: 10 on 4 GPUs are 3, 3, 2
    /// and 2.
    Even,
}

impl Placement {
    /// Returns the placement that calls `rule` for each tensor. A load calls it once for each tensor.
    pub fn by(rule: impl Fn(&TensorInfo<'_>) -> Share + Send + Sync + 'static) -> Self {
        Self { rule: Arc::new(rule) }
    }

    /// Returns the placement of whole tensors that gives all GPUs about the same number of bytes.
    pub fn balanced() -> Self {
        Self::by(|_| Share::Balanced)
    }

    /// Returns the placement of all tensors on each GPU.
    pub fn all() -> Self {
        Self::by(|_| Share::All)
    }

    pub(super) fn share(&self, tensor: &TensorInfo<'_>) -> Share {
        (self.rule)(tensor)
    }
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placement").finish_non_exhaustive()
    }
}

/// Returns the share of each tensor, with a GPU for each balanced one. Each of these, from the longest to the shortest,
/// goes to the GPU with the fewest bytes.
pub(super) fn shares<'t, E>(
    tensors: impl Iterator<Item = TensorInfo<'t>>,
    gpus: usize,
    mut rule: impl FnMut(&TensorInfo<'t>) -> Result<Share, E>,
    refuse: impl Fn(FormatError) -> E,
) -> Result<Vec<Share>, E> {
    let mut loads = vec![0u64; gpus];
    let (mut shares, mut balanced) = (Vec::new(), Vec::new());
    for tensor in tensors {
        let share = rule(&tensor)?;
        share.check(&tensor, gpus).map_err(&refuse)?;
        match share {
            Share::Balanced => balanced.push((tensor.len_bytes(), shares.len())),
            Share::On(gpu) => loads[gpu] += tensor.len_bytes(),
            // These give each GPU about as many bytes.
            Share::Slice { .. } | Share::All => {}
        }
        shares.push(share);
    }
    balanced.sort_by_key(|(len_bytes, number)| (u64::MAX - len_bytes, *number));
    for (len_bytes, number) in balanced {
        let gpu = (0..gpus).min_by_key(|gpu| loads[*gpu]).expect("the list was checked");
        loads[gpu] += len_bytes;
        shares[number] = Share::On(gpu);
    }
    Ok(shares)
}

impl Share {
    /// Returns the slice of a tensor that a GPU gets, or `Some(None)` for the whole tensor. Returns `None` if the GPU
    /// gets nothing of the tensor.
    pub(super) fn on(self, tensor: &TensorInfo<'_>, gpu: usize, gpus: usize) -> Option<Option<TensorSlice>> {
        match self {
            Share::Slice { axis, cut } => {
                Some(Some(TensorSlice { axis, range: cut.range(tensor.shape[axis], gpu, gpus) }))
            }
            Share::On(chosen) if chosen != gpu => None,
            _ => Some(None),
        }
    }

    fn check(self, tensor: &TensorInfo<'_>, gpus: usize) -> Result<(), FormatError> {
        let gpu = if let Share::On(gpu) = self { gpu } else { 0 };
        if gpu >= gpus {
            return Err(FormatError::NoSuchGpu { tensor: clip(tensor.name), gpu, gpus });
        }
        match self {
            Share::Slice { axis, .. } if axis >= tensor.shape.len() => {
                Err(FormatError::NoSuchAxis { tensor: clip(tensor.name), axis, axes: tensor.shape.len() })
            }
            _ => Ok(()),
        }
    }
}

impl Cut {
    /// Returns the indices that one of several GPUs gets of an axis with this length. The ranges of all GPUs cover the
    /// axis without gaps and overlaps.
    ///
    /// ```
    /// use gpufile::formats::safetensors::Cut;
    ///
    /// let lens = |cut: Cut| [0, 1, 2, 3].map(|gpu| cut.range(10, gpu, 4)).map(|range| range.end - range.start);
    /// assert_eq!((lens(Cut::Chunks), lens(Cut::Even)), ([3, 3, 3, 1], [3, 3, 2, 2]));
    /// ```
    ///
    /// # Panics
    /// If `gpu` is not below `gpus`.
    pub fn range(self, axis_len: u64, gpu: usize, gpus: usize) -> Range<u64> {
        assert!(gpu < gpus, "GPU {gpu} is out of range: there are {gpus} GPUs");
        let (gpu, gpus) = (gpu as u64, gpus as u64);
        match self {
            Cut::Chunks => {
                let len = axis_len.div_ceil(gpus);
                let start = len.saturating_mul(gpu).min(axis_len);
                start..start + len.min(axis_len - start)
            }
            Cut::Even => {
                let (len, longer) = (axis_len / gpus, axis_len % gpus);
                let start = len * gpu + gpu.min(longer);
                start..start + len + u64::from(gpu < longer)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Dtype;

    fn tensor<'a>(name: &'a str, dtype: Dtype, shape: &'a [u64]) -> TensorInfo<'a> {
        let bits = shape.iter().product::<u64>() * u64::from(dtype.size_bits());
        TensorInfo { name, dtype, shape, offsets: 7..7 + bits / 8 }
    }

    #[test]
    fn cuts_cover_the_axis_in_order() {
        for cut in [Cut::Chunks, Cut::Even] {
            for gpus in 1..9 {
                for len in (0..40).chain([u64::MAX - 1, u64::MAX]) {
                    let mut end = 0;
                    for gpu in 0..gpus {
                        let range = cut.range(len, gpu, gpus);
                        assert_eq!(range.start, end, "{cut:?} of {len} for {gpu} of {gpus}");
                        end = range.end;
                        let most = len.div_ceil(gpus as u64);
                        assert!(range.end - range.start <= most);
                        if cut == Cut::Even {
                            assert!(range.end - range.start >= len / gpus as u64);
                        }
                    }
                    assert_eq!(end, len);
                }
            }
        }
    }

    fn shares_of<'t>(
        placement: &Placement,
        tensors: impl Iterator<Item = TensorInfo<'t>>,
        gpus: usize,
    ) -> Result<Vec<Share>, FormatError> {
        shares(tensors, gpus, |tensor| Ok(placement.share(tensor)), |error| error)
    }

    #[test]
    fn balanced_tensors_fill_the_gpus_evenly() {
        let shapes: Vec<[u64; 1]> = (1..60).map(|number| [number * number % 41]).collect();
        let tensors = || shapes.iter().map(|shape| tensor("t", Dtype::U8, shape));
        for gpus in 1..9 {
            let shares = shares_of(&Placement::balanced(), tensors(), gpus).unwrap();
            let mut loads = vec![0; gpus];
            for (share, shape) in shares.iter().zip(&shapes) {
                let Share::On(gpu) = share else { panic!("{share:?} is not on one GPU") };
                loads[*gpu] += shape[0];
            }
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            assert!(most - least <= 41, "{loads:?}");
        }
        // A GPU that has much already gets none of the others.
        let placement = Placement::by(|tensor| match tensor.shape[0] {
            40 => Share::On(1),
            _ => Share::Balanced,
        });
        let tensors = [[3], [40], [4]];
        let tensors = tensors.iter().map(|shape| tensor("t", Dtype::U8, shape));
        assert_eq!(shares_of(&placement, tensors, 2).unwrap(), [Share::On(0), Share::On(1), Share::On(0)]);
    }

    #[test]
    fn missing_gpus_and_axes_are_refused() {
        let shares = |share, gpus| {
            let scalar = tensor("w", Dtype::F32, &[]);
            shares_of(&Placement::by(move |_| share), [scalar].into_iter(), gpus).unwrap_err().to_string()
        };
        assert_eq!(
            shares(Share::On(2), 2),
            r#"tensor "w": cannot place it on GPU 2, because the list has 2 GPUs"#
        );
        assert_eq!(
            shares(Share::All, 0),
            r#"tensor "w": cannot place it on GPU 0, because the list has 0 GPUs"#
        );
        assert_eq!(
            shares(Share::Slice { axis: 0, cut: Cut::Even }, 2),
            r#"tensor "w": cannot slice axis 0 of a tensor with 0 axes; place it on one GPU or on all"#
        );
    }
}
