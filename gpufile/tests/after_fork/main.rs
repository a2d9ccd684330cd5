//! Tests of engines in the child of a fork. The child's new engine works at any time. The parent's engine works there
//! as far as it can.

mod moments;
mod table;

use std::fs;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gpufile::{Cause, Engine, File, IoRange, Request, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::in_flight::Gate;
use testkit::{alone, in_a_fork};

/// A length with work for all workers.
const LONG: usize = (9 << 20) + 4321;

fn write_and_read(engine: &Engine, path: &Path, bytes: &[u8]) {
    let options = File::options().read(true).write(true).create(true).engine(engine);
    let file = options.open(path).unwrap();
    file.write_all_at(bytes, 3).unwrap();
    let mut read = vec![0; bytes.len()];
    file.read_exact_at(&mut read, 3).unwrap();
    assert!(read == bytes);
    let (count, read) = file.read_at_async(read, 4).wait();
    assert_eq!(count.unwrap(), bytes.len() - 1);
    assert!(read[..bytes.len() - 1] == bytes[1..]);
    let range =
        |at: usize| IoRange { file_offset: 3 + at as u64, buffer_offset: at, len_bytes: bytes.len() / 2 };
    let (count, (read, _)) = file.read_many_async(read, vec![range(bytes.len() / 2), range(0)]).wait();
    assert!(count.unwrap() == bytes.len() / 2 * 2 && read[..bytes.len() - 1] == bytes[..bytes.len() - 1]);
}

fn read_two(file: &File) {
    let ranges = [0, 4].map(|at| IoRange { file_offset: 3 + at, buffer_offset: at as usize, len_bytes: 4 });
    let mut read = [0; 8];
    file.read_many(read.as_mut_slice(), &ranges).unwrap();
    assert!(read == pattern(8)[..]);
}

/// Begins a PID namespace, in which the next child has the process id 1. Returns false if that is not permitted.
fn begin_namespace(flags: i32) -> bool {
    // SAFETY: takes an integer.
    let began = unsafe { libc::unshare(libc::CLONE_NEWPID | flags) } == 0;
    if !began {
        eprintln!("skipped: no PID namespace: {}", std::io::Error::last_os_error());
    }
    began
}

#[test]
fn equal_process_ids_do_not_hide_a_fork() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let bytes = pattern(LONG);
        let ended = in_a_fork(|| {
            if !begin_namespace(libc::CLONE_NEWUSER) {
                return;
            }
            let ended = in_a_fork(|| {
                assert_eq!(std::process::id(), 1);
                let engine = Engine::builder().threads(3).build();
                write_and_read(&engine, &path, &bytes);
                if !begin_namespace(0) {
                    return;
                }
                let ended = in_a_fork(|| {
                    assert_eq!(std::process::id(), 1);
                    write_and_read(&engine, &path, &bytes);
                });
                assert_eq!(ended, Ok(()));
            });
            assert_eq!(ended, Ok(()));
        });
        assert_eq!(ended, Ok(()));
    });
}

#[test]
fn forked_children_wait_for_no_transfer() {
    alone(|| {
        let bed = Bed::emulated();
        let bytes = pattern(LONG);
        bed.file("data", &bytes);
        let engine = Engine::builder().driver(bed.driver.clone()).threads(2).build();
        let file = File::options().read(true).engine(&engine).policy(RoutePolicy::PosixOnly);
        let file = file.open(bed.path("data")).unwrap();
        let stream = bed.device.stream().unwrap();
        let gate = Gate::close(&stream);
        let io = file.read_at_on_stream(&stream, bed.device.alloc(LONG).unwrap(), 0);
        let on_host = file.read_at_on_stream(&stream, vec![0; LONG], 0);
        let held = bed.emulator.as_ref().unwrap().hold("cudaEventQuery", "times=all");
        let future = file.read_at_async(bed.device.alloc(LONG).unwrap(), 0);
        held.wait_for(1);
        let ended = in_a_fork(|| {
            // SAFETY: the child ends without using or dropping the parent's values again.
            unsafe {
                let io = || ptr::read(&io);
                drop(io());
                assert!(io().is_done());
                let (result, buffer) = io().wait();
                assert!(matches!(result.unwrap_err().cause(), Cause::Invalid(_)));
                drop(buffer);
                assert!(ptr::read(&on_host).wait().0.is_err());
                drop(ptr::read(&future));
                assert!(future.is_done());
                for (result, buffer) in [ptr::read(&future).wait(), ptr::read(&future).cancel()] {
                    assert!(matches!(result.unwrap_err().cause(), Cause::Invalid(_)));
                    drop(buffer);
                }
                assert_eq!(engine.release_buffers(), 0);
                drop((ptr::read(&file), ptr::read(&engine)));
            }
        });
        assert_eq!(ended, Ok(()));
        held.release();
        gate.open();
        assert!(future.wait().1.to_vec().unwrap() == bytes);
        assert!(io.wait().1.to_vec().unwrap() == bytes);
        assert!(on_host.wait().1 == bytes);
    });
}

#[test]
fn engines_work_in_a_forked_child_and_its_parent() {
    // A separate process, because a fork copies the state of other tests.
    alone(forks_of_a_busy_engine);
}

fn forks_of_a_busy_engine() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = pattern(LONG);
    let engine = Engine::builder().threads(3).build();
    write_and_read(&engine, &folder.path().join("parent"), &bytes);

    write_and_read(Engine::global(), &folder.path().join("parent"), &bytes);
    let inherited = in_a_fork(|| {
        write_and_read(&engine, &folder.path().join("child"), &bytes);
        write_and_read(Engine::global(), &folder.path().join("child"), &bytes);
        // The last reference to an engine would be dropped like this.
        // SAFETY: the child ends without using or dropping the parent's value again.
        drop(unsafe { std::ptr::read(&engine) });
    });
    assert_eq!(inherited, Ok(()));

    // The parent's workers are busy at the same time.
    let file =
        File::options().write(true).create(true).engine(&engine).open(folder.path().join("busy")).unwrap();
    let busy: Vec<_> =
        (0..8).map(|turn| file.write_all_at_async(bytes.clone(), turn * LONG as u64)).collect();
    let request = |turn| Request { file: file.clone(), buffer: bytes.clone(), offset: turn * LONG as u64 };
    let busy_list = engine.write_many_async((8..10).map(request).collect());
    let child = in_a_fork(|| {
        let engine = Engine::builder().threads(3).build();
        write_and_read(&engine, &folder.path().join("child"), &bytes);
        drop(engine);
        // SAFETY: the child ends without using or dropping the parent's values again.
        drop(unsafe { std::ptr::read(&busy) });
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&busy_list) });
    });
    assert_eq!(child, Ok(()));
    assert!(fs::read(folder.path().join("child")).unwrap()[3..] == bytes, "as the parent sees it");

    // The parent's threads take and put back the engine's spare parts. A fork may come at any moment of that.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let file =
                    File::options().read(true).engine(&engine).open(folder.path().join("parent")).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    read_two(&file);
                }
            });
        }
        let file = File::options().read(true).engine(&engine).open(folder.path().join("parent")).unwrap();
        let ended: Result<Vec<_>, _> = (0..100).map(|_| in_a_fork(|| read_two(&file))).collect();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(ended.map(drop), Ok(()));
    });

    assert!(busy.into_iter().all(|write| write.wait().0.is_ok()));
    assert_eq!(busy_list.wait().0.unwrap(), 2 * LONG);
    write_and_read(&engine, &folder.path().join("parent"), &bytes);
    assert_eq!(fs::metadata(folder.path().join("busy")).unwrap().len(), 10 * LONG as u64);
}
