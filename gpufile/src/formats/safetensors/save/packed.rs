//! Saving an open model with packed tensors, or without them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use super::super::headers::header::{Header, TensorInfo};
use super::super::headers::write::NewTensor;
use super::super::open::files::ModelFiles;
use super::super::packed::names::{describe, kind_of};
use super::models::Saved;
use super::plan::{malformed, save_file};
use crate::formats::packed::{
    Coder, Entry, GROUP, Histogram, Kind, Layout, Scratch, UNIT, count, front_bytes,
};
use crate::formats::save::{failed, no_file_name};
use crate::formats::{Dtype, FormatError, Result, SaveOptions};
use crate::{Cause, Error, File, Request, local_path};

/// The share of its length above which a tensor stays as it is.
const WORTH: f64 = 0.97;
/// The bytes of a tensor that are in memory at a time.
const AT_ONCE: u64 = 64 << 20;
/// The values of a tensor that choose its tables, and of each run of them.
const SAMPLE: u64 = 4 << 20;
const RUN: u64 = 64 << 10;
/// The longest tensor that is packed, in bytes. The index counts up to 64 GiB.
const LONGEST: u64 = 60 << 30;

/// The form of the new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Packed,
    Plain,
}

/// Saves the files of a model in this form.
///
/// # Errors
/// [`Error::Save`](crate::formats::Error::Save), [`Error::Format`](crate::formats::Error::Format).
pub fn convert(model: &ModelFiles, to: &Path, form: Form, options: &SaveOptions) -> Result<Saved> {
    local_path::check(to).map_err(|error| failed(to, error))?;
    let refused = |cause: Cause| failed(to, Error::File { operation: "save", path: to.to_owned(), cause });
    let name =
        |file: &File| file.path().file_name().map(OsStr::to_owned).ok_or_else(|| no_file_name(file.path()));
    let one = |number: usize, to: &Path| {
        let header = model.catalog.header(number as u32);
        save_one(&model.files[number], header, to, form, options)
    };
    if let [file] = &model.files[..] {
        let name = name(file).map_err(|error| failed(to, error))?;
        let path = if to.is_dir() { to.join(name) } else { to.to_owned() };
        let len_bytes = one(0, &path)?;
        return Ok(Saved { path, len_bytes });
    }
    let names: std::result::Result<Vec<_>, _> = model.files.iter().map(name).collect();
    let names = names.map_err(|error| failed(to, error))?;
    let mut weight_map = serde_json::Map::new();
    for (number, name) in names.iter().enumerate() {
        let is_plain = name.to_str().filter(|_| !names[..number].contains(name));
        let name = is_plain.ok_or_else(|| {
            refused(Cause::Invalid(format!(
                "the model has two files named {name:?}, or the name is not UTF-8"
            )))
        })?;
        for tensor in model.catalog.header(number as u32).tensors() {
            weight_map.insert(tensor.name.to_owned(), name.into());
        }
    }
    fs::create_dir_all(to).map_err(|error| refused(error.into()))?;
    let mut len_bytes = 0;
    for (number, name) in names.iter().enumerate() {
        len_bytes += one(number, &to.join(name))?;
    }
    let total_size = model.catalog.len_bytes();
    let index = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    let index = format!("{index:#}\n");
    let path = to.join(index_name(&model.path));
    save_file(&path, options, |file| file.write_all_at(index.as_bytes(), 0))?;
    Ok(Saved { path, len_bytes })
}

/// Returns the name of the new index: that of the old one, if the model was opened by it.
fn index_name(path: &Path) -> PathBuf {
    const USUAL: &str = "model.safetensors.index.json";
    let is_index = path.extension().is_some_and(|extension| extension == "json");
    path.file_name().filter(|_| is_index).unwrap_or(OsStr::new(USUAL)).into()
}

/// Saves one file. Returns its length in bytes.
fn save_one(from: &File, header: &Header, to: &Path, form: Form, options: &SaveOptions) -> Result<u64> {
    let mut metadata = header.metadata().clone();
    metadata.extend(options.metadata.clone());
    let mut writer = Writer { from, header, form, metadata, len_bytes: 0 };
    // Wrong metadata is found before a file is written.
    writer.room().map_err(|error| malformed(to, error))?;
    save_file(to, options, |file| writer.write(file))?;
    Ok(writer.len_bytes)
}

/// The source of a new file.
struct Writer<'a> {
    from: &'a File,
    header: &'a Header,
    form: Form,
    metadata: BTreeMap<String, String>,
    /// The length of the file that was written last.
    len_bytes: u64,
}

/// A tensor in the new file.
struct Stored<'a> {
    info: TensorInfo<'a>,
    /// The length, if it is packed.
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
    /// Returns the head of a file with these tensors, of at least so many bytes.
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
    fn room(&self) -> std::result::Result<usize, FormatError> {
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

    /// Writes the file: the tensors, and then the head in the room before them.
    fn write(&mut self, to: &File) -> crate::Result<()> {
        let invalid = |error: FormatError| Error::File {
            operation: "write the header of",
            path: to.path().to_owned(),
            cause: Cause::Invalid(error.to_string()),
        };
        let room = self.room().map_err(invalid)?;
        let mut at = room as u64;
        let infos = self.header.tensors();
        let coded: crate::Result<Vec<_>> = infos.map(|info| Ok((self.coder(&info)?, info))).collect();
        let mut coded = coded?;
        // Packed tensors are multiples of 16 bytes. So all of them begin at such, where the GPU can use what `O_DIRECT` reads.
        coded.sort_by_key(|(coder, _)| coder.is_none());
        let mut tensors = Vec::with_capacity(coded.len());
        for (coder, info) in coded {
            let offset = self.header.in_file(info.offsets.clone()).start;
            let packed = match coder {
                Some(coder) => self.pack(&coder, offset, info.len_bytes(), to, at)?,
                None => None,
            };
            if packed.is_none() {
                self.copy(offset, info.len_bytes(), to, at)?;
            }
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
        to.write_all_at(&head, 0)?;
        // A tensor that was to be packed may have had more bytes.
        to.set_len(at)?;
        self.len_bytes = at;
        Ok(())
    }

    fn copy(&self, offset: u64, len_bytes: u64, to: &File, at: u64) -> crate::Result<()> {
        let mut buffer = vec![0; len_bytes.min(AT_ONCE) as usize];
        for done in (0..len_bytes).step_by(AT_ONCE as usize) {
            let some = &mut buffer[..(len_bytes - done).min(AT_ONCE) as usize];
            self.from.read_exact_at(some, offset + done)?;
            to.write_all_at(&*some, at + done)?;
        }
        Ok(())
    }

    /// Returns the coder of a tensor that is to be packed.
    fn coder(&self, info: &TensorInfo<'_>) -> crate::Result<Option<Coder>> {
        let len_bytes = info.len_bytes();
        let kind = kind_of(info.dtype).filter(|_| self.form == Form::Packed && len_bytes <= LONGEST);
        let Some(kind) = kind else { return Ok(None) };
        let offset = self.header.in_file(info.offsets.clone()).start;
        let histogram = self.sample(kind, offset, len_bytes)?;
        let coder = Coder::new(kind, &histogram);
        let front = front_bytes(info.elements()).is_some_and(|front| front as u64 <= most_bytes(len_bytes));
        Ok((front && coder.share(&histogram) <= WORTH).then_some(coder))
    }

    /// Packs a tensor. Returns its length in the file; `None` if it would not be worth it.
    fn pack(
        &self,
        coder: &Coder,
        offset: u64,
        len_bytes: u64,
        to: &File,
        at: u64,
    ) -> crate::Result<Option<u64>> {
        let kind = coder.kind();
        let values = len_bytes / kind.value_bytes() as u64;
        let front = front_bytes(values).expect("checked for the coder");
        let most_bytes = most_bytes(len_bytes);
        let mut layout = Layout { kind, values, tables: coder.tables(), entries: Vec::new() };
        let mut buffer = vec![0; len_bytes.min(AT_ONCE) as usize];
        let threads = self.from.engine().settings().threads;
        let mut end = 0_u64;
        for done in (0..len_bytes).step_by(AT_ONCE as usize) {
            let some = &mut buffer[..(len_bytes - done).min(AT_ONCE) as usize];
            self.from.read_exact_at(some, offset + done)?;
            let pieces = encode(coder, some, threads);
            let mut requests = Vec::with_capacity(pieces.len());
            for (blocks, entries) in &pieces {
                let start = (end / UNIT as u64) as u32;
                layout.entries.extend(entries.iter().map(|entry| Entry { end: start + entry.end, ..*entry }));
                requests.push(Request { file: to, buffer: &blocks[..], offset: at + front as u64 + end });
                end += blocks.len() as u64;
            }
            if front as u64 + end > most_bytes {
                return Ok(None);
            }
            to.engine().write_many(&requests)?;
        }
        to.write_all_at(&layout.to_bytes()[..], at)?;
        Ok(Some(layout.len_bytes()))
    }

    /// Counts the exponents of a tensor, or of runs of it if it is long.
    fn sample(&self, kind: Kind, offset: u64, len_bytes: u64) -> crate::Result<Histogram> {
        let mut histogram = [0; 256];
        let (run, most) = (RUN * kind.value_bytes() as u64, SAMPLE * kind.value_bytes() as u64);
        let step = if len_bytes <= most { run } else { len_bytes / (most / run) / run * run };
        let mut buffer = vec![0; run as usize];
        for start in (0..len_bytes).step_by(step as usize) {
            let some = &mut buffer[..(len_bytes - start).min(run) as usize];
            self.from.read_exact_at(some, offset + start)?;
            count(kind, some, &mut histogram);
        }
        Ok(histogram)
    }
}

/// Returns the most bytes that a packed tensor of so many bytes may have.
fn most_bytes(len_bytes: u64) -> u64 {
    (len_bytes as f64 * WORTH) as u64
}

/// The blocks of some groups, and their entries, whose ends count from the first.
type Piece = (Vec<u8>, Vec<Entry>);

/// Encodes values with several threads.
fn encode(coder: &Coder, values: &[u8], threads: usize) -> Vec<Piece> {
    const GROUPS: usize = 64;
    let group_bytes = GROUP * coder.kind().value_bytes();
    let pieces: Vec<_> = values.chunks(GROUPS * group_bytes).collect();
    let threads = threads.clamp(1, pieces.len().max(1));
    let encode_one = |values: &[u8], scratch: &mut Scratch| {
        let (mut blocks, mut entries) = (Vec::with_capacity(values.len()), Vec::with_capacity(GROUPS));
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
    let mut shares: Vec<_> = thread::scope(|scope| {
        let start = |thread: usize| {
            let builder = thread::Builder::new().name("gpufile-pack".to_owned());
            // If a thread cannot start, the caller does its share.
            builder.spawn_scoped(scope, move || share(thread)).map_err(|_| thread)
        };
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
