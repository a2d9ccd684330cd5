//! New objects of a destination of your own.

use std::fmt;

use super::Error;

/// A place for new objects, by name: what a save writes where it writes no files. The functions `save_to` of the formats take
/// one. With the feature `object_store`, `ObjectFolder` is one for any store of the crate of that name.
///
/// Names have parts with `/` between them, none of which is empty, `.` or `..`. Several threads write at once, each an object
/// of its own.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
///
/// use gpufile::formats::safetensors::{self, TensorData};
/// use gpufile::formats::{Dtype, SaveOptions};
/// use gpufile::storage::{Destination, Error, NewObject};
///
/// #[derive(Debug, Default, Clone)]
/// struct Memory(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);
///
/// #[derive(Debug)]
/// struct New {
///     of: Memory,
///     name: String,
///     bytes: Vec<u8>,
/// }
///
/// impl Destination for Memory {
///     fn begin(&self, name: &str, _: u64) -> Result<Box<dyn NewObject>, Error> {
///         Ok(Box::new(New { of: self.clone(), name: name.to_owned(), bytes: Vec::new() }))
///     }
///
///     fn remove(&self, name: &str) -> Result<(), Error> {
///         self.0.lock().unwrap().remove(name);
///         Ok(())
///     }
/// }
///
/// impl NewObject for New {
///     fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
///         self.bytes.extend_from_slice(bytes);
///         Ok(())
///     }
///
///     fn finish(self: Box<Self>) -> Result<(), Error> {
///         self.of.0.lock().unwrap().insert(self.name, self.bytes);
///         Ok(())
///     }
/// }
///
/// # fn main() -> gpufile::formats::Result<()> {
/// let memory = Memory::default();
/// let weight = vec![0; 24]; // or a DeviceBuffer
/// let tensors = [TensorData::new("weight", Dtype::F32, &[2, 3], &weight)];
/// let saved = safetensors::save_to(&memory, "model.safetensors", &tensors, &SaveOptions::new())?;
/// assert_eq!(memory.0.lock().unwrap()["model.safetensors"].len() as u64, saved.len_bytes);
/// # Ok(())
/// # }
/// ```
///
/// # Whole objects
/// An object appears as a whole when [`NewObject::finish`] succeeds. Until then, an older one of the same name stays, also after
/// an error, and after a [`NewObject`] was dropped. If `finish` fails, either may be in place.
///
/// # Errors
/// Any error ends the save. It is the [`source`](std::error::Error::source) of the save's error. Nothing is tried again: the
/// destination does that where it helps.
///
/// # Forks and panics
/// The contract of [`Storage`](super::Storage) about forks also holds here. A panic goes on in the caller of the save.
pub trait Destination: fmt::Debug + Send + Sync {
    /// Begins an object of this length in bytes.
    ///
    /// # Errors
    /// Any error.
    fn begin(&self, name: &str, len_bytes: u64) -> Result<Box<dyn NewObject>, Error>;

    /// Removes an object, if there is one. A save whose later objects fail removes those that it made.
    ///
    /// # Errors
    /// Any error, except that there is none.
    fn remove(&self, name: &str) -> Result<(), Error>;
}

/// An object of a [`Destination`] that is being written.
pub trait NewObject: fmt::Debug + Send {
    /// Takes the next bytes, of which there are some. It may return before they arrive.
    ///
    /// # Errors
    /// Any error, also that of earlier bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Waits until all bytes have arrived, and lets the object appear.
    ///
    /// # Errors
    /// Any error, also that bytes are missing.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}
