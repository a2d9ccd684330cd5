//! A thread of a case, which carries out its plan and notes the results.

use std::ops::Range;
use std::path::{Path, PathBuf};

use cufile::cuda::{DeviceBuffer, Stream};
use cufile::{BufSlice, IoBuf};
use gpufile::formats::safetensors::{Checkpoint, TensorData, save};
use gpufile::formats::{Dtype, SaveOptions, npy};
use gpufile::{Engine, File, IoFuture, IoRange, OpenOptions, Request, Result, page_cache};
use testkit::in_flight::block_on;
use testkit::memory::Memory;
use testkit::ways::{Call, Outcomes};

use crate::memory::Noise;
use crate::model::Expected;
use crate::plan::{Fate, How, ManyHow, Op, Piece, Place, ThreadPlan};

pub struct OwnSlot {
    pub number: usize,
    pub file: usize,
    pub start: u64,
    pub expected: Expected,
    /// The end of acknowledged bytes.
    pub acknowledged_end: usize,
    /// True if a dropped write may still be in flight.
    is_retired: bool,
}

impl OwnSlot {
    pub fn new(number: usize, file: usize, start: u64, bytes: Vec<u8>, acknowledged_end: usize) -> Self {
        Self { number, file, start, expected: Expected::new(bytes), acknowledged_end, is_retired: false }
    }
}

pub struct ReadBack {
    pub buffer: Memory,
    pub parts: Vec<(usize, usize, Expected)>,
    pub text: String,
}

#[derive(Default)]
pub struct Saved {
    pub path: PathBuf,
    pub array: bool,
    /// The contents last acknowledged, and possible later ones.
    pub acknowledged: Option<Vec<(usize, usize)>>,
    pub doubts: Vec<Vec<(usize, usize)>>,
}

impl Saved {
    pub fn possible(&self) -> Vec<Vec<(usize, usize)>> {
        self.acknowledged.iter().chain(&self.doubts).cloned().collect()
    }
}

/// The place of each loaded tensor, and the possible contents.
pub struct LoadedBack {
    pub buffer: DeviceBuffer,
    pub ranges: Vec<Range<usize>>,
    pub possible: Vec<Vec<(usize, usize)>>,
}

#[derive(Default)]
pub struct Report {
    pub slots: Vec<OwnSlot>,
    pub read: Vec<ReadBack>,
    pub saved: [Saved; 2],
    pub loaded: Vec<LoadedBack>,
    pub lengths: Vec<(usize, u64)>,
    pub done: Vec<&'static str>,
    pub failures: Vec<String>,
    pub dropped: usize,
}

pub struct Worker<'a> {
    pub noise: &'a Noise,
    pub engine: &'a Engine,
    pub options: &'a [OpenOptions],
    pub paths: &'a [PathBuf],
    pub files: Vec<Option<File>>,
    /// Lengths in bytes that files can reach.
    ends: &'a [u64],
    pub stream: Stream,
    /// Buffers of transfers that own theirs, in the order of the operations.
    pub buffers: Vec<Option<Memory>>,
    pub report: Report,
    pending: Vec<Pending>,
}

struct Pending {
    transfer: IoFuture<Memory>,
    piece: Piece,
    is_write: bool,
    fate: Fate,
}

pub struct Start<'a> {
    pub noise: &'a Noise,
    pub engine: &'a Engine,
    pub options: &'a [OpenOptions],
    pub paths: &'a [PathBuf],
    pub files: &'a [File],
    pub ends: &'a [u64],
    pub folder: &'a Path,
}

fn end(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.noise + piece.len_bytes).max().unwrap_or(0)
}

/// Returns the number of bytes moved, also before a failure.
fn done(outcome: &Result<usize>) -> usize {
    outcome.as_ref().map_or_else(gpufile::Error::bytes_done, |count| *count)
}

fn bytes_of(ready: &[(File, &Piece)]) -> usize {
    ready.iter().map(|(_, piece)| piece.len_bytes).sum()
}

impl<'a> Worker<'a> {
    pub fn new(start: &Start<'a>, number: usize, plan: &ThreadPlan, slots: Vec<OwnSlot>) -> Self {
        let Start { noise, engine, options, paths, files, ends, folder } = *start;
        let bytes = &noise.bytes;
        let target = |place| if place == Place::Registered { Place::Device(0) } else { place };
        let buffer = |op: &Op| match op {
            Op::Write { piece, place, how } if how.way.is_owner() => {
                Some(noise.copy(*place, &bytes[piece.noise..][..piece.len_bytes]))
            }
            Op::WriteMany { pieces, place, how: ManyHow::File(how) } if how.way.is_owner() => {
                Some(noise.copy(*place, &bytes[..end(pieces)]))
            }
            Op::Read { piece, place, .. } => Some(noise.copy(target(*place), &vec![0xee; piece.len_bytes])),
            Op::ReadMany { pieces, place, .. } => Some(noise.copy(target(*place), &vec![0xee; end(pieces)])),
            _ => None,
        };
        let saved = ["safetensors", "npy"].map(|kind| Saved {
            path: folder.join(format!("saved by {number}.{kind}")),
            array: kind == "npy",
            ..Saved::default()
        });
        Self {
            noise,
            engine,
            options,
            paths,
            files: files.iter().map(|file| (!plan.opens).then(|| file.clone())).collect(),
            ends,
            stream: noise.devices[0].stream().unwrap(),
            buffers: plan.ops.iter().map(buffer).collect(),
            report: Report { slots, saved, ..Report::default() },
            pending: Vec::new(),
        }
    }

    pub fn run(&mut self, plan: &ThreadPlan) {
        if plan.opens {
            (0..self.files.len()).for_each(|file| self.open(file));
        }
        for (number, op) in plan.ops.iter().enumerate() {
            let buffer = self.buffers[number].take();
            self.one(op, buffer);
        }
        while !self.pending.is_empty() {
            self.settle(0);
        }
    }

    fn one(&mut self, op: &Op, buffer: Option<Memory>) {
        let before = (self.report.failures.len(), self.report.dropped);
        match op {
            Op::Write { piece, place, how } => self.write(piece, *place, *how, buffer),
            Op::Read { piece, how, .. } => self.read(piece, *how, buffer.unwrap()),
            Op::WriteMany { pieces, place, how } => self.write_many(pieces, *place, *how, buffer),
            Op::ReadMany { pieces, how, .. } => self.read_many(pieces, *how, buffer.unwrap()),
            Op::Save { array, place, sync, tensors } => self.save(*array, *place, *sync, tensors),
            Op::Load => self.load(),
            Op::Open { file } => self.open(*file),
            Op::Extend { file } => {
                let end = self.ends[*file];
                let extend = |file: &File| file.set_len(end);
                let result = self.files[*file].as_ref().map(extend);
                if let Some(result) = result
                    && self.note("extend", result.map_err(|error| error.to_string())).is_some()
                {
                    self.report.lengths.push((*file, end));
                }
            }
            Op::Uncache { file } => {
                if let Some(file) = &self.files[*file] {
                    let result = page_cache::evict(file, 0..u64::MAX);
                    self.note("uncache", result.map_err(|error| error.to_string()));
                }
            }
            Op::Sync { file } => {
                if let Some(file) = &self.files[*file] {
                    let result = file.sync_all();
                    self.note("sync", result.map_err(|error| error.to_string()));
                }
            }
            Op::Release => drop(self.engine.release_buffers()),
        }
        if before == (self.report.failures.len(), self.report.dropped) {
            self.report.done.push(op.name());
        }
    }

    fn note<T>(&mut self, what: &str, result: std::result::Result<T, String>) -> Option<T> {
        result.map_err(|error| self.report.failures.push(format!("{what}: {error}"))).ok()
    }

    fn open(&mut self, file: usize) {
        // The old file goes first, as in a program that opens a file anew after a failure.
        self.files[file] = None;
        let result = self.options[file].open(&self.paths[file]);
        self.files[file] = self.note("open", result.map_err(|error| error.to_string()));
    }

    fn slot(&mut self, piece: &Piece) -> &mut OwnSlot {
        self.report.slots.iter_mut().find(|slot| slot.number == piece.slot).expect("a slot of the thread")
    }

    /// Returns the file when nothing else is in flight there, or `None` if the slot or the file is of no use any
    /// more.
    fn ready(&mut self, piece: &Piece) -> Option<File> {
        let blocks = |piece: &Piece, start: u64| {
            let start = start + piece.start as u64;
            start / 4096..(start + piece.len_bytes as u64).div_ceil(4096)
        };
        let (start, file) = (self.slot(piece).start, self.slot(piece).file);
        let wanted = blocks(piece, start);
        let meets = |one: &Pending| {
            let slot = self.report.slots.iter().find(|slot| slot.number == one.piece.slot).unwrap();
            let under_way = blocks(&one.piece, slot.start);
            slot.file == file && under_way.start < wanted.end && wanted.start < under_way.end
        };
        if let Some(last) = self.pending.iter().rposition(meets) {
            (0..=last).for_each(|_| self.settle(0));
        }
        let is_retired = self.slot(piece).is_retired;
        self.files[file].clone().filter(|_| !is_retired)
    }

    fn offset(&mut self, piece: &Piece) -> u64 {
        self.slot(piece).start + piece.start as u64
    }

    fn wrote(&mut self, piece: &Piece, done: usize) {
        let noise = self.noise;
        let slot = self.slot(piece);
        slot.expected.acknowledge(piece.start, &noise.bytes[piece.noise..][..done]);
        if done > 0 {
            slot.acknowledged_end = slot.acknowledged_end.max(piece.start + done);
        }
        slot.expected.doubt(piece.start + done, piece.len_bytes - done, piece.noise + done);
    }

    /// Acknowledges the bytes before a failure, too.
    fn write_ended(&mut self, piece: &Piece, result: Result<()>) {
        self.wrote(piece, result.as_ref().map_or_else(gpufile::Error::bytes_done, |()| piece.len_bytes));
        self.note("write", result.map_err(|error| error.to_string()));
    }

    fn write(&mut self, piece: &Piece, place: Place, how: How, buffer: Option<Memory>) {
        let Some(file) = self.ready(piece) else { return };
        let offset = self.offset(piece);
        let noise = self.noise.of(place);
        let source = noise.part(piece.noise..piece.noise + piece.len_bytes);
        let file = match (how.alike.of)(&file) {
            Ok(file) => file,
            Err(error) => return self.write_ended(piece, Err(error)),
        };
        let result = match how.way.call {
            Call::Write(write) => write(&file, &source, offset),
            Call::Start(start) => {
                let transfer = start(&file, buffer.unwrap(), offset);
                return self.go_on(transfer, piece, true, how.fate);
            }
            Call::StartOnStream(start) => {
                let transfer = start(&file, &self.stream, buffer.unwrap(), offset);
                return self.go_on(transfer, piece, true, how.fate);
            }
            _ => unreachable!("{:?} writes no range", how.way),
        };
        self.write_ended(piece, result);
    }

    fn read(&mut self, piece: &Piece, how: How, mut buffer: Memory) {
        let Some(file) = self.ready(piece) else { return };
        let offset = self.offset(piece);
        // The file may end beyond that.
        if piece.start + piece.len_bytes > self.slot(piece).acknowledged_end {
            return;
        }
        let file = match (how.alike.of)(&file) {
            Ok(file) => file,
            Err(error) => return self.was_read(vec![(0, piece.clone())], buffer, Err(error)),
        };
        let result = match how.way.call {
            Call::Read(read) => read(&file, &mut buffer.part_mut(0..piece.len_bytes), offset),
            Call::Start(start) => {
                let transfer = start(&file, buffer, offset);
                return self.go_on(transfer, piece, false, how.fate);
            }
            Call::StartOnStream(start) => {
                let transfer = start(&file, &self.stream, buffer, offset);
                return self.go_on(transfer, piece, false, how.fate);
            }
            _ => unreachable!("{:?} reads no range", how.way),
        };
        let result = result.map(|count| {
            assert_eq!(count, piece.len_bytes, "bytes of {:?} before the end of the file", how.way);
        });
        self.was_read(vec![(0, piece.clone())], buffer, result);
    }

    /// Keeps bytes read before a failure, too; they are compared when nothing fails any more.
    fn was_read(&mut self, mut parts: Vec<(usize, Piece)>, buffer: Memory, result: Result<()>) {
        if let Err(error) = &result {
            let (entry, done) = match error {
                gpufile::Error::Entry { entry, error, .. } => (*entry, error.bytes_done()),
                error => (0, error.bytes_done()),
            };
            let failed = parts.swap_remove(entry);
            parts = vec![(failed.0, Piece { len_bytes: done, ..failed.1 })];
        }
        self.note("read", result.map_err(|error| error.to_string()));
        let part = |(at, piece): (usize, Piece)| {
            let slot = self.slot(&piece);
            (at, piece.len_bytes, slot.expected.part(piece.start..piece.start + piece.len_bytes))
        };
        let text = format!("{parts:?}");
        let parts = parts.into_iter().map(part).collect();
        self.report.read.push(ReadBack { buffer, parts, text });
    }

    fn go_on(&mut self, transfer: IoFuture<Memory>, piece: &Piece, is_write: bool, fate: Fate) {
        if fate == Fate::Dropped {
            self.report.dropped += 1;
            drop(transfer);
            if is_write {
                self.wrote(piece, 0);
                self.slot(piece).is_retired = true;
            }
            return;
        }
        self.pending.push(Pending { transfer, piece: piece.clone(), is_write, fate });
    }

    fn settle(&mut self, number: usize) {
        let Pending { transfer, piece, is_write, fate } = self.pending.remove(number);
        let (result, buffer) = match fate {
            Fate::Cancelled => {
                let (result, buffer) = transfer.cancel();
                match result {
                    Ok(count) if count < piece.len_bytes => {
                        return self.cancelled(&piece, is_write, count, buffer);
                    }
                    result => (result, buffer),
                }
            }
            Fate::Awaited => block_on(transfer),
            _ => transfer.wait(),
        };
        let result = result.map(|count| assert_eq!(count, piece.len_bytes, "bytes of {piece:?}"));
        if is_write {
            self.write_ended(&piece, result);
        } else {
            self.was_read(vec![(0, piece)], buffer, result);
        }
    }

    fn cancelled(&mut self, piece: &Piece, is_write: bool, count: usize, buffer: Memory) {
        self.report.dropped += 1;
        if is_write {
            self.wrote(piece, count);
        } else {
            self.was_read(vec![(0, Piece { len_bytes: count, ..piece.clone() })], buffer, Ok(()));
        }
    }

    fn write_many(&mut self, pieces: &[Piece], place: Place, how: ManyHow, own: Option<Memory>) {
        let ready: Vec<_> = pieces.iter().filter_map(|piece| Some((self.ready(piece)?, piece))).collect();
        let buffer = self.noise.of(place);
        let Some((first, _)) = ready.first() else { return };
        let ranges = self.ranges(&ready);
        let result = match how {
            ManyHow::File(How { way, alike, .. }) => (alike.of)(first).and_then(|file| match way.call {
                Call::WriteList(write) => write(&file, &buffer.part(0..buffer.len_bytes()), &ranges),
                Call::StartList(start) => start(&file, own.unwrap(), ranges.clone()).0,
                Call::StartListOnStream(start) => start(&file, &self.stream, own.unwrap(), &ranges).0,
                _ => unreachable!("{way:?} writes no list"),
            }),
            ManyHow::Engine => {
                let each = ready.iter().zip(&ranges);
                let requests: Vec<_> = each
                    .map(|((file, piece), range)| {
                        let source = buffer.part(piece.noise..piece.noise + piece.len_bytes);
                        Request { file, buffer: source, offset: range.file_offset }
                    })
                    .collect();
                self.engine.write_many(&requests).map(|()| Outcomes::All(bytes_of(&ready)))
            }
        };
        let mut ended = Ok(());
        for (number, (_, piece)) in ready.iter().enumerate() {
            let done = match &result {
                Ok(Outcomes::All(_)) => piece.len_bytes,
                Ok(Outcomes::Each(outcomes)) => done(&outcomes[number]),
                Err(gpufile::Error::Entry { entry, error, .. }) if *entry == number => error.bytes_done(),
                Err(_) => 0,
            };
            self.wrote(piece, done);
        }
        match result {
            Ok(Outcomes::All(count)) => assert_eq!(count, bytes_of(&ready), "bytes of {how:?}"),
            Ok(Outcomes::Each(outcomes)) => {
                ended = outcomes.into_iter().try_for_each(|outcome| outcome.map(drop))
            }
            Err(error) => ended = Err(error),
        }
        self.note("write many", ended.map_err(|error| error.to_string()));
    }

    fn ranges(&mut self, pieces: &[(File, &Piece)]) -> Vec<IoRange> {
        let range = |(_, piece): &(File, &Piece)| IoRange {
            file_offset: self.offset(piece),
            buffer_offset: piece.noise,
            len_bytes: piece.len_bytes,
        };
        pieces.iter().map(range).collect()
    }

    fn read_many(&mut self, pieces: &[Piece], how: ManyHow, mut buffer: Memory) {
        let mut ready = Vec::new();
        for piece in pieces {
            let is_there = piece.start + piece.len_bytes <= self.slot(piece).acknowledged_end;
            if is_there && let Some(file) = self.ready(piece) {
                ready.push((file, piece));
            }
        }
        let Some((first, _)) = ready.first() else { return };
        let ranges = self.ranges(&ready);
        let (result, buffer) = match how {
            ManyHow::File(How { way, alike, .. }) => match ((alike.of)(first), &way.call) {
                (Err(error), _) => (Err(error), buffer),
                (Ok(file), Call::ReadList(read)) => {
                    let len_bytes = buffer.len_bytes();
                    (read(&file, &mut buffer.part_mut(0..len_bytes), &ranges), buffer)
                }
                (Ok(file), Call::StartList(start)) => start(&file, buffer, ranges),
                (Ok(file), Call::StartListOnStream(start)) => start(&file, &self.stream, buffer, &ranges),
                _ => unreachable!("{way:?} reads no list"),
            },
            ManyHow::Engine => {
                let len_bytes = buffer.len_bytes();
                let mut rest = buffer.part_mut(0..len_bytes);
                let mut position = 0;
                let mut requests = Vec::new();
                for ((file, piece), range) in ready.iter().zip(ranges) {
                    let (_, behind) = rest.split_at(piece.noise - position);
                    let (target, behind) = behind.split_at(piece.len_bytes);
                    (rest, position) = (behind, piece.noise + piece.len_bytes);
                    requests.push(Request { file, buffer: target, offset: range.file_offset });
                }
                let result = self.engine.read_many(&mut requests);
                drop(requests);
                (result.map(|()| Outcomes::All(bytes_of(&ready))), buffer)
            }
        };
        let part =
            |(_, piece): (File, &Piece), len_bytes| (piece.noise, Piece { len_bytes, ..piece.clone() });
        match result {
            Ok(Outcomes::Each(outcomes)) => {
                let each = ready.into_iter().zip(&outcomes);
                let parts = each.map(|(ready, outcome)| part(ready, done(outcome))).collect();
                let failed = outcomes.into_iter().find_map(Result::err);
                self.note("read many", failed.map_or(Ok(()), |error| Err(error.to_string())));
                self.was_read(parts, buffer, Ok(()));
            }
            // The places of a list hold bytes of the file or zeros after a failure in a stream.
            Err(error) if matches!(how, ManyHow::File(How { way, .. }) if way.takes_stream()) => {
                self.note::<()>("read many", Err(error.to_string()));
            }
            result => {
                let wanted = bytes_of(&ready);
                let result = result.and_then(Outcomes::sum);
                let result = result.map(|count| assert_eq!(count, wanted, "bytes of {how:?}"));
                let parts = ready.into_iter().map(|ready| {
                    let len_bytes = ready.1.len_bytes;
                    part(ready, len_bytes)
                });
                self.was_read(parts.collect(), buffer, result);
            }
        }
    }

    fn save(&mut self, array: bool, place: Place, sync: bool, tensors: &[(usize, usize)]) {
        let noise = self.noise.of(place);
        let options = SaveOptions::new().files(&self.options[0]).sync(sync);
        let path = self.report.saved[usize::from(array)].path.clone();
        let slice = |(start, len_bytes): (usize, usize)| BufSlice::new(noise, start..start + len_bytes);
        let result = if array {
            let shape = [tensors[0].1 as u64];
            npy::write(path, "|u1", &shape, &slice(tensors[0]), &options)
        } else {
            let names: Vec<_> = (0..tensors.len()).map(|number| format!("tensor {number}")).collect();
            let shapes: Vec<_> = tensors.iter().map(|(_, len_bytes)| [*len_bytes as u64]).collect();
            let each = tensors.iter().zip(&names).zip(&shapes);
            let data: Vec<_> = each
                .map(|((tensor, name), shape)| TensorData::new(name, Dtype::U8, shape, slice(*tensor)))
                .collect();
            save(path, &data, &options).map(|saved| saved.len_bytes)
        };
        let saved = &mut self.report.saved[usize::from(array)];
        if result.is_ok() {
            saved.acknowledged = Some(tensors.to_vec());
            saved.doubts.clear();
        } else {
            saved.doubts.push(tensors.to_vec());
        }
        self.note("save", result.map_err(|error| error.to_string()));
    }
}

impl Worker<'_> {
    fn load(&mut self) {
        let saved = &self.report.saved[0];
        let possible = saved.possible();
        if saved.acknowledged.is_none() {
            return;
        }
        let load = || -> std::result::Result<LoadedBack, String> {
            let text = |error: gpufile::formats::Error| error.to_string();
            let model = Checkpoint::open_with([&saved.path], &self.options[0]).map_err(text)?;
            let loaded = model.load().to_device(&self.noise.devices[0]).map_err(text)?;
            let range = |number| loaded.tensor(&format!("tensor {number}")).expect("a tensor").range.clone();
            let ranges = (0..loaded.iter().len()).map(range).collect();
            Ok(LoadedBack { ranges, buffer: loaded.into_buffer(), possible })
        };
        let result = load();
        if let Some(loaded) = self.note("load", result) {
            self.report.loaded.push(loaded);
        }
    }
}

/// Writes and reads once more, by every call that has its own code.
pub fn still_works(noise: &Noise, file: &File, offset: u64) -> std::result::Result<(), String> {
    const LEN: usize = 70_000;
    let expected = &noise.bytes[..LEN];
    let text = |error: gpufile::Error| error.to_string();
    let (first, second) = (offset, offset + LEN as u64);
    for place in [Place::Host, Place::Device(0)] {
        let source = || noise.copy(place, expected);
        let target = || noise.copy(place, &[0; LEN]);
        file.write_all_at(&source(), first).map_err(text)?;
        let mut found = target();
        file.read_exact_at(&mut found, first).map_err(text)?;
        if found.to_vec().unwrap() != expected {
            return Err(format!("wrong bytes from {place:?} memory"));
        }
        let future = file.write_all_at_async(source(), second);
        future.wait().0.map_err(text)?;
        let stream = noise.devices[0].stream().map_err(|error| error.to_string())?;
        let (result, found) = file.read_at_on_stream(&stream, target(), second).wait();
        if result.map_err(text)? != LEN || found.to_vec().unwrap() != expected {
            return Err(format!("wrong bytes to {place:?} memory of a stream"));
        }
    }
    Ok(())
}
