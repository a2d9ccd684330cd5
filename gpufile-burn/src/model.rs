//! A model that is open, and the tensors of it that were read ahead.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::HashMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};

use burn_std::Bytes;
use burn_store::PathFilter;
use gpufile::cuda::Device;
use gpufile::formats::Result;
use gpufile::formats::safetensors::{Checkpoint, TensorInfo};

use crate::pinned;

pub(crate) struct Model {
    pub checkpoint: Checkpoint,
    reads: Mutex<Reads>,
}

/// The rules of reading, and the bytes that wait to be asked for, by the name of their tensor.
pub(crate) struct Reads {
    /// The most bytes to hold, unless one tensor has more.
    pub budget_bytes: usize,
    /// Allocates pinned memory, if there is a GPU to copy to.
    pub pinned: Option<Device>,
    /// The tensors that will be asked for; all if it is empty.
    pub filter: PathFilter,
    waiting: HashMap<String, Bytes>,
}

impl Model {
    pub(crate) fn new(checkpoint: Checkpoint, budget_bytes: usize) -> Self {
        let filter = PathFilter::new();
        let reads = Reads { budget_bytes, pinned: None, filter, waiting: HashMap::new() };
        Self { checkpoint, reads: Mutex::new(reads) }
    }

    /// Changes the rules of reading.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut Reads)) {
        change(&mut self.reads.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the bytes of a tensor. Reads it and the tensors behind it, unless an earlier call did.
    pub(crate) fn bytes(&self, name: &str) -> Result<Bytes> {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = reads.waiting.remove(name) {
            return Ok(bytes);
        }
        // The bytes that wait are of another place in the file, and count against the budget.
        reads.waiting.clear();
        let group = reads.group(&self.checkpoint, name);
        // A tensor that was not asked for must not fail the one that was.
        let read = self.read(&reads, &group).or_else(|_| self.read(&reads, &[name]))?;
        reads.waiting.extend(read);
        Ok(reads.waiting.remove(name).expect("read"))
    }

    /// Reads tensors in one call of the engine.
    fn read(&self, reads: &Reads, names: &[&str]) -> Result<Vec<(String, Bytes)>> {
        let load = self.checkpoint.load().only(names)?;
        let named = |(info, bytes): (TensorInfo<'_>, Bytes)| (info.name.to_owned(), bytes);
        Ok(match &reads.pinned {
            Some(device) => {
                let loaded = load.to_each(|info| device.alloc_pinned(info.len_bytes() as usize))?;
                loaded.into_iter().map(|(info, buffer)| named((info, pinned::into_bytes(buffer)))).collect()
            }
            None => {
                let loaded = load.to_each(|info| zeroed(info.len_bytes()))?;
                loaded.into_iter().map(|(info, bytes)| named((info, Bytes::from_bytes_vec(bytes)))).collect()
            }
        })
    }
}

impl Reads {
    /// Returns a tensor and those behind it in the file that the budget has room for.
    fn group<'a>(&self, checkpoint: &'a Checkpoint, name: &'a str) -> Vec<&'a str> {
        let from_here = checkpoint.tensors().skip_while(|info| info.name != name);
        let wanted = from_here
            .filter(|info| info.name == name || self.filter.is_empty() || self.filter.matches(info.name));
        let mut bytes = 0;
        let fits = wanted.take_while(|info| {
            bytes += info.len_bytes();
            info.name == name || bytes <= self.budget_bytes as u64
        });
        fits.map(|info| info.name).collect()
    }
}

/// Returns zeros on the host.
///
/// # Errors
/// If the host has no room, where `vec!` would end the process.
fn zeroed(len_bytes: u64) -> std::result::Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
    let none = || format!("the host has no {len_bytes} bytes of memory for a tensor");
    if len_bytes == 0 {
        return Ok(Vec::new());
    }
    let len_bytes = usize::try_from(len_bytes).map_err(|_| none())?;
    let layout = Layout::array::<u8>(len_bytes).map_err(|_| none())?;
    // SAFETY: the layout has bytes.
    let bytes = unsafe { alloc_zeroed(layout) };
    if bytes.is_null() {
        return Err(none().into());
    }
    // SAFETY: allocated with the layout of so many bytes, all of which are zeros.
    Ok(unsafe { Vec::from_raw_parts(bytes, len_bytes, len_bytes) })
}

#[cfg(test)]
mod tests {
    use gpufile::formats::safetensors::{TensorData, save};
    use gpufile::formats::{Dtype, SaveOptions};

    use super::*;

    #[test]
    fn groups_keep_to_the_budget_and_the_filter() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let tensors = ["a", "b", "c", "d"].map(|name| TensorData::new(name, Dtype::U8, &[10], &[0; 10][..]));
        save(&path, &tensors, &SaveOptions::new()).expect("a model");
        let model = Model::new(Checkpoint::open(path).expect("a model"), 0);
        let group = |budget_bytes, filter, from| {
            let reads = Reads { budget_bytes, pinned: None, filter, waiting: HashMap::new() };
            reads.group(&model.checkpoint, from).join("")
        };
        for (budget_bytes, expected) in [(0, "b"), (10, "b"), (29, "bc"), (30, "bcd"), (1000, "bcd")] {
            assert_eq!(group(budget_bytes, PathFilter::new(), "b"), expected);
        }
        let filter = PathFilter::new().with_full_path("d");
        assert_eq!(group(20, filter.clone(), "a"), "ad");
        assert_eq!(group(19, filter, "a"), "a");
    }

    #[test]
    fn tensors_beyond_the_memory_are_errors() {
        // A file without bytes of its own, longer than any address space.
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let path = folder.path().join("model.safetensors");
        let len_bytes = 1_u64 << 48;
        let header =
            format!(r#"{{"a":{{"dtype":"U8","shape":[{len_bytes}],"data_offsets":[0,{len_bytes}]}}}}"#);
        let start = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        std::fs::write(&path, &start).expect("a header");
        let file = std::fs::File::options().write(true).open(&path).expect("the file");
        file.set_len(start.len() as u64 + len_bytes).expect("a sparse file");
        let model = Model::new(Checkpoint::open(path).expect("a model"), 20);
        let error = model.bytes("a").expect_err("no room").to_string();
        assert!(error.contains("the host has no 281474976710656 bytes"), "{error}");
        assert!(zeroed(0).expect("nothing").is_empty());
    }

    #[test]
    fn bytes_wait_only_until_another_place_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[10], &[0; 10][..]));
        save(&path, &tensors, &SaveOptions::new()).expect("a model");
        let model = Model::new(Checkpoint::open(path).expect("a model"), 20);
        let waiting = || {
            let mut names: Vec<_> = model.reads.lock().expect("reads").waiting.keys().cloned().collect();
            names.sort();
            names.join("")
        };
        for (asked, left) in [("a", "b"), ("c", ""), ("b", "c"), ("c", "")] {
            model.bytes(asked).expect("bytes");
            assert_eq!(waiting(), left, "after {asked}");
        }
    }
}
