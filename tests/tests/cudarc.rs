//! Tests of cudarc's memory and streams in transfers of files.

use std::ffi::c_void;
use std::fs;
use std::ptr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use cuda_rt_sys::runtime::cudaError_t;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use cufile::cuda::Stream;
use cufile::cudarc::Synced;
use cufile::{Error, ErrorKind, FileHandle, RegisterFlags, RegisteredBuffer, RegisteredStream, StreamFlags};
use gpufile::{Engine, File, IoBuf, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::each_with_libcuda;
use testkit::in_flight::{Gate, register};

/// A length of more than one chunk, and a multiple of none.
const LONG: usize = (9 << 20) + 4321;

/// A delay that shows a missing wait.
const MOMENT: Duration = Duration::from_millis(60);

fn stream_of(bed: &Bed) -> Arc<CudaStream> {
    let ordinal = bed.device.ordinal() as usize;
    CudaContext::new(ordinal).unwrap().new_stream().unwrap()
}

fn ours(bed: &Bed, stream: &Arc<CudaStream>) -> Stream {
    Stream::from_cudarc(bed.driver.cuda(), stream.clone()).unwrap()
}

fn open(bed: &Bed, name: &str) -> File {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
    let options = File::options().read(true).write(true).create(true).engine(&engine);
    options.policy(RoutePolicy::PosixOnly).open(bed.path(name)).unwrap()
}

fn while_held_back<T>(stream: &Stream, action: impl FnOnce() -> T) -> T {
    let gate = Gate::close(stream);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(MOMENT);
            gate.open();
        });
        action()
    })
}

#[test]
fn files_transfer_to_and_from_slices_and_views() {
    each_with_libcuda(|bed| {
        let bytes = pattern(LONG);
        let stream = stream_of(bed);
        let handle = register(bed, "handle", &bytes);
        bed.file("file", &bytes);
        let file = open(bed, "file");

        let mut slice = stream.alloc_zeros::<u8>(LONG).unwrap();
        assert_eq!(handle.read_at(&mut Synced::new(&mut slice).unwrap(), 0).unwrap(), LONG);
        assert!(stream.clone_dtoh(&slice).unwrap() == bytes);

        // Each element of a part is four bytes.
        let mut words = stream.alloc_zeros::<u32>(4096).unwrap();
        let mut middle = Synced::new(words.slice_mut(1024..3072)).unwrap();
        assert_eq!(middle.len_bytes(), 8192);
        file.read_exact_at(&mut middle, 77).unwrap();
        let found = stream.clone_dtoh(&words).unwrap();
        let of_file =
            bytes[77..][..8192].chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        assert!(found[1024..3072].iter().copied().eq(of_file));
        assert!(
            found[..1024].iter().chain(&found[3072..]).all(|word| *word == 0),
            "nothing else was touched"
        );

        let view = slice.slice(4321..);
        open(bed, "written").write_all_at(&Synced::new(&view).unwrap(), 0).unwrap();
        assert!(fs::read(bed.path("written")).unwrap() == bytes[4321..]);
        assert_eq!(handle.write_at(&Synced::new(&slice).unwrap(), 1).unwrap(), LONG);
        assert!(fs::read(bed.path("handle")).unwrap()[1..] == bytes);

        // A transfer that owns its buffer gives it back.
        let read = file.read_at_async(Synced::new(slice).unwrap(), 5);
        let (count, buffer) = read.wait();
        assert_eq!(count.unwrap(), LONG - 5);
        let slice: CudaSlice<u8> = buffer.into_inner();
        assert!(stream.clone_dtoh(&slice.slice(..LONG - 5)).unwrap() == bytes[5..]);
    });
}

#[test]
fn reads_into_pinned_slices_wait_for_their_copies() {
    each_with_libcuda(|bed| {
        let bytes = pattern(LONG);
        bed.file("file", &bytes);
        let file = open(bed, "file");
        let stream = stream_of(bed);
        let (free, total) = stream.context().mem_get_info().unwrap();
        assert!((1..=total).contains(&free));
        // SAFETY: filled before it is read.
        let mut pinned = unsafe { stream.context().alloc_pinned::<u8>(LONG) }.unwrap();
        pinned.as_mut_slice().unwrap().fill(7);
        let mut slice = stream.alloc_zeros::<u8>(LONG).unwrap();
        while_held_back(&ours(bed, &stream), || {
            stream.memcpy_htod(&pinned, &mut slice).unwrap();
            file.read_exact_at(pinned.as_mut_slice().unwrap(), 0).unwrap();
        });
        assert!(stream.clone_dtoh(&slice).unwrap() == vec![7; LONG], "copied before the file was read");
        assert!(pinned.as_slice().unwrap() == bytes);
        if let Some(emulator) = &bed.emulator {
            let before = emulator.live("pinned-bytes");
            drop(pinned);
            assert_eq!(before - emulator.live("pinned-bytes"), LONG as i64);
        }
    });
}

#[test]
fn transfers_wait_for_cudarc_work_on_any_stream() {
    each_with_libcuda(|bed| {
        let (stream, other) = (stream_of(bed), stream_of(bed));
        let mut slice = stream.alloc_zeros::<u8>(LONG).unwrap();
        let handle = register(bed, "handle", &[]);
        for (turn, busy) in [&stream, &other].into_iter().enumerate() {
            let filled = vec![turn as u8 + 1; LONG];
            let source = busy.clone_htod(&filled).unwrap();
            while_held_back(&ours(bed, busy), || {
                busy.memcpy_dtod(&source, &mut slice).unwrap();
                handle.write_at(&Synced::new(&slice).unwrap(), 0).unwrap();
            });
            assert!(fs::read(bed.path("handle")).unwrap() == filled, "stream {turn}");
        }
        // A read of a file also waits for readers of the memory.
        let mut copy = other.alloc_zeros::<u8>(LONG).unwrap();
        let bytes = pattern(LONG);
        let handle = register(bed, "bytes", &bytes);
        while_held_back(&ours(bed, &other), || {
            other.memcpy_dtod(&slice, &mut copy).unwrap();
            handle.read_at(&mut Synced::new(&mut slice).unwrap(), 0).unwrap();
        });
        assert!(other.clone_dtoh(&copy).unwrap() == vec![2; LONG]);
        assert!(stream.clone_dtoh(&slice).unwrap() == bytes);
    });
}

/// Keeps the thread of `submit` alive until `then` has run here.
fn beside_a_thread<T: Send>(submit: impl FnOnce() -> T + Send, then: impl FnOnce(T)) {
    thread::scope(|scope| {
        let ((submitted, wait), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
        scope.spawn(move || {
            submitted.send(submit()).unwrap();
            let _ = ended.recv();
            // libcuda can hang at the end of a thread with work left in its stream.
            CudaContext::new(0).unwrap().per_thread_stream().synchronize().unwrap();
        });
        then(wait.recv().unwrap());
        drop(end);
    });
}

#[test]
fn synced_waits_for_per_thread_streams_of_other_threads() {
    each_with_libcuda(|bed| {
        let context = CudaContext::new(0).unwrap();
        let (null, mine) = (context.default_stream(), context.per_thread_stream());
        let handle = register(bed, "handle", &[]);
        let source = mine.clone_htod(&[7u8; LONG]).unwrap();
        mine.synchronize().unwrap();
        let untracked = CudaContext::new(0).unwrap();
        // SAFETY: this test orders its work itself.
        unsafe { untracked.disable_event_tracking() };
        // The stream that each thread has another of, the null stream, and one whose uses are not tracked.
        for memory in [&mine, &null, &untracked.new_stream().unwrap()] {
            let mut slice = memory.alloc_zeros::<u8>(LONG).unwrap();
            context.synchronize().unwrap();
            // The null stream holds back those of threads.
            while_held_back(&ours(bed, &null), || {
                let fill = || mine.memcpy_dtod(&source, &mut slice).map(|()| slice);
                beside_a_thread(fill, |slice| {
                    let slice = Synced::new(slice.unwrap()).unwrap();
                    assert_eq!(handle.write_at(&slice, 0).unwrap(), LONG);
                });
            });
            let written = fs::read(bed.path("handle")).unwrap();
            let stale = written.iter().filter(|byte| **byte != 7).count();
            assert_eq!(stale, 0, "of the work of another thread");
        }
    });
}

#[test]
fn reads_wait_for_the_readers_of_every_thread() {
    each_with_libcuda(|bed| {
        let context = CudaContext::new(0).unwrap();
        let mine = context.per_thread_stream();
        // cudarc tracks uses while this lives, and of several readers the last.
        let _tracks = context.new_stream().unwrap();
        let slice = mine.clone_htod(&[7u8; LONG]).unwrap();
        let mut copies = [0; 2].map(|_| mine.alloc_zeros::<u8>(LONG).unwrap());
        context.synchronize().unwrap();
        let bytes = pattern(LONG);
        let handle = register(bed, "bytes", &bytes);
        let (gate, closed) = mpsc::channel::<()>();
        let [of_thread, own] = &mut copies;
        let copy = || {
            hold_back_this_thread(bed, closed);
            mine.memcpy_dtod(&slice, of_thread).map(|()| slice)
        };
        beside_a_thread(copy, |slice| {
            let mut slice = slice.unwrap();
            mine.memcpy_dtod(&slice, own).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(MOMENT);
                    drop(gate);
                });
                handle.read_at(&mut Synced::new(&mut slice).unwrap(), 0).unwrap();
            });
            assert!(mine.clone_dtoh(&slice).unwrap() == bytes);
        });
        for copy in &copies {
            assert!(mine.clone_dtoh(copy).unwrap() == [7; LONG], "read before the file was");
        }
    });
}

#[test]
fn transfers_keep_their_order_behind_per_thread_streams() {
    each_with_libcuda(|bed| {
        let context = CudaContext::new(0).unwrap();
        let mine = context.per_thread_stream();
        let (lent, file) = (ours(bed, &mine), open(bed, "placed"));
        let handle = register(bed, "registered", &[]);
        let stream = RegisteredStream::register(&bed.driver, ours(bed, &mine), StreamFlags::empty()).unwrap();
        let source = mine.clone_htod(&[7u8; 100_000]).unwrap();
        let mut slices = [0; 2].map(|zero: u8| mine.clone_htod(&vec![zero; 100_000]).unwrap());
        mine.synchronize().unwrap();
        // libcufile's first transfer of a stream allocates. The allocation waits for the work behind the gate.
        stream.write_at(&handle, bed.device.alloc(4096).unwrap(), 0).unwrap().wait().unwrap();

        let (gate, closed) = mpsc::channel::<()>();
        let fill = || {
            hold_back_this_thread(bed, closed);
            for slice in &mut slices {
                mine.memcpy_dtod(&source, slice).unwrap();
            }
            slices
        };
        beside_a_thread(fill, |slices| {
            // SAFETY: the first action of each is done in the stream that `from_cudarc` returned.
            let [ours, cufiles] = slices.map(|slice| unsafe { Synced::in_its_stream(slice) }.unwrap());
            let operation = stream.write_at(&handle, cufiles, 0).unwrap();
            let io = file.write_all_at_on_stream(&lent, ours, 0);
            assert!(!io.is_done() && !operation.is_done().unwrap(), "another thread's work comes first");
            drop(gate);
            assert_eq!((io.wait().0.unwrap(), operation.wait().unwrap().0), (100_000, 100_000));
        });
        for name in ["placed", "registered"] {
            assert!(fs::read(bed.path(name)).unwrap() == [7; 100_000], "{name}");
        }
    });
}

/// Holds back this thread's stream until the channel's other end is dropped.
fn hold_back_this_thread(bed: &Bed, closed: mpsc::Receiver<()>) {
    unsafe extern "C" fn wait(closed: *mut c_void) {
        // SAFETY: made from a box below, and CUDA calls this once.
        let closed = unsafe { Box::from_raw(closed.cast::<mpsc::Receiver<()>>()) };
        // A test that fails behind a closed gate ends.
        let _ = closed.recv_timeout(Duration::from_secs(10));
    }
    let closed = Box::into_raw(Box::new(closed)).cast();
    let per_thread = ptr::without_provenance_mut(2);
    // SAFETY: the handle is valid on each thread, and `wait` owns its argument.
    let launched =
        unsafe { (bed.driver.cuda().runtime().cudaLaunchHostFunc)(per_thread, Some(wait), closed) };
    assert_eq!(launched, cudaError_t::cudaSuccess);
}

#[test]
fn transfers_keep_their_order_in_a_cudarc_stream() {
    each_with_libcuda(|bed| {
        let file = open(bed, "placed");
        let handle = register(bed, "registered", &[]);
        let stream = stream_of(bed);
        let lent = ours(bed, &stream);
        let registered =
            RegisteredStream::register(&bed.driver, ours(bed, &stream), StreamFlags::empty()).unwrap();
        let source = stream.clone_htod(&[7u8; 100_000]).unwrap();
        let mut slices = [0; 2].map(|zero: u8| stream.clone_htod(&vec![zero; 100_000]).unwrap());
        stream.synchronize().unwrap();
        // libcufile's first transfer of a stream allocates. The allocation waits for the work behind the gate.
        registered.write_at(&handle, bed.device.alloc(4096).unwrap(), 0).unwrap().wait().unwrap();

        let gate = Gate::close(&lent);
        for slice in &mut slices {
            stream.memcpy_dtod(&source, slice).unwrap();
        }
        // SAFETY: the first action of each is done in the slice's stream.
        let [ours, cufiles] = slices.map(|slice| unsafe { Synced::in_its_stream(slice) }.unwrap());
        let operation = registered.write_at(&handle, cufiles, 0).unwrap();
        let io = file.write_all_at_on_stream(&lent, ours, 0);
        assert!(!io.is_done() && !operation.is_done().unwrap(), "the stream has not come to them");
        gate.open();
        let (count, buffer) = io.wait();
        assert_eq!(count.unwrap(), 100_000);
        drop(buffer.into_inner());
        assert_eq!(operation.wait().unwrap().0, 100_000);
        for name in ["placed", "registered"] {
            assert!(fs::read(bed.path(name)).unwrap() == [7; 100_000], "{name}");
        }
    });
}

#[test]
fn lent_streams_keep_the_cudarc_stream_alive() {
    each_with_libcuda(|bed| {
        let stream = stream_of(bed);
        let lent = ours(bed, &stream);
        let weak = Arc::downgrade(&stream);
        drop(stream);
        lent.synchronize().unwrap();
        drop(lent);
        assert!(weak.upgrade().is_none(), "and no longer");
        let context = CudaContext::new(0).unwrap();
        for implicit in [context.default_stream(), context.per_thread_stream()] {
            assert!(ours(bed, &implicit).as_raw().is_null(), "the same stream on all threads");
            ours(bed, &implicit).synchronize().unwrap();
        }
    });
}

#[test]
fn streams_that_cannot_be_ordered_are_refused() {
    each_with_libcuda(|bed| {
        let primary = CudaContext::new(0).unwrap();
        let refused = |result: Result<(), Error>, why: &str| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(why), "{error}");
        };
        let cuda = bed.driver.cuda();
        if bed.is_real() {
            return;
        }
        // This passes for a context that cudarc made. cudarc would destroy it, which the emulator cannot.
        // SAFETY: the primary context stays.
        let other =
            unsafe { CudaContext::from_raw_context(0, primary.cu_device(), primary.cu_ctx()) }.unwrap();
        let slice = other.default_stream().alloc_zeros::<u8>(512).unwrap();
        refused(Synced::new(&slice).map(drop), "not in the GPU's primary context");
        std::mem::forget(slice);
        // The second GPU's context under the name of the first.
        let second = CudaContext::new(1).unwrap();
        // SAFETY: the primary context stays.
        let misnamed =
            unsafe { CudaContext::from_raw_context(0, second.cu_device(), second.cu_ctx()) }.unwrap();
        refused(Stream::from_cudarc(cuda, misnamed.default_stream()).map(drop), "primary context");
        std::mem::forget((other, misnamed));
    });
}

#[test]
fn any_thread_can_transfer_memory_of_any_gpu() {
    each_with_libcuda(|bed| {
        let last = bed.driver.cuda().device_count().unwrap() - 1;
        if let Some(emulator) = &bed.emulator {
            assert!(last > 0);
            emulator.control("require-context 1");
        }
        let bytes = pattern(LONG);
        let handle = register(bed, "handle", &bytes);
        let file = open(bed, "handle");
        let stream = CudaContext::new(last as usize).unwrap().new_stream().unwrap();
        let mut slices = [0; 2].map(|_| stream.alloc_zeros::<u8>(LONG).unwrap());
        let [one, other] = &mut slices;
        let (mut one, mut other) = (Synced::new(one).unwrap(), Synced::new(other).unwrap());
        // Neither thread has a current context.
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(handle.read_at(&mut one, 0).unwrap(), LONG));
            scope.spawn(|| file.read_exact_at(&mut other, 0).unwrap());
        });
        for slice in &slices {
            assert!(stream.clone_dtoh(slice).unwrap() == bytes);
        }
    });
}

#[test]
fn failed_cudarc_work_is_an_error() {
    each_with_libcuda(|bed| {
        let Some(emulator) = &bed.emulator else { return };
        let stream = stream_of(bed);
        let slice = stream.alloc_zeros::<u8>(512).unwrap();
        // The codes of a failed launch, and of an invalid handle.
        for (function, code) in [("cudaStreamSynchronize", 719), ("cudaStreamWaitEvent", 400)] {
            emulator.fault(function, &format!("err={code}"));
            let error = Synced::new(&slice).unwrap_err();
            assert!(error.to_string().contains(&code.to_string()), "{error}");
            assert!(matches!(error, Error::CudaDriver { .. }), "{error:?}");
        }
        Synced::new(&slice).unwrap();
    });
}

#[test]
fn registered_slices_are_freed_after_deregistration() {
    each_with_libcuda(|bed| {
        // A real libcufile may or may not register memory of CUDA's pools.
        let Some(emulator) = &bed.emulator else { return };
        let bytes = pattern(8192);
        let file = Arc::new(FileHandle::register(&bed.driver, bed.file("data", &bytes)).unwrap());
        let stream = stream_of(bed);
        let synced = Synced::new(stream.alloc_zeros::<u64>(1024).unwrap()).unwrap();
        let mut buffer = RegisteredBuffer::register(&bed.driver, synced, RegisterFlags::empty()).unwrap();
        assert_eq!((buffer.len_bytes(), emulator.live("buffers")), (8192, 1));
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 8192);
        let slice = buffer.deregister().unwrap().into_inner();
        assert_eq!(emulator.live("buffers"), 0);
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        assert!(stream.clone_dtoh(&slice).unwrap().into_iter().eq(words));
    });
}
