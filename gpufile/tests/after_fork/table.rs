//! The fork table: a row for each public type of both crates but storages, and for each module with functions. A child calls all functions
//! of those with locks.
//!
//! Meanwhile threads of the parent call the methods that take the locks, again and again. If a child waits for a lock of
//! the parent, some of the children hang. For ten locks, a child is forked each time that a call allocates or frees memory,
//! also while the call holds the lock.

use std::array::from_fn;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::pin::pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use cufile::cuda::{Cuda, PinnedBuffer, PinnedRegion, Stream};
use cufile::fork;
use cufile::params::{Param, Params};
use cufile::stats::{Level, Statistics};
use cufile::{
    Batch, Driver, Entry, Feature, FileHandle, FileSystem, Library, P2pFlags, RegisterFlags,
    RegisteredBuffer, RegisteredStream, StreamFlags,
};
use gpufile::formats::safetensors::{self, Checkpoint, Share, TensorData, planning};
use gpufile::formats::{self, Dtype, SaveOptions, gguf, npy};
use gpufile::kv_blocks::{Block, BlockReader, BlockStore, BlockTransfer, Region};
use gpufile::remote::{RemoteFile, RemoteOptions, Upload};
use gpufile::storage::{self, Destination, NewObject};
use gpufile::{BufSlice, DirectIo, Engine, File, IoFuture, IoRange, Request, page_cache, trusted};
use testkit::bed::{Bed, pattern};
use testkit::memory::Memory;
use testkit::ways::{WAYS, Way};
use testkit::web::Server;
use testkit::{Steps, alone, in_a_fork, in_threads};

use crate::moments::{go_on, stop_at};

const LEN: usize = 64 << 10;
const PAGE: usize = 4096;

/// The contents of a type: locks, threads or descriptors.
enum Holds<'w> {
    /// No lock, thread or descriptor, for this reason.
    Nothing(&'static str),
    /// No lock of its own, but values of these types, whose rows have calls.
    Only(&'static [&'static str]),
    /// The child calls each method.
    Locks(Vec<Method<'w>>),
}

struct Method<'w> {
    name: &'static str,
    call: Call<'w>,
    /// True if the call takes the value itself, so that only one thread may call it.
    takes: bool,
}

type Call<'w> = Box<dyn Fn() + 'w>;

use Holds::{Locks, Nothing, Only};

macro_rules! calls {
    ($($name:ident: $call:expr;)*) => {
        Locks(vec![$(Method {
            name: stringify!($name),
            call: Box::new(move || { let _ = $call; }),
            takes: stringify!($call).contains("taken("),
        }),*])
    };
}

/// Returns a value of the parent, for a call that takes the value itself.
fn taken<T>(value: &T) -> T {
    // SAFETY: the child takes each value once, uses it no more, and ends without dropping it.
    unsafe { ptr::read(value) }
}

/// A value that only the main thread uses.
struct OfMain<T>(T);

// SAFETY: no other thread uses the value.
unsafe impl<T> Sync for OfMain<T> {}

impl<'w> Holds<'w> {
    fn and(self, more: impl Iterator<Item = Method<'w>>) -> Self {
        match self {
            Locks(calls) => Locks(calls.into_iter().chain(more).collect()),
            other => other,
        }
    }
}

fn move_bytes(way: &Way, file: &File, stream: &Stream) {
    let (result, _) = way.run(file, Some(stream), Memory::Host(vec![0; LEN]), &way.ranges(LEN));
    assert!(result.is_ok() || way.takes_stream(), "{result:?}");
}

/// A destination that forgets its objects.
#[derive(Debug)]
struct Forgetful;

impl Destination for Forgetful {
    fn begin(&self, _: &str, _: u64) -> Result<Box<dyn NewObject>, storage::Error> {
        Ok(Box::new(Self))
    }

    fn remove(&self, _: &str) -> Result<(), storage::Error> {
        Ok(())
    }
}

impl NewObject for Forgetful {
    fn write(&mut self, _: &[u8]) -> Result<(), storage::Error> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), storage::Error> {
        Ok(())
    }
}

fn quick() -> SaveOptions {
    SaveOptions::new().sync(false)
}

struct World {
    bed: Bed,
    engine: Engine,
    file: File,
    futures: [IoFuture<Vec<u8>>; 5],
    store: BlockStore,
    other_store: BlockStore,
    reader: BlockReader,
    transfers: [BlockTransfer; 6],
    region: Region<Vec<u8>>,
    server: Server,
    remote: RemoteFile,
    other_remote: RemoteFile,
    uploads: OfMain<[Upload; 3]>,
    checkpoint: Checkpoint,
    stream: Stream,
    registered: RegisteredStream,
    handle: Arc<FileHandle>,
    batches: [Batch<RegisteredBuffer<Vec<u8>>>; 3],
    pinned: PinnedRegion,
    pinned_buffers: [PinnedBuffer; 3],
}

impl World {
    fn new() -> Self {
        let bed = Bed::emulated();
        let bytes = pattern(LEN);
        bed.file("data", &bytes);
        let engine = Engine::builder().driver(bed.driver.clone()).threads(2).build();
        let file = File::options().read(true).write(true).engine(&engine).open(bed.path("data")).unwrap();
        let store = BlockStore::builder(PAGE).limit_bytes(1 << 20).open(bed.path("kv")).unwrap();
        let region = Region::new(vec![1; LEN]);
        let server = Server::new(bytes.clone());
        let options = RemoteOptions::new().engine(&engine);
        let s3 = [("aws_access_key_id", "a"), ("aws_secret_access_key", "b"), ("aws_region", "c")];
        let s3 =
            s3.into_iter().fold(options.clone(), |options, (name, value)| options.s3_option(name, value));
        let model = bed.path("model.safetensors");
        let tensors = [TensorData::new("a", Dtype::U8, &[LEN as u64], &bytes)];
        safetensors::save(&model, &tensors, &quick()).unwrap();
        let register =
            |stream| RegisteredStream::register(&bed.driver, stream, StreamFlags::empty()).unwrap();
        let handle = FileHandle::register(&bed.driver, bed.file("handle", &bytes)).unwrap();
        let pinned = bed.device.reserve_pinned(4 << 20, 8);
        Self {
            futures: from_fn(|_| file.read_at_async(vec![0; LEN], 0)),
            transfers: from_fn(|at| {
                let pieces = [region.piece(at * PAGE, PAGE, 0)];
                store.store(&[Block::new(at as u128, &pieces)])
            }),
            other_store: BlockStore::builder(PAGE).open(bed.path("other")).unwrap(),
            reader: BlockStore::builder(PAGE).open_reader([bed.path("kv")]).unwrap(),
            other_remote: options.open(&server.url("/other")).unwrap(),
            remote: options.open(&server.url("/object")).unwrap(),
            uploads: OfMain(from_fn(|_| s3.upload("s3://bucket/object", 10).unwrap())),
            checkpoint: Checkpoint::open(&model).unwrap(),
            stream: bed.device.stream().unwrap(),
            registered: register(bed.device.stream().unwrap()),
            handle: Arc::new(handle),
            batches: from_fn(|_| Batch::new(&bed.driver, 2).unwrap()),
            pinned_buffers: from_fn(|_| pinned.alloc().unwrap()),
            pinned,
            server,
            region,
            store,
            file,
            engine,
            bed,
        }
    }

    fn ranges(&self) -> Vec<IoRange> {
        [0, 8192].map(|at| IoRange { file_offset: at, buffer_offset: at as usize, len_bytes: PAGE }).into()
    }

    fn requests(&self) -> Vec<Request<Vec<u8>>> {
        [0, 8192].map(|offset| Request { file: self.file.clone(), buffer: vec![0; PAGE], offset }).into()
    }

    fn params(&self) -> Params<'_> {
        self.bed.driver.library().params()
    }

    fn statistics(&self) -> Statistics<'_> {
        self.bed.driver.statistics()
    }

    /// Opens an object of a server whose name is looked up.
    fn open_by_name(&self, server: &Server) -> bool {
        let options = RemoteFile::options().engine(&self.engine).timeout(Duration::from_secs(2)).tries(1);
        options.open(&server.url("/named").replace("127.0.0.1", "localhost")).is_ok()
    }

    fn save(&self, name: &str) {
        let (path, options) = (|end: &str| self.bed.path(&format!("{name}{end}")), quick().shard_bytes(4));
        let tensors = ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[4], &[1_u8; 4][..]));
        let ggufs =
            ["a", "b"].map(|name| gguf::TensorData::new(name, gguf::GgmlType::I8, &[4], &[1_u8; 4][..]));
        safetensors::save(path(".safetensors"), &tensors, &quick()).unwrap();
        safetensors::save_shards(
            path("-many.safetensors"),
            &[&tensors],
            &options.clone().remove_old_model(true),
        )
        .unwrap();
        gguf::save(path(".gguf"), &gguf::Metadata::new(), &ggufs, &quick()).unwrap();
        gguf::save_split(path("-many.gguf"), &gguf::Metadata::new(), &ggufs, &options).unwrap();
        npy::write(path(".npy"), "|u1", &[4], &[1_u8; 4][..], &quick()).unwrap();
    }

    /// Calls what takes locks, until the end. Several threads do so, each with other calls.
    fn busy(&self, thread: usize, until: &AtomicBool) {
        let mut number = 100;
        while !until.load(Ordering::Relaxed) {
            self.take_locks(thread, number);
            number += 1;
        }
    }

    fn take_locks(&self, thread: usize, number: u128) {
        let (mut host, mut device) = (vec![0; LEN], self.bed.device.alloc(LEN).unwrap());
        match thread {
            0 => {
                self.store.keys();
                self.store.contains(1);
                self.region.bytes_in_use();
                self.region.access(|bytes| bytes[0] ^= 1);
            }
            1 => {
                let pieces = [self.region.piece(8 * PAGE, PAGE, 0)];
                let block = Block::new(number, &pieces);
                drop(self.store.store(&[block]).wait());
                self.store.remove(&[number]);
            }
            2 => {
                self.file.read_many(&mut host, &self.ranges()).unwrap();
                self.file.write_all_at(&host[..PAGE], 0).unwrap();
                self.file.read_at(&mut device, 0).unwrap();
                self.file.read_many(&mut device, &self.ranges()).unwrap();
                self.engine.release_buffers();
            }
            3 => {
                self.engine.stats();
                self.checkpoint.read_tensor_into("a", &mut host).unwrap();
                self.remote.read_at(&mut host, 0).unwrap();
                self.open_by_name(&self.server);
            }
            4 => {
                drop(self.params().get(Param::ALLOW_COMPAT_MODE));
                drop(self.bed.driver.properties());
                // Both are given: a search for libraries is the C library's, which no child of it survives.
                let (library, cuda) = (self.bed.driver.library().clone(), self.bed.driver.cuda().clone());
                drop(Driver::builder().library(library).cuda(cuda).open());
                drop(self.pinned.alloc());
            }
            5 => self.save("busy"),
            6 => {
                let file = File::options().read(true).write(true).engine(&self.engine);
                let file = file.open(self.bed.path("handle")).unwrap();
                drop(file.read_at_async(vec![0; LEN], 0));
                file.write_all_at_async(vec![0; PAGE + 1], 1).wait().0.unwrap();
                file.read_at_on_stream(&self.stream, vec![0; LEN], 0).wait().0.unwrap();
                drop(Checkpoint::open(self.bed.path("model.safetensors")).unwrap());
                drop(gpufile::Settings::from_env());
            }
            _ => {
                self.stream.call_on_host(|| ()).unwrap();
                let stream = self.bed.device.stream().unwrap();
                drop(RegisteredStream::register(&self.bed.driver, stream, StreamFlags::empty()));
                drop(self.registered.read_at(&self.handle, vec![0; PAGE], 0).unwrap().wait());
                let buffer = vec![0; PAGE];
                let buffer = RegisteredBuffer::register(&self.bed.driver, buffer, RegisterFlags::empty());
                let mut batch = Batch::new(&self.bed.driver, 1).unwrap();
                batch.submit([Entry::read(&self.handle, buffer.unwrap(), 0)]).unwrap();
                drop(batch.wait_all());
            }
        }
    }
}

const BUSY: usize = 8;

#[rustfmt::skip]
fn rows(world: &World) -> BTreeMap<&'static str, Holds<'_>> {
    let World { bed, engine, file, store, reader, region, server, remote, checkpoint, .. } = world;
    let OfMain([upload, other_upload, third_upload]) = &world.uploads;
    let [future, for_exact, for_wait, for_cancel, for_poll] = &world.futures;
    let [transfer, waited, cancelled, given, polled, dropped] = &world.transfers;
    let [batch, other_batch, dropped_batch] = &world.batches;
    let [pinned_buffer, other_pinned_buffer, dropped_buffer] = &world.pinned_buffers;
    let World { stream, registered, handle, pinned, .. } = world;
    let (driver, device) = (&bed.driver, &bed.device);
    let host = || vec![0_u8; LEN];
    let path = |name: &str| bed.path(&format!("{name}-{}", std::process::id()));
    let block = || Block::new(7, &[]);
    let model = || bed.path("model.safetensors");
    let context = || Context::from_waker(Waker::noop());
    let (tensors, ggufs) = (|| [TensorData::new("a", Dtype::U8, &[1], &[1_u8][..])], gguf::Metadata::new);
    let remote_options = RemoteOptions::new;
    let mut rows = BTreeMap::from([
        ("gpufile", calls! {
            parse_bytes: gpufile::parse_bytes("1 MiB").unwrap();
            is_address: assert!(gpufile::is_address(b"s3://bucket/key"));
            check_path: gpufile::check_path(&model()).unwrap();
        }),
        ("gpufile::formats", calls! {
            save_copy: formats::save_copy(None, &path("copy"), &quick(), |file, _| file.write_all_at(&[1; 8][..], 0)).unwrap();
            visible: formats::visible("name");
        }),
        ("gpufile::formats::safetensors::planning", calls! {
            save_appended: {
                let new = [safetensors::NewTensor { name: "a", dtype: Dtype::U8, shape: &[1] }];
                let write = |appender: &mut planning::Appender<'_>| appender.append(&[BufSlice::new(&[1_u8][..], ..)]);
                planning::save_appended(&path("appended"), &new, &quick(), write).unwrap()
            };
            save_url_unless: assert!(planning::save_url_unless("no address", &tensors(), &quick(), &remote_options(), &mut || false).is_err());
        }),
        ("gpufile::remote", calls! {
            last_in: gpufile::remote::last_in("s3://bucket/key");
            without_secrets: gpufile::remote::without_secrets("https://host/a?token=b");
        }),
        ("gpufile::trusted", calls! {
            kind: trusted::kind(fs::metadata(bed.path("data")).unwrap().file_type());
            open_unblocked: trusted::open_unblocked(&bed.path("data")).unwrap();
        }),
        ("gpufile::formats::safetensors", calls! {
            head_len: safetensors::head_len(&[0; 8], 8).is_ok();
            save: world.save(&format!("saved-{}", std::process::id()));
            save_to: safetensors::save_to(&Forgetful, "a", &tensors(), &quick()).unwrap();
            save_shards: safetensors::save_shards(path("shards"), &[&tensors()], &quick()).unwrap();
            save_url: assert!(safetensors::save_url("no address", &tensors(), &quick()).is_err());
            save_url_with: assert!(safetensors::save_url_with("no address", &tensors(), &quick(), &remote_options()).is_err());
        }),
        ("gpufile::formats::gguf", calls! {
            save: gguf::save(path("gguf"), &ggufs(), &[], &quick()).unwrap();
            save_to: gguf::save_to(&Forgetful, "a", &ggufs(), &[], &quick()).unwrap();
            save_split: gguf::save_split(path("split"), &ggufs(), &[], &quick()).unwrap();
            save_url: assert!(gguf::save_url("no address", &ggufs(), &[]).is_err());
            save_url_with: assert!(gguf::save_url_with("no address", &ggufs(), &[], &remote_options()).is_err());
        }),
        ("gpufile::formats::npy", calls! {
            head_len: npy::head_len(&[0; 8], 8).is_ok();
            write: npy::write(path("array"), "|u1", &[1], &[1_u8][..], &quick()).unwrap();
        }),
        ("gpufile::page_cache", calls! {
            evict: page_cache::evict(file, 0..LEN as u64).unwrap();
            prefetch: page_cache::prefetch(file, 0..LEN as u64).unwrap();
            residency: page_cache::residency(file, 0..LEN as u64).unwrap();
        }),
        ("cufile", calls! { scope: cufile::scope(|_| ()); }),
        ("gpufile::kv_blocks::BlockStore", calls! {
            builder: BlockStore::builder(PAGE);
            contains: store.contains(1);
            keys: assert!(store.keys().is_empty());
            len: assert_eq!(store.len(), 0);
            is_empty: assert!(store.is_empty());
            recovery: store.recovery();
            pin: assert!(!store.pin(1));
            unpin: assert!(!store.unpin(1));
            stats: assert_eq!(store.stats().hits, 0);
            remove: assert_eq!(store.remove(&[1]), 0);
            store: assert!(store.store(&[block()]).wait()[0].is_err());
            fetch: assert!(store.fetch(&[block()]).wait()[0].is_err());
            fmt: format!("{store:?}");
            close: { taken(&world.other_store).close().unwrap(); drop(taken(store)) };
        }),
        ("gpufile::kv_blocks::BlockReader", calls! {
            keys: assert!(reader.keys().unwrap().is_empty());
            fetch: assert!(reader.fetch(&[block()]).wait()[0].is_err());
            stats: assert_eq!(reader.stats().hits, 0);
            fmt: { let _ = format!("{reader:?}"); drop(taken(reader)) };
        }),
        ("gpufile::kv_blocks::BlockTransfer", calls! {
            is_done: assert!(transfer.is_done());
            wait: assert!(taken(waited).wait()[0].is_err());
            cancel: assert!(taken(cancelled).cancel()[0].is_err());
            on_end: taken(given).on_end(|outcomes| assert!(outcomes[0].is_err()));
            poll: assert!(pin!(taken(polled)).as_mut().poll(&mut context()).is_ready());
            fmt: format!("{transfer:?}");
            drop: drop(taken(dropped));
        }),
        ("gpufile::kv_blocks::Region", calls! {
            new: Region::new(vec![0; 10]).access(|bytes| bytes.len()).unwrap();
            access: assert!(region.access(|_| ()).is_none());
            piece: format!("{:?}", region.piece(0, 1, 0));
            len_bytes: assert_eq!(region.len_bytes(), 0);
            bytes_in_use: assert_eq!(region.bytes_in_use(), 0);
            clone: drop(region.clone());
            fmt: format!("{region:?}");
        }),
        ("gpufile::Engine", calls! {
            builder: Engine::builder().build();
            global: Engine::global();
            try_global: Engine::try_global();
            set_global: Engine::set_global(engine.clone());
            settings: engine.settings();
            cuda: engine.cuda().map(|cuda| cuda.device_count());
            load_kernels: engine.load_kernels(device);
            warm_up: engine.warm_up(std::slice::from_ref(device));
            release_buffers: engine.release_buffers();
            stats: engine.stats();
            register: engine.register(host()).is_err();
            read_many: engine.read_many(&mut world.requests()).unwrap();
            write_many: engine.write_many(&world.requests()).unwrap();
            read_many_each: engine.read_many_each(&mut world.requests());
            write_many_each: engine.write_many_each(&world.requests());
            read_many_async: engine.read_many_async(world.requests()).wait().0.unwrap();
            write_many_async: engine.write_many_async(world.requests()).wait().0.unwrap();
            read_many_each_async: engine.read_many_each_async(world.requests()).wait().0.unwrap();
            write_many_each_async: engine.write_many_each_async(world.requests()).wait().0.unwrap();
        }),
        ("gpufile::File", calls! {
            open: File::open(bed.path("data")).unwrap();
            create: File::create(path("created")).unwrap();
            options: File::options();
            from: drop(File::from(taken(&world.other_remote)));
            from_storage: File::from_storage("object", remote.storage().unwrap().clone()).unwrap().read_at(&mut host(), 0);
            storage: remote.storage().unwrap().len_bytes();
            path: file.path();
            as_fd: std::os::fd::AsFd::as_fd(file);
            failed: file.failed("compare", std::io::Error::other("no"));
            count_host_read: file.count_host_read(1);
            engine: file.engine();
            inline: file.inline();
            len_bytes: file.len_bytes().unwrap();
            set_len: file.set_len(LEN as u64).unwrap();
            sync_all: file.sync_all().unwrap();
            route: file.route();
            with_chunk_bytes: file.with_chunk_bytes(1 << 20).read_at(&mut host(), 0).unwrap();
            with_engine: file.with_engine(engine).unwrap();
            map: file.map().unwrap().read_at(&mut host(), 0).unwrap();
            // SAFETY: nothing makes the file shorter.
            map_unchecked: unsafe { file.map_unchecked() }.unwrap().read_at(&mut host(), 0).unwrap();
            prefetch: file.prefetch().unwrap();
            read_uninit_at: file.read_uninit_at(&mut [std::mem::MaybeUninit::uninit(); 10], 0).unwrap();
        }.and(WAYS.iter().map(|way| Method {
            name: way.name,
            call: Box::new(move || move_bytes(way, file, stream)),
            takes: false,
        }))),
        ("gpufile::IoFuture", calls! {
            buffer_ptr: future.buffer_ptr();
            is_done: assert!(future.is_done());
            exact: assert!(taken(for_exact).exact().wait().0.is_err());
            wait: assert!(taken(for_wait).wait().0.is_err());
            cancel: assert!(taken(for_cancel).cancel().0.is_err());
            poll: assert!(pin!(taken(for_poll)).as_mut().poll(&mut context()).is_ready());
            fmt: format!("{future:?}");
        }),
        ("gpufile::remote::RemoteFile", calls! {
            open: RemoteFile::open(&server.url("/object")).unwrap();
            // In the child, the C library may find no name.
            options: world.open_by_name(server);
            etag: remote.etag();
            probe: remote.probe().unwrap();
            deref: assert_eq!(remote.read_at(&mut host(), 0).unwrap(), LEN);
        }),
        ("gpufile::remote::Upload", calls! {
            path: upload.path();
            write: { let mut upload = ManuallyDrop::new(taken(upload)); upload.write(&[0; 5][..]).is_err() };
            fmt: format!("{upload:?}");
            write_unless: {
                let mut upload = ManuallyDrop::new(taken(upload));
                upload.write_unless((&[0; 5][..]).into(), &mut || false).is_err()
            };
            finish: assert!(taken(other_upload).finish().is_err());
            finish_unless: assert!(taken(third_upload).finish_unless(&mut || false).is_err());
            drop: drop(taken(upload));
        }),
        ("gpufile::formats::safetensors::Checkpoint", calls! {
            open: Checkpoint::open(model()).unwrap();
            open_with: Checkpoint::open_with([model()], &gpufile::OpenOptions::new()).unwrap();
            open_url: Checkpoint::open_url(&server.url("/object")).is_err();
            open_url_with: Checkpoint::open_url_with(&server.url("/object"), &RemoteOptions::new()).is_err();
            from_files: Checkpoint::from_files([checkpoint.file_of("a").unwrap().0.clone()]).unwrap();
            compress: checkpoint.compress(path("compressed"), &quick()).unwrap();
            decompress: checkpoint.decompress(path("decompressed"), &quick()).unwrap();
            part: checkpoint.part("a", std::slice::from_ref(&(0..10))).unwrap();
            parts: checkpoint.parts(vec![("a".to_owned(), None)], 1 << 30).unwrap();
            plan: checkpoint.plan::<formats::Error>(None, 1, |_| Ok(Share::Balanced)).unwrap();
            packed_len_bytes: checkpoint.packed_len_bytes("a");
            file_of: checkpoint.file_of("a").unwrap();
            files: checkpoint.files().len();
            len_bytes: checkpoint.len_bytes();
            load: checkpoint.load().to_host().unwrap();
            read_slice_into: checkpoint.read_slice_into("a", 0, 0..10, &mut vec![0_u8; 10]).unwrap();
            read_tensor: checkpoint.read_tensor("a").unwrap();
            read_tensor_into: checkpoint.read_tensor_into("a", &mut host()).unwrap();
            tensor: checkpoint.tensor("a").unwrap();
            tensors: checkpoint.tensors().len();
            warnings: checkpoint.warnings();
        }),
        ("cufile::fork", calls! {
            spawn: fork::spawn("child", || ()).unwrap();
            scope: fork::scope(|scope| drop(scope.spawn("child", || ()).unwrap()));
        }),
        ("cufile::fork::JoinHandle", calls! {
            join: fork::spawn("child", || ()).unwrap().join().unwrap();
            is_caller: fork::spawn("child", || ()).unwrap().is_caller();
            drop: drop(fork::spawn("child", || ()).unwrap());
        }),
        ("cufile::fork::Scope", calls! {
            spawn: fork::scope(|scope| scope.spawn("child", || ()).unwrap().join().unwrap());
            drop: fork::scope(|_| ());
        }),
        ("cufile::fork::ScopedJoinHandle", calls! {
            join: fork::scope(|scope| scope.spawn("child", || ()).unwrap().join().unwrap());
        }),
        ("cufile::fork::Mutex", calls! {
            new: *fork::Mutex::new(1).lock();
            of_static: *MUTEX.lock();
            default: *fork::Mutex::<u32>::default().lock();
            lock: *MUTEX.lock();
            lock_unless_forked: MUTEX.lock_unless_forked().is_some();
            get_mut: *fork::Mutex::new(1).get_mut();
            fmt: format!("{MUTEX:?}");
            drop: drop(fork::Mutex::new(1));
        }),
        ("cufile::fork::OnceCell", calls! {
            new: *CELL.get_or_init(|| 1);
            default: fork::OnceCell::<u32>::default().get();
            from: fork::OnceCell::from(1).get();
            get: CELL.get();
            set: CELL.set(1);
            get_or_init: *CELL.get_or_init(|| 1);
            fmt: format!("{CELL:?}");
            drop: drop(fork::OnceCell::from(1));
        }),
        ("cufile::Library", calls! {
            load: Library::load();
            // SAFETY: the emulator is such a library.
            load_from: unsafe { Library::load_from(driver.library().path().unwrap()) }.is_ok();
            from_sys: cufile::sys::Library::load().map(Library::from_sys);
            functions: driver.library().functions();
            params: driver.library().params();
            path: driver.library().path();
            supports: driver.library().supports(Feature::BarSize);
            version: driver.library().version();
            fmt: format!("{:?}", driver.library());
        }),
        ("cufile::Driver", calls! {
            builder: Driver::builder();
            open: assert!(Driver::open().is_err());
            cuda: driver.cuda();
            library: driver.library();
            statistics: driver.statistics();
            bar_size_bytes: assert!(driver.bar_size_bytes(0).is_err());
            export_pcie_topology: assert!(driver.export_pcie_topology(path("topology")).is_err());
            p2p_flags: assert!(driver.p2p_flags(FileSystem::Nfs).is_err());
            set_p2p_flags: assert!(driver.set_p2p_flags(FileSystem::Nfs, P2pFlags::empty()).is_err());
            properties: driver.properties();
            use_count: assert!(driver.use_count().is_err());
            with_registered: driver.with_registered(&host(), RegisterFlags::empty(), |_| ()).is_err();
            with_registered_mut: driver.with_registered_mut(&mut host(), RegisterFlags::empty(), |_| ()).is_err();
            fmt: format!("{driver:?}");
            close: assert!(taken(driver).close().is_err());
        }),
        ("cufile::params::Params", calls! {
            get: world.params().get(Param::MAX_DIRECT_IO_SIZE).is_err();
            set: world.params().set(Param::ALLOW_COMPAT_MODE, true).is_err();
            limits: world.params().limits(Param::MAX_DIRECT_IO_SIZE).is_err();
            log_file_path: world.params().log_file_path().is_err();
            // SAFETY: nothing else uses the path.
            set_log_file_path: unsafe { world.params().set_log_file_path("/tmp") }.is_err();
            set_max_cache_size: world.params().set_max_cache_size(1 << 20).is_err();
            set_max_direct_io_size: world.params().set_max_direct_io_size(1 << 20).is_err();
            set_max_pinned_memory: world.params().set_max_pinned_memory(1 << 20).is_err();
            set_poll_mode: world.params().set_poll_mode(true, 4096).is_err();
        }),
        ("cufile::stats::Statistics", calls! {
            basic: world.statistics().basic().is_err();
            detailed: world.statistics().detailed().is_err();
            level: world.statistics().level().is_err();
            per_gpu: world.statistics().per_gpu().is_err();
            reset: world.statistics().reset().is_err();
            set_level: world.statistics().set_level(Level::Basic).is_err();
            start: world.statistics().start().is_err();
            stop: world.statistics().stop().is_err();
        }),
        ("cufile::Batch", calls! {
            new: Batch::<Vec<u8>>::new(driver, 1).is_err();
            capacity: batch.capacity();
            in_flight: batch.in_flight();
            max_entry_bytes: batch.max_entry_bytes();
            submit: { let mut batch = ManuallyDrop::new(taken(batch)); batch.submit([]).is_err() };
            poll: { let mut batch = ManuallyDrop::new(taken(batch)); batch.poll(0, 1, Some(Duration::ZERO)).is_err() };
            poll_into: { let mut batch = ManuallyDrop::new(taken(batch)); batch.poll_into(0, 1, None, &mut Vec::new()).is_err() };
            wait_all: { let mut batch = ManuallyDrop::new(taken(batch)); batch.wait_all().is_err() };
            wait_all_timeout: { let mut batch = ManuallyDrop::new(taken(batch)); batch.wait_all_timeout(Duration::ZERO).is_err() };
            cancel: taken(other_batch).cancel().is_err();
            fmt: format!("{batch:?}");
            drop: drop(taken(dropped_batch));
        }),
        ("cufile::RegisteredStream", calls! {
            register: RegisteredStream::register(driver, registered.stream().clone(), StreamFlags::empty()).is_err();
            driver: registered.driver();
            flags: registered.flags();
            stream: registered.stream();
            late_bound: registered.late_bound(&host(), 0, 10, 0).map(drop);
            read_at: assert!(registered.read_at(handle, host(), 0).is_err());
            write_at: assert!(registered.write_at(handle, host(), 0).is_err());
            read_late: registered.late_bound(&host(), 0, 10, 0).map(|late| registered.read_late(handle, host(), &late).is_err());
            write_late: registered.late_bound(&host(), 0, 10, 0).map(|late| registered.write_late(handle, host(), &late).is_err());
            fmt: format!("{registered:?}");
            deregister: assert!(taken(registered).deregister().is_err());
        }),
        ("cufile::cuda::Cuda", calls! {
            load: Cuda::load();
            from_sys: cuda_rt_sys::driver::Library::load().is_ok();
            copy: driver.cuda().copy(&host(), &mut host());
            fill: driver.cuda().fill(&mut host(), 1);
            device: assert!(driver.cuda().device(0).is_err());
            device_count: assert!(driver.cuda().device_count().is_err());
            device_of: driver.cuda().device_of(&host()).is_err();
            driver: driver.cuda().driver();
            runtime: driver.cuda().runtime();
            fmt: format!("{:?}", driver.cuda());
        }),
        ("cufile::cuda::Stream", calls! {
            as_raw: stream.as_raw();
            device: stream.device();
            call_on_host: assert!(stream.call_on_host(|| ()).is_err());
            is_capturing: stream.is_capturing().is_err();
            is_idle: assert!(stream.is_idle().is_err());
            record: assert!(stream.record().is_err());
            // A child has no event, and no memory of a GPU. These calls fail before they use what they get.
            record_into: ();
            wait_event: ();
            copy_to_peer: ();
            launch: ();
            from_raw: ();
            from_cudarc: ();
            synchronize: assert!(stream.synchronize().is_err());
            // SAFETY: the calls fail before they use the memory.
            copy_batch: unsafe { stream.copy_batch(&[ptr::null_mut(); 2], &[ptr::null(); 2], &[1; 2]) }.is_err();
            // SAFETY: as above.
            copy_from_device: unsafe { stream.copy_from_device(&mut [0], ptr::null()) }.is_err();
            // SAFETY: as above.
            copy_on_device: unsafe { stream.copy_on_device(ptr::null_mut(), ptr::null(), 1) }.is_err();
            // SAFETY: as above.
            copy_to_device: unsafe { stream.copy_to_device(ptr::null_mut(), &[0]) }.is_err();
            // SAFETY: as above.
            on_words: unsafe { stream.on_words(&[]) }.is_err();
            fmt: format!("{stream:?}");
            drop: drop(taken(stream));
        }),
        ("cufile::cuda::PinnedRegion", calls! {
            alloc: assert!(pinned.alloc().is_err());
            allocating: pinned.allocating();
            fmt: format!("{pinned:?}");
        }),
        ("cufile::cuda::PinnedBuffer", calls! {
            as_ptr: cufile::IoBuf::as_ptr(pinned_buffer);
            as_mut_ptr: ();
            deref: assert_eq!(pinned_buffer[0], 0);
            deref_mut: taken(other_pinned_buffer)[0] = 0;
            device: pinned_buffer.device();
            is_allocated: pinned_buffer.is_allocated();
            len_bytes: pinned_buffer.len();
            location: cufile::IoBuf::location(pinned_buffer);
            fmt: format!("{pinned_buffer:?}");
            drop: drop(taken(dropped_buffer));
        }),
    ]);
    for (holds, types) in WITHOUT_LOCKS {
        for name in types.split_whitespace() {
            assert!(rows.insert(name, holds()).is_none(), "{name} has two rows");
        }
    }
    rows
}

static MUTEX: fork::Mutex<u32> = fork::Mutex::of_static(0);
static CELL: fork::OnceCell<u32> = fork::OnceCell::new();

type Kind = fn() -> Holds<'static>;

const WITHOUT_LOCKS: &[(Kind, &str)] = &[
    (
        || Nothing("values: numbers, texts, lists"),
        "gpufile::formats::gguf::Array gpufile::formats::gguf::GgmlType gpufile::formats::gguf::Value
        gpufile::formats::gguf::Header gpufile::formats::gguf::Metadata gpufile::formats::gguf::Progress
        gpufile::formats::gguf::Saved gpufile::formats::gguf::Strings gpufile::formats::gguf::TensorInfo
        gpufile::formats::npy::ByteOrder gpufile::formats::npy::Order gpufile::formats::npy::Descr
        gpufile::formats::npy::NpyHeader gpufile::formats::safetensors::Cut gpufile::formats::safetensors::Share
        gpufile::formats::safetensors::Warning gpufile::formats::safetensors::Header
        gpufile::formats::safetensors::Placement gpufile::formats::safetensors::Progress
        gpufile::formats::safetensors::Saved gpufile::formats::safetensors::ShardIndex
        gpufile::formats::safetensors::TensorInfo gpufile::formats::safetensors::TensorSlice
        gpufile::formats::safetensors::Verification gpufile::formats::zarr::ZarrError gpufile::formats::Dtype
        gpufile::formats::Error gpufile::formats::FormatError gpufile::formats::InPlace
        gpufile::kv_blocks::BlockError gpufile::kv_blocks::Recovery gpufile::kv_blocks::Stats gpufile::page_cache::Residency
        gpufile::ranks::RankError gpufile::ranks::UniqueId gpufile::remote::Probe gpufile::remote::RemoteError gpufile::Cause
        gpufile::storage::conformance::Breach gpufile::storage::conformance::Rule
        gpufile::DirectIo gpufile::Error gpufile::ParseBytesError gpufile::RouteKind gpufile::RoutePolicy
        gpufile::Setting gpufile::SettingsError gpufile::IoRange gpufile::Route gpufile::Settings gpufile::Stats gpufile::Traffic
        cufile::cuda::KernelArgument cufile::cuda::WordOperation cufile::params::Bytes cufile::params::Param
        cufile::params::Slab cufile::stats::Level cufile::stats::BatchStats cufile::stats::DetailedStats
        cufile::stats::GpuStats cufile::stats::GpuTransfers cufile::stats::Operations cufile::stats::PerGpuStats
        cufile::stats::Stats cufile::stats::Transfers cufile::stats::VectoredStats cufile::Error
        cufile::ErrorKind cufile::Feature cufile::FileSystem cufile::FileType cufile::Controls
        cufile::DirectIoAlignment cufile::DriverProperties cufile::Features cufile::FileProperties
        cufile::FileSystems cufile::LateBound cufile::Location cufile::OpError cufile::P2pFlags
        cufile::fork::Generation cufile::RegisterFlags cufile::Status cufile::StreamFlags cufile::Version",
    ),
    (
        || Nothing("memory of the caller, and where it lies"),
        "gpufile::formats::gguf::Loaded gpufile::formats::gguf::NewTensor gpufile::formats::gguf::TensorData
        gpufile::formats::gguf::TensorView gpufile::formats::safetensors::Loaded
        gpufile::formats::safetensors::NewTensor gpufile::formats::safetensors::PartView
        gpufile::formats::safetensors::PlacedTensors gpufile::formats::safetensors::TensorData
        gpufile::formats::safetensors::TensorView gpufile::formats::safetensors::planning::Appender
        gpufile::formats::safetensors::planning::Group
        gpufile::formats::safetensors::planning::Plan gpufile::formats::safetensors::planning::Stretch gpufile::storage::Span gpufile::storage::Spans cufile::BufSlice cufile::BufSliceMut cufile::Completion
        cufile::Entry cufile::Failed cufile::Kept cufile::OwnedPart cufile::RdmaInfo cufile::cudarc::Synced",
    ),
    (
        || Nothing("a client of the application, which no call uses in a child: each fails before"),
        "gpufile::storage::ObjectFolder",
    ),
    (|| Nothing("a suite for tests, which forks itself"), "gpufile::storage::conformance"),
    (|| Nothing("the descriptor of a folder, which a child shares"), "gpufile::trusted::PrivateFolder"),
    (
        || Nothing("a handle of CUDA or cuFile, without a lock; its calls fail in a child before they reach C"),
        "cufile::cuda::Context cufile::cuda::Device cufile::cuda::DeviceBuffer cufile::cuda::DeviceMemory
        cufile::cuda::Entered cufile::cuda::Event cufile::cuda::Kernel cufile::cuda::ManagedBuffer
        cufile::cuda::MappedBuffer cufile::cuda::Module cufile::BorrowedHandle cufile::FileHandle
        cufile::RegisteredBuffer",
    ),
    (
        || Nothing("a group of NCCL, which has no lock here; its calls fail in a child"),
        "gpufile::ranks::RankGroup",
    ),
    (
        || Only(&["gpufile::File", "gpufile::Engine"]),
        "gpufile::EngineBuilder gpufile::OpenOptions gpufile::Request gpufile::kv_blocks::BlockStoreBuilder
        gpufile::formats::SaveOptions gpufile::formats::safetensors::Load
        gpufile::formats::safetensors::PlacedLoad gpufile::formats::safetensors::PlacedGroups
        gpufile::formats::safetensors::Verify gpufile::formats::npy::NpyFile gpufile::formats::gguf::Load
        gpufile::formats::gguf::Model gpufile::formats::zarr::Array gpufile::formats::zarr::FileStore
        gpufile::remote::RemoteOptions",
    ),
    (|| Only(&["gpufile::remote::RemoteFile"]), "gpufile::remote::RemoteFolder"),
    (|| Only(&["gpufile::kv_blocks::Region"]), "gpufile::kv_blocks::Block gpufile::kv_blocks::Piece"),
    (|| Only(&["cufile::Driver", "cufile::cuda::Cuda"]), "cufile::DriverBuilder"),
    (|| Only(&["cufile::RegisteredStream", "cufile::Batch"]), "cufile::Operation cufile::Scope"),
];

fn public() -> BTreeMap<String, BTreeSet<String>> {
    let mut types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut modules, mut methods, mut storages) = (BTreeSet::new(), Vec::new(), Vec::new());
    for package in ["gpufile", "cufile"] {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = fs::read_to_string(root.join(package).join("public-api.txt")).unwrap();
        for line in text.lines() {
            let line = line.strip_prefix("#[non_exhaustive] ").unwrap_or(line);
            let line = line.replace("const ", "").replace("unsafe ", "");
            storages.extend(line.strip_prefix("impl gpufile::storage::Storage for ").map(plain));
            let Some((kind, rest)) = line.strip_prefix("pub ").and_then(|line| line.split_once(' ')) else {
                continue;
            };
            match kind {
                "struct" | "enum" | "union" => drop(types.insert(plain(rest), BTreeSet::new())),
                "mod" => drop(modules.insert(plain(rest))),
                "fn" => methods.push(plain(rest)),
                _ => {}
            }
        }
    }
    // The suite of storages reads each of them in a child.
    storages.iter().for_each(|storage| drop(types.remove(storage)));
    for method in methods {
        let Some((of, name)) = method.rsplit_once("::") else { continue };
        if types.contains_key(of) || modules.contains(of) {
            types.entry(of.to_owned()).or_default().insert(name.to_owned());
        }
    }
    types
}

/// Returns the path of an item without its generics and what follows them.
fn plain(item: &str) -> String {
    let (mut path, mut depth) = (String::new(), 0);
    for (at, letter) in item.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' if !item[..at].ends_with('-') => depth -= 1,
            '(' | ' ' if depth == 0 => break,
            _ if depth == 0 => path.push(letter),
            _ => {}
        }
    }
    path
}

#[test]
fn every_public_item_has_a_row_in_the_fork_table() {
    alone(|| {
        let world = World::new();
        let (rows, public) = (rows(&world), public());
        assert!(public.len() > 100, "{public:?}");
        let mut wrong = Vec::new();
        for (name, methods) in &public {
            match rows.get(name.as_str()) {
                None => wrong.push(format!("{name} has no row")),
                Some(Nothing(why)) => assert!(!why.is_empty()),
                Some(Only(types)) => {
                    assert!(types.iter().all(|held| matches!(rows[held], Locks(_))), "{name}");
                }
                Some(Locks(calls)) => {
                    let called: BTreeSet<_> = calls.iter().map(|method| method.name.to_owned()).collect();
                    let differ = called.symmetric_difference(methods);
                    wrong.extend(differ.map(|method| format!("{name}::{method}")));
                }
            }
        }
        let gone = rows.keys().filter(|name| !public.contains_key(**name));
        wrong.extend(gone.map(|name| format!("{name} is no public type or module")));
        assert!(wrong.is_empty(), "{wrong:#?}");
        // The child calls the methods of the parent's values.
        let ended = in_a_fork(|| rows.values().for_each(|row| call(row, &AtomicU64::new(0), 0)));
        drop(rows);
        end(world);
        assert_eq!(ended, Ok(()));
    });
}

/// Calls the methods of a row. Notes the number of the row and of the method first.
fn call(row: &Holds<'_>, note: &AtomicU64, number: usize) {
    if let Locks(calls) = row {
        for (at, method) in calls.iter().enumerate() {
            note.store((number as u64) << 32 | at as u64, Ordering::Relaxed);
            (method.call)();
        }
    }
}

fn end(world: World) {
    let World { futures, transfers, .. } = world;
    assert!(futures.into_iter().all(|future| future.wait().0.is_ok()));
    assert!(transfers.into_iter().all(|transfer| transfer.wait()[0].is_ok()));
}

/// Returns a number that a child shares with its parent.
fn shared_number() -> &'static AtomicU64 {
    // SAFETY: a mapping at a new address replaces none.
    let page = unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(ptr::null_mut(), PAGE, access, flags, -1, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the mapping has zeros, is aligned, and is never unmapped.
    unsafe { &*page.cast() }
}

#[test]
fn children_of_busy_parents_never_hang() {
    alone(|| {
        let children = env::var("CUFILE_TEST_FORKS").map_or(200, |count| count.parse().unwrap());
        let world = World::new();
        let (note, stop) = (shared_number(), AtomicBool::new(false));
        let ended = thread::scope(|scope| {
            for thread in 0..BUSY {
                let (world, stop) = (&world, &stop);
                scope.spawn(move || world.busy(thread, stop));
            }
            let rows: Vec<_> = rows(&world).into_iter().collect();
            let one = |_| {
                in_a_fork(|| rows.iter().enumerate().for_each(|(number, (_, row))| call(row, note, number)))
            };
            let ended: Result<Vec<()>, _> = (0..children).map(one).collect();
            stop.store(true, Ordering::Relaxed);
            ended.map_err(|error| {
                let at = note.load(Ordering::Relaxed);
                let (name, row) = &rows[(at >> 32) as usize];
                let Locks(calls) = row else { unreachable!("it was called") };
                format!("{name}::{}: {error}", calls[at as u32 as usize].name)
            })
        });
        end(world);
        assert_eq!(ended.map(drop), Ok(()));
    });
}

/// The rows, for several threads of a child.
struct Together<'r, 'w>(&'r BTreeMap<&'static str, Holds<'w>>);

// SAFETY: threads may share all values of the rows except uploads, whose row none of them calls.
unsafe impl Sync for Together<'_, '_> {}

impl Together<'_, '_> {
    /// Calls the methods that take no value, each at the same time as the other thread.
    fn call(&self, steps: &Steps) {
        for (_, row) in self.0.iter().filter(|(name, _)| **name != "gpufile::remote::Upload") {
            if let Locks(calls) = row {
                for method in calls.iter().filter(|method| !method.takes) {
                    steps.next();
                    (method.call)();
                }
            }
        }
    }
}

#[test]
fn threads_of_a_child_call_all_methods_together() {
    alone(|| {
        let world = World::new();
        let rows = rows(&world);
        let together = Together(&rows);
        // A file makes its route when it is first asked. With many, both threads are often the first at one of them.
        let options = File::options().read(true).engine(&world.engine);
        let files: Vec<_> = (0..200).map(|_| options.open(world.bed.path("data")).unwrap()).collect();
        let child = || {
            let steps = Steps::default();
            let call = || {
                let route = |file| {
                    steps.next();
                    File::route(file)
                };
                let routes: Vec<_> = files.iter().map(route).collect();
                together.call(&steps);
                assert!(files.iter().zip(routes).all(|(file, route)| ptr::eq(file.route(), route)));
            };
            in_threads([call; 2]);
        };
        let ended: Result<Vec<()>, _> = (0..5).map(|_| in_a_fork(child)).collect();
        drop(rows);
        end(world);
        assert_eq!(ended.map(drop), Ok(()));
    });
}

/// Two calls with the same values: one for a thread of the parent, and one for a child.
type Pair<'w> = (Box<dyn Fn() + Sync + 'w>, Call<'w>);

type Prepared<'w> = Box<dyn Fn() -> Pair<'w> + 'w>;

/// Returns calls of which the first holds a lock while it allocates or frees memory, and the second takes that lock. The names
/// are the places of the locks. With a lock of the standard library in any of these places, a child hangs.
#[rustfmt::skip]
fn holders(world: &World) -> Vec<(&'static str, Prepared<'_>)> {
    let World { bed, engine, store, reader, remote, server, .. } = world;
    macro_rules! holders {
        ($($name:literal: [$($value:ident = $made:expr)?] $of_parent:expr => $of_child:expr;)*) => {
            vec![$(($name, Box::new(move || {
                $(let $value = Arc::new($made); let of_parent = $value.clone();)?
                let of_parent = move || { $(let $value = &*of_parent;)? let _ = $of_parent; };
                (Box::new(of_parent) as Box<dyn Fn() + Sync>, Box::new(move || { let _ = $of_child; }) as Call<'_>)
            }) as Prepared<'_>)),*]
        };
    }
    let host = || vec![0; PAGE];
    let new_engine = || Engine::builder().driver(bed.driver.clone()).threads(1).build();
    let new_file = || File::options().read(true).write(true).engine(engine).open(bed.path("data")).unwrap();
    let direct = Engine::builder().direct_read(DirectIo::Always).build();
    let new_direct = move || File::options().read(true).engine(&direct).open(bed.path("data")).unwrap();
    let new_remote = || RemoteFile::options().engine(engine).open(&server.url("/object")).unwrap();
    let in_memory = || {
        let path = PathBuf::from(format!("/dev/shm/gpufile-after-fork-{}", std::process::id()));
        fs::write(&path, vec![0; 8 << 20]).unwrap();
        let file = File::options().read(true).write(true).engine(engine).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file
    };
    holders! {
        "route::stats": [] engine.stats() => engine.stats();
        "kv_blocks::region": [region = Region::new(host())] drop(store.store(&[Block::new(60, &[region.piece(0, PAGE, 0)])])) => region.bytes_in_use();
        "kv_blocks::task": [] store.keys() => store.keys();
        "kv_blocks::reader": [] drop(reader.keys()) => reader.stats();
        "open_file::mapping": [file = in_memory()] file.inline().write_all_at(&vec![1; 4 << 20], 0) => file.write_all_at(&vec![1; 4 << 20], 0);
        "open_file::device_route": [file = new_file()] file.route() => file.route();
        "open_file::direct": [file = new_direct()] file.inline().read_at(&mut host(), 0) => file.inline().read_at(&mut host(), 0);
        "gpu::gpus": [engine = new_engine()] engine.load_kernels(&bed.device) => engine.load_kernels(&bed.device);
        "remote::exchange::pool": [] remote.read_at(&mut host(), 0) => remote.read_at(&mut host(), 0);
        "remote::exchange::times": [remote = new_remote()] remote.read_at(&mut host(), 0) => remote.read_at(&mut host(), 0);
        "remote::connection::names": [server = Server::new(pattern(PAGE))] world.open_by_name(server) => world.open_by_name(&server);
    }
}

#[test]
fn children_of_every_moment_of_a_call_never_hang() {
    alone(|| {
        let world = World::new();
        // Makes what is made once in a process, and counts that `stats` copies.
        (0..BUSY).for_each(|thread| world.take_locks(thread, 50));
        for (name, prepared) in holders(&world) {
            let moments = (0..).map_while(|moment| {
                let (of_parent, of_child) = prepared();
                let fork = || {
                    in_a_fork(|| {
                        go_on();
                        of_child();
                    })
                };
                stop_at(moment, of_parent, fork)
            });
            let ended: Result<Vec<()>, _> = moments.collect();
            assert!(ended.as_ref().is_ok_and(|ended| !ended.is_empty()), "{name}: {ended:?}");
        }
        end(world);
    });
}
