//! Saving a model whose bytes come one after the other, so that they are never in memory as a whole.
#![allow(
    clippy::disallowed_types,
    reason = "a channel ends with the call that made it, on which no forked child goes on"
)]

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};

use cufile::{BufSlice, IoBuf, fork};

use super::super::headers::header::Header;
use super::super::headers::write::NewTensor;
use super::models::Saved;
use super::packed::{Form, Stream, Writer, copy};
use super::plan::{malformed, save_file};
use crate::formats::{Result, SaveOptions};
use crate::{Cause, Error, File, Request};

/// The most bytes that a packer gets at a time.
const PART: usize = 8 << 20;

/// A new file that gets the bytes of its tensors.
#[derive(Debug)]
pub struct Appender<'a> {
    file: &'a File,
    /// The end of what was appended, and that of the file, in bytes. Both are those of a plain file.
    at: u64,
    end: u64,
    /// The thread that packs the tensors, if one does.
    packer: Option<SyncSender<Vec<u8>>>,
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
        if let Some(packer) = &self.packer {
            for part in buffers.iter().flat_map(|buffer| {
                let len_bytes = buffer.len_bytes();
                (0..len_bytes).step_by(PART).map(move |at| buffer.slice(at..len_bytes.min(at + PART)))
            }) {
                let mut bytes = vec![0; part.len_bytes()];
                copy(&part, &mut bytes, self.file)?;
                // The error of the packer takes the place of this one.
                packer.send(bytes).map_err(|_| self.file.failed("pack", ErrorKind::BrokenPipe.into()))?;
            }
            self.at += len_bytes;
            return Ok(());
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
    let (metadata, sync) = (options.metadata.clone(), options.sync);
    let packer = options.compress.then_some(Writer { header: &header, form: Form::Packed, metadata, sync });
    packer.as_ref().map_or(Ok(0), Writer::room).map_err(|error| malformed(path, error))?;
    let mut len_bytes = header.file_len_bytes();
    let mut failed_with = None;
    save_file(path, options, |file| {
        if let Some(errno) = failed_with {
            return Err(file.failed("write", io::Error::from_raw_os_error(errno)));
        }
        let mut append = |sender| {
            let mut appender =
                Appender { file, at: head.len() as u64, end: header.file_len_bytes(), packer: sender };
            write(&mut appender)?;
            match appender.end - appender.at {
                0 => Ok(()),
                missing => Err(appender.failed(format!("{missing} bytes of the tensors are missing"))),
            }
        };
        let written = match &packer {
            None => file.write_all_at(&head, 0).and_then(|()| append(None)),
            Some(packer) => fork::scope(|scope| {
                let (send, bytes) = sync_channel(1);
                let pack = || packer.write(&mut Stream { bytes, file, piece: Vec::new(), done: 0 }, file);
                let packing = scope
                    .spawn("gpufile-save", pack)
                    .map_err(|error| file.failed("start a thread for", error))?;
                let appended = append(Some(send));
                let packed = packing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                match (appended, packed) {
                    // Either of them ends the other.
                    (Err(error), Ok(_)) => Err(error),
                    (Err(error), Err(other)) => Err(if is_end(&error) { other } else { error }),
                    (Ok(()), packed) => packed.map(|bytes| len_bytes = bytes),
                }
            }),
        };
        written.inspect_err(|error| failed_with = error.raw_os_error())
    })?;
    Ok(Saved { path: path.to_owned(), len_bytes })
}

fn is_end(error: &Error) -> bool {
    matches!(error, Error::File { operation: "pack", .. })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::formats::Dtype;
    use crate::formats::safetensors::{Checkpoint, TensorData, save};

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
    fn packed_pieces_load_as_whole_tensors() {
        let folder = tempfile::tempdir().unwrap();
        let (path, none) = (folder.path().join("x"), folder.path().join("y"));
        let weights: Vec<u8> = (0..100_000).flat_map(|at| (at as f32).sin().to_le_bytes()).collect();
        let small = NewTensor { name: "a", dtype: Dtype::U8, shape: &[6] };
        let large = NewTensor { name: "b", dtype: Dtype::F32, shape: &[100_000] };
        let options = SaveOptions::new().sync(false).compress(true);
        for piece in [70_001, 400_006] {
            let bytes: Vec<u8> = weights.iter().chain(&BYTES[..6]).copied().collect();
            let append =
                |to: &mut Appender<'_>| bytes.chunks(piece).try_for_each(|bytes| to.append(&[bytes.into()]));
            let saved = save_appended(&path, &[small, large], &options, append).unwrap();
            assert_eq!(saved.len_bytes, fs::metadata(&path).unwrap().len());
            assert!(saved.len_bytes < 360_000, "{}", saved.len_bytes);
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert!(checkpoint.read_tensor("b").unwrap() == weights);
            assert_eq!(checkpoint.read_tensor("a").unwrap(), &BYTES[..6]);
        }
        // The failure of the caller, of too few bytes, and of metadata.
        let failed = |options: &SaveOptions, write: &dyn Fn(&mut Appender<'_>) -> crate::Result<()>| {
            save_appended(&none, &[large], options, |to| write(to)).unwrap_err().to_string()
        };
        let error = failed(&options, &|to| Err(to.failed("it is the caller's".to_owned())));
        assert!(error.contains("it is the caller's"), "{error}");
        let error = failed(&options, &|to| to.append(&[weights[4..].into()]));
        assert!(error.contains("4 bytes of the tensors are missing"), "{error}");
        let error = failed(&options.clone().metadata([("gpufile.packed", "1")]), &|_| unreachable!());
        assert!(error.contains("gpufile.packed"), "{error}");
        assert!(!none.exists());
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
