//! Models of futures that are polled, moved, dropped and cancelled while workers carry out their jobs on
//! lanes of the engine.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::{mem, ptr};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;

use crate::cuda::Buffer;
use crate::engine::{Engine, Order, Schedule};
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::future::io_future::IoFuture;
use crate::memory::Place;
use crate::open_file::OpenFile;
use crate::world::{self, Fault};
use crate::{Bell, Call, GPU, explore};

pub const CHUNK: usize = 8;
/// The length in bytes of three and a half chunks.
pub const LEN: usize = 28;

#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub place: Place,
    pub is_write: bool,
    pub schedule: Schedule,
}

pub fn ways() -> impl Iterator<Item = Way> {
    let schedule = Schedule { chunk_bytes: CHUNK, ..Schedule::default() };
    let serial = Schedule { order: Order::Serial, ..schedule };
    let last_alone = Schedule { order: Order::LastAlone { at_once: None }, last_bytes: 4, ..schedule };
    [
        Way { place: GPU, is_write: false, schedule },
        Way { place: GPU, is_write: true, schedule: serial },
        Way { place: GPU, is_write: true, schedule: last_alone },
        Way { place: Place::Host, is_write: false, schedule },
        Way { place: Place::Host, is_write: true, schedule: serial },
    ]
    .into_iter()
}

impl Way {
    pub fn file(&self, engine: &Engine) -> File {
        File::new(OpenFile::new(engine, self.schedule))
    }

    fn start(&self, file: &File) -> IoFuture<Buffer> {
        self.start_with(file, |buffer| buffer)
    }

    fn start_with(&self, file: &File, change: impl FnOnce(Buffer) -> Buffer) -> IoFuture<Buffer> {
        match self.is_write {
            false => file.read_at_async(change(Buffer::new(self.place, LEN)), 0),
            true => file.write_all_at_async(change(Buffer::filled(self.place, LEN)), 0),
        }
    }

    /// Compares an output with the recorded transfers. Returns the result of the output.
    fn check(&self, file: &File, (result, buffer): (Result<usize>, Buffer)) -> Result<usize> {
        let done = *result.as_ref().unwrap_or_else(|error| &error.bytes_done);
        assert!(
            buffer.bytes()[..done] == *world::pattern(0, done),
            "{done} bytes are not as they were said to be"
        );
        assert_once(file, done);
        result
    }

    fn check_whole(&self, file: &File, output: (Result<usize>, Buffer)) {
        assert_eq!(self.check(file, output), Ok(LEN));
    }
}

/// Fails if a byte was transferred twice, or if one of the first `whole` bytes was not transferred.
pub fn assert_once(file: &File, whole: usize) {
    let mut transferred = file.open_file().seen.lock().unwrap().transferred.clone();
    transferred.sort();
    let end = transferred.iter().fold(0, |end, (offset, len_bytes)| {
        assert!(*offset >= end || file.open_file().may_repeat, "bytes at {offset} were transferred twice");
        assert!(*offset <= end || end >= whole, "bytes at {end} were not transferred");
        end.max(offset + len_bytes)
    });
    assert!(end >= whole, "bytes at {end} were not transferred");
}

fn poll(future: &mut IoFuture<Buffer>, waker: &Waker) -> Poll<(Result<usize>, Buffer)> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn output(mut future: IoFuture<Buffer>) -> (Result<usize>, Buffer) {
    match poll(&mut future, Waker::noop()) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("woken before the end"),
    }
}

#[test]
fn the_last_waker_of_a_future_is_woken() {
    for way in ways() {
        explore(&format!("{way:?}"), move || {
            let engine = Engine::new(2, 1, CHUNK);
            let file = way.file(&engine);
            let mut future = way.start(&file);
            let [first, last] = [(); 2].map(|()| Arc::new(Bell::default()));
            let (one, other) = (Waker::from(first.clone()), last.clone());
            // The thread that polled first gives the future to another thread.
            let out = thread::spawn(move || {
                if let Poll::Ready(out) = poll(&mut future, &one) {
                    return out;
                }
                thread::spawn(move || match poll(&mut future, &Waker::from(other.clone())) {
                    Poll::Ready(out) => out,
                    Poll::Pending => {
                        other.wait();
                        output(future)
                    }
                })
                .join()
                .unwrap()
            })
            .join()
            .unwrap();
            // The job keeps neither waker once it is done, but may still be waking one of them.
            while Arc::strong_count(&first) + Arc::strong_count(&last) > 2 {
                thread::yield_now();
            }
            way.check_whole(&file, out);
            engine.assert_idle();
        });
    }
}

#[test]
fn a_dropped_future_frees_its_buffer_after_its_job() {
    for way in ways() {
        for (polls, keeps_engine) in [(false, true), (true, true), (true, false)] {
            explore(&format!("dropped, polled: {polls}, engine kept: {keeps_engine}, {way:?}"), move || {
                let engine = Engine::new(2, 2, CHUNK);
                let file = way.file(&engine);
                let dropped = Arc::new(Bell::default());
                let mut future = way.start_with(&file, |buffer| buffer.when_dropped(dropped.clone().into()));
                let kept = keeps_engine.then_some((file, engine));
                let is_over = polls && poll(&mut future, Waker::noop()).is_ready();
                world::pause();
                drop(future);
                dropped.wait();
                if let Some((file, engine)) = kept {
                    assert_once(&file, if way.is_write || is_over { LEN } else { 0 });
                    engine.assert_idle();
                }
            });
        }
    }
}

#[test]
fn cancelled_futures_return_the_buffer_without_gaps() {
    for way in ways() {
        explore(&format!("cancelled, {way:?}"), move || {
            let engine = Engine::new(2, 2, CHUNK);
            let file = way.file(&engine);
            let mut future = way.start(&file);
            world::pause();
            let bell = Arc::new(Bell::default());
            let out = match poll(&mut future, &bell.into()) {
                Poll::Ready(out) => out,
                Poll::Pending => future.cancel(),
            };
            let done = way.check(&file, out).unwrap();
            let seen = file.open_file().seen.lock().unwrap().transferred.clone();
            assert_eq!(seen.iter().map(|(_, len_bytes)| len_bytes).sum::<usize>(), done);
            engine.assert_idle();
        });
    }
}

#[test]
fn failed_transfers_return_their_lanes() {
    // Either a byte of the second chunk fails, or a CUDA call for some chunk.
    let calls = [Fault::NoStream, Fault::Refused, Fault::RefusedLate, Fault::Asked].map(Some);
    for fault in calls.into_iter().chain([None]) {
        for way in ways().filter(|way| way.place == GPU || fault.is_none()) {
            explore(&format!("failing, {fault:?}, {way:?}"), move || {
                let engine = Engine::new(2, 2, CHUNK);
                let bad = fault.is_none().then_some(CHUNK + 3);
                let file = File::new(OpenFile { bad, ..OpenFile::new(&engine, way.schedule) });
                if let Some(fault) = fault {
                    // Each chunk takes two calls, and there are up to two lanes of two buffers each.
                    let calls = match fault {
                        Fault::NoStream => 1,
                        _ => 6,
                    };
                    world::fail(fault, thread_rng().gen_range(0..calls));
                }
                match way.check(&file, way.start(&file).wait()) {
                    // The transfer may make fewer calls than that, so that none fails.
                    Ok(done) => assert!(done == LEN && fault == Some(Fault::Asked)),
                    Err(Error { bytes_done, cause: Cause::Failed }) => assert_eq!(Some(bytes_done), bad),
                    Err(Error { bytes_done, cause }) => {
                        assert_eq!((bytes_done % CHUNK, bad, cause), (0, None, Cause::Cufile(())));
                    }
                }
                world::heal();
                let next = way.file(&engine);
                way.check_whole(&next, way.start(&next).wait());
                engine.assert_idle();
            });
        }
    }
}

#[test]
fn dead_streams_end_their_transfers() {
    for way in ways().filter(|way| way.place == GPU) {
        explore(&format!("dead, {way:?}"), move || {
            let engine = Engine::new(2, 1, CHUNK);
            let file = way.file(&engine);
            world::fail(Fault::Dies, thread_rng().gen_range(0..6));
            let error = way.check(&file, way.start(&file).wait()).unwrap_err();
            assert_eq!(error.cause, Cause::Cufile(()));
            engine.assert_idle();
        });
    }
}

#[test]
fn failed_futures_do_not_affect_others() {
    for way in ways() {
        explore(&format!("beside a failing one, {way:?}"), move || {
            let engine = Engine::new(2, 1, CHUNK);
            let failing = File::new(OpenFile { bad: Some(CHUNK), ..OpenFile::new(&engine, way.schedule) });
            let other = thread::spawn(move || {
                let future = way.start(&failing);
                let error = way.check(&failing, future.wait()).unwrap_err();
                assert_eq!(error, Error { bytes_done: CHUNK, cause: Cause::Failed });
            });
            for _ in 0..2 {
                let file = way.file(&engine);
                way.check_whole(&file, way.start(&file).wait());
            }
            other.join().unwrap();
            engine.assert_idle();
        });
    }
}

#[test]
fn wakers_can_use_and_drop_futures_of_their_engine() {
    for way in ways() {
        explore(&format!("in a waker, {way:?}"), move || {
            let engine = Engine::new(1, 1, CHUNK);
            let (file, sibling) = (way.file(&engine), way.file(&engine));
            let [done, dropped] = [(); 2].map(|()| Arc::new(Bell::default()));
            let mut future = way.start(&file);
            let to_drop = way.start_with(&sibling, |buffer| buffer.when_dropped(dropped.clone().into()));
            let waker = {
                let (file, done) = (way.file(&engine), done.clone());
                Call::waker(move || {
                    drop(to_drop);
                    way.check_whole(&file, way.start(&file).wait());
                    done.wake();
                })
            };
            match poll(&mut future, &waker) {
                Poll::Ready(out) => {
                    way.check_whole(&file, out);
                    waker.wake();
                    done.wait();
                }
                Poll::Pending => {
                    done.wait();
                    way.check_whole(&file, output(future));
                }
            }
            dropped.wait();
            engine.assert_idle();
        });
    }
}

#[test]
fn engines_drop_while_a_buffer_waits_for_a_lock() {
    for way in ways() {
        explore(&format!("behind a lock, {way:?}"), move || {
            // Python's lock, which the buffer needs to be dropped.
            let lock = Arc::new(Mutex::new(()));
            let engine = Engine::new(2, 1, CHUNK);
            let file = way.file(&engine);
            let dropped = Arc::new(Bell::default());
            let on_drop = {
                let (lock, dropped) = (lock.clone(), dropped.clone());
                Call::waker(move || {
                    drop(lock.lock().unwrap());
                    dropped.wake();
                })
            };
            let future = way.start_with(&file, |buffer| buffer.when_dropped(on_drop));
            thread::yield_now();
            drop(future);
            let held = lock.lock().unwrap();
            drop((file, engine));
            drop(held);
            dropped.wait();
        });
    }
}

#[test]
fn forked_children_wait_for_no_future() {
    for way in ways() {
        explore(&format!("forked, {way:?}"), move || {
            let engine = Engine::new(2, 1, CHUNK);
            let file = way.file(&engine);
            let future = way.start(&file);
            (0..thread_rng().gen_range(0..20)).for_each(|_| thread::yield_now());
            world::in_a_child(|| {
                // SAFETY: the child leaves the value to the parent.
                let copy = || unsafe { ptr::read(&future) };
                drop(copy());
                assert!(future.is_done());
                let Poll::Ready(polled) = poll(&mut copy(), Waker::noop()) else { panic!("it waits") };
                for (result, buffer) in [polled, copy().wait(), copy().cancel()] {
                    assert!(matches!(result.unwrap_err().cause, Cause::Invalid(_)));
                    mem::forget(buffer);
                }
                assert_eq!(engine.workers().release_buffers(), 0);
            });
            way.check_whole(&file, future.wait());
            engine.assert_idle();
        });
    }
}
