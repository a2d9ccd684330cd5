use std::iter;
use std::path::Path;

use cufile::{BufSlice, IoBuf};

use super::block_type::GgmlType;
use super::header::Header;
use super::loaded::TensorView;
use super::metadata::Metadata;
use super::write::NewTensor;
use crate::formats::memory::{check_len, zeroed};
use crate::formats::save::object::{Failed, Objects, OfDestination};
use crate::formats::visible::Quoted;
use crate::formats::{Error, Result, SaveOptions, save};
use crate::storage::Destination;
use crate::{File, Request};

/// A tensor to save, in the memory of the host or a GPU.
///
/// ```
/// use gpufile::formats::gguf::{GgmlType, TensorData};
///
/// let ones: Vec<u8> = [1_f32; 6].iter().flat_map(|one| one.to_le_bytes()).collect();
/// let tensor = TensorData::new("ones", GgmlType::F32, &[2, 3], &ones); // or a DeviceBuffer
/// assert_eq!((tensor.name, tensor.shape), ("ones", &[2, 3][..]));
/// ```
#[derive(Debug, Clone)]
pub struct TensorData<'a> {
    /// The name, of at most 63 bytes, as ggml reads them.
    pub name: &'a str,
    /// The type of the elements, or of the blocks of elements.
    pub ggml_type: GgmlType,
    /// The length of each axis, in elements, the slowest first. At most four axes; none for a scalar.
    pub shape: &'a [u64],
    /// The elements or blocks, little-endian, the last axis fastest.
    pub bytes: BufSlice<'a>,
}

impl<'a> TensorData<'a> {
    /// Returns a tensor to save.
    pub fn new(name: &'a str, ggml_type: GgmlType, shape: &'a [u64], bytes: impl Into<BufSlice<'a>>) -> Self {
        Self { name, ggml_type, shape, bytes: bytes.into() }
    }
}

impl<'a> From<TensorView<'a>> for TensorData<'a> {
    /// Returns a loaded tensor, to save it again.
    fn from(view: TensorView<'a>) -> Self {
        let TensorView { info, bytes, .. } = view;
        Self { name: info.name, ggml_type: info.ggml_type, shape: info.shape, bytes }
    }
}

/// Saves tensors and metadata to a file of version 3. When it is complete, the file replaces an older one, as
/// [`SaveOptions`] describes. Returns the length of the file in bytes.
///
/// The tensors lie in the file in the order given, each at a multiple of `general.alignment` in the metadata, or of 32
/// bytes. Zeros fill the gaps, and the end. The metadata in `options` is for other formats. For several files, see
/// [`save_split`](super::save_split()).
///
/// ```
/// use gpufile::formats::SaveOptions;
/// use gpufile::formats::gguf::{self, Array, GgmlType, Metadata, TensorData, Value};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-save-{}.gguf", std::process::id()));
/// let mut metadata = Metadata::from_iter([("general.architecture", "llama")]);
/// metadata.insert("tokenizer.ggml.tokens", Array::Strings(["<s>", "a"].into_iter().collect()));
/// metadata.insert("llama.block_count", 1_u32);
/// let weight = vec![0; 24]; // or a DeviceBuffer
/// let tensors = [TensorData::new("weight", GgmlType::F32, &[2, 3], &weight)];
/// let len_bytes = gguf::save(&path, &metadata, &tensors, &SaveOptions::new())?;
/// # assert_eq!(std::fs::metadata(&path).unwrap().len(), len_bytes);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Format`] as [`Header::build`]; [`Error::BufferSize`] if a tensor has more or fewer bytes than its shape and
/// type say; [`Error::Save`] if the file cannot be written or replaced, with what is in place then.
pub fn save(
    path: impl AsRef<Path>,
    metadata: &Metadata,
    tensors: &[TensorData<'_>],
    options: &SaveOptions,
) -> Result<u64> {
    let path = path.as_ref();
    let plan = Plan::of(path, metadata.clone(), tensors)?;
    save::save(path, options, |file, _| file.engine().write_many(&plan.requests(file)))?;
    Ok(plan.len_bytes())
}

/// Saves tensors and metadata as an object of a [`Destination`], with the bytes of the file that [`save`] writes. Returns its
/// length in bytes. The engine of the options copies from GPUs.
///
/// # Errors
/// As [`save`]. [`Error::Save`] names the object.
pub fn save_to(
    destination: &dyn Destination,
    name: &str,
    metadata: &Metadata,
    tensors: &[TensorData<'_>],
    options: &SaveOptions,
) -> Result<u64> {
    let path = Path::new(name);
    let plan = Plan::of(path, metadata.clone(), tensors)?;
    let objects = OfDestination::new(destination, name, options);
    plan.save_object(&mut objects.map_err(|error| Failed::from(error).of(path))?, name, path)
}

/// A new file, checked and laid out.
pub(super) struct Plan<'a> {
    header: Header,
    head: Vec<u8>,
    /// The offset of each tensor in the file, and its bytes.
    tensors: Vec<(u64, BufSlice<'a>)>,
    /// The offset and the length in bytes of each gap between them.
    gaps: Vec<(u64, usize)>,
    /// The bytes of the gaps, as many as the longest gap has.
    zeros: Vec<u8>,
}

impl<'a> Plan<'a> {
    pub fn of(path: &Path, metadata: Metadata, tensors: &[TensorData<'a>]) -> Result<Self> {
        let new: Vec<_> = tensors
            .iter()
            .map(|tensor| NewTensor { name: tensor.name, ggml_type: tensor.ggml_type, shape: tensor.shape })
            .collect();
        let built = Header::build(metadata, &new);
        let (header, head) = built.map_err(|error| Error::Format { path: path.to_owned(), error })?;
        let mut ends = Vec::with_capacity(tensors.len() + 1);
        ends.push(header.data_start());
        let mut parts = Vec::with_capacity(tensors.len());
        for TensorData { name, bytes, .. } in tensors {
            let place = header.get(name).expect("a header has what it was built from").range;
            let what = || format!("tensor {}", Quoted(name));
            check_len(path, what, place.end - place.start, bytes.len_bytes())?;
            ends.push(place.end);
            parts.push((place.start, *bytes));
        }
        let starts = parts.iter().map(|(start, _)| *start).chain([header.file_len_bytes()]);
        let gaps: Vec<_> =
            iter::zip(ends, starts).map(|(end, start)| (end, (start - end) as usize)).collect();
        let zeros = zeroed(path, gaps.iter().map(|(_, len)| *len).max().unwrap_or(0))?;
        Ok(Self { header, head, tensors: parts, gaps, zeros })
    }

    pub fn len_bytes(&self) -> u64 {
        self.header.file_len_bytes()
    }

    /// Returns the bytes of the file in their order, each part with its offset.
    pub fn parts(&self) -> Vec<(u64, BufSlice<'_>)> {
        let gaps = self.gaps.iter().map(|(start, len)| (*start, BufSlice::new(&self.zeros, ..*len)));
        let mut parts: Vec<(u64, BufSlice<'_>)> = vec![(0, self.head.as_slice().into())];
        parts.extend(self.tensors.iter().copied());
        parts.extend(gaps.filter(|(_, zeros)| zeros.len_bytes() > 0));
        parts.sort_by_key(|(start, _)| *start);
        parts
    }

    /// Saves the file as an object. Returns its length in bytes.
    pub fn save_object(&self, objects: &mut dyn Objects, name: &str, path: &Path) -> Result<u64> {
        let mut parts = self.parts().into_iter().map(|(_, bytes)| bytes);
        let saved = objects.save(name, self.len_bytes(), &mut parts);
        saved.map_err(|failed| failed.of(path))?;
        Ok(self.len_bytes())
    }

    pub fn requests<'p>(&'p self, file: &'p File) -> Vec<Request<BufSlice<'p>, &'p File>> {
        self.parts().into_iter().map(|(offset, buffer)| Request { file, buffer, offset }).collect()
    }
}
