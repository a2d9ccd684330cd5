//! Saving a model whose bytes come one after the other, so that they are never in memory as a whole.

use std::path::Path;

use cufile::{BufSlice, IoBuf};

use super::super::headers::header::Header;
use super::super::headers::write::NewTensor;
use super::models::Saved;
use super::plan::{malformed, save_file};
use crate::formats::{Result, SaveOptions};
use crate::{Cause, Error, File, Request};

/// A new file that gets the bytes of its tensors.
#[derive(Debug)]
pub struct Appender<'a> {
    file: &'a File,
    /// The end of what was appended, and that of the file, in bytes.
    at: u64,
    end: u64,
}

impl Appender<'_> {
    /// Appends the bytes of these buffers. They need not begin or end with a tensor.
    ///
    /// # Errors
    /// [`Error::File`] if the tensors have fewer bytes; the error of the write.
    pub fn append(&mut self, buffers: &[BufSlice<'_>]) -> crate::Result<()> {
        let len_bytes = buffers.iter().map(|buffer| buffer.len_bytes() as u64).sum::<u64>();
        if len_bytes > self.end - self.at {
            return Err(self.failed(format!(
                "the tensors lack {} bytes, and {len_bytes} were given",
                self.end - self.at
            )));
        }
        let mut requests = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            requests.push(Request { file: self.file, buffer: *buffer, offset: self.at });
            self.at += buffer.len_bytes() as u64;
        }
        self.file.engine().write_many(&requests)
    }

    /// Returns an error of this file, for a `write` that cannot go on.
    pub fn failed(&self, cause: String) -> Error {
        Error::File {
            operation: "append to",
            path: self.file.path().to_owned(),
            cause: Cause::Invalid(cause),
        }
    }
}

/// Saves tensors to one file, which replaces an older model as [`save`](super::models::save) does. `write` appends their
/// bytes in the order of [`Header::tensors`].
///
/// # Errors
/// As `save`. [`Error::Save`](crate::formats::Error::Save) also if `write` fails, or appends too few bytes. What killed
/// processes left is not removed if the file system is full, because the bytes come only once.
pub fn save_appended(
    path: &Path,
    tensors: &[NewTensor<'_>],
    options: &SaveOptions,
    mut write: impl FnMut(&mut Appender<'_>) -> crate::Result<()>,
) -> Result<Saved> {
    let built = Header::build(tensors, options.metadata.clone());
    let (header, head) = built.map_err(|error| malformed(path, error))?;
    let mut failed_with = None;
    save_file(path, options, |file| {
        if let Some(errno) = failed_with {
            return Err(file.failed("write", std::io::Error::from_raw_os_error(errno)));
        }
        file.write_all_at(&head, 0)?;
        let mut appender = Appender { file, at: head.len() as u64, end: header.file_len_bytes() };
        write(&mut appender).inspect_err(|error| failed_with = error.raw_os_error())?;
        match appender.end - appender.at {
            0 => Ok(()),
            missing => Err(appender.failed(format!("{missing} bytes of the tensors are missing"))),
        }
    })?;
    Ok(Saved { path: path.to_owned(), len_bytes: header.file_len_bytes() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::formats::Dtype;
    use crate::formats::safetensors::{TensorData, save};

    const BYTES: [u8; 22] = *b"0123456789abcdefABCDEF";

    fn saved(
        path: &Path,
        write: impl FnMut(&mut Appender<'_>) -> crate::Result<()>,
    ) -> std::result::Result<Saved, String> {
        let small = NewTensor { name: "a", dtype: Dtype::U8, shape: &[6] };
        let large = NewTensor { name: "b", dtype: Dtype::F64, shape: &[2] };
        let options = SaveOptions::new().sync(false);
        save_appended(path, &[small, large], &options, write).map_err(|error| error.to_string())
    }

    #[test]
    fn pieces_make_the_same_file_as_whole_tensors() {
        let folder = tempfile::tempdir().unwrap();
        let (path, whole) = (folder.path().join("x"), folder.path().join("y"));
        let tensors = [
            TensorData::new("a", Dtype::U8, &[6], &BYTES[16..]),
            TensorData::new("b", Dtype::F64, &[2], &BYTES[..16]),
        ];
        let expected = save(&whole, &tensors, &SaveOptions::new().sync(false)).unwrap();
        for piece in [1, 5, 22] {
            let append =
                |to: &mut Appender<'_>| BYTES.chunks(piece).try_for_each(|bytes| to.append(&[bytes.into()]));
            assert_eq!(saved(&path, append).unwrap().len_bytes, expected.len_bytes);
            assert_eq!(fs::read(&path).unwrap(), fs::read(&whole).unwrap());
        }
    }

    #[test]
    fn wrong_numbers_of_bytes_keep_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "old").unwrap();
        let missing = saved(&path, |to| to.append(&[BYTES[..20].into()])).unwrap_err();
        assert!(missing.contains("2 bytes of the tensors are missing"), "{missing}");
        let many = saved(&path, |to| to.append(&[BYTES[..].into(), BYTES[..1].into()])).unwrap_err();
        assert!(many.contains("the tensors lack 22 bytes, and 23 were given"), "{many}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn bytes_are_asked_for_once_on_full_file_systems() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mut calls = 0;
        let full = saved(&path, |to| {
            calls += 1;
            // A save that finds this removes it, and has room then.
            fs::write(folder.path().join(".x.0123456789abcdef.gpufile-tmp"), "").unwrap();
            Err(to.file.failed("write", std::io::Error::from_raw_os_error(libc::ENOSPC)))
        });
        let full = full.unwrap_err();
        assert!(full.contains("No space left on device"), "{full}");
        assert_eq!((calls, fs::read_dir(folder.path()).unwrap().count()), (1, 0));
    }
}
