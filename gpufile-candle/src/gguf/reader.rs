//! A reader of GGUF files for candle's own loaders.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::mem;
use std::ops::Range;
use std::path::Path;

use bytemuck::allocation::try_zeroed_vec;
use candle_core::quantized::gguf_file::Content;
use candle_core::{Error, Result};
use gpufile::formats::gguf::Header;
use gpufile::{File, IoFuture, page_cache};

use super::{Model, content};
use crate::memory::huge_pages;
use crate::tensors::error;

/// The most bytes that are read ahead, unless one tensor has more.
const AHEAD_BYTES: u64 = 256 << 20;
/// The bytes of neighbouring tensors that are read together.
const UNIT_BYTES: u64 = 8 << 20;

/// The files of a GGUF model as a `Read` and `Seek`, for code that takes candle's
/// [`Content`](candle_core::quantized::gguf_file::Content) and reads the tensors itself: `from_gguf` of the quantised models in
/// `candle_transformers`.
///
/// candle reads a header in pieces of a few bytes, and each tensor by one read. The reader takes headers from memory and reads
/// a tensor by all workers of the engine, into the buffer of the caller. It also reads ahead, up to 256 MiB behind the tensor that
/// was asked for: a file that is not in the page cache into that, and one on a server into memory.
///
/// candle copies each tensor once more, into its blocks. [`load_model`](super::load_model) reads them to their place, and is
/// faster for code that takes the tensors by name.
///
/// ```
/// use candle_core::Device;
/// use candle_core::quantized::gguf_file::Content;
/// use gpufile_candle::gguf::{Model, Reader};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use gpufile::formats::{SaveOptions, gguf::{GgmlType, Metadata, TensorData, save}};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.gguf");
/// # let norm = TensorData::new("output_norm.weight", GgmlType::F32, &[1], &[0; 4][..]);
/// # save(&path, &Metadata::from_iter([("general.architecture", "llama")]), &[norm], &SaveOptions::new())?;
/// let model = Model::open(path)?; // or `Model::open_url`
/// let mut reader = Reader::new(&model)?;
/// let content = reader.content(); // or `Content::read(&mut reader)?` if the model has one file
/// // ModelWeights::from_gguf(content, &mut reader, &device)?
/// let norm = content.tensor(&mut reader, "output_norm.weight", &Device::Cpu)?;
/// assert_eq!(norm.shape().dims(), [1]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reader {
    /// The files, one behind the other.
    parts: Vec<Part>,
    /// The tensors, in the order of their places.
    units: Vec<Unit>,
    /// The place of the next read.
    at: u64,
    len_bytes: u64,
}

#[derive(Debug)]
struct Part {
    file: File,
    header: Header,
    /// The bytes before the first tensor, after the first read of them.
    head: Option<Vec<u8>>,
    /// The place of the file in the reader.
    range: Range<u64>,
}

/// Tensors that are read ahead together.
#[derive(Debug)]
struct Unit {
    part: usize,
    /// The place in the reader.
    range: Range<u64>,
    /// The bytes that were not yet asked for.
    left_bytes: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Unread,
    /// The kernel reads them into the page cache, or did.
    Prefetched,
    InFlight(IoFuture<Vec<u8>>),
    Ready(Vec<u8>),
    /// Read, and no longer in memory.
    Gone,
}

impl Reader {
    /// Opens a file of a model that is not split.
    ///
    /// # Errors
    /// As [`Model::open`] and [`new`](Self::new).
    pub fn open<P: AsRef<Path>>(path: P) -> Result<Self> {
        Self::new(&Model::open(path).map_err(error)?)
    }

    /// Returns a reader of the files of a model, one behind the other. [`content`](Self::content) has the tensors of all.
    ///
    /// # Errors
    /// The length of a file cannot be found out.
    pub fn new(model: &Model) -> Result<Self> {
        Self::of(model.files())
    }

    /// Returns a reader of each file of a model, in the order of the split, for code that calls candle's `Content::read` on each,
    /// as mistral.rs and candle-vllm do.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn each(model: &Model) -> Result<Vec<Self>> {
        model.files().map(|file| Self::of(std::iter::once(file))).collect()
    }

    fn of<'a>(files: impl Iterator<Item = (&'a File, &'a Header)>) -> Result<Self> {
        let mut reader = Self { parts: Vec::new(), units: Vec::new(), at: 0, len_bytes: 0 };
        for (file, header) in files {
            let start = reader.len_bytes;
            reader.len_bytes += file.len_bytes().map_err(Error::wrap)?;
            let part = reader.parts.len();
            for tensor in header.tensors().filter(|tensor| tensor.len_bytes() > 0) {
                let range = start + tensor.range.start..start + tensor.range.end;
                let left_bytes = tensor.len_bytes();
                match reader.units.last_mut() {
                    Some(last) if last.part == part && range.end - last.range.start <= UNIT_BYTES => {
                        last.range.end = range.end;
                        last.left_bytes += left_bytes;
                    }
                    _ => reader.units.push(Unit { part, range, left_bytes, state: State::Unread }),
                }
            }
            let range = start..reader.len_bytes;
            reader.parts.push(Part { file: file.clone(), header: header.clone(), head: None, range });
        }
        Ok(reader)
    }

    /// Returns candle's description of the model, without another read. For a model of several files, only this one has the
    /// tensors of all. Tensors of types that candle cannot dequantise are left out.
    pub fn content(&self) -> Content {
        let metadata = self.parts[0].header.metadata();
        content::of_files(metadata, self.parts.iter().map(|part| (part.range.start, &part.header)))
    }

    /// Starts to read tensors ahead from this unit on, as far as they are not in the page cache.
    fn start_ahead(&mut self, first: usize) {
        let mut ahead_bytes = 0;
        for unit in &mut self.units[first..] {
            let part = &self.parts[unit.part];
            if matches!(unit.state, State::Unread) {
                if part.is_cached(&unit.range) {
                    return;
                }
                unit.state = part.start(&unit.range);
            }
            if !matches!(unit.state, State::Unread | State::Gone) {
                ahead_bytes += unit.range.end - unit.range.start;
            }
            if ahead_bytes >= AHEAD_BYTES {
                return;
            }
        }
    }

    /// Reads bytes of tensors. Returns the number, which is less than the length of the buffer at the end of a unit.
    fn read_unit(&mut self, unit: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let range = self.units[unit].range.clone();
        let len_bytes = buffer.len().min((range.end - self.at) as usize);
        let buffer = &mut buffer[..len_bytes];
        let has_others =
            (len_bytes as u64) < range.end - range.start && range.end - range.start <= UNIT_BYTES;
        if has_others || !matches!(self.units[unit].state, State::Unread) {
            self.start_ahead(unit);
        }
        if let Some(bytes) = self.units[unit].bytes() {
            let start = (self.at - range.start) as usize;
            huge_pages::prefer(buffer);
            buffer.copy_from_slice(&bytes[start..][..len_bytes]);
            self.units[unit].use_up(len_bytes as u64);
        } else {
            self.parts[self.units[unit].part].read_exact(buffer, self.at)?;
            self.units[unit].use_up(len_bytes as u64);
            self.start_ahead(unit + 1);
        }
        Ok(len_bytes)
    }
}

impl Part {
    fn read_exact(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        huge_pages::prefer(buffer);
        self.file.read_exact_at(buffer, at - self.range.start).map_err(io_error)
    }

    /// Returns the header and the padding behind it.
    fn head(&mut self) -> io::Result<&[u8]> {
        let len_bytes = self.header.data_start().min(self.range.end - self.range.start);
        if self.head.is_none() {
            let mut head = zeros(len_bytes)?;
            self.read_exact(&mut head, self.range.start)?;
            self.head = Some(head);
        }
        Ok(self.head.as_deref().unwrap_or_default())
    }

    /// Returns whether a read of this range of the reader is a copy in memory.
    fn is_cached(&self, range: &Range<u64>) -> bool {
        let range = range.start - self.range.start..range.end - self.range.start;
        // Only regular files have a page cache.
        page_cache::residency(&self.file, range).is_ok_and(|found| found.cached == found.pages)
    }

    /// Starts to read a range of the reader: into the page cache, from where it is one copy to the caller, or into memory.
    fn start(&self, range: &Range<u64>) -> State {
        let in_file = range.start - self.range.start..range.end - self.range.start;
        if page_cache::prefetch(&self.file, in_file.clone()).is_ok() {
            return State::Prefetched;
        }
        match zeros(in_file.end - in_file.start) {
            Ok(memory) => State::InFlight(self.file.read_at_async(memory, in_file.start).exact()),
            // Without room, tensors are read when they are asked for.
            Err(_) => State::Gone,
        }
    }
}

impl Unit {
    /// Returns the bytes that were read ahead. Waits for them. `None` if there are none.
    fn bytes(&mut self) -> Option<&[u8]> {
        if let State::InFlight(_) = self.state
            && let State::InFlight(read) = mem::replace(&mut self.state, State::Gone)
            && let (Ok(_), memory) = read.wait()
        {
            // After a failure, the caller reads what it asked for, and learns of the failure if it is of that.
            self.state = State::Ready(memory);
        }
        if let State::Ready(memory) = &self.state { Some(memory) } else { None }
    }

    /// Frees the memory if all tensors were asked for.
    fn use_up(&mut self, bytes: u64) {
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        if self.left_bytes == 0 {
            self.state = State::Gone;
        }
    }
}

fn zeros(len_bytes: u64) -> io::Result<Vec<u8>> {
    let none = || io::Error::from(ErrorKind::OutOfMemory);
    let len_bytes = usize::try_from(len_bytes).map_err(|_| none())?;
    let mut zeros = try_zeroed_vec(len_bytes).map_err(|()| none())?;
    huge_pages::prefer(&mut zeros);
    Ok(zeros)
}

fn io_error(error: gpufile::Error) -> io::Error {
    io::Error::new(error.kind(), error)
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.at >= self.len_bytes {
            return Ok(0);
        }
        let at = self.at;
        let unit = self.units.partition_point(|unit| unit.range.end <= at);
        let next = self.units.get(unit).map_or(self.len_bytes, |unit| unit.range.start);
        let part = self.parts.partition_point(|part| part.range.end <= at);
        let read_bytes = if next <= at {
            self.read_unit(unit, buffer)?
        } else {
            let part = &mut self.parts[part];
            let (start, end) = (part.range.start, part.range.end);
            if at - start < part.header.data_start() {
                let rest = &part.head()?[(at - start) as usize..];
                let len_bytes = buffer.len().min(rest.len());
                buffer[..len_bytes].copy_from_slice(&rest[..len_bytes]);
                len_bytes
            } else {
                // Between tensors, or behind the last.
                let len_bytes = buffer.len().min((next.min(end) - at) as usize);
                part.read_exact(&mut buffer[..len_bytes], at)?;
                len_bytes
            }
        };
        self.at += read_bytes as u64;
        Ok(read_bytes)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(offset) => self.len_bytes.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
        };
        self.at = at.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a place before the start"))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use gpufile::formats::gguf::{GgmlType, Metadata, NewTensor};
    use gpufile::storage::{Error, Spans, Storage};

    use super::*;

    /// Bytes that are on no disk, with the ranges that were read, and one that cannot be.
    #[derive(Debug)]
    struct Bytes {
        bytes: Vec<u8>,
        reads: Mutex<Vec<Range<u64>>>,
        broken: Range<u64>,
    }

    impl Storage for Bytes {
        fn len_bytes(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read(&self, spans: &mut Spans<'_>) -> std::result::Result<(), Error> {
            while let Some(range) = spans.next_range() {
                if range.start < self.broken.end && self.broken.start < range.end {
                    return Err("this range is broken".into());
                }
                self.reads.lock().expect("no panics").push(range.clone());
                spans.put(&self.bytes[range.start as usize..range.end as usize])?;
            }
            Ok(())
        }
    }

    /// Returns a reader of tensors with these lengths, the storage below it, and the places of the tensors.
    fn reader(lens: &[u64], broken: Option<usize>) -> (Reader, Arc<Bytes>, Vec<Range<u64>>) {
        let names: Vec<_> = (0..lens.len()).map(|number| format!("{number}")).collect();
        let shapes: Vec<_> = lens.iter().map(|len| [len / 4]).collect();
        let tensors: Vec<_> = std::iter::zip(&names, &shapes)
            .map(|(name, shape)| NewTensor { name, ggml_type: GgmlType::F32, shape })
            .collect();
        let (header, mut bytes) = Header::build(Metadata::new(), &tensors).expect("a header");
        let noise: Vec<_> = (0..1_000_003_u64).map(|at| ((at * at) >> 9) as u8).collect();
        while let Some(rest) =
            (header.file_len_bytes() as usize).checked_sub(bytes.len()).filter(|rest| *rest > 0)
        {
            bytes.extend(&noise[..rest.min(noise.len())]);
        }
        let ranges: Vec<_> = header.tensors().map(|tensor| tensor.range).collect();
        let broken = broken.map_or(0..0, |number| ranges[number].clone());
        let storage = Arc::new(Bytes { bytes, reads: Mutex::default(), broken });
        let file = File::from_storage("model.gguf", storage.clone()).expect("a file");
        let reader = Reader::of(std::iter::once((&file, &header))).expect("a reader");
        (reader, storage, ranges)
    }

    fn tensor(reader: &mut Reader, range: &Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        reader.seek(SeekFrom::Start(range.start))?;
        reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn tensors_behind_are_read_while_the_caller_has_the_first() {
        let lens = [12 * MIB, 9 * MIB, 4096, 64, 10 * MIB];
        let (mut reader, storage, ranges) = reader(&lens, None);
        tensor(&mut reader, &ranges[0]).expect("bytes");
        for unit in &mut reader.units[1..] {
            assert!(matches!(unit.state, State::InFlight(_)), "{unit:?}");
            assert!(unit.bytes().is_some());
        }
        let read_bytes = || -> u64 {
            storage.reads.lock().expect("no panics").iter().map(|range| range.end - range.start).sum()
        };
        let whole = read_bytes();
        // In another order than that of the file, as candle asks.
        for number in [4, 2, 1, 3] {
            let expected = &storage.bytes[ranges[number].start as usize..ranges[number].end as usize];
            assert!(tensor(&mut reader, &ranges[number]).expect("bytes") == expected, "tensor {number}");
        }
        assert_eq!(read_bytes(), whole, "each byte is read once");
        assert!(reader.units.iter().all(|unit| matches!(unit.state, State::Gone)));
        // Once more, as for embeddings that are also the output.
        assert!(tensor(&mut reader, &ranges[1]).expect("bytes").len() as u64 == lens[1]);
        assert_eq!(read_bytes(), whole + lens[1]);
    }

    #[test]
    fn reading_ahead_keeps_to_the_limit() {
        let (mut reader, ..) = reader(&[60 * MIB; 7], None);
        let ranges: Vec<_> = reader.units.iter().map(|unit| unit.range.clone()).collect();
        let waiting = |reader: &Reader| {
            let waits = |unit: &&Unit| matches!(unit.state, State::InFlight(_) | State::Ready(_));
            reader.units.iter().filter(waits).count()
        };
        tensor(&mut reader, &ranges[0]).expect("bytes");
        // The fifth goes beyond the limit of 256 MiB.
        assert_eq!(waiting(&reader), 5);
        tensor(&mut reader, &ranges[1]).expect("bytes");
        assert_eq!(waiting(&reader), 4);
        tensor(&mut reader, &ranges[2]).expect("bytes");
        assert_eq!(waiting(&reader), 4, "the last was started");
    }

    #[test]
    fn a_tensor_that_fails_ahead_fails_alone() {
        let (mut reader, storage, ranges) = reader(&[9 * MIB, 4096, 4096, 4096], Some(2));
        for number in [0, 1, 3] {
            let expected = &storage.bytes[ranges[number].start as usize..ranges[number].end as usize];
            assert!(tensor(&mut reader, &ranges[number]).expect("bytes") == expected, "tensor {number}");
        }
        let error = tensor(&mut reader, &ranges[2]).expect_err("a broken range").to_string();
        assert!(error.contains("model.gguf") && error.contains("this range is broken"), "{error}");
    }
}
