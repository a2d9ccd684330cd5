//! Models of transfers that a stream waits for: their chunks in the slots of a ring, the thread that advances
//! them, and the stream.

use std::mem;
use std::ptr::{self, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::cuda::{Buffer, Device, IoBuf, Stream, fill, fill_with_junk, look};
use crate::engine::{Engine, Schedule};
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::future::io_future::IoFuture;
use crate::futures::assert_once;
use crate::memory::Place;
use crate::open_file::OpenFile;
use crate::world::{self, Fault};
use crate::{GPU, explore};

/// The length in bytes of a slot in the rings for short transfers.
const SLOT: usize = 1 << 20;
/// The length in bytes of three chunks, the last of which is shorter, so one slot is used twice.
const LEN: usize = 2 * SLOT + SLOT / 4;

#[derive(Debug, Clone, Copy)]
struct Way {
    place: Place,
    is_write: bool,
}

fn ways() -> impl Iterator<Item = Way> {
    [(GPU, false), (GPU, true), (Place::Host, false), (Place::Host, true)]
        .into_iter()
        .map(|(place, is_write)| Way { place, is_write })
}

fn engine(threads: usize) -> Engine {
    Engine::with_relays(threads, 1, SLOT)
}

/// Returns a file with a schedule of two chunks for each slot.
fn open(engine: &Engine) -> OpenFile {
    OpenFile::new(engine, Schedule { chunk_bytes: SLOT / 2 + 4096, ..Schedule::default() })
}

impl Way {
    fn or_back(self) -> Self {
        Self { is_write: thread_rng().gen_bool(0.5), ..self }
    }

    /// Submits a transfer after work of the stream that uses the same buffer.
    fn submit(self, file: &File, stream: &Stream) -> IoFuture<Buffer> {
        let buffer = Buffer::new(self.place, LEN);
        let at = buffer.as_ptr().expose_provenance();
        stream.then(move || match self.is_write {
            true => fill(with_exposed_provenance_mut(at), LEN),
            false => fill_with_junk(with_exposed_provenance_mut(at), LEN),
        });
        match self.is_write {
            true => file.write_all_at_on_stream(stream, buffer, 0),
            false => file.read_at_on_stream(stream, buffer, 0),
        }
    }

    /// Submits a transfer that does not fail, and work of the stream after it. That work finds the bytes that
    /// were read, or changes the bytes that were written. Returns a function that waits for both.
    fn submit_between(self, file: &File, stream: &Stream) -> impl FnOnce() {
        let submitted = self.submit(file, stream);
        let at = submitted.buffer_ptr().expose_provenance();
        let behind = stream.then(move || match self.is_write {
            true => fill_with_junk(with_exposed_provenance_mut(at), LEN),
            false => {
                assert!(look(with_exposed_provenance(at), LEN) == world::pattern(0, LEN), "not read yet")
            }
        });
        let file = file.clone();
        move || {
            let output = submitted.wait();
            behind.wait();
            assert_eq!(self.check(&file, output), Ok(LEN));
        }
    }

    fn check(self, file: &File, (result, buffer): (Result<usize>, Buffer)) -> Result<usize> {
        let done = *result.as_ref().unwrap_or_else(|error| &error.bytes_done);
        if !self.is_write {
            assert!(buffer.bytes()[..done] == *world::pattern(0, done), "{done} bytes were said to be read");
        }
        assert_once(file, done);
        result
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|some| *some == [0; 4096][..some.len()])
}

/// Fails if a buffer has wrong bytes behind the bytes that were read. The rest of the failed slot must be
/// zeros. Each later slot must hold zeros, or all of the file's bytes.
fn assert_zeros_or_whole(buffer: &Buffer, done: usize) {
    let (bytes, part_end) = (buffer.bytes(), (done / SLOT + 1) * SLOT);
    assert!(is_zero(&bytes[done..part_end.min(LEN)]), "other bytes came");
    for start in (part_end..LEN).step_by(SLOT) {
        let part = &bytes[start..LEN.min(start + SLOT)];
        assert!(is_zero(part) || part == world::pattern(start, part.len()), "other bytes came");
    }
}

#[test]
fn chunks_arrive_in_order_before_the_stream_continues() {
    for way in ways() {
        explore(&format!("staged, {way:?}"), move || {
            let engine = engine(2);
            let stream = Stream::new(&Device(0));
            let files = [(); 2].map(|()| File::new(open(&engine)));
            let submitted = files.each_ref().map(|file| way.or_back().submit_between(file, &stream));
            submitted.into_iter().for_each(|wait| wait());
            engine.assert_idle();
        });
    }
}

#[test]
fn a_transfer_is_done_when_its_bytes_are_there() {
    for way in ways() {
        explore(&format!("done, {way:?}"), move || {
            let engine = engine(1);
            let stream = Stream::new(&Device(0));
            let file = File::new(open(&engine));
            let submitted = way.submit(&file, &stream);
            while !submitted.is_done() {
                thread::yield_now();
            }
            assert!(look(submitted.buffer_ptr(), LEN) == world::pattern(0, LEN), "not there");
            assert_eq!(way.check(&file, submitted.wait()), Ok(LEN));
            // The only worker begins with the bytes that the stream needs first.
            let seen = file.open_file().seen.lock().unwrap().transferred.clone();
            assert!(seen.is_sorted(), "{seen:?}");
            engine.assert_idle();
        });
    }
}

#[test]
fn threads_take_turns_at_the_ring_of_a_stream() {
    for way in ways() {
        explore(&format!("one stream, {way:?}"), move || {
            let engine = engine(1);
            let stream = Arc::new(Stream::new(&Device(0)));
            let threads = [(); 2].map(|()| {
                let (engine, stream) = (engine.clone(), stream.clone());
                thread::spawn(move || {
                    let file = File::new(open(&engine));
                    way.or_back().submit_between(&file, &stream)();
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            engine.assert_idle();
        });
    }
}

#[test]
fn two_streams_use_separate_rings() {
    for way in ways() {
        explore(&format!("two streams, {way:?}"), move || {
            let engine = engine(1);
            let threads = [(); 2].map(|()| {
                let engine = engine.clone();
                thread::spawn(move || {
                    let stream = Stream::new(&Device(0));
                    let file = File::new(open(&engine));
                    way.submit_between(&file, &stream)();
                })
            });
            // Releasing must not free a ring that a transfer uses.
            engine.release_buffers();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            engine.assert_idle();
        });
    }
}

#[test]
fn a_failed_chunk_ends_only_its_transfer() {
    for way in ways() {
        for bad in [5, SLOT + SLOT / 2 + 5000, 2 * SLOT] {
            explore(&format!("bad byte {bad}, {way:?}"), move || {
                let engine = engine(2);
                let stream = Stream::new(&Device(0));
                let failing = File::new(OpenFile { bad: Some(bad), ..open(&engine) });
                let file = File::new(open(&engine));
                let failed = way.submit(&failing, &stream);
                let next = way.or_back().submit_between(&file, &stream);
                let (result, buffer) = failed.wait();
                if !way.is_write && way.place == GPU {
                    assert_zeros_or_whole(&buffer, bad);
                }
                if way.is_write && way.place == GPU {
                    // The slots are written one after the other.
                    let seen = failing.open_file().seen.lock().unwrap().transferred.clone();
                    assert!(
                        seen.iter().all(|(offset, _)| *offset < (bad / SLOT + 1) * SLOT),
                        "there is a gap"
                    );
                }
                let error = way.check(&failing, (result, buffer)).unwrap_err();
                assert_eq!(error, Error { bytes_done: bad, cause: Cause::Failed });
                next();
                engine.assert_idle();
            });
        }
    }
}

#[test]
fn zeros_fill_the_buffer_behind_the_end_of_file() {
    for len_bytes in [0, SLOT + 5, 2 * SLOT + 7] {
        explore(&format!("end at {len_bytes}"), move || {
            let engine = engine(2);
            let way = Way { place: GPU, is_write: false };
            let stream = Stream::new(&Device(0));
            let file = File::new(open(&engine));
            // The bytes that this transfer leaves in the slots must not appear in the next.
            let before = way.submit_between(&file, &stream);
            let short = File::new(OpenFile { len_bytes, ..open(&engine) });
            let (result, buffer) = way.submit(&short, &stream).wait();
            assert!(is_zero(&buffer.bytes()[len_bytes..]), "other bytes came");
            assert_eq!(way.check(&short, (result, buffer)), Ok(len_bytes));
            before();
            engine.assert_idle();
        });
    }
}

#[test]
fn the_call_carries_out_transfers_it_cannot_submit() {
    for fault in [Fault::Refused, Fault::RefusedLate, Fault::NoMemory] {
        for way in ways().filter(|way| way.place == GPU || fault != Fault::NoMemory) {
            explore(&format!("{fault:?}, {way:?}"), move || {
                let engine = engine(1);
                let stream = Stream::new(&Device(0));
                // A transfer that had begun is started again from its beginning.
                let files = [(); 3].map(|()| File::new(OpenFile { may_repeat: true, ..open(&engine) }));
                let before =
                    thread_rng().gen_bool(0.5).then(|| way.or_back().submit_between(&files[0], &stream));
                // An existing ring needs no memory. Nine calls submit three slots' bytes, and four calls
                // submit one slot's.
                let calls = match (fault, way.place) {
                    (Fault::NoMemory, _) => usize::from(before.is_none()),
                    (_, Place::Host) => 4,
                    _ => 9,
                };
                if calls > 0 {
                    world::fail(fault, thread_rng().gen_range(0..calls));
                }
                let refused = way.submit_between(&files[1], &stream);
                way.or_back().submit_between(&files[2], &stream)();
                refused();
                if let Some(wait) = before {
                    wait();
                }
                engine.assert_idle();
            });
        }
    }
}

#[test]
fn dead_streams_return_buffers() {
    for way in ways() {
        for waits in [false, true] {
            explore(&format!("dead, waits: {waits}, {way:?}"), move || {
                let engine = engine(1);
                let stream = Stream::new(&Device(0));
                let files = [(); 2].map(|()| File::new(open(&engine)));
                world::fail(Fault::Dies, thread_rng().gen_range(0..24));
                let submitted = files.each_ref().map(|file| way.submit(file, &stream));
                for (file, submitted) in files.iter().zip(submitted) {
                    if !waits {
                        drop(submitted);
                        continue;
                    }
                    match way.check(file, submitted.wait()) {
                        Ok(done) => assert_eq!(done, LEN),
                        Err(error) => assert_eq!(error, Error { bytes_done: 0, cause: Cause::Cufile(()) }),
                    }
                }
                world::heal();
                drop(stream);
                let stream = Stream::new(&Device(0));
                let file = File::new(open(&engine));
                way.submit_between(&file, &stream)();
            });
        }
    }
}

#[test]
fn transfers_continue_after_a_failed_event_query() {
    for way in ways() {
        for questions in [1, 2] {
            explore(&format!("{questions} failed questions, {way:?}"), move || {
                let engine = engine(1);
                let stream = Stream::new(&Device(0));
                let files = [(); 2].map(|()| File::new(open(&engine)));
                let submitted = way.submit(&files[0], &stream);
                (0..questions).for_each(|_| world::fail(Fault::Asked, 0));
                let next = way.or_back().submit_between(&files[1], &stream);
                match way.check(&files[0], submitted.wait()) {
                    Ok(done) => assert_eq!((done, questions), (LEN, 1)),
                    Err(error) => {
                        assert_eq!((error, questions), (Error { bytes_done: 0, cause: Cause::Cufile(()) }, 2))
                    }
                }
                next();
                engine.assert_idle();
            });
        }
    }
}

#[test]
fn dropped_transfers_end_before_their_engine() {
    for way in ways() {
        explore(&format!("dropped, {way:?}"), move || {
            let stream = Stream::new(&Device(0));
            let engine = engine(2);
            let file = File::new(open(&engine));
            drop(engine);
            let submitted = way.submit(&file, &stream);
            drop(file);
            drop(submitted);
        });
    }
}

#[test]
fn given_up_transfers_keep_all_that_they_use() {
    for way in ways() {
        explore(&format!("given up, {way:?}"), move || {
            let stream = Stream::new(&Device(0));
            let engine = engine(1);
            let file = File::new(open(&engine));
            let relays = engine.relays().unwrap().clone();
            // Without this transfer, the one that is given up would be the first in its ring.
            let before = thread_rng().gen_bool(0.5).then(|| way.or_back().submit(&file, &stream));
            let submitted = way.submit(&file, &stream);
            let at = submitted.buffer_ptr().expose_provenance();
            (0..thread_rng().gen_range(0..50)).for_each(|_| thread::yield_now());
            drop((before, file, engine));
            world::fail(Fault::GivesUp, 0);
            drop(submitted);
            world::heal();
            let leaked = world::are_leaked();
            // The stream passes the transfer.
            stream.synchronize().unwrap();
            if leaked > 0 && !way.is_write {
                assert!(look(with_exposed_provenance(at), LEN) == world::pattern(0, LEN), "not read");
            }
            drop(stream);
            // Shuttle waits for all threads, so those that were leaked have to end.
            while Arc::strong_count(&relays) > 1 {
                assert!(leaked > 0, "the transfer was dropped");
                // SAFETY: only what was leaked has another reference.
                unsafe { Arc::decrement_strong_count(Arc::as_ptr(&relays)) };
            }
        });
    }
}

#[test]
fn forked_children_wait_for_no_transfer_of_a_stream() {
    for way in ways() {
        explore(&format!("forked, {way:?}"), move || {
            let engine = engine(1);
            let stream = Stream::new(&Device(0));
            let file = File::new(open(&engine));
            let submitted = way.submit(&file, &stream);
            (0..thread_rng().gen_range(0..50)).for_each(|_| thread::yield_now());
            world::in_a_child(|| {
                // SAFETY: the child leaves the value to the parent.
                let copy = || unsafe { ptr::read(&submitted) };
                drop(copy());
                assert!(submitted.is_done());
                let (result, buffer) = copy().wait();
                assert!(matches!(result.unwrap_err().cause, Cause::Invalid(_)));
                mem::forget(buffer);
                assert!(engine.relays().unwrap().release_buffers() == 0);
            });
            assert_eq!(way.check(&file, submitted.wait()), Ok(LEN));
            engine.assert_idle();
        });
    }
}
