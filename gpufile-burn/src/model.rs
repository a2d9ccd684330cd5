//! A model that is open, and the tensors of it that were read ahead.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use burn_std::Bytes;
use burn_store::PathFilter;
use gpufile::cuda::Device;
use gpufile::formats::safetensors::{Checkpoint, TensorInfo};

use crate::memory::Memory;
use crate::{Error, pinned};

pub(crate) struct Model {
    pub checkpoint: Checkpoint,
    reads: Mutex<Reads>,
}

/// The rules of reading, and the bytes of tensors that were read before burn asks for them, by name.
pub(crate) struct Reads {
    /// The most bytes to hold, unless one tensor has more.
    pub budget_bytes: usize,
    /// Allocates pinned memory, if there is a GPU to copy to.
    pub pinned: Option<Device>,
    /// The tensors that will be asked for; all if it is empty.
    pub filter: PathFilter,
    pub watch: Option<Watch>,
    waiting: HashMap<String, Bytes>,
}

pub(crate) struct Watch {
    /// Gets the number of bytes read so far, and that of all tensors to load.
    pub call: Box<dyn FnMut(u64, u64) -> ControlFlow<()> + Send>,
    pub read_bytes: u64,
    pub is_cancelled: bool,
}

impl Model {
    pub(crate) fn new(checkpoint: Checkpoint, budget_bytes: usize) -> Self {
        let filter = PathFilter::new();
        let reads = Reads { budget_bytes, pinned: None, filter, watch: None, waiting: HashMap::new() };
        Self { checkpoint, reads: Mutex::new(reads) }
    }

    pub(crate) fn configure(&self, change: impl FnOnce(&mut Reads)) {
        change(&mut self.reads.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the bytes of a tensor. Reads it and the tensors behind it, unless an earlier call did.
    pub(crate) fn bytes(&self, name: &str) -> Result<Bytes, Error> {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = reads.waiting.remove(name) {
            return Ok(bytes);
        }
        if reads.watch.as_ref().is_some_and(|watch| watch.is_cancelled) {
            return Err(CANCELLED.into());
        }
        // The bytes that wait are of another place in the file, and count against the budget.
        reads.waiting.clear();
        let group = reads.group(&self.checkpoint, name);
        // A tensor that was not asked for must not fail the one that was.
        let read = self.read(&reads, &group).or_else(|_| self.read(&reads, &[name]))?;
        reads.report(&self.checkpoint, read.iter().map(|(_, bytes)| bytes.len() as u64).sum())?;
        reads.waiting.extend(read);
        Ok(reads.waiting.remove(name).expect("read"))
    }

    /// Reads tensors, whose `names` are in the order of the files, in one call of the engine.
    fn read(&self, reads: &Reads, names: &[&str]) -> Result<Vec<(String, Bytes)>, Error> {
        let load = self.checkpoint.load().only(names)?;
        let named = |(info, bytes): (TensorInfo<'_>, Bytes)| (info.name.to_owned(), bytes);
        if let Some(device) = &reads.pinned {
            let loaded = load.to_each(|info| device.alloc_pinned(info.len_bytes() as usize))?;
            let with_bytes = loaded.into_iter().map(|(info, buffer)| (info, pinned::into_bytes(buffer)));
            return Ok(with_bytes.map(named).collect());
        }
        let infos = names.iter().filter_map(|name| self.checkpoint.tensor(name));
        let memory = infos.map(|info| Memory::zeroed(info.dtype, info.len_bytes()));
        let mut memory = memory.collect::<Result<Vec<_>, _>>()?;
        let mut buffers = memory.iter_mut().map(Memory::buffer);
        let next = |_: &TensorInfo<'_>| buffers.next().ok_or("each tensor has memory");
        let infos: Vec<_> = load.to_each(next)?.into_iter().map(|(info, _)| info).collect();
        let bytes = memory.into_iter().map(Memory::into_bytes);
        Ok(std::iter::zip(infos, bytes).map(named).collect())
    }
}

const CANCELLED: &str = "the watcher cancelled the load";

impl Reads {
    fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.matches(name)
    }

    /// Reports bytes that were read to the watcher. A tensor that is read twice counts once.
    fn report(&mut self, checkpoint: &Checkpoint, bytes: u64) -> Result<(), Error> {
        let wanted = checkpoint.tensors().filter(|info| self.wants(info.name));
        let all_bytes = wanted.map(|info| info.len_bytes()).sum();
        let Some(watch) = &mut self.watch else { return Ok(()) };
        watch.read_bytes = (watch.read_bytes + bytes).min(all_bytes);
        watch.is_cancelled |= (watch.call)(watch.read_bytes, all_bytes).is_break();
        if watch.is_cancelled { Err(CANCELLED.into()) } else { Ok(()) }
    }

    /// Returns a tensor, and as many of the next tensors in the file as the budget has room for.
    fn group<'a>(&self, checkpoint: &'a Checkpoint, name: &'a str) -> Vec<&'a str> {
        let from_here = checkpoint.tensors().skip_while(|info| info.name != name);
        let wanted = from_here.filter(|info| info.name == name || self.wants(info.name));
        let mut bytes = 0;
        let fits = wanted.take_while(|info| {
            bytes += info.len_bytes();
            info.name == name || bytes <= self.budget_bytes as u64
        });
        fits.map(|info| info.name).collect()
    }
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
            let reads = Reads { budget_bytes, pinned: None, filter, watch: None, waiting: HashMap::new() };
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
        assert!(Memory::zeroed(Dtype::F32, 0).expect("nothing").into_bytes().is_empty());
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
