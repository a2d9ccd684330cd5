//! The class `RemoteFile`: objects of servers, with the reads of `File`.

use std::path::PathBuf;
use std::time::Duration;

use gpufile::remote::{RemoteError, RemoteOptions};
use gpufile::{Cause, Error};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments;
use crate::engine::Engine;
use crate::error::exception;
use crate::file::File;
use crate::interrupts;

/// An object on a server, read by ranges of HTTP or HTTPS into host and GPU memory.
///
/// It is a ``File`` of mode ``"r"``. ``url`` is an address, or the ``s3://bucket/key`` of an object of S3, which is signed with
/// the credentials of the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, …). The object must
/// stay as it was when it was opened; a read of another version raises ``TransferError``.
///
/// ``headers`` are sent to the server of the address. A request is sent up to ``tries`` times, by default 5, if less than
/// 64 KiB of it arrive within ``timeout`` seconds, by default 30, if the connection breaks, or the server answers with one of the ``statuses``, by
/// default 408, 429, 500, 502, 503 and 504. ``trust`` has certificates in the format PEM, which are trusted like those of the
/// machine. ``storage_options`` come before the variables of the same names in the environment, for example
/// ``{"AWS_ENDPOINT_URL": "https://s3.example.org"}``; with them, addresses are signed, too. ``az://container/blob`` names an
/// object of Azure Blob Storage, which is signed in the same way (``AZURE_STORAGE_ACCOUNT_NAME``, …), and ``gs://bucket/object``
/// one of Google Cloud Storage (``GOOGLE_SERVICE_ACCOUNT``, …).
///
/// ``cache`` is a folder and the most bytes of it, in which whole objects are kept: the first open fetches the object, and
/// later ones, also of other processes, find it there as long as the server has the same version. ``proxy`` is the address of a
/// proxy, or ``""`` for none. Without it, the variables that curl reads choose one.
#[pyclass(frozen, extends = File, module = "gpufile")]
#[derive(Clone)]
pub struct RemoteFile {
    etag: Option<String>,
    url: String,
    options: RemoteOptions,
}

impl RemoteFile {
    /// Returns the address, which may have secrets, and the options with which the object was opened.
    pub fn source(&self) -> (String, RemoteOptions) {
        (self.url.clone(), self.options.clone())
    }

    fn with_file(self, py: Python<'_>, file: File) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(file).add_subclass(self))
    }
}

#[pymethods]
impl RemoteFile {
    /// Opens an object. Asks the server for its length, and for its first byte, because not all servers send ranges.
    #[new]
    #[pyo3(signature = (url, *, engine = None, headers = None, timeout = None, tries = None, statuses = None, trust = None,
        storage_options = None, cache = None, proxy = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::url)] url: String,
        engine: Option<&Bound<'_, Engine>>,
        #[pyo3(from_py_with = arguments::headers)] headers: Option<Vec<(String, String)>>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<Duration>,
        #[pyo3(from_py_with = arguments::tries)] tries: Option<u32>,
        #[pyo3(from_py_with = arguments::statuses)] statuses: Option<Vec<u16>>,
        trust: Option<&Bound<'_, PyBytes>>,
        #[pyo3(from_py_with = arguments::storage_options)] storage_options: Option<Vec<(String, String)>>,
        #[pyo3(from_py_with = arguments::cache)] cache: Option<(PathBuf, u64)>,
        #[pyo3(from_py_with = arguments::proxy)] proxy: Option<String>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let trust = trust.map(|pem| pem.as_bytes().to_vec());
        let engine = engine.map(|engine| engine.get().0.clone());
        let chosen =
            Chosen { engine, headers, timeout, tries, statuses, trust, storage_options, cache, proxy };
        let options = chosen.options(&url)?;
        let (opened, url, options) = interrupts::run(py, move || (options.open(&url), url, options))?;
        let remote = opened.map_err(|error| open_exception(py, &error))?;
        let etag = remote.etag().map(str::to_owned);
        Ok(PyClassInitializer::from(File::remote(remote)).add_subclass(Self { etag, url, options }))
    }

    /// Returns the same open object, with another chunk length for its transfers.
    fn with_chunk_bytes(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = arguments::chunk_bytes_of_file)] chunk_bytes: usize,
    ) -> PyResult<Py<Self>> {
        slf.get().clone().with_file(slf.py(), slf.as_super().get().with_chunk_bytes(chunk_bytes)?)
    }

    /// Returns the same open object, with another engine for its transfers.
    fn with_engine(slf: &Bound<'_, Self>, engine: &Bound<'_, Engine>) -> PyResult<Py<Self>> {
        let file = slf.as_super().get().with_engine(slf.py(), engine)?;
        let options = slf.get().options.clone().engine(&engine.get().0);
        Self { options, ..slf.get().clone() }.with_file(slf.py(), file)
    }

    /// Raises ``UnsupportedOperation``: an object has no descriptor.
    fn fileno(slf: &Bound<'_, Self>) -> PyResult<i32> {
        slf.as_super().get().get()?;
        let class = slf.py().import("io")?.getattr("UnsupportedOperation")?;
        Err(PyErr::from_value(class.call1(("an object on a server has no descriptor",))?))
    }

    /// The version of the object that is read, or None if the server named none.
    #[getter]
    fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }
}

#[derive(Default)]
pub struct Chosen {
    pub engine: Option<gpufile::Engine>,
    pub headers: Option<Vec<(String, String)>>,
    pub timeout: Option<Duration>,
    pub tries: Option<u32>,
    pub statuses: Option<Vec<u16>>,
    pub trust: Option<Vec<u8>>,
    pub storage_options: Option<Vec<(String, String)>>,
    pub cache: Option<(PathBuf, u64)>,
    pub proxy: Option<String>,
}

impl Chosen {
    pub fn options(self, url: &str) -> PyResult<RemoteOptions> {
        let mut options = RemoteOptions::new();
        if let Some(engine) = &self.engine {
            options = options.engine(engine);
        }
        for (name, value) in self.headers.into_iter().flatten() {
            options = options.header(name, value);
        }
        if let Some(timeout) = self.timeout {
            options = options.timeout(timeout);
        }
        match self.tries {
            Some(0) => return Err(PyValueError::new_err("tries is 0: expected at least 1")),
            Some(tries) => options = options.tries(tries),
            None => {}
        }
        if let Some(statuses) = self.statuses {
            options = options.statuses(statuses);
        }
        if let Some(pem) = &self.trust {
            let trusted = options.trust(pem);
            options = trusted.map_err(|error| PyValueError::new_err(format!("trust: {error}")))?;
        }
        options = with_storage_options(options, url, self.storage_options);
        if let Some((folder, most_bytes)) = self.cache {
            options = options.cache(folder, most_bytes);
        }
        if let Some(address) = &self.proxy {
            let proxied = options.proxy(address);
            options = proxied.map_err(|error| PyValueError::new_err(format!("proxy: {error}")))?;
        }
        Ok(options)
    }
}

/// Returns the address, which may have secrets, and the options of an object: of a URL, or of an open `RemoteFile`, which has its own.
///
/// # Errors
/// `ValueError` for options beside a `RemoteFile`, and for what is no address.
pub fn source_of(
    url: &Bound<'_, PyAny>,
    storage_options: Option<Vec<(String, String)>>,
) -> PyResult<(String, RemoteOptions)> {
    match url.cast::<RemoteFile>() {
        Ok(_) if storage_options.is_some() => {
            Err(PyValueError::new_err("storage_options are for URLs; a RemoteFile has its own"))
        }
        Ok(file) => Ok(file.get().source()),
        Err(_) => {
            let address = arguments::url(url)?;
            let options = with_storage_options(RemoteOptions::new(), &address, storage_options);
            Ok((address, options))
        }
    }
}

pub fn with_storage_options(
    options: RemoteOptions,
    url: &str,
    storage_options: Option<Vec<(String, String)>>,
) -> RemoteOptions {
    let pairs = storage_options.into_iter().flatten();
    pairs.fold(options, |options, (name, value)| options.store_option(url, name, value))
}

/// Returns the exception for an object that could not be opened: `ValueError` for a wrong address or option.
pub fn open_exception(py: Python<'_>, error: &Error) -> PyErr {
    match error.cause() {
        Cause::Remote(cause) if matches!(**cause, RemoteError::Invalid { .. }) => {
            PyValueError::new_err(error.to_string())
        }
        _ => exception(py, error),
    }
}
