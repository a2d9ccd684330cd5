//! The places of tensors and slices in the buffers of several GPUs, and the reads and copies that fill them. Nothing
//! is read here.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::open::catalog::{Catalog, Id};
use super::layout::Layout;
use super::placement::Share;
use super::runs::Runs;
use crate::formats::FormatError;

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
/// between them in the file, if a slice has several.
const SHORT_RUN: u64 = 256 << 10;

impl Arrangement {
    /// Places tensors from the start of the list on some of the GPUs, and removes them from it. A GPU gets at most
    /// `limit_bytes` bytes, or one longer tensor. The tensors are in the order of the files. `None` beyond
    /// the address space.
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

/// Returns the number of bytes to read for tensors with these shares, if GPUs copy from each other in this number of
/// groups.
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
        // A slice of one run may be on GPUs whose kernels cannot use each other's memory.
        let is_short = |slice: &PlacedRuns| slice.runs.run_bytes < SHORT_RUN && slice.runs.count() > 1;
        let (mut together, apart): (Vec<_>, Vec<_>) = slices.into_iter().partition(is_short);
        for group in self.groups {
            let of_group = together.extract_if(.., |slice| group.contains(&slice.gpu)).collect();
            self.read_together(file, of_group)?;
        }
        apart.into_iter().try_for_each(|slice| self.read_together(file, vec![slice]))
    }

    /// Reads the runs of these slices in the order of the file, a stretch of it by one of their GPUs, the next by another.
    fn read_together(&mut self, file: u32, mut slices: Vec<PlacedRuns>) -> Result<(), E> {
        /// The bytes that one GPU reads before it is the turn of another.
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
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use super::super::layout::Place;
    use super::super::placement::shares;
    use super::super::runs::TensorSlice;
    use super::*;
    use crate::formats::Dtype;
    use crate::formats::safetensors::{Cut, Header, NewTensor, Placement};

    const MIB: u64 = 1 << 20;

    fn catalog(files: &[Vec<(Dtype, Vec<u64>)>]) -> Catalog {
        let header = |(file, tensors): (usize, &Vec<(Dtype, Vec<u64>)>)| {
            let names: Vec<_> = (0..tensors.len()).map(|tensor| format!("{file}.{tensor:03}")).collect();
            let new: Vec<_> = names
                .iter()
                .zip(tensors)
                .map(|(name, (dtype, shape))| NewTensor { name, dtype: *dtype, shape })
                .collect();
            Header::build(&new, BTreeMap::new()).unwrap().0
        };
        Catalog::new(files.iter().enumerate().map(header).collect()).unwrap()
    }

    fn arranged(catalog: &Catalog, tensors: &[(Id, Share)], gpus: usize) -> Result<Arrangement, FormatError> {
        let mut tensors = tensors.iter().copied().collect();
        Arrangement::take(catalog, &mut tensors, 0..gpus, gpus, usize::MAX).map(Option::unwrap)
    }

    fn shared(catalog: &Catalog, placement: &Placement, gpus: usize) -> Vec<(Id, Share)> {
        let infos = catalog.ids().map(|id| catalog.info(id));
        let shares = shares(infos, gpus, |info| Ok(placement.share(info)), |error| error).unwrap();
        catalog.ids().zip(shares).collect()
    }

    type Byte = Option<(u32, u64)>;

    type Reads = BTreeMap<(u32, u64), usize>;

    /// Returns the contents of each buffer after all moves, and the number of reads of each byte of the files.
    fn carried_out(
        arrangement: &Arrangement,
        catalog: &Catalog,
        groups: &[Vec<usize>],
    ) -> (Vec<Vec<Byte>>, Reads) {
        let mut buffers: Vec<Vec<Byte>> =
            arrangement.gpus.iter().map(|gpu| vec![None; gpu.len_bytes]).collect();
        let mut reads = BTreeMap::new();
        let mut ends = vec![0; buffers.len()];
        let done: Result<(), Infallible> = arrangement.moves(catalog, groups, |step| {
            match step {
                Move::Read { file, offset, by, gpu, at, len } => {
                    assert!(
                        by == gpu || groups.iter().any(|group| group.contains(&by) && group.contains(&gpu))
                    );
                    assert!(at >= ends[gpu] && len > 0);
                    ends[gpu] = at + len;
                    for byte in 0..len {
                        let source = (file, offset + byte as u64);
                        assert_eq!(buffers[gpu][at + byte].replace(source), None);
                        *reads.entry(source).or_default() += 1;
                    }
                }
                Move::Copy { from, to, len } => {
                    assert!(groups.iter().any(|group| group.contains(&from.0) && group.contains(&to.0)));
                    // Gaps are copied too.
                    for byte in 0..len {
                        let source = buffers[from.0][from.1 + byte];
                        assert_eq!(std::mem::replace(&mut buffers[to.0][to.1 + byte], source), None);
                    }
                }
            }
            Ok(())
        });
        let Ok(()) = done;
        (buffers, reads)
    }

    /// Returns the bytes that a part must have, by looking at each element. Elements are whole bytes.
    fn expected(catalog: &Catalog, part: &Place) -> Vec<Byte> {
        let header = catalog.header(part.id.file);
        let info = header.nth(part.id.tensor);
        let size = u64::from(info.dtype.size_bits() / 8);
        let start = header.in_file(info.offsets.clone()).start;
        let chosen = |byte: &u64| match &part.slice {
            None => true,
            Some(TensorSlice { axis, range }) => {
                let inner: u64 = info.shape[axis + 1..].iter().product();
                range.contains(&(byte / size / inner % info.shape[*axis]))
            }
        };
        (0..info.len_bytes()).filter(chosen).map(|byte| Some((part.id.file, start + byte))).collect()
    }

    fn share(number: usize, axes: usize, gpus: usize) -> Share {
        let cut = if number.is_multiple_of(2) { Cut::Chunks } else { Cut::Even };
        match number % 5 {
            0 => Share::On(number % gpus),
            1 => Share::All,
            2 if axes > 0 => Share::Slice { axis: number % axes, cut },
            3 if axes > 0 => Share::Slice { axis: axes - 1, cut },
            _ => Share::Balanced,
        }
    }

    #[test]
    fn every_byte_reaches_its_places_once() {
        let shapes: [&[u64]; 10] =
            [&[], &[5], &[1, 7], &[3, 4, 5], &[0, 3], &[9, 2], &[2, 0], &[1], &[13, 3], &[1, 1, 1]];
        let dtypes = [Dtype::U8, Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::I8];
        let file = |start: usize, count: usize| {
            let tensor = |at: usize| (dtypes[at * 7 % 5], shapes[at * 3 % 10].to_vec());
            (start..start + count).map(tensor).collect::<Vec<_>>()
        };
        let catalog = catalog(&[file(0, 21), file(5, 1), file(0, 0), file(11, 33)]);
        for gpus in [1, 2, 3, 4, 8] {
            for group_len in [1, 2, 8] {
                for turn in 0..5 {
                    let placement = Placement::by(move |info| {
                        let number: usize = info.name[2..].parse().unwrap();
                        share(number + turn, info.shape.len(), gpus)
                    });
                    let tensors = shared(&catalog, &placement, gpus);
                    let arrangement = arranged(&catalog, &tensors, gpus).unwrap();
                    let groups = groups(gpus, |one, other| one / group_len == other / group_len);
                    let (buffers, reads) = carried_out(&arrangement, &catalog, &groups);
                    let total: usize = reads.values().sum();
                    assert_eq!(read_bytes(&catalog, &tensors, groups.len()), total as u64);
                    for (gpu, buffer) in arrangement.gpus.iter().zip(&buffers) {
                        for part in &gpu.places {
                            assert_eq!(buffer[part.range.clone()], expected(&catalog, part));
                            assert_eq!(part.range.start % alignment(&catalog, part), 0);
                        }
                        // Nothing else is in the buffer.
                        let filled = buffer.iter().filter(|byte| byte.is_some()).count();
                        assert_eq!(filled, gpu.places.iter().map(|part| part.range.len()).sum::<usize>());
                    }
                    // Each byte is read once for each group that needs it, and that is every byte.
                    for (id, share) in &tensors {
                        let header = catalog.header(id.file);
                        let expected = if *share == Share::All { groups.len() } else { 1 };
                        for byte in header.in_file(header.nth(id.tensor).offsets) {
                            assert_eq!(reads[&(id.file, byte)], expected);
                        }
                    }
                }
            }
        }
    }

    /// Returns the alignment of a place in bytes, except that of the first of a file.
    fn alignment(catalog: &Catalog, place: &Place) -> usize {
        let element = catalog.info(place.id).dtype.size_bits().div_ceil(8) as usize;
        if place.range.len() < 16 { element } else { 16 }
    }

    fn random(mut seed: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        }
    }

    /// Returns a file of random types and shapes. Odd lengths and empty axes are among them.
    fn random_file(random: &mut impl FnMut(u64) -> u64) -> Vec<(Dtype, Vec<u64>)> {
        let names = "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64";
        let dtypes: Vec<_> = names.split(' ').map(|name| Dtype::from_safetensors(name).unwrap()).collect();
        let count = 1 + random(12);
        let tensor = |_| {
            let dtype = dtypes[random(dtypes.len() as u64) as usize];
            let mut shape: Vec<_> = (0..random(4)).map(|_| random(9)).collect();
            if dtype.size_bits() < 8 {
                shape.push(4 * random(5));
            }
            (dtype, shape)
        };
        (0..count).map(tensor).collect()
    }

    #[test]
    fn places_follow_the_rule_within_the_limit() {
        let mut random = random(7);
        let (mut long, mut packed, mut gaps) = (0, 0, 0);
        for case in 0..400 {
            let files: Vec<_> = (0..1 + random(3)).map(|_| random_file(&mut random)).collect();
            let catalog = catalog(&files);
            let gpus = 1 + random(5) as usize;
            let turn = random(5) as usize;
            let placement = Placement::by(move |info| {
                let number: usize = info.name[2..].parse().unwrap();
                match share(number + turn, info.shape.len(), gpus) {
                    // Slices of packed elements may not be whole bytes.
                    Share::Slice { .. } if info.dtype.size_bits() < 8 => Share::All,
                    share => share,
                }
            });
            let limit_bytes = [usize::MAX, 0, 1 + random(3000) as usize][case % 3];
            let mut left: VecDeque<_> = shared(&catalog, &placement, gpus).into();
            let mut done = 0;
            while !left.is_empty() {
                let before = left.clone();
                let arrangement =
                    Arrangement::take(&catalog, &mut left, 0..gpus, gpus, limit_bytes).unwrap().unwrap();
                let taken = before.len() - left.len();
                assert!(taken > 0);
                for layout in &arrangement.gpus {
                    let filled = layout.places.iter().filter(|place| !place.range.is_empty()).count();
                    assert!(layout.len_bytes <= limit_bytes || filled == 1);
                }
                // The next tensor would be too much.
                if let Some((id, share)) = left.front() {
                    let next = |(gpu, layout): (usize, &Layout)| {
                        let info = catalog.info(*id);
                        let slice = share.on(&info, gpu, gpus)?;
                        layout.next(&info, *id, slice).unwrap().filter(|place| place.range.end > limit_bytes)
                    };
                    assert!(arrangement.gpus.iter().enumerate().find_map(next).is_some());
                }
                done += taken;
                for (gpu, layout) in arrangement.gpus.iter().enumerate() {
                    let (mut end, mut file) = (0, None);
                    let mut places = layout.places.iter();
                    for (id, share) in before.iter().take(taken) {
                        let Some(slice) = share.on(&catalog.info(*id), gpu, gpus) else { continue };
                        let place = places.next().unwrap();
                        assert_eq!((place.id, &place.slice), (*id, &slice));
                        if place.range.is_empty() {
                            assert_eq!(place.range, 0..0);
                            continue;
                        }
                        let multiple = if file == Some(id.file) { alignment(&catalog, place) } else { 256 };
                        let start = (end..).find(|start| start % multiple == 0).unwrap();
                        gaps += usize::from(start > end && multiple < 256);
                        long += usize::from(multiple == 16);
                        packed += usize::from(catalog.info(*id).dtype.size_bits() < 8);
                        assert_eq!(place.range.start, start);
                        (end, file) = (place.range.end, Some(id.file));
                    }
                    assert_eq!((places.next().is_none(), layout.len_bytes), (true, end));
                    check_fills(&catalog, layout);
                }
            }
            assert_eq!(done, catalog.len());
        }
        assert!(long > 1000 && packed > 300 && gaps > 500, "{long} {packed} {gaps}");
    }

    /// Checks that the ranges of files fill each place with its bytes, and that adjacent ones are joined.
    fn check_fills(catalog: &Catalog, layout: &Layout) {
        let fills = layout.fills(catalog);
        let mut buffer: Vec<Byte> = vec![None; layout.len_bytes];
        let mut last = None;
        for fill in &fills {
            for stretch in fill.within(0..layout.len_bytes) {
                for byte in 0..stretch.len_bytes {
                    let source = (fill.file, stretch.file_offset + byte as u64);
                    assert_eq!(buffer[stretch.buffer_offset + byte].replace(source), None);
                }
            }
            let starts = (fill.file, fill.runs.start, fill.at);
            assert!(fill.runs.count() > 1 || last != Some(starts), "{starts:?} could be joined");
            let end = fill.runs.start + fill.runs.run_bytes;
            last = (fill.runs.count() == 1).then_some((fill.file, end, fill.in_buffer().end));
        }
        let mut filled = 0;
        for place in layout.places.iter().filter(|place| catalog.info(place.id).dtype.size_bits() >= 8) {
            assert_eq!(buffer[place.range.clone()], expected(catalog, place));
            filled += place.range.len();
        }
        let packed = layout.places.iter().filter(|place| catalog.info(place.id).dtype.size_bits() < 8);
        filled += packed.map(|place| place.range.len()).sum::<usize>();
        assert_eq!(buffer.iter().flatten().count(), filled);
    }

    #[test]
    fn gaps_do_not_cut_the_copies_of_shared_tensors() {
        // Lengths that leave gaps, and short tensors between them.
        let lens = [1001, 17, 3, 4095, 0, 16, 5, 999];
        let tensors: Vec<_> = (0..800).map(|number| (Dtype::U8, vec![lens[number % lens.len()]])).collect();
        let catalog = catalog(&[tensors]);
        for gpus in [2, 4] {
            let shares = shared(&catalog, &Placement::all(), gpus);
            let arrangement = arranged(&catalog, &shares, gpus).unwrap();
            let mut copies = 0;
            let done: Result<(), Infallible> = arrangement.moves(&catalog, &[(0..gpus).collect()], |step| {
                copies += usize::from(matches!(step, Move::Copy { .. }));
                Ok(())
            });
            let Ok(()) = done;
            assert_eq!(copies, gpus - 1, "0.6 MB are one piece");
        }
        // A tensor for one GPU in a gap of 15 bytes is copied to no other.
        let catalog =
            self::catalog(&[vec![(Dtype::U8, vec![17]), (Dtype::U8, vec![4]), (Dtype::U8, vec![64])]]);
        let ids: Vec<_> = catalog.ids().collect();
        let own = |gpu| {
            arranged(&catalog, &[(ids[0], Share::All), (ids[1], Share::On(gpu)), (ids[2], Share::All)], 2)
        };
        for gpu in [0, 1] {
            let arrangement = own(gpu).unwrap();
            let (buffers, _) = carried_out(&arrangement, &catalog, &[vec![0, 1]]);
            assert_eq!(buffers[1 - gpu][17..32], [None; 15]);
            assert_eq!(buffers[gpu][17..21], expected(&catalog, &arrangement.gpus[gpu].places[1]));
        }
    }

    #[test]
    fn shared_bytes_are_read_over_all_links_equally() {
        let rows = 23 * MIB / 8 + 5;
        // A gap of eight bytes is between them.
        let catalog = catalog(&[vec![(Dtype::F64, vec![rows]), (Dtype::U8, vec![77])]]);
        let second = catalog.header(0).data_start() + rows * 8;
        let tensors: Vec<_> = catalog.ids().map(|id| (id, Share::All)).collect();
        for gpus in [1, 2, 4, 8] {
            let arrangement = arranged(&catalog, &tensors, gpus).unwrap();
            let all = vec![(0..gpus).collect::<Vec<_>>()];
            let (mut loads, mut reads, mut copies) = (vec![0; gpus], 0, 0);
            let done: Result<(), Infallible> = arrangement.moves(&catalog, &all, |step| {
                match step {
                    Move::Read { offset, gpu, len, .. } => {
                        loads[gpu] += len;
                        reads += 1;
                        assert!(
                            offset % 4096 == 0 || [catalog.header(0).data_start(), second].contains(&offset)
                        );
                    }
                    Move::Copy { .. } => copies += 1,
                }
                Ok(())
            });
            let Ok(()) = done;
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            assert!(most - least <= 1 << 20, "{loads:?}");
            // Both tensors are one stretch, with two reads in its last piece. The rounding of cuts may leave one more piece.
            assert!(reads == gpus + 1 || reads == gpus + 2, "{reads}");
            assert_eq!(copies, (reads - 1) * (gpus - 1));
        }
    }

    #[test]
    fn slices_with_short_runs_are_read_in_file_order() {
        let (rows, columns) = (70_000, 1024);
        let catalog = catalog(&[vec![(Dtype::U8, vec![rows, columns]), (Dtype::U8, vec![4, 1 << 20])]]);
        let start = catalog.header(0).data_start();
        let tensors: Vec<_> =
            catalog.ids().map(|id| (id, Share::Slice { axis: 1, cut: Cut::Even })).collect();
        let arrangement = arranged(&catalog, &tensors, 4).unwrap();
        // GPUs of one group share the reads of each stretch. A GPU alone in its group reads its own slices.
        for (groups, members) in [(vec![vec![0, 1, 2, 3]], 4), (vec![vec![0, 1, 2], vec![3]], 3)] {
            let (mut end, mut turns, mut loads, mut long) = (start, Vec::new(), [0; 4], 0);
            let done: Result<(), Infallible> = arrangement.moves(&catalog, &groups, |step| {
                let Move::Read { offset, by, gpu, len, .. } = step else { panic!("slices need no copies") };
                if len == 1 << 18 {
                    assert_eq!(by, gpu);
                    long += 1;
                } else if gpu < members {
                    loads[by] += len;
                    let skipped = if members == 3 && offset % columns == start % columns && offset > start {
                        256
                    } else {
                        0
                    };
                    assert_eq!(offset, end + skipped);
                    end = offset + len as u64;
                    if turns.last() != Some(&by) {
                        turns.push(by);
                    }
                }
                Ok(())
            });
            let Ok(()) = done;
            assert_eq!(long, 16);
            // Stretches of 16 MiB in turn.
            assert_eq!(turns.len() as u64, (rows * 256 * members as u64).div_ceil(16 * MIB), "{turns:?}");
            assert!(loads[..members].iter().all(|load| *load > 15 << 20), "{loads:?}");
        }
    }

    #[test]
    fn partial_bytes_are_refused_with_the_tensor() {
        let catalog = catalog(&[vec![(Dtype::F4, vec![3, 6]), (Dtype::F4, vec![2, 4])]]);
        let of = |tensor: u32, axis, cut, gpus| {
            let tensors = [(Id { file: 0, tensor }, Share::Slice { axis, cut })];
            arranged(&catalog, &tensors, gpus)
        };
        assert!(of(0, 0, Cut::Even, 3).is_ok());
        assert!(of(0, 1, Cut::Even, 3).is_ok());
        let error = of(0, 1, Cut::Even, 2).unwrap_err().to_string();
        assert_eq!(error, r#"tensor "0.000": bits 0 to 12 are not whole bytes"#);
        assert!(of(1, 1, Cut::Even, 4).is_err() && of(1, 1, Cut::Chunks, 2).is_ok());
    }

    #[test]
    fn groups_have_only_mutual_peers() {
        assert_eq!(groups(5, |_, _| false), [[0], [1], [2], [3], [4]]);
        assert_eq!(groups(3, |_, _| true), [[0, 1, 2]]);
        assert_eq!(groups(6, |one, other| one / 4 == other / 4), [vec![0, 1, 2, 3], vec![4, 5]]);
        // A chain: neighbours are peers, others are not.
        assert_eq!(groups(4, |one, other| one.abs_diff(other) == 1), [[0, 1], [2, 3]]);
        assert!(groups(0, |_, _| true).is_empty());
    }
}
