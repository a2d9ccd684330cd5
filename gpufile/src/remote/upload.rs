//! Objects that are written, in parts that appear as a whole.
//!
//! ```text
//!  host or device memory ── staged: the part that is filled ── parts on their way ── complete: the object appears
//!                                                                    │
//!                                                      error, drop: abort, nothing appears
//! ```

#![allow(clippy::disallowed_types, reason = "a forked child uses no upload of its parent, and leaks it")]

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use cufile::fork::Generation;
use cufile::{BufSlice, IoBuf};
use object_store_signer::path::Path as Key;
use object_store_signer::{MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::connection::answer::Clues;
use super::said::said;
use super::stores::destination::Destination;
use super::stores::signed::{missing, panicked, without_queries};
use crate::engine::Engine;
use crate::error::RemoteError;
use crate::error::{Cause, Error, Result};
use crate::host_bytes::host_bytes;

/// The fewest bytes of each part except the last. S3 needs 5 MiB.
const LEAST_PART_BYTES: u64 = 8 << 20;
/// The most parts of an object of S3.
const MOST_PARTS: u64 = 10_000;
/// The most parts on their way. Each has a connection.
const MOST_AT_ONCE: usize = 16;
/// The most threads that send parts. They sign and encrypt them.
const MOST_THREADS: usize = 4;
/// The time between two questions to the caller.
const TICK: Duration = Duration::from_millis(20);

/// An object of S3, Azure or Google Cloud Storage that is being written.
///
/// Its bytes come in order, from host or device memory. Long objects are uploaded in parts of 8 MiB or more, several at a time.
/// They take as much host memory as the engine's [bounce buffers](crate::EngineBuilder::bounce_memory_bytes) may have, or twice
/// the length of a part.
///
/// The object appears as a whole when [`finish`](Self::finish) succeeds. Until then, an older one of the same name stays.
/// Dropping the upload aborts it, and waits for the answer for at most the [timeout](super::RemoteOptions::timeout).
///
/// ```no_run
/// use gpufile::remote::RemoteOptions;
///
/// # fn main() -> gpufile::Result<()> {
/// let (head, body) = (vec![0; 100], vec![1; 1 << 30]); // or device memory
/// let mut upload = RemoteOptions::new().upload("s3://bucket/data.bin", 100 + (1 << 30))?;
/// upload.write(&head)?;
/// upload.write(&body)?;
/// upload.finish()?;
/// # Ok(())
/// # }
/// ```
pub struct Upload {
    destination: Destination,
    engine: Engine,
    /// The bytes of the object, and the number of those taken.
    len_bytes: u64,
    taken_bytes: u64,
    part_bytes: usize,
    /// The next part.
    staged: Vec<u8>,
    /// `None` for a short object, which one request writes.
    parts: Option<Parts>,
    /// The threads that send requests. `None` once they are to end.
    runtime: Option<Runtime>,
    generation: Generation,
    timeout: Duration,
}

struct Parts {
    upload: Box<dyn MultipartUpload>,
    /// The parts on their way, from the first one.
    on_way: VecDeque<(JoinHandle<()>, Receiver<Sent>)>,
    most_on_way: usize,
}

type Sent = object_store_signer::Result<()>;

impl Upload {
    /// Begins an object. Asks the store if the object is long.
    pub(super) fn begin(
        destination: Destination,
        len_bytes: u64,
        engine: Engine,
        timeout: Duration,
    ) -> Result<Self> {
        let path = destination.path.clone();
        let failed = |cause: Cause| Error::File { operation: "begin to write", path, cause };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(processors.min(MOST_THREADS))
            .thread_name("gpufile-upload")
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return Err(failed(error.into())),
        };
        let part_bytes = part_bytes(len_bytes);
        let most_bytes = engine.settings().bounce_memory_bytes();
        let mut upload = Self {
            destination,
            engine,
            len_bytes,
            taken_bytes: 0,
            part_bytes,
            staged: Vec::new(),
            parts: None,
            runtime: Some(runtime),
            generation: Generation::current(),
            timeout,
        };
        if len_bytes > part_bytes as u64 {
            let (store, key) = (upload.destination.store.clone(), upload.destination.key.clone());
            let begun = upload.wait_for(async move { store.put_multipart(&key).await }, &mut || false);
            let most_on_way = (most_bytes / part_bytes).saturating_sub(1).clamp(1, MOST_AT_ONCE);
            match begun {
                Ok(begun) => {
                    upload.parts = Some(Parts { upload: begun, on_way: VecDeque::new(), most_on_way });
                }
                Err(cause) => return Err(failed(cause)),
            }
        }
        Ok(upload)
    }

    /// Returns the address of the object, without what may be secret in it.
    pub fn path(&self) -> &Path {
        &self.destination.path
    }

    /// Takes the next bytes of the object. Returns when all were copied, before they arrive.
    ///
    /// # Errors
    /// [`Error::Transfer`] with [`Cause::Remote`], also if earlier bytes could not be written; the object then cannot be
    /// finished. [`Cause::Invalid`] if there are more bytes than announced.
    pub fn write<'b>(&mut self, bytes: impl Into<BufSlice<'b>>) -> Result<()> {
        self.write_unless(bytes.into(), &mut || false)
    }

    /// As [`write`](Self::write), until the caller no longer waits.
    ///
    /// # Errors
    /// The errno `ECANCELED`, also for all later calls.
    pub fn write_unless(
        &mut self,
        bytes: BufSlice<'_>,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let (offset, len_bytes) = (self.taken_bytes, bytes.len_bytes());
        let mut bytes_done = 0;
        let taken = self.take(bytes, &mut bytes_done, is_cancelled);
        let path = self.path().to_owned();
        taken.map_err(|cause| Error::Transfer {
            operation: "write",
            path,
            offset,
            len_bytes,
            bytes_done,
            cause,
        })
    }

    fn take(
        &mut self,
        bytes: BufSlice<'_>,
        done: &mut usize,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> std::result::Result<(), Cause> {
        self.check_process()?;
        if bytes.len_bytes() as u64 > self.len_bytes - self.taken_bytes {
            return Err(Cause::Invalid(format!("the object was to have {} bytes", self.len_bytes)));
        }
        while *done < bytes.len_bytes() {
            let count = (self.part_bytes - self.staged.len()).min(bytes.len_bytes() - *done);
            self.stage(bytes.slice(*done..*done + count))?;
            (*done, self.taken_bytes) = (*done + count, self.taken_bytes + count as u64);
            if self.staged.len() == self.part_bytes && self.parts.is_some() {
                self.send_part(is_cancelled)?;
            }
        }
        Ok(())
    }

    /// Refuses forked children, which have no threads that send requests.
    fn check_process(&self) -> std::result::Result<(), Cause> {
        match self.generation.is_current() {
            true => Ok(()),
            false => Err(failure("a forked child cannot continue the upload of its parent").into()),
        }
    }

    /// Copies bytes to the part that is being filled.
    fn stage(&mut self, bytes: BufSlice<'_>) -> std::result::Result<(), Cause> {
        let (start, count) = (self.staged.len(), bytes.len_bytes());
        if start == 0 {
            let left = usize::try_from(self.len_bytes - self.taken_bytes).unwrap_or(usize::MAX);
            self.staged.reserve_exact(left.min(self.part_bytes));
        }
        if let Some(bytes) = host_bytes(&bytes) {
            self.staged.extend_from_slice(bytes);
            return Ok(());
        }
        self.staged.resize(start + count, 0);
        let cuda = self.engine.cuda().map_err(|error| Cause::Invalid(error.to_string()))?;
        Ok(cuda.copy(&bytes, &mut self.staged[start..])?)
    }

    /// Sends the filled part, once few enough others are on their way.
    fn send_part(&mut self, is_cancelled: &mut dyn FnMut() -> bool) -> std::result::Result<(), Cause> {
        let parts = self.parts.as_mut().expect("a long object");
        parts.wait_until_fewer(parts.most_on_way, is_cancelled)?;
        let part = parts.upload.put_part(PutPayload::from(std::mem::take(&mut self.staged)));
        let runtime = self.runtime.as_ref().expect("the upload has not ended");
        parts.on_way.push_back(spawn(runtime, part));
        Ok(())
    }

    /// Uploads what is left, and lets the object appear.
    ///
    /// # Errors
    /// [`Error::File`] with [`Cause::Remote`], also if bytes are missing. An older object then stays, except if the store did
    /// what it was asked for and its last answer was lost.
    pub fn finish(self) -> Result<()> {
        self.finish_unless(&mut || false)
    }

    /// As [`finish`](Self::finish), until the caller no longer waits.
    ///
    /// # Errors
    /// As [`finish`](Self::finish), and the errno `ECANCELED`. An older object then stays.
    pub fn finish_unless(mut self, is_cancelled: &mut dyn FnMut() -> bool) -> Result<()> {
        let finished = self.complete(is_cancelled);
        finished.map_err(|cause| Error::File { operation: "write", path: self.path().to_owned(), cause })
    }

    /// Sends all parts, and waits until the store has them. Only the last request is then left.
    ///
    /// # Errors
    /// As [`finish`](Self::finish). An older object stays.
    pub(crate) fn send_rest(&mut self, is_cancelled: &mut dyn FnMut() -> bool) -> Result<()> {
        let sent = self.send_all(is_cancelled);
        sent.map_err(|cause| Error::File { operation: "write", path: self.path().to_owned(), cause })
    }

    fn send_all(&mut self, is_cancelled: &mut dyn FnMut() -> bool) -> std::result::Result<(), Cause> {
        self.check_process()?;
        if self.taken_bytes < self.len_bytes {
            let (taken, len) = (self.taken_bytes, self.len_bytes);
            return Err(failure(format!("only {taken} of its {len} bytes were written")).into());
        }
        if self.parts.is_some() && !self.staged.is_empty() {
            self.send_part(is_cancelled)?;
        }
        self.parts.as_mut().map_or(Ok(()), |parts| parts.wait_until_fewer(1, is_cancelled))
    }

    fn complete(&mut self, is_cancelled: &mut dyn FnMut() -> bool) -> std::result::Result<(), Cause> {
        self.send_all(is_cancelled)?;
        let Some(Parts { mut upload, .. }) = self.parts.take() else {
            let (store, key) = (self.destination.store.clone(), self.destination.key.clone());
            let bytes = PutPayload::from(std::mem::take(&mut self.staged));
            let put = async move { store.put(&key, bytes).await.map(drop) };
            return self.wait_for(put, is_cancelled);
        };
        let completed = async move {
            let completed = upload.complete().await.map(drop);
            if completed.is_err() {
                // The caller gets the first error.
                let _ = upload.abort().await;
            }
            completed
        };
        self.wait_for(completed, &mut || false)
    }

    fn wait_for<T: Send + 'static>(
        &self,
        request: impl Future<Output = object_store_signer::Result<T>> + Send + 'static,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> std::result::Result<T, Cause> {
        let runtime = self.runtime.as_ref().expect("the upload has not ended");
        let (task, receiver) = spawn(runtime, request);
        let received = receive(&receiver, is_cancelled);
        task.abort();
        received
    }
}

impl Parts {
    /// Waits until fewer parts than this are on their way.
    fn wait_until_fewer(
        &mut self,
        count: usize,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> std::result::Result<(), Cause> {
        check(is_cancelled)?;
        while let Some((_, first)) = self.on_way.front() {
            // Failures of earlier parts are found early, too.
            match (self.on_way.len() < count, first.try_recv()) {
                (_, Ok(sent)) => sent.map_err(|error| Cause::from(error_of(&error)))?,
                (true, Err(_)) => return Ok(()),
                (false, Err(_)) => receive(first, is_cancelled)?,
            }
            self.on_way.pop_front();
        }
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if !self.generation.is_current() {
            // The parent has the threads, and goes on with the upload. The client of the store wakes them when it is dropped.
            std::mem::forget((runtime, self.parts.take(), self.destination.store.clone()));
            return;
        }
        if let Some(Parts { mut upload, on_way, .. }) = self.parts.take() {
            let abort = async move {
                for (task, _) in on_way {
                    task.abort();
                    // It ended, or was ended: no part is sent after the abort.
                    let _ = task.await;
                }
                upload.abort().await
            };
            let (_, aborted) = spawn(&runtime, abort);
            // Nobody gets the error. The store keeps the parts, which do not appear, if it cannot be reached.
            let _ = aborted.recv_timeout(self.timeout);
        }
        runtime.shutdown_background();
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("path", &self.destination.path)
            .field("len_bytes", &self.len_bytes)
            .field("taken_bytes", &self.taken_bytes)
            .finish_non_exhaustive()
    }
}

/// Removes an object, if there is one. S3 does not tell.
///
/// # Errors
/// [`Error::File`].
pub(super) fn remove(destination: Destination, engine: Engine, timeout: Duration) -> Result<()> {
    ask(destination, engine, timeout, "remove", |store, key| async move {
        match store.delete(&key).await {
            Err(object_store_signer::Error::NotFound { .. }) => Ok(()),
            removed => removed,
        }
    })
}

/// Returns the names of the objects in the folder of an object, which need not exist.
///
/// # Errors
/// [`Error::File`].
pub(super) fn names(destination: Destination, engine: Engine, timeout: Duration) -> Result<Vec<String>> {
    ask(destination, engine, timeout, "list the folder of", |store, key| async move {
        let parts: Vec<_> = key.parts().collect();
        let folder = Key::from_iter(parts[..parts.len().saturating_sub(1)].iter().cloned());
        let listed = store.list_with_delimiter(Some(&folder)).await?;
        let name =
            |object: ObjectMeta| Some(object.location.prefix_match(&folder)?.next()?.as_ref().to_owned());
        Ok(listed.objects.into_iter().filter_map(name).collect())
    })
}

fn ask<T: Send + 'static, F>(
    destination: Destination,
    engine: Engine,
    timeout: Duration,
    operation: &'static str,
    request: impl FnOnce(Arc<dyn ObjectStore>, Key) -> F,
) -> Result<T>
where
    F: Future<Output = object_store_signer::Result<T>> + Send + 'static,
{
    let upload = Upload::begin(destination, 0, engine, timeout)?;
    let request = request(upload.destination.store.clone(), upload.destination.key.clone());
    let answer = upload.wait_for(request, &mut || false);
    answer.map_err(|cause| Error::File { operation, path: upload.path().to_owned(), cause })
}

fn part_bytes(len_bytes: u64) -> usize {
    let least = len_bytes.div_ceil(MOST_PARTS).next_multiple_of(1 << 20);
    usize::try_from(least.max(LEAST_PART_BYTES)).unwrap_or(usize::MAX)
}

/// Lets the threads of a runtime send a request. A panic in it is its failure.
fn spawn<T: Send + 'static>(
    runtime: &Runtime,
    request: impl Future<Output = object_store_signer::Result<T>> + Send + 'static,
) -> (JoinHandle<()>, Receiver<object_store_signer::Result<T>>) {
    let (sender, receiver) = sync_channel(1);
    let task = runtime.spawn(async move {
        let mut request = pin!(request);
        let answer = poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(context)));
            polled.unwrap_or_else(|panic| {
                let source = panicked(&*panic).into();
                Poll::Ready(Err(object_store_signer::Error::Generic { store: "request", source }))
            })
        });
        // Nobody waits for the answer of an upload that was dropped.
        let _ = sender.send(answer.await);
    });
    (task, receiver)
}

/// Waits for an answer until the caller no longer does.
fn receive<T>(
    receiver: &Receiver<object_store_signer::Result<T>>,
    is_cancelled: &mut dyn FnMut() -> bool,
) -> std::result::Result<T, Cause> {
    loop {
        check(is_cancelled)?;
        match receiver.recv_timeout(TICK) {
            Ok(received) => return received.map_err(|error| error_of(&error).into()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failure("the thread that sends it has ended").into());
            }
        }
    }
}

fn check(is_cancelled: &mut dyn FnMut() -> bool) -> std::result::Result<(), Cause> {
    if is_cancelled() { Err(io::Error::from_raw_os_error(libc::ECANCELED).into()) } else { Ok(()) }
}

fn failure(reason: impl Into<String>) -> RemoteError {
    RemoteError::Upload { reason: reason.into() }
}

/// Returns the failure of a request, with the server's name for it and its message, but not the rest, which may have parts of
/// the signature.
fn error_of(error: &object_store_signer::Error) -> RemoteError {
    if let Some(reason) = missing(&without_queries(&error.to_string())) {
        return RemoteError::Signature { reason: reason.lines().next().unwrap_or_default().to_owned() };
    }
    // The last source is the server's answer, or that of the kernel, or of TLS.
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    let last = last.to_string();
    let answer = last.strip_prefix("Server returned non-2xx status code: ");
    let status = answer.and_then(|answer| Some((answer.get(..3)?.parse().ok()?, answer)));
    let words = |body: &str| said(&Clues::default(), body.as_bytes(), &[]);
    let Some((status, answer)) = status else {
        let text = error.to_string();
        let [text, shown] =
            [&text, &last].map(|text| text.split("error response: ").next().unwrap_or_default());
        let text = text.lines().next().unwrap_or_default();
        let said = last.split_once("error response: ").map_or(String::new(), |(_, body)| words(body));
        if text.contains(shown) || shown.contains('\n') {
            return failure(without_queries(text) + &said);
        }
        return failure(without_queries(&format!("{text}: {shown}")) + &said);
    };
    let reason = match status {
        300..=399 => ", which names another server; check the endpoint and the region",
        401 | 403 => ", which permits no access; credentials expire",
        404 => ", which means that there is no such bucket, container or upload",
        _ => "",
    };
    let said = answer.split_once(": ").map_or(String::new(), |(_, body)| words(body));
    RemoteError::Status { status, reason, said }
}

#[cfg(test)]
mod tests {
    use object_store_signer::memory::InMemory;
    use std::path::PathBuf;

    use super::*;

    fn begin(store: &Arc<InMemory>, len_bytes: u64) -> Upload {
        let path = PathBuf::from("memory://a");
        let destination = Destination { store: store.clone(), key: Key::from("a"), path, is_listed: true };
        Upload::begin(destination, len_bytes, Engine::builder().build(), Duration::from_secs(30)).unwrap()
    }

    /// Returns the object; `None` if there is none.
    fn contents(upload: &Upload, store: &Arc<InMemory>) -> Option<Vec<u8>> {
        let store = store.clone();
        let get = async move { store.get(&Key::from("a")).await?.bytes().await };
        upload.wait_for(get, &mut || false).ok().map(|bytes| bytes.to_vec())
    }

    #[test]
    fn failures_have_the_words_of_the_server_alone() {
        let failed = |text: &'static str| {
            let source = Box::new(io::Error::other(text));
            error_of(&object_store_signer::Error::NotFound { path: "status code: 403".to_owned(), source })
        };
        let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>it differs</Message>\
            <StringToSign>hidden</StringToSign></Error>";
        for start in ["non-2xx status code: 404 Not Found: ", "error response: "] {
            let text: &'static str = format!("Server returned {start}{body}").leak();
            let error = failed(text);
            assert_eq!(error.status(), start.starts_with('n').then_some(404));
            let shown = error.to_string();
            assert!(
                shown.contains(": SignatureDoesNotMatch: it differs") && !shown.contains("hidden"),
                "{shown}"
            );
        }
    }

    #[test]
    fn objects_appear_whole_when_they_are_finished() {
        let store = Arc::new(InMemory::new());
        let probe = begin(&store, 0);
        let part = LEAST_PART_BYTES as usize;
        for len in [3 * part + 5, 2 * part, part + 1, part, 1, 0] {
            let bytes: Vec<u8> = (0..len).map(|at| (at / 1000 + len) as u8).collect();
            let before = contents(&probe, &store);
            let mut upload = begin(&store, len as u64);
            for piece in bytes.chunks(part / 3 + 7) {
                upload.write(piece).unwrap();
            }
            assert!(contents(&probe, &store) == before);
            upload.finish().unwrap();
            assert!(contents(&probe, &store).unwrap() == bytes, "{len}");
        }
    }

    #[test]
    fn objects_do_not_appear_without_all_bytes() {
        let store = Arc::new(InMemory::new());
        let probe = begin(&store, 0);
        let len = 2 * LEAST_PART_BYTES as usize;
        let mut upload = begin(&store, len as u64);
        upload.write(&vec![1; len - 1]).unwrap();
        let error = upload.write(&[2; 2][..]).unwrap_err();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
        let error = upload.finish().unwrap_err();
        assert!(error.to_string().contains("only 16777215 of its 16777216 bytes"), "{error}");
        assert!(contents(&probe, &store).is_none());
    }

    #[test]
    fn cancelled_objects_do_not_appear() {
        let store = Arc::new(InMemory::new());
        let probe = begin(&store, 0);
        let bytes = vec![1; 3 * LEAST_PART_BYTES as usize];
        for answers in 0..4 {
            let mut left = answers;
            let mut is_cancelled = || {
                left -= 1;
                left < 0
            };
            let mut upload = begin(&store, bytes.len() as u64);
            let written = upload.write_unless((&bytes).into(), &mut is_cancelled);
            let finished = written.and_then(|()| upload.finish_unless(&mut || true));
            assert_eq!(finished.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            assert!(contents(&probe, &store).is_none());
        }
    }

    #[test]
    fn parts_are_few_enough_for_stores() {
        for (len, part) in [(0, 8 << 20), (80_000 << 20, 8 << 20), ((80_000 << 20) + 1, 9 << 20)] {
            assert_eq!(part_bytes(len), part, "{len}");
        }
        let most = 5 << 40;
        assert!(most / part_bytes(most) as u64 <= MOST_PARTS);
    }
}
