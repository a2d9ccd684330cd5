use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::headers::header::TensorInfo;
use super::super::open::catalog::{Catalog, Id};
use super::super::open::files::ModelFiles;
use super::arrange::Arrangement;
use super::group::Group;
use super::placement::{Share, shares};
use crate::formats::memory::out_of_memory;
use crate::formats::{Error, Result};

/// The tensors of a load, with the share of each. A GPU is chosen for each balanced one.
///
/// A caller that allocates the memory itself takes the tensors in [`Group`]s.
#[derive(Debug)]
pub struct Plan {
    pub(super) catalog: Arc<Catalog>,
    path: PathBuf,
    /// In the order of the files.
    pub(super) tensors: Vec<(Id, Share)>,
    pub(super) gpus: usize,
}

impl Plan {
    /// Plans a load of these tensors, given in the order of the files. Calls `rule` once for each.
    pub(in crate::formats::safetensors) fn new<E: From<Error>>(
        model: &ModelFiles,
        ids: impl Iterator<Item = Id> + Clone,
        gpus: usize,
        rule: impl FnMut(&TensorInfo<'_>) -> Result<Share, E>,
    ) -> Result<Self, E> {
        let infos = ids.clone().map(|id| model.catalog.info(id));
        let refuse = |error| Error::Format { path: model.path.clone(), error }.into();
        let shares = shares(infos, gpus, rule, refuse)?;
        let tensors = iter::zip(ids, shares).collect();
        Ok(Self { catalog: model.catalog.clone(), path: model.path.clone(), tensors, gpus })
    }

    /// Returns the tensors, in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        self.tensors.iter().map(|(id, _)| self.catalog.info(*id))
    }

    /// Returns a number that differs if other bytes would be read, or would go to other GPUs.
    pub fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.gpus.hash(&mut hasher);
        for (id, share) in &self.tensors {
            let header = self.catalog.header(id.file);
            let info = self.catalog.info(*id);
            (id.file, id.tensor, share, info.name, info.shape).hash(&mut hasher);
            (info.dtype.size_bits(), header.in_file(info.offsets)).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Returns the tensors that each GPU gets whole. The tensors of a file are in one group, or in several of at most
    /// `limit_bytes` bytes. A longer tensor is a group of its own.
    ///
    /// # Errors
    /// [`Error::Memory`] if the tensors have more bytes than an address space.
    pub fn shared(&self, limit_bytes: usize) -> Result<Vec<Group>> {
        self.groups(0, limit_bytes, |share| share == Share::All)
    }

    /// Returns the tensors and slices that this GPU gets alone, as [`shared`](Self::shared).
    ///
    /// # Errors
    /// As [`shared`](Self::shared); [`Error::Format`] if a slice does not start and end at whole bytes.
    pub fn own(&self, gpu: usize, limit_bytes: usize) -> Result<Vec<Group>> {
        self.groups(gpu, limit_bytes, |share| share != Share::All)
    }

    fn groups(
        &self,
        gpu: usize,
        limit_bytes: usize,
        is_chosen: impl Fn(Share) -> bool,
    ) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        for of_file in self.tensors.chunk_by(|(one, _), (other, _)| one.file == other.file) {
            let mut left: VecDeque<_> =
                of_file.iter().copied().filter(|(_, share)| is_chosen(*share)).collect();
            while !left.is_empty() {
                let arranged = self.arrange(&mut left, gpu..gpu + 1, limit_bytes)?;
                let layouts = arranged.gpus.into_iter().filter(|layout| !layout.places.is_empty());
                groups.extend(
                    layouts.map(|layout| Group::new(self.catalog.clone(), of_file[0].0.file, layout)),
                );
            }
        }
        Ok(groups)
    }

    /// Places tensors from the start of the list on some of the GPUs, and removes them from it. A GPU gets at most
    /// `limit_bytes` bytes, or one longer tensor.
    pub(super) fn arrange(
        &self,
        tensors: &mut VecDeque<(Id, Share)>,
        on: Range<usize>,
        limit_bytes: usize,
    ) -> Result<Arrangement> {
        let arranged = Arrangement::take(&self.catalog, tensors, on, self.gpus, limit_bytes);
        let arranged = arranged.map_err(|error| Error::Format { path: self.path.clone(), error })?;
        arranged.ok_or_else(|| out_of_memory(&self.path, u64::MAX))
    }

    pub(super) fn arrange_all(&self) -> Result<Arrangement> {
        self.arrange(&mut self.tensors.iter().copied().collect(), 0..self.gpus, usize::MAX)
    }
}
