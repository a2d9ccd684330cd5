//! Writing files whose tensors are packed, or plain again.
#![allow(
    clippy::disallowed_types,
    reason = "a channel and a lock end with the call that made them, on which no forked child goes on"
)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cufile::cuda::DeviceBuffer;
use cufile::{BufSlice, IoBuf as _, fork};

use super::super::headers::header::{Header, TensorInfo};
use super::super::headers::write::NewTensor;
use super::super::packed::names::{describe, kind_of};
use super::on_gpu::{self, OnGpu, Packed};
use crate::formats::packed::{
    Coder, Entry, GROUP, Histogram, Kind, Layout, Scratch, UNIT, count, front_bytes,
};
use crate::formats::save::begin_sync;
use crate::formats::{Dtype, FormatError};
use crate::gpu::gpus::Gpus;
use crate::host_bytes::host_bytes;
use crate::{Cause, Error, File, Request};

/// The share of its length above which a tensor stays as it is.
const WORTH: f64 = 0.97;
/// The bytes of a tensor that are encoded at a time, while those before are written.
const AT_ONCE: u64 = 32 << 20;
/// The values of a tensor that choose its tables, and of each run of them.
const SAMPLE: u64 = 1 << 20;
const RUN: u64 = 16 << 10;
/// The groups whose blocks are in one piece of memory.
const GROUPS: usize = 64;
/// The longest tensor that is packed, in bytes. The index counts up to 64 GiB.
const LONGEST: u64 = 60 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Packed,
    Plain,
}

/// The bytes of the tensors of a new file.
pub(super) trait Source<'s> {
    /// Reads bytes of a tensor, whose number counts from the first of the header.
    fn read(&mut self, number: usize, offset: u64, target: &mut [u8]) -> crate::Result<()>;

    /// Returns bytes of a tensor, if they are in memory.
    fn lent(&self, _number: usize, _range: Range<u64>) -> Option<BufSlice<'s>> {
        None
    }

    /// Returns whether the bytes come once, in the order of the header.
    fn is_stream(&self) -> bool {
        false
    }
}

/// Tensors in memory, and the file to which they are saved.
pub(super) struct InMemory<'a>(pub Vec<BufSlice<'a>>, pub &'a File);

impl<'s> Source<'s> for InMemory<'s> {
    fn read(&mut self, number: usize, offset: u64, target: &mut [u8]) -> crate::Result<()> {
        let range = offset as usize..offset as usize + target.len();
        copy(&self.0[number].slice(range), target, self.1)
    }

    fn lent(&self, number: usize, range: Range<u64>) -> Option<BufSlice<'s>> {
        Some(self.0[number].slice(range.start as usize..range.end as usize))
    }
}

pub(super) fn copy(from: &BufSlice<'_>, target: &mut [u8], file: &File) -> crate::Result<()> {
    if let Some(bytes) = host_bytes(from) {
        target.copy_from_slice(bytes);
        return Ok(());
    }
    let failed = |cause| Error::File { operation: "copy tensors for", path: file.path().to_owned(), cause };
    let copied = file.engine().cuda()?.copy(from, target);
    copied.map_err(|error| failed(error.into()))
}

/// Bytes of tensors that another thread sends in their order.
pub(super) struct Stream<'a> {
    pub bytes: Receiver<Vec<u8>>,
    pub file: &'a File,
    pub piece: Vec<u8>,
    pub done: usize,
}

impl Source<'_> for Stream<'_> {
    fn read(&mut self, _: usize, _: u64, target: &mut [u8]) -> crate::Result<()> {
        let mut filled = 0;
        while filled < target.len() {
            if self.done == self.piece.len() {
                let ended = |_| self.file.failed("append to", io::ErrorKind::UnexpectedEof.into());
                (self.piece, self.done) = (self.bytes.recv().map_err(ended)?, 0);
            }
            let count = (target.len() - filled).min(self.piece.len() - self.done);
            target[filled..filled + count].copy_from_slice(&self.piece[self.done..self.done + count]);
            (filled, self.done) = (filled + count, self.done + count);
        }
        Ok(())
    }

    fn is_stream(&self) -> bool {
        true
    }
}

pub(super) struct Writer<'a> {
    /// The header that a plain file of the tensors has.
    pub header: &'a Header,
    pub form: Form,
    pub metadata: BTreeMap<String, String>,
    /// True if the save waits for the storage.
    pub sync: bool,
}

/// Bytes to be written.
enum Bytes<'s> {
    Host(Cow<'s, [u8]>),
    /// The first of a buffer on a GPU.
    Gpu(DeviceBuffer, usize),
}

impl Bytes<'_> {
    fn as_slice(&self) -> BufSlice<'_> {
        match self {
            Self::Host(bytes) => BufSlice::from(&**bytes),
            Self::Gpu(buffer, len_bytes) => buffer.slice(..*len_bytes),
        }
    }
}

impl<'s, B: Into<Cow<'s, [u8]>>> From<B> for Bytes<'s> {
    fn from(bytes: B) -> Self {
        Self::Host(bytes.into())
    }
}

type Written<'s> = (u64, Bytes<'s>);

struct Way<'w, 's> {
    /// Takes what is to be written next.
    put: &'w dyn Fn(Vec<Written<'s>>) -> crate::Result<()>,
    spares: &'w Spares,
    values: Vec<u8>,
    threads: usize,
    on_gpu: OnGpu,
}

/// Memory of blocks that are in the file, for the next ones: the kernel would have to clear new pages.
#[derive(Default)]
struct Spares {
    on_host: Mutex<Vec<Vec<u8>>>,
    on_gpu: Mutex<Vec<DeviceBuffer>>,
}

impl Spares {
    fn take(&self, len_bytes: usize) -> Vec<u8> {
        let mut spare = list(&self.on_host).pop().unwrap_or_default();
        spare.clear();
        spare.reserve(len_bytes);
        spare
    }

    fn take_on_gpu(&self) -> Option<DeviceBuffer> {
        list(&self.on_gpu).pop()
    }

    fn put(&self, spare: Bytes<'_>) {
        match spare {
            // Longer memory has the bytes of a tensor that is not packed.
            Bytes::Host(Cow::Owned(bytes)) if bytes.capacity() <= 2 * GROUPS * GROUP * size_of::<f32>() => {
                list(&self.on_host).push(bytes);
            }
            Bytes::Host(_) => {}
            Bytes::Gpu(buffer, _) => list(&self.on_gpu).push(buffer),
        }
    }
}

fn list<T>(of: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Stored<'a> {
    info: TensorInfo<'a>,
    packed: Option<[u64; 1]>,
}

impl<'a> Stored<'a> {
    fn as_new(&self) -> NewTensor<'_> {
        match &self.packed {
            Some(shape) => NewTensor { name: self.info.name, dtype: Dtype::U8, shape },
            None => plain(&self.info),
        }
    }
}

fn plain<'a>(info: &TensorInfo<'a>) -> NewTensor<'a> {
    NewTensor { name: info.name, dtype: info.dtype, shape: info.shape }
}

impl Writer<'_> {
    /// Returns the head of a file with these tensors. It has at least `least_bytes` bytes.
    fn head(
        &self,
        tensors: &[Stored<'_>],
        least_bytes: usize,
    ) -> std::result::Result<(Header, Vec<u8>), FormatError> {
        let mut metadata = self.metadata.clone();
        if self.form == Form::Packed {
            let packed = tensors.iter().filter(|tensor| tensor.packed.is_some());
            describe(&mut metadata, packed.map(|tensor| plain(&tensor.info)))?;
        }
        Header::in_order(tensors.iter().map(Stored::as_new), metadata, least_bytes)
    }

    /// Returns the number of bytes before the data, which suffice for each outcome.
    pub fn room(&self) -> std::result::Result<usize, FormatError> {
        /// The text about a packed tensor is the longest, and grows with its length.
        const LONGER: u64 = 1 << 20;
        const ALIGNMENT: usize = 64;
        let longest = self.header.tensors().map(|info| {
            let kind =
                kind_of(info.dtype).filter(|_| self.form == Form::Packed && info.len_bytes() <= LONGEST);
            Stored { packed: kind.map(|_| [info.len_bytes() + LONGER]), info }
        });
        let stored: Vec<_> = longest.collect();
        let (_, head) = self.head(&stored, 0)?;
        Ok(if self.form == Form::Packed { head.len().next_multiple_of(ALIGNMENT) } else { head.len() })
    }

    /// Writes the file: the tensors, and then the head in the room before them. Returns its length in bytes.
    pub fn write<'s>(&self, source: &mut dyn Source<'s>, to: &File) -> crate::Result<u64> {
        let spares = &Spares::default();
        fork::scope(|scope| {
            let (send, receive) = sync_channel::<Vec<Written<'s>>>(1);
            let write = move || {
                receive.into_iter().try_for_each(|written| {
                    let requests = written.iter().map(|(offset, bytes)| Request {
                        file: to,
                        buffer: bytes.as_slice(),
                        offset: *offset,
                    });
                    let outcome = to.engine().write_many(&requests.collect::<Vec<_>>());
                    if let (true, [(start, _), ..], Some((last, bytes))) =
                        (self.sync, &written[..], written.last())
                    {
                        begin_sync(to, *start..*last + bytes.as_slice().len_bytes() as u64);
                    }
                    written.into_iter().for_each(|(_, bytes)| spares.put(bytes));
                    outcome
                })
            };
            let writing = scope.spawn("gpufile-save", write);
            let writing = writing.map_err(|error| to.failed("start a thread for", error))?;
            // The error of the thread takes the place of this one.
            let ended = |_| to.failed("write", io::ErrorKind::BrokenPipe.into());
            let put = |written| send.send(written).map_err(ended);
            let threads = to.engine().settings().threads;
            let way = Way { put: &put, spares, values: Vec::new(), threads, on_gpu: OnGpu::default() };
            let made = self.make(source, to, way);
            drop(send);
            writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let len_bytes = made?;
            // A tensor that was to be packed may have had more bytes.
            to.set_len(len_bytes)?;
            Ok(len_bytes)
        })
    }

    fn make<'s>(&self, source: &mut dyn Source<'s>, to: &File, mut way: Way<'_, 's>) -> crate::Result<u64> {
        let invalid = |error: FormatError| Error::File {
            operation: "write the header of",
            path: to.path().to_owned(),
            cause: Cause::Invalid(error.to_string()),
        };
        let room = self.room().map_err(invalid)?;
        let mut at = room as u64;
        let mut infos: Vec<_> = self.header.tensors().enumerate().collect();
        if !source.is_stream() {
            // Packed tensors are multiples of 16 bytes. So all of them begin at such, where the GPU can use what `O_DIRECT` reads.
            infos.sort_by_key(|(_, info)| self.kind(info).is_none());
        }
        let mut tensors = Vec::with_capacity(infos.len());
        for (number, info) in infos {
            let packed = self.pack((number, &info), source, (to, at), &mut way)?;
            at += packed.unwrap_or(info.len_bytes());
            tensors.push(Stored { info, packed: packed.map(|len_bytes| [len_bytes]) });
        }
        let (header, head) = self.head(&tensors, room).map_err(invalid)?;
        if (head.len(), header.file_len_bytes()) != (room, at) {
            return Err(invalid(FormatError::Packed {
                tensor: None,
                problem: format!("it has {} bytes and room for {room}", head.len()),
            }));
        }
        (way.put)(vec![(0, head.into())])?;
        Ok(at)
    }

    fn kind(&self, info: &TensorInfo<'_>) -> Option<Kind> {
        kind_of(info.dtype).filter(|_| self.form == Form::Packed && info.len_bytes() <= LONGEST)
    }

    /// Packs a tensor, or writes it as it is. Returns its length in the file if it is packed.
    fn pack<'s>(
        &self,
        (number, info): (usize, &TensorInfo<'_>),
        source: &mut dyn Source<'s>,
        (to, at): (&File, u64),
        way: &mut Way<'_, 's>,
    ) -> crate::Result<Option<u64>> {
        let len_bytes = info.len_bytes();
        let most_bytes = most_bytes(len_bytes);
        let kind = self.kind(info);
        let front = front_bytes(info.elements()).filter(|front| *front as u64 <= most_bytes);
        let mut packing = None;
        if let (Some(kind), false) = (kind, source.is_stream()) {
            let histogram = sample(kind, len_bytes, |offset, some| source.read(number, offset, some))?;
            packing = Packing::new(kind, info.elements(), &histogram);
        }
        let mut done = 0;
        while done < len_bytes {
            let on_gpu = match (&mut packing, front) {
                (Some(packing), Some(front)) => {
                    let range = done..len_bytes.min(done + on_gpu::AT_ONCE);
                    let lent = source.lent(number, range.clone()).filter(|lent| host_bytes(lent).is_none());
                    let gpus = to.engine().gpus();
                    let written =
                        lent.and_then(|lent| packing.add_on_gpu(&lent, at + front as u64, way, gpus));
                    written.map(|written| (written, range.end))
                }
                _ => None,
            };
            let (written, end) = match on_gpu {
                Some(packed) => packed,
                None => {
                    let range = done..len_bytes.min(done + AT_ONCE);
                    let lent = source.lent(number, range.clone()).and_then(|lent| host_bytes(&lent));
                    let mut values = mem::take(&mut way.values);
                    if lent.is_none() {
                        values.resize((range.end - range.start) as usize, 0);
                        source.read(number, done, &mut values)?;
                    }
                    let some = lent.unwrap_or(&values);
                    if let (Some(kind), true, 0) = (kind, source.is_stream(), done) {
                        let histogram = sample(kind, some.len() as u64, |offset, target| {
                            target.copy_from_slice(&some[offset as usize..offset as usize + target.len()]);
                            Ok(())
                        })?;
                        packing = Packing::new(kind, info.elements(), &histogram);
                    }
                    let written = match (&mut packing, front) {
                        (Some(packing), Some(front)) => {
                            let written = packing.add(some, at + front as u64, way);
                            way.values = values;
                            written
                        }
                        _ => vec![(at + done, lent.map_or(Bytes::from(values), Bytes::from))],
                    };
                    (written, range.end)
                }
            };
            (way.put)(written)?;
            done = end;
            let len_bytes =
                packing.as_ref().zip(front).map_or(0, |(packing, front)| packing.end + front as u64);
            if len_bytes > most_bytes && !source.is_stream() {
                // It is written again, as it is.
                (packing, done) = (None, 0);
            }
        }
        let Some(Packing { layout, .. }) = packing.filter(|_| front.is_some()) else { return Ok(None) };
        (way.put)(vec![(at, layout.to_bytes().into())])?;
        Ok(Some(layout.len_bytes()))
    }
}

struct Packing {
    coder: Coder,
    layout: Layout,
    end: u64,
}

impl Packing {
    /// Returns `None` if a tensor with these exponents is not worth it.
    fn new(kind: Kind, values: u64, histogram: &Histogram) -> Option<Self> {
        let coder = Coder::new(kind, histogram);
        let layout = Layout { kind, values, tables: coder.tables(), entries: Vec::new() };
        (coder.share(histogram) <= WORTH).then_some(Self { coder, layout, end: 0 })
    }

    /// Encodes the next values. Returns their blocks, the first of which is at `start` in the file.
    fn add<'s>(&mut self, values: &[u8], start: u64, way: &Way<'_, 's>) -> Vec<Written<'s>> {
        let pieces = encode(&self.coder, values, way);
        let place = |(blocks, entries): Piece| {
            let (units, offset) = ((self.end / UNIT as u64) as u32, start + self.end);
            self.layout
                .entries
                .extend(entries.iter().map(|entry| Entry { end: units + entry.end, ..*entry }));
            self.end += blocks.len() as u64;
            (offset, blocks.into())
        };
        pieces.into_iter().map(place).collect()
    }

    /// The same on the GPU of the values. Returns `None` if the host has to do it.
    fn add_on_gpu<'s>(
        &mut self,
        values: &BufSlice<'_>,
        start: u64,
        way: &mut Way<'_, 's>,
        gpus: &Gpus,
    ) -> Option<Vec<Written<'s>>> {
        let spares = way.spares;
        let Packed { blocks, len_bytes, entries } =
            way.on_gpu.pack(gpus, &self.coder, values, || spares.take_on_gpu())?;
        let (units, offset) = ((self.end / UNIT as u64) as u32, start + self.end);
        self.layout.entries.extend(entries.iter().map(|entry| Entry { end: units + entry.end, ..*entry }));
        self.end += len_bytes as u64;
        Some(vec![(offset, Bytes::Gpu(blocks, len_bytes))])
    }
}

/// Counts the exponents of a tensor, or of runs of it if it is long.
fn sample(
    kind: Kind,
    len_bytes: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> crate::Result<()>,
) -> crate::Result<Histogram> {
    let mut histogram = [0; 256];
    let (run, most) = (RUN * kind.value_bytes() as u64, SAMPLE * kind.value_bytes() as u64);
    let step = if len_bytes <= most { run } else { len_bytes / (most / run) / run * run };
    let mut buffer = vec![0; run as usize];
    for start in (0..len_bytes).step_by(step as usize) {
        let some = &mut buffer[..(len_bytes - start).min(run) as usize];
        read(start, some)?;
        count(kind, some, &mut histogram);
    }
    Ok(histogram)
}

/// Returns the most bytes that the packed form of a tensor with `len_bytes` bytes may have.
fn most_bytes(len_bytes: u64) -> u64 {
    (len_bytes as f64 * WORTH) as u64
}

/// The blocks of some groups, and their entries, whose ends count from the first.
type Piece = (Vec<u8>, Vec<Entry>);

/// Encodes values with several threads.
fn encode(coder: &Coder, values: &[u8], way: &Way<'_, '_>) -> Vec<Piece> {
    let group_bytes = GROUP * coder.kind().value_bytes();
    let pieces: Vec<_> = values.chunks(GROUPS * group_bytes).collect();
    let (threads, spares) = (way.threads.clamp(1, pieces.len().max(1)), way.spares);
    let encode_one = |values: &[u8], scratch: &mut Scratch| {
        let (mut blocks, mut entries) = (spares.take(values.len()), Vec::with_capacity(GROUPS));
        for group in values.chunks(group_bytes) {
            let entry = coder.encode(group, &mut blocks, scratch);
            entries.push(Entry { end: (blocks.len() / UNIT) as u32, ..entry });
        }
        (blocks, entries)
    };
    let share = |thread: usize| -> Vec<Piece> {
        let mut scratch = Scratch::new();
        pieces.iter().skip(thread).step_by(threads).map(|values| encode_one(values, &mut scratch)).collect()
    };
    let mut shares: Vec<_> = fork::scope(|scope| {
        // If a thread cannot start, the caller does its share.
        let start = |thread: usize| scope.spawn("gpufile-pack", move || share(thread)).map_err(|_| thread);
        let started: Vec<_> = (1..threads).map(start).collect();
        let mut shares = vec![share(0)];
        for thread in started {
            shares.push(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(thread) => share(thread),
            });
        }
        shares.into_iter().map(Vec::into_iter).collect()
    });
    (0..pieces.len()).filter_map(|piece| shares[piece % threads].next()).collect()
}
