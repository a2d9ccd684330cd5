use std::collections::VecDeque;
use std::fmt;
use std::iter;
use std::mem;
use std::ops::ControlFlow;

use super::super::open::catalog::Id;
use super::super::open::files::ModelFiles;
use super::arrange::Arrangement;
use super::flow::{Filling, Flow};
use super::on_gpu::PlacedTensors;
use super::placement::{Placement, Share};
use super::plan::Plan;
use crate::cuda::{Device, DeviceBuffer};
use crate::formats::progress::{Controller, Progress};
use crate::formats::{Error, Result};

/// A load of tensors to several GPUs. [`Load::placed`](super::super::Load::placed) makes it.
///
/// Each byte of the files is read once, over the link of one GPU. Tensors for several GPUs are copied between them
/// over NVLink or PCIe, while the rest is read. If GPUs cannot use each other's memory, each of them reads these tensors
/// itself. A slice along any axis reads only its bytes.
///
/// ```no_run
/// use gpufile::Engine;
/// use gpufile::formats::safetensors::{Checkpoint, Cut, Placement, Share};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cuda = Engine::global().cuda()?;
/// let devices = (0..cuda.device_count()?).map(|gpu| cuda.device(gpu)).collect::<Result<Vec<_>, _>>()?;
/// let placement = Placement::by(|tensor| match tensor.shape {
///     [_, _] => Share::Slice { axis: 1, cut: Cut::Even },
///     _ => Share::All,
/// });
/// let checkpoint = Checkpoint::open("model.safetensors.index.json")?;
/// for on_gpu in checkpoint.load().placed(&placement).to_devices(&devices)? {
///     for part in on_gpu.iter() {
///         println!("{:?}: {} {:?} {:?}", on_gpu.buffer().device(), part.info.name, part.shape(), part.bytes);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct PlacedLoad<'a> {
    pub(super) model: &'a ModelFiles,
    ids: Vec<Id>,
    placement: &'a Placement,
    pub(super) watch: Option<Controller<'a>>,
    pub(super) ahead_bytes: usize,
    pub(super) reused: Vec<DeviceBuffer>,
}

impl<'a> PlacedLoad<'a> {
    pub(in crate::formats::safetensors) fn new(
        model: &'a ModelFiles,
        ids: Vec<Id>,
        placement: &'a Placement,
        watch: Option<Controller<'a>>,
    ) -> Self {
        const AHEAD_BYTES: usize = 512 << 20;
        Self { model, ids, placement, watch, ahead_bytes: AHEAD_BYTES, reused: Vec::new() }
    }

    /// Calls `watch` after each part of the load: 256 MiB for each GPU, or less. If it returns
    /// [`ControlFlow::Break`], the load ends with [`Error::Cancelled`]. The thread that loads calls it.
    pub fn watch(mut self, watch: impl FnMut(Progress) -> ControlFlow<()> + 'a) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    /// Sets the most bytes that [`groups`](Self::groups) holds on each GPU before it returns them: 512 MiB by
    /// default. It always holds at least two groups of one tensor each.
    pub fn ahead_bytes(mut self, bytes: usize) -> Self {
        self.ahead_bytes = bytes;
        self
    }

    /// Takes the memory of an earlier load, which [`PlacedTensors::into_buffer`] returns, for this one. A buffer on the
    /// same GPU that is large enough is filled in place of a new allocation. The others are freed before the load
    /// allocates. Memory that GPUs share is slow to allocate: two GPUs load a model of 4 GiB in two thirds of the time
    /// without that.
    ///
    /// [`groups`](Self::groups) takes none of them, because its caller still has earlier groups.
    ///
    /// ```no_run
    /// # use gpufile::Engine;
    /// # use gpufile::formats::safetensors::{Checkpoint, PlacedTensors, Placement};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let devices = [Engine::global().cuda()?.device(0)?, Engine::global().cuda()?.device(1)?];
    /// let (old, new) = (Checkpoint::open("old.safetensors")?, Checkpoint::open("new.safetensors")?);
    /// let served = old.load().placed(&Placement::all()).to_devices(&devices)?;
    /// let memory = served.into_iter().map(PlacedTensors::into_buffer);
    /// let served = new.load().placed(&Placement::all()).reuse(memory).to_devices(&devices)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reuse(mut self, buffers: impl IntoIterator<Item = DeviceBuffer>) -> Self {
        self.reused.extend(buffers);
        self
    }

    /// Loads into one allocation on each GPU. Returns the tensors of each GPU, in the order of the list.
    ///
    /// Tensors and slices are aligned as in [`Load::to_device`](super::super::Load::to_device). In addition to them, a
    /// GPU has the gaps for alignment, and the staging buffers of the engine (see
    /// [`bounce_memory_bytes`](crate::EngineBuilder::bounce_memory_bytes)).
    ///
    /// # Errors
    /// [`Error::Format`] if the placement names a GPU or an axis that does not exist, or if slices do not start and end
    /// at whole bytes; [`Error::Memory`] if a GPU has no room; [`Error::File`] if reading fails; [`Error::PeerCopy`] if
    /// copying between GPUs fails; [`Error::Cancelled`].
    pub fn to_devices(self, devices: &[Device]) -> Result<Vec<PlacedTensors>> {
        let plan = self.plan(devices.len())?;
        let arrangement = plan.arrange_all()?;
        // The flow is dropped first, and waits for what uses the buffers.
        let mut buffers = Filling::allocate(self.model, iter::zip(devices, &arrangement.gpus), self.reused)?;
        let mut flow = Flow::new(self.model, &plan, devices, self.watch);
        let batches = flow.start(&arrangement, &mut buffers)?;
        flow.finish(batches)?;
        Ok(PlacedTensors::of_all(self.model, arrangement, buffers))
    }

    /// Loads groups of tensors one after the other, in the order of the files. Each item of the iterator has the
    /// tensors of one group, as [`to_devices`](Self::to_devices) returns those of all. While the caller uses
    /// one group, the next is read. Dropping the iterator ends the load.
    ///
    /// ```no_run
    /// # use gpufile::formats::safetensors::{Checkpoint, Placement};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let devices = [gpufile::Engine::global().cuda()?.device(0)?];
    /// let checkpoint = Checkpoint::open("model.safetensors")?;
    /// let placement = Placement::all();
    /// for group in checkpoint.load().placed(&placement).ahead_bytes(256 << 20).groups(&devices)? {
    ///     for on_gpu in group? {
    ///         println!("{} tensors on {:?}", on_gpu.iter().len(), on_gpu.buffer().device());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Format`] as [`to_devices`](Self::to_devices). The items have its other errors. An error is the last
    /// item. After a panic of the callback, the last item is [`Error::Cancelled`].
    pub fn groups(self, devices: &[Device]) -> Result<PlacedGroups<'a>> {
        let plan = self.plan(devices.len())?;
        // Slices of partial bytes are found now.
        plan.arrange_all()?;
        let flow = Flow::new(self.model, &plan, devices, self.watch);
        Ok(PlacedGroups {
            flow: Some(flow),
            in_flight: VecDeque::new(),
            model: self.model,
            left: plan.tensors.iter().copied().collect(),
            plan,
            group_bytes: self.ahead_bytes / 2,
            failed: None,
            is_interrupted: false,
        })
    }

    pub(super) fn plan(&self, gpus: usize) -> Result<Plan> {
        Plan::new(self.model, self.ids.iter().copied(), gpus, |tensor| Ok(self.placement.share(tensor)))
    }
}

/// An iterator over the tensors of a model in groups, from [`PlacedLoad::groups`].
pub struct PlacedGroups<'a> {
    /// `None` after an error or the last group. It is dropped before the buffers that it fills.
    flow: Option<Flow<'a>>,
    /// The groups in flight: the next two for the caller.
    in_flight: VecDeque<Group>,
    model: &'a ModelFiles,
    plan: Plan,
    left: VecDeque<(Id, Share)>,
    group_bytes: usize,
    /// The error of allocating the group behind those in flight.
    failed: Option<Error>,
    /// True during a call, and after one that a panic of the callback ended.
    is_interrupted: bool,
}

struct Group {
    arrangement: Arrangement,
    buffers: Vec<Filling>,
    batches: u64,
}

impl PlacedGroups<'_> {
    /// Starts to read groups until two are in flight.
    fn fill(&mut self, flow: &mut Flow<'_>) -> Result<()> {
        let devices = flow.links.devices.clone();
        while self.in_flight.len() < 2 && !self.left.is_empty() {
            let arranged = self.plan.arrange(&mut self.left, 0..devices.len(), self.group_bytes);
            let made = arranged.and_then(|arrangement| {
                let gpus = iter::zip(&devices, &arrangement.gpus);
                let buffers = Filling::allocate(self.model, gpus, Vec::new())?;
                Ok(Group { arrangement, buffers, batches: 0 })
            });
            match made {
                Ok(group) => self.in_flight.push_back(group),
                // The groups in flight come first.
                Err(error) => {
                    self.left.clear();
                    self.failed = Some(error);
                    return Ok(());
                }
            }
            let group = self.in_flight.back_mut().expect("pushed above");
            group.batches = flow.start(&group.arrangement, &mut group.buffers)?;
        }
        Ok(())
    }

    fn advance(&mut self, flow: &mut Flow<'_>) -> Result<Option<Vec<PlacedTensors>>> {
        self.fill(flow)?;
        match self.in_flight.front() {
            Some(group) => flow.finish(group.batches)?,
            None => return self.failed.take().map_or(Ok(None), Err),
        }
        let Group { arrangement, buffers, .. } = self.in_flight.pop_front().expect("seen above");
        Ok(Some(PlacedTensors::of_all(self.model, arrangement, buffers)))
    }
}

impl Iterator for PlacedGroups<'_> {
    type Item = Result<Vec<PlacedTensors>>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(mut flow) = self.flow.take() else {
            // Without an error, it would look like the end of the model.
            let error = || Error::Cancelled { path: self.model.path.clone() };
            return mem::take(&mut self.is_interrupted).then(|| Err(error()));
        };
        self.is_interrupted = true;
        let next = self.advance(&mut flow).transpose();
        self.is_interrupted = false;
        match next {
            Some(Ok(_)) => self.flow = Some(flow),
            _ => {
                drop(flow);
                self.in_flight.clear();
            }
        }
        next
    }
}

impl fmt::Debug for PlacedLoad<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacedLoad").field("tensors", &self.ids.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PlacedGroups<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacedGroups").field("tensors_to_come", &self.left.len()).finish_non_exhaustive()
    }
}
