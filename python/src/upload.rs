//! Objects of stores whose bytes come from an iterator of Python.

use gpufile::BufSlice;
use gpufile::remote::Upload;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::memory::{Access, Memory, wait_for_streams};
use crate::remote::open_exception;

/// The end of an upload: an exception of Python, or an error of gpufile.
enum Failed {
    Python(PyErr),
    Upload(Box<gpufile::Error>),
}

impl From<PyErr> for Failed {
    fn from(exception: PyErr) -> Self {
        Self::Python(exception)
    }
}

impl From<gpufile::Error> for Failed {
    fn from(error: gpufile::Error) -> Self {
        Self::Upload(Box::new(error))
    }
}

/// Uploads an object with these bytes, and then those of an iterator of lists of buffers. The object appears when all have arrived.
///
/// # Errors
/// The exception of the iterator, of a handler of signals, or of the upload.
pub fn send(
    py: Python<'_>,
    begin: impl FnOnce() -> gpufile::Result<Upload> + Send,
    head: &[u8],
    pieces: Bound<'_, PyIterator>,
) -> PyResult<()> {
    let (pieces, mut raised) = (pieces.unbind(), None);
    let sent = py.detach(|| -> Result<(), Failed> {
        // Handlers of signals run between the parts of the object, and while it waits for the server.
        let mut is_cancelled = || {
            raised = raised.take().or_else(|| Python::attach(|py| py.check_signals()).err());
            raised.is_some()
        };
        let mut upload = begin()?;
        upload.write_unless(head.into(), &mut is_cancelled)?;
        while let Some(memories) = Python::attach(|py| next_piece(py, &pieces))? {
            for memory in &memories {
                upload.write_unless(BufSlice::new(memory, ..), &mut is_cancelled)?;
            }
        }
        Ok(upload.finish_unless(&mut is_cancelled)?)
    });
    match (raised, sent) {
        (_, Ok(())) => Ok(()),
        (Some(exception), Err(_)) | (None, Err(Failed::Python(exception))) => Err(exception),
        (None, Err(Failed::Upload(error))) => Err(open_exception(py, &error)),
    }
}

/// Returns the memories of the next list of an iterator, after the work of their streams.
pub fn next_piece(py: Python<'_>, pieces: &Py<PyIterator>) -> PyResult<Option<Vec<Memory>>> {
    let Some(piece) = pieces.bind(py).clone().next() else { return Ok(None) };
    let memories = piece?.try_iter()?.map(|buffer| Memory::of(&buffer?, Access::Read));
    let memories = memories.collect::<PyResult<Vec<_>>>()?;
    wait_for_streams(py, &memories)?;
    Ok(Some(memories))
}
