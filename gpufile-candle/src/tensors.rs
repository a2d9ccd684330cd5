use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::{Init, var_builder::SimpleBackend};
use gpufile::OpenOptions;
use gpufile::formats;
use gpufile::formats::safetensors::{Checkpoint, TensorInfo};

use crate::ahead::Ahead;
use crate::groups::{self, GROUP_BYTES, fitting};
use crate::memory::{Memory, Wanted, allocate, dtype_in_memory};

/// The most bytes between two calls of a watcher, unless one tensor has more.
const STEP_BYTES: u64 = 64 << 20;

/// The tensors of a model in one safetensors file or in several.
///
/// As a backend of candle's `VarBuilder`, it reads ahead: a request for a tensor also reads the tensors behind it in the
/// file, up to 512 MiB, in one call of the engine. Each waits in memory until it is asked for, and a tensor that was
/// asked for belongs to the caller alone. So the model takes no more memory than its tensors, and tensors that are never
/// asked for take memory until the backend is dropped.
///
/// safetensors' `save_model` writes tensors that share memory once, and the other names to the metadata. Such a name has
/// the same tensor here, in the same memory.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpufile_candle::Tensors;
///
/// # fn main() -> candle_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// # let weight = Tensor::arange(0_u32, 6, &Device::Cpu)?.reshape((2, 3))?;
/// # gpufile_candle::save(&[("weight", weight)].into(), &path)?;
/// let tensors = Tensors::open(&[path])?;
/// let columns = tensors.slice("weight", 1, 1..3, &Device::Cpu)?;
/// assert_eq!(columns.to_vec2::<u32>()?, [[1, 2], [4, 5]]);
/// # Ok(())
/// # }
/// ```
pub struct Tensors {
    checkpoint: Checkpoint,
    places: HashMap<String, usize>,
    /// Other names of tensors, each with the name under which the tensor is stored.
    tied: BTreeMap<String, String>,
    ahead: Mutex<Ahead>,
    watch: Option<Watch>,
}

impl Tensors {
    /// Opens a model: safetensors files, an index (a name that ends in `.json`) with the files that it names, or a folder
    /// with a model. Reads and checks the headers only.
    ///
    /// # Errors
    /// A path cannot be opened, a header or an index is wrong, or two files have tensors of the same name and no index
    /// chooses one.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self> {
        Ok(Self::from_checkpoint(Checkpoint::open_with(paths, &OpenOptions::new()).map_err(error)?))
    }

    /// Takes a model that gpufile opened: from an address, from files over a storage, or with other options. The tensors may be
    /// packed.
    ///
    /// ```no_run
    /// use candle_core::{DType, Device};
    /// use candle_nn::VarBuilder;
    /// use gpufile::formats::safetensors::Checkpoint;
    /// use gpufile_candle::Tensors;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // With the feature `s3`.
    /// let checkpoint = Checkpoint::open_url("s3://bucket/llama/model.safetensors.index.json")?;
    /// let tensors = Tensors::from_checkpoint(checkpoint);
    /// let builder = VarBuilder::from_backend(Box::new(tensors), DType::BF16, Device::Cpu);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_checkpoint(checkpoint: Checkpoint) -> Self {
        let names = checkpoint.tensors().enumerate().map(|(place, info)| (info.name.to_owned(), place));
        let places: HashMap<_, _> = names.collect();
        // The entry for the framework that saved the file is no name.
        let metadata = checkpoint.files().flat_map(|(_, header)| header.metadata());
        let missing = metadata.filter(|(name, _)| *name != "format" && !places.contains_key(*name));
        let known = missing.filter(|(_, target)| places.contains_key(*target));
        let tied = known.map(|(name, target)| (name.clone(), target.clone())).collect();
        let ahead = Mutex::new(Ahead::new(places.len()));
        Self { checkpoint, places, tied, ahead, watch: None }
    }

    /// Calls `watch` with the bytes read so far and those of the model, after each read of at most 64 MiB or of one
    /// tensor. If it breaks, the load fails, and so does each later one. Slices are not watched.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// use candle_core::{Device, Tensor};
    /// use gpufile_candle::Tensors;
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("model.safetensors");
    /// # gpufile_candle::save(&[("weight", Tensor::arange(0_u32, 6, &Device::Cpu)?)].into(), &path)?;
    /// let tensors = Tensors::open(&[path])?.watch(|read_bytes, all_bytes| {
    ///     println!("{read_bytes} of {all_bytes} bytes");
    ///     ControlFlow::Continue(()) // or `Break(())`, to cancel
    /// });
    /// # tensors.load(None, &Device::Cpu)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(mut self, watch: impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'static) -> Self {
        let all_bytes = self.checkpoint.len_bytes();
        self.watch = Some(Watch(Mutex::new(Watched {
            call: Box::new(watch),
            read_bytes: 0,
            all_bytes,
            is_cancelled: false,
        })));
        self
    }

    /// Returns the open model, for what candle has no words for: types, places in the files, metadata.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Reads all tensors. With a `dtype`, those of other types are converted on the device, in groups of at most 512 MiB,
    /// so that little memory holds both types.
    ///
    /// # Errors
    /// Reading fails, the device has no room, or candle lacks the type of a tensor.
    pub fn load(&self, dtype: impl Into<Option<DType>>, device: &Device) -> Result<HashMap<String, Tensor>> {
        let (dtype, infos) = (dtype.into(), self.checkpoint.tensors().collect::<Vec<_>>());
        let (mut kept, mut converted) = (Vec::new(), Vec::new());
        for (place, info) in infos.iter().enumerate() {
            let keeps = dtype.is_none_or(|dtype| dtype_in_memory(info.dtype).is_ok_and(|own| own == dtype));
            if keeps { kept.push(place) } else { converted.push(place) }
        }
        let mut all = HashMap::with_capacity(infos.len() + self.tied.len());
        let mut converted = &converted[..];
        all.extend(self.named(&infos, &kept, device)?);
        while !converted.is_empty() {
            let (group, rest) = converted.split_at(group_len(converted.iter().map(|place| &infos[*place])));
            for (name, tensor) in self.named(&infos, group, device)? {
                all.insert(name, tensor.to_dtype(dtype.unwrap_or(tensor.dtype()))?);
            }
            converted = rest;
        }
        for (name, target) in &self.tied {
            all.insert(name.clone(), all[target].clone());
        }
        Ok(all)
    }

    /// Reads the indices `range` along one axis of a tensor. Axes count from 0. The device gets only these elements.
    ///
    /// # Errors
    /// There is no such tensor, axis or index; the slice does not consist of whole bytes; and as [`load`](Self::load).
    pub fn slice(&self, name: &str, axis: usize, range: Range<usize>, device: &Device) -> Result<Tensor> {
        let info = self.find(name)?.1;
        let mut shape = shape_of(&info);
        let size = shape.get(axis).copied().unwrap_or(0);
        let no_slice =
            || Error::msg(format!("tensor {name} of shape {shape:?} has no {range:?} along axis {axis}"));
        if range.start > range.end || range.end > size || axis >= shape.len() {
            return Err(no_slice());
        }
        // An index may have less than a byte.
        let len_bytes =
            (u128::from(info.len_bytes()) * range.len() as u128).checked_div(size as u128).unwrap_or(0);
        shape[axis] = range.len();
        let wanted = Wanted { name: info.name, dtype: info.dtype, len_bytes: len_bytes as usize };
        let mut memory = allocate(&[wanted], device)?;
        let memory = memory.pop().expect("one for each wanted");
        self.read_slice(memory, &info, axis, range, shape.into(), device)
    }

    fn read_slice(
        &self,
        mut memory: Box<dyn Memory>,
        info: &TensorInfo<'_>,
        axis: usize,
        range: Range<usize>,
        shape: Shape,
        device: &Device,
    ) -> Result<Tensor> {
        let range = range.start as u64..range.end as u64;
        self.checkpoint.read_slice_into(info.name, axis, range, &mut *memory.buffer()?).map_err(error)?;
        memory.into_tensor(shape, device)
    }

    pub(crate) fn find(&self, name: &str) -> Result<(usize, TensorInfo<'_>)> {
        let name_in_file = self.tied.get(name).map_or(name, String::as_str);
        let place = self.places.get(name_in_file).copied();
        place
            .and_then(|place| Some((place, self.checkpoint.tensor(name_in_file)?)))
            .ok_or_else(|| Error::CannotFindTensor { path: name.to_owned() }.bt())
    }

    /// Returns a tensor as it is in the file, on the device.
    pub(crate) fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        let (place, info) = self.find(name)?;
        let has_names = self.tied.values().any(|target| target == info.name);
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = ahead.take(place, device, has_names) {
            return Ok(tensor);
        }
        let infos: Vec<_> = self.checkpoint.tensors().collect();
        let behind = (place + 1..infos.len()).filter(|place| !ahead.was_read(*place));
        let known = behind.filter(|place| dtype_in_memory(infos[*place].dtype).is_ok());
        let group: Vec<_> = std::iter::once(place).chain(known).collect();
        let group = &group[..group_len(group.iter().map(|place| &infos[*place]))];
        // A tensor that was not asked for must not fail the one that was.
        let read = self.read(&infos, group, device).or_else(|_| self.read(&infos, &group[..1], device))?;
        for (place, tensor) in std::iter::zip(group, read) {
            ahead.put(*place, tensor);
        }
        Ok(ahead.take(place, device, has_names).expect("read to this device"))
    }

    fn named(
        &self,
        infos: &[TensorInfo<'_>],
        places: &[usize],
        device: &Device,
    ) -> Result<Vec<(String, Tensor)>> {
        let names = places.iter().map(|place| infos[*place].name.to_owned());
        Ok(std::iter::zip(names, self.read(infos, places, device)?).collect())
    }

    /// Reads tensors into new memory of the device, in steps if there is a watcher. The places ascend.
    fn read(&self, infos: &[TensorInfo<'_>], mut places: &[usize], device: &Device) -> Result<Vec<Tensor>> {
        let Some(watch) = &self.watch else { return self.read_together(infos, places, device) };
        let mut all = Vec::with_capacity(places.len());
        while !places.is_empty() {
            watch.check()?;
            let lens = places.iter().map(|place| infos[*place].len_bytes());
            let (group, rest) = places.split_at(fitting(lens.clone(), STEP_BYTES));
            all.extend(self.read_together(infos, group, device)?);
            watch.add(lens.take(group.len()).sum())?;
            places = rest;
        }
        Ok(all)
    }

    fn read_together(
        &self,
        infos: &[TensorInfo<'_>],
        places: &[usize],
        device: &Device,
    ) -> Result<Vec<Tensor>> {
        let infos: Vec<_> = places.iter().map(|place| &infos[*place]).collect();
        let wanted: Vec<_> = infos
            .iter()
            .map(|info| Wanted { name: info.name, dtype: info.dtype, len_bytes: info.len_bytes() as usize })
            .collect();
        let lens: Vec<_> = infos.iter().map(|info| info.len_bytes()).collect();
        let fill = |group: Range<usize>, memory: &mut [Box<dyn Memory>]| {
            let mut buffers = memory.iter_mut().map(|memory| memory.buffer());
            let next = |_: &TensorInfo<'_>| buffers.next().expect("one for each tensor");
            let load = self.checkpoint.load().only(infos[group].iter().map(|info| info.name));
            load.and_then(|load| load.to_each(next)).map(drop).map_err(error)
        };
        let allocate = |group: Range<usize>| allocate(&wanted[group], device);
        let memory = groups::read(&lens, groups::limits(device), allocate, fill)?;
        let shapes = infos.iter().map(|info| Shape::from(shape_of(info)));
        std::iter::zip(memory, shapes).map(|(memory, shape)| memory.into_tensor(shape, device)).collect()
    }
}

struct Watch(Mutex<Watched>);

struct Watched {
    call: Box<dyn FnMut(u64, u64) -> ControlFlow<()> + Send>,
    read_bytes: u64,
    all_bytes: u64,
    is_cancelled: bool,
}

impl Watch {
    fn check(&self) -> Result<()> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).is_cancelled {
            true => Err(Error::msg("the watcher cancelled the load")),
            false => Ok(()),
        }
    }

    /// Reports bytes that were read. A tensor that is read twice counts once.
    fn add(&self, bytes: u64) -> Result<()> {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Watched { call, read_bytes, all_bytes, is_cancelled } = &mut *watched;
        *read_bytes = (*read_bytes + bytes).min(*all_bytes);
        *is_cancelled |= call(*read_bytes, *all_bytes).is_break();
        drop(watched);
        self.check()
    }
}

/// Returns the number of tensors, from the first on, that have at most [`GROUP_BYTES`] together; at least one.
fn group_len<'a>(infos: impl Iterator<Item = &'a TensorInfo<'a>>) -> usize {
    fitting(infos.map(TensorInfo::len_bytes), GROUP_BYTES)
}

pub(crate) fn shape_of(info: &TensorInfo<'_>) -> Vec<usize> {
    info.shape.iter().map(|&axis| axis as usize).collect()
}

pub(crate) fn error(error: formats::Error) -> Error {
    match error {
        formats::Error::NoSuchTensor { tensor, .. } => Error::CannotFindTensor { path: tensor }.bt(),
        other => Error::wrap(other),
    }
}

/// Checks the shape of a tensor, as candle's backends do.
pub(crate) fn of_shape(tensor: Tensor, expected: Shape, name: &str) -> Result<Tensor> {
    let (msg, got) = (format!("shape mismatch for {name}"), tensor.shape().clone());
    if got == expected { Ok(tensor) } else { Err(Error::UnexpectedShape { msg, expected, got }.bt()) }
}

impl SimpleBackend for Tensors {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        of_shape(self.get_unchecked(name, dtype, device)?, shape, name)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.tensor(name, device)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.places.contains_key(name) || self.tied.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_wait_until_they_are_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let tensors =
            ["a", "b", "c"].map(|name| (name, Tensor::ones(2, DType::F32, &Device::Cpu).expect("ones")));
        crate::save(&HashMap::from(tensors), &path).expect("a model");
        let tensors = Tensors::open(&[path]).expect("a model");
        for (name, waiting) in [("b", 1), ("c", 0), ("a", 0), ("b", 0)] {
            assert_eq!(tensors.tensor(name, &Device::Cpu).expect("a tensor").dims(), [2]);
            assert_eq!(tensors.ahead.lock().expect("tensors").waiting.len(), waiting, "after {name}");
        }
    }

    #[test]
    fn tensors_of_types_that_candle_lacks_are_passed_over() {
        use gpufile::formats::safetensors::{TensorData, save};
        use gpufile::formats::{Dtype, SaveOptions};

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let types = [("a", Dtype::U64), ("b", Dtype::I64), ("c", Dtype::C64), ("d", Dtype::F32)];
        let data = types.map(|(name, dtype)| {
            TensorData::new(name, dtype, &[1], &[0; 8][..dtype.size_bits() as usize / 8])
        });
        save(&path, &data, &SaveOptions::new()).expect("a model");
        let tensors = Tensors::open(&[path]).expect("a model");
        tensors.tensor("b", &Device::Cpu).expect("a tensor");
        let waiting: Vec<_> = tensors.ahead.lock().expect("tensors").waiting.keys().copied().collect();
        assert_eq!(waiting, [tensors.find("d").expect("a tensor").0]);
    }
}
