//! The options for opening objects.

#[cfg(feature = "s3")]
mod stores;

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::RemoteFile;
use super::cache::{Cache, Place};
use super::connection::tls::Trust;
use super::http::HttpObject;
use super::location::{ESCAPED, Location, without_secrets};
use super::policy::Policy;
use super::proxy::{Proxies, Proxy};
use super::source::Source;
use crate::engine::Engine;
use crate::error::RemoteError;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::file::options::OpenOptions;
use crate::local_path;
use crate::open_file::OpenFile;

/// The options for opening an object on a server.
///
/// ```no_run
/// use std::time::Duration;
///
/// use gpufile::Engine;
/// use gpufile::remote::RemoteFile;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // 32 connections for host memory, and 32 for each GPU.
/// let engine = Engine::builder().threads(32).build();
/// let options = RemoteFile::options()
///     .engine(&engine)
///     .header("Authorization", "Bearer …")
///     .timeout(Duration::from_secs(10));
/// let file = options.open("http://example.org/model.safetensors")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct RemoteOptions {
    engine: Option<Engine>,
    policy: Policy,
}

impl RemoteOptions {
    /// Returns the options that [`RemoteFile::open`] uses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this engine instead of the process's default. Each of its [threads](crate::EngineBuilder::threads) has a connection
    /// while it reads.
    ///
    /// The engine's threads replace KvikIO's `RemoteIOBackend` (`remote_io_backend`) with `EASY_THREADPOOL` and `MULTI_POLL`,
    /// `RemoteReactorDispatch` (`remote_io_reactor_dispatch`) with `PER_CHUNK` and `PER_PREAD`, and `remote_io_num_reactors`.
    /// Their number also limits the requests, as `remote_io_max_concurrent_requests` does there.
    #[doc(alias = "RemoteIOBackend")]
    #[doc(alias = "EASY_THREADPOOL")]
    #[doc(alias = "MULTI_POLL")]
    #[doc(alias = "RemoteReactorDispatch")]
    #[doc(alias = "PER_CHUNK")]
    #[doc(alias = "PER_PREAD")]
    #[doc(alias = "remote_io_backend")]
    #[doc(alias = "remote_io_num_reactors")]
    #[doc(alias = "remote_io_reactor_dispatch")]
    #[doc(alias = "remote_io_max_concurrent_requests")]
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Sets the time in which a server must send 64 KiB of what a request asks for, or all of it: 30 s if it is not set, and at
    /// least 1 ms. The time begins anew with every 64 KiB, so slow connections carry long ranges. A server that sends less, in
    /// however many answers and redirects, fails the try.
    ///
    /// Without any bytes, a read takes at most this time and the [wait](Self::wait) for each of the [tries](Self::tries). A
    /// request that writes ends after this time.
    ///
    /// Names elsewhere: `http_timeout`, `set_http_timeout` (KvikIO).
    #[doc(alias = "http_timeout")]
    #[doc(alias = "set_http_timeout")]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = timeout.clamp(Duration::from_millis(1), Duration::from_secs(24 * 60 * 60));
        self
    }

    /// Sets how often a request is sent after failures that may pass (broken connections, unusable answers, a
    /// [timeout](Self::timeout), some [statuses](Self::statuses)): 5 times if it is not set, and at least once. The tries are
    /// counted anew with every 64 KiB that arrive.
    ///
    /// Names elsewhere: `http_max_attempts`, `set_http_max_attempts` (KvikIO).
    #[doc(alias = "http_max_attempts")]
    #[doc(alias = "set_http_max_attempts")]
    pub fn tries(mut self, tries: u32) -> Self {
        self.policy.tries = tries.max(1);
        self
    }

    /// Sets the wait before the second try: 0.1 s if it is not set. Each later wait is twice as long. A server may ask for
    /// another wait (`Retry-After`). No wait is longer than the [timeout](Self::timeout).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = wait.min(Duration::from_secs(60));
        self
    }

    /// Sets the statuses of HTTP after which a request is sent again. If they are not set, these are 408, 429, 500, 502, 503
    /// and 504.
    ///
    /// Names elsewhere: `http_status_codes`, `set_http_status_codes` (KvikIO).
    #[doc(alias = "http_status_codes")]
    #[doc(alias = "set_http_status_codes")]
    pub fn statuses(mut self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.policy.statuses = statuses.into_iter().collect();
        self
    }

    /// Sends a header with each request to the server of the address, but to no other server that it redirects to.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.policy.headers.push((name.into(), value.into()));
        self
    }

    /// Keeps whole objects in this folder, at most `most_bytes` bytes in all. Objects that were used longest ago are
    /// deleted to make room.
    ///
    /// Opening an object then asks the server for the version, and fetches all of it unless the folder has it. Reads are those
    /// of a local file. Objects with the same address, ETag and length are the same. Those without a strong ETag or without
    /// room, and those that another process is fetching, are read as without a cache.
    ///
    /// Processes of one user share the folder, which nobody else may open. A missing one is made. An existing one must belong
    /// to the user, no other user may write to it, and it must not be a symbolic link. It may have other files only if no other
    /// user may read it; these are neither served nor deleted. Opening an object fails otherwise.
    pub fn cache(mut self, folder: impl Into<PathBuf>, most_bytes: u64) -> Self {
        self.policy.cache = Some(Cache { folder: folder.into(), most_bytes });
        self
    }

    /// Sends all requests through this proxy, for example `http://user:password@example.org:3128`. An empty text stands for no
    /// proxy. Without this, the variables that curl reads choose one when the options are made: `http_proxy`, `https_proxy`,
    /// `all_proxy` and `no_proxy`, also in capitals except `HTTP_PROXY`.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if this is no address, or one with another scheme than `http`.
    pub fn proxy(mut self, address: &str) -> std::result::Result<Self, RemoteError> {
        self.policy.proxies = match address {
            "" => Proxies::None,
            address => Proxies::One(Proxy::parse(address)?),
        };
        Ok(self)
    }

    /// Sets the most bytes that one request asks for. If it is not set, requests have the length of the engine's
    /// [chunks](crate::EngineBuilder::chunk_bytes). If that was not set either, it is at most 2 MiB for a near server, which
    /// answers within 0.4 ms.
    pub fn request_bytes(mut self, bytes: usize) -> Self {
        self.policy.request_bytes = Some(bytes.max(1) as u64);
        self
    }

    /// Sets the longest gap in bytes between two ranges of a list that one request gets along with them, and drops: 32 KiB if
    /// it is not set.
    pub fn gap_bytes(mut self, bytes: usize) -> Self {
        self.policy.gap_bytes = bytes.min(16 << 20);
        self
    }

    /// Sets whether a second connection asks for the missing bytes of a late answer, as it does if this is not set. An answer
    /// is late after four times the time of most others of its length, and 50 ms. At most one of sixteen is repeated.
    pub fn repeat_late(mut self, repeats: bool) -> Self {
        self.policy.repeats_late = repeats;
        self
    }

    /// Also trusts servers whose certificates are signed by one of these authorities, in the format PEM. The machine's
    /// authorities are those of the distribution, or of the file that `SSL_CERT_FILE` names.
    ///
    /// # Errors
    /// [`RemoteError::Invalid`] if there is no certificate, or a damaged one.
    pub fn trust(mut self, pem: &[u8]) -> std::result::Result<Self, RemoteError> {
        let before = self.policy.trust.take().unwrap_or_else(Trust::of_machine);
        self.policy.trust = Some(before.with(pem)?);
        Ok(self)
    }

    /// Opens the object at this address. Asks the server for the object's length and version, and its first byte, because not
    /// all servers send ranges.
    ///
    /// # Errors
    /// [`Error::Open`] with [`Cause::Remote`]. Its path is the address without what may be secret in it.
    pub fn open(&self, address: &str) -> Result<RemoteFile> {
        let source = Location::parse(address).and_then(|location| self.source(location));
        let decoded = source.as_ref().ok().and_then(Source::decoded);
        self.open_source(address, source).map_err(|error| self.with_spelling(error, decoded))
    }

    /// Adds to a failure that another object has the decoded key.
    fn with_spelling(&self, mut error: Error, decoded: Option<Source>) -> Error {
        if let Error::Open { cause: Cause::Remote(cause), .. } = &mut error
            && let RemoteError::Status { status: 403 | 404, reason, .. } = &mut **cause
            && self.has(decoded)
        {
            *reason = ESCAPED;
        }
        error
    }

    pub(super) fn has(&self, object: Option<Source>) -> bool {
        object.is_some_and(|object| HttpObject::open(object, &self.policy).is_ok())
    }

    /// Opens another object in the folder of one, or below it.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub(super) fn open_beside(&self, one: &Source, name: &str) -> Result<RemoteFile> {
        let location = one.location().beside(name);
        self.open_source(&location.text(), one.with(location))
    }

    /// Returns the way to an object.
    pub(super) fn source(&self, location: Location) -> std::result::Result<Source, RemoteError> {
        Source::new(location, &self.policy)
    }

    fn open_source(
        &self,
        address: &str,
        source: std::result::Result<Source, RemoteError>,
    ) -> Result<RemoteFile> {
        let failed = |cause: Cause| Error::Open { path: PathBuf::from(without_secrets(address)), cause };
        let engine = self.engine_options().engine_or_global().map_err(failed)?;
        self.policy.cache.as_ref().map_or(Ok(()), |cache| local_path::check(&cache.folder))?;
        let object = source
            .and_then(|source| HttpObject::open(source, &self.policy))
            .map_err(|error| failed(error.into()))?;
        let engine = engine.for_objects(object.is_near());
        let object = Arc::new(object);
        let file = File::over(without_secrets(address).as_ref(), object.clone(), engine)?;
        let file = self.cached(&file, &object, address)?.unwrap_or(file);
        Ok(RemoteFile { file, object })
    }

    /// Returns an object's file in the cache, fetched if need be; `None` if the cache cannot have it.
    fn cached(&self, file: &File, object: &HttpObject, address: &str) -> Result<Option<File>> {
        let Some(cache) = &self.policy.cache else { return Ok(None) };
        let cache = cache.open()?;
        let len_bytes = file.len_bytes()?;
        let strong = object.etag().filter(|etag| !etag.starts_with("W/"));
        let Some(etag) = strong.filter(|_| len_bytes > 0) else { return Ok(None) };
        // The options may name another server for the same address.
        let place = cache.place(&format!("{address}\n{}", object.origin()), etag, len_bytes);
        let mut found = place.open()?;
        if found.is_none() && fetch(file, &place, len_bytes)? {
            found = place.open()?;
        }
        let Some(found) = found else { return Ok(None) };
        let (path, engine) = (file.path().to_owned(), file.engine());
        let open = OpenFile::new(path.clone(), found, engine.gpus().clone(), engine.settings().clone());
        let open = open.map_err(|error| Error::Open { path, cause: error.into() })?;
        Ok(Some(File::new(open, engine.clone())))
    }

    pub(crate) fn engine_options(&self) -> OpenOptions {
        self.engine.iter().fold(OpenOptions::new(), OpenOptions::engine)
    }
}

/// Reads a whole object into its place. Returns false if that is impossible, for example on a full disk.
///
/// # Errors
/// The failure of reading the object. [`Error::Open`] if something else has the name of its file.
fn fetch(file: &File, place: &Place<'_>, len_bytes: u64) -> Result<bool> {
    const AT_ONCE: u64 = 16 << 20;
    let Some(part) = place.begin()? else { return Ok(false) };
    let mut buffer = vec![0; len_bytes.min(AT_ONCE) as usize];
    for offset in (0..len_bytes).step_by(AT_ONCE as usize) {
        let some = &mut buffer[..(len_bytes - offset).min(AT_ONCE) as usize];
        file.read_exact_at(some, offset)?;
        if part.file.write_all_at(some, offset).is_err() {
            return Ok(false);
        }
    }
    Ok(part.end().is_ok())
}
