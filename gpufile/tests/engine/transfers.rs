//! Tests of the engine's promises about transfers: failures, concurrency, memory, threads, and the direct route.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cufile::FileSystems;
use gpufile::{Cause, DirectIo, Engine, EngineBuilder, File, IoRange, OpenOptions, RouteKind, RoutePolicy};
use testkit::bed::{Bed, folders, libraries, pattern};
use testkit::in_flight::soon;
use testkit::{Emulator, alone, in_threads};

const MIB: usize = 1 << 20;
const LONG: usize = 9 * MIB + 4321;

fn engine(bed: &Bed) -> EngineBuilder {
    Engine::builder().driver(bed.driver.clone())
}

fn options(engine: &Engine) -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).engine(engine)
}

fn emulator(bed: &Bed) -> &Emulator {
    bed.emulator.as_ref().unwrap()
}

#[test]
fn errors_count_the_bytes_before_the_first_failure() {
    let bed = Bed::emulated();
    let emulator = emulator(&bed);
    let bytes = pattern(LONG);
    bed.file("read", &bytes);
    for threads in [1, 4] {
        let engine = engine(&bed).threads(threads).bounce_buffer_bytes(MIB).chunk_bytes(MIB).build();
        let read = options(&engine).open(bed.path("read")).unwrap();
        let written = options(&engine).open(bed.path("written")).unwrap();
        for function in ["cudaMemcpyAsync", "cudaEventRecord", "cudaEventQuery"] {
            for after in [0, 1, 3, 6, 9] {
                let case = format!("{function}, {after} before, {threads} threads");
                let mut buffer = bed.device.alloc(LONG).unwrap();
                buffer.copy_from_host(0, &bytes).unwrap();
                written.set_len(0).unwrap();
                emulator.fault(function, &format!("err=700 after={after}"));
                let error = written.write_all_at(&buffer, 0).unwrap_err();
                let done = error.bytes_done();
                assert!(matches!(error.cause(), Cause::Cufile(_)), "{case}: {error}");
                assert!(fs::read(bed.path("written")).unwrap()[..done] == bytes[..done], "{case}");

                buffer.fill(0).unwrap();
                emulator.fault(function, &format!("err=700 after={after}"));
                let error = read.read_at(&mut buffer, 0).unwrap_err();
                let done = error.bytes_done();
                assert!(matches!(error.cause(), Cause::Cufile(_)), "{case}: {error}");
                assert!(done < LONG && done.is_multiple_of(MIB), "{case}: {done}");
                assert!(buffer.to_vec().unwrap()[..done] == bytes[..done], "{case}");
                if threads == 1 && function != "cudaEventQuery" {
                    assert_eq!(done, after * MIB, "{case}");
                }

                emulator.control("clear");
                read.read_exact_at(&mut buffer, 0).unwrap();
                assert!(buffer.to_vec().unwrap() == bytes, "the engine goes on: {case}");
            }
        }
    }
}

#[test]
fn failures_are_returned_after_all_copies_have_ended() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(8 * MIB));
    let engine = engine(&bed).threads(4).bounce_buffer_bytes(MIB).chunk_bytes(MIB).build();
    let file = options(&engine).open(bed.path("data")).unwrap();
    let mut buffer = bed.device.alloc(8 * MIB).unwrap();
    emulator(&bed).fault("cudaMemcpyAsync", "err=700 after=4");
    emulator(&bed).fault("cudaMemcpyAsync", "delay_us=150000 times=7");
    let error = file.read_at(&mut buffer, 0).unwrap_err();
    assert!(error.bytes_done() < 8 * MIB);
    // A copy still in flight would write over this.
    buffer.fill(0x55).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 0x55));
}

#[test]
fn later_transfers_succeed_after_failed_lane_creation() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(LONG));
    // There is room for one lane. A lane that cannot be made must give the room back.
    let engine = engine(&bed).threads(4).bounce_memory_bytes(1).build();
    let file = options(&engine).open(bed.path("data")).unwrap();
    for function in ["cudaStreamCreateWithFlags", "cudaEventCreateWithFlags"] {
        for len in [4096, LONG] {
            let mut buffer = bed.device.alloc(len).unwrap();
            // A worker may hold its lane a little longer than the transfer takes.
            soon("the lane is gone", || {
                engine.release_buffers();
                emulator(&bed).live("streams") == 0
            });
            emulator(&bed).fault(function, "err=2 times=3");
            let error = file.read_at(&mut buffer, 0).unwrap_err();
            assert!(matches!(error.cause(), Cause::Cufile(_)), "{function}: {error}");
            emulator(&bed).control("clear");
            file.read_exact_at(&mut buffer, 0).unwrap();
            assert!(buffer.to_vec().unwrap() == pattern(len));
        }
    }
}

#[test]
fn unreadable_files_return_errno_and_move_no_bytes() {
    Bed::each(|bed| {
        let engine = engine(bed).policy(RoutePolicy::PosixOnly).build();
        let read = OpenOptions::new().read(true).engine(&engine);
        let cases = [("/", libc::EISDIR), ("/proc/self/mem", libc::EIO)];
        for (path, errno) in cases {
            let file = read.clone().open(path).unwrap();
            let mut device = bed.device.alloc(4 * MIB).unwrap();
            let mut host = vec![0; 4 * MIB];
            for error in [file.read_at(&mut host, 0).unwrap_err(), file.read_at(&mut device, 0).unwrap_err()]
            {
                assert_eq!((error.raw_os_error(), error.bytes_done()), (Some(errno), 0), "{error}");
            }
        }
    });
}

#[test]
fn reads_of_a_shrinking_file_end_at_the_new_end() {
    let bytes = pattern(LONG);
    for folder in folders() {
        let bed = Bed::emulated();
        let path = folder.path().join("data");
        for direct in [DirectIo::Auto, DirectIo::Always] {
            let engine = engine(&bed).threads(4).chunk_bytes(128 << 10).build();
            let file = options(&engine).direct_read(direct).open(&path).unwrap();
            let mut device = bed.device.alloc(LONG).unwrap();
            let mut host = vec![0; LONG];
            for round in 0..10 {
                fs::write(&path, &bytes).unwrap();
                let end = 4000 + round * 700_001;
                let cut = || {
                    thread::sleep(Duration::from_micros(200 * round as u64));
                    file.set_len(end as u64).unwrap();
                };
                let on_device = round % 2 == 0;
                let mut count = 0;
                let read = || {
                    count = match on_device {
                        true => file.read_at(&mut device, 0).unwrap(),
                        false => file.read_at(&mut host, 0).unwrap(),
                    };
                };
                in_threads([Box::new(cut) as Box<dyn FnOnce() + Send>, Box::new(read)]);
                assert!(count >= end, "{count} of {end} bytes");
                let found = if on_device { device.to_vec().unwrap() } else { host.clone() };
                assert!(found[..end] == bytes[..end], "{direct:?}, up to {end}");
            }
        }
    }
}

#[test]
fn several_engines_read_and_write_the_same_files_at_once() {
    Bed::each(|bed| {
        let bytes = pattern(LONG);
        for folder in folders() {
            let path = folder.path().join("data");
            fs::write(&path, &bytes).unwrap();
            let engines: Vec<_> =
                (1..5).map(|threads| engine(bed).threads(threads).bounce_buffer_bytes(MIB).build()).collect();
            in_threads(engines.iter().enumerate().map(|(number, engine)| {
                let (path, own) = (&path, folder.path().join(format!("{number}")));
                let bytes = &bytes;
                move || {
                    let shared = options(engine).open(path).unwrap();
                    let own = options(engine).open(own).unwrap();
                    let mut buffer = bed.device.alloc(LONG).unwrap();
                    for _ in 0..3 {
                        shared.read_exact_at(&mut buffer, 0).unwrap();
                        own.write_all_at(&buffer, 1).unwrap();
                        // All write the bytes that are there already.
                        shared.write_all_at(&buffer, 0).unwrap();
                        buffer.fill(0).unwrap();
                        own.read_exact_at(&mut buffer, 1).unwrap();
                        assert!(buffer.to_vec().unwrap() == *bytes);
                    }
                }
            }));
            assert!(fs::read(&path).unwrap() == bytes);
        }
    });
}

#[test]
fn threads_that_share_one_file_all_finish() {
    const PART: usize = 3 * MIB / 2 + 77;
    Bed::each(|bed| {
        for folder in folders() {
            let bytes = pattern(PART + 8);
            let engine =
                engine(bed).threads(3).bounce_buffer_bytes(64 << 10).bounce_memory_bytes(MIB).build();
            let file = options(&engine).open(folder.path().join("data")).unwrap();
            in_threads((0..8).map(|number| {
                let (file, bytes) = (file.clone(), &bytes[number..number + PART]);
                move || {
                    let offset = (number * PART) as u64;
                    let mut device = bed.device.alloc(PART).unwrap();
                    let mut host = vec![0; PART];
                    for round in 0..4 {
                        if number % 2 == 0 {
                            device.copy_from_host(0, bytes).unwrap();
                            file.write_all_at(&device, offset).unwrap();
                            file.read_exact_at(&mut host, offset).unwrap();
                        } else {
                            file.write_all_at(bytes, offset).unwrap();
                            file.read_exact_at(&mut device, offset).unwrap();
                            device.copy_to_host(0, &mut host).unwrap();
                        }
                        assert!(host == bytes, "part {number}, round {round}");
                        host.fill(0);
                    }
                }
            }));
        }
    });
}

#[test]
fn bounce_buffers_respect_the_memory_limit_with_many_threads() {
    const KIB: usize = 1 << 10;
    for (bounce, most) in [(4 * KIB, 1), (64 * KIB, 1), (MIB, 1), (MIB, 8 * MIB), (64 * KIB, MIB)] {
        let bed = Bed::emulated();
        let second = bed.device.cuda().device(1).unwrap();
        let emulator = emulator(&bed);
        let bytes = pattern(2 * MIB);
        bed.file("data", &bytes);
        let of = |engine: EngineBuilder| engine.threads(8).bounce_buffer_bytes(bounce).build();
        // The memory of two buffers.
        let least = {
            let engine = of(engine(&bed).bounce_memory_bytes(1));
            let file = options(&engine).open(bed.path("data")).unwrap();
            file.read_exact_at(&mut bed.device.alloc(2 * MIB).unwrap(), 0).unwrap();
            emulator.live("pinned-bytes") as usize
        };
        assert!((2 * bounce..3 * bounce + 64 * KIB).contains(&least), "{least} bytes for two of {bounce}");

        let engine = of(engine(&bed).bounce_memory_bytes(most));
        let file = options(&engine).open(bed.path("data")).unwrap();
        let over = AtomicBool::new(false);
        let ended = AtomicBool::new(false);
        let (over, ended, bytes, file, bed, second) = (&over, &ended, &bytes, &file, &bed, &second);
        let watch = move || {
            while !ended.load(Ordering::Relaxed) {
                let live = emulator.live("pinned-bytes") as usize;
                // Each of the two GPUs may have so much.
                over.fetch_or(live > 2 * most.max(least), Ordering::Relaxed);
                thread::sleep(Duration::from_micros(100));
            }
        };
        let transfer = |number: usize| {
            let device = if number.is_multiple_of(3) { second } else { &bed.device };
            let len = if number.is_multiple_of(2) { 2 * MIB } else { 4096 };
            move || {
                let mut buffer = device.alloc(len).unwrap();
                for _ in 0..5 {
                    file.read_exact_at(&mut buffer, 0).unwrap();
                    file.write_all_at(&buffer, 0).unwrap();
                }
                assert!(buffer.to_vec().unwrap() == bytes[..len]);
            }
        };
        thread::scope(|scope| {
            let watcher = scope.spawn(watch);
            in_threads((0..8).map(transfer));
            ended.store(true, Ordering::Relaxed);
            watcher.join().unwrap();
        });
        assert!(!over.load(Ordering::Relaxed), "more than {most} bytes for a GPU in buffers of {bounce}");
    }
}

#[test]
fn released_buffers_are_freed_and_later_transfers_get_new_ones() {
    let bed = Bed::emulated();
    let emulator = emulator(&bed);
    let engine = engine(&bed).threads(4).build();
    let file = options(&engine).open(bed.path("data")).unwrap();
    assert_eq!(engine.release_buffers(), 0);
    let mut buffer = bed.device.alloc(LONG).unwrap();
    for _ in 0..2 {
        file.write_all_at(&buffer, 0).unwrap();
        file.read_exact_at(&mut buffer, 0).unwrap();
        let live = emulator.live("pinned-bytes") as usize;
        assert!(live > 0);
        // A worker may hold its lane a little longer than the transfer takes.
        let mut released = 0;
        soon("all are released", || {
            released += engine.release_buffers();
            emulator.live("pinned-bytes") == 0
        });
        assert!((live..live + 64 * 1024).contains(&released), "{released} of {live} and some small plans");
        assert_eq!((emulator.live("streams"), emulator.live("events")), (0, 0));
    }
}

#[test]
fn plans_of_many_ranges_are_not_kept() {
    const COUNT: usize = 100_000;
    const MOST: usize = 4 * MIB;
    let bed = Bed::emulated();
    let bytes = pattern(COUNT);
    bed.file("data", &bytes);
    let engine = engine(&bed).threads(2).build();
    let file = options(&engine).open(bed.path("data")).unwrap();
    // The order is from the last to the first, which needs a plan of all of them.
    let ranges: Vec<_> = (0..COUNT)
        .rev()
        .map(|at| IoRange { file_offset: at as u64, buffer_offset: at, len_bytes: 1 })
        .collect();
    let (file, ranges, bytes) = (&file, &ranges, &bytes);
    let read = |_| {
        move || {
            let mut buffer = vec![0; COUNT];
            file.read_many(&mut buffer, ranges).unwrap();
            assert!(buffer == *bytes);
        }
    };
    in_threads((0..6).map(read));
    let released = engine.release_buffers();
    assert!((COUNT..=MOST).contains(&released), "{released} bytes kept");
    assert_eq!(engine.release_buffers(), 0);
}

#[test]
fn gpus_used_in_turn_keep_their_bounce_buffers() {
    let emulator = Emulator::start();
    emulator.control("gpus 4");
    let bed = Bed::on(emulator);
    let emulator = self::emulator(&bed);
    let bytes = pattern(4 * MIB);
    bed.file("data", &bytes);
    // The memory is enough for both workers on one GPU.
    let engine = engine(&bed).policy(RoutePolicy::PosixOnly).threads(2).bounce_memory_bytes(20 * MIB).build();
    let file = options(&engine).open(bed.path("data")).unwrap();
    let mut buffers: Vec<_> =
        (0..4).map(|number| bed.driver.cuda().device(number).unwrap().alloc(4 * MIB).unwrap()).collect();
    for round in 0..6 {
        for buffer in &mut buffers {
            file.read_exact_at(buffer, 0).unwrap();
            assert!(buffer.to_vec().unwrap() == bytes, "round {round}");
        }
        let [made, freed] =
            ["cudaHostRegister", "cudaHostUnregister"].map(|function| emulator.calls(function));
        // Each GPU has at most two lanes of two buffers.
        assert!(made <= 4 * 4 && freed == 0, "round {round}: {made} made, {freed} freed");
        // The lanes of a GPU share two. Those that they have for writes were not used.
        assert_eq!(emulator.live("streams"), 8, "round {round}");
    }
    assert_eq!(emulator.calls("cudaStreamDestroy"), 0);
    // Transfers of host memory that need a bounce buffer have other buffers.
    for _ in 0..3 {
        file.read_exact_at(&mut vec![0; 4 * MIB], 0).unwrap();
        file.read_exact_at(&mut buffers[0], 0).unwrap();
    }
    assert!(buffers[0].to_vec().unwrap() == bytes);
    assert!(emulator.live("pinned-bytes") as usize <= 4 * 20 * MIB);
}

#[test]
fn transfers_do_not_wait_while_lanes_are_released() {
    let emulator = Emulator::start();
    emulator.control("gpus 2");
    let bed = Bed::on(emulator);
    let emulator = self::emulator(&bed);
    bed.file("data", &pattern(2 * MIB));
    let engine = &engine(&bed).policy(RoutePolicy::PosixOnly).threads(1).build();
    let file = options(engine).open(bed.path("data")).unwrap();
    let [mut first, mut second] =
        [0, 1].map(|number| bed.driver.cuda().device(number).unwrap().alloc(4096).unwrap());
    // The calling thread moves the bytes, on a lane of each GPU.
    file.read_exact_at(&mut first, 0).unwrap();
    file.read_exact_at(&mut second, 0).unwrap();
    let destroyed = emulator.calls("cudaStreamDestroy");
    let ended = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _held = emulator.hold("cudaStreamDestroy", "");
        scope.spawn(move || {
            engine.release_buffers();
            ended.store(true, Ordering::SeqCst);
        });
        soon("the first GPU's lane is taken apart", || emulator.calls("cudaStreamDestroy") > destroyed);
        file.read_exact_at(&mut second, 0).unwrap();
        file.read_exact_at(&mut first, 0).unwrap();
        assert!(!ended.load(Ordering::SeqCst), "a read waited for lanes that are released");
    });
}

#[test]
fn small_reads_progress_beside_long_reads() {
    let bed = Bed::emulated();
    bed.file("data", &pattern(LONG));
    // There is room for one lane, and the worker always has a next chunk for it.
    let engine = engine(&bed).threads(4).bounce_memory_bytes(1).build();
    let file = &options(&engine).open(bed.path("data")).unwrap();
    let device = &bed.device;
    let (all_read, long_reads) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                let mut buffer = device.alloc(LONG).unwrap();
                loop {
                    file.read_exact_at(&mut buffer, 0).unwrap();
                    // Each has 18 chunks. A few of them pass between two small reads.
                    let long_reads = long_reads.fetch_add(1, Ordering::SeqCst);
                    assert!(long_reads < 1000, "the worker kept its lane while another waited for it");
                    if all_read.load(Ordering::SeqCst) {
                        break;
                    }
                }
                assert!(buffer.to_vec().unwrap() == pattern(LONG));
            });
        }
        let mut small = device.alloc(4096).unwrap();
        for _ in 0..50 {
            file.read_exact_at(&mut small, 0).unwrap();
        }
        all_read.store(true, Ordering::SeqCst);
        assert!(small.to_vec().unwrap() == pattern(4096));
    });
    eprintln!("{long_reads:?} long reads beside 50 small ones");
}

fn workers() -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let name = fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
        name.starts_with("gpufile-").then_some(())
    });
    names.count()
}

#[test]
fn engine_starts_threads_on_demand_and_leaves_nothing() {
    alone(|| {
        let emulator = Emulator::start();
        let folder = tempfile::tempdir().unwrap();
        for leaves_by_waker in [false, true] {
            let (library, cuda) = libraries(&emulator);
            let driver = cufile::Driver::builder().library(library).cuda(cuda).open().unwrap();
            let device = driver.cuda().device(0).unwrap();
            let engine = Engine::builder().driver(driver).threads(3).build();
            let file = options(&engine).open(folder.path().join("data")).unwrap();
            let mut host = vec![1; LONG];
            let mut buffer = device.alloc(LONG).unwrap();
            file.inline().write_all_at(&host, 0).unwrap();
            file.inline().read_at(&mut buffer, 0).unwrap();
            file.read_at(&mut host[..4096], 0).unwrap();
            file.read_at(&mut device.alloc(4096).unwrap(), 0).unwrap();
            assert_eq!(workers(), 0, "a thread does alone what it is to do alone, and what is small");
            file.read_at(&mut buffer, 0).unwrap();
            soon("three workers have their names", || workers() == 3);
            drop(device);
            drop(engine);
            if leaves_by_waker {
                let task = ends_engine::Task::start(file.read_at_async(buffer, 0), file);
                soon("the task ends", || task.ended());
            } else {
                drop((buffer, file));
            }
            soon("the workers end", || workers() == 0);
            let left = |what: &&str| emulator.live(what) != 0;
            let kinds = ["allocations", "handles", "streams", "events", "use-count", "pinned-bytes"];
            soon("nothing of CUDA is left", || !kinds.iter().any(left));
        }
    });
}

/// A future that holds the last reference to an engine, and ends on one of the engine's workers.
mod ends_engine {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Wake, Waker};

    use cufile::cuda::DeviceBuffer;
    use gpufile::{File, IoFuture};

    pub struct Task {
        work: Mutex<Option<(IoFuture<DeviceBuffer>, File)>>,
        ended: AtomicBool,
    }

    impl Task {
        pub fn start(future: IoFuture<DeviceBuffer>, file: File) -> Arc<Task> {
            let task =
                Arc::new(Task { work: Mutex::new(Some((future, file))), ended: AtomicBool::new(false) });
            task.clone().wake();
            task
        }

        pub fn ended(&self) -> bool {
            self.ended.load(Ordering::Acquire)
        }
    }

    impl Wake for Task {
        /// Polls on the thread that wakes it.
        fn wake(self: Arc<Self>) {
            let mut work = self.work.lock().unwrap();
            let Some((future, _)) = work.as_mut() else { return };
            let waker = Waker::from(self.clone());
            if let Poll::Ready((count, _)) = Pin::new(future).poll(&mut Context::from_waker(&waker)) {
                count.unwrap();
                // The file takes the engine along.
                *work = None;
                self.ended.store(true, Ordering::Release);
            }
        }
    }
}

/// Opens a file whose device memory takes the route of cuFile. Either the file system has a direct route, or the policy requires
/// cuFile.
fn by_cufile(bed: &Bed, engine: &Engine, path: &Path) -> File {
    emulator(bed).control(&format!("nvidia-fs 2 17 {}", FileSystems::NVME.bits()));
    let file = options(engine).open(path).unwrap();
    match file.route().kind() {
        RouteKind::Gds => file,
        _ => options(engine).policy(RoutePolicy::RequireCufile).open(path).unwrap(),
    }
}

#[test]
fn workers_share_a_large_cufile_transfer() {
    let bytes = pattern(8 * MIB);
    for folder in folders() {
        let bed = Bed::emulated();
        let emulator = emulator(&bed);
        let engine = engine(&bed).threads(4).chunk_bytes(MIB).build();
        let path = folder.path().join("data");
        fs::write(&path, &bytes).unwrap();
        let file = by_cufile(&bed, &engine, &path);
        let mut buffer = bed.device.alloc(8 * MIB).unwrap();
        for function in ["cuFileRead", "cuFileWrite"] {
            let before = emulator.calls(function);
            thread::scope(|scope| {
                let held = emulator.hold(function, "times=all");
                scope.spawn(|| match function {
                    "cuFileRead" => file.read_exact_at(&mut buffer, 0).unwrap(),
                    _ => file.write_all_at(&buffer, 0).unwrap(),
                });
                held.wait_for(4);
            });
            assert_eq!(emulator.calls(function) - before, 8);
        }
        assert!(buffer.to_vec().unwrap() == bytes && fs::read(&path).unwrap() == bytes);
        assert_eq!(emulator.calls("cudaHostRegister"), 0, "the bytes need no host memory");
    }
}

#[test]
fn small_transfers_go_through_host_memory() {
    for folder in folders() {
        let bed = Bed::emulated();
        let emulator = emulator(&bed);
        emulator.control(&format!("nvidia-fs 2 17 {}", FileSystems::NVME.bits()));
        let engine = engine(&bed).gds_threshold_bytes(100_000).build();
        let path = folder.path().join("data");
        fs::write(&path, pattern(MIB)).unwrap();
        let file = options(&engine).open(&path).unwrap();
        let is_direct = file.route().kind() == RouteKind::Gds;
        for (len, calls) in [(1, 0), (99_999, 0), (100_000, 1), (MIB, 1)] {
            let mut buffer = bed.device.alloc(len).unwrap();
            let before = emulator.calls("cuFileRead");
            file.read_exact_at(&mut buffer, 0).unwrap();
            let made = emulator.calls("cuFileRead") - before;
            assert_eq!(made.min(1), if is_direct { calls } else { 0 }, "{len} bytes");
            assert!(buffer.to_vec().unwrap() == pattern(len));
        }
        // Host memory never uses cuFile.
        let before = emulator.calls("cuFileRead");
        file.read_exact_at(&mut vec![0; MIB], 0).unwrap();
        assert_eq!(emulator.calls("cuFileRead"), before);
    }
}

#[test]
fn direct_route_failures_keep_the_bytes_before() {
    let bed = Bed::emulated();
    let bytes = pattern(8 * MIB);
    bed.file("data", &bytes);
    let engine = engine(&bed).threads(3).chunk_bytes(MIB).build();
    let file = by_cufile(&bed, &engine, &bed.path("data"));
    for after in [0, 2, 5] {
        let mut buffer = bed.device.alloc(8 * MIB).unwrap();
        emulator(&bed).fault("cuFileRead", &format!("after={after} ret=-1 errno=5"));
        let error = file.read_at(&mut buffer, 0).unwrap_err();
        let done = error.bytes_done();
        assert_eq!(error.kind(), io::Error::from_raw_os_error(libc::EIO).kind(), "{error}");
        assert!(done.is_multiple_of(MIB) && done <= (after + 3) * MIB, "{done}");
        assert!(buffer.to_vec().unwrap()[..done] == bytes[..done]);
    }
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn files_generated_by_the_kernel_are_read_in_order() {
    alone(|| {
        // A read that begins in the middle costs as much as a read of everything before.
        let path = "/proc/kallsyms";
        let start = processor_time();
        // Sandboxes may lack it.
        let Ok(contents) = fs::read(path) else { return };
        let in_order = processor_time() - start;
        let file =
            File::options().read(true).engine(&Engine::builder().threads(4).build()).open(path).unwrap();
        for chunk_bytes in [None, Some(128 << 10)] {
            let mut buffer = vec![0; contents.len() + MIB];
            let start = processor_time();
            let file =
                chunk_bytes.map_or_else(|| file.clone(), |chunk_bytes| file.with_chunk_bytes(chunk_bytes));
            assert_eq!(file.read_at(&mut buffer, 0).unwrap(), contents.len());
            let taken = processor_time() - start;
            assert!(buffer[..contents.len()] == contents);
            assert!(taken < 3 * in_order + Duration::from_millis(50), "{taken:?} instead of {in_order:?}");
        }
    });
}

#[test]
fn transfers_continue_during_a_stream_capture_elsewhere() {
    let bed = Bed::emulated();
    let bytes = pattern(LONG);
    bed.file("data", &bytes);
    let engine = engine(&bed).build();
    let file = options(&engine).open(bed.path("data")).unwrap();
    emulator(&bed).control("capturing 1");
    for len in [4096, LONG] {
        let mut buffer = bed.device.alloc(len).unwrap();
        file.read_exact_at(&mut buffer, 0).unwrap();
        file.write_all_at(&buffer, 0).unwrap();
        buffer.fill(0xee).unwrap();
        buffer.copy_from_host(0, &[0xee]).unwrap();
        let stream = bed.device.stream().unwrap();
        let (count, buffer) = file.read_at_on_stream(&stream, buffer, 0).wait();
        assert_eq!(count.unwrap(), len);
        assert!(buffer.to_vec().unwrap() == bytes[..len]);
    }
    assert!(bed.device.synchronize().is_err(), "it would wait for the captured stream, too");
    // Other work on this thread is as before.
    let runtime = bed.driver.cuda().runtime();
    let mut pointer = std::ptr::null_mut();
    // SAFETY: `pointer` outlives the call.
    let refused = unsafe { (runtime.cudaMalloc)(&mut pointer, 16) };
    assert_eq!(refused, cuda_rt_sys::runtime::cudaError_t::cudaErrorStreamCaptureUnsupported);
    emulator(&bed).control("capturing 0");
}
