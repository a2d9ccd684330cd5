//! The tensors to save, and the plan of a file.

use std::collections::BTreeMap;
use std::iter;
use std::path::Path;
use std::slice;

use cufile::{BufSlice, IoBuf};

use super::super::headers::header::Header;
use super::super::headers::write::NewTensor;
use super::older::Older;
use super::packed::{Form, InMemory, Writer};
use crate::formats::memory::check_len;
use crate::formats::save::{New, Temporary, within};
use crate::formats::{Dtype, Error, FormatError, InPlace, Result, SaveOptions};
use crate::{File, Request};

/// A tensor to save, in the memory of the host or a GPU.
///
/// ```
/// use gpufile::formats::Dtype;
/// use gpufile::formats::safetensors::TensorData;
///
/// let ones: Vec<u8> = [1_f32; 6].iter().flat_map(|one| one.to_le_bytes()).collect();
/// let tensor = TensorData::new("ones", Dtype::F32, &[2, 3], &ones); // or a DeviceBuffer
/// assert_eq!((tensor.name, tensor.shape), ("ones", &[2, 3][..]));
/// ```
#[derive(Debug, Clone)]
pub struct TensorData<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The length of each axis, in elements, the slowest first. Empty for a scalar.
    pub shape: &'a [u64],
    /// The elements, in C order and little-endian.
    pub bytes: BufSlice<'a>,
}

impl<'a> TensorData<'a> {
    /// Returns a tensor to save.
    pub fn new(name: &'a str, dtype: Dtype, shape: &'a [u64], bytes: impl Into<BufSlice<'a>>) -> Self {
        Self { name, dtype, shape, bytes: bytes.into() }
    }
}

/// A new file, checked and laid out.
pub(super) struct Plan<'a> {
    header: Header,
    head: Vec<u8>,
    /// The offset of each tensor in the file, and its bytes. In the order of the header.
    parts: Vec<(u64, BufSlice<'a>)>,
    /// The metadata of a file with packed tensors, and whether its save waits for the storage.
    packed: Option<(BTreeMap<String, String>, bool)>,
}

impl<'a> Plan<'a> {
    pub fn of<'t>(
        path: &Path,
        tensors: impl Iterator<Item = &'t TensorData<'a>> + Clone,
        options: &SaveOptions,
    ) -> Result<Self>
    where
        'a: 't,
    {
        let new: Vec<_> = tensors
            .clone()
            .map(|tensor| NewTensor { name: tensor.name, dtype: tensor.dtype, shape: tensor.shape })
            .collect();
        let built = Header::build(&new, options.metadata.clone());
        let (header, head) = built.map_err(|error| malformed(path, error))?;
        let mut parts = Vec::with_capacity(new.len());
        for TensorData { name, bytes, .. } in tensors {
            let place = header.get(name).expect("a header has what it was built from");
            check_len(path, || format!("tensor {name:?}"), place.len_bytes(), bytes.len_bytes())?;
            parts.push((header.in_file(place.offsets).start, *bytes));
        }
        // An empty tensor comes before the one that begins at the same place, as in the header.
        parts.sort_by_key(|(start, bytes)| (*start, bytes.len_bytes()));
        let packed = options.compress.then(|| (options.metadata.clone(), options.sync));
        let plan = Self { header, head, parts, packed };
        plan.packer().map_or(Ok(0), |packer| packer.room()).map_err(|error| malformed(path, error))?;
        Ok(plan)
    }

    /// Returns what writes the file, if it is to have packed tensors.
    fn packer(&self) -> Option<Writer<'_>> {
        let (metadata, sync) = self.packed.clone()?;
        Some(Writer { header: &self.header, form: Form::Packed, metadata, sync })
    }

    /// Returns the length of the file in bytes, if its tensors are not packed.
    pub fn len_bytes(&self) -> u64 {
        self.header.file_len_bytes()
    }

    /// Saves this file as the whole model. Returns its length in bytes.
    pub fn save(self, path: &Path, options: &SaveOptions) -> Result<u64> {
        let mut len_bytes = 0;
        save_file(path, options, |file| {
            len_bytes = Self::write_together(&[&self], slice::from_ref(file))?;
            Ok(())
        })?;
        Ok(len_bytes)
    }

    pub fn write_together(plans: &[&Self], files: &[File]) -> crate::Result<u64> {
        let mut requests = Vec::new();
        let mut len_bytes = 0_u64;
        for (plan, file) in iter::zip(plans, files) {
            let written = match plan.packer() {
                Some(packer) => {
                    let parts = plan.parts.iter().map(|(_, bytes)| *bytes).collect();
                    packer.write(&mut InMemory(parts, file), file)?
                }
                None => {
                    requests.extend(plan.requests(file));
                    plan.len_bytes()
                }
            };
            len_bytes = len_bytes.saturating_add(written);
        }
        files[0].engine().write_many(&requests)?;
        Ok(len_bytes)
    }

    pub fn pieces(&self) -> impl Iterator<Item = BufSlice<'_>> {
        iter::once(self.head.as_slice().into()).chain(self.parts.iter().map(|(_, bytes)| *bytes))
    }

    fn requests<'p>(&'p self, file: &'p File) -> Vec<Request<BufSlice<'p>, &'p File>> {
        let request = |offset, buffer| Request { file, buffer, offset };
        let parts = self.parts.iter().map(|(start, bytes)| request(*start, *bytes));
        iter::once(request(0, self.head.as_slice().into())).chain(parts).collect()
    }
}

/// Saves a file as the whole model.
pub(super) fn save_file(
    path: &Path,
    options: &SaveOptions,
    mut write: impl FnMut(&File) -> crate::Result<()>,
) -> Result<()> {
    within(path, options, |folder| {
        let older = match options.remove_old_model {
            true => Some(folder.lock().and_then(|()| Older::of(folder))?),
            false => None,
        };
        let access = match &older {
            Some(older) => older.access_of_data(folder)?,
            None => folder.access_of(folder.name())?,
        };
        let new = New { target: folder.name().to_owned(), access };
        Temporary::written(folder, new, options, |file, _| write(file))?.replace()?;
        folder.set_in_place(InPlace::New(path.to_owned()), [folder.name()]);
        folder.sync()?;
        older.map_or(Ok(()), |older| older.remove(folder, folder.name()))
    })
}

pub(super) fn malformed(path: &Path, error: FormatError) -> Error {
    Error::Format { path: path.to_owned(), error }
}
