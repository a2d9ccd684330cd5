//! The places of tensors and slices in the buffers of several GPUs, and the reads and copies that fill them. Nothing
//! is read here.

use std::ops::Range;

use super::super::headers::header::TensorInfo;
use super::super::open::catalog::{Catalog, Id};
use super::placement::{Runs, Share};
use crate::formats::FormatError;

/// A slice of a tensor: a range of indices along one axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorSlice {
    /// The axis, counted from 0, the slowest.
    pub axis: usize,
    /// The indices.
    pub range: Range<u64>,
}

/// A tensor or a slice in the buffer of a GPU.
#[derive(Debug)]
pub(super) struct Part {
    pub id: Id,
    /// `None` for a whole tensor.
    pub slice: Option<TensorSlice>,
    /// The place in the buffer, in bytes. `0..0` if the part has none.
    pub range: Range<usize>,
}

/// The parts on one GPU, in the order of the files and of the buffer.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub parts: Vec<Part>,
    pub len_bytes: usize,
}

/// The parts on each of several GPUs.
#[derive(Debug)]
pub(super) struct Arrangement {
    pub gpus: Vec<Parts>,
}

/// A read into the buffer of a GPU, or a copy from there. GPUs are positions in the list, and the other numbers are
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    Read {
        file: u32,
        offset: u64,
        gpu: usize,
        at: usize,
        len: usize,
    },
    /// A copy of bytes that the read before it read.
    Copy {
        from: (usize, usize),
        to: (usize, usize),
        len: usize,
    },
}

/// A range of a file that goes to one GPU or to several, each time as one range. Numbers except `file` are in bytes.
struct Stretch {
    file: u32,
    offset: u64,
    len: usize,
    /// The GPUs, and the start of the range in the buffer of each.
    places: Vec<(usize, usize)>,
}

impl Arrangement {
    /// The alignment of slices, and of the first tensor of each file, in bytes, as CUDA's allocations have it.
    const ALIGNMENT: usize = 256;

    /// Places tensors, given in the order of the files. Each is aligned to its elements. Returns `None` if a GPU gets
    /// more bytes than a buffer can have.
    ///
    /// # Errors
    /// [`FormatError::PartialByte`].
    pub fn of(catalog: &Catalog, tensors: &[(Id, Share)], gpus: usize) -> Result<Option<Self>, FormatError> {
        let mut lists: Vec<Parts> = (0..gpus).map(|_| Parts::default()).collect();
        for &(id, share) in tensors {
            let info = catalog.info(id);
            for (gpu, parts) in lists.iter_mut().enumerate() {
                let Some((slice, len_bytes)) = part_of(&info, share, gpu, gpus)? else { continue };
                let is_first = parts.parts.last().is_none_or(|last| last.id.file != id.file);
                let alignment = match is_first || slice.is_some() {
                    true => Self::ALIGNMENT,
                    false => info.dtype.size_bits().div_ceil(8) as usize,
                };
                let place = || {
                    if len_bytes == 0 {
                        return Some(0..0);
                    }
                    let start = parts.len_bytes.checked_next_multiple_of(alignment)?;
                    Some(start..start.checked_add(usize::try_from(len_bytes).ok()?)?)
                };
                let Some(range) = place() else { return Ok(None) };
                if !range.is_empty() {
                    parts.len_bytes = range.end;
                }
                parts.parts.push(Part { id, slice, range });
            }
        }
        Ok(Some(Self { gpus: lists }))
    }

    /// Calls `act` with all reads and copies. Each copy follows its read. The reads into one buffer are in the order
    /// of the buffer, and no two of them overlap.
    ///
    /// In a group, GPUs can use each other's memory. A byte for several GPUs of a group is read to one of them, the one
    /// with the fewest bytes to read, and copied to the others.
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
        let mut lists: Vec<_> = self.gpus.iter().map(|gpu| gpu.parts.iter().peekable()).collect();
        while let Some(id) = lists.iter_mut().filter_map(|parts| parts.peek().map(|part| part.id)).min() {
            let header = catalog.header(id.file);
            let info = header.nth(id.tensor);
            let offset = header.in_file(info.offsets.clone()).start;
            let mut places = Vec::new();
            for (gpu, parts) in lists.iter_mut().enumerate() {
                let Some(part) = parts.next_if(|part| part.id == id) else { continue };
                match &part.slice {
                    None => places.push((gpu, part.range.start)),
                    Some(slice) => {
                        spreader.read_slice(&info, slice, id.file, offset, (gpu, part.range.start))?
                    }
                }
            }
            if !places.is_empty() && !info.offsets.is_empty() {
                let len = info.len_bytes() as usize;
                spreader.add(Stretch { file: id.file, offset, len, places })?;
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

/// Returns the slice of a tensor that a GPU gets, and the number of bytes of it or of the whole tensor. Returns `None`
/// if the GPU gets nothing of the tensor.
///
/// # Errors
/// [`FormatError::PartialByte`].
pub(super) fn part_of(
    info: &TensorInfo<'_>,
    share: Share,
    gpu: usize,
    gpus: usize,
) -> Result<Option<(Option<TensorSlice>, u64)>, FormatError> {
    Ok(match share {
        Share::Slice { axis, cut } => {
            let range = cut.range(info.shape[axis], gpu, gpus);
            let len_bytes = Runs::of(info, axis, &range)?.len_bytes();
            Some((Some(TensorSlice { axis, range }), len_bytes))
        }
        Share::On(chosen) if chosen != gpu => None,
        _ => Some((None, info.len_bytes())),
    })
}

/// Joins ranges that are adjacent, and gives each byte to the GPU that reads it.
struct Spreader<'a, F> {
    groups: &'a [Vec<usize>],
    /// The number of bytes that each GPU reads.
    loads: Vec<u64>,
    /// The stretch that the next tensor may make longer.
    open: Option<Stretch>,
    act: F,
}

impl<E, F: FnMut(Move) -> Result<(), E>> Spreader<'_, F> {
    fn add(&mut self, next: Stretch) -> Result<(), E> {
        if let Some(open) = &mut self.open {
            let are_adjacent =
                |(one, other): (&(usize, usize), &(usize, usize))| (one.0, one.1 + open.len) == *other;
            if (open.file, open.offset + open.len as u64) == (next.file, next.offset)
                && open.places.len() == next.places.len()
                && open.places.iter().zip(&next.places).all(are_adjacent)
            {
                open.len += next.len;
                return Ok(());
            }
        }
        self.flush()?;
        self.open = Some(next);
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
        let mut done = 0;
        while done < stretch.len {
            let offset = stretch.offset + done as u64;
            let mut len = most.min(stretch.len - done);
            if done + len < stretch.len {
                len -= ((offset + len as u64) % ALIGNMENT) as usize;
            }
            let home = places.iter().min_by_key(|(gpu, _)| self.loads[*gpu]).expect("there are places");
            self.loads[home.0] += len as u64;
            (self.act)(Move::Read { file: stretch.file, offset, gpu: home.0, at: home.1 + done, len })?;
            for place in places.iter().filter(|place| place.0 != home.0) {
                let (from, to) = ((home.0, home.1 + done), (place.0, place.1 + done));
                (self.act)(Move::Copy { from, to, len })?;
            }
            done += len;
        }
        Ok(())
    }

    /// Reads the runs of a slice to a place.
    fn read_slice(
        &mut self,
        info: &TensorInfo<'_>,
        slice: &TensorSlice,
        file: u32,
        offset: u64,
        (gpu, at): (usize, usize),
    ) -> Result<(), E> {
        self.flush()?;
        let runs = Runs::of(info, slice.axis, &slice.range).expect("the parts were checked");
        self.loads[gpu] += runs.len_bytes();
        let len = runs.run_bytes as usize;
        for run in 0..runs.count {
            let offset = offset + runs.start + run * runs.stride_bytes;
            (self.act)(Move::Read { file, offset, gpu, at: at + run as usize * len, len })?;
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
