use std::ops::Range;
use std::path::Path;

use cufile::{IoBuf, IoBufMut};

use super::header::{NpyHeader, PREFIX_LEN, head_len};
use crate::cuda::{Device, DeviceBuffer};
use crate::formats::head::{self, malformed};
use crate::formats::memory::{addressable, allocate, check_len, zeroed};
use crate::formats::save::save;
use crate::formats::{Error, Result, SaveOptions, regular};
use crate::{File, OpenOptions};

/// An array in an npy file.
///
/// Opening reads the header only. The methods read the array, from any thread. They do not change its bytes:
/// [`NpyHeader::descr`] has their byte order, and [`NpyHeader::order`] the order of the axes.
///
/// ```
/// use gpufile::formats::SaveOptions;
/// use gpufile::formats::npy::{self, NpyFile};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-array-{}.npy", std::process::id()));
/// let rows: Vec<u8> = (0..24).collect();
/// npy::write(&path, "<u2", &[4, 3], &rows, &SaveOptions::new())?; // or a DeviceBuffer
///
/// let file = NpyFile::open(&path)?;
/// assert_eq!(file.header().shape(), [4, 3]);
/// assert_eq!(file.read_to_host()?, rows); // or read_to_device
/// let mut two_rows = vec![0; 12];
/// file.read_rows_into(1..3, &mut two_rows)?;
/// assert_eq!(two_rows, rows[6..18]);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NpyFile {
    file: File,
    header: NpyHeader,
}

impl NpyFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be opened or read, or is not a regular file; [`Error::Format`] if its header
    /// is wrong.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::new())
    }

    /// Opens a file as [`open`](Self::open) does, with the engine, the policy and the use of `O_DIRECT` of `options`.
    /// Ignores access and creation options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::of_file(regular::open(path.as_ref(), options)?)
    }

    pub(super) fn of_file(file: File) -> Result<Self> {
        let (head, file_len) = head::read(&file, PREFIX_LEN, head_len)?;
        let header = NpyHeader::parse(&head, file_len).map_err(|error| malformed(&file, error))?;
        Ok(Self { file, header })
    }

    /// Returns the header, which has the type, the shape and the place of the array.
    pub fn header(&self) -> &NpyHeader {
        &self.header
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads the array into new memory of the GPU.
    ///
    /// # Errors
    /// [`Error::Memory`] if the GPU has no room, [`Error::File`] if reading or copying fails.
    pub fn read_to_device(&self, device: &Device) -> Result<DeviceBuffer> {
        let mut buffer = allocate(self.file.path(), device, self.len_bytes()?)?;
        self.read_into(&mut buffer)?;
        Ok(buffer)
    }

    /// Reads the array into new memory of the host.
    ///
    /// # Errors
    /// [`Error::Memory`] if the host has no room, [`Error::File`] if reading fails.
    pub fn read_to_host(&self) -> Result<Vec<u8>> {
        let mut bytes = zeroed(self.file.path(), self.len_bytes()?)?;
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the array into a buffer of the same length, of the host or a GPU.
    ///
    /// # Errors
    /// [`Error::BufferSize`], [`Error::File`].
    pub fn read_into<B: IoBufMut + ?Sized>(&self, buffer: &mut B) -> Result<()> {
        check_len(
            self.file.path(),
            || "the array".to_owned(),
            self.header.data_len_bytes(),
            buffer.len_bytes(),
        )?;
        Ok(self.file.read_exact_at(buffer, self.header.data_start())?)
    }

    /// Reads rows of the array into a buffer of the same length, of the host or a GPU. Rows are indices along
    /// the first axis, from 0.
    ///
    /// # Errors
    /// [`Error::BufferSize`], [`Error::File`]; [`Error::Format`] as [`NpyHeader::slice_rows`].
    pub fn read_rows_into<B: IoBufMut + ?Sized>(&self, rows: Range<u64>, buffer: &mut B) -> Result<()> {
        let range = self.header.slice_rows(rows.clone()).map_err(|error| malformed(&self.file, error))?;
        let what = || format!("rows {} to {} of the array", rows.start, rows.end);
        check_len(self.file.path(), what, range.end - range.start, buffer.len_bytes())?;
        Ok(self.file.read_exact_at(buffer, range.start)?)
    }

    fn len_bytes(&self) -> Result<usize> {
        addressable(self.file.path(), self.header.data_len_bytes())
    }
}

/// Writes an array to a file. When it is complete, the file replaces an older one, as [`SaveOptions`] describes.
/// Returns the length of the file in bytes.
///
/// `descr` is the type of the elements, as for [`NpyHeader::build`]. `shape` has the length of each axis, in elements.
/// The buffer is in C order, if [`SaveOptions::order`] does not declare another.
///
/// # Errors
/// [`Error::Format`] as [`NpyHeader::build`]; [`Error::BufferSize`] if the buffer has more or fewer bytes than shape
/// and type say; [`Error::Save`] if the file cannot be written or replaced, with what is in place then.
pub fn write<B: IoBuf + ?Sized>(
    path: impl AsRef<Path>,
    descr: &str,
    shape: &[u64],
    buffer: &B,
    options: &SaveOptions,
) -> Result<u64> {
    let path = path.as_ref();
    let (header, head) = NpyHeader::build(descr, options.order, shape)
        .map_err(|error| Error::Format { path: path.to_owned(), error })?;
    check_len(path, || "the array".to_owned(), header.data_len_bytes(), buffer.len_bytes())?;
    save(path, options, |file, _| {
        file.write_all_at(&head, 0)?;
        file.write_all_at(buffer, header.data_start())
    })?;
    Ok(header.file_len_bytes())
}
