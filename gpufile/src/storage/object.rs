//! Objects of the crate object_store as storages.

#![allow(
    clippy::disallowed_types,
    reason = "a forked child makes no request, and waits for no channel of its parent"
)]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use bytes::Bytes;
use futures_core::Stream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use tokio::runtime::Handle;

use super::object_client::{Client, Request, with_kind};
use super::{Error, Folder, Spans, Storage};

/// The most requests of one read on their way.
const MOST_AT_ONCE: usize = 8;

type Part = Result<Bytes, Error>;

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

/// The objects of a store below a path: the values of an array of Zarr, or those that a save makes.
///
/// A new object is written by one request, or in parts of 8 MiB or more, up to eight on their way. An abandoned one leaves no
/// parts in the store, if it answers.
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
    pub(super) client: Client,
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

    /// Returns the path of an object by its name.
    pub(super) fn location(&self, name: &str) -> Result<Path, Error> {
        Ok(Path::parse(format!("{}/{name}", self.path).trim_start_matches('/'))?)
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
        let location = self.location(name)?;
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
