//! Reading and writing: the checks, the transfer, and the synchronous calls.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

use cufile_sys::{CUfileHandle_t, CUfileIOVec_t, off_t};

use super::handle::{self, Handle};
use super::unaligned::{self, BLOCK};
use super::{driver, stats, system};
use crate::control::{self, Hit};
use crate::memory::{self, Kind};
use crate::{c, device, status, trace};

#[derive(Clone, Copy)]
pub(super) struct Request {
    pub handle: CUfileHandle_t,
    pub base: *mut c_void,
    pub size: usize,
    pub file_offset: off_t,
    pub buffer_offset: off_t,
    pub write: bool,
}

// SAFETY: `base` is an address that the C caller lends until the transfer is done.
unsafe impl Send for Request {}

/// The errno that comes with −1 when the range goes beyond the allocation.
pub(super) const BEYOND: c_int = libc::EPERM;

impl Request {
    fn trace(&self, function: &str) {
        trace::call(function, |names| self.described(names));
    }

    pub(super) fn described(&self, names: &mut trace::Names) -> String {
        let Self { size, file_offset, buffer_offset, .. } = self;
        let (file, memory) = (names.of("file", self.handle.addr()), names.memory(self.base.addr()));
        format!("{file} {memory} size={size} file_offset={file_offset} buffer_offset={buffer_offset}")
    }

    /// Returns the file, or the fault of the request apart from its memory.
    pub(super) fn file(&self) -> Result<Arc<Handle>, c_int> {
        if self.handle.is_null() || self.base.is_null() {
            return Err(libc::EINVAL);
        }
        let file = handle::find(self.handle).ok_or(5027)?;
        if self.file_offset < 0 {
            return Err(5022);
        }
        if self.buffer_offset < 0 {
            return Err(libc::EIO);
        }
        if file.is_userspace() {
            let base = self.base.addr();
            let is_known = memory::find(base).is_some_and(|found| found.kind == Kind::Device)
                || handle::registered_length(base).is_some();
            return Err(if is_known { 5008 } else { 5024 });
        }
        if !file.allows(self.write) {
            return Err(if control::version() < 1160 { libc::EIO } else { 5019 });
        }
        Ok(file)
    }

    /// Returns the bytes moved, fewer at the end of the file, or the `errno`.
    pub(super) fn perform(&self, limit: usize) -> Result<usize, c_int> {
        let file = self.file()?;
        if self.size == 0 {
            return Ok(0);
        }
        let address = self.base.expose_provenance().checked_add(self.buffer_offset as usize).ok_or(BEYOND)?;
        let place = memory::place(address, self.size).map_err(|_| BEYOND)?;
        let started = Instant::now();
        let moved = move_bytes(&file, place.pointer, self.size.min(limit), self.file_offset, self.write);
        stats::transfer(self.write, self.size, &moved, started.elapsed(), place.device);
        moved
    }
}

/// Moves the bytes; an unaligned write rewrites the rest of its blocks too.
fn move_bytes(
    file: &Handle,
    pointer: *mut u8,
    size: usize,
    file_offset: off_t,
    write: bool,
) -> Result<usize, c_int> {
    let fd = file.descriptor();
    let aligned = size.is_multiple_of(BLOCK) && (file_offset as usize).is_multiple_of(BLOCK);
    if write && file.is_direct() && size > 0 && !aligned && control::rmw() {
        return unaligned::write(fd, pointer, size, file_offset);
    }
    system::transfer(fd, pointer, size, file_offset, write)
}

fn open() -> Result<(), c_int> {
    driver::open_for_use().map_err(|status| status.err.as_raw() as c_int)
}

/// Checks that the thread may use the memory, for tests that ask for it.
fn check_context(base: *mut c_void) -> Result<(), c_int> {
    let buffer = memory::find(base.addr()).filter(|found| found.kind == Kind::Device);
    let elsewhere = buffer.is_some_and(|found| device::current_context() != Some(found.device));
    if control::require_context() && elsewhere { Err(5047) } else { Ok(()) }
}

fn perform(request: Request, hit: &Hit) -> Result<usize, c_int> {
    open()?;
    check_context(request.base)?;
    let end = usize::try_from(request.buffer_offset).ok().and_then(|start| start.checked_add(request.size));
    if handle::registered_length(request.base.addr()).zip(end).is_some_and(|(length, end)| end > length) {
        return Err(5017);
    }
    let moved = request.perform(hit.limit(usize::MAX));
    stats::count(
        |basic| if request.write { &mut basic.write_ops } else { &mut basic.read_ops },
        moved.is_ok(),
    );
    moved
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileRead(
    fh: CUfileHandle_t,
    bufPtr_base: *mut c_void,
    size: usize,
    file_offset: off_t,
    bufPtr_offset: off_t,
) -> isize {
    let request = Request {
        handle: fh,
        base: bufPtr_base,
        size,
        file_offset,
        buffer_offset: bufPtr_offset,
        write: false,
    };
    request.trace("cuFileRead");
    status::transfer("cuFileRead", |hit| perform(request, hit))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileWrite(
    fh: CUfileHandle_t,
    bufPtr_base: *const c_void,
    size: usize,
    file_offset: off_t,
    bufPtr_offset: off_t,
) -> isize {
    let request = Request {
        handle: fh,
        base: bufPtr_base.cast_mut(),
        size,
        file_offset,
        buffer_offset: bufPtr_offset,
        write: true,
    };
    request.trace("cuFileWrite");
    status::transfer("cuFileWrite", |hit| perform(request, hit))
}

const MOST_VECTORS: usize = 128;

fn vectored(
    handle: CUfileHandle_t,
    vectors: Option<Vec<CUfileIOVec_t>>,
    file_offset: off_t,
    flags: u32,
    write: bool,
    hit: &Hit,
) -> Result<usize, c_int> {
    open()?;
    let fits = |count: usize| (1..=MOST_VECTORS).contains(&count) && flags == 0;
    let vectors = vectors.filter(|vectors| fits(vectors.len())).ok_or(libc::EINVAL)?;
    if vectors.iter().any(|vector| vector.len == 0) && vectors.iter().any(|vector| vector.len > 0) {
        // libcufile fails an assertion.
        eprintln!(
            "cufile-emulator: aborting: cuFileReadv and cuFileWritev fail an assertion for an empty entry among others; leave empty entries out"
        );
        std::process::abort();
    }
    let mut left = hit.limit(usize::MAX);
    let mut done = 0;
    for vector in vectors {
        check_context(vector.base)?;
        let offset = file_offset.checked_add(done as off_t).ok_or(5022)?;
        let request = Request {
            handle,
            base: vector.base,
            size: vector.len,
            file_offset: offset,
            buffer_offset: 0,
            write,
        };
        match request.perform(left) {
            Ok(moved) => {
                done += moved;
                left -= moved;
                if moved < vector.len {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(code) => return Err(code),
        }
    }
    Ok(done)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileReadv(
    fh: CUfileHandle_t,
    iov: *const CUfileIOVec_t,
    iovcnt: usize,
    file_offset: off_t,
    flags: u32,
) -> isize {
    status::transfer("cuFileReadv", |hit| {
        let moved = vectored(fh, c::array(iov, iovcnt), file_offset, flags, false, hit);
        stats::count(|basic| &mut basic.readv_ops, moved.is_ok());
        moved
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileWritev(
    fh: CUfileHandle_t,
    iov: *const CUfileIOVec_t,
    iovcnt: usize,
    file_offset: off_t,
    flags: u32,
) -> isize {
    status::transfer("cuFileWritev", |hit| {
        let moved = vectored(fh, c::array(iov, iovcnt), file_offset, flags, true, hit);
        stats::count(|basic| &mut basic.writev_ops, moved.is_ok());
        moved
    })
}

declared! {
    cufile_sys::Functions:
    cuFileRead cuFileWrite
    ; newer:
    cuFileReadv cuFileWritev
}
