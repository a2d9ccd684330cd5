//! Objects of the crate object_store: versions, errors, cancelling, forks and runtimes.

use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_core::stream::BoxStream;
use gpufile::storage::ObjectStorage;
use gpufile::{Cause, File};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use testkit::bed::{Bed, pattern};
use testkit::in_a_fork;
use testkit::in_flight::soon;
use tokio::runtime::{Builder, Runtime};

use crate::support::engine;

const LEN: usize = 3_000_000;

pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub fn put_object(runtime: &Runtime, path: &str, bytes: &[u8]) -> (Arc<dyn ObjectStore>, ObjectMeta) {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let path = Path::from(path);
    runtime.block_on(store.put(&path, bytes.to_vec().into())).unwrap();
    let object = runtime.block_on(store.head(&path)).unwrap();
    (store, object)
}

/// A store in memory whose reads can be held and fail.
#[derive(Debug)]
struct Held {
    store: Arc<dyn ObjectStore>,
    /// Answers of reads wait as long as this is true.
    holds: AtomicBool,
    waiting: Arc<AtomicUsize>,
    panics: AtomicBool,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("held")
    }
}

/// Counts a read as waiting until it is dropped.
struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[async_trait::async_trait]
impl ObjectStore for Held {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.store.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(self.waiting.clone());
        assert!(!self.panics.load(Ordering::Acquire), "on demand");
        while self.holds.load(Ordering::Acquire) {
            tokio::task::yield_now().await;
        }
        self.store.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        self.store.get_ranges(path, ranges).await
    }
}

fn held(bed: &Bed, runtime: &Runtime) -> (Arc<Held>, File) {
    let (store, object) = put_object(runtime, "a", &pattern(LEN));
    let (holds, panics) = (AtomicBool::new(false), AtomicBool::new(false));
    let held = Arc::new(Held { store, holds, waiting: Arc::default(), panics });
    let storage = ObjectStorage::new(held.clone(), object, runtime.handle().clone()).unwrap();
    let file = File::options().engine(&engine(bed)).open_storage("a", Arc::new(storage)).unwrap();
    (held, file)
}

#[test]
fn replaced_objects_are_errors() {
    let (runtime, bed) = (runtime(), Bed::emulated());
    let (store, file) = held(&bed, &runtime);
    runtime.block_on(store.store.put(&Path::from("a"), pattern(LEN + 1).into())).unwrap();
    let error = file.read_at(&mut vec![0; LEN], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle, "{error}");
    let Cause::Storage { error, .. } = error.cause() else { panic!("{error}") };
    let error = error.downcast_ref::<object_store::Error>().unwrap();
    assert!(matches!(error, object_store::Error::Precondition { .. }), "{error}");

    runtime.block_on(store.store.delete(&Path::from("a"))).unwrap();
    assert_eq!(file.read_at(&mut vec![0; 10], 0).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn cancelled_reads_end_their_requests() {
    let (runtime, bed) = (runtime(), Bed::emulated());
    let (store, file) = held(&bed, &runtime);
    store.holds.store(true, Ordering::Release);
    let future = file.read_at_async(vec![0; LEN], 0);
    soon("a read waits", || store.waiting.load(Ordering::Acquire) > 0);
    let (count, _) = future.cancel();
    assert_eq!(count.unwrap(), 0);
    soon("no read waits", || store.waiting.load(Ordering::Acquire) == 0);
    store.holds.store(false, Ordering::Release);
    let mut bytes = vec![0; LEN];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(LEN));
}

#[test]
fn panics_of_a_store_are_errors() {
    let (runtime, bed) = (runtime(), Bed::emulated());
    let (store, file) = held(&bed, &runtime);
    store.panics.store(true, Ordering::Release);
    let error = file.read_at(&mut vec![0; LEN], 0).unwrap_err().to_string();
    assert!(error.contains("the store panicked: on demand"), "{error}");
    store.panics.store(false, Ordering::Release);
    file.read_exact_at(&mut vec![0; LEN], 0).unwrap();
}

#[test]
fn reads_after_the_end_of_the_runtime_are_errors() {
    let (runtime, bed) = (runtime(), Bed::emulated());
    let (_, file) = held(&bed, &runtime);
    runtime.shutdown_timeout(Duration::from_secs(10));
    let error = file.read_at(&mut vec![0; LEN], 0).unwrap_err().to_string();
    assert!(error.contains("the runtime of the store was shut down"), "{error}");
}

#[test]
fn reads_in_a_forked_child_are_errors() {
    let (runtime, bed) = (runtime(), Bed::emulated());
    let (_, file) = held(&bed, &runtime);
    file.read_exact_at(&mut vec![0; 10], 0).unwrap();
    in_a_fork(|| {
        let error = file.read_at(&mut vec![0; 10], 0).unwrap_err().to_string();
        assert!(error.contains("a forked child cannot use the client of its parent"), "{error}");
    })
    .unwrap();
}

#[test]
fn tasks_of_the_runtime_read_where_they_may_block() {
    let (runtime, bed) = (runtime(), Bed::emulated());
    let (_, file) = held(&bed, &runtime);
    let read = runtime.spawn_blocking(move || {
        let mut bytes = vec![0; LEN];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    });
    assert!(runtime.block_on(read).unwrap().unwrap() == pattern(LEN));
}

#[test]
fn runtimes_of_the_current_thread_are_refused() {
    let (store, object) = put_object(&runtime(), "a", b"a");
    let runtime = Builder::new_current_thread().build().unwrap();
    let error = ObjectStorage::new(store, object, runtime.handle().clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}
