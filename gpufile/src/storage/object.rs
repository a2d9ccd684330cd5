//! Objects of the crate object_store as storages.

#![allow(
    clippy::disallowed_types,
    reason = "a forked child makes no request, and waits for no channel of its parent"
)]

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cufile::fork::Generation;
use futures_core::Stream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

use super::{Error, Folder, Spans, Storage, text_of};

/// The most requests of one read on their way.
const MOST_AT_ONCE: usize = 8;
/// The time between two questions to the caller.
const TICK: Duration = Duration::from_millis(20);
/// The most time to wait for the end of a task that sends nothing more.
const MOST_ENDING: Duration = Duration::from_secs(5);

type Part = Result<Bytes, Error>;

/// The application's client, and the runtime of its requests.
#[derive(Debug, Clone)]
struct Client {
    store: Arc<dyn ObjectStore>,
    runtime: Handle,
    /// The process that has the threads of the runtime.
    generation: Generation,
}

/// An object of any store of the crate object_store, with the application's own client and runtime.
///
/// The object is the version that its description has: its ETag goes with each request, and the answer is compared. Bytes
/// are copied once, from the client's bodies. Ranges that follow each other are one request, and a read has up to eight
/// on their way. A read whose caller no longer waits ends its requests.
///
/// Reads wait, as all calls of a [`File`](crate::File) that return no future do. A task of the runtime calls them by
/// `spawn_blocking`: a runtime with one worker that waits for itself does not go on.
///
/// ```
/// use std::sync::Arc;
///
/// use gpufile::File;
/// use gpufile::storage::ObjectStorage;
/// use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
/// let path = Path::from("models/numbers.bin");
/// runtime.block_on(store.put(&path, vec![1, 2, 3, 4].into()))?;
///
/// let object = runtime.block_on(store.head(&path))?;
/// let storage = ObjectStorage::new(store, object, runtime.handle().clone())?;
/// let file = File::from_storage("numbers.bin", Arc::new(storage))?;
/// let mut buffer = vec![0; 2]; // or device memory
/// file.read_exact_at(&mut buffer, 2)?;
/// assert_eq!(buffer, [3, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ObjectStorage {
    client: Client,
    object: ObjectMeta,
}

/// The objects of a store below a path, as the values of an array of Zarr.
///
/// ```
/// use std::sync::Arc;
///
/// use gpufile::storage::{Folder, ObjectFolder};
/// use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
/// runtime.block_on(store.put(&Path::from("era5.zarr/zarr.json"), vec![b'{'].into()))?;
///
/// let folder = ObjectFolder::new(store, Path::from("era5.zarr"), runtime.handle().clone())?;
/// assert_eq!(folder.open("zarr.json")?.unwrap().len_bytes(), 1);
/// assert!(folder.open("zarr")?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ObjectFolder {
    client: Client,
    path: Path,
}

impl ObjectStorage {
    /// Takes an object, as `head` or `list` of its store describe it.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the runtime is one of the current thread: its requests go on only while a
    /// thread waits for it.
    pub fn new(store: Arc<dyn ObjectStore>, object: ObjectMeta, runtime: Handle) -> io::Result<Self> {
        Ok(Self { client: Client::new(store, runtime)?, object })
    }
}

impl ObjectFolder {
    /// Takes a path, which need not exist.
    ///
    /// # Errors
    /// As [`ObjectStorage::new`].
    pub fn new(store: Arc<dyn ObjectStore>, path: Path, runtime: Handle) -> io::Result<Self> {
        Ok(Self { client: Client::new(store, runtime)?, path })
    }
}

impl Client {
    fn new(store: Arc<dyn ObjectStore>, runtime: Handle) -> io::Result<Self> {
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            let problem = "the runtime of an object needs threads of its own: build it with new_multi_thread";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        Ok(Self { store, runtime, generation: Generation::current() })
    }

    /// Runs a task of requests, which sends its results.
    ///
    /// # Errors
    /// This is a forked child, which has none of the threads and must not use the connections.
    fn spawn<T, F>(
        &self,
        task: impl FnOnce(Arc<dyn ObjectStore>, Sender<T>) -> F,
    ) -> Result<Request<T>, Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if !self.generation.is_current() {
            return Err("a forked child cannot use the client of its parent".into());
        }
        let (send, results) = channel();
        Ok(Request { task: self.runtime.spawn(task(self.store.clone(), send)), results })
    }
}

/// A task on its way, which ends with this value.
struct Request<T> {
    task: JoinHandle<()>,
    results: Receiver<T>,
}

impl<T> Request<T> {
    /// Waits for the next result.
    fn next(&mut self, is_cancelled: impl Fn() -> bool) -> Result<T, Error> {
        loop {
            match self.results.recv_timeout(TICK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if is_cancelled() => {
                    return Err(io::Error::from_raw_os_error(libc::ECANCELED).into());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.end()),
            }
        }
    }

    /// Returns why the task ended without a result.
    fn end(&mut self) -> Error {
        // The task drops its sender shortly before it ends.
        let start = Instant::now();
        while !self.task.is_finished() && start.elapsed() < MOST_ENDING {
            thread::sleep(Duration::from_millis(1));
        }
        let mut task = Pin::new(&mut self.task);
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) if error.is_panic() => {
                format!("the store panicked: {}", text_of(&*error.into_panic())).into()
            }
            Poll::Ready(Err(_)) => "the runtime of the store was shut down".into(),
            Poll::Ready(Ok(())) | Poll::Pending => "the store sent fewer bytes than the range has".into(),
        }
    }
}

impl<T> Drop for Request<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Storage for ObjectStorage {
    fn len_bytes(&self) -> u64 {
        self.object.size
    }

    fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error> {
        let mut ranges = spans.ranges();
        let mut on_way = VecDeque::new();
        loop {
            while on_way.len() < MOST_AT_ONCE
                && let Some(range) = ranges.next()
            {
                on_way.push_back((self.ask(range.clone())?, range.end - range.start));
            }
            let Some((mut request, mut left)) = on_way.pop_front() else { return Ok(()) };
            while left > 0 {
                let bytes = request.next(|| spans.is_cancelled())??;
                let Some(rest) = left.checked_sub(bytes.len() as u64) else {
                    return Err("the store sent more bytes than the range has".into());
                };
                spans.put(&bytes)?;
                left = rest;
            }
        }
    }
}

impl ObjectStorage {
    fn ask(&self, range: Range<u64>) -> Result<Request<Part>, Error> {
        let object = self.object.clone();
        self.client.spawn(move |store, send| async move {
            if let Err(error) = send_range(&*store, &object, range, &send).await {
                let _ = send.send(Err(error));
            }
        })
    }
}

/// Sends the parts of a range as they arrive.
async fn send_range(
    store: &dyn ObjectStore,
    object: &ObjectMeta,
    range: Range<u64>,
    send: &Sender<Part>,
) -> Result<(), Error> {
    // `If-Match` never holds for a weak ETag.
    let if_match = object.e_tag.clone().filter(|etag| !etag.starts_with("W/"));
    let options = GetOptions {
        if_match,
        version: object.version.clone(),
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let answer = store.get_opts(&object.location, options).await.map_err(with_kind)?;
    let version = |object: &ObjectMeta| {
        let etag = object.e_tag.as_deref().map(|etag| etag.trim_start_matches("W/").to_owned());
        (object.size, etag)
    };
    if version(&answer.meta) != version(object) {
        return Err(
            io::Error::new(io::ErrorKind::StaleNetworkFileHandle, "the object changed in the store").into()
        );
    }
    if answer.range != range {
        return Err(format!("the store answered with bytes {:?} instead of {range:?}", answer.range).into());
    }
    let mut body = pin!(answer.into_stream());
    while let Some(part) = poll_fn(|context| body.as_mut().poll_next(context)).await {
        if send.send(Ok(part.map_err(with_kind)?)).is_err() {
            break;
        }
    }
    Ok(())
}

impl Folder for ObjectFolder {
    fn open(&self, name: &str) -> Result<Option<Arc<dyn Storage>>, Error> {
        let location = Path::parse(format!("{}/{name}", self.path).trim_start_matches('/'))?;
        let options = GetOptions { head: true, ..GetOptions::default() };
        let mut request = self.client.spawn(move |store, send| async move {
            let _ = send.send(store.get_opts(&location, options).await);
        })?;
        match request.next(|| false)? {
            Ok(answer) => {
                Ok(Some(Arc::new(ObjectStorage { client: self.client.clone(), object: answer.meta })))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(with_kind(error)),
        }
    }
}

/// Returns the error of a store with its kind.
fn with_kind(error: object_store::Error) -> Error {
    use object_store::Error as E;
    let kind = match &error {
        E::NotFound { .. } => io::ErrorKind::NotFound,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        E::Precondition { .. } => io::ErrorKind::StaleNetworkFileHandle,
        E::InvalidPath { .. } => io::ErrorKind::InvalidInput,
        E::NotSupported { .. } | E::NotImplemented { .. } => io::ErrorKind::Unsupported,
        // Its sources may have a kind.
        _ => return error.into(),
    };
    io::Error::new(kind, error).into()
}
