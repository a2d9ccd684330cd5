//! Transfers of an array: reading and writing it. Chooses between raw and coded chunks.

use std::ops::Range;

use cufile::{IoBuf, IoBufMut};

use super::array::Array;
use super::{coded, raw};
use crate::cuda::{Device, DeviceBuffer};
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::Result;
use crate::formats::memory::{addressable, allocate, zeroed};

impl Array {
    /// Reads the array into new memory of the GPU.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::formats::Error::Memory) if the GPU has no room; otherwise as
    /// [`read_into`](Self::read_into).
    pub fn read_to_device(&self, device: &Device) -> Result<DeviceBuffer> {
        let path = self.folder();
        let mut buffer = allocate(&path, device, addressable(&path, self.len_bytes())?)?;
        self.read_into(&mut buffer)?;
        Ok(buffer)
    }

    /// Reads the array into new memory of the host.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::formats::Error::Memory) if the host has no room; otherwise as
    /// [`read_into`](Self::read_into).
    pub fn read_to_host(&self) -> Result<Vec<u8>> {
        let path = self.folder();
        let mut bytes = zeroed(&path, addressable(&path, self.len_bytes())?)?;
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the array into a buffer of the same length, of the host or a GPU.
    ///
    /// # Errors
    /// [`Error::BufferSize`](crate::formats::Error::BufferSize); [`Error::Zarr`](crate::formats::Error::Zarr), with the
    /// chunk, if a file has another length than its chunk or cannot be decoded;
    /// [`Error::File`](crate::formats::Error::File) if a file cannot be opened, read or copied;
    /// [`Error::Memory`](crate::formats::Error::Memory). The buffer may then have the elements of other chunks.
    pub fn read_into<B: IoBufMut + ?Sized>(&self, buffer: &mut B) -> Result<()> {
        self.read_region_into(&self.whole(), buffer)
    }

    /// Reads a region of the array into a buffer of the same length, of the host or a GPU. A region is a
    /// range of indices for each axis.
    ///
    /// # Errors
    /// As [`read_into`](Self::read_into); [`Error::Zarr`](crate::formats::Error::Zarr) also if the array does not have
    /// the region.
    pub fn read_region_into<B: IoBufMut + ?Sized>(
        &self,
        region: &[Range<u64>],
        buffer: &mut B,
    ) -> Result<()> {
        self.check_buffer(region, buffer.len_bytes())?;
        if buffer.len_bytes() == 0 {
            return Ok(());
        }
        let engine = self.engine()?;
        let memory = engine.gpus().memory_of_mut(buffer).map_err(|error| self.copy_error(error))?;
        let read = if raw::suits(self, region)? { raw::read } else { coded::read };
        // SAFETY: the buffer is as long as the region, and stays borrowed during the call.
        unsafe { read(self, region, &memory, &engine) }
    }

    /// Writes the whole array from a buffer of the same length, of the host or a GPU. The file of a chunk
    /// replaces an older one when it is complete. Does not write the metadata of the array.
    ///
    /// # Errors
    /// [`Error::BufferSize`](crate::formats::Error::BufferSize); [`Error::Save`](crate::formats::Error::Save) if a file
    /// cannot be written; [`Error::Zarr`](crate::formats::Error::Zarr), with the chunk, if a coded chunk cannot be encoded
    /// or written; [`Error::File`](crate::formats::Error::File), [`Error::Memory`](crate::formats::Error::Memory). Other
    /// chunks may be new then.
    pub fn write_from<B: IoBuf + ?Sized>(&self, buffer: &B) -> Result<()> {
        let region = self.whole();
        self.check_buffer(&region, buffer.len_bytes())?;
        if buffer.len_bytes() == 0 {
            return Ok(());
        }
        let engine = self.engine()?;
        let memory = engine.gpus().memory_of(buffer).map_err(|error| self.copy_error(error))?;
        let write = if raw::suits(self, &region)? { raw::write } else { coded::write };
        // SAFETY: the buffer is as long as the array, and stays borrowed during the call.
        unsafe { write(self, &region, &memory, &engine) }
    }

    fn whole(&self) -> Vec<Range<u64>> {
        self.shape().iter().map(|&axis| 0..axis).collect()
    }
}
