//! The places of tensors and slices in the buffers of several GPUs, and the reads and copies that fill them. Nothing
//! is read here.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::open::catalog::{Catalog, Id};
use super::layout::Layout;
use super::placement::Share;
use super::runs::Runs;
use crate::formats::FormatError;

/// The layouts of several GPUs.
#[derive(Debug)]
pub(super) struct Arrangement {
    pub gpus: Vec<Layout>,
}

/// A read into the buffer of a GPU, or a copy from there. GPUs are positions in the list, and the other numbers are
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    /// `by` is the GPU that best reads the bytes: `gpu`, or another one of its group.
    Read { file: u32, offset: u64, by: usize, gpu: usize, at: usize, len: usize },
    /// A copy of bytes that the reads before it read, and of the gaps between them.
    Copy { from: (usize, usize), to: (usize, usize), len: usize },
}

/// Tensors of a file that follow each other in the memory of one GPU or of several, with the same gaps on each. Numbers
/// except `file` are in bytes.
struct Stretch {
    file: u32,
    /// The GPUs, and the start of the stretch in the buffer of each.
    places: Vec<(usize, usize)>,
    /// The length in memory, with the gaps.
    len: usize,
    /// In the order of the memory.
    sources: Vec<Source>,
}

/// A range of the file. `at` is its start in the stretch.
struct Source {
    offset: u64,
    at: usize,
    len: usize,
}

/// The length in bytes of the shortest runs that each GPU reads for itself. Shorter ones take less time together with those
/// between them in the file.
const SHORT_RUN: u64 = 256 << 10;

impl Arrangement {
    /// Places tensors from the start of the list on some of the GPUs, and removes them from it. A GPU gets at most
    /// `limit_bytes` bytes, or one longer tensor. The tensors are in the order of the files. Returns `None` if a GPU gets
    /// more bytes than an address space.
    ///
    /// # Errors
    /// [`FormatError::PartialByte`].
    pub fn take(
        catalog: &Catalog,
        tensors: &mut VecDeque<(Id, Share)>,
        on: Range<usize>,
        gpus: usize,
        limit_bytes: usize,
    ) -> Result<Option<Self>, FormatError> {
        let mut layouts: Vec<_> = on.clone().map(|_| Layout::default()).collect();
        let mut next = Vec::with_capacity(layouts.len());
        let mut is_first = true;
        while let Some(&(id, share)) = tensors.front() {
            let info = catalog.info(id);
            for (gpu, layout) in on.clone().zip(&layouts) {
                next.push(match share.on(&info, gpu, gpus) {
                    Some(slice) => match layout.next(&info, id, slice)? {
                        Some(place) => Some(place),
                        None => return Ok(None),
                    },
                    None => None,
                });
            }
            if !is_first && next.iter().flatten().any(|place| place.range.end > limit_bytes) {
                break;
            }
            for (layout, place) in layouts.iter_mut().zip(next.drain(..)) {
                place.into_iter().for_each(|place| layout.push(place));
            }
            tensors.pop_front();
            is_first = false;
        }
        Ok(Some(Self { gpus: layouts }))
    }

    /// Calls `act` with all reads and copies. Each copy follows its read. The reads into one buffer are in the order
    /// of the buffer, and no two of them overlap.
    ///
    /// In a group, GPUs can use each other's memory. A byte for several GPUs of a group is read to one of them, the one
    /// with the fewest bytes to read, and copied to the others. One copy has the bytes of many tensors, and the gaps
    /// between them. Where slices of one tensor have short runs, one GPU reads the runs of all, in the order of the file.
    ///
    /// # Errors
    /// The error of `act`, which is then called no more.
    pub fn moves<E>(
        &self,
        catalog: &Catalog,
        groups: &[Vec<usize>],
        act: impl FnMut(Move) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut spreader = Spreader { groups, loads: vec![0; self.gpus.len()], open: None, act };
        let mut lists: Vec<_> = self.gpus.iter().map(|gpu| gpu.places.iter().peekable()).collect();
        while let Some(id) = lists.iter_mut().filter_map(|places| places.peek().map(|place| place.id)).min() {
            let header = catalog.header(id.file);
            let info = header.nth(id.tensor);
            let offset = header.in_file(info.offsets.clone()).start;
            let (mut places, mut slices) = (Vec::new(), Vec::new());
            for (gpu, list) in lists.iter_mut().enumerate() {
                let Some(place) = list.next_if(|place| place.id == id) else { continue };
                let at = place.range.start;
                match &place.slice {
                    None => places.push((gpu, at)),
                    Some(slice) => {
                        let runs = Runs::of_slice(&info, slice.axis, &slice.range);
                        let runs = runs.expect("checked when it was placed").behind(offset);
                        slices.push(PlacedRuns::new(gpu, at, runs));
                    }
                }
            }
            if !slices.is_empty() {
                spreader.read_slices(id.file, slices)?;
            }
            if !places.is_empty() && !info.offsets.is_empty() {
                spreader.add(id.file, offset, info.len_bytes() as usize, places)?;
            }
        }
        spreader.flush()
    }
}

/// Returns the number of bytes to read for tensors with these shares, if GPUs copy from each other in so many groups.
pub(super) fn read_bytes(catalog: &Catalog, tensors: &[(Id, Share)], groups: usize) -> u64 {
    let reads = |share| if share == Share::All { groups as u64 } else { 1 };
    let bytes = tensors.iter().map(|(id, share)| catalog.info(*id).len_bytes().saturating_mul(reads(*share)));
    bytes.fold(0, u64::saturating_add)
}

impl Stretch {
    /// Returns the start in the stretch of a tensor that continues it in the memory of the same GPUs.
    fn place_of(&self, file: u32, places: &[(usize, usize)]) -> Option<usize> {
        let at = places.first()?.1.checked_sub(self.places.first()?.1)?;
        let are_equal = self.places.iter().map(|(gpu, start)| (*gpu, start + at)).eq(places.iter().copied());
        // Any other tensor between the two would have ended the stretch, so nothing but a gap is there.
        (self.file == file && are_equal).then_some(at)
    }
}

/// The runs of a slice, and the place in the buffer of a GPU that they fill without gaps.
struct PlacedRuns {
    gpu: usize,
    at: usize,
    runs: Runs,
    /// The start in the file of the run to be handed out next, and its number.
    next: Option<(u64, u64)>,
}

impl PlacedRuns {
    fn new(gpu: usize, at: usize, runs: Runs) -> Self {
        let next = (runs.count() > 0).then(|| (runs.nth(0), 0));
        Self { gpu, at, runs, next }
    }

    /// Hands out the run with this number, which is the next. Returns its place in the buffer.
    fn take(&mut self, number: u64) -> usize {
        let next = number + 1;
        self.next = (next < self.runs.count()).then(|| (self.runs.nth(next), next));
        self.at + (number * self.runs.run_bytes) as usize
    }
}

/// Joins tensors that follow each other, and gives each byte to the GPU that reads it.
struct Spreader<'a, F> {
    groups: &'a [Vec<usize>],
    /// The number of bytes that each GPU reads.
    loads: Vec<u64>,
    /// The stretch that the next tensor may make longer.
    open: Option<Stretch>,
    act: F,
}

impl<E, F: FnMut(Move) -> Result<(), E>> Spreader<'_, F> {
    fn add(&mut self, file: u32, offset: u64, len: usize, places: Vec<(usize, usize)>) -> Result<(), E> {
        if let Some(open) = &mut self.open
            && let Some(at) = open.place_of(file, &places)
        {
            open.len = at + len;
            match open.sources.last_mut() {
                Some(last) if (last.at + last.len, last.offset + last.len as u64) == (at, offset) => {
                    last.len += len
                }
                _ => open.sources.push(Source { offset, at, len }),
            }
            return Ok(());
        }
        self.flush()?;
        self.open = Some(Stretch { file, places, len, sources: vec![Source { offset, at: 0, len }] });
        Ok(())
    }

    fn flush(&mut self) -> Result<(), E> {
        let Some(stretch) = self.open.take() else { return Ok(()) };
        for group in self.groups {
            let places: Vec<_> =
                stretch.places.iter().filter(|(gpu, _)| group.contains(gpu)).copied().collect();
            if !places.is_empty() {
                self.spread(&stretch, &places)?;
            }
        }
        Ok(())
    }

    /// Reads each piece of a stretch to one of these places, and copies it to the others.
    fn spread(&mut self, stretch: &Stretch, places: &[(usize, usize)]) -> Result<(), E> {
        const SHORTEST: usize = 1 << 20;
        const LONGEST: usize = 64 << 20;
        /// File offsets that are multiples of this need no over-read with `O_DIRECT`.
        const ALIGNMENT: u64 = 4096;
        let most = stretch.len.div_ceil(places.len()).next_multiple_of(4096).clamp(SHORTEST, LONGEST);
        let (mut done, mut first) = (0, 0);
        while done < stretch.len {
            let mut end = stretch.len.min(done + most);
            let cut = stretch.sources[first..].iter().find(|source| source.at + source.len > end);
            if let Some(source) = cut.filter(|source| source.at < end) {
                end -= ((source.offset + (end - source.at) as u64) % ALIGNMENT) as usize;
            }
            let home = places.iter().min_by_key(|(gpu, _)| self.loads[*gpu]).expect("there are places");
            while let Some(source) = stretch.sources.get(first).filter(|source| source.at < end) {
                let (from, to) = (source.at.max(done), end.min(source.at + source.len));
                let (offset, len) = (source.offset + (from - source.at) as u64, to - from);
                self.loads[home.0] += len as u64;
                let (file, gpu) = (stretch.file, home.0);
                (self.act)(Move::Read { file, offset, by: gpu, gpu, at: home.1 + from, len })?;
                if to < source.at + source.len {
                    break;
                }
                first += 1;
            }
            for place in places.iter().filter(|place| place.0 != home.0) {
                let (from, to) = ((home.0, home.1 + done), (place.0, place.1 + done));
                (self.act)(Move::Copy { from, to, len: end - done })?;
            }
            done = end;
        }
        Ok(())
    }

    /// Reads the runs of slices of one tensor to their places.
    fn read_slices(&mut self, file: u32, slices: Vec<PlacedRuns>) -> Result<(), E> {
        self.flush()?;
        let is_short = |slice: &PlacedRuns| slice.runs.run_bytes < SHORT_RUN;
        let (mut together, apart): (Vec<_>, Vec<_>) = slices.into_iter().partition(is_short);
        for group in self.groups {
            let of_group = together.extract_if(.., |slice| group.contains(&slice.gpu)).collect();
            self.read_together(file, of_group)?;
        }
        apart.into_iter().try_for_each(|slice| self.read_together(file, vec![slice]))
    }

    /// Reads the runs of these slices in the order of the file, a stretch of it by one of their GPUs, the next by another.
    fn read_together(&mut self, file: u32, mut slices: Vec<PlacedRuns>) -> Result<(), E> {
        /// The bytes that one GPU reads before another takes its turn.
        const STRETCH: u64 = 16 << 20;
        let gpus: Vec<_> = slices.iter().map(|slice| slice.gpu).collect();
        let (mut by, mut left) = (0, 0);
        // A slice without more runs comes last.
        let next_start = |slice: &&mut PlacedRuns| slice.next.map_or(u64::MAX, |(start, _)| start);
        while let Some(slice) = slices.iter_mut().min_by_key(next_start)
            && let Some((offset, number)) = slice.next
        {
            if left == 0 {
                by = *gpus.iter().min_by_key(|gpu| self.loads[**gpu]).expect("there are slices");
                left = STRETCH;
            }
            let (gpu, at, len) = (slice.gpu, slice.take(number), slice.runs.run_bytes);
            left = left.saturating_sub(len);
            self.loads[by] += len;
            (self.act)(Move::Read { file, offset, by, gpu, at, len: len as usize })?;
        }
        Ok(())
    }
}

/// Puts GPUs into groups whose members all can use each other's memory.
pub(super) fn groups(gpus: usize, are_peers: impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for gpu in 0..gpus {
        match groups.iter_mut().find(|group| group.iter().all(|member| are_peers(*member, gpu))) {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    groups
}

#[cfg(test)]
mod tests;
