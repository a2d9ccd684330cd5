//! The errors of loading and saving: what is wrong with a file or a header, in which tensor, and at which byte.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::error::Cause;

/// The result of loading or saving.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of loading or saving.
///
/// Every error names the file. Its text shows paths and names from files quoted and escaped. Long names from files
/// are cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file does not conform to its format, lacks what the caller asked for, or could not be written in that
    /// format.
    #[error("{path:?}: {error}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem.
        error: FormatError,
    },
    /// A file could not be opened or read. The offset in the error is in bytes from the start of the file.
    #[error(transparent)]
    File(#[from] crate::Error),
    /// A file could not be saved. If writing failed, `error` names the temporary file beside it.
    #[error("cannot save {path:?}: {error}")]
    Save {
        /// The file that was to be replaced.
        path: PathBuf,
        /// The error of the operation that failed.
        error: crate::Error,
    },
    /// An array of a Zarr store cannot be opened, read or written as asked for.
    #[cfg(feature = "zarr")]
    #[error("{path:?}: {error}")]
    Zarr {
        /// The folder of the array.
        path: PathBuf,
        /// The problem with the array or the request.
        error: super::zarr::ZarrError,
    },
    /// There was no memory of the GPU or the host to load into.
    #[error("cannot allocate {len_bytes} bytes to load {path:?} into: {cause}")]
    Memory {
        /// The file or the folder that was to be loaded from.
        path: PathBuf,
        /// The number of bytes that were needed.
        len_bytes: u64,
        /// The error that CUDA or the operating system returned.
        cause: Cause,
    },
    /// Two files have a tensor of the same name.
    #[error("tensor {tensor:?} is in {:?} and in {:?}", .files[0], .files[1])]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// The files.
        files: [PathBuf; 2],
    },
    /// An index says that a file has a tensor, and it has not.
    #[error("tensor {tensor:?} is not in {file:?}, where {index:?} says that it is")]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The file that should have it.
        file: PathBuf,
        /// The index.
        index: PathBuf,
    },
    /// A folder has an index and a file of another model, and which one is newer is not known.
    #[error(
        "{index:?} does not name {file:?} beside it: these are two models, of which one is stale; remove it, or open \
         the other by its own path"
    )]
    TwoModels {
        /// The index.
        index: PathBuf,
        /// The file.
        file: PathBuf,
    },
    /// There is no tensor of that name.
    #[error("there is no tensor {tensor:?} in {path:?}{}", Others(.others))]
    NoSuchTensor {
        /// The tensor.
        tensor: String,
        /// The file or the index that was opened, or the first file of several.
        path: PathBuf,
        /// The number of other files that were opened without an index.
        others: usize,
    },
    /// A buffer's length differs from that of the array that it is to hold.
    #[error("{path:?}: {array}: {needed_bytes} bytes, and the buffer has {buffer_bytes}")]
    BufferSize {
        /// The file or the folder that was to be loaded from or saved to.
        path: PathBuf,
        /// The content that it is to hold: a tensor, rows of one, or an array.
        array: String,
        /// The number of bytes of that content.
        needed_bytes: u64,
        /// The number of bytes of the buffer.
        buffer_bytes: usize,
    },
}

impl Error {
    /// Returns the kind that an [`io::Error`] of the same cause has.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Error::File(error) | Error::Save { error, .. } => error.kind(),
            Error::Memory { .. } => io::ErrorKind::OutOfMemory,
            Error::NoSuchTensor { .. } => io::ErrorKind::NotFound,
            Error::BufferSize { .. } => io::ErrorKind::InvalidInput,
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
/// Names from the file are shown quoted and escaped, and cut if they are long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file is of another format.
    #[error("not {format} data: it does not start with {expected}")]
    OtherFormat {
        /// The format that was asked for.
        format: &'static str,
        /// The start of that format's files.
        expected: &'static str,
    },
    /// The file is of another format, which is known by its start.
    #[error("not {format} data but {found}")]
    KnownFormat {
        /// The format that was asked for.
        format: &'static str,
        /// A description of the file.
        found: &'static str,
    },
    /// The file is of a version of the format that is not known.
    #[error("version {}.{} of {format} is not known", .version.0, .version.1)]
    UnknownVersion {
        /// The format.
        format: &'static str,
        /// Major and minor version.
        version: (u8, u8),
    },
    /// The file, or the part of it that the caller passed, ends too early.
    #[error("{what} ends at byte {needed_bytes}, and there are only {available_bytes} bytes")]
    Truncated {
        /// The part that is cut: the header or the data, of which format.
        what: &'static str,
        /// The number of bytes from the start of the file that are needed.
        needed_bytes: u64,
        /// The number of bytes that there are.
        available_bytes: u64,
    },
    /// A header is longer than this crate reads or writes.
    #[error("a {format} header of {len_bytes} bytes is over the limit of {limit_bytes}")]
    HeaderTooLarge {
        /// The format.
        format: &'static str,
        /// The length of the header in bytes, as it is stated or as it would be written.
        len_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A header does not have the form that the format asks for.
    #[error("{}byte {offset} of the {format} file: {message}", Of(.tensor))]
    Syntax {
        /// The format.
        format: &'static str,
        /// The tensor that was being read.
        tensor: Option<String>,
        /// The offset in the file, in bytes.
        offset: u64,
        /// A description of what was found or expected.
        message: String,
    },
    /// Two tensors have the same name.
    #[error("tensor {tensor:?} is there twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A key occurs twice.
    #[error("{}{key:?} occurs twice{}", Of(.tensor), At(.offset))]
    Duplicate {
        /// The key.
        key: String,
        /// The tensor in whose description it occurs, for a key in one.
        tensor: Option<String>,
        /// The offset of the second in the file, in bytes, if that is known.
        offset: Option<u64>,
    },
    /// A key is not there.
    #[error("{}{key:?} is missing{}", Of(.tensor), At(.offset))]
    Missing {
        /// The key.
        key: &'static str,
        /// The tensor that lacks it, for a key of a tensor.
        tensor: Option<String>,
        /// The offset in the file at which the parser missed it, in bytes, if that is known.
        offset: Option<u64>,
    },
    /// The element type is not known, or not supported.
    #[error("{}the element type {dtype:?} {problem}{}", Of(.tensor), At(.offset))]
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
    /// Shape times element size is not representable.
    #[error("{}shape times element size is more than 2^64 - 1 bytes, zeros in the shape left aside", Of(.tensor))]
    SizeOverflow {
        /// The tensor, if the format names it.
        tensor: Option<String>,
    },
    /// All tensors together are more than a file can hold.
    #[error("tensor {tensor:?}: with it the file has more than 2^64 - 1 bytes")]
    FileOverflow {
        /// The first tensor that is too much.
        tensor: String,
    },
    /// A tensor, or the part that was asked for, does not start and end at whole bytes.
    #[error("tensor {tensor:?}: bits {} to {} are not whole bytes", .bits.start, .bits.end)]
    PartialByte {
        /// The tensor.
        tensor: String,
        /// The part that was asked for, in bits from the tensor's start.
        bits: Range<u128>,
    },
    /// A tensor's range is not as long as its shape and type say.
    #[error(
        "tensor {tensor:?}: shape and type say {shape_bytes} bytes, but its offsets are {} to {}",
        .offsets.start, .offsets.end
    )]
    SizeMismatch {
        /// The tensor.
        tensor: String,
        /// The tensor's range, in bytes from the start of the data.
        offsets: Range<u64>,
        /// The number of bytes that shape and type say.
        shape_bytes: u64,
    },
    /// A tensor's range ends before it starts.
    #[error("tensor {tensor:?}: its offsets {start} to {end} run backwards")]
    Backwards {
        /// The tensor.
        tensor: String,
        /// The start of the range, in bytes from the start of the data.
        start: u64,
        /// The end of the range, likewise.
        end: u64,
    },
    /// A tensor's range ends after the file does.
    #[error(
        "tensor {tensor:?}: it ends at byte {end} of the data, and the file has only {data_len} bytes of data"
    )]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// The end of the tensor, in bytes from the start of the data.
        end: u64,
        /// The number of bytes of data that the file has.
        data_len: u64,
    },
    /// Two tensors share bytes, or one without bytes lies inside another.
    #[error("tensor {tensor:?}: it starts at byte {offset} of the file, inside of {other:?}")]
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
    Gap {
        /// The tensor behind them. None if they are the last of the file.
        tensor: Option<String>,
        /// The offset of these bytes, from the start of the file.
        offset: u64,
        /// The number of these bytes.
        len_bytes: u64,
    },
    /// Rows were asked for that a tensor does not have.
    #[error("{}there are {available} rows, not rows {} to {}", Of(.tensor), .rows.start, .rows.end)]
    NoSuchRows {
        /// The tensor, if the format names it.
        tensor: Option<String>,
        /// The rows that were asked for.
        rows: Range<u64>,
        /// The number of rows that there are: the length of the first axis, and 0 for a scalar.
        available: u64,
    },
    /// Rows were asked for of an array in Fortran order.
    #[error(
        "the array is in Fortran order, where the elements of a row are not neighbours; it can be read as a whole"
    )]
    FortranRows,
    /// A tensor's name is one that the format uses for something else.
    #[error("a tensor cannot be called {name:?}")]
    ReservedName {
        /// The name.
        name: String,
    },
    /// The file name that an index gives for a tensor does not stay in the folder of the index.
    #[error("tensor {tensor:?}: {file:?} is not a plain file name relative to the index")]
    FileName {
        /// The tensor.
        tensor: String,
        /// The file name.
        file: String,
    },
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
            | FormatError::NoSuchRows { tensor, .. }
            | FormatError::Gap { tensor, .. } => tensor.as_deref(),
            FormatError::DuplicateTensor { tensor }
            | FormatError::FileOverflow { tensor }
            | FormatError::PartialByte { tensor, .. }
            | FormatError::SizeMismatch { tensor, .. }
            | FormatError::Backwards { tensor, .. }
            | FormatError::PastEnd { tensor, .. }
            | FormatError::Overlap { tensor, .. }
            | FormatError::ReservedName { name: tensor }
            | FormatError::FileName { tensor, .. } => Some(tensor),
            FormatError::OtherFormat { .. }
            | FormatError::KnownFormat { .. }
            | FormatError::FortranRows
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

/// Returns the failure of one of several transfers without its number. The number means nothing to the caller, which
/// did not number the transfers; the file and the offset do.
pub(super) fn of_entry(error: crate::Error) -> crate::Error {
    match error {
        crate::Error::Entry { error, .. } => *error,
        other => other,
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
        self.0.iter().try_for_each(|tensor| write!(f, "tensor {tensor:?}: "))
    }
}

struct Before<'a>(&'a Option<String>);

impl fmt::Display for Before<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|tensor| write!(f, "before tensor {tensor:?}: "))
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
