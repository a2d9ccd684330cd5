//! Models of transfers that own several buffers, each with a job, and are polled, dropped and cancelled while
//! workers carry out the jobs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::cuda::Buffer;
use crate::direction::Direction;
use crate::engine::{Engine, Growth, IoRange};
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::future::io_future::IoFuture;
use crate::future::owned::{Owned, Work};
use crate::futures::{CHUNK, LEN, Way, assert_once, ways};
use crate::open_file::OpenFile;
use crate::world;
use crate::{Bell, explore};

const COUNT: usize = 3;
const RANGE: IoRange = IoRange { file_offset: 0, buffer_offset: 0, len_bytes: LEN };

fn start(way: Way, files: &[File], change: impl Fn(Buffer) -> Buffer) -> IoFuture<Vec<Buffer>> {
    let buffer = || match way.is_write {
        false => Buffer::new(way.place, LEN),
        true => Buffer::filled(way.place, LEN),
    };
    let buffers: Vec<_> = files.iter().map(|_| change(buffer())).collect();
    let direction = if way.is_write { Direction::Write } else { Direction::Read };
    IoFuture::start(Owned::new(buffers, |buffers| {
        let engine = files[0].engine();
        let kept = Arc::new((files.to_vec(), [RANGE]));
        let (files, range) = &*kept;
        let transfer = |file: usize, buffer: &mut Buffer| {
            let memory = files[file].memory_mut(buffer, 0)?;
            Ok(files[file].transfer(direction, memory, range, Growth::MayAllocate))
        };
        let first = transfer(0, &mut buffers[0])?;
        // SAFETY: the transfers of all jobs belong to `kept` and to the buffers.
        let mut work = unsafe { Work::new(engine, first, kept.clone(), COUNT * LEN) }.of_list();
        for (start, buffer) in buffers.iter_mut().enumerate() {
            // SAFETY: as above.
            unsafe { work.add(start, &transfer(start, buffer)?) }?;
        }
        Ok(work)
    }))
}

fn files(way: Way, engine: &Engine) -> Vec<File> {
    (0..COUNT).map(|_| way.file(engine)).collect()
}

fn block_on(mut future: IoFuture<Vec<Buffer>>) -> (Result<usize>, Vec<Buffer>) {
    loop {
        let bell = Arc::new(Bell::default());
        match Pin::new(&mut future).poll(&mut Context::from_waker(&bell.clone().into())) {
            Poll::Ready(output) => return output,
            Poll::Pending => bell.wait(),
        }
    }
}

/// Checks that the first `done` bytes of all buffers, one after the other, were transferred once.
fn check(files: &[File], buffers: &[Buffer], done: usize) {
    for (at, (file, buffer)) in files.iter().zip(buffers).enumerate() {
        let done = done.saturating_sub(at * LEN).min(LEN);
        assert!(buffer.bytes()[..done] == *world::pattern(0, done), "{done} bytes of buffer {at}");
        assert_once(file, done);
    }
}

#[test]
fn the_end_of_each_job_wakes_its_list() {
    for way in ways() {
        explore(&format!("list, {way:?}"), move || {
            let engine = Engine::new(2, 1, CHUNK);
            let files = files(way, &engine);
            let (result, buffers) = block_on(start(way, &files, |buffer| buffer));
            assert_eq!(result, Ok(COUNT * LEN));
            check(&files, &buffers, COUNT * LEN);
            engine.assert_idle();
        });
    }
}

#[test]
fn dropped_lists_free_their_buffers_after_all_jobs() {
    for way in ways() {
        for (polls, keeps_engine) in [(false, true), (true, true), (true, false)] {
            explore(&format!("dropped list, polled: {polls}, engine: {keeps_engine}, {way:?}"), move || {
                let engine = Engine::new(2, 2, CHUNK);
                let files = files(way, &engine);
                let dropped = Arc::new(Bell::default());
                // The bell of the last buffer rings last.
                let mut future = start(way, &files, |buffer| buffer.when_dropped(dropped.clone().into()));
                let kept = keeps_engine.then_some((files, engine));
                let waker = Waker::noop();
                let is_over = polls && Pin::new(&mut future).poll(&mut Context::from_waker(waker)).is_ready();
                world::pause();
                drop(future);
                while Arc::strong_count(&dropped) > 1 {
                    shuttle::thread::yield_now();
                }
                if let Some((files, engine)) = kept {
                    let done = if way.is_write || is_over { LEN } else { 0 };
                    files.iter().for_each(|file| assert_once(file, done));
                    engine.assert_idle();
                }
            });
        }
    }
}

#[test]
fn cancelled_lists_return_their_buffers() {
    for way in ways() {
        explore(&format!("cancelled list, {way:?}"), move || {
            let engine = Engine::new(2, 2, CHUNK);
            let files = files(way, &engine);
            let future = start(way, &files, |buffer| buffer);
            world::pause();
            let (result, buffers) = future.cancel();
            // The error of a cancelled list has the number of bytes before the stop.
            let done = result.unwrap_or_else(|error| error.bytes_done);
            check(&files, &buffers, done);
            engine.assert_idle();
        });
    }
}

#[test]
fn failed_jobs_of_a_list_spare_the_others() {
    for way in ways() {
        for failing in 0..COUNT {
            explore(&format!("list that fails at {failing}, {way:?}"), move || {
                let engine = Engine::new(2, 1, CHUNK);
                let mut files = files(way, &engine);
                let bad = OpenFile { bad: Some(CHUNK + 3), ..OpenFile::new(&engine, way.schedule) };
                files[failing] = File::new(bad);
                let (result, buffers) = block_on(start(way, &files, |buffer| buffer));
                let bytes_done = failing * LEN + CHUNK + 3;
                assert_eq!(result, Err(Error { bytes_done, cause: Cause::Failed }));
                check(&files, &buffers, bytes_done);
                let others = (0..COUNT).filter(|at| *at != failing);
                others.for_each(|at| check(&files[at..=at], &buffers[at..=at], LEN));
                engine.assert_idle();
            });
        }
    }
}
