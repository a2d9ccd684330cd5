//! The file's side of a chunk: between files and a bounce buffer, or host memory.

use std::ops::Range;
use std::{iter, ptr, slice};

use cufile::cuda::{Device, Stream};

use super::super::device::buffers::Contents;
use super::super::device::streams::Streams;
use super::super::plan::transfer::Segment;
use super::job::Claim;
use crate::gpu::bounce::Bounce;
use crate::open_file::outcome::{Outcome, Stop, done_bytes};
use crate::open_file::{BounceRead, Mapping, Method, OpenFile, PackedRead, Plain, Stored};
use crate::route::Way;
use crate::storage::Span;

/// A range of an entry's file whose bytes lie in a bounce buffer.
pub(super) struct Write {
    entry: usize,
    offset: u64,
    bounce: Range<usize>,
    /// The bytes of the chunk before this range.
    before_bytes: usize,
}

/// Reads a chunk into the bounce buffer, and notes the copies from there to the device memory. Sets `is_unsettled` if waiting for
/// copies of its beginning fails.
pub(super) fn read_to_bounce(
    claim: &Claim,
    device: &Device,
    contents: &mut Contents,
    streams: &Streams,
    is_unsettled: &mut bool,
) -> Outcome {
    if let Method::Mapping(mapping) = claim.method() {
        return read_mapping_to_bounce(mapping, claim, device, contents);
    }
    let Contents { bounce, copies, .. } = contents;
    let (mut end, mut bytes) = (0, 0);
    let mut behind_bytes = claim.segments().map(|segment| segment.len_bytes).sum();
    for run in adjacent(claim.segments()) {
        let Run { file, offset, len_bytes, .. } = run;
        behind_bytes -= len_bytes;
        if let Some(handle) = file.cufile(len_bytes) {
            for segment in run.segments() {
                let mut memory = claim.memory(segment.entry).part(segment.ptr, segment.len_bytes);
                let outcome = file.read_cufile(handle, &mut memory, segment.offset);
                file.count_read(file.cufile_way(), segment.len_bytes, &outcome);
                outcome.map_err(|stop| stop.after(bytes))?;
                bytes += segment.len_bytes;
            }
            continue;
        }
        bounce.pin(device);
        // The table of the kernel needs the room that another run would take.
        if bytes + behind_bytes == 0
            && let Some(read) = read_packed(&run, claim, bounce, streams)
        {
            let PackedRead { groups, plain, end } = read?;
            for Plain { span, device, at, len_bytes } in plain {
                let segment = run.segments().nth(span).expect("a span of the run");
                let source = bounce.part(at, len_bytes).map_err(|error| Stop::failed(0, error))?;
                copies.push(claim.memory(segment.entry), device, source, len_bytes);
            }
            copies.unpack(groups, end);
            file.count_read(Way::BOUNCED, len_bytes, &Ok(()));
            return Ok(());
        }
        let read = match file.stored() {
            Some(stored) if len_bytes > bounce.len_bytes() => {
                let outcome = read_in_parts(stored, claim, &run, bounce, &streams.copies, is_unsettled);
                file.count_read(Way::BOUNCED, len_bytes, &outcome);
                return outcome;
            }
            Some(stored) => {
                let memory = bounce.part(end, len_bytes).map_err(|error| Stop::failed(bytes, error))?;
                // SAFETY: `part` returned the address of as many bytes, which nothing else uses.
                let outcome = unsafe {
                    read_stored(stored, claim, run.segments().map(|segment| segment.span()), Some(memory))
                };
                BounceRead { start: end, outcome }
            }
            None => file.read_to_bounce(bounce, end, offset, len_bytes, behind_bytes),
        };
        file.count_read(Way::BOUNCED, len_bytes, &read.outcome);
        let (mut at, mut left) = (read.start, done_bytes(&read.outcome, len_bytes));
        for segment in run.segments() {
            let some = segment.len_bytes.min(left);
            let source = bounce.part(at, some).map_err(|error| Stop::failed(bytes, error))?;
            copies.push(claim.memory(segment.entry), segment.ptr, source, some);
            (at, left) = (at + some, left - some);
        }
        read.outcome.map_err(|stop| stop.after(bytes))?;
        bytes += len_bytes;
        end = at;
    }
    Ok(())
}

/// Reads the only run of a chunk in a form that the GPU decodes. Returns `None` if the file has none, or the GPU cannot decode
/// it.
fn read_packed<'a>(
    run: &Run<'a, impl Iterator<Item = Segment<'a>> + Clone>,
    claim: &Claim,
    bounce: &mut Bounce,
    streams: &Streams,
) -> Option<Result<PackedRead, Stop>> {
    /// More would be short, and each a separate copy.
    const MOST_SPANS: usize = 4;
    let packed = run.file.stored()?.packed()?;
    let can_decode = bounce.is_pinned() && run.count <= MOST_SPANS;
    let is_usable = |segment: Segment<'a>| claim.memory(segment.entry).is_in_primary_context;
    if !can_decode || !run.segments().all(is_usable) {
        return None;
    }
    streams.unpacker(bounce.len_bytes())?;
    let spans: Vec<_> = run.segments().map(|segment| segment.span()).collect();
    packed.read(&spans, bounce, &|| claim.is_unwanted())
}

/// Reads the only segment of a chunk, longer than the bounce buffer because no kernel decodes it. Waits for the copy of each
/// part.
fn read_in_parts<'a>(
    stored: &Stored,
    claim: &Claim,
    run: &Run<'a, impl Iterator<Item = Segment<'a>> + Clone>,
    bounce: &mut Bounce,
    copies: &Stream,
    is_unsettled: &mut bool,
) -> Outcome {
    let mut done = 0;
    while done < run.len_bytes {
        let len_bytes = bounce.len_bytes().min(run.len_bytes - done);
        let ptr = bounce.part(0, len_bytes).map_err(|error| Stop::failed(done, error))?;
        let span = Span { offset: run.offset + done as u64, len_bytes, ptr };
        // SAFETY: `part` returned the address of as many bytes, which nothing else uses: the last copy has ended.
        unsafe { read_stored(stored, claim, iter::once(span), Some(ptr)) }
            .map_err(|stop| stop.after(done))?;
        // SAFETY: the transfer has exclusive use of the memory of its segment. The next line waits for the stream.
        let copied = unsafe {
            copies.copy_to_device(run.ptr.wrapping_add(done), slice::from_raw_parts(ptr, len_bytes))
        };
        let ended = copies.synchronize();
        *is_unsettled |= ended.is_err();
        ended.and(copied).map_err(|error| Stop::failed(done, error))?;
        done += len_bytes;
    }
    Ok(())
}

/// As [`read_to_bounce`], from a mapping of the file.
fn read_mapping_to_bounce(
    mapping: &Mapping,
    claim: &Claim,
    device: &Device,
    Contents { bounce, copies, .. }: &mut Contents,
) -> Outcome {
    bounce.pin(device);
    let total_bytes = claim.segments().fold(0, |sum: usize, segment| sum.saturating_add(segment.len_bytes));
    let start = bounce.part(0, total_bytes).map_err(|error| Stop::failed(0, error))?;
    let spans = claim.segments().scan(start, |target, segment| {
        let span = Span { ptr: *target, ..segment.span() };
        *target = target.wrapping_add(segment.len_bytes);
        Some(span)
    });
    // SAFETY: `part` returned the address of as many bytes, which nothing else uses.
    let outcome = unsafe { read_mapped(mapping, claim, Way::BOUNCED, spans) };
    let (mut at, mut left) = (start, done_bytes(&outcome, total_bytes));
    for segment in claim.segments() {
        let some = segment.len_bytes.min(left);
        copies.push(claim.memory(segment.entry), segment.ptr, at, some);
        (at, left) = (at.wrapping_add(some), left - some);
    }
    outcome
}

/// Notes the copies of a chunk into the bounce buffer, and the writes that follow. Ranges that cuFile takes are written at once.
pub(super) fn note_writes(
    claim: &Claim,
    device: &Device,
    Contents { bounce, copies, .. }: &mut Contents,
    writes: &mut Vec<Write>,
) -> Outcome {
    let (mut end, mut bytes) = (0, 0);
    let mut behind_bytes: usize = claim.segments().map(|segment| segment.len_bytes).sum();
    for run in adjacent(claim.segments()) {
        let Run { file, entry, offset, len_bytes, .. } = run;
        behind_bytes -= len_bytes;
        if let Some(handle) = file.cufile(len_bytes) {
            for segment in run.segments() {
                let memory = claim.memory(segment.entry).part(segment.ptr, segment.len_bytes);
                let outcome = file.write_cufile(handle, &memory, segment.offset);
                file.count_write(file.cufile_way(), segment.len_bytes, &outcome);
                outcome.map_err(|stop| stop.after(bytes))?;
                bytes += segment.len_bytes;
            }
            continue;
        }
        bounce.pin(device);
        let room_bytes = bounce.len_bytes().saturating_sub(behind_bytes);
        let start = file.place_for_write(end, offset, len_bytes, room_bytes);
        end = start + len_bytes;
        let mut at = start;
        for segment in run.segments() {
            let target = bounce.part(at, segment.len_bytes).map_err(|error| Stop::failed(bytes, error))?;
            copies.push(claim.memory(segment.entry), segment.ptr, target, segment.len_bytes);
            at += segment.len_bytes;
        }
        writes.push(Write { entry, offset, bounce: start..end, before_bytes: bytes });
        bytes += len_bytes;
    }
    Ok(())
}

/// Writes the contents of the bounce buffer to their files.
///
/// # Safety
/// The copies into the bounce buffer must have ended.
pub(super) unsafe fn write_out(writes: &[Write], claim: &Claim, bounce: &mut Bounce) -> Outcome {
    let end = writes.iter().map(|write| write.bounce.end).max().unwrap_or(0);
    let start = bounce.part(0, end).map_err(|error| Stop::failed(0, error))?;
    let spans = writes.iter().map(|Write { offset, bounce, .. }| Span {
        offset: *offset,
        len_bytes: bounce.len(),
        ptr: start.wrapping_add(bounce.start),
    });
    // SAFETY: the caller's promise.
    let mut mapped_bytes = unsafe { write_mapped(claim, Way::BOUNCED, spans) }?;
    for Write { entry, offset, bounce, before_bytes } in writes {
        // SAFETY: as above.
        let source = unsafe { slice::from_raw_parts(start.add(bounce.start), bounce.len()) };
        let done = mapped_bytes.min(source.len());
        mapped_bytes -= done;
        if done < source.len() {
            let (file, rest) = (claim.entry(*entry).file, *offset + done as u64);
            let outcome = file.write_bytes(&source[done..], rest);
            file.count_write(Way::BOUNCED, source.len() - done, &outcome);
            outcome.map_err(|stop| stop.after(*before_bytes + done))?;
        }
    }
    Ok(())
}

/// Reads a chunk to host memory, through the bounce buffer only where `O_DIRECT` needs one. Its requests count as `way`.
pub(super) fn read_to_host(claim: &Claim, way: Way, bounce: &mut Bounce) -> Outcome {
    if let Method::Mapping(mapping) = claim.method() {
        let spans = claim.segments().map(|segment| segment.span());
        // SAFETY: this is host memory, of which the transfer has exclusive use.
        return unsafe { read_mapped(mapping, claim, way, spans) };
    }
    let mut bytes = 0;
    for run in adjacent(claim.segments()) {
        let Run { file, offset, ptr, len_bytes, .. } = run;
        let spans = run.segments().map(|segment| segment.span());
        // SAFETY: this is host memory, of which the transfer has exclusive use.
        let outcome = unsafe {
            match (file.stored(), run.count) {
                (Some(stored), _) => read_stored(stored, claim, spans, None),
                (None, 1) => file.read_to_host(ptr, len_bytes, offset, bounce),
                (None, _) => file.read_adjacent_to_host(spans, len_bytes, offset, bounce),
            }
        };
        file.count_read(way, len_bytes, &outcome);
        outcome.map_err(|stop| stop.after(bytes))?;
        bytes += len_bytes;
    }
    Ok(())
}

/// As [`read_to_host`], for a write.
pub(super) fn write_from_host(claim: &Claim, way: Way, bounce: &mut Bounce) -> Outcome {
    // SAFETY: this is host memory, which the transfer keeps.
    let mut mapped_bytes =
        unsafe { write_mapped(claim, way, claim.segments().map(|segment| segment.span())) }?;
    let mut bytes = mapped_bytes;
    let rest = claim.segments().filter_map(move |segment| {
        let done = mapped_bytes.min(segment.len_bytes);
        mapped_bytes -= done;
        (done < segment.len_bytes).then(|| Segment {
            offset: segment.offset + done as u64,
            ptr: segment.ptr.wrapping_add(done),
            len_bytes: segment.len_bytes - done,
            ..segment
        })
    });
    for run in adjacent(rest) {
        let Run { file, offset, ptr, len_bytes, .. } = run;
        let spans = run.segments().map(|segment| segment.span());
        // SAFETY: as above.
        let outcome = unsafe {
            match run.count {
                1 => file.write_from_host(ptr, len_bytes, offset, bounce),
                _ => file.write_adjacent_from_host(spans, len_bytes, offset, bounce),
            }
        };
        file.count_write(way, len_bytes, &outcome);
        outcome.map_err(|stop| stop.after(bytes))?;
        bytes += len_bytes;
    }
    Ok(())
}

/// Reads spans of stored contents to their memory, or one behind the other to a bounce buffer. A cancelled transfer ends the
/// read.
///
/// # Safety
/// The memory must be valid for writes of all bytes of the spans, and nothing else may use it.
unsafe fn read_stored(
    stored: &Stored,
    claim: &Claim,
    spans: impl Iterator<Item = Span>,
    bounce: Option<*mut u8>,
) -> Outcome {
    let mut next = bounce;
    let spans = spans
        .map(|span| {
            let ptr = next.unwrap_or(span.ptr);
            next = next.map(|next| next.wrapping_add(span.len_bytes));
            Span { ptr, ..span }
        })
        .collect();
    // SAFETY: the caller's promise.
    unsafe { stored.read(spans, bounce.is_some(), &|| claim.is_unwanted()) }
}

/// Reads the checked spans of a chunk from a mapping of its file.
///
/// # Safety
/// As for [`Mapping::read`].
unsafe fn read_mapped(
    mapping: &Mapping,
    claim: &Claim,
    way: Way,
    spans: impl Iterator<Item = Span> + Clone,
) -> Outcome {
    let Some(first) = claim.segments().next() else { return Ok(()) };
    let bytes = claim.segments().map(|segment| segment.len_bytes).sum();
    // SAFETY: the caller's promise.
    let outcome = unsafe { first.file.read_mapped(mapping, spans) };
    first.file.count_read(way, bytes, &outcome);
    outcome
}

/// Writes the spans of a chunk to the mapping or to new pages of its file, if that is the method. The last chunk goes by a system
/// call. Returns the bytes written, in order.
///
/// # Errors
/// A write call beside the new pages that failed.
///
/// # Safety
/// As for [`Mapping::write`].
unsafe fn write_mapped(claim: &Claim, way: Way, spans: impl Iterator<Item = Span>) -> Result<usize, Stop> {
    let Some(Segment { file, .. }) = claim.segments().next().filter(|_| !claim.is_last()) else {
        return Ok(0);
    };
    // SAFETY: the caller's promise.
    let written = unsafe {
        match claim.method() {
            Method::Calls => return Ok(0),
            Method::Mapping(mapping) => Ok(mapping.write(spans)),
            Method::Fill(fill) => fill.write(file, spans),
        }
    };
    let bytes = written.as_ref().map_or_else(|stop| stop.done_bytes, |bytes| *bytes);
    file.count_write(way, bytes, &Ok(()));
    written
}

/// Segments that follow each other in one file. Those of stored contents may be apart.
struct Run<'a, I> {
    file: &'a OpenFile,
    /// The entry of the first segment.
    entry: usize,
    offset: u64,
    ptr: *mut u8,
    len_bytes: usize,
    /// The number of segments, the first of `segments`.
    count: usize,
    segments: I,
}

impl<'a, I: Iterator<Item = Segment<'a>> + Clone> Run<'a, I> {
    fn segments(&self) -> impl Iterator<Item = Segment<'a>> {
        self.segments.clone().take(self.count)
    }
}

/// Joins segments that follow each other in one file into runs, and all those of one storage.
fn adjacent<'a, I: Iterator<Item = Segment<'a>> + Clone>(segments: I) -> impl Iterator<Item = Run<'a, I>> {
    let (mut here, mut rest) = (segments.clone(), segments);
    let mut coming = rest.next();
    iter::from_fn(move || {
        let Segment { file, entry, offset, ptr, len_bytes } = coming?;
        let mut run = Run { file, entry, offset, ptr, len_bytes, count: 1, segments: here.clone() };
        loop {
            here = rest.clone();
            coming = rest.next();
            match coming {
                Some(next)
                    if ptr::eq(next.file, file)
                        && (file.stored().is_some() || next.offset == offset + run.len_bytes as u64) =>
                {
                    run.len_bytes += next.len_bytes;
                    run.count += 1;
                }
                _ => return Some(run),
            }
        }
    })
}
