use gpufile::remote;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator};

use crate::arguments;
use crate::engine::Engine;
use crate::file::File;
use crate::interrupts;
use crate::remote::{Chosen, open_exception};
use crate::upload::send;

/// Objects of a server whose names begin with a URL. They share the options of ``RemoteFile``.
#[pyclass(frozen, module = "gpufile")]
pub struct RemoteFolder {
    folder: remote::RemoteFolder,
    engine: Option<gpufile::Engine>,
}

#[pymethods]
impl RemoteFolder {
    #[new]
    #[pyo3(signature = (url, **options))]
    fn new(
        #[pyo3(from_py_with = arguments::url)] url: String,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut chosen = Chosen::default();
        for (name, value) in options.into_iter().flatten() {
            match name.extract::<String>()?.as_str() {
                _ if value.is_none() => {}
                "engine" => chosen.engine = Some(value.cast::<Engine>()?.get().0.clone()),
                "headers" => chosen.headers = arguments::headers(&value)?,
                "timeout" => chosen.timeout = arguments::timeout(&value)?,
                "tries" => chosen.tries = arguments::tries(&value)?,
                "statuses" => chosen.statuses = arguments::statuses(&value)?,
                "trust" => chosen.trust = Some(value.cast::<PyBytes>()?.as_bytes().to_vec()),
                "storage_options" => chosen.storage_options = arguments::storage_options(&value)?,
                "cache" => chosen.cache = arguments::cache(&value)?,
                "proxy" => chosen.proxy = arguments::proxy(&value)?,
                name => return Err(PyTypeError::new_err(format!("{name} is no option of objects"))),
            }
        }
        let engine = chosen.engine.clone();
        let options = chosen.options(&url)?;
        match remote::RemoteFolder::new(&url, &options) {
            Ok(folder) => Ok(Self { folder, engine }),
            Err(error) => Python::attach(|py| Err(open_exception(py, &error))),
        }
    }

    /// Opens an object by the rest of its name. Returns None if there is no such object.
    fn open(&self, py: Python<'_>, name: String) -> PyResult<Option<File>> {
        let engine = match &self.engine {
            Some(engine) => engine.clone(),
            None => Engine::of_process()?.0.clone(),
        };
        let folder = self.folder.clone();
        let opened = interrupts::run(py, move || folder.open(&name, &engine))?;
        Ok(opened.map_err(|error| open_exception(py, &error))?.map(File::remote))
    }

    /// Writes an object of so many bytes, which come from an iterator of lists of buffers. It replaces an older one as a whole.
    fn upload(
        &self,
        py: Python<'_>,
        name: &str,
        len_bytes: u64,
        pieces: Bound<'_, PyIterator>,
    ) -> PyResult<()> {
        send(py, || self.folder.upload(name, len_bytes), &[], pieces)
    }

    /// Removes an object, if there is one.
    fn remove(&self, py: Python<'_>, name: String) -> PyResult<()> {
        let folder = self.folder.clone();
        interrupts::run(py, move || folder.remove(&name))?.map_err(|error| open_exception(py, &error))
    }

    /// Returns the names of the objects in the folder, except those in folders below it.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let folder = self.folder.clone();
        interrupts::run(py, move || folder.names())?.map_err(|error| open_exception(py, &error))
    }

    /// Returns whether there is an object of this name with the characters that the %XX of its key stand for.
    fn has_decoded(&self, py: Python<'_>, name: String) -> PyResult<bool> {
        let folder = self.folder.clone();
        interrupts::run(py, move || folder.has_decoded(&name))
    }

    /// The URL without its query.
    #[getter]
    fn url(&self) -> String {
        self.folder.path().to_string_lossy().into_owned()
    }
}
