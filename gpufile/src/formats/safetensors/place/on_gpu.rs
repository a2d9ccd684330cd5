use std::borrow::Cow;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use cufile::BufSlice;

use super::super::headers::header::TensorInfo;
use super::super::open::catalog::Catalog;
use super::super::open::files::ModelFiles;
use super::super::save::plan::TensorData;
use super::arrange::Arrangement;
use super::flow::Filling;
use super::layout::{Layout, Place};
use super::runs::TensorSlice;
use crate::cuda::DeviceBuffer;

/// The tensors and slices of a load on one GPU, in one buffer.
///
/// See [`PlacedLoad`](super::super::PlacedLoad) for an example.
#[derive(Debug)]
pub struct PlacedTensors {
    catalog: Arc<Catalog>,
    layout: Layout,
    buffer: DeviceBuffer,
}

/// A tensor of a [`PlacedTensors`], or a slice of one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PartView<'a> {
    /// The name, the type and the shape of the whole tensor, and its range in the data of the file.
    pub info: TensorInfo<'a>,
    /// The slice; `None` for the whole tensor.
    pub slice: Option<&'a TensorSlice>,
    /// The bytes of the tensor or the slice, in C order and little-endian.
    pub bytes: BufSlice<'a>,
    /// The range of these bytes in the buffer.
    pub range: Range<usize>,
}

impl PlacedTensors {
    /// Returns the tensors of each GPU when its buffer is filled.
    pub(super) fn of_all(model: &ModelFiles, arrangement: Arrangement, buffers: Vec<Filling>) -> Vec<Self> {
        iter::zip(arrangement.gpus, buffers)
            .map(|(layout, buffer)| Self {
                catalog: model.catalog.clone(),
                layout,
                buffer: buffer.into_buffer(),
            })
            .collect()
    }

    /// Returns the tensor of that name or the slice of it, if the GPU has one.
    pub fn tensor(&self, name: &str) -> Option<PartView<'_>> {
        self.layout.find(self.catalog.find(name)?).map(|place| self.view(place))
    }

    /// Returns the tensors and slices, file by file, in the order of their bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PartView<'_>> {
        self.layout.places.iter().map(|place| self.view(place))
    }

    /// Returns the buffer that holds all of them.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// Returns the buffer. [`PartView::range`] has the range of a tensor in it.
    pub fn into_buffer(self) -> DeviceBuffer {
        self.buffer
    }

    fn view<'s>(&'s self, place: &'s Place) -> PartView<'s> {
        let range = place.range.clone();
        let bytes = BufSlice::new(&self.buffer, range.clone());
        PartView { info: self.catalog.info(place.id), slice: place.slice.as_ref(), bytes, range }
    }
}

impl<'a> PartView<'a> {
    /// Returns the shape of what is on the GPU: of the tensor or of the slice.
    pub fn shape(&self) -> Cow<'a, [u64]> {
        let Some(TensorSlice { axis, range }) = self.slice else { return self.info.shape.into() };
        let mut shape = self.info.shape.to_vec();
        shape[*axis] = range.end - range.start;
        shape.into()
    }

    /// Returns the whole tensor, to save it again. Returns `None` for a slice, which is not the tensor of that name.
    pub fn to_save(&self) -> Option<TensorData<'a>> {
        let TensorInfo { name, dtype, shape, .. } = self.info;
        self.slice.is_none().then(|| TensorData::new(name, dtype, shape, self.bytes))
    }
}
