//! Loading tensors by several ranks, each a process with one GPU.
//!
//! ```text
//! this rank reads     batch 1 │ batch 2 │ batch 3 │ …
//! all ranks exchange          │ batch 1 │ batch 2 │ …
//! ```
//!
//! Every rank makes the plan of all ranks, so all cut the same batches. A rank starts the exchange of a batch when it has
//! read its own part, and has seen in the reports of the batch before that no rank failed. So a rank that fails takes part
//! in one more exchange, and no rank waits for one that another does not start.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::mem;
use std::ops::ControlFlow;

use super::super::open::files::ModelFiles;
use super::arrange::{Arrangement, Move};
use super::flow::{Batch, Filling, Started};
use super::on_gpu::PlacedTensors;
use super::placed::PlacedLoad;
use crate::formats::progress::{Controller, Progress};
use crate::formats::{Error, Result};
use crate::ranks::{RankError, RankGroup, Report, Spread};

impl PlacedLoad<'_> {
    /// Loads the tensors of this rank to its GPU, while the other ranks of the group do the same. Ranks take the place of
    /// the GPUs in the placement.
    ///
    /// All ranks must call this with the same files, tensors, placement and settings. A rank reads its own tensors and
    /// slices. Of tensors for all, each rank reads a part, and the ranks exchange the parts with NCCL while they read the
    /// next. See [`ranks`](crate::ranks) for an example.
    ///
    /// The GPU needs memory for the tensors, the staging buffers of the engine, and the buffers of NCCL. A rank reads
    /// batches of half of [`ahead_bytes`](Self::ahead_bytes), which are 256 MiB by default, two of them ahead of the
    /// exchange. [`watch`](Self::watch) is called after each batch, with the bytes that this rank reads. If it panics, the
    /// group has ended.
    ///
    /// # Errors
    /// As [`to_devices`](Self::to_devices). If one rank fails, is killed, or does not take part in time, the
    /// others return [`Error::Ranks`].
    pub fn by_rank(mut self, group: &mut RankGroup) -> Result<PlacedTensors> {
        let watch = self.watch.take();
        let (prepared, failure) = match self.prepare(group) {
            Ok(prepared) => (Some(prepared), None),
            Err(error) => (None, Some(error)),
        };
        let plan = prepared.as_ref().map_or(0, |(plan, ..)| *plan);
        Flow::new(self.model, group, plan, None).agree(failure)?;
        let (_, arrangement, mut buffers) = prepared.expect("without it the ranks do not agree");
        // The flow is dropped before the buffer, and ends what uses it.
        Flow::new(self.model, group, plan, watch).run(&arrangement, &mut buffers, self.ahead_bytes / 2)?;
        let rank = group.rank();
        let own = Arrangement { gpus: arrangement.gpus.into_iter().skip(rank).take(1).collect() };
        let loaded = PlacedTensors::of_all(self.model, own, buffers).pop();
        Ok(loaded.expect("one GPU has one list"))
    }

    /// Makes the plan of all ranks, with a number for it, and the buffer of this one.
    fn prepare(&mut self, group: &RankGroup) -> Result<(u64, Arrangement, Vec<Filling>)> {
        let plan = self.plan(group.ranks())?;
        let arrangement = plan.arrange_all()?;
        let own = iter::once((group.device(), &arrangement.gpus[group.rank()]));
        let buffers = Filling::allocate(self.model, own, mem::take(&mut self.reused))?;
        let mut hasher = DefaultHasher::new();
        (plan.number(), self.ahead_bytes).hash(&mut hasher);
        Ok((hasher.finish(), arrangement, buffers))
    }
}

/// The reads of this rank, and the exchanges with the others. Dropping it ends both. The group ends if an exchange is in
/// flight.
struct Flow<'a, 'g> {
    model: &'a ModelFiles,
    group: &'g mut RankGroup,
    plan: u64,
    watch: Option<Controller<'a>>,
    progress: Progress,
    reading: VecDeque<(Started, Vec<Spread>)>,
}

/// The bytes that all ranks read at once, and exchange then.
struct RankBatch {
    own: Batch,
    spreads: Vec<Spread>,
    /// The sum over all ranks, as that of the ranges.
    len_bytes: usize,
    ranges: usize,
}

impl RankBatch {
    fn new() -> Self {
        Self { own: Batch::new(1), spreads: Vec::new(), len_bytes: 0, ranges: 0 }
    }

    /// Returns whether the batch is full. All ranks get the same answer.
    fn is_full(&self, most_bytes: usize) -> bool {
        const MOST_RANGES: usize = 1 << 18;
        const MOST_SPREADS: usize = 1 << 12;
        self.len_bytes >= most_bytes || self.ranges >= MOST_RANGES || self.spreads.len() >= MOST_SPREADS
    }
}

impl<'a, 'g> Flow<'a, 'g> {
    fn new(
        model: &'a ModelFiles,
        group: &'g mut RankGroup,
        plan: u64,
        watch: Option<Controller<'a>>,
    ) -> Self {
        let progress = Progress { done_bytes: 0, total_bytes: 0 };
        Self { model, group, plan, watch, progress, reading: VecDeque::new() }
    }

    /// Fails unless all ranks have the same plan, and none has failed.
    fn agree(&mut self, failure: Option<Error>) -> Result<()> {
        self.exchange(failure, &[])?;
        self.finish_exchange()
    }

    /// Reads and exchanges everything, in batches of about `batch_bytes` bytes for each rank.
    fn run(&mut self, arrangement: &Arrangement, buffers: &mut [Filling], batch_bytes: usize) -> Result<()> {
        let (rank, ranks) = (self.group.rank(), self.group.ranks());
        let (catalog, all) = (self.model.catalog.clone(), [(0..ranks).collect()]);
        if self.watch.is_some() {
            let count = |step| {
                if let Move::Read { gpu, len, .. } = step
                    && gpu == rank
                {
                    self.progress.total_bytes += len as u64;
                }
                Ok::<(), Error>(())
            };
            arrangement.moves(&catalog, &all, count)?;
        }
        let most_bytes = batch_bytes.saturating_mul(ranks);
        // Of the copies of a read, one stands for this rank: the one to it, or the first from it.
        let first_other = usize::from(rank == 0);
        let mut batch = RankBatch::new();
        arrangement.moves(&catalog, &all, |step| {
            match step {
                Move::Read { file, offset, gpu, at, len, .. } => {
                    if batch.is_full(most_bytes) {
                        self.submit(mem::replace(&mut batch, RankBatch::new()), buffers)?;
                    }
                    batch.len_bytes += len;
                    batch.ranges += 1;
                    if gpu == rank {
                        batch.own.push((file, offset), 0, (0, at), len, buffers);
                    }
                }
                Move::Copy { from, to, len } => {
                    let own = [to, from].into_iter().find(|(gpu, _)| *gpu == rank);
                    if let Some((_, at)) = own.filter(|_| from.0 != rank || to.0 == first_other) {
                        let place = buffers[0].address(at);
                        batch.spreads.push(Spread { root: from.0, place, len_bytes: len });
                    }
                }
            }
            Ok::<(), Error>(())
        })?;
        self.submit(batch, buffers)?;
        while !self.reading.is_empty() {
            self.finish_oldest()?;
        }
        self.finish_exchange()
    }

    fn submit(&mut self, batch: RankBatch, buffers: &mut [Filling]) -> Result<()> {
        const AT_ONCE: usize = 2;
        while self.reading.len() >= AT_ONCE {
            self.finish_oldest()?;
        }
        self.reading.push_back((
            batch.own.start(self.model, buffers, std::slice::from_ref(self.group.device())),
            batch.spreads,
        ));
        Ok(())
    }

    /// Waits for the oldest reads, and starts their exchange.
    fn finish_oldest(&mut self) -> Result<()> {
        let Some((mut batch, spreads)) = self.reading.pop_front() else { return Ok(()) };
        let mut failure = batch.finish_reads().err();
        self.progress.done_bytes += batch.len_bytes;
        let watched = self.watch.as_mut().map(|watch| watch(self.progress));
        if watched == Some(ControlFlow::Break(())) && failure.is_none() {
            failure = Some(Error::Cancelled { path: self.model.path.clone() });
        }
        // Reads of a failed batch end before the exchange overwrites their memory.
        drop(batch);
        self.finish_exchange()?;
        self.exchange(failure, &spreads)
    }

    /// Starts an exchange. Returns the failure of this rank when the others have it.
    fn exchange(&mut self, failure: Option<Error>, spreads: &[Spread]) -> Result<()> {
        let text = failure.as_ref().map(ToString::to_string);
        let report = Report { plan: self.plan, failure: text };
        // SAFETY: the places are in the buffer of this rank, and outlive the flow. The reads of this batch are over, and
        // others write and read other bytes.
        let started = unsafe { self.group.start(&report, spreads) };
        match failure {
            None => started.map_err(|error| self.failed(error)),
            Some(failure) => {
                // The failure of this rank matters more than an error of telling the others.
                let _ = self.group.finish();
                Err(failure)
            }
        }
    }

    /// Waits for the exchange in flight, and looks for failures of other ranks.
    fn finish_exchange(&mut self) -> Result<()> {
        let reports = self.group.finish().map_err(|error| self.failed(error))?;
        Report::check(&reports).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: RankError) -> Error {
        Error::Ranks { path: self.model.path.clone(), error }
    }
}

impl Drop for Flow<'_, '_> {
    fn drop(&mut self) {
        self.group.end_if_unfinished();
    }
}
