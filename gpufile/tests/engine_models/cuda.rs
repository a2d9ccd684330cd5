//! A stand-in for CUDA, in which each stream is a thread that carries out submitted work.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::{fmt, ptr, slice, thread};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread::JoinHandle;

use crate::memory::Place;
use crate::stand_ins::sync::{AtomicU32, Ordering};
use crate::world::{self, Access, Fault, Kind};

/// The error that CUDA returns, without its cause.
#[derive(Debug)]
pub struct Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the stand-in refuses")
    }
}

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Context;

#[derive(Clone)]
pub struct Device(pub u32);

pub struct Entered;

impl Device {
    pub fn ordinal(&self) -> u32 {
        self.0
    }

    pub fn enter(&self) -> Result<Entered> {
        Ok(Entered)
    }

    pub fn stream(&self) -> Result<Stream> {
        if world::happens(Fault::NoStream) { Err(Error) } else { Ok(Stream::new(self)) }
    }

    pub fn event(&self) -> Result<Event> {
        Ok(Event(Mutex::default()))
    }

    pub fn alloc_pinned(&self, len_bytes: usize) -> Result<PinnedBuffer> {
        world::pause();
        if world::happens(Fault::NoMemory) {
            return Err(Error);
        }
        let ptr = world::alloc(len_bytes, Kind::Pinned);
        // SAFETY: the memory was just allocated with this length.
        unsafe { ptr.write_bytes(0, len_bytes) };
        Ok(PinnedBuffer { ptr, len_bytes })
    }

    pub fn reserve_pinned(&self, len_bytes: usize, _: usize) -> PinnedRegion {
        PinnedRegion { device: self.clone(), len_bytes }
    }
}

pub struct PinnedRegion {
    device: Device,
    len_bytes: usize,
}

impl PinnedRegion {
    pub fn alloc(&self) -> Result<PinnedBuffer> {
        self.device.alloc_pinned(self.len_bytes)
    }

    /// Returns any number, as threads come and go.
    pub fn allocating(&self) -> usize {
        thread_rng().gen_range(0..4)
    }
}

pub struct PinnedBuffer {
    ptr: *mut u8,
    len_bytes: usize,
}

// SAFETY: the memory belongs to the model, and all its threads may use it.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    pub fn is_allocated(&self) -> bool {
        true
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory was allocated with this length, and stays until the next schedule.
        unsafe { slice::from_raw_parts(self.ptr, self.len_bytes) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { slice::from_raw_parts_mut(self.ptr, self.len_bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if !thread::panicking() {
            world::pause();
            world::free(self.ptr);
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum WordOperation {
    Wait(*const u32, u32),
    Write(*mut u32, u32),
}

enum Operation {
    Copy { target: *mut u8, source: *const u8, len_bytes: usize },
    Word(WordOperation),
    Call(Box<dyn FnOnce() + Send>),
    Nothing,
}

// SAFETY: the pointers refer to memory of the model, which all its threads may use.
unsafe impl Send for Operation {}

impl Operation {
    fn carry_out(self) {
        match self {
            Operation::Copy { target, source, len_bytes } => {
                let parts = [(source, len_bytes, Access::Read), (target, len_bytes, Access::Write)];
                // SAFETY: `using` has checked that both ranges are allocated.
                world::using(&parts, "a copy", || unsafe {
                    ptr::copy_nonoverlapping(source, target, len_bytes)
                });
            }
            Operation::Word(WordOperation::Wait(word, number)) => {
                while word_at(word).load(Ordering::SeqCst).wrapping_sub(number).cast_signed() < 0 {
                    shuttle::thread::yield_now();
                }
            }
            Operation::Word(WordOperation::Write(word, number)) => {
                word_at(word).store(number, Ordering::SeqCst)
            }
            Operation::Call(function) => function(),
            Operation::Nothing => world::pause(),
        }
    }
}

/// Returns a word of a ring. Each use of the word checks that its memory is allocated.
fn word_at<'a>(word: *const u32) -> &'a AtomicU32 {
    // SAFETY: the word lies in memory of the model, which stays until the next schedule.
    unsafe { AtomicU32::from_ptr(word.cast_mut()) }
}

#[derive(Default)]
struct Queue {
    state: Mutex<Work>,
    changed: Condvar,
}

#[derive(Default)]
struct Work {
    operations: VecDeque<Operation>,
    submitted: usize,
    done: usize,
    /// Set after a failure. The stream then carries out no more work.
    is_dead: bool,
    is_closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, Work> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, Work>) -> MutexGuard<'a, Work> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, number: usize) -> Result<()> {
        let mut state = self.state();
        while state.done < number && !state.is_dead {
            state = self.wait(state);
        }
        if state.is_dead { Err(Error) } else { Ok(()) }
    }

    fn carry_out_all(&self) {
        let mut state = self.state();
        loop {
            let Some(operation) = state.operations.pop_front() else {
                if state.is_closed {
                    return;
                }
                state = self.wait(state);
                continue;
            };
            drop(state);
            let dies = world::happens(Fault::Dies);
            if !dies {
                operation.carry_out();
            }
            state = self.state();
            state.done += 1;
            if dies {
                state.is_dead = true;
                state.operations.clear();
            }
            self.changed.notify_all();
        }
    }
}

/// A thread that carries out submitted work. Dropping it waits for that work.
pub struct Stream {
    device: Device,
    number: usize,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub fn new(device: &Device) -> Self {
        let queue = Arc::<Queue>::default();
        let of_thread = queue.clone();
        let thread = Some(shuttle::thread::spawn(move || of_thread.carry_out_all()));
        Self { device: device.clone(), number: world::next_stream(), queue, thread }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn as_raw(&self) -> *const u8 {
        ptr::without_provenance(self.number)
    }

    pub fn is_capturing(&self) -> Result<bool> {
        Ok(false)
    }

    pub fn synchronize(&self) -> Result<()> {
        let submitted = self.queue.state().submitted;
        self.queue.wait_for(submitted)
    }

    pub fn is_idle(&self) -> Result<bool> {
        let state = self.queue.state();
        if state.is_dead { Err(Error) } else { Ok(state.done == state.submitted) }
    }

    fn submit(&self, operations: impl IntoIterator<Item = Operation>) -> Result<()> {
        if world::happens(Fault::Refused) {
            return Err(Error);
        }
        let is_late = world::happens(Fault::RefusedLate);
        let mut state = self.queue.state();
        if state.is_dead {
            return Err(Error);
        }
        for operation in operations {
            // CUDA's thread then has no function to call.
            let is_call = matches!(operation, Operation::Call(_));
            state.operations.push_back(if is_late && is_call { Operation::Nothing } else { operation });
            state.submitted += 1;
        }
        self.queue.changed.notify_all();
        if is_late { Err(Error) } else { Ok(()) }
    }

    pub unsafe fn copy_to_device(&self, target: *mut u8, source: &[u8]) -> Result<()> {
        self.submit([Operation::Copy { target, source: source.as_ptr(), len_bytes: source.len() }])
    }

    pub unsafe fn copy_from_device(&self, target: &mut [u8], source: *const u8) -> Result<()> {
        self.submit([Operation::Copy { target: target.as_mut_ptr(), source, len_bytes: target.len() }])
    }

    pub unsafe fn on_words(&self, operations: &[WordOperation]) -> Result<()> {
        self.submit(operations.iter().map(|operation| Operation::Word(*operation)))
    }

    pub fn call_on_host<F: FnOnce() + Send + 'static>(&self, function: F) -> Result<()> {
        self.submit([Operation::Call(Box::new(function))])
    }

    /// Submits a function that observes the stream's work. Returns a value that waits for the function.
    pub fn then(&self, function: impl FnOnce() + Send + 'static) -> Behind {
        let mut state = self.queue.state();
        if !state.is_dead {
            state.operations.push_back(Operation::Call(Box::new(function)));
            state.submitted += 1;
        }
        self.queue.changed.notify_all();
        Behind { queue: self.queue.clone(), number: state.submitted }
    }

    pub fn record(&self) -> Result<Event> {
        let event = self.device.event()?;
        self.record_into(&event)?;
        Ok(event)
    }

    pub fn record_into(&self, event: &Event) -> Result<()> {
        self.submit([Operation::Nothing])?;
        let submitted = self.queue.state().submitted;
        *event.mark() = Some((self.queue.clone(), submitted));
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let _ = self.synchronize();
        self.queue.state().is_closed = true;
        self.queue.changed.notify_all();
        let _ = self.thread.take().expect("dropped once").join();
    }
}

/// A function that a model submitted to a stream.
pub struct Behind {
    queue: Arc<Queue>,
    number: usize,
}

impl Behind {
    /// Waits until the function has ended, or can never run.
    pub fn wait(self) {
        let _ = self.queue.wait_for(self.number);
    }
}

/// A point in a stream's work.
pub struct Event(Mutex<Mark>);

type Mark = Option<(Arc<Queue>, usize)>;

impl Event {
    fn mark(&self) -> MutexGuard<'_, Mark> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_done(&self) -> Result<bool> {
        if world::happens(Fault::Asked) {
            return Err(Error);
        }
        let Some((queue, number)) = self.mark().clone() else { return Ok(true) };
        let state = queue.state();
        if state.is_dead { Err(Error) } else { Ok(state.done >= number) }
    }

    pub fn wait(&self) -> Result<()> {
        if world::happens(Fault::Asked) {
            return Err(Error);
        }
        let mark = self.mark().clone();
        mark.map_or(Ok(()), |(queue, number)| queue.wait_for(number))
    }
}

/// # Safety
/// As for the trait of cufile.
pub unsafe trait IoBuf {
    fn as_ptr(&self) -> *const u8;
    fn len_bytes(&self) -> usize;
    fn location(&self) -> Location;
}

pub struct Location {
    pub is_host_accessible: bool,
    pub context: Option<Context>,
    pub is_registered: bool,
    pub base_offset: usize,
}

/// # Safety
/// As for the trait of cufile.
pub unsafe trait IoBufMut: IoBuf {
    fn as_mut_ptr(&mut self) -> *mut u8;
}

pub struct Buffer {
    ptr: *mut u8,
    len_bytes: usize,
    place: Place,
    /// Woken when the buffer is dropped.
    dropped: Option<Waker>,
}

// SAFETY: the memory belongs to the model, and all its threads may use it.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn new(place: Place, len_bytes: usize) -> Self {
        let ptr = world::alloc(len_bytes, Kind::Buffer);
        fill_with_junk(ptr, len_bytes);
        Self { ptr, len_bytes, place, dropped: None }
    }

    pub fn filled(place: Place, len_bytes: usize) -> Self {
        let mut filled = Self::new(place, len_bytes);
        fill(filled.as_mut_ptr(), len_bytes);
        filled
    }

    pub fn when_dropped(mut self, waker: Waker) -> Self {
        self.dropped = Some(waker);
        self
    }

    pub fn bytes(&self) -> &[u8] {
        look(self.ptr, self.len_bytes)
    }
}

/// Returns the bytes. Fails if another thread writes them now.
pub fn look<'a>(ptr: *const u8, len_bytes: usize) -> &'a [u8] {
    world::using(&[(ptr, len_bytes, Access::Read)], "someone who looks", || ());
    // SAFETY: the memory is allocated, and stays until the next schedule.
    unsafe { slice::from_raw_parts(ptr, len_bytes) }
}

/// Fills memory with the bytes that files hold.
pub fn fill(ptr: *mut u8, len_bytes: usize) {
    world::using(&[(ptr, len_bytes, Access::Write)], "someone who fills", || {
        // SAFETY: the memory is allocated.
        unsafe { slice::from_raw_parts_mut(ptr, len_bytes) }.copy_from_slice(world::pattern(0, len_bytes));
    });
}

pub fn fill_with_junk(ptr: *mut u8, len_bytes: usize) {
    fill_with(ptr, len_bytes, 0xa5);
}

pub fn fill_with(ptr: *mut u8, len_bytes: usize, byte: u8) {
    world::using(&[(ptr, len_bytes, Access::Write)], "someone who fills", || {
        // SAFETY: the memory is allocated.
        unsafe { ptr.write_bytes(byte, len_bytes) };
    });
}

// SAFETY: the memory stays in place.
unsafe impl IoBuf for Buffer {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        let is_host_accessible = self.place == Place::Host;
        Location { is_host_accessible, context: None, is_registered: false, base_offset: 0 }
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Buffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !thread::panicking() {
            world::free(self.ptr);
            if let Some(waker) = self.dropped.take() {
                waker.wake();
            }
        }
    }
}
