//! New objects of the crate object_store.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};

use super::object::ObjectFolder;
use super::object_client::{Client, Request, with_kind};
use super::{Destination, Error, NewObject};

/// The fewest bytes of each part except the last. S3 needs 5 MiB.
const LEAST_PART_BYTES: u64 = 8 << 20;
/// The most parts of an object of S3.
const MOST_PARTS: u64 = 10_000;
/// The most parts on their way.
const MOST_AT_ONCE: usize = 8;
/// The most time for the abort of an abandoned object, for which a drop waits.
const MOST_ABORTING: Duration = Duration::from_secs(10);

type Answer<T> = object_store::Result<T>;

impl Destination for ObjectFolder {
    fn begin(&self, name: &str, len_bytes: u64) -> Result<Box<dyn NewObject>, Error> {
        let (client, location) = (self.client.clone(), self.location(name)?);
        let part_bytes = LEAST_PART_BYTES.max(len_bytes.div_ceil(MOST_PARTS));
        let mut object = New {
            client,
            location,
            len_bytes,
            taken_bytes: 0,
            part_bytes: usize::try_from(part_bytes)?,
            staged: Vec::new(),
            upload: None,
            on_way: VecDeque::new(),
        };
        if len_bytes > part_bytes {
            let location = object.location.clone();
            object.upload =
                Some(ask(&object.client, |store| async move { store.put_multipart(&location).await })?);
        }
        Ok(Box::new(object))
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let location = self.location(name)?;
        ask(&self.client, |store| async move {
            match store.delete(&location).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                removed => removed,
            }
        })
    }
}

struct New {
    client: Client,
    location: Path,
    len_bytes: u64,
    taken_bytes: u64,
    part_bytes: usize,
    /// The next part.
    staged: Vec<u8>,
    /// `None` for a short object, which one request writes.
    upload: Option<Box<dyn MultipartUpload>>,
    on_way: VecDeque<Request<Answer<()>>>,
}

impl NewObject for New {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 > self.len_bytes - self.taken_bytes {
            return Err(format!("the object was to have {} bytes", self.len_bytes).into());
        }
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at(bytes.len().min(self.part_bytes - self.staged.len()));
            self.staged.extend_from_slice(some);
            self.taken_bytes += some.len() as u64;
            bytes = rest;
            if self.staged.len() == self.part_bytes && self.upload.is_some() {
                self.send_part()?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        if self.taken_bytes < self.len_bytes {
            return Err(
                format!("only {} of its {} bytes were written", self.taken_bytes, self.len_bytes).into()
            );
        }
        if self.upload.is_none() {
            let (location, bytes) = (self.location.clone(), PutPayload::from(mem::take(&mut self.staged)));
            return ask(&self.client, |store| async move { store.put(&location, bytes).await.map(drop) });
        }
        if !self.staged.is_empty() {
            self.send_part()?;
        }
        self.wait_until_fewer(1)?;
        let mut upload = self.upload.take().expect("a long object");
        ask(&self.client, |_| async move {
            let completed = upload.complete().await.map(drop);
            if completed.is_err() {
                // The caller gets the first error.
                let _ = upload.abort().await;
            }
            completed
        })
    }
}

impl New {
    /// Sends the filled part, once few enough others are on their way.
    fn send_part(&mut self) -> Result<(), Error> {
        self.wait_until_fewer(MOST_AT_ONCE)?;
        let bytes = PutPayload::from(mem::take(&mut self.staged));
        let part = self.upload.as_mut().expect("a long object").put_part(bytes);
        self.on_way.push_back(start(&self.client, |_| part)?);
        Ok(())
    }

    fn wait_until_fewer(&mut self, count: usize) -> Result<(), Error> {
        while self.on_way.len() >= count
            && let Some(mut first) = self.on_way.pop_front()
        {
            first.next(|| false)?.map_err(with_kind)?;
        }
        Ok(())
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.client.is_usable() {
            // The parent has the requests, and goes on with them.
            mem::forget((self.upload.take(), mem::take(&mut self.on_way)));
            return;
        }
        let Some(mut upload) = self.upload.take() else { return };
        // Ends the requests, so that no part comes after the abort.
        self.on_way.clear();
        if let Ok(mut aborted) = start(&self.client, |_| async move { upload.abort().await }) {
            // Nobody gets the error. A store that does not answer keeps the parts, which do not appear.
            let begun = Instant::now();
            let _ = aborted.next(|| begun.elapsed() > MOST_ABORTING);
        }
    }
}

impl fmt::Debug for New {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { location, len_bytes, taken_bytes, .. } = self;
        write!(f, "New({location}, {taken_bytes} of {len_bytes} bytes)")
    }
}

/// Starts a request.
fn start<T: Send + 'static, F>(
    client: &Client,
    request: impl FnOnce(Arc<dyn ObjectStore>) -> F,
) -> Result<Request<Answer<T>>, Error>
where
    F: Future<Output = Answer<T>> + Send + 'static,
{
    client.spawn(|store, send| {
        let request = request(store);
        async move {
            let _ = send.send(request.await);
        }
    })
}

/// Waits for the answer to a request.
fn ask<T: Send + 'static, F>(
    client: &Client,
    request: impl FnOnce(Arc<dyn ObjectStore>) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Answer<T>> + Send + 'static,
{
    start(client, request)?.next(|| false)?.map_err(with_kind)
}
