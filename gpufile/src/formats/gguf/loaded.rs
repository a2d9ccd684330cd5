use std::ops::{Deref, Range};
use std::sync::Arc;

use cufile::BufSlice;

use super::catalog::Catalog;
use super::header::TensorInfo;
use super::layout::{Layout, Place};
use crate::IoBuf;

/// Loaded tensors in one buffer.
///
/// Views of tensors are created when they are looked up, not when they are loaded.
///
/// ```
/// # use gpufile::formats::SaveOptions;
/// use gpufile::formats::gguf::{self, GgmlType, Metadata, Model, TensorData};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-loaded-{}.gguf", std::process::id()));
/// # let bytes = [1_u8, 2, 3];
/// # let a = TensorData::new("a", GgmlType::I8, &[2], &bytes[..2]);
/// # let tensors = [a, TensorData::new("b", GgmlType::I8, &[1], &bytes[2..])];
/// # gguf::save(&path, &Metadata::new(), &tensors, &SaveOptions::new())?;
/// let loaded = Model::open(&path)?.load().only(["b"])?.to_host()?;
/// assert_eq!((loaded.iter().len(), loaded.bytes("b")), (1, Some(&[3][..])));
/// assert!(loaded.tensor("a").is_none());
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Loaded<B> {
    catalog: Arc<Catalog>,
    layout: Layout,
    /// The start of the layout in the buffer, in bytes.
    start: usize,
    buffer: B,
}

/// A tensor of a [`Loaded`].
///
/// ```
/// # use gpufile::formats::SaveOptions;
/// use gpufile::formats::gguf::{self, GgmlType, Metadata, Model, TensorData};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-view-{}.gguf", std::process::id()));
/// # let tensors = [TensorData::new("w", GgmlType::F32, &[2], &[0_u8; 8][..])];
/// # gguf::save(&path, &Metadata::new(), &tensors, &SaveOptions::new())?;
/// let loaded = Model::open(&path)?.load().to_host()?;
/// let view = loaded.tensor("w").unwrap();
/// assert_eq!((view.info.ggml_type, view.info.shape), (GgmlType::F32, &[2][..]));
/// assert_eq!(loaded.buffer()[view.range], [0; 8]);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TensorView<'a> {
    /// The name, the type, the shape, and the range in the file.
    pub info: TensorInfo<'a>,
    /// The bytes, little-endian, the last axis fastest.
    pub bytes: BufSlice<'a>,
    /// The range of these bytes in the buffer.
    pub range: Range<usize>,
}

impl<B> Loaded<B> {
    pub(super) fn new(catalog: Arc<Catalog>, layout: Layout, start: usize, buffer: B) -> Self {
        Self { catalog, layout, start, buffer }
    }

    /// Returns the buffer that holds all tensors.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// Returns the buffer. [`TensorView::range`] has the range of a tensor in it.
    pub fn into_buffer(self) -> B {
        self.buffer
    }

    fn find(&self, name: &str) -> Option<&Place> {
        self.layout.find(self.catalog.find(name)?)
    }

    fn range(&self, place: &Place) -> Range<usize> {
        self.start + place.range.start..self.start + place.range.end
    }
}

impl<B: IoBuf> Loaded<B> {
    /// Returns the tensor of that name, if it was loaded.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.find(name).map(|place| self.view(place))
    }

    /// Returns the tensors, file by file, in the order of their bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.layout.places.iter().map(|place| self.view(place))
    }

    fn view(&self, place: &Place) -> TensorView<'_> {
        let range = self.range(place);
        let bytes = BufSlice::new(&self.buffer, range.clone());
        TensorView { info: self.catalog.info(place.id), bytes, range }
    }
}

impl<B: IoBuf + Deref<Target = [u8]>> Loaded<B> {
    /// Returns the bytes of the tensor of that name, in host memory, if it was loaded.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.find(name).map(|place| &self.buffer[self.range(place)])
    }
}
