//! The errors of loading and saving. [`Error`] names the file; [`FormatError`] has the tensor and the byte.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use super::save::outcome::{After, InPlace};
use super::visible::{Listed, Quoted, Shown};
use crate::error::Cause;

/// The result of loading or saving.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of loading or saving.
///
/// Every error names the file. [`source`](std::error::Error::source) returns the error behind it, whose text its own
/// includes. Its text quotes and escapes paths and names from files, and cuts long names.
///
/// ```
/// use gpufile::formats::Error;
/// use gpufile::formats::safetensors::Checkpoint;
///
/// let error = Checkpoint::open("missing.safetensors").unwrap_err();
/// assert!(matches!(error, Error::File(_)));
/// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
/// assert!(error.to_string().starts_with(r#"cannot open "missing.safetensors": "#));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file does not conform to its format, lacks what the caller asked for, or could not be written in that
    /// format.
    #[error("{path}: {error}", path = Shown(.path))]
    #[non_exhaustive]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem.
        #[source]
        error: FormatError,
    },
    /// A file could not be opened or read. The offset in the error is in bytes from the start of the file.
    #[error(transparent)]
    File(#[from] crate::Error),
    /// A tensor could not be read from its file.
    #[error("tensor {tensor}: {error}", tensor = Quoted(.tensor))]
    #[non_exhaustive]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The error of the read.
        #[source]
        error: Box<crate::Error>,
    },
    /// A file could not be saved.
    #[error("cannot save {path}: {error}{after}", path = Shown(.path), after = After { path, in_place, left })]
    #[non_exhaustive]
    Save {
        /// The file to replace.
        path: PathBuf,
        /// The error of the operation that failed. It names the file or the shard to be written, not a temporary file.
        #[source]
        error: Box<crate::Error>,
        /// The data that is in place now.
        in_place: InPlace,
        /// The files that the save left behind and that do not belong to the data in place. A later save removes
        /// those whose names end with `.gpufile-tmp`, and the shards that they list.
        left: Vec<PathBuf>,
    },
    /// An array of a Zarr store cannot be opened, read or written as asked for.
    #[cfg(feature = "zarr")]
    #[error("{path}: {error}", path = Shown(.path))]
    #[non_exhaustive]
    Zarr {
        /// The folder of the array.
        path: PathBuf,
        /// The problem with the array or the request.
        #[source]
        error: super::zarr::ZarrError,
    },
    /// The GPU or the host has no memory left to load into.
    #[error(
        "cannot allocate {len_bytes} bytes to load {path}: {cause}; free memory first, or load a part of it", path = Shown(.path))]
    #[non_exhaustive]
    Memory {
        /// The file or the folder to load from.
        path: PathBuf,
        /// The number of bytes that were needed.
        len_bytes: u64,
        /// The error that CUDA or the operating system returned.
        #[source]
        cause: Cause,
    },
    /// The caller's function did not return a buffer for a tensor.
    #[error("cannot create a buffer for tensor {tensor}: {error}", tensor = Quoted(.tensor))]
    #[non_exhaustive]
    Buffer {
        /// The tensor.
        tensor: String,
        /// The error of the function.
        #[source]
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Tensors could not be copied from one GPU to others.
    #[error("cannot copy tensors of {path} from GPU {gpu} to other GPUs: {cause}", path = Shown(.path))]
    #[non_exhaustive]
    PeerCopy {
        /// The file or the index that was opened.
        path: PathBuf,
        /// The ordinal of the GPU that the bytes were read to.
        gpu: u32,
        /// The error that CUDA returned.
        #[source]
        cause: Cause,
    },
    /// Ranks could not load together.
    #[cfg(feature = "nccl")]
    #[error("cannot load {path} together with other ranks: {error}", path = Shown(.path))]
    #[non_exhaustive]
    Ranks {
        /// The file or the index that was opened.
        path: PathBuf,
        /// The problem.
        #[source]
        error: crate::ranks::RankError,
    },
    /// The callback of a load ended it.
    #[error("the load of {path} was cancelled by its callback", path = Shown(.path))]
    #[non_exhaustive]
    Cancelled {
        /// The file or the index that was opened.
        path: PathBuf,
    },
    /// The contents of a file do not match its hash.
    #[cfg(feature = "hash")]
    #[error("{path}: its SHA-256 is {found} instead of {expected}; download the file again", path = Shown(.path))]
    #[non_exhaustive]
    WrongContents {
        /// The file.
        path: PathBuf,
        /// The hash that the contents should have, in hexadecimal digits.
        expected: String,
        /// The hash that they have.
        found: String,
    },
    /// Two files have a tensor of the same name.
    #[error(
        "cannot open {} and {} as one model: both have tensor {tensor}; open only files of one model",
        Shown(&.files[0]), Shown(&.files[1]), tensor = Quoted(.tensor))]
    #[non_exhaustive]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// The files.
        files: [PathBuf; 2],
    },
    /// An index names a file for tensors, and the file lacks them.
    #[error(
        "tensor {}{} not in {}, which {} names; copy the index and all of its files again",
        Quoted(.tensor), AndOthers(*.others), Shown(.file), Shown(.index)
    )]
    #[non_exhaustive]
    NotInShard {
        /// The first such tensor.
        tensor: String,
        /// The number of other tensors that the file lacks.
        others: usize,
        /// The file that should have it.
        file: PathBuf,
        /// The index.
        index: PathBuf,
    },
    /// A folder has several models, and it is unclear which one is meant.
    #[error(
        "{} has several models: {}; open one of them by its path, or list the files of one",
        Shown(.folder), paths(.models, 0)
    )]
    #[non_exhaustive]
    SeveralModels {
        /// The folder.
        folder: PathBuf,
        /// A file of each.
        models: Vec<PathBuf>,
    },
    /// A folder has no safetensors files.
    #[error("{} has no safetensors files, such as model.safetensors{found}", Shown(.path))]
    #[non_exhaustive]
    NoModel {
        /// The folder.
        path: PathBuf,
        /// The description of what is there instead, as the end of a sentence. Empty if nothing is.
        found: String,
    },
    /// Files of a model are missing.
    #[error(
        "{}: incomplete download: {count} of {files} files are missing: {}; download the model again",
        Shown(.path), paths(.missing, *.count - .missing.len() as u64)
    )]
    #[non_exhaustive]
    Incomplete {
        /// The file or the index that was opened, or the first file of several.
        path: PathBuf,
        /// The first of the missing files.
        missing: Vec<PathBuf>,
        /// The number of missing files.
        count: u64,
        /// The number of files that the model should have.
        files: u64,
    },
    /// The model has no tensor of that name.
    #[error("there is no tensor {tensor} in {path}{}", Others(.others), tensor = Quoted(.tensor), path = Shown(.path))]
    #[non_exhaustive]
    NoSuchTensor {
        /// The tensor.
        tensor: String,
        /// The file or the index that was opened, or the first file of several.
        path: PathBuf,
        /// The number of other files that were opened without an index.
        others: usize,
    },
    /// A buffer has another length than the array that it is for.
    #[error("{path}: the buffer for {array} has {buffer_bytes} bytes instead of {needed_bytes}", path = Shown(.path))]
    #[non_exhaustive]
    BufferSize {
        /// The file or the folder to load from or save to.
        path: PathBuf,
        /// The content of the buffer: a tensor, rows of one, or an array.
        array: String,
        /// The number of bytes of that content.
        needed_bytes: u64,
        /// The number of bytes of the buffer.
        buffer_bytes: usize,
    },
}

impl Error {
    /// Returns whether the same call may succeed later, although nobody changes the files or the call: see
    /// [`Cause::is_transient`].
    pub fn is_transient(&self) -> bool {
        match self {
            Error::File(error) => error.is_transient(),
            Error::Save { error, .. } | Error::Tensor { error, .. } => error.is_transient(),
            Error::Memory { cause, .. } | Error::PeerCopy { cause, .. } => cause.is_transient(),
            _ => false,
        }
    }

    /// Returns the kind that an [`io::Error`] of the same cause has.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Error::File(error) => error.kind(),
            Error::Save { error, .. } | Error::Tensor { error, .. } => error.kind(),
            Error::Memory { .. } => io::ErrorKind::OutOfMemory,
            Error::NoSuchTensor { .. } | Error::NoModel { .. } | Error::Incomplete { .. } => {
                io::ErrorKind::NotFound
            }
            Error::BufferSize { .. } => io::ErrorKind::InvalidInput,
            Error::Buffer { .. } | Error::PeerCopy { .. } | Error::Cancelled { .. } => io::ErrorKind::Other,
            #[cfg(feature = "nccl")]
            Error::Ranks { error: crate::ranks::RankError::TimedOut { .. }, .. } => io::ErrorKind::TimedOut,
            #[cfg(feature = "nccl")]
            Error::Ranks { .. } => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidData,
        }
    }
}

impl From<Error> for io::Error {
    /// Keeps the whole text.
    fn from(error: Error) -> Self {
        io::Error::new(error.kind(), error)
    }
}

/// A header that cannot be read, or cannot be written.
///
/// ```
/// use gpufile::formats::FormatError;
/// use gpufile::formats::npy::NpyHeader;
///
/// let error = NpyHeader::parse(b"not an array", 12).unwrap_err();
/// assert!(matches!(error, FormatError::OtherFormat { format: "npy", .. }));
/// assert_eq!(error.to_string(), r"not npy data: it does not start with \x93NUMPY");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file is of another format.
    #[error("not {format} data: it does not start with {expected}")]
    #[non_exhaustive]
    OtherFormat {
        /// The expected format.
        format: &'static str,
        /// The start of that format's files.
        expected: &'static str,
    },
    /// The file is of another format, which its first bytes show.
    #[error("not {format} data but {found}")]
    #[non_exhaustive]
    KnownFormat {
        /// The expected format.
        format: &'static str,
        /// A description of the file, with the usual cause.
        found: String,
    },
    /// The file has a version of the format that this crate does not read.
    #[error("version {}.{} of the {format} format is not supported", .version.0, .version.1)]
    #[non_exhaustive]
    UnknownVersion {
        /// The format.
        format: &'static str,
        /// Major and minor version.
        version: (u8, u8),
    },
    /// The file, or the part of it that the caller passed, ends too early.
    #[error(
        "{what} ends at byte {needed_bytes}, but there are only {available_bytes} bytes; the file may be incomplete"
    )]
    #[non_exhaustive]
    Truncated {
        /// The part that is cut: the header or the data, with its format.
        what: &'static str,
        /// The number of bytes needed, from the start of the file.
        needed_bytes: u64,
        /// The number of bytes that the file or the passed part has.
        available_bytes: u64,
    },
    /// A header is longer than this crate reads or writes.
    #[error("a {format} header of {len_bytes} bytes is over the limit of {limit_bytes}")]
    #[non_exhaustive]
    HeaderTooLarge {
        /// The format.
        format: &'static str,
        /// The length of the header in bytes, as the file states it or as it would be written.
        len_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A header violates the syntax of its format.
    #[error("{}at byte {offset} of the {format} file: {message}", Of(.tensor))]
    #[non_exhaustive]
    Syntax {
        /// The format.
        format: &'static str,
        /// The tensor whose description the parser was reading.
        tensor: Option<String>,
        /// The offset in the file, in bytes.
        offset: u64,
        /// A description of what was found or expected.
        message: String,
    },
    /// Two tensors have the same name.
    #[error("tensor {tensor} occurs twice", tensor = Quoted(.tensor))]
    #[non_exhaustive]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A key occurs twice.
    #[error("{}{key} occurs twice{}", Of(.tensor), At(.offset), key = Quoted(.key))]
    #[non_exhaustive]
    Duplicate {
        /// The key.
        key: String,
        /// The tensor, if the key is in the description of one.
        tensor: Option<String>,
        /// The offset of the second one in the file, in bytes, if it is known.
        offset: Option<u64>,
    },
    /// A header lacks a key.
    #[error("{}{key} is missing{}", Of(.tensor), At(.offset), key = Quoted(.key))]
    #[non_exhaustive]
    Missing {
        /// The key.
        key: &'static str,
        /// The tensor that lacks it, for a key of a tensor.
        tensor: Option<String>,
        /// The offset in the file at which the parser missed it, in bytes, if it is known.
        offset: Option<u64>,
    },
    /// The element type is unknown or unsupported.
    #[error("{}the element type {dtype} {problem}{}", Of(.tensor), At(.offset), dtype = Quoted(.dtype))]
    #[non_exhaustive]
    UnsupportedDtype {
        /// The tensor, if the format names it.
        tensor: Option<String>,
        /// The type as the file spells it.
        dtype: String,
        /// The reason why not.
        problem: &'static str,
        /// The offset in the file at which the type was found, in bytes. None for a header to be written.
        offset: Option<u64>,
    },
    /// Shape times element size is more than 2^64 - 1 bytes.
    #[error("{}shape times element size is more than 2^64 - 1 bytes, with zeros in the shape counted as 1", Of(.tensor))]
    #[non_exhaustive]
    SizeOverflow {
        /// The tensor, if the format names it.
        tensor: Option<String>,
    },
    /// All tensors together are more than a file can hold.
    #[error("tensor {tensor} makes the file longer than 2^64 - 1 bytes; save the model in several files", tensor = Quoted(.tensor))]
    #[non_exhaustive]
    FileOverflow {
        /// The first tensor beyond the limit.
        tensor: String,
    },
    /// A tensor, or the requested part of it, does not start and end at whole bytes.
    #[error("tensor {tensor}: bits {} to {} are not whole bytes", .bits.start, .bits.end, tensor = Quoted(.tensor))]
    #[non_exhaustive]
    PartialByte {
        /// The tensor.
        tensor: String,
        /// The requested part, in bits from the tensor's start.
        bits: Range<u128>,
    },
    /// The rows of a tensor, or the requested elements, are not whole blocks of its type.
    #[error(
        "tensor {tensor}: elements {} to {} are not whole blocks of {dtype}, which have {block_elements} elements",
        .elements.start, .elements.end, tensor = Quoted(.tensor))]
    #[non_exhaustive]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// The name of the type.
        dtype: &'static str,
        /// The number of elements of a block.
        block_elements: u64,
        /// The elements of a row, counted from 0.
        elements: Range<u64>,
    },
    /// The files of a split model do not belong together.
    #[error("not a file of this split model: {problem}")]
    #[non_exhaustive]
    Split {
        /// A description of what does not match.
        problem: String,
    },
    /// A tensor's range is longer or shorter than its shape and type say.
    #[error(
        "tensor {tensor}: shape and type say {shape_bytes} bytes, but its offsets are {} to {}",
        .offsets.start, .offsets.end, tensor = Quoted(.tensor))]
    #[non_exhaustive]
    SizeMismatch {
        /// The tensor.
        tensor: String,
        /// The tensor's range, in bytes from the start of the data.
        offsets: Range<u64>,
        /// The number of bytes that shape and type say.
        shape_bytes: u64,
    },
    /// A tensor's range ends before it starts.
    #[error("tensor {tensor}: its offsets {start} to {end} run backwards", tensor = Quoted(.tensor))]
    #[non_exhaustive]
    Backwards {
        /// The tensor.
        tensor: String,
        /// The start of the range, in bytes from the start of the data.
        start: u64,
        /// The end of the range, in bytes from the start of the data.
        end: u64,
    },
    /// A tensor's range ends after the file does.
    #[error(
        "tensor {tensor}: it ends at byte {end} of the data, but the file has only {data_len} bytes of data; the \
         file may be incomplete", tensor = Quoted(.tensor))]
    #[non_exhaustive]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// The end of the tensor, in bytes from the start of the data.
        end: u64,
        /// The number of bytes of data that the file has.
        data_len: u64,
    },
    /// Two tensors share bytes, or a tensor without bytes lies inside another.
    #[error("tensor {tensor}: it starts at byte {offset} of the file, inside tensor {other}", tensor = Quoted(.tensor), other = Quoted(.other))]
    #[non_exhaustive]
    Overlap {
        /// The later of the two.
        tensor: String,
        /// The earlier.
        other: String,
        /// The start of the later, in bytes from the start of the file.
        offset: u64,
    },
    /// Bytes of the file belong to no tensor.
    #[error("{}{len_bytes} bytes at byte {offset} of the file belong to no tensor", Before(.tensor))]
    #[non_exhaustive]
    Gap {
        /// The tensor after them. `None` if they are the last bytes of the file.
        tensor: Option<String>,
        /// The offset of these bytes, from the start of the file.
        offset: u64,
        /// The number of these bytes.
        len_bytes: u64,
    },
    /// The caller asked for indices that an axis does not have.
    #[error("{}cannot read {} to {} of axis {axis}, which has {available} indices", Of(.tensor), .range.start, .range.end)]
    #[non_exhaustive]
    NoSuchSlice {
        /// The tensor, if the format names it.
        tensor: Option<String>,
        /// The axis, counted from 0. Rows are indices along axis 0.
        axis: usize,
        /// The requested indices.
        range: Range<u64>,
        /// The length of the axis, or 0 if there is no such axis.
        available: u64,
    },
    /// A placement slices a tensor along an axis that the tensor does not have.
    #[error(
        "tensor {tensor}: cannot slice axis {axis} of a tensor with {axes} axes; place it on one GPU or on all", tensor = Quoted(.tensor))]
    #[non_exhaustive]
    NoSuchAxis {
        /// The tensor.
        tensor: String,
        /// The axis, counted from 0.
        axis: usize,
        /// The number of axes of the tensor.
        axes: usize,
    },
    /// A placement names a GPU that the list of the load does not have.
    #[error("tensor {tensor}: cannot place it on GPU {gpu}, because the list has {gpus} GPUs", tensor = Quoted(.tensor))]
    #[non_exhaustive]
    NoSuchGpu {
        /// The tensor.
        tensor: String,
        /// The position in the list, counted from 0.
        gpu: usize,
        /// The number of GPUs of the list.
        gpus: usize,
    },
    /// The caller asked for rows of an array in Fortran order.
    #[error(
        "cannot read rows of an array in Fortran order, where the elements of a row are not adjacent; read the whole array"
    )]
    FortranRows,
    /// A tensor has a name that the format reserves.
    #[error("a tensor cannot be called {name}: the format reserves this name", name = Quoted(.name))]
    #[non_exhaustive]
    ReservedName {
        /// The name.
        name: String,
    },
    /// The file name that an index gives for a tensor leads out of the folder of the index, or would on other systems.
    #[error("tensor {tensor}: the file name {file} {objection}", tensor = Quoted(.tensor), file = Quoted(.file), objection = objection(.file))]
    #[non_exhaustive]
    FileName {
        /// The tensor.
        tensor: String,
        /// The file name.
        file: String,
    },
    /// A packed tensor, or what the metadata say about it, is wrong. A file of a newer version needs a newer gpufile.
    #[error("{}{problem}", Of(.tensor))]
    #[non_exhaustive]
    Packed {
        /// The tensor, unless the error is about the file.
        tensor: Option<String>,
        /// A description of what is wrong.
        problem: String,
    },
}

fn objection(file: &str) -> &'static str {
    match file.contains('\\') {
        true => "has a backslash, which separates folders on Windows only; write a slash into the index",
        false => "leads out of the folder of the index",
    }
}

impl FormatError {
    /// Returns the tensor that the error is about, its name cut if it is long.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            FormatError::Syntax { tensor, .. }
            | FormatError::Duplicate { tensor, .. }
            | FormatError::Missing { tensor, .. }
            | FormatError::UnsupportedDtype { tensor, .. }
            | FormatError::SizeOverflow { tensor }
            | FormatError::NoSuchSlice { tensor, .. }
            | FormatError::Packed { tensor, .. }
            | FormatError::Gap { tensor, .. } => tensor.as_deref(),
            FormatError::DuplicateTensor { tensor }
            | FormatError::FileOverflow { tensor }
            | FormatError::PartialByte { tensor, .. }
            | FormatError::PartialBlock { tensor, .. }
            | FormatError::NoSuchAxis { tensor, .. }
            | FormatError::NoSuchGpu { tensor, .. }
            | FormatError::SizeMismatch { tensor, .. }
            | FormatError::Backwards { tensor, .. }
            | FormatError::PastEnd { tensor, .. }
            | FormatError::Overlap { tensor, .. }
            | FormatError::ReservedName { name: tensor }
            | FormatError::FileName { tensor, .. } => Some(tensor),
            FormatError::OtherFormat { .. }
            | FormatError::KnownFormat { .. }
            | FormatError::FortranRows
            | FormatError::Split { .. }
            | FormatError::UnknownVersion { .. }
            | FormatError::Truncated { .. }
            | FormatError::HeaderTooLarge { .. } => None,
        }
    }

    /// Returns the offset in the file at which the problem was found, in bytes.
    pub fn offset(&self) -> Option<u64> {
        match self {
            FormatError::Duplicate { offset, .. }
            | FormatError::Missing { offset, .. }
            | FormatError::UnsupportedDtype { offset, .. } => *offset,
            FormatError::Syntax { offset, .. }
            | FormatError::Overlap { offset, .. }
            | FormatError::Gap { offset, .. } => Some(*offset),
            _ => None,
        }
    }
}

/// Returns the error of one entry without the entry's number. The caller did not number the entries; the file and the
/// offset tell which one failed.
pub(super) fn of_entry(error: crate::Error) -> crate::Error {
    match error {
        crate::Error::Entry { error, .. } => *error,
        other => other,
    }
}

fn paths(paths: &[PathBuf], others: u64) -> impl fmt::Display + use<'_> {
    Listed { items: paths.iter().map(|path| Shown(path)), others }
}

struct AndOthers(usize);

impl fmt::Display for AndOthers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str(" is"),
            others => write!(f, " and {others} more are"),
        }
    }
}

struct Others<'a>(&'a usize);

impl fmt::Display for Others<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" or the other file"),
            others => write!(f, " or {others} other files"),
        }
    }
}

struct Of<'a>(&'a Option<String>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|tensor| write!(f, "tensor {}: ", Quoted(tensor)))
    }
}

struct Before<'a>(&'a Option<String>);

impl fmt::Display for Before<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|tensor| write!(f, "before tensor {}: ", Quoted(tensor)))
    }
}

struct At<'a>(&'a Option<u64>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|offset| write!(f, ", at byte {offset} of the file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::clip::clip;

    #[test]
    fn errors_escape_and_truncate_hostile_names() {
        let tensor = Some(clip(&"\n\u{1b}[31m".repeat(1000)));
        let text = FormatError::SizeOverflow { tensor }.to_string();
        assert!(!text.contains(char::is_control) && text.len() < 4096, "{text}");
    }

    #[test]
    fn errors_name_the_tensor_and_the_position() {
        let error = FormatError::Missing { key: "dtype", tensor: Some("w".into()), offset: Some(40) };
        assert_eq!(error.to_string(), r#"tensor "w": "dtype" is missing, at byte 40 of the file"#);
        assert_eq!((error.tensor(), error.offset()), (Some("w"), Some(40)));
    }
}
