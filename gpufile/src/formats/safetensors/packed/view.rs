//! The file with plain tensors that a file with packed tensors stands for: it decodes what is read.

use std::fmt;
use std::io;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use cufile::fork::Mutex;

use super::super::headers::header::Header;
use super::super::headers::write::NewTensor;
use super::names::{Contents, described, wrong};
use crate::error::Cause;
use crate::formats::clip::clip;
use crate::formats::dtype::array_bits;
use crate::formats::head::malformed;
use crate::formats::packed::{Fault, GROUP, Kind, Layout, Scratch, UNIT, decode, front_bytes, groups_of};
use crate::formats::visible::Quoted;
use crate::formats::{Error, FormatError, Result};
use crate::gpu::bounce::Bounce;
use crate::gpu::unpack::PackedGroup;
use crate::open_file::outcome::{Outcome, Stop, done_bytes};
use crate::open_file::{OpenFile, PackedContents, PackedRead, Plain, Stored};
use crate::storage::{self, Span, Spans, Storage};
use crate::{File, IoBufMut};

/// The most packed bytes that one read of the file brings.
const MOST_BYTES: usize = 4 << 20;

/// A file of plain tensors whose bytes come from one with packed tensors. It has the header that a save of the tensors writes.
pub struct View {
    file: File,
    head: Vec<u8>,
    len_bytes: u64,
    /// In the order of the view, one behind the other from the end of the head.
    parts: Vec<Part>,
    spares: Mutex<Vec<Spare>>,
}

/// A file with its header, and its view if it has packed tensors: then the file and the header are those of the view.
pub struct Viewed {
    pub file: File,
    pub header: Header,
    pub view: Option<Arc<View>>,
}

struct Part {
    name: String,
    /// The range in the view.
    range: Range<u64>,
    /// The range in the file.
    stored: Range<u64>,
    /// For a packed tensor.
    packed: Option<Packed>,
}

struct Packed {
    kind: Kind,
    values: u64,
    /// Read when the first bytes of the tensor are.
    layout: Mutex<Option<Arc<Layout>>>,
}

struct Spare {
    bounce: Bounce,
    scratch: Box<Scratch>,
    /// The values of a group of which a read wanted only a part. `held` has the numbers of its part and of the group.
    partial: Vec<u8>,
    held: Option<(usize, usize)>,
}

impl View {
    /// Returns the view of a file with packed tensors, and other files as they are.
    pub fn of(file: File, header: Header) -> Result<Viewed> {
        let wrong = |error| malformed(&file, error);
        let Some(Contents { tensors, metadata }) = described(&header).map_err(wrong)? else {
            return Ok(Viewed { file, header, view: None });
        };
        let new: Vec<_> = tensors
            .iter()
            .map(|tensor| match &tensor.packed {
                Some((dtype, shape, _)) => NewTensor { name: tensor.stored.name, dtype: *dtype, shape },
                None => NewTensor {
                    name: tensor.stored.name,
                    dtype: tensor.stored.dtype,
                    shape: tensor.stored.shape,
                },
            })
            .collect();
        let (plain, head) = Header::build(&new, metadata).map_err(wrong)?;
        let mut parts = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let info = plain.get(tensor.stored.name).expect("a header has what it was built from");
            let packed = tensor.packed.map(|(_, shape, kind)| {
                let values = array_bits(&shape, 1).expect("checked when it was parsed") as u64;
                Packed { kind, values, layout: Mutex::default() }
            });
            let part = Part {
                name: info.name.to_owned(),
                range: plain.in_file(info.offsets),
                stored: header.in_file(tensor.stored.offsets),
                packed,
            };
            part.check_len().map_err(wrong)?;
            parts.push(part);
        }
        parts.sort_by_key(|part| (part.range.start, part.range.end));
        let len_bytes = plain.file_len_bytes();
        let view = Arc::new(Self { file, head, len_bytes, parts, spares: Mutex::default() });
        let viewed = view
            .as_file()
            .map_err(|error| crate::Error::Open { path: view.file.path().to_owned(), cause: error.into() })?;
        Ok(Viewed { file: viewed, header: plain, view: Some(view) })
    }

    fn as_file(self: &Arc<Self>) -> io::Result<File> {
        let (name, engine) = (self.file.path().to_owned(), self.file.engine().clone());
        let settings = self.file.open_file().settings.clone();
        let stored = Stored::new(self.clone()).with_packed(self.clone());
        let open = OpenFile::of_stored(name, stored, engine.gpus().clone(), settings)?;
        Ok(File::new(open, engine))
    }

    pub fn packed_bytes(&self, name: &str) -> Option<u64> {
        let part = self.parts.iter().find(|part| part.name == name && part.packed.is_some())?;
        Some(part.stored.end - part.stored.start)
    }

    /// Reads and checks the heads and indexes of all packed tensors.
    pub fn check(&self) -> Vec<Error> {
        let fails = |part: &Part| {
            let packed = part.packed.as_ref()?;
            Some(match self.layout(part, packed).err()? {
                Cause::Invalid(problem) => {
                    malformed(&self.file, FormatError::Packed { tensor: Some(clip(&part.name)), problem })
                }
                cause => {
                    let path = self.file.path().to_owned();
                    crate::Error::File { operation: "read", path, cause }.into()
                }
            })
        };
        self.parts.iter().filter_map(fails).collect()
    }

    fn layout(&self, part: &Part, packed: &Packed) -> std::result::Result<Arc<Layout>, Cause> {
        let mut known = packed.layout.lock();
        if let Some(layout) = &*known {
            return Ok(layout.clone());
        }
        let Packed { kind, values, .. } = *packed;
        // `check_len` compared them with the file.
        let mut front = vec![0; front_bytes(values).expect("a length in a file")];
        self.read_file(&mut front, part.stored.start)?;
        let parsed = Layout::parse(&front, kind, values, part.stored.end - part.stored.start);
        let layout = Arc::new(parsed.map_err(|fault| part.failed(fault))?);
        *known = Some(layout.clone());
        Ok(layout)
    }

    /// Reads bytes of the file itself, without the engine, whose threads call this.
    fn read_file(&self, bytes: &mut [u8], offset: u64) -> std::result::Result<(), Cause> {
        // SAFETY: the slice has as many bytes, and is borrowed exclusively.
        let outcome = unsafe {
            let target = IoBufMut::as_mut_ptr(bytes);
            self.file.open_file().read_rest(target, bytes.len(), offset, 0)
        };
        outcome.map_err(|stop| self.cause(stop))
    }

    fn cause(&self, stop: Stop) -> Cause {
        stop.cause.unwrap_or_else(|| {
            Cause::Invalid("the file with the packed tensors has become shorter".to_owned())
        })
    }

    /// Reads one range within a part. Returns the number of bytes that were read before a failure.
    fn read_part(
        &self,
        number: usize,
        wanted: Range<u64>,
        out: &mut [u8],
        spare: &mut Spare,
        is_cancelled: &dyn Fn() -> bool,
    ) -> std::result::Result<(), Stop> {
        let part = &self.parts[number];
        let Some(packed) = &part.packed else {
            let offset = part.stored.start + wanted.start;
            // SAFETY: the slice is borrowed exclusively.
            let read = unsafe { self.read_span(out.as_mut_ptr(), out.len(), offset, spare, is_cancelled) };
            return read.map_err(|stop| Stop { cause: Some(self.cause(stop)), done_bytes: 0 });
        };
        let layout = self.layout(part, packed).map_err(|cause| Stop { done_bytes: 0, cause: Some(cause) })?;
        let group_bytes = (GROUP * packed.kind.value_bytes()) as u64;
        let groups = groups_of(packed.kind, &wanted);
        let mut first = groups.start;
        while first < groups.end {
            let done_bytes = (first as u64 * group_bytes).saturating_sub(wanted.start) as usize;
            let stopped = |cause: Cause| Stop { done_bytes, cause: Some(cause) };
            if is_cancelled() {
                return Err(stopped(io::Error::from_raw_os_error(libc::ECANCELED).into()));
            }
            let start = layout.block(first).start;
            let fits = |group: &usize| layout.block(*group).end - start <= MOST_BYTES as u64;
            let last = (first + 1..groups.end).take_while(fits).last().unwrap_or(first);
            let is_held = first == last && spare.held == Some((number, first));
            let len_bytes = if is_held { 0 } else { (layout.block(last).end - start) as usize };
            let blocks = self.read_blocks(part.stored.start + start, len_bytes, spare, is_cancelled);
            let blocks = blocks.map_err(|stop| stopped(self.cause(stop)))?;
            for group in first..=last {
                let values = group as u64 * group_bytes;
                let len = (layout.values_of(group) * packed.kind.value_bytes()) as u64;
                let (from, to) = (wanted.start.max(values), wanted.end.min(values + len));
                let place = &mut out[(from - wanted.start) as usize..(to - wanted.start) as usize];
                let is_whole = to - from == len;
                if !is_held {
                    let block = layout.block(group);
                    // SAFETY: `read_blocks` returned the address of as many bytes of the bounce buffer, which stays as it is.
                    let block = unsafe {
                        let bytes = blocks.add((block.start - start) as usize);
                        slice::from_raw_parts(bytes, (block.end - block.start) as usize)
                    };
                    let Spare { scratch, partial, held, .. } = &mut *spare;
                    let target = if is_whole {
                        &mut *place
                    } else {
                        partial.resize(len as usize, 0);
                        *held = None;
                        &mut partial[..]
                    };
                    let decoded = decode(
                        packed.kind,
                        &layout.tables,
                        (group, layout.entries[group]),
                        block,
                        target,
                        scratch,
                    );
                    decoded.map_err(|fault| Stop {
                        done_bytes: (from - wanted.start) as usize,
                        cause: Some(part.failed(fault)),
                    })?;
                    if !is_whole {
                        *held = Some((number, group));
                    }
                }
                if !is_whole || is_held {
                    let at = (from - values) as usize;
                    place.copy_from_slice(&spare.partial[at..at + (to - from) as usize]);
                }
            }
            first = last + 1;
        }
        Ok(())
    }

    /// Reads bytes of the file to the bounce buffer, and returns their address.
    fn read_blocks(
        &self,
        offset: u64,
        len_bytes: usize,
        spare: &mut Spare,
        is_cancelled: &dyn Fn() -> bool,
    ) -> std::result::Result<*const u8, Stop> {
        let (open, bounce) = (self.file.open_file(), &mut spare.bounce);
        if let Some(stored) = open.stored() {
            let ptr = bounce.part(0, len_bytes).map_err(|error| Stop::failed(0, error))?;
            // SAFETY: `part` returned the address of as many bytes, which nothing else uses.
            unsafe { stored.read(vec![Span { offset, len_bytes, ptr }], true, is_cancelled) }?;
            return Ok(ptr);
        }
        let read = open.read_to_bounce(bounce, 0, offset, len_bytes, 0);
        read.outcome?;
        Ok(bounce.part(read.start, len_bytes).map_err(|error| Stop::failed(0, error))?)
    }

    /// Reads bytes of the file that are those of the view.
    ///
    /// # Safety
    /// `target` must be valid for writes of `len_bytes` bytes, and nothing else may use it.
    unsafe fn read_span(
        &self,
        target: *mut u8,
        len_bytes: usize,
        offset: u64,
        spare: &mut Spare,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Outcome {
        let open = self.file.open_file();
        match open.stored() {
            // SAFETY: the caller's promise.
            Some(stored) => unsafe {
                stored.read(vec![Span { offset, len_bytes, ptr: target }], false, is_cancelled)
            },
            // SAFETY: the caller's promise.
            None => unsafe { open.read_to_host(target, len_bytes, offset, &mut spare.bounce) },
        }
    }

    /// Reads a span. Returns whether it lies in the view as a whole.
    ///
    /// # Safety
    /// The memory of the span must be valid for writes, and nothing else may use it during the call.
    unsafe fn read_one(&self, span: Span, spare: &mut Spare, is_cancelled: &dyn Fn() -> bool) -> Outcome {
        let Span { offset, len_bytes, ptr } = span;
        let end = offset.saturating_add(len_bytes as u64).min(self.len_bytes);
        let mut at = offset;
        let head_bytes = self.head.len() as u64;
        let mut number = self.parts.partition_point(|part| part.range.end <= offset);
        while at < end {
            let done_bytes = (at - offset) as usize;
            let stop_at = if at < head_bytes { head_bytes } else { self.parts[number].range.end }.min(end);
            // SAFETY: the caller's promise.
            let out = unsafe { slice::from_raw_parts_mut(ptr.add(done_bytes), (stop_at - at) as usize) };
            if at < head_bytes {
                out.copy_from_slice(&self.head[at as usize..stop_at as usize]);
            } else {
                let start = self.parts[number].range.start;
                let read = self.read_part(number, at - start..stop_at - start, out, spare, is_cancelled);
                read.map_err(|stop| stop.after(done_bytes))?;
                number += 1;
            }
            at = stop_at;
        }
        let done_bytes = (at - offset) as usize;
        if done_bytes < len_bytes { Err(Stop::end_of_file(done_bytes)) } else { Ok(()) }
    }
}

/// A part of a span that is read for a GPU.
struct Piece {
    span: usize,
    device: *mut u8,
    /// The range in the file, or in the head.
    stored: Range<u64>,
    is_head: bool,
    packed: Option<PackedPiece>,
}

/// Groups whose blocks form the range of a piece, and the bytes of the tensor that the reader wants of them.
struct PackedPiece {
    layout: Arc<Layout>,
    groups: Range<usize>,
    wanted: Range<u64>,
}

impl Piece {
    fn len_bytes(&self) -> usize {
        (self.stored.end - self.stored.start) as usize
    }
}

impl PackedPiece {
    /// Adds the groups, whose blocks begin at `start` in the bounce buffer.
    fn add_groups(&self, piece: &Piece, start: usize, to: &mut Vec<PackedGroup>) {
        let Self { layout, groups, wanted } = self;
        let value_bytes = layout.kind.value_bytes() as u64;
        let first = layout.block(groups.start).start;
        for group in groups.clone() {
            let (block, entry) = (layout.block(group), &layout.entries[group]);
            let begin = (group * GROUP) as u64 * value_bytes;
            let values = layout.values_of(group);
            let from = wanted.start.max(begin);
            let end = wanted.end.min(begin + values as u64 * value_bytes);
            to.push(PackedGroup {
                address: piece.device.addr() as u64 + (from - wanted.start),
                status: 0,
                sum: entry.sum,
                offset: (start as u64 + (block.start - first)) as u32,
                len_bytes: (block.end - block.start) as u32,
                from: ((from - begin) / value_bytes) as u32,
                to: ((end - begin) / value_bytes) as u32,
                values: values as u32,
                number: group as u32 + 1,
                kind: layout.kind.number().into(),
                escapes: entry.escapes,
                patches: entry.patches,
                common: layout.tables.common,
                rare: layout.tables.rare,
            });
        }
    }
}

/// Returns whether `room` bytes are enough for the pieces, with what `O_DIRECT` reads around them, and the table of their groups.
fn has_room(pieces: &[Piece], room: usize) -> bool {
    const AROUND: usize = 2 * Bounce::ALIGNMENT;
    let groups = pieces.iter().filter_map(|piece| piece.packed.as_ref()).map(|packed| packed.groups.len());
    let table = groups.sum::<usize>() * size_of::<PackedGroup>();
    let bytes = pieces.iter().map(|piece| piece.len_bytes() + UNIT + AROUND).sum::<usize>();
    bytes + table + 2 * UNIT <= room
}

impl View {
    /// Returns the pieces of spans. Returns `None` if none of them is packed, or a kernel cannot write them.
    fn pieces(&self, spans: &[Span]) -> Option<std::result::Result<Vec<Piece>, Cause>> {
        let head_bytes = self.head.len() as u64;
        let mut pieces = Vec::new();
        for (span, &Span { offset, len_bytes, ptr }) in spans.iter().enumerate() {
            let end = offset.checked_add(len_bytes as u64).filter(|end| *end <= self.len_bytes)?;
            let mut at = offset;
            let mut number = self.parts.partition_point(|part| part.range.end <= offset);
            while at < end {
                let device = ptr.wrapping_add((at - offset) as usize);
                if at < head_bytes {
                    let stop = head_bytes.min(end);
                    pieces.push(Piece { span, device, stored: at..stop, is_head: true, packed: None });
                    at = stop;
                    continue;
                }
                let part = &self.parts[number];
                let stop = part.range.end.min(end);
                let wanted = at - part.range.start..stop - part.range.start;
                let (is_head, begin) = (false, part.stored.start);
                match &part.packed {
                    _ if wanted.is_empty() => {}
                    None => {
                        let stored = begin + wanted.start..begin + wanted.end;
                        pieces.push(Piece { span, device, stored, is_head, packed: None });
                    }
                    Some(packed) => {
                        let value_bytes = packed.kind.value_bytes();
                        let is_whole = |place: u64| place.is_multiple_of(value_bytes as u64);
                        if !is_whole(wanted.start)
                            || !is_whole(wanted.end)
                            || !device.addr().is_multiple_of(value_bytes)
                        {
                            return None;
                        }
                        let layout = match self.layout(part, packed) {
                            Ok(layout) => layout,
                            Err(cause) => return Some(Err(cause)),
                        };
                        let groups = groups_of(packed.kind, &wanted);
                        let blocks = layout.block(groups.start).start..layout.block(groups.end - 1).end;
                        let stored = begin + blocks.start..begin + blocks.end;
                        let packed = Some(PackedPiece { layout, groups, wanted });
                        pieces.push(Piece { span, device, stored, is_head, packed });
                    }
                }
                (at, number) = (stop, number + 1);
            }
        }
        pieces.iter().any(|piece| piece.packed.is_some()).then_some(Ok(pieces))
    }

    /// Reads a piece to the bounce buffer, behind its first `end` bytes. Returns where it begins.
    fn read_piece(
        &self,
        piece: &Piece,
        bounce: &mut Bounce,
        end: usize,
        is_cancelled: &dyn Fn() -> bool,
    ) -> std::result::Result<usize, Stop> {
        let (offset, len_bytes) = (piece.stored.start, piece.len_bytes());
        let open = self.file.open_file();
        if !piece.is_head && open.stored().is_none() {
            let read = open.read_to_bounce(bounce, end, offset, len_bytes, 0);
            return read.outcome.map(|()| read.start);
        }
        let ptr = bounce.part(end, len_bytes).map_err(|error| Stop::failed(0, error))?;
        if let Some(stored) = open.stored().filter(|_| !piece.is_head) {
            // SAFETY: `part` returned the address of as many bytes, which nothing else uses.
            unsafe { stored.read(vec![Span { offset, len_bytes, ptr }], true, is_cancelled) }?;
        } else {
            // SAFETY: as above; the head has as many bytes.
            unsafe { ptr.copy_from_nonoverlapping(self.head[offset as usize..].as_ptr(), len_bytes) };
        }
        Ok(end)
    }
}

impl Part {
    /// Checks that the part has as many bytes as a packed tensor may have.
    fn check_len(&self) -> std::result::Result<(), FormatError> {
        let Some(packed) = &self.packed else { return Ok(()) };
        let len_bytes = self.stored.end - self.stored.start;
        match front_bytes(packed.values) {
            Some(front) if front as u64 <= len_bytes => Ok(()),
            _ => Err(wrong(&self.name, "it has fewer bytes than the index of its groups needs")),
        }
    }

    fn failed(&self, fault: Fault) -> Cause {
        Cause::Invalid(format!("tensor {} is packed wrongly: {fault}", Quoted(&self.name)))
    }
}

impl PackedContents for View {
    fn read(
        &self,
        spans: &[Span],
        bounce: &mut Bounce,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Option<std::result::Result<PackedRead, Stop>> {
        let pieces = match self.pieces(spans)? {
            Ok(pieces) if has_room(&pieces, bounce.len_bytes()) => pieces,
            Ok(_) => return None,
            Err(cause) => return Some(Err(Stop { done_bytes: 0, cause: Some(cause) })),
        };
        let mut read = PackedRead::default();
        for piece in &pieces {
            if is_cancelled() {
                return Some(Err(Stop::failed(0, io::Error::from_raw_os_error(libc::ECANCELED))));
            }
            let start = match self.read_piece(piece, bounce, read.end.next_multiple_of(UNIT), is_cancelled) {
                Ok(start) => start,
                Err(stop) => return Some(Err(Stop { done_bytes: 0, cause: Some(self.cause(stop)) })),
            };
            read.end = start + piece.len_bytes();
            match &piece.packed {
                // Read by `O_DIRECT` from an odd place in the file.
                Some(_) if start % UNIT != 0 => return None,
                Some(packed) => packed.add_groups(piece, start, &mut read.groups),
                None => read.plain.push(Plain {
                    span: piece.span,
                    device: piece.device,
                    at: start,
                    len_bytes: piece.len_bytes(),
                }),
            }
        }
        Some(Ok(read))
    }

    fn source(&self, offset: u64) -> (&OpenFile, u64) {
        let number = self.parts.partition_point(|part| part.range.end <= offset);
        (self.file.open_file(), self.parts.get(number).map_or(0, |part| part.stored.start))
    }

    fn chunk_bytes(&self, offset: u64, stored_bytes: usize) -> Option<usize> {
        let part = self.parts.get(self.parts.partition_point(|part| part.range.end <= offset))?;
        let group = (GROUP * part.packed.as_ref()?.kind.value_bytes()) as u64;
        let start = offset.checked_sub(part.range.start)?;
        let [len, stored] = [&part.range, &part.stored].map(|range| range.end - range.start);
        let longer = (u128::from(len) * stored_bytes as u128).checked_div(u128::from(stored))?;
        let end = start.saturating_add(longer.try_into().unwrap_or(u64::MAX));
        // Two chunks with values of one group would both read it.
        let end = if end < len { end / group * group } else { len };
        usize::try_from(end.checked_sub(start)?).ok().filter(|bytes| *bytes > stored_bytes)
    }
}

impl Storage for View {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn most_part_bytes(&self) -> Option<usize> {
        self.file.open_file().stored()?.most_part_bytes()
    }

    fn read(&self, spans: &mut Spans<'_>) -> std::result::Result<(), storage::Error> {
        let mut spare = self.spares.lock().pop().unwrap_or_else(|| {
            let bounce = Bounce::new(MOST_BYTES);
            Spare { bounce, scratch: Scratch::new(), partial: Vec::new(), held: None }
        });
        let mut read = Ok(());
        for span in spans.as_raw() {
            // SAFETY: the memory is that of the span, and this function alone writes to it.
            let outcome = unsafe { self.read_one(span, &mut spare, &|| spans.is_cancelled()) };
            // SAFETY: these bytes were written.
            unsafe { spans.advance(done_bytes(&outcome, span.len_bytes)) };
            if let Err(stop) = outcome {
                read = Err(self.cause(stop).into());
                break;
            }
        }
        self.spares.lock().push(spare);
        read
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("file", &self.file).field("tensors", &self.parts.len()).finish()
    }
}
